"""What learning costs, found out by a little of it that leaves the run as it is."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from models.agent import ActorCriticAgent, Agent, Batch
from models.observations import Percept
from trainers.rollout import Rollout

STEPS_TRIED = 4
SAMPLES_TRIED = 512


class Workload(NamedTuple):
    """What an update has to do.

    Attributes:
        n_steps: T of a rollout.
        n_epochs: Passes over it.
        n_sequences: Sequences at a time, for an agent that learns from whole ones.
    """

    n_steps: int
    n_epochs: int
    n_sequences: int


class Trial:
    """A few steps and part of a minibatch of a run, which leave the run as it is.

    Args:
        agent: Whose acting and learning is tried.
        work: What an update has to do.
        percept: What the agent is told now.
    """

    def __init__(self, agent: ActorCriticAgent, work: Workload, percept: Percept) -> None:
        self.agent, self.work = agent, work
        self.percept, self.n_envs = percept, percept.n_envs
        n_shown = work.n_sequences if agent.sequential else self.n_envs
        self.n_shown = min(self.n_envs, n_shown)
        most_steps = SAMPLES_TRIED // self.n_shown
        self.n_steps = max(1, min(work.n_steps, most_steps))

    def __call__(self) -> float:
        """Return the seconds that a rollout and its update would take."""
        with left_alone(self.agent):
            acting, batch = self._act()
            learning = self._learn(batch)
        n_steps = self.work.n_steps
        n_parts = n_steps * self.n_envs / (self.n_steps * self.n_shown)
        return n_steps * acting + self.work.n_epochs * n_parts * learning

    def _act(self) -> tuple[float, Batch]:
        """Return the seconds of a step, and a batch of noise with what the step left behind."""
        memory = self.agent.initial_memory(self.n_envs)
        begun = time.perf_counter()
        for _ in range(STEPS_TRIED):
            step = self.agent.act(self.percept, memory)
        seconds = (time.perf_counter() - begun) / STEPS_TRIED

        shown = slice(self.n_shown)
        observations = self.percept.observations.map(lambda kind: kind[shown])
        rollout = Rollout(self.n_steps, observations, step.context[shown])
        # All of them differ: as much as there ever is to learn.
        rollout.observations.map(fill_with_noise, observations)
        rollout.starts[:] = False
        rollout.actions[:], rollout.context[:] = step.actions[shown], step.context[shown]
        if self.agent.sequential:
            return seconds, next(rollout.sequence_minibatches([torch.arange(self.n_shown)]))
        return seconds, next(rollout.minibatches([torch.arange(rollout.n_samples)]))

    def _learn(self, batch: Batch) -> float:
        """Return the seconds of a gradient, which no parameter gets to know."""
        parameters = [p for p in self.agent.parameters() if p.requires_grad]
        begun = time.perf_counter()
        loss = torch.stack([part.mean() for part in self.agent.evaluate(batch)]).sum()
        torch.autograd.grad(loss, parameters, allow_unused=True)
        return time.perf_counter() - begun


def seconds_of(work: Callable[[], object], n_times: int = STEPS_TRIED) -> float:
    """Return the mean seconds of some work."""
    begun = time.perf_counter()
    for _ in range(n_times):
        work()
    return (time.perf_counter() - begun) / n_times


def fill_with_noise(kind: Tensor, shown: Tensor) -> Tensor:
    """Fill observations of a kind with noise; texts, which can be none, with one that was shown."""
    if kind.dtype == torch.int64:
        return kind.copy_(shown[:1])
    return kind.random_(256) if kind.dtype == torch.uint8 else kind.normal_()


@contextmanager
def left_alone(agent: Agent) -> Iterator[None]:
    """Let an agent act and evaluate without following statistics or moving random streams."""
    modes = {module: module.training for module in agent.modules()}
    with torch.random.fork_rng(devices=[]):
        agent.eval()
        try:
            yield
        finally:
            for module, training in modes.items():
                module.training = training
