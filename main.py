"""Train an agent: settings → environments, agent, trainer → run folder."""

import dataclasses
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from analysis.showcase import configured_showcase
from envs import check_env_name, make_vector_env
from models import agent_class, build_agent, resolve_device
from trainers.ppo import PPOTrainer
from trainers.ranks import Ranks, joined_ranks
from trainers.run_state import own_checkpoint
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
    with joined_ranks() as ranks:
        if arguments.resume:
            resume(arguments.resume, ranks)
            return
        config = ranks.first_does(lambda: checked_settings(arguments))
        with trainer_of(config, ranks) as trainer:
            details = (config, arguments.run_id, arguments.overrides, trainer.agent.fingerprints())
            folder = ranks.first_does(lambda: run_folder.create_run_folder(*details))
            with ranks.only_first(run_folder.locked(folder)):
                ranks.say(f"writing to {folder}")
                ranks.say(trainer.train(folder).report(folder))


def checked_settings(arguments: Namespace) -> Config:
    """Return the settings of a new run once nothing speaks against them."""
    config = load_config(arguments.config, arguments.overrides)
    raise_all(
        lambda: check_env_name(config.env),
        lambda: agent_class(config.model).check(config),
        lambda: run_folder.check_run_id(config, arguments.run_id),
        lambda: check_loggers(config),
    )
    return dataclasses.replace(config, device=resolve_device(config.device))


def resume(folder: Path, ranks: Ranks) -> None:
    """Go on with an unfinished run from its last good checkpoint, or from its beginning."""
    config = ranks.first_does(lambda: run_folder.recorded_config(folder))
    ranks.first_does(lambda: check_loggers(config))
    with ranks.only_first(run_folder.locked(folder)):
        checkpoint = own_checkpoint(folder, config, ranks)
        with trainer_of(config, ranks) as trainer:
            ranks.say(trainer.resume(folder, checkpoint))
            ranks.say(trainer.train(folder).report(folder))


@contextmanager
def trainer_of(config: Config, ranks: Ranks) -> Iterator[PPOTrainer]:
    """Build everything the settings name; close the environments in the end."""
    ranks.say(f"{config.model} on {config.env}, device {resolve_device(config.device)}")
    seed_everything(config.seed, config.deterministic)
    with closing(make_vector_env(share := ranks.share(config), share.seed)) as env:
        agent = build_agent(config, env.single_observation_space, env.single_action_space)
        showcase = configured_showcase(config, agent) if ranks.first else None
        yield PPOTrainer(config, agent, env, ranks, showcase)


if __name__ == "__main__":
    sys.exit(main())
