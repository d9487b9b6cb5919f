"""Trained encoders: observations to features, chosen by the kinds of an observation."""

# While a rollout is collected the weights stay and images repeat, so the features of images are
# cached until it learns.

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, TypeVar, cast

import torch
from gymnasium.spaces import Space, flatdim
from torch import Tensor, nn
from torch.nn import functional as F

from models.caching import DistinctImages, ObservationCache, encoded_once, one_thread, to_float01
from models.language.layers import Linear
from models.language.load import SentenceFeatures, load_sentence_encoder
from models.observations import ObservationBatch, ObservationPreprocessor, Observations
from models.settings import EncoderSettings
from utils.errors import UserError

BLOCK_SIZE = 16  # images encoded at a time on a GPU
CACHE_BLOCK = 4  # few images are new to an encoder at one step,
LARGER_BLOCKS = (16, 64)  # or all of them
SMALL, LARGE = (16, 32), (64, 128)  # channels before a trained memory, and without one
AnyModule = TypeVar("AnyModule", bound=nn.Module)
Kernel = tuple[tuple[int, int], ...]  # and stride, of each convolution
Kernels = tuple[tuple[int, Kernel], ...]  # by the least pixels of an image's shorter side
KERNELS: Kernels = ((20, ((8, 4), (4, 2))), (6, ((4, 2), (2, 1))), (5, ((3, 1), (2, 1))))
TILES = range(3, 13)  # pixels of the shorter side where each shows a tile of a grid world
ELLM_CHANNELS = (32, 64, 64)
# The first as published (Mnih et al. 2015), the others for smaller images.
ELLM_KERNELS: Kernels = (
    (36, ((8, 4), (4, 2), (3, 1))),
    (12, ((4, 2), (3, 1), (3, 1))),
    (5, ((3, 1), (2, 1), (2, 1))),
)


class Encoder(nn.Module, ABC):
    """Observations to F features; `kind` is the encoded kind of `Observations`."""

    kind: ClassVar[str]
    n_features: int

    @torch.no_grad()
    def forward(self, observations: Observations) -> Tensor:
        """Return the features of N environments' observations, without gradients.  [N, F]"""
        return self.learn(ObservationBatch(observations))

    @abstractmethod
    def learn(self, observations: ObservationBatch) -> Tensor:
        """Return the features of a batch, with gradients; the weights are about to change.  [B, F]

        Equal inputs may be computed once.
        """

    def by_kind(self, observations: ObservationBatch) -> dict[str, Tensor]:
        return {self.kind: self.learn(observations)}

    def fingerprints(self) -> dict[str, str]:
        return {}


def build_encoder(
    reader: ObservationPreprocessor,
    config: EncoderSettings,
    n_features: int,
    channels: tuple[int, int] = LARGE,
) -> Encoder:
    """Return the encoder of all kinds that a reader reads, as wide as given but for `last_step`."""
    kinds: dict[str, Encoder] = {}
    if reader.image_shape is not None:
        cache_mb = config.observation_cache_mb
        kinds["images"] = build_image_encoder(
            "HELM", reader.image_shape, n_features, channels, cache_mb
        )
    if reader.n_numbers:
        kinds["vectors"] = VectorEncoder(reader.n_numbers, n_features, reader.normalizer)
    if reader.n_texts:
        frozen = SentenceFeatures(reader.sentences, load_sentence_encoder(config.sentence_encoder))
        kinds["text"] = TextEncoder(frozen, reader.n_texts, n_features)
    encoder: Encoder = NoEncoder()
    if kinds:
        encoder = JointEncoder(kinds, n_features) if len(kinds) > 1 else next(iter(kinds.values()))
    return BesideLastStep(encoder, reader.n_last - 1, config) if reader.n_last else encoder


def configured_reader(
    config: EncoderSettings, observation_space: Space, action_space: Space
) -> ObservationPreprocessor:
    is_told = config.last_action_input or config.last_reward_input
    n_last = flatdim(action_space) + 1 if is_told else 0
    return ObservationPreprocessor(
        observation_space, n_last, action_space.shape, config.normalize_observations
    )


class ImageEncoder(Encoder):
    kind = "images"

    @abstractmethod
    def of_pixels(self, images: Tensor) -> Tensor:
        """Map images in [0, 1], [B, C, H, W], to features [B, F]."""

    def learn(self, observations: ObservationBatch) -> Tensor:
        return encoded_once(observations, self.of_pixels)


