"""The seam between trainers and agents: what an agent is told, what it returns, what it remembers.

Memory is a value the caller holds. An agent advances it in place and keeps none of it.
"""

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from models.observations import ObservationBatch, ObservationReader, Observations, Percept
from settings import Part

AnyMemory = TypeVar("AnyMemory", bound="Memory")


class Memory(Protocol):
    """What an agent remembers of N running episodes; it can be copied and saved."""

    def copy(self: AnyMemory) -> AnyMemory:
        """Return a memory that shares nothing with this one."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything needed to go on from here."""

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over what `state_dict` returned."""


@dataclass
class TensorMemory:
    """A memory that is one tensor, one row an environment.

    Attributes:
        state: [N, ...], of width 0 for an agent that remembers nothing.
    """

    state: Tensor

    def copy(self) -> "TensorMemory":
        """Return a memory that shares nothing with this one."""
        return copy.deepcopy(self)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the tensor under its name."""
        return {"state": self.state.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Overwrite the tensor in place."""
        self.state.copy_(state["state"])


class Step(NamedTuple):
    """What an agent did at one step of N environments.

    Attributes:
        actions: Sampled, or the most probable ones.  [N] int64
        context: What learning needs again of this step; width 0 if nothing.  [N, ...]
        log_probs: Log-probability of each action, for an agent with a policy.  [N]
        values: The critic's value of each observation, for an agent with one.  [N]
        all_log_probs: Log-probability of every action, if the agent says.  [N, A]
        remembered: What the memory gave to the heads; without a memory, what the encoder did. None
            if the agent does not say.  [N, D]
    """

    actions: Tensor
    context: Tensor
    log_probs: Tensor | None = None
    values: Tensor | None = None
    all_log_probs: Tensor | None = None
    remembered: Tensor | None = None


class Batch(NamedTuple):
    """B samples of a rollout; for a sequential agent, whole sequences one after another.

    Attributes:
        observations: What was seen: B, or for S sequences with the steps before each, B' in all.
        actions: What was done.  [B] int64
        log_probs: Log-probability of the action when acting.  [B]
        values: The critic's value when acting.  [B]
        advantages: Not standardised.  [B]
        returns: Targets of the critic.  [B]
        context: `Step.context` of all that was seen.  [B, ...] or [B', ...]
        lengths: Length of each of S sequences, summing to B; None for single steps.
            [S] int64, on the CPU
        before: Steps of the same episode, seen before each sequence, that stand before its own;
            None for single steps.  [S] int64, on the CPU
    """

    observations: ObservationBatch
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor
    context: Tensor
    lengths: Tensor | None = None
    before: Tensor | None = None


class Sequences(NamedTuple):
    """B sequences of T steps from replay and what was seen after the last of them, time first.

    Attributes:
        observations: (T+1)*B of them, step by step.
        starts: Where nothing is known of earlier steps: an episode begins, or a sequence that was
            cut out of one.  [T+1, B] bool
        last_actions: What was done before; 0 where `starts`.  [T+1, B] int64
        context: `Step.context` of each step.  [T+1, B, ...]
        actions: What was done.  [T, B] int64
        rewards: What was paid for it.  [T, B]
        terminated: 1 where the episode ended of itself, so that nothing follows.  [T, B]
        mask: 1 where the step counts, 0 behind an episode's end.  [T, B]
    """

    observations: ObservationBatch
    starts: Tensor
    last_actions: Tensor
    context: Tensor
    actions: Tensor
    rewards: Tensor
    terminated: Tensor
    mask: Tensor


class Transitions(NamedTuple):
    """B steps of any episodes, for a reward that is computed from a batch.

    Attributes:
        observations: What was seen before each step, then what was seen after each, also where
            that ended the episode.  2B
        context: `Step.context` of the observations; after a step it is of a meaning only where the
            reward reads it.  [2B, ...]
        actions: What was done.  [B] int64
        rewards: What the environment paid for it.  [B] float32
    """

    observations: ObservationBatch
    context: Tensor
    actions: Tensor
    rewards: Tensor


class Evaluation(NamedTuple):
    """What the current networks say of a batch: all [B]."""

    log_probs: Tensor
    values: Tensor
    entropy: Tensor


class Agent(nn.Module, ABC):
    """Acts in N environments at once. Its parameters are all trained.

    It is told of a step by a `Percept` and clears the memory of starting episodes itself. A class
    that is trained by name is built from (config, observation_space, action_space).

    Attributes:
        reads: The settings it is built from.
        algorithms: Who alone can train it; none where whoever trains agents with a memory can.
        reader: Turns what environments return into what the agent is told.
        sequential: Whether learning needs whole sequences.
        n_context: Steps before a sequence that learning must see again.
        draws_actions: Whether `act` draws from a policy, or takes the action of the highest value.
    """

    reads: ClassVar[tuple[type[Part], ...]] = ()
    algorithms: ClassVar[tuple[str, ...]] = ()
    sequential: bool = False
    n_context: int = 0
    draws_actions: bool = True
    reader: ObservationReader

    @abstractmethod
    def initial_memory(self, n_envs: int) -> Memory:
        """Return the memory of environments that have seen nothing."""

    @abstractmethod
    def act(
        self, percept: Percept, memory: Memory, deterministic: bool = False, advance: bool = True
    ) -> Step:
        """Choose actions and advance the memory in place.

        Args:
            percept: What is seen now.
            memory: Of the running episodes.
            deterministic: Take the most probable actions; no random number is drawn.
            advance: False looks ahead: the memory stays as it is.
        """

    def read(self, observations: Any) -> Observations:
        """Return what N environments show as the agent is told it, on its device."""
        return self.reader(observations, self.device)

    def explain(self, percept: Percept) -> dict[str, np.ndarray]:
        """Return what a person may want to know of each observation, [N, ...] under each name."""
        return {}

    def inspect(self, percept: Percept, memory: Memory) -> dict[str, np.ndarray]:
        """Return what takes longer to find out; called before `act`, it leaves the memory alone.

        Names with a meaning of their own: `attention` [N, L, H, S], how much each head of each
        layer looks at the last S steps, oldest first, the present one last; `words` and
        `similarities` [N, K]; `entropy` [N], of what the words were chosen by, in nats;
        `action_values` [N, A], for an agent that chooses by them.
        """
        return {}

    def curiosity_features(self, observations: ObservationBatch) -> dict[str, Tensor] | None:
        """Return what an intrinsic reward sees of B observations, by kind, before any memory.

        None stands for the observations themselves.
        """
        return None

    def metrics(self) -> dict[str, float]:
        """Return what the agent has to log of itself, always under the same names."""
        return {}

    def fingerprints(self) -> dict[str, str]:
        """Return the sha256 of every pretrained part, by the setting that names it."""
        return {}

    @classmethod
    def check(cls, config: Any) -> None:
        """Raise UserError where settings cannot work, before anything heavy is loaded."""

    @property
    def device(self) -> torch.device:
        """Where the trained parts live."""
        return next(self.parameters()).device


class ActorCriticAgent(Agent):
    """An agent that PPO can train: it has a policy and a critic."""

    @abstractmethod
    def evaluate(self, batch: Batch) -> Evaluation:
        """Return log-probabilities, values and entropy of a batch, with gradients."""

    def refresh(self, past: Observations, starts: Tensor, context: Tensor, memory: Memory) -> None:
        """Renew in place what a memory keeps of past steps, after the weights have changed.

        Args:
            past: What was seen in the last P <= n_context steps.  [P, N, ...] of each kind
            starts: Where an episode began.  [P, N] bool
            context: `Step.context` of those steps.  [P, N, ...]
            memory: Of the running episodes.
        """
