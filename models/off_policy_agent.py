"""The seam between learners from replay and agents: what DQN, SAC and NStepDQN ask."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from models.agent import Agent, Memory, Sequences
from models.images import Features
from models.observations import ObservationBatch, Observations, Percept
from settings import Part, setting

LEAST_PROBABILITY = 1e-8


@dataclass(frozen=True)
class OffPolicyNetworkSettings(Part):
    """What the networks of DQN and SAC read."""

    title = "DQN and SAC: networks"

    observation_embedding: int = setting(
        "width of an embedded observation", low=1, high=16_384, default=64
    )
    action_embedding: int = setting(
        "width of the embedded last action; 0: it is no input", low=0, high=16_384, default=64
    )
    head_width: int = setting(
        "width of both hidden layers of a head", low=1, high=16_384, default=256
    )


class Running(NamedTuple):
    """What was done in the last P steps of N running episodes.

    Attributes:
        starts: Where an episode begins; what stands before it is nothing.  [P, N] bool
        last_actions: [P, N] int64
        ages: Steps of its episode before the first of these.  [N] int64
    """

    starts: Tensor
    last_actions: Tensor
    ages: Tensor


class Body(nn.Module, ABC):
    """What is seen and was done, and all that is remembered → features of the heads.

    Attributes:
        width: D, of the features.
        n_context: Past steps that must be read again after the weights have changed.
    """

    width: int
    n_context: int = 0

    @abstractmethod
    def initial_memory(self, n_envs: int) -> Memory:
        """Return a memory that has seen nothing."""

    @abstractmethod
    def step(self, percept: Percept, memory: Memory, advance: bool = True) -> tuple[Tensor, Tensor]:
        """Read one step; return features [N, D] and what replay has to keep [N, ...]."""

    def remembered(self, features: Tensor) -> Tensor:
        """Return what of the features of one step comes from the memory.  [N, D]"""
        return features

    @abstractmethod
    def unroll(self, sequences: Sequences) -> Features:
        """Read sequences from replay, with gradients; the features of (T+1)*B steps."""

    def curiosity_features(self, observations: ObservationBatch) -> dict[str, Features] | None:
        """Return what `Agent.curiosity_features` says of this body."""
        return None

    def memory_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of what reads the sequence."""
        return []

    def fingerprints(self) -> dict[str, str]:
        """Return the sha256 of every pretrained part, by the setting that names it."""
        return {}


class OffPolicyAgent(Agent):
    """Learns from replay.

    Attributes:
        n_actions: A.
        body: What the acting head sees.
    """

    n_actions: int
    body: Body

    @abstractmethod
    def refresh(self, past: Observations, running: Running, memory: Memory) -> None:
        """Renew in place what the memory keeps of steps before the weights changed.

        Args:
            past: What was seen in the last P <= n_context steps.  [P, N, ...] of each kind
            running: What was done in them.
            memory: Of the running episodes.
        """


class ValueAgent(OffPolicyAgent):
    """Has a value for every action: what DQN trains."""

    draws_actions = False

    @abstractmethod
    def values(self, sequences: Sequences) -> Tensor:
        """Return the value of every action at every step.  [T+1, B, A]"""


class SoftAgent(OffPolicyAgent):
    """Has a policy and two critics, on one body or on one each: what SAC trains.

    Attributes:
        policy: Features of the body [..., D] to logits [..., A].
        critics: Features to what both critics say, [..., A] each.
        critic_body: What the critics see; None for the body of the policy.
    """

    policy: nn.Module
    critics: "TwinQ"
    critic_body: Body | None


class FrameValueAgent(Agent):
    """Has a value for every action, by the last frames it has seen: what NStepDQN trains.

    Attributes:
        n_actions: A.
        frame_stack: S, the frames seen at once; where an episode begins the first fills all.
        head: Features [B, H] to the values of all actions [B, A].
    """

    draws_actions = False
    n_actions: int
    frame_stack: int
    head: nn.Module

    @abstractmethod
    def features(self, observations: Observations) -> Tensor:
        """Map B observations, their images of S frames [B, S*C, H, W], to features.  [B, H]

        The oldest frame comes first.
        """

    @abstractmethod
    def finetuned(self, finetune: str) -> list[nn.Parameter]:
        """Return the parameters that go on learning: "all", "critic" or "linear"."""


class TwinQ(nn.Module):
    """Two critics of the same features (Fujimoto et al. 2018, arXiv:1802.09477)."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return what both say of every action.  [..., A] each"""
        return self.first(features), self.second(features)


class Policy(NamedTuple):
    """Probabilities of all actions and their logarithms, these of 1e-8 at least.  [..., A] each"""

    probs: Tensor
    log_probs: Tensor

    @classmethod
    def of(cls, logits: Tensor) -> "Policy":
        """Return the policy of logits [..., A]."""
        probs = logits.softmax(-1)
        return cls(probs, probs.clamp(min=LEAST_PROBABILITY).log())