def build_image_encoder(
    published: str,
    image_shape: tuple[int, ...],
    n_features: int,
    channels: tuple[int, int] = SMALL,
    cache_mb: float = 0,
) -> ImageEncoder:
    """Return the encoder of images that is published with "HELM", "Memory-RL" or "ELLM"."""
    # Those of all agents and of curiosity come from here: another one that a setting chooses is
    # added here, and each caller hands the setting on. A row of tests/runs.py tells an agent that
    # does not; curiosity (`Perceptron`) has an encoder beside its agent's, where no row tells.
    if published == "ELLM":
        return FrameBranch(image_shape, n_features)
    if published == "Memory-RL" and min(image_shape[1:]) in TILES:
        return TileEmbedder(image_shape, n_features)
    return SmallImpalaCNN(image_shape, n_features, channels, cache_mb)


class TileEmbedder(ImageEncoder):
    """Two convolutions of 2 x 2 windows, 8 and 16 channels, and a linear layer, for (C, H, W)."""

    def __init__(self, image_shape: tuple[int, ...], n_features: int) -> None:
        super().__init__()
        self.n_features = n_features
        n_colours, height, width = image_shape
        self.convolutions = nn.Sequential(
            nn.Conv2d(n_colours, 8, 2), nn.ReLU(), nn.Conv2d(8, 16, 2), nn.ReLU(), nn.Flatten()
        )
        self.linear = Linear(16 * (height - 2) * (width - 2), n_features)

    def of_pixels(self, images: Tensor) -> Tensor:
        return self.linear(self.convolutions(images))


class FrameBranch(ImageEncoder):
    """Three convolutions with ReLUs, L2-normalised, then a linear layer; for stacks of frames."""

    def __init__(self, image_shape: tuple[int, ...], n_features: int) -> None:
        super().__init__()
        self.n_features = n_features
        kernels = fitting_kernels(image_shape, ELLM_KERNELS)
        self.convolutions, n_flat = strided_convolutions(image_shape, ELLM_CHANNELS, kernels)
        self.linear = Linear(n_flat, n_features)

    def of_pixels(self, images: Tensor) -> Tensor:
        return self.linear(F.normalize(self.convolutions(images), dim=-1))


class SmallImpalaCNN(ImageEncoder):
    """Two strided convolutions and a linear layer, each followed by a ReLU, for images (C, H, W).

    The encoder of the HELM paper (arXiv:2205.12258), a small relative of IMPALA's
    (arXiv:1802.01561). Xavier-uniform weights with gain sqrt(2), zero biases. Images that are too
    small raise UserError.

    The original chose the second kernel by the last axis of an observation. Psychlab's [80, 80, 3]
    ends in the colours, so that there, and there only, the second convolution had kernel 2 and
    stride 1 and the linear layer 41,472 inputs. Here it is kernel 4, stride 2 and 8,192 inputs, as
    for every image that is not small.
    """

    kind = "images"

    def __init__(
        self,
        image_shape: tuple[int, ...],
        n_features: int,
        channels: tuple[int, int] = LARGE,
        cache_mb: float = 0,
    ) -> None:
        super().__init__()
        self.n_features = n_features
        kernels = fitting_kernels(image_shape)
        (kernel1, stride1), (kernel2, stride2) = kernels
        self.field = kernel1 + (kernel2 - 1) * stride1  # pixels that one place of the output sees
        self.stride = stride1 * stride2
        self.convolutions, n_flat = strided_convolutions(image_shape, channels, kernels)
        self.linear = Linear(n_flat, n_features)
        _xavier(self)
        # A checkpoint names no attribute of this: it is neither module nor buffer.
        self._cache = ObservationCache(self._of_images, cache_mb, CACHE_BLOCK, LARGER_BLOCKS)
        self._weights = list(self.parameters())  # asked at every step, so found once
        self._versions: list[int] = []

    def _of_images(self, images: Tensor) -> Tensor:  # a method, as a copy of this module needs
        return self.of_pixels(to_float01(images))

    @torch.no_grad()
    def forward(self, observations: Observations) -> Tensor:
        """Return the features of images, cached on a CPU between two changes of the weights."""
        images = cast(Tensor, observations.images)
        if images.is_cuda:  # finding them there takes longer than computing them
            return self._of_images(images)
        # Loading counts as a change that torch notes; the steps of a fused optimiser do not.
        versions = [weight._version for weight in self._weights]
        if versions != self._versions:
            self._cache.clear()
            self._versions = versions
        return self._cache(images)

    def learn(self, observations: ObservationBatch) -> Tensor:
        """Return the features of a batch; equal images and equal windows are computed once."""
        # The weights change next, and the step of a fused optimiser does not say so.
        self._cache.clear()
        if observations.is_cuda:
            return encoded_once(observations, self.of_pixels)
        different = DistinctImages(observations)
        repeating = different.windows(self.field, self.stride)
        if repeating is None:
            features = self.of_pixels(to_float01(different.images))
        else:
            features = self._of_windows(*repeating)
        return F.embedding(different.row_of, features)

    def of_pixels(self, images: Tensor) -> Tensor:
        images = images.contiguous(memory_format=torch.channels_last)
        return F.relu(self.linear(self.convolutions(images)))

    def _of_windows(self, windows: Tensor, window_of: Tensor) -> Tensor:
        """Return features [U, F] of images from their Q windows; `window_of` [U, rows, columns]."""
        first, second = (cast(nn.Conv2d, self.convolutions[number]) for number in (0, 2))
        looks = to_float01(windows).contiguous(memory_format=torch.channels_last)
        maps = F.relu(first(looks))
        # The second kernel covers these maps whole: a product, quicker than the convolution.
        flat, kernel = (each.permute(0, 2, 3, 1).flatten(1) for each in (maps, second.weight))
        outputs = F.relu(F.linear(flat, kernel, second.bias))  # [Q, channels]
        maps = F.embedding(window_of, outputs)  # [U, rows, columns, channels]
        return F.relu(self.linear(maps.permute(0, 3, 1, 2).flatten(1)))


