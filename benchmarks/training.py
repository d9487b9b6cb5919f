"""Train every agent for a while: steps a second, memory, and where the time goes.

Run: python -m benchmarks.training [--agents NAME ...] [--steps N] [--threads N] [--json FILE]

Each agent trains by the program's own trainer with the default settings on KeyCorridor, or in
--var env=NAME, in a process of its own. What stable-baselines3 has, PPO beside CNN-PPO and
sb3-contrib's RecurrentPPO in two variants beside Impala-PPO, is not profiled. On a GPU every part
waits for the device, so that its time is its own: steps per second are then lower than with
--no-shares.
"""

import dataclasses
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import NamedTuple

from utils.threads import let_waiting_threads_sleep

if __name__ == "__main__":
    let_waiting_threads_sleep()  # OpenMP asks when PyTorch is imported, below

import torch

from benchmarks.__main__ import MOST_THREADS, check_names
from benchmarks.measuring import (
    Machine,
    Stopwatch,
    in_own_process,
    peak_gpu_megabytes,
    peak_megabytes,
)
from benchmarks.random_models import write_clip, write_transformer_xl
from benchmarks.shares import PARTS, profiled
from benchmarks.tables import Table
from envs import make_vector_env, scales_rewards
from models import AGENTS, PUBLISHED, agent_class, build_agent, resolve_device
from rewards.scaling import ScalingSettings, configured_scaling
from runs.folder import write_json
from runs.run_data import AXES, read_columns
from settings import load_config
from trainers.collector import Collector
from trainers.ppo import PPO, PpoSettings
from trainers.run import Run, RunSettings
from utils.command_line import Parser, run_program, whole_number
from utils.errors import UserError
from utils.seeding import seed_everything

MOST_STEPS = 10**9
# Learners of stable-baselines3, and the agent that each is run beside.
RIVALS = {"PPO": "CNN-PPO", "RecurrentPPO": "Impala-PPO", "RecurrentPPO-default": "Impala-PPO"}


class Recipe(NamedTuple):
    """An agent, and what writes the files it needs into a folder and returns their settings."""

    model: str
    write: Callable[[Path], list[str]] | None = None


RANDOM = {
    "HELM+Transformer-XL": Recipe("HELM", write_transformer_xl),
    "SHELM+ViT-B-16": Recipe("SHELM", write_clip),
}
# CNN and LSTM go by their published names here.
NAMES = (*PUBLISHED, *(name for name in AGENTS.places if name not in ("CNN", "LSTM")))
RECIPES = {name: Recipe(name) for name in NAMES} | RANDOM
RECIPES |= {name: Recipe(ours) for name, ours in RIVALS.items()}


class Options(NamedTuple):
    """How to measure.

    Attributes:
        steps: Environment steps of a run.
        warm_up: Environment steps before those that count for `steady`.
        threads: Cores to use.
        device: Where the networks run.
        shares: Whether to find out where the time goes.
        overrides: Settings that differ from the default, KEY=VALUE.
        seconds: After which a run is given up; None for never.
    """

    steps: int
    warm_up: int
    threads: int
    device: str
    shares: bool = True
    overrides: tuple[str, ...] = ()
    seconds: float | None = None


