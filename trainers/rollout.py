"""A rollout: T steps of N environments, and minibatches of them by step or by sequence.

Samples are numbered environment by environment: n * T + t.
"""

import math
import os
from collections.abc import Sequence
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor

from models.agent import Batch, Transitions
from models.observations import ObservationBatch, Observations
from trainers.learner import IS_FIRST, STORED_STATE, Transition
from utils.errors import UserError

GIB = 2**30


def check_rollout_fits(
    n_envs: int, n_steps: int, image_shape: Sequence[int] | None, device: str
) -> None:
    """Raise UserError where the images (C, H, W) of a rollout alone exceed a machine's memory."""
    if device.startswith("cuda"):
        n_bytes_here = torch.cuda.get_device_properties(device).total_memory
    else:
        n_bytes_here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # Images alone are counted: beside them all else is small.
    n_bytes = n_envs * n_steps * math.prod(image_shape or (0,))
    if n_bytes > n_bytes_here:
        size = "x".join(map(str, image_shape or ()))
        raise UserError(
            f"n_rollout_steps: the {size} images of {n_envs} x {n_steps} "
            f"steps take {n_bytes / GIB:.1f} GiB, and this machine has {n_bytes_here / GIB:.1f}. "
            "Choose fewer environments or a shorter rollout"
        )


class ContextWindow(NamedTuple):
    """The last P steps before a rollout, the context of its first steps.

    Attributes:
        observations: [P, N, ...] of each kind
        is_first: Where an episode began.  [P, N] bool
        stored_state: `Step.stored_state`.  [P, N, ...]
    """

    observations: Observations
    is_first: Tensor
    stored_state: Tensor

    def context_len(self) -> Tensor:
        """Return the number of steps that belong to each environment's episode.  [N] int64"""
        n_steps = len(self.is_first)
        # argmax finds the first of the largest: read backwards, where the last episode began.
        since_last = self.is_first.flip(0).int().argmax(0) + 1
        return torch.where(self.is_first.any(0), since_last, n_steps)

    def tensors(self) -> dict[str, Tensor]:
        return self.observations.tensors() | {
            IS_FIRST: self.is_first,
            STORED_STATE: self.stored_state,
        }

    def last(self, n_steps: int) -> dict[str, Tensor]:
        return {name: kind[len(kind) - n_steps :] for name, kind in self.tensors().items()}

    @classmethod
    def of(cls, tensors: dict[str, Tensor], device: torch.device) -> "ContextWindow":
        here = {name: kind.to(device) for name, kind in tensors.items()}
        is_first, stored_state = here.pop(IS_FIRST), here.pop(STORED_STATE)
        return cls(Observations(**here), is_first, stored_state)


class Segments(NamedTuple):
    """The pieces of a rollout between episode starts and its own ends, environment by environment.

    Attributes:
        firsts: Sample with which each sequence opens.  [S] int64, on the CPU
        lengths: Steps of each sequence, summing to T*N.  [S] int64, on the CPU
        context_len: Earlier steps of its episode, there to be read again.  [S] int64, on the CPU
    """

    firsts: Tensor
    lengths: Tensor
    context_len: Tensor


