"""What HELM is compared with: an encoder, a memory that is trained along or none, and chance."""

from typing import Any, ClassVar, cast

import numpy as np
import torch
from gymnasium.spaces import Discrete, Space
from torch import Tensor, nn
from torch.nn import functional as F

from models.agent import ActorCriticAgent, Agent, Batch, Evaluation, Memory, Step, TensorMemory
from models.encoders import Encoder, EncoderSettings, build_encoder
from models.heads import ActorCritic
from models.memories import Gpt, GptSettings, Lstm, NetworkSettings, NoMemory, TrainedMemory
from models.observations import ObservationBatch, ObservationReader, Observations, Percept

SMALL = (16, 32)  # channels of the encoder before a memory
ALONE, ALONE_WITHOUT_IMAGES = 1024, 128  # features where nothing is remembered


class TrainedMemoryAgent(ActorCriticAgent):
    """Encoder → memory → heads, all trained.

    Where the memory keeps nothing the heads see the present alone, and it learns from single steps;
    else from whole sequences, each unrolled from what was stored with its first step.

    Args:
        reader: Of the observation space.
        encoder: Observations to features.
        memory: Features to what is remembered.
        n_actions: A.
    """

    def __init__(
        self, reader: ObservationReader, encoder: Encoder, memory: TrainedMemory, n_actions: int
    ) -> None:
        super().__init__()
        self.reader, self.encoder, self.memory = reader, encoder, memory
        self.sequential, self.n_context = memory.remembers, memory.n_context
        self.heads = ActorCritic(memory.width, n_actions)

    def initial_memory(self, n_envs: int) -> Memory:
        """Return the state of a memory that has seen nothing."""
        return self.memory.initial(n_envs)

    @torch.no_grad()
    def act(
        self, percept: Percept, memory: Memory, deterministic: bool = False, advance: bool = True
    ) -> Step:
        """Advance the memory by what is seen and choose actions from what is remembered."""
        context = self.memory.context(memory, percept.starts)
        features = self.encoder(percept.observations)
        remembered = self.memory.step(features, memory, percept.starts, advance)
        step = self.heads.step(remembered, context, deterministic)
        return step._replace(remembered=remembered)

    def curiosity_features(self, observations: ObservationBatch) -> dict[str, Tensor] | None:
        """Return what the encoder makes of observations."""
        return self.encoder.by_kind(observations)

    @torch.no_grad()
    def inspect(self, percept: Percept, memory: Memory) -> dict[str, np.ndarray]:
        """Return where the memory looks."""
        return self.memory.looks(self.encoder(percept.observations), memory, percept.starts)

    def evaluate(self, batch: Batch) -> Evaluation:
        """Run encoder, memory and heads on a batch."""
        features = self.encoder.learn(batch.observations)
        if self.sequential:
            features = self._unrolled(features, batch)
        return self.heads.evaluate(features, batch.actions)

    @torch.no_grad()
    def refresh(self, past: Observations, starts: Tensor, context: Tensor, memory: Memory) -> None:
        """Let the memory read past steps again."""
        flat = past.map(lambda kind: kind.flatten(0, 1))
        features = self.encoder(flat).unflatten(0, starts.shape)  # [P, N, F]
        self.memory.refresh(features, starts, context[0], memory)

    def fingerprints(self) -> dict[str, str]:
        """Return the sha256 of what the encoder has pretrained."""
        return self.encoder.fingerprints()

    def _unrolled(self, features: Tensor, batch: Batch) -> Tensor:
        """Return what is remembered at each step of the sequences.  [B', F] -> [B, D]"""
        if batch.lengths is None or batch.before is None:
            raise ValueError("a memory learns from whole sequences, the batch has single steps")
        lengths = batch.before + batch.lengths  # [S], summing to B'
        device, n_sequences = features.device, len(lengths)
        firsts = lengths.cumsum(0) - lengths
        sequence_of = torch.arange(n_sequences).repeat_interleave(lengths)
        step_of = torch.arange(len(sequence_of)) - firsts[sequence_of]
        place_of = (step_of * n_sequences + sequence_of).to(device)  # [B'], among T*S
        # Whatever stands after a sequence's end is read by the memory and by nothing else: quicker
        # than packed sequences, whose steps differ in size.
        shown = place_of.new_zeros(int(lengths.max()), n_sequences)
        shown.view(-1)[place_of] = torch.arange(len(place_of), device=device)
        no_starts = torch.zeros(shown.shape, dtype=torch.bool)  # sequences are cut at those
        context = batch.context[firsts.to(device)]
        output = self.memory.unroll(F.embedding(shown, features), no_starts, context)  # [T, S, D]
        own = (step_of >= batch.before[sequence_of]).to(device)
        return F.embedding(place_of[own], output.flatten(0, 1))


class CnnAgent(TrainedMemoryAgent):
    """No memory: CNN-PPO."""

    reads = (EncoderSettings,)
    memory_class = NoMemory

    def __init__(
        self,
        config: EncoderSettings,
        observation_space: Space,
        action_space: Discrete,
        n_features: int | None = None,
    ) -> None:
        reader = ObservationReader(observation_space)
        if n_features is None:
            n_features = ALONE if reader.image_shape else ALONE_WITHOUT_IMAGES
        encoder = build_encoder(
            reader,
            n_features,
            cache_mb=config.observation_cache_mb,
            sentence_encoder=config.sentence_encoder,
        )
        super().__init__(reader, encoder, NoMemory(n_features), int(action_space.n))


class MemoryAgent(TrainedMemoryAgent):
    """A smaller encoder followed by a memory of the same width.

    Attributes:
        memory_class: The memory; its settings are a subclass of `NetworkSettings`.
    """

    memory_class: ClassVar[type[TrainedMemory]]
    sequential = True

    def __init__(self, config: Any, observation_space: Space, action_space: Discrete) -> None:
        reader = ObservationReader(observation_space)
        width = config.memory_width
        encoder = build_encoder(
            reader, width, SMALL, config.observation_cache_mb, config.sentence_encoder
        )
        memory = self.memory_class(width, config)
        super().__init__(reader, encoder, memory, int(action_space.n))


class LstmAgent(MemoryAgent):
    """An LSTM: Impala-PPO."""

    memory_class = Lstm
    reads = (EncoderSettings, NetworkSettings)


class GptAgent(MemoryAgent):
    """A GPT that sees the last `mem_len` steps of its episode."""

    memory_class = Gpt
    reads = (EncoderSettings, GptSettings)


class RandomAgent(Agent):
    """Every action with the same probability: the chance level of `eval.py --random`."""

    def __init__(self, observation_space: Space, action_space: Space) -> None:
        super().__init__()
        self.reader = ObservationReader(observation_space)
        n_actions = int(cast(Discrete, action_space).n)
        self.logits = nn.Parameter(torch.zeros(n_actions), requires_grad=False)

    def initial_memory(self, n_envs: int) -> TensorMemory:
        """Return a memory of width 0."""
        return TensorMemory(torch.zeros(n_envs, 0, device=self.device))

    def act(
        self, percept: Percept, memory: Memory, deterministic: bool = False, advance: bool = True
    ) -> Step:
        """Draw uniform actions; there is no most probable one to prefer."""
        log_probs = self.logits.log_softmax(-1)
        actions = torch.multinomial(log_probs.exp(), percept.n_envs, replacement=True)
        zeros = torch.zeros(percept.n_envs, device=self.device)
        return Step(
            actions,
            context=zeros[:, None][:, :0],
            log_probs=log_probs[actions],
            values=zeros,
            all_log_probs=log_probs.expand(percept.n_envs, -1),
        )
