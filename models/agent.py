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
from utils.errors import RunError
from utils.settings import Part, setting

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
        return {} if self._frozen is None else self._frozen.explain(percept)

    def inspect(self, percept: Percept, memory: Memory) -> dict[str, np.ndarray]:
        """Return what takes longer to find out; called before `act`, it leaves the memory alone.

        Names with a meaning of their own: `attention` [N, L, H, S], how much each head of each
        layer looks at the last S steps, oldest first, the present one last; `words` and
        `similarities` [N, K]; `entropy` [N], of what the words were chosen by, in nats;
        `action_values` [N, A], for an agent that chooses by them.
        """
        return {} if self._frozen is None else self._frozen.inspect(percept, memory)

    def curiosity_features(self, observations: ObservationBatch) -> dict[str, Tensor] | None:
        """Return what an intrinsic reward sees of B observations, by kind, before any memory.

        None stands for the observations themselves.
        """
        return None

    def metrics(self) -> dict[str, float]:
        """Return what the agent has to log of itself, always under the same names."""
        return {} if self._frozen is None else self._frozen.metrics()

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

    @property
    def _frozen(self) -> Any:
        """The frozen language model's memory, for an agent that has one."""
        return getattr(self, "language", None)


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

    Args:
        embedder: Reads observations and last actions.

    Attributes:
        width: D, of the features.
        n_context: Past steps that must be read again after the weights have changed.
    """

    width: int
    n_context: int = 0

    def __init__(self, embedder: Any) -> None:
        super().__init__()
        self.embedder = embedder

    @abstractmethod
    def initial_memory(self, n_envs: int) -> Memory:
        """Return a memory that has seen nothing."""

    @abstractmethod
    def step(self, percept: Percept, memory: Memory, advance: bool = True) -> tuple[Tensor, Tensor]:
        """Read one step; return features [N, D] and what replay has to keep [N, ...]."""

    @abstractmethod
    def unroll(self, sequences: Sequences) -> Tensor:
        """Read sequences from replay, with gradients.  [T+1, B, D]"""

    def embedded(self, sequences: Sequences) -> Tensor:
        """Return the embeddings of sequences from replay.  [T+1, B, F]"""
        starts, n_actions = sequences.starts, self.embedder.n_actions
        last_actions = sequences.last_actions.masked_fill(starts, n_actions).flatten()
        return self.embedder(sequences.observations, last_actions).unflatten(0, starts.shape)

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
    def inspect(self, percept: Percept, memory: Memory) -> dict[str, np.ndarray]:
        """Return what `Agent.inspect` says of this body."""

    def memory_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of what reads the sequence."""
        return []

    def fingerprints(self) -> dict[str, str]:
        """Return the sha256 of every pretrained part, by the setting that names it."""
        return self.embedder.fingerprints()


def drawn(probabilities: Tensor) -> Tensor:
    """Return an action for each row of probabilities [N, A].  [N]"""
    try:
        return torch.multinomial(probabilities, 1).squeeze(-1)
    except RuntimeError:
        if probabilities.isfinite().all():
            raise
        raise RunError(
            "no action can be drawn: the agent's probabilities are not finite numbers, "
            "its weights have grown too large"
        ) from None


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
        """Return the embeddings of observations."""
        return self.body.embedder.by_kind(observations)

    @torch.no_grad()
    def inspect(self, percept: Percept, memory: Memory) -> dict[str, np.ndarray]:
        """Return where the memory looks, and what a frozen one says besides."""
        return self.body.inspect(percept, memory)

    def fingerprints(self) -> dict[str, str]:
        """Return the sha256 of every pretrained part."""
        return self.body.fingerprints()


class QAgent(OffPolicyAgent):
    """Takes the action of the highest value: what DQN trains."""

    draws_actions = False

    def __init__(
        self, reader: ObservationReader, body: Body, n_actions: int, head: nn.Module
    ) -> None:
        super().__init__(reader, body, n_actions)
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


class TwinQ(nn.Module):
    """Two critics of the same features (Fujimoto et al. 2018, arXiv:1802.09477)."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return what both say of every action.  [..., A] each"""
        return self.first(features), self.second(features)


class SacAgent(OffPolicyAgent):
    """A policy and two critics, on one body or on one each: what SAC trains.

    Args:
        reader: Of the observation space.
        body: What the policy sees.
        n_actions: A.
        policy: Features to logits.
        critics: Features to values.
        critic_body: What the critics see; None for the policy's.
    """

    def __init__(
        self,
        reader: ObservationReader,
        body: Body,
        n_actions: int,
        policy: nn.Module,
        critics: TwinQ,
        critic_body: Body | None = None,
    ) -> None:
        super().__init__(reader, body, n_actions)
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
