"""The seam between trainer and agents: what an agent is, what it returns, what it remembers.

Memory is a value the caller holds. An agent advances it in place and keeps none of it.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from utils.config import Config
from utils.distinct_images import DistinctImages

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
        log_probs: Log-probability of each action.  [N]
        values: The critic's value of each observation.  [N]
        context: What `evaluate` needs again of this step; width 0 if nothing.  [N, ...]
        all_log_probs: Log-probability of every action; None if the agent does not say.  [N, A]
    """

    actions: Tensor
    log_probs: Tensor
    values: Tensor
    context: Tensor
    all_log_probs: Tensor | None = None


class Batch(NamedTuple):
    """B samples of a rollout; for a sequential agent, whole sequences one after another.

    Attributes:
        images: The U different images among the samples' observations.
        image_of: Which of the images each sample shows.  [B] int64
        actions: What was done.  [B] int64
        log_probs: Log-probability of the action when acting.  [B]
        values: The critic's value when acting.  [B]
        advantages: Not standardised.  [B]
        returns: Targets of the critic.  [B]
        context: `Step.context` of the samples.  [B, ...]
        lengths: Length of each of S sequences, summing to B; None for single steps.
            [S] int64, on the CPU
    """

    images: DistinctImages
    image_of: Tensor
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor
    context: Tensor
    lengths: Tensor | None = None


class Evaluation(NamedTuple):
    """What the current networks say of a batch: all [B]."""

    log_probs: Tensor
    values: Tensor
    entropy: Tensor


class Agent(nn.Module, ABC):
    """Acts in N environments at once and evaluates what it did. Its parameters are all trained.

    Observations are uint8 images [N, C, H, W]; `starts` [N] marks the environments whose episode
    begins with this observation: the agent clears those rows of the memory itself. A class that
    is trained by name is built from (config, observation_space, action_space).
    """

    sequential: ClassVar[bool] = False  # whether the update needs whole sequences

    @abstractmethod
    def initial_memory(self, n_envs: int) -> Memory:
        """Return the memory of environments that have seen nothing."""

    @abstractmethod
    def act(
        self, observations: Tensor, memory: Memory, starts: Tensor, deterministic: bool = False
    ) -> Step:
        """Choose actions and advance the memory in place."""

    @abstractmethod
    def peek_values(self, observations: Tensor, memory: Memory, starts: Tensor) -> Tensor:
        """Return the values [N] of observations without advancing the memory."""

    @abstractmethod
    def evaluate(self, batch: Batch) -> Evaluation:
        """Return log-probabilities, values and entropy of a batch, with gradients."""

    def explain(self, observations: Tensor) -> dict[str, np.ndarray]:
        """Return what a person may want to know of each observation, [N, ...] under each name."""
        return {}

    def inspect(
        self, observations: Tensor, memory: Memory, starts: Tensor
    ) -> dict[str, np.ndarray]:
        """Return what takes longer to find out; called before `act`, it leaves the memory alone.

        Names with a meaning of their own: `attention` [N, L, H, S], how much each head of each
        layer looks at the last S steps, oldest first, the present one last; `words` and
        `similarities` [N, K]; `entropy` [N], of what the words were chosen by, in nats.
        """
        return {}

    def metrics(self) -> dict[str, float]:
        """Return what the agent has to log of itself, always under the same names."""
        return {}

    def fingerprints(self) -> dict[str, str]:
        """Return the sha256 of every pretrained part, by the setting that names it."""
        return {}

    def share_statistics(self, rows: Callable[[Tensor], Tensor]) -> None:
        """Let running statistics take in the rows of all ranks, [n, ...] -> [N, ...]."""

    @classmethod
    def check(cls, config: Config) -> None:
        """Raise UserError where settings cannot work, before anything heavy is loaded."""

    @property
    def device(self) -> torch.device:
        """Where the trained parts live."""
        return next(self.parameters()).device
