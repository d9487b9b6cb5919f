"""Agents that learn from replay, with any memory: what DQN and SAC train.

The networks of Ni et al. 2023 (arXiv:2307.03864): embeddings → memory → perceptrons. A frozen
memory stands in the place of the trained one: its hidden state, stored with each step, is joined
with the embeddings, so that an update has nothing to unroll.
"""

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.agent import Memory, Sequences, Step
from models.embedders import InputEmbedder
from models.heads import drawn
from models.image_hash import first_equal_rows, first_rows
from models.images import Features
from models.language_memory import LanguageMemory
from models.memories import TrainedMemory
from models.observations import ObservationBatch, ObservationReader, Observations, Percept
from models.off_policy_agent import (
    Body,
    OffPolicyAgent,
    Running,
    SoftAgent,
    TwinQ,
    ValueAgent,
)
from models.sentence_encoder import SentenceFeatures, load_sentence_encoder

HIDDEN_BIAS = 0.1
LAST_LAYER_OF_Q, LAST_LAYER_OF_POLICY = 3e-3, 1e-3


class TrainedBody(Body):
    """Embeddings read by a memory that is trained along, or by none."""

    def __init__(self, embedder: InputEmbedder, memory: TrainedMemory) -> None:
        super().__init__()
        self.embedder, self.memory = embedder, memory
        self.width, self.n_context = memory.width, memory.n_context
        for name, parameter in memory.named_parameters():
            if "lstm" in name:
                _initialise_lstm(name, parameter)

    @classmethod
    def of(
        cls, memory_class: type[TrainedMemory], settings: Any, embedder: InputEmbedder
    ) -> "TrainedBody":
        """Return the body with a fresh memory of these settings behind an embedder."""
        return cls(embedder, memory_class(embedder.width, settings))

    def initial_memory(self, n_envs: int) -> Memory:
        """Return the memory's empty state."""
        return self.memory.initial(n_envs)

    def step(self, percept: Percept, memory: Memory, advance: bool = True) -> tuple[Tensor, Tensor]:
        """Read one step; replay keeps nothing of it: sequences are read from their first step."""
        embedded = self.embedder.step(percept)
        remembered = self.memory.step(embedded, memory, percept.starts, advance)
        return remembered, remembered[:, :0]

    def unroll(self, sequences: Sequences) -> Features:
        """Read sequences, each from a memory that has seen nothing."""
        embedded = self.embedder(sequences.observations, _inputs(sequences, self.embedder))
        return self.memory.unroll_from_nothing(embedded, sequences.starts.shape)

    def curiosity_features(self, observations: ObservationBatch) -> dict[str, Features] | None:
        """Return the embeddings of observations."""
        return self.embedder.by_kind(observations)

    @torch.no_grad()
    def refresh(self, past: Observations, running: Running, memory: Memory) -> None:
        """Let the memory read the last steps of running episodes again."""
        starts = running.starts
        flat = past.map(lambda kind: kind.flatten(0, 1))
        percept = Percept(flat, starts.flatten(), running.last_actions.flatten(), torch.empty(0))
        embedded = self.embedder.step(percept).unflatten(0, starts.shape)
        self.memory.refresh(embedded, starts, running.ages, memory)

    def memory_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the memory."""
        return list(self.memory.parameters())

    def fingerprints(self) -> dict[str, str]:
        """Return the sha256 of what reads sentences."""
        return self.embedder.fingerprints()


class FrozenBody(Body):
    """The hidden state of a frozen language model beside the embeddings of the present."""

    def __init__(self, embedder: InputEmbedder, language: LanguageMemory) -> None:
        super().__init__()
        self.embedder, self.language = embedder, language
        self.width = language.width + embedder.width

    def initial_memory(self, n_envs: int) -> Memory:
        """Return the language model's empty memory."""
        return self.language.initial(n_envs)

    def step(self, percept: Percept, memory: Memory, advance: bool = True) -> tuple[Tensor, Tensor]:
        """Let the language model read; replay keeps its hidden state, which nothing makes stale."""
        hidden = self.language.step(percept, memory, advance)
        return torch.cat((hidden, self.embedder.step(percept)), dim=-1), hidden

    def remembered(self, features: Tensor) -> Tensor:
        """Return the hidden state.  [N, D]"""
        return features[:, : self.language.width]

    def unroll(self, sequences: Sequences) -> Features:
        """Join what was kept with the embeddings of each step, equal ones once."""
        embedded = self.embedder(sequences.observations, _inputs(sequences, self.embedder))
        context, inputs = sequences.context.flatten(0, 1), embedded.row_of
        if inputs is None:
            return Features(torch.cat((context, embedded.distinct), dim=-1))
        _, kept = first_equal_rows(context)
        firsts, row_of = first_rows(kept * len(embedded.distinct) + inputs)
        present = F.embedding(inputs[firsts], embedded.distinct)
        return Features(torch.cat((context[firsts], present), dim=-1), row_of)

    def curiosity_features(self, observations: ObservationBatch) -> dict[str, Features] | None:
        """Return the embeddings of observations."""
        return self.embedder.by_kind(observations)

    def fingerprints(self) -> dict[str, str]:
        """Return the sha256 of the language model, of what leads to it and reads sentences."""
        return self.language.fingerprints() | self.embedder.fingerprints()


