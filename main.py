"""Train an agent: settings → environments, agent, trainer → run folder."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence

from envs import check_env_name, make_vector_env
from models import agent_class, build_agent, resolve_device
from trainers.ppo import PPOTrainer
from utils.command_line import Parser, run_program
from utils.config import describe_settings, load_config
from utils.errors import raise_all
from utils.published import published_table
from utils.run_folder import check_run_id, create_run_folder
from utils.seeding import seed_everything


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says and return the exit status."""
    return run_program(train, argv)


def train(argv: Sequence[str] | None) -> None:
    """Build everything the settings name, train, and report on one screen."""
    arguments = parse_arguments(argv)
    if arguments.list_configs:
        print(published_table())
        return
    overrides = [*arguments.var, *(f"seed={seed}" for seed in arguments.seed)]
    config = load_config(arguments.config, overrides)
    if arguments.print_config:
        print(json.dumps(dataclasses.asdict(config), indent=2))
        return
    raise_all(
        lambda: check_env_name(config.env),
        lambda: agent_class(config.model).check(config),
        lambda: check_run_id(config, arguments.run_id),
    )

    config = dataclasses.replace(config, device=resolve_device(config.device))
    print(f"{config.model} on {config.env}, device {config.device}", flush=True)
    seed_everything(config.seed)
    env = make_vector_env(config, config.seed)
    try:
        agent = build_agent(config, env.single_observation_space, env.single_action_space)
        trainer = PPOTrainer(config, agent, env)
        folder = create_run_folder(config, arguments.run_id, overrides)
        print(f"writing to {folder}", flush=True)
        print(trainer.train(folder).report(folder))
    finally:
        env.close()


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(
        prog="main.py",
        description=__doc__,
        epilog=f"settings, for --var and --config:\n{describe_settings()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", metavar="FILE", help="JSON file with the settings that differ")
    parser.add_argument(
        "--var", metavar="KEY=VALUE", action="append", default=[], help="one setting, repeatable"
    )
    parser.add_argument("--seed", metavar="N", nargs=1, default=[], help="short for --var seed=N")
    parser.add_argument(
        "--run-id", metavar="NAME", help="run folder's name instead of the settings"
    )
    parser.add_argument("--list-configs", action="store_true", help="show the published settings")
    parser.add_argument("--print-config", action="store_true", help="show all settings and stop")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
