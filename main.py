"""Train an agent: settings → environments, agent, trainer → run folder."""

import utils.starting  # noqa: F401

# isort: split
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from utils.threads import let_waiting_threads_sleep

if __name__ == "__main__":
    let_waiting_threads_sleep()  # OpenMP asks when PyTorch is imported, below

from analysis.showcase import configured_showcase
from envs import check_env_name, make_vector_env
from models import agent_class, build_agent, resolve_device
from trainers.ppo import PPOTrainer
from trainers.ranks import Ranks, joined_ranks
from trainers.rollout import check_rollout_fits
from trainers.run_state import own_checkpoint
from utils.command_line import run_program
from utils.config import Config, load_config
from utils.errors import raise_all
from utils.loggers import check_loggers
from utils.run_folder import check_run_id, create_run_folder, locked, resumed_config
from utils.seeding import seed_everything
from utils.training_arguments import has_printed, training_arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says and return the exit status."""
    return run_program(train, argv)


def train(argv: Sequence[str] | None) -> None:
    """Begin the run that the settings describe, go on with an earlier one, or print."""
    arguments = training_arguments(argv, __doc__)
    if has_printed(arguments):
        return
    with joined_ranks() as ranks:
        if arguments.resume:
            resume(arguments.resume, ranks)
            return
        config = ranks.first_does(lambda: load_config(arguments.config, arguments.overrides))
        ranks.first_does(lambda: check(config, arguments.run_id))
        with trainer_of(config, ranks) as trainer:
            details = (arguments.run_id, arguments.overrides, trainer.agent.fingerprints())
            folder = ranks.first_does(lambda: create_run_folder(trainer.config, *details))
            with ranks.only_first(locked(folder)):
                ranks.say(trainer.train(folder).report(folder))


def check(config: Config, run_id: str | None) -> None:
    """Raise UserError with a line for everything that speaks against a new run."""
    raise_all(
        lambda: check_env_name(config.env),
        lambda: agent_class(config.model).check(config),
        lambda: check_run_id(config, run_id),
    )


def resume(folder: Path, ranks: Ranks) -> None:
    """Go on with an unfinished run from its last good checkpoint, or from its beginning."""
    config = ranks.first_does(lambda: resumed_config(folder))
    with ranks.only_first(locked(folder)):
        checkpoint = own_checkpoint(folder, config, ranks)
        with trainer_of(config, ranks) as trainer:
            ranks.say(trainer.resume(folder, checkpoint))
            ranks.say(trainer.train(folder).report(folder))


@contextmanager
def trainer_of(config: Config, ranks: Ranks) -> Iterator[PPOTrainer]:
    """Build everything the settings name; close the environments in the end."""
    ranks.first_does(lambda: check_loggers(config))
    config = replace(config, device=ranks.first_does(lambda: resolve_device(config.device)))
    ranks.say(f"{config.model} on {config.env}, device {config.device}")
    seed_everything(config.seed, config.deterministic)
    with closing(make_vector_env(share := ranks.share(config), share.seed)) as env:
        ranks.first_does(lambda: check_rollout_fits(share, env.single_observation_space.shape))
        agent = build_agent(config, env.single_observation_space, env.single_action_space)
        yield PPOTrainer(config, agent, env, ranks, configured_showcase(config, agent))


if __name__ == "__main__":
    sys.exit(main())
