"""The seam between learners from replay and agents: what DQN, SAC and NStepDQN ask."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from models.agent import Agent, Memory, Sequences, Step
from models.heads import Perceptron, TwinQ, drawn
from models.observations import ObservationBatch, ObservationReader, Observations, Percept
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

    @abstractmethod
    def unroll(self, sequences: Sequences) -> Tensor:
        """Read sequences from replay, with gradients.  [T+1, B, D]"""

    def remembered(self, features: Tensor) -> Tensor:
        """Return what of the features of one step comes from the memory.  [N, D]"""
        return features

    def refresh(self, past: Observations, running: Running, memory: Memory) -> None:
        """Renew in place what the memory keeps of steps before the weights changed.

        Args:
            past: What was seen in the last P <= n_context steps.  [P, N, ...] of each kind
            running: What was done in them.
            memory: Of the running episodes.
        """

    @abstractmethod
    def curiosity_features(self, observations: ObservationBatch) -> dict[str, Tensor]:
        """Return what `Agent.curiosity_features` says of this body."""

    def explain(self, percept: Percept) -> dict[str, np.ndarray]:
        """Return what `Agent.explain` says of this body."""
        return {}

    @abstractmethod
    def inspect(self, percept: Percept, memory: Memory) -> dict[str, np.ndarray]:
        """Return what `Agent.inspect` says of this body."""

    def metrics(self) -> dict[str, float]:
        """Return what the body has to log."""
        return {}

    def memory_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of what reads the sequence."""
        return []

    @abstractmethod
    def fingerprints(self) -> dict[str, str]:
        """Return the sha256 of every pretrained part, by the setting that names it."""


class OffPolicyAgent(Agent):
    """Learns from replay.

    Args:
        reader: Of the observation space.
        body: What the acting head sees.
        n_actions: A.
    """

    def __init__(self, reader: ObservationReader, body: Body, n_actions: int) -> None:
        super().__init__()
        self.reader, self.body, self.n_actions = reader, body, n_actions
        self.n_context = body.n_context

    @property
    def language(self) -> Any:
        """The frozen memory, if there is one."""
        return getattr(self.body, "language", None)

    def initial_memory(self, n_envs: int) -> Memory:
        """Return a memory that has seen nothing."""
        return self.body.initial_memory(n_envs)

    def curiosity_features(self, observations: ObservationBatch) -> dict[str, Tensor] | None:
        """Return what the body has to say of observations."""
        return self.body.curiosity_features(observations)

    def explain(self, percept: Percept) -> dict[str, np.ndarray]:
        """Return what a frozen memory has to say of what is seen."""
        return self.body.explain(percept)

    @torch.no_grad()
    def inspect(self, percept: Percept, memory: Memory) -> dict[str, np.ndarray]:
        """Return where the memory looks, and what a frozen one says besides."""
        return self.body.inspect(percept, memory)

    def metrics(self) -> dict[str, float]:
        """Return what a frozen memory has to log."""
        return self.body.metrics()

    def fingerprints(self) -> dict[str, str]:
        """Return the sha256 of every pretrained part."""
        return self.body.fingerprints()


class QAgent(OffPolicyAgent):
    """Takes the action of the highest value: what DQN trains."""

    draws_actions = False

    def __init__(self, reader: ObservationReader, body: Body, head: Perceptron) -> None:
        super().__init__(reader, body, head.n_out)
        self.head = head

    @torch.no_grad()
    def inspect(self, percept: Percept, memory: Memory) -> dict[str, np.ndarray]:
        """Return the value of every action besides.  [N, A]"""
        features, _ = self.body.step(percept, memory, advance=False)
        values = {"action_values": self.head(features).cpu().numpy()}
        return super().inspect(percept, memory) | values

    @torch.no_grad()
    def act(
        self, percept: Percept, memory: Memory, deterministic: bool = False, advance: bool = True
    ) -> Step:
        """Advance the memory and choose greedily; exploring is the learner's."""
        features, context = self.body.step(percept, memory, advance)
        best = self.head(features).max(-1)
        remembered = self.body.remembered(features)
        return Step(best.indices, context, values=best.values, remembered=remembered)

    def values(self, sequences: Sequences) -> Tensor:
        """Return the value of every action at every step.  [T+1, B, A]"""
        return self.head(self.body.unroll(sequences))


class SacAgent(OffPolicyAgent):
    """A policy and two critics, on one body or on one each: what SAC trains.

    Args:
        reader: Of the observation space.
        body: What the policy sees.
        policy: Features to logits.
        critics: Features to values.
        critic_body: What the critics see; None for the policy's.
    """

    def __init__(
        self,
        reader: ObservationReader,
        body: Body,
        policy: Perceptron,
        critics: TwinQ,
        critic_body: Body | None = None,
    ) -> None:
        super().__init__(reader, body, policy.n_out)
        self.policy, self.critics, self.critic_body = policy, critics, critic_body

    @torch.no_grad()
    def act(
        self, percept: Percept, memory: Memory, deterministic: bool = False, advance: bool = True
    ) -> Step:
        """Advance the memory and draw actions from the policy, or take the most probable ones."""
        features, context = self.body.step(percept, memory, advance)
        log_probs = self.policy(features).log_softmax(-1)
        actions = log_probs.argmax(-1) if deterministic else drawn(log_probs.exp())
        chosen = log_probs.gather(-1, actions[:, None]).squeeze(-1)
        values = None
        if self.critic_body is None:
            both = torch.minimum(*self.critics(features))
            values = (log_probs.exp() * both).sum(-1)
        remembered = self.body.remembered(features)
        return Step(actions, context, chosen, values, log_probs, remembered)


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


class Policy(NamedTuple):
    """Probabilities of all actions and their logarithms, these of 1e-8 at least.  [..., A] each"""

    probs: Tensor
    log_probs: Tensor

    @classmethod
    def of(cls, logits: Tensor) -> "Policy":
        """Return the policy of logits [..., A]."""
        probs = logits.softmax(-1)
        return cls(probs, probs.clamp(min=LEAST_PROBABILITY).log())
