"""The baselines of HELM: an encoder with a trained memory or none."""

import math
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium.spaces import Space, flatdim
from torch import Tensor, nn
from torch.nn import functional as F

from models import memories
from models.agent import (
    ActorCriticAgent,
    Agent,
    Batch,
    Evaluation,
    Followed,
    Memory,
    Recalled,
    Step,
    TensorMemory,
    allowed,
    sample_actions,
)
from models.encoders import (
    LARGE,
    SMALL,
    build_encoder,
    configured_reader,
)
from models.heads import build_heads
from models.observations import AgentInput, ObservationBatch, ObservationPreprocessor, Observations
from models.settings import EncoderSettings
from utils.settings import Part

MOST_GROUPS = 4  # of sequences of like length
STEP_COST = 16  # of another step of any sequences, as many rows
# Features of an agent without a memory.
N_FEATURES_NO_MEMORY, N_FEATURES_NO_MEMORY_NO_IMAGES = 1024, 128


class MemoryAgent(ActorCriticAgent):
    """Encoder → memory → heads, all trained.

    Without a memory the heads see the present alone and learn from single steps; else they learn
    from whole sequences, each unrolled from the state stored with its first step.

    Attributes:
        memory_class: The memory, built from (width of the features, config).
        channels: Of the encoder's two convolutions.
    """

    reads: ClassVar[tuple[type[Part], ...]] = (EncoderSettings, memories.NetworkSettings)
    memory_class: ClassVar[type[memories.TrainedMemory]]
    channels = SMALL
    sequential = True

    def __init__(self, config: Any, observation_space: Space, action_space: Space) -> None:
        super().__init__()
        self.reader = configured_reader(config, observation_space, action_space)
        width = self.encoder_width(config)
        self.encoder = build_encoder(self.reader, config, width, self.channels)
        self.memory = self.memory_class(self.encoder.n_features, config)
        self.n_context = self.memory.n_context
        self.heads = build_heads(self.memory.width, action_space, config)

    def encoder_width(self, config: Any) -> int:
        return config.memory_width

    def initial_memory(self, n_envs: int) -> Memory:
        return self.memory.initial(n_envs)

    @torch.no_grad()
    def act(
        self, percept: AgentInput, memory: Memory, deterministic: bool = False, advance: bool = True
    ) -> Step:
        stored_state = self.memory.stored_state(memory, percept.is_first)
        features = self.encoder(percept.observations)
        # Its state before this step is read above: the step replaces it.
        remembered = self.memory.step(features, memory, percept.is_first, advance)
        masks = percept.observations.action_masks
        step = self.heads.step(remembered, stored_state, deterministic, masks)
        return step._replace(remembered=remembered)

    def curiosity_features(self, observations: ObservationBatch) -> dict[str, Tensor] | None:
        return self.encoder.by_kind(observations)

    @torch.no_grad()
    def inspect(self, percept: AgentInput, memory: Memory, step: Step) -> dict[str, np.ndarray]:
        return self.memory.looks(self.encoder(percept.observations), memory, percept.is_first)

    def episode_values(self, episode: AgentInput, actions: Tensor) -> Followed:
        features = self.encoder(episode.observations)[:, None].requires_grad_()
        return self.heads.values(self.memory.read_episode(features)), (features,)

    def evaluate(self, batch: Batch) -> Evaluation:
        features = self.encoder.learn(batch.observations)
        if self.sequential:
            features = self._unrolled(features, batch)
        return self.heads.evaluate(features, batch.actions, batch.action_masks)

    @torch.no_grad()
    def refresh(
        self, past: Observations, is_first: Tensor, stored_state: Tensor, memory: Memory
    ) -> None:
        flat = past.map(lambda kind: kind.flatten(0, 1))
        features = self.encoder(flat).unflatten(0, is_first.shape)  # [P, N, F]
        # Only the first step's: the others follow from it, with the weights of now.
        self.memory.refresh(features, is_first, stored_state[0], memory)

    def fingerprints(self) -> dict[str, str]:
        return self.encoder.fingerprints()

    def _unrolled(self, features: Tensor, batch: Batch) -> Tensor:
        """Return the memory's output at each step of the sequences.  [B', F] -> [B, D]"""
        if batch.lengths is None or batch.context_len is None:
            raise ValueError("a memory learns from whole sequences, the batch has single steps")
        lengths = batch.context_len + batch.lengths  # [S], summing to B'
        device, firsts = features.device, lengths.cumsum(0) - lengths
        sequence_of = torch.arange(len(lengths)).repeat_interleave(lengths)  # [B']
        step_of = torch.arange(len(sequence_of)) - firsts[sequence_of]
        # Steps that are only read again are not learned from.
        is_own = step_of >= batch.context_len[sequence_of]
        group_of = groups_of_like_length(lengths) if device.type == "cpu" else lengths * 0
        outputs, rows = [], []
        for group in group_of.unique():
            chosen = group_of == group
            n_sequences = int(chosen.sum())
            row = chosen[sequence_of].nonzero().squeeze(-1)  # [R], among B'
            number_of = (chosen.cumsum(0) - 1)[sequence_of[row]]
            place_of = step_of[row] * n_sequences + number_of  # among T*S
            # Rows behind a sequence's end are read by the memory and dropped: quicker than packed
            # sequences, whose steps differ in size.
            shown = row.new_zeros(int(lengths[chosen].max()), n_sequences)
            shown.view(-1)[place_of] = row
            no_starts = torch.zeros(shown.shape, dtype=torch.bool)  # sequences are cut at those
            own = is_own[row]
            outputs.append(
                self.memory.unroll_at(
                    F.embedding(shown.to(device), features),  # [T, S, F]
                    no_starts,
                    batch.stored_state[chosen.to(device)],
                    place_of[own],
                )
            )
            rows.append(row[own])
        if len(outputs) == 1:
            return outputs[0]
        return F.embedding(torch.cat(rows).argsort().to(device), torch.cat(outputs))


