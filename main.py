"""Train an agent: settings → environments, agent, trainer → run folder."""

import utils.starting  # noqa: F401

# isort: split
import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from utils.threads import let_waiting_threads_sleep

if __name__ == "__main__":
    let_waiting_threads_sleep()  # OpenMP asks when PyTorch is imported, below

from envs import check_env_name, make_vector_env, scales_rewards
from models import agent_class, build_agent, resolve_device
from report.while_training import configured_showcase
from rewards.scaling import ScalingSettings, configured_scaling
from runs.folder import check_run_id, create_run_folder, locked, resumed_config
from runs.loggers import check_loggers
from runs.training_arguments import has_printed, training_arguments
from settings import load_config
from trainers import learner_class
from trainers.checkpoint import own_checkpoint
from trainers.collector import Collector
from trainers.greedy_evaluation import GreedyEvaluation, envs_needed
from trainers.ranks import Ranks, joined_ranks
from trainers.run import Run, RunSettings
from utils.command_line import run_program
from utils.errors import raise_all
from utils.seeding import seed_everything


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
        config = ranks.run_on_first(lambda: configured(arguments))
        ranks.run_on_first(lambda: check(config, arguments.run_id))
        with configured_run(config, ranks) as run:
            details = (arguments.run_id, arguments.overrides, run.learner.agent.fingerprints())
            folder = ranks.run_on_first(lambda: create_run_folder(run.config, *details))
            with ranks.enter_on_first(locked(folder)):
                ranks.print(run.train(folder).report(folder))


def configured(arguments: argparse.Namespace) -> RunSettings:
    """Return the settings of a new run."""
    return load_config(arguments.config, arguments.overrides).part(RunSettings)


def check(config: RunSettings, run_id: str | None) -> None:
    """Raise UserError with a line for everything that speaks against a new run."""
    raise_all(
        lambda: check_env_name(config.env),
        lambda: learner_class(config.algorithm),
        lambda: agent_class(config.model).check(config),
        lambda: check_run_id(config, run_id),
    )


def resume(folder: Path, ranks: Ranks) -> None:
    """Go on with an unfinished run from its last good checkpoint, or from its beginning."""
    config = ranks.run_on_first(lambda: resumed_config(folder).part(RunSettings))
    with ranks.enter_on_first(locked(folder)):
        checkpoint = own_checkpoint(folder, config, ranks)
        with configured_run(config, ranks) as run:
            ranks.print(run.resume(folder, checkpoint))
            ranks.print(run.train(folder).report(folder))


@contextmanager
def configured_run(config: RunSettings, ranks: Ranks) -> Iterator[Run]:
    """Build everything the settings name; close the environments in the end."""
    ranks.run_on_first(lambda: check_loggers(config))
    config = replace(config, device=ranks.run_on_first(lambda: resolve_device(config.device)))
    ranks.print(f"{config.model} on {config.env}, device {config.device}")
    seed_everything(config.seed, config.deterministic)
    with closing(make_vector_env(share := ranks.share(config), share.seed)) as env:
        learner_of = learner_class(config.algorithm)
        ranks.run_on_first(lambda: learner_of.check_fits(share, env.single_observation_space))
        agent = build_agent(config, env.single_observation_space, env.single_action_space)
        scaling = configured_scaling(
            config.part(ScalingSettings), env.num_envs, scales_rewards(config.env)
        )
        ranks.synchronize(agent, config)
        learner = learner_of(config, agent, ranks)
        collector = Collector(env, learner, scaling, ranks)
        with evaluation_of(config) as evaluation:
            showcase = configured_showcase(config, agent)
            yield Run(config, learner, collector, showcase, evaluation)


@contextmanager
def evaluation_of(config: RunSettings) -> Iterator[GreedyEvaluation | None]:
    """Return what plays greedily while the run trains; close its environments in the end."""
    n_envs = envs_needed(config)
    if not n_envs:
        yield None
        return
    with closing(make_vector_env(replace(config, n_envs=n_envs), config.seed)) as env:
        yield GreedyEvaluation(config, env)


if __name__ == "__main__":
    sys.exit(main())
