"""Train an agent: settings → environments, agent, trainer → run folder."""

import utils.starting  # noqa: F401

# isort: split
import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from report import configured_showcase
from runs.folder import recorded_config
from settings import (
    chosen_agent,
    default_settings,
    describe_settings,
    load_config,
    published_table,
)
from trainers.build import NewRun, begin, go_on
from trainers.ranks import joined_ranks
from trainers.run import RunSettings
from utils.command_line import Parser, add_trust, leave, run_program


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says and return the exit status."""
    return run_program(train, argv)


def train(argv: Sequence[str] | None) -> None:
    """Begin the run that the settings describe, go on with an earlier one, or print."""
    arguments = parse_arguments(argv)
    given = (arguments.config, arguments.overrides)
    if arguments.list_configs:
        print(published_table())
        return
    if arguments.print_config:
        config = recorded_config(arguments.resume) if arguments.resume else load_config(*given)
        values = dataclasses.asdict(config)
        print(json.dumps({name: values[name] for name in default_settings(values)}, indent=2))
        return
    with joined_ranks() as ranks:
        if arguments.resume:
            go_on(arguments.resume, ranks, trust=arguments.trust, show=configured_showcase)
            return
        new = NewRun(
            arguments.run_id, arguments.overrides, arguments.init_from, trust=arguments.trust
        )
        begin(load_config(*given).part(RunSettings), new, ranks, configured_showcase)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; `overrides` has the settings in it as KEY=VALUE."""

    def describe() -> str:
        """Return the help of all settings, with those of an agent of the user's own if named."""
        words = [word.removeprefix("--var=") for word in (sys.argv[1:] if argv is None else argv)]
        own = chosen_agent([word for word in words if word.startswith("model=")])
        return f"settings, for --var and --config:\n{describe_settings(own)}"

    parser = Parser(
        prog="main.py",
        description=__doc__,
        ending=describe,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--config", metavar="FILE", help="JSON file with the settings that differ")
    add("--var", metavar="KEY=VALUE", action="append", default=[], help="one setting, repeatable")
    add("--seed", metavar="N", nargs=1, default=[], help="short for --var seed=N")
    add("--deterministic", action="store_true", help="short for --var deterministic=true")
    add("--run-id", metavar="NAME", help="run folder's name instead of the settings")
    add("--resume", metavar="RUN_FOLDER", type=Path, help="go on with an unfinished run")
    begin_with = "begin with the parameters of another run's agent: its folder, or a checkpoint"
    add("--init-from", metavar="RUN", type=Path, help=begin_with)
    add_trust(parser)
    add("--list-configs", action="store_true", help="show the published settings")
    add("--print-config", action="store_true", help="show all settings and stop")
    arguments = parser.parse_args(argv)
    short = ["deterministic=true"] * arguments.deterministic
    arguments.overrides = [*arguments.var, *(f"seed={seed}" for seed in arguments.seed), *short]
    given = arguments.overrides or arguments.config or arguments.run_id or arguments.init_from
    if arguments.resume and given:
        parser.error("--resume takes all settings from the run folder, give it alone")
    return arguments


if __name__ == "__main__":
    leave(main())
