"""What a learner from replay reads at each step: the observation and the action before it.

The networks of Ni et al. 2023 (arXiv:2307.03864): each input has a small embedder of its own, the
embeddings stand side by side, the action's first.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.encoders import SmallImpalaCNN
from models.images import encoded_once, unit_images
from models.observations import ObservationBatch, ObservationReader, Observations, Percept
from models.off_policy_agent import OffPolicyNetworkSettings
from models.sentence_encoder import SentenceFeatures

TILES = range(3, 13)  # pixels of the shorter side where each shows a tile of a grid world
CHANNELS = (16, 32)  # of the encoder of larger images


class TileEmbedder(nn.Module):
    """Two convolutions of 2 x 2 windows, 8 and 16 channels, and a linear layer without activation.

    Args:
        image_shape: (C, H, W).
        n_features: Width of the output.
    """

    def __init__(self, image_shape: tuple[int, ...], n_features: int) -> None:
        super().__init__()
        n_colours, height, width = image_shape
        self.convolutions = nn.Sequential(
            nn.Conv2d(n_colours, 8, 2), nn.ReLU(), nn.Conv2d(8, 16, 2), nn.ReLU(), nn.Flatten()
        )
        self.linear = nn.Linear(16 * (height - 2) * (width - 2), n_features)

    def of_pixels(self, images: Tensor) -> Tensor:
        """Map images in [0, 1], [B, C, H, W], to features [B, n_features]."""
        return self.linear(self.convolutions(images))

    def learn(self, observations: ObservationBatch) -> Tensor:
        """Return the features of a batch, with gradients.  [B, n_features]"""
        return encoded_once(observations, self.of_pixels)


class InputEmbedder(nn.Module):
    """Last action and observation side by side, each embedded.

    Linear layers followed by a ReLU for vectors, texts and actions; convolutions for images. Where
    an episode begins the action is a vector of zeros, of which the bias is left.

    Args:
        reader: Of the observation space.
        n_actions: A.
        settings: Widths.
        frozen: Sentences to vectors, not trained; None where no text is seen.

    Attributes:
        width: F, of both together.
    """

    def __init__(
        self,
        reader: ObservationReader,
        n_actions: int,
        settings: OffPolicyNetworkSettings,
        frozen: SentenceFeatures | None = None,
    ) -> None:
        super().__init__()
        width, shape = settings.observation_embedding, reader.image_shape
        self.n_actions = n_actions
        self.images: TileEmbedder | SmallImpalaCNN | None = None
        if shape is not None and min(shape[1:]) in TILES:
            self.images = TileEmbedder(shape, width)
        elif shape is not None:
            self.images = SmallImpalaCNN(shape, width, CHANNELS)
        self.vectors = nn.Linear(reader.n_numbers, width) if reader.n_numbers else None
        self._frozen, self.text = frozen, None
        if frozen is not None:
            self.text = nn.Linear(reader.n_texts * frozen.width, width)
        n_embedded = settings.action_embedding
        self.actions = nn.Linear(n_actions, n_embedded) if n_embedded else None
        kinds = [kind for kind in (self.images, self.vectors, self.text) if kind is not None]
        self.width = width * len(kinds) + n_embedded

    def step(self, percept: Percept) -> Tensor:
        """Return the embeddings of one step of N environments.  [N, F]"""
        shown, images = percept.observations, None
        if self.images is not None:
            images = self.images.of_pixels(unit_images(cast(Tensor, shown.images)))
        actions = percept.last_actions.masked_fill(percept.starts, self.n_actions)
        return self._joined(actions, self._kinds(images, shown))

    def fingerprints(self) -> dict[str, str]:
        """Return the sha256 of what reads sentences."""
        return {} if self._frozen is None else self._frozen.fingerprints()

    def forward(self, observations: ObservationBatch, last_actions: Tensor) -> Tensor:
        """Return the embeddings of B' steps.  [B', F]

        Args:
            observations: B' of them.
            last_actions: What was done before each; A, the number of actions, where an episode
                begins.  [B'] int64
        """
        return self._joined(last_actions, self.by_kind(observations))

    def by_kind(self, observations: ObservationBatch) -> dict[str, Tensor]:
        """Return the embeddings of B observations, each kind's on its own."""
        images = None if self.images is None else self.images.learn(observations)
        return self._kinds(images, observations)

    def _kinds(
        self, images: Tensor | None, shown: Observations | ObservationBatch
    ) -> dict[str, Tensor]:
        """Return the embeddings of what is shown, given those of the images."""
        kinds = {} if images is None else {"images": images}
        if self.vectors is not None:
            kinds["vectors"] = F.relu(self.vectors(shown.vectors))
        if self.text is not None and self._frozen is not None:
            sentences = self._frozen(cast(Tensor, shown.text)).flatten(1)
            kinds["text"] = F.relu(self.text(sentences))
        return kinds

    def _joined(self, last_actions: Tensor, kinds: dict[str, Tensor]) -> Tensor:
        """Return the embeddings of last actions, if they are told, and of what is shown."""
        parts = [last_actions.new_zeros(len(last_actions), 0, dtype=torch.float32)]
        if self.actions is not None:
            nothing = self.actions.weight.new_zeros(1, self.actions.out_features)
            table = torch.cat((self.actions.weight.T, nothing)) + self.actions.bias  # [A+1, E]
            parts.append(F.embedding(last_actions, F.relu(table)))
        return torch.cat([*parts, *kinds.values()], dim=-1)