class Rollout:
    """Storage of a rollout; images stay uint8.

    Args:
        n_steps: T.
        observations: Of one step, for the shapes.
        stored_state: `Step.stored_state` of one step.  [N, ...]
        past: The steps before it, for agents that read them again.
        keeps_following, keeps_states_after: Keep the observations, states that follow each step.
        action_shape: (A,) where actions are those of a Box.

    Attributes:
        observations: [T, N, ...] of each kind
        n_stored: Steps stored so far.
        following: Those after each step, also where that ended the episode.
        stored_states_at_ends: `Step.stored_state` of those where an episode or the rollout ends,
            for a reward that reads a frozen memory; else None.  [T, N, ...]
        beyond: Value of the rest of an episode that a time limit has cut off.  [T, N]
        bootstrap: The critic's value of the observation after the last step.  [N]
    """

    def __init__(
        self,
        n_steps: int,
        observations: Observations,
        stored_state: Tensor,
        past: ContextWindow | None = None,
        keeps_following: bool = False,
        keeps_states_after: bool = False,
        action_shape: tuple[int, ...] = (),
    ) -> None:
        self.past = past
        n_envs, device = len(stored_state), stored_state.device
        self.n_steps, self.n_envs, self.n_stored = n_steps, n_envs, 0
        self.observations = observations.map(lambda kind: kind.new_empty((n_steps, *kind.shape)))
        self.following: Observations | None = None
        if keeps_following:
            self.following = self.observations.map(torch.empty_like)
        self.stored_states_at_ends: Tensor | None = None
        if keeps_states_after:
            # Rows of other steps stay 0: theirs is the next step's stored state.
            self.stored_states_at_ends = stored_state.new_zeros((n_steps, *stored_state.shape))
        self.bootstrap = torch.zeros(n_envs, device=device)
        self.stored_state = stored_state.new_empty((n_steps, *stored_state.shape))
        zeros = partial(torch.zeros, n_steps, n_envs, device=device)
        kind = torch.float32 if action_shape else torch.int64
        self.actions = torch.zeros(n_steps, n_envs, *action_shape, dtype=kind, device=device)
        self.is_first = zeros(dtype=torch.bool)
        self.log_probs, self.values, self.rewards = zeros(), zeros(), zeros()
        self.continues, self.beyond, self.advantages, self.returns = (zeros() for _ in range(4))

    @cached_property
    def _batch_of_all(self) -> ObservationBatch:
        # Of a full rollout, step by step: past, own, following. One for the whole update, since
        # minibatches select from it and share what encoders find.
        seen = self.observations
        if self.past is not None:
            seen = seen.map(lambda kind, past: torch.cat((past, kind)), self.past.observations)
        flat = seen.map(lambda kind: kind.flatten(0, 1))
        if self.following is not None:
            flat = flat.map(
                lambda kind, next_: torch.cat((kind, next_.flatten(0, 1))), self.following
            )
        return ObservationBatch(flat)

    @cached_property
    def _stored_state_of_all(self) -> Tensor:
        if self.past is None:
            return self.stored_state
        return torch.cat((self.past.stored_state, self.stored_state))

    @property
    def n_past(self) -> int:
        return 0 if self.past is None else len(self.past.is_first)

    def past_of_next(self, n_context: int) -> ContextWindow:
        own = ContextWindow(self.observations, self.is_first, self.stored_state)
        # A window may be longer than a rollout, and reach back into the one before.
        earlier = [] if self.past is None else [self.past]
        begun = torch.cat([window.is_first for window in (*earlier, own)])[-n_context:]
        # No episode reaches further back than its first step.
        n_needed = int(own._replace(is_first=begun).context_len().max())
        n_own = min(n_needed, self.n_steps)
        # Cut before they are joined, since images are large. Copies: slices would keep the whole
        # rollout in memory.
        parts = [*(window.last(n_needed - n_own) for window in earlier), own.last(n_own)]
        last = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        return ContextWindow.of(last, self.stored_state.device)

    @property
    def is_full(self) -> bool:
        return self.n_stored == self.n_steps

    @property
    def n_samples(self) -> int:
        return self.n_steps * self.n_envs

    def store(self, transition: Transition) -> None:
        t, percept, step = self.n_stored, transition.percept, transition.step
        self.observations.map(lambda kept, seen: kept[t].copy_(seen), percept.observations)
        self.is_first[t] = percept.is_first
        self.actions[t] = step.actions
        assert step.log_probs is not None, "PPO's agents have a policy"
        assert step.values is not None, "and a critic"
        self.log_probs[t] = step.log_probs
        self.values[t] = step.values
        self.stored_state[t] = step.stored_state
        self.rewards[t] = transition.rewards
        self.continues[t] = ~transition.ended
        if self.following is not None:
            next_ = transition.following.observations
            self.following.map(lambda kept, seen: kept[t].copy_(seen), next_)
        self.n_stored = t + 1

    def transitions(self) -> Transitions:
        rows = torch.arange(2 * self.n_samples, device=self.is_first.device)
        # Its own steps stand behind the past's, the following ones behind its own.
        observations = self._batch_of_all.select(self.n_past * self.n_envs + rows)
        # Few rewards read them, and those of a matrix memory are large.
        stored_state = self.stored_state.new_empty(len(rows), 0)
        if self.stored_states_at_ends is not None:
            # A step's next stored state is that of the step after it, but where an episode ends.
            ends = self.continues == 0
            ends[-1] = True
            following = self.stored_state.roll(-1, 0)
            following[ends] = self.stored_states_at_ends[ends]
            stored_state = torch.cat((self.stored_state, following)).flatten(0, 1)
        actions, rewards = self.actions.flatten(0, 1), self.rewards.flatten()
        return Transitions(observations, stored_state, actions, rewards, self.is_first)

    def estimate(self, gamma: float, gae_lambda: float) -> None:
        # Apart until here: an intrinsic reward replaces the one and not the other.
        rewards = self.rewards + self.beyond
        self.advantages = generalized_advantages(
            rewards, self.values, self.bootstrap, self.continues, gamma, gae_lambda
        )
        self.returns = self.advantages + self.values

    @cached_property
    def sequences(self) -> Segments:
        """The full rollout, cut at episode starts and at its own first steps."""
        opens = self.is_first.cpu().clone()
        # An episode that goes on from the rollout before begins from its stored state.
        opens[0] = True
        firsts = opens.T.flatten().nonzero().squeeze(-1)  # [N, T] read environment by environment
        ends = torch.cat((firsts[1:], firsts.new_tensor([self.n_samples])))
        context_len = torch.zeros_like(firsts)
        if self.past is not None:
            n, t = firsts // self.n_steps, firsts % self.n_steps
            not_done = (t == 0) & ~self.is_first[0].cpu()[n]
            # Within the rollout sequences begin with their episodes: nothing stands before them.
            context_len = self.past.context_len().cpu()[n] * not_done
        return Segments(firsts, ends - firsts, context_len)

    def sequence_batch(self, chosen: Tensor) -> Batch:
        """Return a batch of whole sequences, numbers [S] on the CPU."""
        # On the CPU: lengths make shapes, for which the host would wait.
        firsts, lengths, context_len = (each[chosen] for each in self.sequences)
        n, t = firsts // self.n_steps, firsts % self.n_steps
        own = self._rows(n.repeat_interleave(lengths), _ranges(t, lengths))
        begin, seen = t - context_len, context_len + lengths  # below 0 in the past
        read = self._rows(n.repeat_interleave(seen), _ranges(begin, seen))
        # Of their stored states the first alone: those of a matrix memory are large.
        batch = self._picked(own, read, self._rows(n, begin))
        return batch._replace(lengths=lengths, context_len=context_len)

    def batch(self, samples: Tensor) -> Batch:
        """Return a batch of samples, numbers [B]."""
        rows = self._rows(samples // self.n_steps, samples % self.n_steps)
        return self._picked(rows, rows, rows)

    def _rows(self, n: Tensor, t: Tensor) -> Tensor:
        # Among those of past and rollout, which go step by step.
        return ((self.n_past + t) * self.n_envs + n).to(self.is_first.device)

    def _picked(self, own: Tensor, read: Tensor, stored: Tensor) -> Batch:
        own = own - self.n_past * self.n_envs

        def picked(kind: Tensor, rows: Tensor = own) -> Tensor:
            # Of one axis: half the time of picking from two.
            return kind.flatten(0, 1).index_select(0, rows)

        masks = self.observations.action_masks
        return Batch(
            observations=self._batch_of_all.select(read),
            actions=picked(self.actions),
            log_probs=picked(self.log_probs),
            values=picked(self.values),
            advantages=picked(self.advantages),
            returns=picked(self.returns),
            stored_state=picked(self._stored_state_of_all, stored),
            action_masks=None if masks is None else picked(masks),
        )


def _ranges(firsts: Tensor, lengths: Tensor) -> Tensor:
    """Return S ranges of numbers, each from its first and of its length, one after another."""
    starts = lengths.cumsum(0) - lengths
    of = torch.arange(len(firsts)).repeat_interleave(lengths)
    return firsts[of] + torch.arange(len(of)) - starts[of]


def generalized_advantages(
    rewards: Tensor,
    values: Tensor,
    bootstrap: Tensor,
    continues: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Return advantages, not standardised (Schulman et al. 2016, arXiv:1506.02438, eq. 16).

        A_t = delta_t + gamma * lambda * continues_t * A_{t+1}
        delta_t = r_t + gamma * continues_t * V_{t+1} - V_t

    Args:
        rewards: Normalised reward received after step t.  [T, N]
        values: The critic's V(s_t) when acting.  [T, N]
        bootstrap: The critic's value of the observation after the last step.  [N]
        continues: 0 where the episode ended with step t, else 1.  [T, N]
        gae_lambda: 0 is one-step temporal difference, 1 the discounted return minus the value.
    """
    next_values = torch.cat((values[1:], bootstrap[None]))
    deltas = rewards + gamma * continues * next_values - values
    advantages = torch.empty_like(deltas)
    following = torch.zeros_like(bootstrap)
    # Backwards, since each advantage needs that of the step after.
    for t in reversed(range(len(deltas))):
        following = deltas[t] + gamma * gae_lambda * continues[t] * following
        advantages[t] = following
    return advantages
