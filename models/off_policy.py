"""Agents that learn from replay, with any memory: what DQN and SAC train.

The networks of Ni et al. 2023 (arXiv:2307.03864): embeddings → memory → perceptrons. A frozen
memory stands in the place of the trained one: its hidden state, stored with each step, is joined
with the embeddings, so that an update has nothing to unroll.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from models.agent import Memory, Sequences
from models.embedders import InputEmbedder
from models.heads import Perceptron, TwinQ
from models.language_memory import LanguageMemory
from models.memories import TrainedMemory
from models.observations import ObservationBatch, ObservationReader, Observations, Percept
from models.off_policy_agent import Body, QAgent, Running, SacAgent
from models.sentence_encoder import SentenceFeatures, load_sentence_encoder

LAST_LAYER_OF_Q, LAST_LAYER_OF_POLICY = 3e-3, 1e-3


class EmbeddingBody(Body):
    """A memory behind, or beside, the embeddings of the present."""

    def __init__(self, embedder: InputEmbedder) -> None:
        super().__init__()
        self.embedder = embedder

    def embedded(self, sequences: Sequences) -> Tensor:
        """Return the embeddings of sequences from replay.  [T+1, B, F]"""
        starts, n_actions = sequences.starts, self.embedder.n_actions
        last_actions = sequences.last_actions.masked_fill(starts, n_actions).flatten()
        return self.embedder(sequences.observations, last_actions).unflatten(0, starts.shape)

    def curiosity_features(self, observations: ObservationBatch) -> dict[str, Tensor]:
        """Return the embeddings of observations."""
        return self.embedder.by_kind(observations)

    def fingerprints(self) -> dict[str, str]:
        """Return the sha256 of what reads sentences."""
        return self.embedder.fingerprints()


class TrainedBody(EmbeddingBody):
    """Embeddings read by a memory that is trained along, or by none."""

    def __init__(self, embedder: InputEmbedder, memory: TrainedMemory) -> None:
        super().__init__(embedder)
        self.memory = memory
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

    def unroll(self, sequences: Sequences) -> Tensor:
        """Read sequences, each from a memory that has seen nothing."""
        shape = sequences.starts.shape
        nothing = self.memory.context(self.memory.initial(shape[1]), sequences.starts[0])
        no_starts = torch.zeros(shape, dtype=torch.bool)  # after the first, known to the host
        return self.memory.unroll(self.embedded(sequences), no_starts, nothing)

    @torch.no_grad()
    def refresh(self, past: Observations, running: Running, memory: Memory) -> None:
        """Let the memory read the last steps of running episodes again."""
        starts = running.starts
        flat = past.map(lambda kind: kind.flatten(0, 1))
        percept = Percept(flat, starts.flatten(), running.last_actions.flatten(), torch.empty(0))
        embedded = self.embedder.step(percept).unflatten(0, starts.shape)
        self.memory.refresh(embedded, starts, running.ages, memory)

    def inspect(self, percept: Percept, memory: Memory) -> dict[str, np.ndarray]:
        """Return where the memory looks."""
        return self.memory.looks(self.embedder.step(percept), memory, percept.starts)

    def memory_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the memory."""
        return list(self.memory.parameters())


class FrozenBody(EmbeddingBody):
    """The hidden state of a frozen language model beside the embeddings of the present."""

    def __init__(self, embedder: InputEmbedder, language: LanguageMemory) -> None:
        super().__init__(embedder)
        self.language = language
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

    def unroll(self, sequences: Sequences) -> Tensor:
        """Join what was kept with the embeddings of each step."""
        return torch.cat((sequences.context, self.embedded(sequences)), dim=-1)

    def explain(self, percept: Percept) -> dict[str, np.ndarray]:
        """Return what the language model's memory has to say of what is seen."""
        return self.language.explain(percept)

    def inspect(self, percept: Percept, memory: Memory) -> dict[str, np.ndarray]:
        """Return what takes it longer to say."""
        return self.language.inspect(percept, memory)

    def metrics(self) -> dict[str, float]:
        """Return what it has to log."""
        return self.language.metrics()

    def fingerprints(self) -> dict[str, str]:
        """Return the sha256 of the language model, of what leads to it and reads sentences."""
        return self.language.fingerprints() | super().fingerprints()


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


def _initialise_lstm(name: str, parameter: nn.Parameter) -> None:
    """Make a weight matrix orthogonal as a whole, all gates together, and biases zero."""
    if "weight" in name:
        nn.init.orthogonal_(parameter)
    else:
        nn.init.zeros_(parameter)
