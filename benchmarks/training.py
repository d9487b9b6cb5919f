"""Train every agent for a while: steps a second, memory, and where the time goes.

Run: python -m benchmarks.training [--agents NAME ...] [--steps N] [--threads N] [--var KEY=VALUE]

Each agent trains by the program's own trainer with the default settings on KeyCorridor, in a
process of its own. Learners of other libraries are not profiled. On a GPU every part waits for the
device, so that its time is its own: steps per second are then lower than with --no-shares.
"""

import importlib.util
import itertools
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from utils.starting import let_waiting_threads_sleep, number_of_threads

if __name__ == "__main__":
    let_waiting_threads_sleep()  # OpenMP asks when PyTorch is imported, below

import numpy as np
import torch

from benchmarks import measuring
from benchmarks.language_models import write_transformer_xl
from benchmarks.measuring import Table, in_own_process, peak_gpu_megabytes, peak_megabytes
from main import build_run
from models import AGENTS, PUBLISHED, agent_class
from models.caching import ObservationCache
from models.helm import LanguageMemoryAgent
from trainers.build import open_env
from trainers.collector import Collector
from trainers.ppo import PPO
from trainers.ranks import Ranks
from trainers.settings import PpoSettings, RunSettings
from trainers.train import Run
from utils.command_line import Parser, run_program, whole_number
from utils.environments import Environments
from utils.errors import UserError
from utils.given_settings import load_config
from utils.run_folder import DESCRIPTION, write_json

MOST_STEPS = 10**9
PUBLISHED_SIZE = "HELM+Transformer-XL"  # HELM on a random model of the published size
TORCHRL = "TorchRL-LSTM"
# Learners of stable-baselines3 and of TorchRL, and the agent that each is run beside.
RIVALS = {
    "PPO": "CNN-PPO",
    "RecurrentPPO": "Impala-PPO",
    "RecurrentPPO-default": "Impala-PPO",
    TORCHRL: "Impala-PPO",
}
# CNN and LSTM go by their published names here.
NAMES = (*PUBLISHED, *(name for name in AGENTS.places if name not in ("CNN", "LSTM")))


class TrainingSpeed(NamedTuple):
    agent: str
    rate: float  # steps per second, updates included
    steady: float | None  # the same after the warm-up; None for a shorter run
    peak_mb: float  # of the process  [10^6 bytes]
    gpu_mb: float | None  # of its tensors on a GPU
    shares: dict[str, float]  # of the time, by part; empty if not profiled


def main(argv: Sequence[str] | None = None) -> int:
    return run_program(benchmark, argv)


def benchmark(argv: Sequence[str] | None) -> None:
    parser = Parser(prog="python -m benchmarks.training", description=__doc__.split("\n")[0])
    names = (*NAMES, PUBLISHED_SIZE, *RIVALS)
    option = parser.add_argument
    option("--agents", nargs="+", metavar="NAME", default=list(NAMES), help=", ".join(names))
    option("--steps", type=whole_number(1, MOST_STEPS), default=20_000, help="of a run")
    warm_up = whole_number(0, MOST_STEPS)
    option("--warm-up", type=warm_up, default=4096, help="steps of a run before the steady ones")
    option("--var", metavar="KEY=VALUE", action="append", default=[], help="a setting, repeatable")
    option("--no-shares", action="store_true", help="measure steps per second alone")
    option("--json", type=Path, metavar="FILE", help="write the figures here, too")
    measuring.add_threads(parser)
    given = parser.parse_args(argv)
    chosen = measuring.check_names("--agents", given.agents, names)
    machine = measuring.this_machine(given.threads)
    print(measuring.in_words(machine), flush=True)
    print(f"\nsteps per second, of {given.steps:,} and of those after {given.warm_up:,}")
    settings = [f"threads={given.threads}", *given.var, f"n_steps={given.steps}"]
    runs = report_runs(chosen, settings, given.warm_up, not given.no_shares)
    report_shares(runs)
    if given.json:
        content = {"machine": machine, "settings": settings, "warm_up": given.warm_up}
        write_json(given.json, content | {"runs": [run._asdict() for run in runs]})


def report_runs(
    names: Sequence[str], settings: Sequence[str], warm_up: int, shares: bool
) -> list[TrainingSpeed]:
    table = Table(agent="<20", all=">9,.0f", steady=">9,.0f", peak_MB=">9,.0f", GPU_MB=">9,.0f")
    runs = []
    for name in names:
        try:
            runs.append(measured(name, settings, warm_up, shares))
            table.row(*runs[-1][:5])
        except UserError as error:
            print(f"{name:20} skipped: {error}", flush=True)
    return runs


def report_shares(runs: Sequence[TrainingSpeed]) -> None:
    profiles = {run.agent: run.shares for run in runs if run.shares}
    if not profiles:
        return
    print("\nshare of the time")
    table = Table(part="<28", **{name: f">{max(len(name), 8)}.1%" for name in profiles})
    for part in dict.fromkeys(itertools.chain(*profiles.values())):
        table.row(part, *(shares.get(part) for shares in profiles.values()))