def groups_of_like_length(lengths: Tensor) -> Tensor:
    """Return the group of each sequence; those of a group are read together.  [S] int64"""
    # Padding costs as much as steps do: a short sequence beside a long one is mostly padding.
    halvings = torch.log2(lengths.max() / lengths).long()  # 0: longer than half the longest
    best, least = lengths * 0, math.inf
    for most in range(MOST_GROUPS):
        group_of = halvings.clamp(max=most)
        cost = sum(
            int(lengths[group_of == group].max()) * (int((group_of == group).sum()) + STEP_COST)
            for group in group_of.unique()
        )
        if cost < least:
            best, least = group_of, cost
    return best


class CnnAgent(MemoryAgent):
    """No memory: CNN-PPO."""

    reads = (EncoderSettings,)
    memory_class = memories.NoMemory
    channels = LARGE
    sequential = False
    recordable = True

    def encoder_width(self, config: Any) -> int:
        return N_FEATURES_NO_MEMORY if self.reader.image_shape else N_FEATURES_NO_MEMORY_NO_IMAGES

    def act(
        self, percept: AgentInput, memory: Memory, deterministic: bool = False, advance: bool = True
    ) -> Step:
        stored_state, _ = self.recall(percept, memory, advance)
        return self.choose(stored_state, percept.observations, deterministic)

    def recall(self, percept: AgentInput, memory: Memory, advance: bool = True) -> Recalled:
        return self.memory.stored_state(memory, percept.is_first), None

    @torch.no_grad()
    def choose(
        self, stored_state: Tensor, observations: Observations, deterministic: bool = False
    ) -> Step:
        features = self.encoder(observations)
        step = self.heads.step(features, stored_state, deterministic, observations.action_masks)
        return step._replace(remembered=features)


class LstmAgent(MemoryAgent):
    """An LSTM: Impala-PPO."""

    memory_class = memories.Lstm


class GruAgent(MemoryAgent):
    memory_class = memories.Gru


class MinGruAgent(MemoryAgent):
    memory_class = memories.MinGru


class LruAgent(MemoryAgent):
    memory_class = memories.Lru


class FfmAgent(MemoryAgent):
    memory_class = memories.Ffm
    reads = (EncoderSettings, memories.FfmSettings)


class MLstmAgent(MemoryAgent):
    memory_class: ClassVar[type[memories.Scan]] = memories.MLstm
    reads = (EncoderSettings, memories.ConvolutionSettings)


class GatedDeltaNetAgent(MLstmAgent):
    memory_class = memories.GatedDeltaNet


class Mamba2Agent(MLstmAgent):
    memory_class = memories.Mamba2


class GptAgent(MemoryAgent):
    """A GPT that sees the last `mem_len` steps of its episode."""

    memory_class = memories.Gpt
    reads = (EncoderSettings, memories.GptSettings)


class GTrXLAgent(GptAgent):
    memory_class = memories.GTrXL


class RandomAgent(Agent):
    """Every action with the same probability: the chance level of `eval.py --random`."""

    def __init__(self, observation_space: Space, action_space: Space) -> None:
        super().__init__()
        self.reader = ObservationPreprocessor(observation_space, 0, action_space.shape)
        self.logits = nn.Parameter(torch.zeros(flatdim(action_space)), requires_grad=False)

    def initial_memory(self, n_envs: int) -> TensorMemory:
        return TensorMemory(torch.zeros(n_envs, 0, device=self.device))

    def act(
        self, percept: AgentInput, memory: Memory, deterministic: bool = False, advance: bool = True
    ) -> Step:
        n_envs, masks = percept.n_envs, percept.observations.action_masks
        zeros = torch.zeros(n_envs, device=self.device)
        if self.reader.action_shape:
            drawn = torch.empty_like(percept.last_actions).uniform_(-1, 1)
            return Step(drawn, zeros[:, None][:, :0], values=zeros)
        all_log_probs = allowed(self.logits.expand(n_envs, -1), masks).log_softmax(-1)
        if masks is None:
            # Without a mask all rows are alike: one distribution, drawn from N times.
            actions = torch.multinomial(all_log_probs[0].exp(), n_envs, replacement=True)
        else:
            actions = sample_actions(all_log_probs.exp())
        return Step(
            actions,
            stored_state=zeros[:, None][:, :0],
            log_probs=all_log_probs.gather(-1, actions[:, None]).squeeze(-1),
            values=zeros,
            all_log_probs=all_log_probs,
        )
