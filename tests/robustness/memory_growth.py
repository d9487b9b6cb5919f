"""Train every agent with tiny networks for long and watch the memory.

    python -m tests.robustness.memory_growth

Each agent has a process of its own. Its resident memory, read after every update, may not rise by
more than 5 % once the first 20,000 steps are done; the exit status is 1 where one does. Most of
the rise that is left are oneDNN's primitives, one for every new shape of a minibatch, of which it
keeps 1,024: ONEDNN_PRIMITIVE_CACHE_CAPACITY=16 leaves it next to none.
"""

import argparse
import contextlib
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from envs import make_vector_env
from models import AGENTS, build_agent
from models.agent import ActorCriticAgent
from models.baselines import CnnAgent
from tests.agents import small_config
from tests.tiny_clip import tiny_settings
from trainers.collector import Collector
from trainers.ppo import PPO
from trainers.train import Run
from utils.seeding import seed_everything

WARM_UP = 20_000
ALLOWED = 0.05
WIDTH = 16  # of the encoder without memory, which has no setting of its own
TINY = {
    "env": "RandomMaze-v0",  # ever new images: the observation cache fills and has to forget
    "observation_cache_mb": 1,
    "mem_len": 8,
    "memory_width": 16,
    "n_envs": 16,
    "n_rollout_steps": 64,
    "n_epochs": 1,
    "n_batches": 2,
}


class Sample(NamedTuple):
    """How much memory the process had after an update."""

    env_steps: int
    resident: int  # bytes


class SlimCnn(CnnAgent):
    def encoder_width(self, config: Any) -> int:
        return WIDTH


class Watched(PPO):
    """A learner that notes the memory after every update."""

    def __init__(self, config: Any, agent: ActorCriticAgent) -> None:
        super().__init__(config, agent)
        self.samples: list[Any] = []
        self.env_steps = 0

    def update(self, progress: float, permutations: Tensor | None = None) -> dict[str, float]:
        """Learn, then look."""
        self.env_steps += self.config.n_envs * self.config.n_rollout_steps
        metrics = super().update(progress, permutations)
        self.samples.append(self.look())
        return metrics

    def look(self) -> Any:
        """Return the memory after an update."""
        return Sample(self.env_steps, resident_bytes())


def resident_bytes() -> int:
    """Return the resident memory of this process, as Linux counts it."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def watch(name: str, n_steps: int, learner: type[Watched] = Watched, **changes: Any) -> list[Any]:
    """Train an agent with everything a run has, logs and checkpoints, and return the samples."""
    settings = TINY | tiny_settings(name) | changes
    config = small_config(model=name, n_steps=n_steps, **settings)
    seed_everything(config.seed)
    env = make_vector_env(config, config.seed)
    spaces: Any = (env.single_observation_space, env.single_action_space)
    agent = SlimCnn(config, *spaces) if name == "CNN" else build_agent(config, *spaces)
    watched = learner(config, agent)
    run = Run(config, watched, Collector(env, watched))
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(None):
        run.train(Path(folder))
    env.close()
    return watched.samples


def growth(samples: Sequence[Sample], warm_up: int = WARM_UP) -> float:
    """Return by which share the memory has risen at most since the warm-up."""
    warm = [sample.resident for sample in samples if sample.env_steps >= warm_up]
    return max(warm) / warm[0] - 1


def line(name: str, samples: Sequence[Sample]) -> str:
    """Return one row of the table."""
    warm = next(sample for sample in samples if sample.env_steps >= WARM_UP)
    rise, last = growth(samples), samples[-1]
    megabytes = f"{warm.resident / 2**20:9.1f} {last.resident / 2**20:9.1f}"
    verdict = "flat" if rise <= ALLOWED else "GROWS"
    return f"{name:10s} {last.env_steps:9,d} {megabytes} {100 * rise:8.2f} %  {verdict}"


def main(argv: Sequence[str] | None = None) -> int:
    """Watch the agents and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.robustness.memory_growth", description=__doc__
    )
    parser.add_argument("--steps", type=int, default=200_000, help="more than 20000")
    parser.add_argument("--agents", nargs="+", choices=AGENTS.places, default=list(AGENTS.places))
    arguments = parser.parse_args(argv)
    print("agent          steps  MB at 20k    at end    largest rise", flush=True)
    flat = True
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, torch.set_num_threads, (1,), max_tasks_per_child=1) as pool:
        for name in arguments.agents:
            samples = pool.submit(watch, name, arguments.steps).result()
            print(line(name, samples), flush=True)
            flat &= growth(samples) <= ALLOWED
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
