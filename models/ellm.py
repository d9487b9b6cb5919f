"""ELLM: the agent of "Guiding pretraining in RL with large language models" (arXiv:2302.06692).

Convolutions read the last frames, a frozen sentence encoder the texts; one layer joins both under
two dueling streams. The frames are its memory.
"""

from typing import cast

import torch
from gymnasium.spaces import Discrete, Space
from torch import Tensor, nn
from torch.nn import functional as F

from models.agent import Agent, Memory, Step, TensorMemory
from models.caching import to_float01
from models.encoders import ImageEncoder, build_image_encoder, initialise_orthogonal, mlp
from models.language.layers import Linear
from models.language.load import (
    SentenceFeatures,
    SentenceSums,
    load_sentence_encoder,
    with_orthogonal_layers,
)
from models.observations import AgentInput, ObservationBatch, ObservationPreprocessor, Observations
from models.settings import EllmSettings
from utils.errors import UserError


class TextBranch(nn.Module):
    """All sentences of an observation as one: mean-pooled, L2-normalised, then a linear layer.

    The published agent encodes caption and goal one behind the other. Here each sentence is read on
    its own, and so once in a run; the tokens of all are pooled. The sums of token vectors [D] that
    `frozen` gives suffice: the number of tokens cancels when the length becomes 1.
    """

    def __init__(self, frozen: SentenceFeatures, width: int) -> None:
        super().__init__()
        self.frozen = frozen
        self.linear = Linear(frozen.width, width)

    def forward(self, text: Tensor) -> Tensor:
        """Map sentences by their numbers [B, K] to features [B, width]."""
        return self.linear(F.normalize(self.frozen(text).sum(1), dim=-1))


class DuelingQ(nn.Module):
    """Two streams of three layers (Wang et al. 2016, arXiv:1511.06581, eq. 9).

        Q(s, a) = V(s) + A(s, a) - mean_a' A(s, a')

    All layers but the last are `n_features` wide. Weights are orthogonal, biases 0.
    """

    def __init__(self, n_features: int, n_actions: int) -> None:
        super().__init__()
        hidden = (n_features,) * 3
        self.value = initialise_orthogonal(mlp(*hidden, 1))
        self.advantage = initialise_orthogonal(mlp(*hidden, n_actions))

    def forward(self, features: Tensor) -> Tensor:
        """Map features [B, n_features] to the values of all actions [B, A]."""
        advantage = self.advantage(features)
        # Without the mean, value and advantage could trade any number between them.
        return self.value(features) + (advantage - advantage.mean(-1, keepdim=True))

    def last_layers(self) -> list[nn.Parameter]:
        return [p for stream in (self.value, self.advantage) for p in stream[-1].parameters()]


