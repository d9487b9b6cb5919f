"""What happened in T steps of N environments, and its minibatches by step or by sequence.

Samples are numbered environment by environment: n * T + t.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from models.agent import Batch
from models.observations import ObservationBatch, Observations
from trainers.learner import Transition
from trainers.losses import generalized_advantages

STORED = ("starts", "actions", "log_probs", "values", "context", "rewards", "continues")


class Sequences(NamedTuple):
    """The pieces of a rollout between episode starts and its own ends, environment by environment.

    Attributes:
        firsts: Sample with which each sequence opens.  [S] int64, on the CPU
        lengths: Steps of each sequence, summing to T*N.  [S] int64, on the CPU
    """

    firsts: Tensor
    lengths: Tensor


class Rollout:
    """Storage of a rollout; images stay uint8.

    Args:
        n_steps: T.
        observations: An example of what is stored at each step.
        context: An example of `Step.context`.  [N, ...]

    Attributes:
        observations: [T, N, ...] of each kind
        n_stored: Steps stored so far.
        bootstrap: The critic's value of what follows the last step, once it is there.  [N]
    """

    def __init__(self, n_steps: int, observations: Observations, context: Tensor) -> None:
        n_envs, device = len(context), context.device
        self.n_steps, self.n_envs, self.n_stored = n_steps, n_envs, 0
        self.observations = observations.map(lambda kind: kind.new_empty((n_steps, *kind.shape)))
        self.bootstrap = torch.zeros(n_envs, device=device)
        self.context = context.new_empty((n_steps, *context.shape))
        self.actions = torch.empty((n_steps, n_envs), dtype=torch.int64, device=device)
        self.starts = torch.empty((n_steps, n_envs), dtype=torch.bool, device=device)
        self.log_probs = torch.empty((n_steps, n_envs), device=device)
        self.values = torch.empty((n_steps, n_envs), device=device)
        self.rewards = torch.empty((n_steps, n_envs), device=device)
        self.continues = torch.empty((n_steps, n_envs), device=device)
        self.advantages = torch.empty((n_steps, n_envs), device=device)
        self.returns = torch.empty((n_steps, n_envs), device=device)

    @cached_property
    def _batch_of_all(self) -> ObservationBatch:
        """All observations by step and then environment; to be asked for when they are there."""
        return ObservationBatch.of(self.observations.map(lambda kind: kind.flatten(0, 1)))

    @property
    def is_full(self) -> bool:
        """Whether all steps are stored."""
        return self.n_stored == self.n_steps

    @property
    def n_samples(self) -> int:
        """T*N."""
        return self.n_steps * self.n_envs

    def store(self, transition: Transition) -> None:
        """Keep what was seen, done and paid at the next step."""
        t, percept, step = self.n_stored, transition.percept, transition.step
        self.observations.map(lambda kept, seen: kept[t].copy_(seen), percept.observations)
        self.starts[t] = percept.starts
        self.actions[t] = step.actions
        assert step.log_probs is not None, "PPO's agents have a policy"
        assert step.values is not None, "and a critic"
        self.log_probs[t] = step.log_probs
        self.values[t] = step.values
        self.context[t] = step.context
        self.rewards[t] = transition.rewards
        self.continues[t] = ~transition.ended
        self.n_stored = t + 1

    def state_dict(self) -> dict[str, Any]:
        """Return the steps stored so far."""
        n = self.n_stored
        stored = {name: getattr(self, name)[:n].clone() for name in STORED}
        observations = self.observations.map(lambda kind: kind[:n].clone())._asdict()
        return {
            "n_steps": self.n_steps,
            "observations": observations,
            "bootstrap": self.bootstrap,
            **stored,
        }

    @classmethod
    def from_state_dict(cls, state: dict[str, Any], device: torch.device) -> "Rollout":
        """Return the rollout whose steps `state_dict` returned."""
        seen = Observations(**state["observations"])
        first = seen.map(lambda kind: kind[0].to(device))
        rollout = cls(state["n_steps"], first, state["context"][0].to(device))
        rollout.n_stored = n = len(state["starts"])
        rollout.observations.map(lambda kept, kind: kept[:n].copy_(kind), seen)
        rollout.bootstrap = state["bootstrap"].to(device)
        for name in STORED:
            getattr(rollout, name)[:n] = state[name]
        return rollout

    def estimate(self, gamma: float, gae_lambda: float) -> None:
        """Fill in advantages and returns."""
        self.advantages = generalized_advantages(
            self.rewards, self.values, self.bootstrap, self.continues, gamma, gae_lambda
        )
        self.returns = self.advantages + self.values

    def minibatches(self, parts: Iterable[Tensor]) -> Iterator[Batch]:
        """Yield a batch of each part: numbers of samples [B]."""
        for samples in parts:
            yield self._batch(samples)

    @cached_property
    def sequences(self) -> Sequences:
        """Where the full rollout is cut: at episode starts and at its own first steps."""
        opens = self.starts.cpu().clone()
        opens[0] = True
        firsts = opens.T.flatten().nonzero().squeeze(-1)  # [N, T] read environment by environment
        ends = torch.cat((firsts[1:], firsts.new_tensor([self.n_samples])))
        return Sequences(firsts, ends - firsts)

    def sequence_minibatches(self, parts: Iterable[Tensor]) -> Iterator[Batch]:
        """Yield a batch of whole sequences of each part: numbers of sequences, on the CPU."""
        firsts, lengths = self.sequences
        for chosen in parts:
            pieces = zip(firsts[chosen].tolist(), lengths[chosen].tolist(), strict=True)
            ranges = [torch.arange(first, first + n) for first, n in pieces]
            samples = torch.cat((firsts[:0], *ranges))
            yield self._batch(samples.to(self.starts.device), lengths[chosen])

    def _batch(self, samples: Tensor, lengths: Tensor | None = None) -> Batch:
        n, t = samples // self.n_steps, samples % self.n_steps
        return Batch(
            observations=self._batch_of_all.select(t * self.n_envs + n),
            actions=self.actions[t, n],
            log_probs=self.log_probs[t, n],
            values=self.values[t, n],
            advantages=self.advantages[t, n],
            returns=self.returns[t, n],
            context=self.context[t, n],
            lengths=lengths,
        )