class Measured(NamedTuple):
    """What a run came to.

    Attributes:
        rate: Steps per second, updates included.
        steady: The same after the warm-up; None where the run was no longer than that.
        peak_mb: The most memory the process has held.  [10^6 bytes]
        gpu_mb: The most its tensors have held on a GPU; None without one.  [10^6 bytes]
        shares: Of the time, by part; empty if not asked for.
    """

    agent: str
    rate: float
    steady: float | None
    peak_mb: float
    gpu_mb: float | None
    shares: dict[str, float]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit status."""
    return run_program(benchmark, argv)


def benchmark(argv: Sequence[str] | None) -> None:
    """Train the chosen agents one after the other and print the tables."""
    parser = Parser(prog="python -m benchmarks.training", description=__doc__.split("\n")[0])
    names = ", ".join(RECIPES)
    parser.add_argument("--agents", nargs="+", metavar="NAME", default=list(NAMES), help=names)
    parser.add_argument(
        "--steps", type=whole_number(1, MOST_STEPS), default=20_000, help="of a run"
    )
    warm_up_help = "steps of a run before those that count as steady"
    parser.add_argument(
        "--warm-up", type=whole_number(0, MOST_STEPS), default=4096, help=warm_up_help
    )
    parser.add_argument(
        "--threads",
        type=whole_number(1, MOST_THREADS),
        default=torch.get_num_threads(),
        help="cores to use; else OMP_NUM_THREADS, or all",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument(
        "--var", metavar="KEY=VALUE", action="append", default=[], help="one setting, repeatable"
    )
    parser.add_argument("--no-shares", action="store_true", help="measure steps per second alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    arguments = parser.parse_args(argv)
    options = Options(
        arguments.steps,
        arguments.warm_up,
        arguments.threads,
        resolve_device(arguments.device),
        not arguments.no_shares,
        tuple(arguments.var),
    )
    machine = Machine.here(options.threads)
    print(machine, flush=True)
    runs = report_runs(with_rivals(check_names("--agents", arguments.agents, RECIPES)), options)
    report_shares(runs)
    if arguments.json:
        content = {"machine": machine._asdict(), "options": options._asdict()}
        write_json(arguments.json, content | {"runs": [run._asdict() for run in runs]})


def with_rivals(names: Sequence[str]) -> list[str]:
    """Return the names with all rivals right after the agent each is run beside."""
    found = []
    for name in names:
        if RIVALS.get(name) not in names:
            beside = [rival for rival, ours in RIVALS.items() if ours == name]
            found += [name, *beside]
    return found


def report_runs(names: Sequence[str], options: Options) -> list[Measured]:
    """Train by name, print a row each, and how far ours are ahead of their rivals."""
    print(f"\nsteps per second, of {options.steps:,} and of those after {options.warm_up:,}")
    table = Table(agent="<20", all=">9,.0f", steady=">9,.0f", peak_MB=">9,.0f", GPU_MB=">9,.0f")
    runs = []
    for name in names:
        try:
            runs.append(measured(name, options))
        except UserError as error:
            print(f"{name:20} skipped: {error}", flush=True)
            continue
        table.row(*runs[-1][:5])
    rates = {run.agent: run.rate for run in runs}
    for rival, ours in RIVALS.items():
        if rival in rates and ours in rates:
            print(f"{ours} trains {rates[ours] / rates[rival]:.1f} times as fast as {rival}")
    return runs


def report_shares(runs: Sequence[Measured]) -> None:
    """Print where the time went, a column for every run that was profiled."""
    profiles = {run.agent: run.shares for run in runs if run.shares}
    if not profiles:
        return
    print("\nshare of the time")
    columns = {name: f">{max(len(name), 8)}.1%" for name in profiles}
    table = Table(part="<28", **columns)
    for part in PARTS:
        table.row(part, *(shares[part] for shares in profiles.values()))


def measured(name: str, options: Options) -> Measured:
    """Train an agent in a process of its own, the files it needs being written by another.

    Raises:
        UserError: it cannot be trained so, or something it needs is missing.
        TimeoutError: it took too long.
    """
    recipe = RECIPES[name]
    with tempfile.TemporaryDirectory() as folder:
        written = []
        if recipe.write:
            written = in_own_process(recipe.write, Path(folder), seconds=options.seconds)
        overrides = [f"model={recipe.model}", *written, *options.overrides]
        overrides.append(f"n_steps={options.steps}")
        config = dataclasses.replace(load_config(None, overrides), device=options.device)
        trained = trained_rival if name in RIVALS else trained_agent
        return in_own_process(trained, name, config, options, seconds=options.seconds)


def trained_agent(name: str, config: RunSettings, options: Options) -> Measured:
    """Train one of our agents in this process."""
    torch.set_num_threads(options.threads)
    agent_class(config.model).check(config)
    seed_everything(config.seed)
    env = make_vector_env(config, config.seed)
    agent = build_agent(config, env.single_observation_space, env.single_action_space)
    learner = PPO(config.part(PpoSettings), agent)
    collector = Collector(
        env,
        learner,
        configured_scaling(config.part(ScalingSettings), env.num_envs, scales_rewards(config.env)),
    )
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(None):
        with profiled(learner, collector) if options.shares else nullcontext() as clock:
            summary = Run(config, learner, collector).train(Path(folder))
            shares = clock.shares() if clock else {}
        steady = steady_rate(Path(folder), options.warm_up)
    env.close()
    rate = summary.env_steps / summary.seconds
    return Measured(name, rate, steady, peak_megabytes(), peak_gpu_megabytes(), shares)


def steady_rate(folder: Path, warm_up: int) -> float | None:
    """Return the steps per second after the warm-up, from the metrics of a run."""
    columns = read_columns(folder)
    return rate_after(list(zip(*(columns[name] for name in AXES.values()), strict=True)), warm_up)


def rate_after(moments: Sequence[tuple[float, float]], warm_up: int) -> float | None:
    """Return the steps per second from the first of the moments (steps, seconds) past a warm-up."""
    counted = [moment for moment in moments if moment[0] >= warm_up]
    if len(counted) < 2:
        return None
    (first_steps, first_seconds), (last_steps, last_seconds) = counted[0], counted[-1]
    return (last_steps - first_steps) / (last_seconds - first_seconds)


def trained_rival(name: str, config: PpoSettings, options: Options) -> Measured:
    """Train a learner of stable-baselines3 in this process."""
    if importlib.util.find_spec("sb3_contrib") is None:
        raise UserError("sb3-contrib is not installed. Run: pip install sb3-contrib")
    from benchmarks.rivals import rival

    torch.set_num_threads(options.threads)
    model = rival(name, config)
    moments: list[tuple[int, float]] = []
    watch = Stopwatch()

    def note(*_: object) -> bool:
        moments.append((model.num_timesteps, watch.seconds))
        return True

    model.learn(config.n_steps, callback=note)
    rate = model.num_timesteps / watch.seconds
    steady = rate_after(moments, options.warm_up)
    return Measured(name, rate, steady, peak_megabytes(), peak_gpu_megabytes(), {})


if __name__ == "__main__":
    sys.exit(main())
