"""The interface between trainers and agents: percepts in, actions out, a memory in between.

Memory is a value the caller holds. An agent advances it in place and keeps none of it.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from models.observations import AgentInput, ObservationBatch, ObservationPreprocessor, Observations
from utils.cuda_graphs import Recordable, is_recorded
from utils.environments import Observation
from utils.errors import RunError
from utils.settings import Part

AnyMemory = TypeVar("AnyMemory", bound="Memory")
NOT_ALLOWED = -1e9
NO_ACTION = (
    "no action can be drawn: the agent's probabilities are not finite numbers, "
    "its weights have grown too large"
)


class Memory(Protocol):
    """The state of N running episodes; a copy shares nothing with it."""

    def copy(self: AnyMemory) -> AnyMemory: ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...


@dataclass
class TensorMemory:
    """A memory of one tensor [N, ...], of width 0 for an agent without memory."""

    state: Tensor

    def before(self, is_first: Tensor) -> Tensor:
        """Return the state, with zeros for the episodes that begin.  [N, ...]"""
        if not is_first.is_cuda and not is_first.any():  # on a GPU, asking would make the host wait
            return self.state
        return self.state.masked_fill(is_first.view(-1, *[1] * (self.state.ndim - 1)), 0)

    def copy(self) -> "TensorMemory":
        return copy.deepcopy(self)

    def state_dict(self) -> dict[str, Tensor]:
        return {"state": self.state.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.state.copy_(state["state"])


class TokensRead(NamedTuple):
    """The tokens that a frozen memory read at one step; page, movies and probe show these.

    Attributes:
        tokens: Texts first, then the tokens of what else was seen.  [N, K, D]
        words: Numbers of the words that these are, or are nearest to.  [N, k] int64
        similarities: Of the words to what was seen.  [N, k]
        entropy: Of the distribution over all words, in nats.  [N]
    """

    tokens: Tensor
    words: Tensor | None = None
    similarities: Tensor | None = None
    entropy: Tensor | None = None

    def map(self, function: Callable[..., Tensor], *others: "TokensRead") -> "TokensRead":
        parts = zip(self, *others, strict=True)
        return TokensRead._make(None if part[0] is None else function(*part) for part in parts)


class Step(NamedTuple):
    """The result of one step of N environments.

    Attributes:
        actions: Sampled, or the most probable ones.  [N] int64, or [N, A] float32 of a Box
        stored_state: Stored for the update; of width 0 if it needs nothing.  [N, ...]
        log_probs: Of the actions, for an agent with a policy.  [N]
        values: Of the observations, for an agent with a critic.  [N]
        all_log_probs: Of every action, where there are so many.  [N, A]
        remembered: The memory's output; without a memory, the encoder's.  [N, D]
        action_values: Of every action, for an agent that chooses by them.  [N, A]
        read: By a frozen memory, for an agent with one.
    """

    actions: Tensor
    stored_state: Tensor
    log_probs: Tensor | None = None
    values: Tensor | None = None
    all_log_probs: Tensor | None = None
    remembered: Tensor | None = None
    action_values: Tensor | None = None
    read: TokensRead | None = None


class Batch(NamedTuple):
    """B samples of a rollout; for a sequential agent, S whole sequences one after another.

    Attributes:
        observations: B; for sequences with earlier steps as context, B' in all.
        actions, log_probs, values: As they were when acting.  [B], actions of a Box [B, A]
        advantages: Not standardised.  [B]
        returns: Targets of the critic.  [B]
        stored_state: `Step.stored_state` of each sample [B, ...], or sequence's first [S, ...].
        action_masks: Whether an action was allowed; None: every one.  [B, A] bool
        lengths: Of the sequences, summing to B; None for single steps.  [S] int64, on the CPU
        context_len: Earlier steps of the episode given as context of each sequence; None for single
            steps.  [S] int64, on the CPU
    """

    observations: ObservationBatch
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor
    stored_state: Tensor
    action_masks: Tensor | None = None
    lengths: Tensor | None = None
    context_len: Tensor | None = None


class SequenceBatch(NamedTuple):
    """B sequences of T steps from replay, and the observation after the last; time first.

    Attributes:
        observations: (T+1)*B, step by step.
        is_first: No earlier step is known: an episode begins, or a sequence cut out of one.
            [T+1, B] bool
        last_actions: 0 where `is_first`.  [T+1, B] int64, or [T+1, B, A] float32 of a Box
        stored_state: `Step.stored_state` of each step.  [T+1, B, ...]
        actions: [T, B] int64, or [T, B, A] float32
        rewards: [T, B]
        terminated: 1 where the episode ended of itself, so that nothing follows.  [T, B]
        mask: 1 where the step counts, 0 behind an episode's end.  [T, B]
    """

    observations: ObservationBatch
    is_first: Tensor
    last_actions: Tensor
    stored_state: Tensor
    actions: Tensor
    rewards: Tensor
    terminated: Tensor
    mask: Tensor

    @property
    def action_masks(self) -> Tensor | None:
        """[T+1, B, A] bool"""
        masks = self.observations.action_masks
        return None if masks is None else masks.unflatten(0, self.is_first.shape)


class Transitions(NamedTuple):
    """B steps of any episodes, for a reward that is computed from a batch.

    Attributes:
        observations: Before each step, then after each, also where that ended the episode.  2B
        stored_state: `Step.stored_state` of the observations; of width 0 where the reward does not
            say that it reads them.  [2B, ...]
        actions: [B] int64, or [B, A] float32 of a Box
        rewards: The environment's own.  [B] float32
        is_first: Where an episode begins, if the steps are a whole rollout in its order.  [T, N]
    """

    observations: ObservationBatch
    stored_state: Tensor
    actions: Tensor
    rewards: Tensor
    is_first: Tensor | None = None


class Evaluation(NamedTuple):
    """The current networks' outputs for a batch: all [B]."""

    log_probs: Tensor
    values: Tensor
    entropy: Tensor


