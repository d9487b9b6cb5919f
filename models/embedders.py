"""What a learner from replay reads at each step: the observation and the action before it.

The networks of Ni et al. 2023 (arXiv:2307.03864): each input has a small embedder of its own, the
embeddings stand side by side, the action's first.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.encoders import SmallImpalaCNN
from models.image_hash import first_rows
from models.images import DistinctImages, Features, unit_images
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

    def of_distinct(self, images: DistinctImages) -> Tensor:
        """Return the features of images that all differ.  [U, n_features]"""
        return self.of_pixels(unit_images(images.images))


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
        shown: Observations = percept.observations
        images = None
        if self.images is not None:
            images = self.images.of_pixels(unit_images(cast(Tensor, shown.images)))
        actions = percept.last_actions.masked_fill(percept.starts, self.n_actions)
        return self._joined(actions, images, shown)

    def fingerprints(self) -> dict[str, str]:
        """Return the sha256 of what reads sentences."""
        return {} if self._frozen is None else self._frozen.fingerprints()

    def forward(self, observations: ObservationBatch, last_actions: Tensor) -> Features:
        """Return the embeddings of B' steps, equal ones once.

        Args:
            observations: B' of them.
            last_actions: What was done before each; A, the number of actions, where an episode
                begins.  [B'] int64
        """
        equal = observations.equals()
        if equal is None:
            return Features(self._embedded(observations, last_actions))
        inputs = equal[1]
        if self.actions is not None:
            inputs = inputs * (self.n_actions + 1) + last_actions
        firsts, row_of = first_rows(inputs)
        return Features(self._embedded(observations.select(firsts), last_actions[firsts]), row_of)

    def by_kind(self, observations: ObservationBatch) -> dict[str, Features]:
        """Return the embeddings of B observations, each kind's on its own."""
        kinds = {}
        if self.images is not None:
            assert observations.images is not None, "the embedder was chosen for images"
            kinds["images"] = observations.images.each(self.images.of_distinct)
        if self.vectors is not None:
            kinds["vectors"] = Features(F.relu(self.vectors(observations.vectors)))
        if self.text is not None and self._frozen is not None:
            sentences = self._frozen(cast(Tensor, observations.text)).flatten(1)
            kinds["text"] = Features(F.relu(self.text(sentences)))
        return kinds

    def _embedded(self, observations: ObservationBatch, last_actions: Tensor) -> Tensor:
        images = None
        if self.images is not None:
            assert observations.images is not None, "the embedder was chosen for images"
            images = observations.images.each(self.images.of_distinct).each()
        return self._joined(last_actions, images, observations)

    def _joined(
        self,
        last_actions: Tensor,
        images: Tensor | None,
        shown: Observations | ObservationBatch,
    ) -> Tensor:
        parts = [last_actions.new_zeros(len(last_actions), 0, dtype=torch.float32)]
        if self.actions is not None:
            nothing = self.actions.weight.new_zeros(1, self.actions.out_features)
            table = torch.cat((self.actions.weight.T, nothing)) + self.actions.bias  # [A+1, E]
            parts.append(F.embedding(last_actions, F.relu(table)))
        if images is not None:
            parts.append(images)
        if self.vectors is not None:
            parts.append(F.relu(self.vectors(shown.vectors)))
        if self.text is not None and self._frozen is not None:
            sentences = self._frozen(cast(Tensor, shown.text)).flatten(1)
            parts.append(F.relu(self.text(sentences)))
        return torch.cat(parts, dim=-1)
