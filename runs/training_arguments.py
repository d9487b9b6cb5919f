"""The command line of main.py."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runs.folder import recorded_config
from settings import chosen_agent, default_settings, describe_settings, load_config
from settings.published_experiments import published_table
from utils.command_line import Parser, add_trust


def training_arguments(argv: Sequence[str] | None, description: str | None) -> argparse.Namespace:
    """Read the command line; `overrides` has the settings in it as KEY=VALUE.

    Raises:
        UserError: an unknown argument, or settings beside --resume.
    """
    parser = Parser(
        prog="main.py",
        description=description,
        ending=lambda: f"settings, for --var and --config:\n{describe_settings(_own_agent(argv))}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", metavar="FILE", help="JSON file with the settings that differ")
    parser.add_argument(
        "--var", metavar="KEY=VALUE", action="append", default=[], help="one setting, repeatable"
    )
    parser.add_argument("--seed", metavar="N", nargs=1, default=[], help="short for --var seed=N")
    parser.add_argument(
        "--deterministic", action="store_true", help="short for --var deterministic=true"
    )
    parser.add_argument(
        "--run-id", metavar="NAME", help="run folder's name instead of the settings"
    )
    parser.add_argument(
        "--resume", metavar="RUN_FOLDER", type=Path, help="go on with an unfinished run"
    )
    parser.add_argument(
        "--init-from",
        metavar="RUN",
        type=Path,
        help="begin with the parameters of another run's agent: its folder, or a checkpoint",
    )
    add_trust(parser)
    parser.add_argument("--list-configs", action="store_true", help="show the published settings")
    parser.add_argument("--print-config", action="store_true", help="show all settings and stop")
    arguments = parser.parse_args(argv)
    short = ["deterministic=true"] * arguments.deterministic
    arguments.overrides = [*arguments.var, *(f"seed={seed}" for seed in arguments.seed), *short]
    given = arguments.overrides or arguments.config or arguments.run_id or arguments.init_from
    if arguments.resume and given:
        parser.error("--resume takes all settings from the run folder, give it alone")
    return arguments


def _own_agent(argv: Sequence[str] | None) -> Mapping[str, Any]:
    """Return the agent of the user's own that help is asked for with, if one is named."""
    words = [word.removeprefix("--var=") for word in (sys.argv[1:] if argv is None else argv)]
    return chosen_agent([word for word in words if word.startswith("model=")])


def has_printed(arguments: argparse.Namespace) -> bool:
    """Print the published settings or those of this run, if asked to, and return whether."""
    if arguments.list_configs:
        print(published_table())
    elif arguments.print_config:
        given = (arguments.config, arguments.overrides)
        config = recorded_config(arguments.resume) if arguments.resume else load_config(*given)
        values = dataclasses.asdict(config)
        in_order = {name: values[name] for name in default_settings(values)}
        print(json.dumps(in_order, indent=2))
    return arguments.list_configs or arguments.print_config
