"""Train an agent: settings → environments, agent, learner → run folder."""

import utils.starting  # noqa: F401

# isort: split
import argparse
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from envs import given_facts
from envs.episodes import choose_episodes
from models import build_agent, resolve_device
from trainers import parts  # noqa: F401  hands all parts to the settings
from trainers.callbacks import Callback, Callbacks
from trainers.settings import RunSettings
from utils.command_line import Parser, add_trust, add_var, exit_process, run_program
from utils.errors import UserError
from utils.given_settings import (
    default_settings,
    describe_settings,
    load_config,
    options_as_settings,
    own_classes,
    published_table,
)
from utils.loggers import NotLogged
from utils.packages import check_installed
from utils.run_folder import (
    create_run_folder,
    init_checkpoint,
    load_run_config,
    locked,
    resumed_config,
)
from utils.seeding import derived_seed, seed_everything
from utils.starting import number_of_threads
from utils.user_modules import telling

if TYPE_CHECKING:
    from trainers.checkpoint import WarmStart
    from trainers.ranks import Ranks
    from trainers.train import Run

# What brings PyTorch is imported in the functions: help and a wrong setting wait for nothing.


def main(argv: Sequence[str] | None = None) -> int:
    return run_program(train, argv)


def train(argv: Sequence[str] | None) -> None:
    arguments = parse_arguments(argv)
    if arguments.list_configs or arguments.print_config:
        print_settings(arguments)
        return
    # A wrong setting is told before PyTorch is loaded, which takes seconds; by several processes
    # when they have joined, and so once.
    config = None
    if not arguments.resume and "WORLD_SIZE" not in os.environ:
        config = load_config(arguments.config, arguments.overrides)
    from trainers.ranks import joined_ranks

    # Under torchrun several processes train one agent together; otherwise there is one rank.
    with joined_ranks() as ranks:
        if arguments.resume:
            resume_run(arguments.resume, ranks, arguments.trust, arguments.n_steps)
        else:
            config = config or load_config(arguments.config, arguments.overrides)
            names = arguments.run_id, arguments.overrides, arguments.init_from
            start_run(config.part(RunSettings), ranks, *names, arguments.trust)


def start_run(
    config: RunSettings,
    ranks: "Ranks",
    run_id: str | None = None,
    overrides: Sequence[str] = (),
    init_from: Path | None = None,
    trust: bool = False,
    callbacks: Iterable[Callback] = (),
) -> Path:
    """Train a run from its first step to its last and return its folder.

    Args:
        config: All settings.
        ranks: The processes that train together.
        run_id: The folder's name; None for one made of the overrides and the seed.
        overrides: The settings that were given as KEY=VALUE.
        init_from: A run or checkpoint: its parameters are the first ones.
        trust: Load a guide's run even if another user began it.
        callbacks: Of a Python program.
    """
    from trainers.build import check
    from trainers.checkpoint import WarmStart

    check(config, run_id, has_start=init_from is not None)
    start = None if init_from is None else WarmStart.named(init_from)
    with telling(config), build_run(config, ranks, start, trust, callbacks) as run:
        # Checkpoints leave pretrained parts out; the folder records their sha256 instead, so that
        # a resumed run can refuse others.
        begun = None if start is None else start._asdict()
        given = given_facts(config.env)
        folder = ranks.run_on_first(
            lambda: create_run_folder(
                run.config, run_id, overrides, run.fingerprints(), begun, given
            )
        )
        with ranks.enter_on_first(locked(folder)):
            try:
                run.train(folder)
            except NotLogged:  # before its first step
                shutil.rmtree(folder)
                with suppress(OSError):  # up to the first that holds something
                    os.removedirs(folder.parent)
                raise
    return folder


def resume_run(
    folder: Path,
    ranks: "Ranks",
    trust: bool = False,
    n_steps: int | None = None,
    callbacks: Iterable[Callback] = (),
) -> Path:
    """Go on with a run and return its folder; `n_steps`: of the whole run, instead of its own."""
    from trainers.build import check
    from trainers.checkpoint import WarmStart, own_checkpoint

    config = ranks.run_on_first(lambda: resumed_config(folder, trust).part(RunSettings))
    if n_steps is not None:
        config = config.replace(n_steps=n_steps)
    facts = init_checkpoint(folder)
    check(config, has_start=facts is not None)
    with ranks.enter_on_first(locked(folder)):
        checkpoint = own_checkpoint(folder, config, ranks, n_steps is not None)
        start = None if facts is None or checkpoint else WarmStart.recorded(facts)
        with telling(config), build_run(config, ranks, start, trust, callbacks) as run:
            run.resume(folder, checkpoint, given_facts(config.env))
            run.train(folder)
    return folder