Followed = tuple[Tensor, tuple[Tensor, ...]]  # outputs [S, ...] of inputs with gradients


def gradient_lengths(output: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    """Return the length of a number's gradient at each step of inputs [T, N, ...].  [T, N]"""
    # Zero times the inputs: of an output that does not depend on them the gradient is 0.
    nothing = sum(0 * each.sum() for each in inputs)
    found = torch.autograd.grad(output + nothing, inputs, retain_graph=True)
    return torch.cat([each.flatten(2) for each in found], dim=-1).norm(dim=-1)


class Agent(Recordable, nn.Module, ABC):
    """Acts in N environments at once. All its parameters are trained.

    It clears the memory of starting episodes itself. A class that is trained by name is built from
    (config, observation_space, action_space).

    Attributes:
        reads: The settings it is built from.
        algorithms: The only ones that train it; empty: all that train agents with a memory.
        sequential: Whether learning needs whole sequences.
        n_context: Steps before a sequence that learning must see again.
        draws_actions: Whether `act` draws from a policy, or takes the action of the highest value.
        memory_class: The memory that DQN, SAC and TD3 put into networks of their own, built from
            (width of the features, config); None: there is none.
        has_frozen_memory: Whether `build_frozen_memory` makes one for these.
        recordable: Of `choose` and learning from a batch. Then `act` is `recall` and `choose`.
    """

    memory_class: ClassVar[Any] = None
    has_frozen_memory: ClassVar[bool] = False
    reads: ClassVar[tuple[type[Part], ...]] = ()
    algorithms: ClassVar[tuple[str, ...]] = ()
    sequential: bool = False
    n_context: int = 0
    draws_actions: bool = True
    reader: ObservationPreprocessor

    @abstractmethod
    def initial_memory(self, n_envs: int) -> Memory:
        """Return the memory of N episodes about to begin."""

    @abstractmethod
    def act(
        self, percept: AgentInput, memory: Memory, deterministic: bool = False, advance: bool = True
    ) -> Step:
        """Choose actions and advance the memory in place; without `advance` it stays as it is.

        With `deterministic` the most probable actions are taken and no random number is drawn.
        """

    def read(self, observations: Observation) -> Observations:
        return self.reader(observations, self.device)

    def explain(self, step: Step) -> dict[str, np.ndarray]:
        """Return readable facts about a step, [N, ...] under each name, such as words it read."""
        if self.frozen_memory is None or step.read is None:
            return {}
        return self.frozen_memory.explain(step.read)

    def inspect(self, percept: AgentInput, memory: Memory, step: Step) -> dict[str, np.ndarray]:
        """Return costlier diagnostics of a step; `memory` is that before it, and stays so.

        Recognised keys: those of `TokensRead` and `action_values`; `attention` [N, L, H, S], from
        each head of each layer to the last S steps, oldest first, the present one last.
        """
        found = {}
        if step.action_values is not None:
            found["action_values"] = step.action_values.cpu().numpy()
        if self.frozen_memory is not None and step.read is not None:
            found |= self.frozen_memory.inspect(percept, memory, step.read)
        return found

    def episode_values(self, episode: AgentInput, actions: Tensor) -> Followed | None:
        """Return the values [S] of an episode's first steps, and the inputs they depend on.

        An agent with values of actions [T] returns those of the actions taken. The inputs of the
        memory and of the heads beside it, [S, 1, ...] each, are embedded observations or tokens.
        `episode` has T >= S rows, the steps; None stands for an agent that cannot say.
        """
        return None

    def curiosity_features(self, observations: ObservationBatch) -> dict[str, Tensor] | None:
        """Return the inputs of an intrinsic reward of B observations, by kind, before any memory.

        None stands for the observations themselves.
        """
        return None

    def metrics(self) -> dict[str, float]:
        return {} if self.frozen_memory is None else self.frozen_memory.metrics()

    def fingerprints(self) -> dict[str, str]:
        """Return the sha256 of every pretrained part, by the setting that names it."""
        return {}

    @classmethod
    def check(cls, config: Any) -> None:
        """Raise UserError where settings cannot work, before anything heavy is loaded."""

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def frozen_memory(self) -> Any:
        """The language model that it remembers by, a `models.helm.LanguageMemory`; or None."""
        return None

    @classmethod
    def build_frozen_memory(cls, config: Any, reader: ObservationPreprocessor) -> Any:
        """Return one for an agent, or for the networks of DQN, SAC and TD3."""
        raise NotImplementedError


Recalled = tuple[Tensor, TokensRead | None]  # of `choose` [N, ...], and of a frozen memory


class ActorCriticAgent(Agent):
    """An agent that PPO can train: it has a policy and a critic."""

    @abstractmethod
    def evaluate(self, batch: Batch) -> Evaluation:
        """Return log-probabilities, values and entropy of a batch, with gradients."""

    def recall(self, percept: AgentInput, memory: Memory, advance: bool = True) -> Recalled:
        """Read one step into the memory; return stored_state for `choose`, and the tokens read."""
        raise NotImplementedError

    def choose(
        self, stored_state: Tensor, observations: Observations, deterministic: bool = False
    ) -> Step:
        """Choose actions, given what was recalled."""
        raise NotImplementedError

    def refresh(
        self, past: Observations, is_first: Tensor, stored_state: Tensor, memory: Memory
    ) -> None:
        """Recompute the memory in place from the last P <= n_context steps, with new weights.

        `past` is [P, N, ...] of each kind, `is_first` [P, N]; `stored_state` is that of each step.
        """


class RecentSteps(NamedTuple):
    """The last P steps of N running episodes.

    Attributes:
        is_first: Where an episode begins; earlier rows are empty.  [P, N] bool
        last_actions: [P, N] int64, or [P, N, A] float32 of a Box
        ages: Steps of the episode before the first of these.  [N] int64
    """

    is_first: Tensor
    last_actions: Tensor
    ages: Tensor


class Stepped(NamedTuple):
    """One step of a `Torso`: features [N, D]; as of `Step`, what replay stores and the rest."""

    features: Tensor
    stored_state: Tensor
    remembered: Tensor
    read: TokensRead | None = None


class Torso(nn.Module, ABC):
    """Observations, last actions and memory → features of the heads, of width D.

    The memory must read the last `n_context` steps again after the weights have changed.
    """

    width: int
    n_context: int = 0

    def __init__(self, embedder: Any) -> None:
        super().__init__()
        self.embedder = embedder

    @abstractmethod
    def initial_memory(self, n_envs: int) -> Memory: ...

    @abstractmethod
    def step(self, percept: AgentInput, memory: Memory, advance: bool = True) -> Stepped:
        """Read one step into the memory."""

    @abstractmethod
    def unroll(self, sequences: SequenceBatch) -> Tensor:
        """Read sequences from replay, with gradients.  [T+1, B, D]"""

    @abstractmethod
    def read_episode(self, episode: AgentInput) -> Followed:
        """Return the features [S, D] of an episode's first steps, as `Agent.episode_values`."""

    def embedded(self, sequences: SequenceBatch) -> Tensor:
        """Return the embeddings of sequences from replay.  [T+1, B, F]"""
        is_first = sequences.is_first
        last_actions = self.embedder.begun(sequences.last_actions, is_first).flatten(0, 1)
        return self.embedder(sequences.observations, last_actions).unflatten(0, is_first.shape)

    def refresh(self, past: Observations, running: RecentSteps, memory: Memory) -> None:
        """Recompute the memory in place from the last P <= n_context steps [P, N, ...]."""

    def looks(self, percept: AgentInput, memory: Memory) -> dict[str, np.ndarray]:
        """Return where a trained memory looks, for `Agent.inspect`."""
        return {}

    @property
    def frozen_memory(self) -> Any:
        return None

    def memory_parameters(self) -> list[nn.Parameter]:
        return []

    def fingerprints(self) -> dict[str, str]:
        return self.embedder.fingerprints()


def allowed(scores: Tensor, action_masks: Tensor | None) -> Tensor:
    """Return logits or values [..., A], those of actions that are not allowed replaced by -1e9."""
    # A finite number: a probability is 0 in any case, and 0 times infinity would be no number.
    return scores if action_masks is None else scores.masked_fill(~action_masks, NOT_ALLOWED)


def sample_actions(probabilities: Tensor) -> Tensor:
    """Sample an action for each row of probabilities [N, A]; RunError if one is not finite.  [N]"""
    if not is_recorded(probabilities) and not math.isfinite(probabilities.sum()):
        raise RunError(NO_ACTION)
    # The numbers of torch.multinomial, which takes three times as long to look for mistakes.
    return (probabilities / torch.empty_like(probabilities).exponential_()).argmax(-1)


class OffPolicyAgent(Agent):
    """Learns from replay; the acting head sees the features of `body`."""

    def __init__(self, reader: ObservationPreprocessor, body: Torso, n_actions: int) -> None:
        super().__init__()
        self.reader, self.body, self.n_actions = reader, body, n_actions
        self.n_context = body.n_context

    def initial_memory(self, n_envs: int) -> Memory:
        return self.body.initial_memory(n_envs)

    def curiosity_features(self, observations: ObservationBatch) -> dict[str, Tensor] | None:
        return self.body.embedder.by_kind(observations)

    @torch.no_grad()
    def inspect(self, percept: AgentInput, memory: Memory, step: Step) -> dict[str, np.ndarray]:
        return super().inspect(percept, memory, step) | self.body.looks(percept, memory)

    def fingerprints(self) -> dict[str, str]:
        return self.body.fingerprints()

    @property
    def frozen_memory(self) -> Any:
        return self.body.frozen_memory


class ValuesAgent(OffPolicyAgent):
    """An agent that DQN can train: it acts by the values of all actions."""

    draws_actions = False

    @abstractmethod
    def values(self, sequences: SequenceBatch) -> Tensor:
        """Return the value of every action at every step, -1e9 where not allowed.  [T+1, B, A]"""


class PolicyAndCriticsAgent(OffPolicyAgent):
    """A policy and two critics, for SAC and TD3; they share a body without `critic_body`."""

    def __init__(
        self,
        reader: ObservationPreprocessor,
        body: Torso,
        n_actions: int,
        policy: nn.Module,
        critics: nn.Module,
        critic_body: Torso | None = None,
    ) -> None:
        super().__init__(reader, body, n_actions)
        self.policy, self.critics, self.critic_body = policy, critics, critic_body
