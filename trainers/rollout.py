"""What happened in T steps of N environments, and its minibatches by step or by sequence.

Samples are numbered environment by environment: n * T + t.
"""

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from models.agent import Batch, Memory, Step
from trainers.losses import generalized_advantages
from utils.config import Config
from utils.distinct_images import DistinctImages
from utils.errors import UserError
from utils.image_hash import first_occurrences, image_hashes

GIB = 2**30
STORED = (
    *("observations", "starts", "actions", "log_probs", "values", "context"),
    *("rewards", "continues"),
)


def check_rollout_fits(config: Config, image_shape: Sequence[int] | None) -> None:
    """Raise UserError where the images of a rollout alone are more than a machine's memory.

    Args:
        config: `n_envs` are those of this process.
        image_shape: (C, H, W)
    """
    n_bytes_here = _memory(config.device)
    n_bytes = config.n_envs * config.n_rollout_steps * math.prod(image_shape or ())
    if n_bytes > n_bytes_here:
        size = "x".join(map(str, image_shape or ()))
        raise UserError(
            f"n_rollout_steps: the {size} images of {config.n_envs} x {config.n_rollout_steps} "
            f"steps take {n_bytes / GIB:.1f} GiB, and there are {n_bytes_here / GIB:.1f}. "
            "Choose fewer environments or a shorter rollout"
        )


def _memory(device: str) -> int:
    """Return the bytes of memory of this machine, or of its GPU."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class Scene(NamedTuple):
    """Where the environments stand: what the agent is about to see.

    Attributes:
        observations: [N, C, H, W] uint8
        starts: Whether an episode begins with the observation.  [N] bool
        memory: What the agent remembers of the N episodes.
    """

    observations: Tensor
    starts: Tensor
    memory: Memory


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
        observations: An example of what is stored at each step.  [N, C, H, W] uint8
        context: An example of `Step.context`.  [N, ...]

    Attributes:
        n_stored: Steps stored so far.
    """

    def __init__(self, n_steps: int, observations: Tensor, context: Tensor) -> None:
        n_envs, device = len(observations), observations.device
        self.n_steps, self.n_envs, self.n_stored = n_steps, n_envs, 0
        self.observations = observations.new_empty((n_steps, *observations.shape))
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
    def distinct(self) -> tuple[DistinctImages, Tensor]:
        """The different images among all T*N, and the number of each step's.  [T, N] int64

        To be asked for when the rollout is full.
        """
        flat = self.observations.flatten(0, 1)
        if flat.is_cuda:  # counting them would make the host wait for the device
            numbers = torch.arange(len(flat), device=flat.device)
            return DistinctImages(flat), numbers.view(self.n_steps, self.n_envs)
        firsts, number_of = first_occurrences(image_hashes(flat))
        return DistinctImages(flat[firsts]), number_of.view(self.n_steps, self.n_envs)

    @property
    def n_samples(self) -> int:
        """T*N."""
        return self.n_steps * self.n_envs

    def store(self, t: int, observations: Tensor, starts: Tensor, step: Step) -> None:
        """Keep what was seen and done at step t."""
        self.observations[t] = observations
        self.starts[t] = starts
        self.actions[t] = step.actions
        self.log_probs[t] = step.log_probs
        self.values[t] = step.values
        self.context[t] = step.context
        self.n_stored = t + 1

    def state_dict(self) -> dict[str, Any]:
        """Return the steps stored so far."""
        stored = {name: getattr(self, name)[: self.n_stored].clone() for name in STORED}
        return {"n_steps": self.n_steps, **stored}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any], device: torch.device) -> "Rollout":
        """Return the rollout whose steps `state_dict` returned."""
        observations, context = (state[name][0].to(device) for name in ("observations", "context"))
        rollout = cls(state["n_steps"], observations, context)
        rollout.n_stored = len(state["observations"])
        for name in STORED:
            getattr(rollout, name)[: rollout.n_stored] = state[name]
        return rollout

    def estimate(self, bootstrap: Tensor, gamma: float, gae_lambda: float) -> None:
        """Fill in advantages and returns, given the value [N] of what follows the last step."""
        self.advantages = generalized_advantages(
            self.rewards, self.values, bootstrap, self.continues, gamma, gae_lambda
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
        images, number_of = self.distinct
        shown, image_of = number_of[t, n], torch.arange(len(samples), device=samples.device)
        if not samples.is_cuda:
            shown, image_of = shown.unique(return_inverse=True)
        return Batch(
            images=images.select(shown),
            image_of=image_of,
            actions=self.actions[t, n],
            log_probs=self.log_probs[t, n],
            values=self.values[t, n],
            advantages=self.advantages[t, n],
            returns=self.returns[t, n],
            context=self.context[t, n],
            lengths=lengths,
        )