class Ellm(Agent):
    """A branch for each kind of observation, joined by a layer with a ReLU; dueling values.

    It sees the last S frames; where an episode begins the first fills all. `frozen` replaces the
    configured sentence encoder.
    """

    reads = (EllmSettings,)
    algorithms = ("EllmDQN",)
    draws_actions = False

    def __init__(
        self,
        config: EllmSettings,
        observation_space: Space,
        action_space: Discrete,
        frozen: SentenceFeatures | None = None,
    ) -> None:
        super().__init__()
        normalizes, self.n_actions = config.normalize_observations, int(action_space.n)
        self.reader = ObservationPreprocessor(observation_space, normalizes=normalizes)
        if self.reader.has_mask:
            raise UserError(
                "model: ELLM does not support action masks, and the environment has one. Choose CNN"
            )
        self.frame_stack, width = config.frame_stack, config.hidden_dim
        shape = self.reader.image_shape
        self.image: ImageEncoder | None = None
        self.text: TextBranch | None = None
        self.numbers: nn.Linear | None = None
        if shape is not None:
            stacks = config.frame_stack * shape[0], *shape[1:]
            self.image = build_image_encoder("ELLM", stacks, width)
        if self.reader.n_texts:
            if frozen is None:
                encoder = load_sentence_encoder(config.sentence_encoder)
                if config.text_encoder_init == "orthogonal":
                    encoder = with_orthogonal_layers(encoder)
                frozen = SentenceSums(self.reader.sentences, encoder)
            self.text = TextBranch(frozen, width)
        if self.reader.n_numbers:
            self.numbers = Linear(self.reader.n_numbers, width)
        n_branches = sum(1 for _ in self.children())
        self.trunk = Linear(n_branches * width, width)
        # Before the head, which begins by itself.
        initialise_orthogonal(self)
        self.normalizer = self.reader.normalizer or nn.Identity()
        self.head = DuelingQ(width, self.n_actions)

    def initial_memory(self, n_envs: int) -> TensorMemory:
        n_channels, *sides = self.reader.image_shape or (0,)
        shape = n_envs, self.frame_stack * n_channels, *sides
        return TensorMemory(torch.zeros(shape, dtype=torch.uint8, device=self.device))

    @torch.no_grad()
    def act(
        self, percept: AgentInput, memory: Memory, deterministic: bool = False, advance: bool = True
    ) -> Step:
        frames = cast(TensorMemory, memory)
        stacks = self._stacked(percept, frames)
        if advance:
            frames.state = stacks
        features = self._read(percept, stacks)
        judged = self.head(features)
        best = judged.max(-1)
        nothing = best.values[:, None][:, :0]
        return Step(best.indices, nothing, None, best.values, None, features, judged)

    def features(self, observations: Observations) -> Tensor:
        """Map B observations, their images of S frames, the oldest first, to features.  [B, H]"""
        parts = self._by_kind(observations).values()
        return F.relu(self.trunk(torch.cat(tuple(parts), dim=-1)))

    def curiosity_features(self, observations: ObservationBatch) -> dict[str, Tensor]:
        shown = observations.selected
        if shown.images is not None:
            n_channels = self.frame_stack * cast(tuple, self.reader.image_shape)[0]
            if shown.images.shape[1] < n_channels:  # of single frames
                shown = shown._replace(images=shown.images.repeat(1, self.frame_stack, 1, 1))
        return self._by_kind(shown)

    def trainable_parameters(self, finetune: str) -> list[nn.Parameter]:
        """Return the parameters of "all", of the "critic" (both streams) or its "linear" layers."""
        if finetune == "all":
            return list(self.parameters())
        return list(self.head.parameters()) if finetune == "critic" else self.head.last_layers()

    def fingerprints(self) -> dict[str, str]:
        return {} if self.text is None else self.text.frozen.fingerprints()

    def _by_kind(self, shown: Observations) -> dict[str, Tensor]:
        kinds = {}
        if self.image is not None:
            stacks = cast(Tensor, shown.images).contiguous(memory_format=torch.channels_last)
            kinds["images"] = self.image.of_pixels(to_float01(stacks))
        if self.text is not None:
            kinds["text"] = self.text(shown.text)
        if self.numbers is not None:
            kinds["vectors"] = self.numbers(self.normalizer(shown.vectors))
        return kinds

    def _read(self, percept: AgentInput, stacks: Tensor) -> Tensor:
        observations = percept.observations
        if self.image is not None:
            observations = observations._replace(images=stacks)
        return self.features(observations)

    def _stacked(self, percept: AgentInput, memory: TensorMemory) -> Tensor:
        """Return the memory's frames without the oldest, the present one added."""
        frame = percept.observations.images
        if frame is None:
            return memory.state
        n_channels = frame.shape[1]
        # Frames lie on channels, the oldest first.
        stacks = torch.cat((memory.state[:, n_channels:], frame), dim=1)
        first = frame.repeat(1, self.frame_stack, 1, 1)
        # Of all rows at once, so that no row has to be asked for.
        return torch.where(percept.is_first[:, None, None, None], first, stacks)
