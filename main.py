"""Train an agent: settings → environments, agent, trainer → run folder."""

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from analysis.showcase import configured_showcase
from envs import check_env_name, make_vector_env
from models import agent_class, build_agent, resolve_device
from trainers.checkpoint import unfinished_checkpoint
from trainers.ppo import PPOTrainer
from utils import run_folder
from utils.command_line import run_program
from utils.config import Config, load_config
from utils.errors import raise_all
from utils.loggers import check_loggers
from utils.seeding import seed_everything
from utils.training_arguments import printed, training_arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says and return the exit status."""
    return run_program(train, argv)


def train(argv: Sequence[str] | None) -> None:
    """Begin the run that the settings describe, go on with an earlier one, or print."""
    arguments = training_arguments(argv, __doc__)
    if arguments.list_configs or arguments.print_config:
        print(printed(arguments))
        return
    if arguments.resume:
        resume(arguments.resume)
        return
    config = load_config(arguments.config, arguments.overrides)
    raise_all(
        lambda: check_env_name(config.env),
        lambda: agent_class(config.model).check(config),
        lambda: run_folder.check_run_id(config, arguments.run_id),
        lambda: check_loggers(config),
    )
    config = dataclasses.replace(config, device=resolve_device(config.device))
    with trainer_of(config) as trainer:
        folder = run_folder.create_run_folder(
            config, arguments.run_id, arguments.overrides, trainer.agent.fingerprints()
        )
        with run_folder.locked(folder):
            print(f"writing to {folder}", flush=True)
            print(trainer.train(folder).report(folder))


def resume(folder: Path) -> None:
    """Go on with an unfinished run from its last good checkpoint, or from its beginning."""
    config = run_folder.recorded_config(folder)
    check_loggers(config)
    with run_folder.locked(folder):
        checkpoint = unfinished_checkpoint(folder, config)
        with trainer_of(config) as trainer:
            print(trainer.resume(folder, checkpoint), flush=True)
            print(trainer.train(folder).report(folder))


@contextmanager
def trainer_of(config: Config) -> Iterator[PPOTrainer]:
    """Build everything the settings name; close the environments in the end."""
    print(f"{config.model} on {config.env}, device {resolve_device(config.device)}", flush=True)
    seed_everything(config.seed, config.deterministic)
    env = make_vector_env(config, config.seed)
    try:
        agent = build_agent(config, env.single_observation_space, env.single_action_space)
        yield PPOTrainer(config, agent, env, configured_showcase(config, agent))
    finally:
        env.close()


if __name__ == "__main__":
    sys.exit(main())