class Perceptron(nn.Sequential):
    """Two hidden layers with ReLUs, then a linear one.

    Hidden weights are drawn from U(±1/sqrt(outputs)) and their biases are 0.1; the original
    means the number of inputs and takes that of the outputs.

    Args:
        n_in: Width of the input.
        hidden: Widths of the hidden layers.
        n_out: Width of the output.
        last: Weights and biases of the last layer are drawn from U(±last).
    """

    def __init__(self, n_in: int, hidden: tuple[int, int], n_out: int, last: float) -> None:
        first, second = nn.Linear(n_in, hidden[0]), nn.Linear(hidden[0], hidden[1])
        final = nn.Linear(hidden[1], n_out)
        for layer in (first, second):
            nn.init.uniform_(layer.weight, *_around_zero(1 / math.sqrt(layer.out_features)))
            nn.init.constant_(layer.bias, HIDDEN_BIAS)
        for parameter in final.parameters():
            nn.init.uniform_(parameter, *_around_zero(last))
        super().__init__(first, nn.ReLU(), second, nn.ReLU(), final)
        self.n_out = n_out


class NetworkAgent(OffPolicyAgent):
    """What agents that learn from replay share: a body that acts.

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
    def language(self) -> LanguageMemory | None:
        """The frozen memory, if there is one."""
        return self.body.language if isinstance(self.body, FrozenBody) else None

    def initial_memory(self, n_envs: int) -> Memory:
        """Return a memory that has seen nothing."""
        return self.body.initial_memory(n_envs)

    def refresh(self, past: Observations, running: Running, memory: Memory) -> None:
        """Let a trained memory read the last steps again; a frozen one is never stale."""
        if isinstance(self.body, TrainedBody):
            self.body.refresh(past, running, memory)

    def curiosity_features(self, observations: ObservationBatch) -> dict[str, Features] | None:
        """Return what the body has to say of observations."""
        return self.body.curiosity_features(observations)

    def explain(self, percept: Percept) -> dict[str, np.ndarray]:
        """Return what a frozen memory has to say of what is seen."""
        return {} if self.language is None else self.language.explain(percept)

    @torch.no_grad()
    def inspect(self, percept: Percept, memory: Memory) -> dict[str, np.ndarray]:
        """Return where the memory looks, and what a frozen one says besides."""
        if self.language is not None:
            return self.language.inspect(percept, memory)
        body = cast(TrainedBody, self.body)
        return body.memory.looks(body.embedder.step(percept), memory, percept.starts)

    def metrics(self) -> dict[str, float]:
        """Return what a frozen memory has to log."""
        return {} if self.language is None else self.language.metrics()

    def fingerprints(self) -> dict[str, str]:
        """Return the sha256 of every pretrained part."""
        return self.body.fingerprints()


class QAgent(NetworkAgent, ValueAgent):
    """Takes the action of the highest value: what DQN trains."""

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
        values = self.body.unroll(sequences).map(self.head).each()
        return values.unflatten(0, sequences.starts.shape)


class SacAgent(NetworkAgent, SoftAgent):
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


def embedders(
    config: Any, reader: ObservationReader, n_actions: int
) -> Callable[[], InputEmbedder]:
    """Return what makes embedders, which share what is frozen.

    Args:
        config: At least `OffPolicyNetworkSettings`, and `SentenceSettings` where there is text.
        reader: Of what they see.
        n_actions: A.
    """
    frozen = None
    if reader.n_texts:
        encoder = load_sentence_encoder(config.sentence_encoder)
        frozen = SentenceFeatures(reader.sentences, encoder)
    return lambda: InputEmbedder(reader, n_actions, config, frozen)


def build_q_agent(
    config: Any, reader: ObservationReader, n_actions: int, body_of: Callable[[], Body]
) -> QAgent:
    """Return an agent for DQN.

    Args:
        config: At least `OffPolicyNetworkSettings`.
        reader: Of the observation space.
        n_actions: A.
        body_of: Makes a body.
    """
    body = body_of()
    hidden = (config.head_width, config.head_width)
    return QAgent(reader, body, Perceptron(body.width, hidden, n_actions, LAST_LAYER_OF_Q))


def build_sac_agent(
    config: Any, reader: ObservationReader, n_actions: int, body_of: Callable[[], Body]
) -> SacAgent:
    """Return an agent for SAC; arguments as of `build_q_agent`, and `shared_encoder`."""
    hidden = (config.head_width, config.head_width)
    body = body_of()
    critic_body = None if config.shared_encoder else body_of()
    critics = TwinQ(*(Perceptron(body.width, hidden, n_actions, LAST_LAYER_OF_Q) for _ in range(2)))
    policy = Perceptron(body.width, hidden, n_actions, LAST_LAYER_OF_POLICY)
    return SacAgent(reader, body, policy, critics, critic_body)


def _inputs(sequences: Sequences, embedder: InputEmbedder) -> Tensor:
    """Return the last actions as an embedder is told them.  [(T+1)*B]"""
    return sequences.last_actions.masked_fill(sequences.starts, embedder.n_actions).flatten()


def _around_zero(limit: float) -> tuple[float, float]:
    return -limit, limit


def _initialise_lstm(name: str, parameter: nn.Parameter) -> None:
    """Make a weight matrix orthogonal as a whole, all gates together, and biases zero."""
    if "weight" in name:
        nn.init.orthogonal_(parameter)
    else:
        nn.init.zeros_(parameter)