@contextmanager
def build_run(
    config: RunSettings,
    ranks: "Ranks",
    start: "WarmStart | None" = None,
    trust: bool = False,
    callbacks: Iterable[Callback] = (),
) -> Iterator["Run"]:
    """Build everything the settings name; close the environments at the end."""
    import torch

    from trainers.build import build_evaluation, build_learner, open_env
    from trainers.collector import Collector
    from trainers.train import Run

    if config.wandb:
        check_installed("wandb", "wandb: true")
    asked = Callbacks(callbacks)
    n_threads = number_of_threads(config.threads)
    config = config.replace(device=resolve_device(config.device), threads=n_threads)
    torch.set_num_threads(n_threads)
    ranks.print(f"{config.model} on {config.env}, device {config.device}")
    seed_everything(config.seed, config.deterministic)

    # The vector of environments: this rank's share of them, with seeds of its own.
    share = ranks.share(config)
    with open_env(share, share.seed) as env:
        if asked.choose_episodes:
            if ranks.size > 1:
                raise UserError("callbacks: before_episode is for one process. Leave torchrun out")
            choose_episodes(env, asked.before_episode)
        # The agent: encoder, memory and heads. All ranks begin with the same parameters, since
        # from then on only gradients are averaged.
        agent = build_agent(config, env.single_observation_space, env.single_action_space)
        if start is not None:
            start.give(agent)
        ranks.broadcast(agent.state_dict().values())
        if not ranks.first:
            # One agent, but random streams of its own, else all ranks would act alike.
            seed_everything(derived_seed(config.seed, ranks.rank), config.deterministic)

        # The learner, perhaps curious, scales rewards; the collector hands it the steps.
        learner = build_learner(config, share, agent, env, ranks, trust)
        collector = Collector(env, learner, ranks)

        # Greedy evaluations use environments of their own, so that training episodes run on.
        with build_evaluation(config) as evaluation:
            showcase = None
            if config.showcase_minutes is not None:
                from analysis.while_training import Showcase  # brings in Matplotlib

                showcase = Showcase(agent, config.showcase_minutes)
            yield Run(config, learner, collector, showcase, evaluation, asked)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; `overrides` has all settings given in it as KEY=VALUE."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="main.py", description=__doc__, formatter_class=raw, add_help=False)
    add = parser.add_argument
    part = "this help; of a part or a setting, as in --help PPO; or of all: --help all"
    add("-h", "--help", nargs="?", const="", metavar="PART", help=part)
    add("--config", metavar="FILE", help="JSON file with the settings that differ")
    add_var(parser, "one setting, repeatable")
    add("--seed", metavar="N", nargs=1, default=[], help="short for --var seed=N")
    add("--deterministic", action="store_true", help="short for --var deterministic=true")
    add("--run-id", metavar="NAME", help="run folder's name instead of the settings")
    unfinished = (
        "go on with an unfinished run; with --var n_steps=N, a finished one too, to N steps"
    )
    add("--resume", metavar="RUN_FOLDER", type=Path, help=unfinished)
    begun = "begin with the parameters of another run's agent: its folder, or a checkpoint"
    add("--init-from", metavar="RUN", type=Path, help=begun)
    add_trust(parser)
    add("--list-configs", action="store_true", help="show the published settings")
    add("--print-config", action="store_true", help="show all settings and stop")
    arguments, unknown = parser.parse_known_args(argv)
    if arguments.help is not None:
        # A user's own agent that is named beside --help has a part, too.
        chosen = own_classes(arguments.var)
        parser.epilog = describe_settings(arguments.help or chosen.get("model", ""), chosen)
        parser.print_help()
        parser.exit()
    if unknown:
        parser.error(f"unknown: {' '.join(unknown)}. {options_as_settings(unknown)}")
    short = ["deterministic=true"] * arguments.deterministic
    arguments.overrides = [*arguments.var, *(f"seed={seed}" for seed in arguments.seed), *short]
    if arguments.resume:
        changed = [text.partition("=")[0] for text in arguments.overrides]
        if changed not in ([], ["n_steps"]) or (
            arguments.config or arguments.run_id or arguments.init_from
        ):
            parser.error(
                "--resume takes all settings from the run folder. Give it alone, or with "
                "--var n_steps=N to go on to N steps"
            )
        n_steps = load_config(None, arguments.overrides).n_steps  # checked
        arguments.n_steps = n_steps if changed else None
    return arguments


def print_settings(arguments: argparse.Namespace) -> None:
    if arguments.list_configs:
        print(published_table())
        return
    if arguments.resume:
        config = load_run_config(arguments.resume, arguments.trust)
    else:
        config = load_config(arguments.config, arguments.overrides)
    values = config.as_dict()
    print(json.dumps({name: values[name] for name in default_settings(values)}, indent=2))


if __name__ == "__main__":
    exit_process(main())