def measured(
    name: str,
    settings: Sequence[str],
    warm_up: int,
    shares: bool = False,
    seconds: float | None = None,
) -> TrainingSpeed:
    """Train an agent or a rival in a process of its own.

    Raises:
        UserError: it cannot be trained so, or something it needs is missing.
        TimeoutError: it took more than `seconds`.
    """
    with tempfile.TemporaryDirectory() as folder:
        given = [f"model={name}", *settings]
        if name == PUBLISHED_SIZE:  # written by another process: its memory is not the run's
            written = in_own_process(write_transformer_xl, Path(folder), seconds=seconds)
            given = ["model=HELM", *written, *settings]
        if name in RIVALS:
            given = [f"model={RIVALS[name]}", *settings]
            return in_own_process(trained_rival, name, given, warm_up, seconds=seconds)
        return in_own_process(trained_agent, name, given, warm_up, shares, seconds=seconds)


def trained_agent(name: str, settings: Sequence[str], warm_up: int, shares: bool) -> TrainingSpeed:
    with tempfile.TemporaryDirectory() as folder, opened_run(settings) as run:
        assert isinstance(run.learner, PPO), "agents are measured with the default algorithm"
        clock = Clock()
        with ExitStack() as patches:
            for owner, method, part in seams(run.learner, run.collector) if shares else ():
                timed = clock.timed(getattr(owner, method), part)
                patches.enter_context(patch.object(owner, method, timed))
            moments = moments_of(run)
            write_json(Path(folder) / DESCRIPTION, {})
            run.train(Path(folder))
        found = clock.shares() if shares else {}
    rates = run.env_steps / run.seconds, rate_after(moments, warm_up)
    return TrainingSpeed(name, *rates, peak_megabytes(), peak_gpu_megabytes(), found)


def moments_of(run: Run) -> list[tuple[float, float]]:
    moments: list[tuple[float, float]] = []
    update = run.learner.update

    def noting(progress: float) -> dict[str, float]:
        metrics = update(progress)
        moments.append((run.env_steps, run.seconds))
        return metrics

    run.learner.update = noting  # type: ignore[method-assign]
    return moments


@contextmanager
def opened_run(settings: Sequence[str]) -> Iterator[Run]:
    threads = f"threads={torch.get_num_threads()}"
    config = load_config(None, ["showcase_minutes=null", threads, *settings]).part(RunSettings)
    agent_class(config.model).check(config)
    with redirect_stdout(None), build_run(config, Ranks()) as run:
        yield run


def rate_after(moments: Sequence[tuple[float, float]], warm_up: int) -> float | None:
    counted = np.array([moment for moment in moments if moment[0] >= warm_up])
    if len(counted) < 2:
        return None
    steps, seconds = counted[-1] - counted[0]
    return float(steps / seconds)


def trained_rival(name: str, settings: Sequence[str], warm_up: int) -> TrainingSpeed:
    # TorchRL's has the encoder of stable-baselines3's.
    for package in ("sb3-contrib", "torchrl") if name == TORCHRL else ("sb3-contrib",):
        if importlib.util.find_spec(package.replace("-", "_")) is None:
            raise UserError(f"{package} is not installed. Run: pip install {package}")
    build: Callable[[str, PpoSettings, Environments], Any]
    if name == TORCHRL:
        from benchmarks.torchrl_rival import TorchRlPpo

        build = TorchRlPpo
    else:
        from benchmarks.rivals import rival

        build = rival
    config = load_config(None, settings).part(PpoSettings)
    torch.set_num_threads(number_of_threads(config.threads))
    with open_env(config, config.seed) as env:
        model = build(name, config, env)
        moments: list[tuple[int, float]] = []
        begun = time.perf_counter()

        def note(*_: object) -> bool:
            moments.append((model.num_timesteps, time.perf_counter() - begun))
            return True

        model.learn(config.n_steps, callback=note)
        rates = model.num_timesteps / (time.perf_counter() - begun), rate_after(moments, warm_up)
    return TrainingSpeed(name, *rates, peak_megabytes(), peak_gpu_megabytes(), {})


class Clock:
    """Charges every moment to the innermost running part; a GPU is waited for."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._running = ["rest"]
        self._since = time.perf_counter()

    def timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self._charge()
            self._running.append(part)
            try:
                return function(*arguments, **options)
            finally:
                self._charge()
                self._running.pop()

        return call

    def shares(self) -> dict[str, float]:
        """Return each part's share of the time so far; they sum to 1."""
        self._charge()
        total = sum(self.seconds.values())
        return {part: seconds / total for part, seconds in self.seconds.items()}

    def _charge(self) -> None:
        measuring.wait_for_gpu()
        now = time.perf_counter()
        self.seconds[self._running[-1]] += now - self._since
        self._since = now


def seams(learner: PPO, collector: Collector) -> Iterator[tuple[Any, str, str]]:
    agent = learner.agent
    yield collector.env, "step", "environments"
    yield collector, "step", "rollout storage"
    yield learner, "update", "update: losses, minibatches"
    yield learner.optimizer, "step", "update: clipping, optimiser"
    yield torch.nn.utils, "clip_grad_norm_", "update: clipping, optimiser"
    yield torch.Tensor, "backward", "update: backward"
    yield agent, "evaluate", "update: forward"
    yield agent, "act", "encoder and heads, acting"
    if isinstance(agent, LanguageMemoryAgent):
        yield agent.frozen_memory.language_model, "step", "language model"
        yield ObservationCache, "__call__", "observation → language"
        for method in ("read", "observe"):
            yield agent.frozen_memory.to_language, method, "observation → language"


if __name__ == "__main__":
    sys.exit(main())