class VectorEncoder(Encoder):
    """Two linear layers of F features, each followed by a ReLU, of vectors normalised first."""

    kind = "vectors"

    def __init__(
        self, n_numbers: int, n_features: int, normalizer: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.n_features = n_features
        self.normalizer = normalizer or nn.Identity()
        self.layers = _xavier(nn.Sequential(*mlp(n_numbers, n_features, n_features), nn.ReLU()))

    def learn(self, observations: ObservationBatch) -> Tensor:
        return self.layers(self.normalizer(observations.vectors))


class TextEncoder(Encoder):
    """The vectors of K sentences side by side, then two linear layers with ReLUs."""

    kind = "text"

    def __init__(self, frozen: SentenceFeatures, n_texts: int, n_features: int) -> None:
        super().__init__()
        self.n_features = n_features
        self._frozen = frozen
        widths = n_texts * frozen.width, n_features, n_features
        self.layers = _xavier(nn.Sequential(*mlp(*widths), nn.ReLU()))

    @torch.no_grad()
    def forward(self, observations: Observations) -> Tensor:
        return self._of_sentences(cast(Tensor, observations.text))

    def learn(self, observations: ObservationBatch) -> Tensor:
        text = cast(Tensor, observations.text)
        if observations.is_cuda:
            return self._of_sentences(text)
        # Sentences repeat themselves. On a GPU, counting them would make the host wait.
        different, row_of = text.unique(dim=0, return_inverse=True)
        return F.embedding(row_of, self._of_sentences(different))

    def fingerprints(self) -> dict[str, str]:
        return self._frozen.fingerprints()

    def _of_sentences(self, text: Tensor) -> Tensor:
        return self.layers(self._frozen(text).flatten(1))


class NoEncoder(Encoder):
    """No feature [N, 0]: a memory reads all observations."""

    n_features = 0

    def by_kind(self, observations: ObservationBatch) -> dict[str, Tensor]:
        return {}

    def learn(self, observations: ObservationBatch) -> Tensor:
        shown = observations.selected.any()
        return torch.zeros(len(shown), 0, device=shown.device)


class JointEncoder(Encoder):
    """An encoder for each of several kinds, joined by a linear layer and a ReLU."""

    def __init__(self, encoders: Mapping[str, Encoder], n_features: int) -> None:
        super().__init__()
        self.n_features = n_features
        for kind, encoder in encoders.items():
            self.add_module(kind, encoder)
        self._encoders = list(encoders.values())
        n_joined = sum(encoder.n_features for encoder in self._encoders)
        self.joint = _xavier(Linear(n_joined, n_features))

    @torch.no_grad()
    def forward(self, observations: Observations) -> Tensor:
        return self._joined([encoder(observations) for encoder in self._encoders])

    def learn(self, observations: ObservationBatch) -> Tensor:
        return self._joined([encoder.learn(observations) for encoder in self._encoders])

    def by_kind(self, observations: ObservationBatch) -> dict[str, Tensor]:
        parts = (encoder.by_kind(observations) for encoder in self._encoders)
        return {kind: features for part in parts for kind, features in part.items()}

    def fingerprints(self) -> dict[str, str]:
        parts = (encoder.fingerprints() for encoder in self._encoders)
        return {name: sha256 for part in parts for name, sha256 in part.items()}

    def _joined(self, parts: list[Tensor]) -> Tensor:
        return F.relu(self.joint(torch.cat(parts, dim=-1)))


class BesideLastStep(Encoder):
    """An encoder's features and after them the last action, the last reward, or both."""

    def __init__(self, encoder: Encoder, n_actions: int, config: EncoderSettings) -> None:
        super().__init__()
        self.encoder = encoder
        first = 0 if config.last_action_input else n_actions
        self._columns = slice(first, n_actions + config.last_reward_input)
        self.n_features = encoder.n_features + self._columns.stop - first

    @torch.no_grad()
    def forward(self, observations: Observations) -> Tensor:
        return self._joined(self.encoder(observations), observations.last_step)

    def learn(self, observations: ObservationBatch) -> Tensor:
        return self._joined(self.encoder.learn(observations), observations.last_step)

    def by_kind(self, observations: ObservationBatch) -> dict[str, Tensor]:
        return self.encoder.by_kind(observations)

    def fingerprints(self) -> dict[str, str]:
        return self.encoder.fingerprints()

    def _joined(self, features: Tensor, last_step: Tensor | None) -> Tensor:
        return torch.cat((features, cast(Tensor, last_step)[:, self._columns]), dim=-1)


def fitting_kernels(image_shape: tuple[int, ...], sizes: Kernels = KERNELS) -> Kernel:
    """Return the convolutions for images (C, H, W); UserError if these are too small."""
    for least, kernels in sizes:
        if min(image_shape[1:]) >= least:
            return kernels
    raise UserError(
        f"observations: images of {image_shape[1]} x {image_shape[2]} pixels are too small, "
        f"the encoder needs {sizes[-1][0]} x {sizes[-1][0]} or more"
    )


def strided_convolutions(
    image_shape: tuple[int, ...], channels: Sequence[int], kernels: Kernel
) -> tuple[nn.Sequential, int]:
    """Return convolutions with ReLUs for images (C, H, W), flattened, and their output's width."""
    layers: list[nn.Module] = []
    for n_in, n_out, kernel in zip((image_shape[0], *channels), channels, kernels, strict=False):
        layers += [nn.Conv2d(n_in, n_out, *kernel), nn.ReLU(inplace=True)]
    convolutions = nn.Sequential(*layers, nn.Flatten())
    with torch.no_grad():
        # Asked of the network itself, not computed beside it.
        n_flat = convolutions(torch.zeros(1, *image_shape)).shape[1]
    return convolutions.to(memory_format=torch.channels_last), n_flat  # the faster layout


def _xavier(module: AnyModule) -> AnyModule:
    for layer in module.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.xavier_uniform_(layer.weight, gain=math.sqrt(2))
            layer.bias = nn.Parameter(torch.zeros(len(layer.weight)))
    return module


def mlp(*widths: int) -> nn.Sequential:
    """Return linear layers of these widths, the input's first, with ReLUs between them."""
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise(widths):
        layers += [Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def initialise_orthogonal(module: AnyModule, gain: float = 1.0) -> AnyModule:
    """Return the module with orthogonal weights, convolutions' with gain sqrt(2), and biases 0."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            own = math.sqrt(2) if isinstance(layer, nn.Conv2d) else gain
            with one_thread():  # the same seed gives the same weights with any number of threads
                weight = nn.init.orthogonal_(torch.empty(layer.weight.shape), gain=own)
            layer.weight.data.copy_(weight)  # whatever its layout
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return module


class ImageTextEncoder(nn.Module):
    """A frozen encoder of images and texts into one space of width W."""

    name: str
    width: int

    @property
    def images_at_a_time(self) -> int:
        """The block size that is fastest where few images are new at a step."""
        on_cpu = next(self.parameters()).device.type == "cpu"
        return 1 if on_cpu else BLOCK_SIZE

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """Map images in [0, 1], [N, 3, H, W], to features [N, W], not normalised."""

    @abstractmethod
    def embed_texts(self, texts: list[str]) -> Tensor:
        """Map n texts to features [n, W], not normalised."""

    @cached_property
    @abstractmethod
    def vocabulary(self) -> list[str]:
        """The strings of the text side's tokens that may be retrieved, each once."""

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for name, tensor in sorted(self.state_dict().items()):
            # Name, kind and shape as well: the same bytes could be another network's.
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy())
        return digest.hexdigest()
