"""Frozen maps from observations to the language model's tokens."""

import hashlib
import math
from typing import Any, Generic

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.agent import TokensRead
from models.caching import to_float01
from models.encoders import BLOCK_SIZE, AnyModule, ImageTextEncoder
from models.language.layers import TokenEmbeddings
from models.observations import Observations, RunningMoments


class Frozen(Generic[AnyModule]):
    """Holds a pretrained module so that its owner neither trains nor saves nor moves it."""

    def __init__(self, module: AnyModule) -> None:
        self.module = module.requires_grad_(False)


class ImageToLanguage(nn.Module):
    """A frozen map from images to tokens, in two parts.

    The costly one, `forward`, is a pure function of one image, as its results are kept by image.
    `read` is asked once a step, for reading and showing: it may draw, and depend on statistics that
    change during a run.

    Attributes:
        larger_blocks: Multiples of `block_size`, for many new images.
        n_tokens: K, tokens of an image.
        words: By their numbers in `TokensRead`; None: they are the language model's own tokens.
        is_quick: Whether a GPU computes it sooner than the host finds it among earlier results.
    """

    is_quick = False
    block_size = BLOCK_SIZE
    larger_blocks: tuple[int, ...] = ()
    n_tokens = 1
    words: list[str] | None = None

    def seen(self, observations: Observations) -> Tensor:
        """Return the part of observations that is read, as bytes [N, ...] uint8: images."""
        assert observations.images is not None, "an environment without images is refused"
        return observations.images

    def prepared(self, seen: Tensor) -> Tensor:
        """Return the input of `forward`, given the bytes: images in [0, 1]."""
        return to_float01(seen)

    def forward(self, images: Tensor) -> Tensor:
        """Encode images in [0, 1], [N, C, H, W], as [N, ...]."""
        raise NotImplementedError

    def read(self, encoded: Tensor) -> TokensRead:
        """Return the tokens of encoded images [N, ...], with the words if they are words."""
        return TokensRead(encoded)

    def looked_into(self, seen: Tensor, read: TokensRead) -> TokensRead:
        """Add costlier facts about the bytes `seen`, where somebody looks at them."""
        return read

    def observe(self, encoded: Tensor) -> None:
        """Count in the encoded images [N, ...] of one step of a training rollout."""

    def fingerprints(self) -> dict[str, str]:
        return {}


class NothingToLanguage(ImageToLanguage):
    """No token [N, 0, D]: the environment shows text alone."""

    n_tokens = 0

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def seen(self, observations: Observations) -> Tensor:
        shown = observations.any()
        return torch.zeros(len(shown), 1, dtype=torch.uint8, device=shown.device)

    def forward(self, images: Tensor) -> Tensor:
        return images.new_zeros(len(images), 0, self.width)


def random_projection(n_out: int, n_in: int) -> Tensor:
    """Return a matrix [n_out, n_in] with entries from N(0, 1/n_out)."""
    return torch.randn(n_out, n_in) / math.sqrt(n_out)


class FrozenHopfield(ImageToLanguage):
    """Map an image to a weighted mean of token embeddings (HELM, arXiv:2205.12258, section 3).

        token = softmax(beta * cosine(P o, E)) E

    o is the image's mean over colours, flattened; P a fixed random projection [D, H*W]; E the
    embeddings as the language model feeds them to its first layer; the larger beta, the nearer to a
    single token. The paper writes a dot product; the published code and its results use the cosine,
    and so does this. Colours of equal brightness, such as pure red, green and blue, look alike.
    """

    is_quick = True
    block_size = 4  # a step shows few new images in a maze,
    larger_blocks = (16, 64)  # and nothing else where there are real numbers: E is read once
    projection: Tensor

    def __init__(self, projection: Tensor, embeddings: TokenEmbeddings, beta: float) -> None:
        super().__init__()
        self.register_buffer("projection", projection)
        self._embeddings = Frozen(embeddings)
        self.beta = beta

    @property
    def embeddings(self) -> TokenEmbeddings:
        return self._embeddings.module

    def forward(self, images: Tensor) -> Tensor:
        return self.embeddings.average(self.weights(self.similarities(images)))[:, None]

    def weights(self, similarities: Tensor) -> Tensor:
        """Return the weight of every token, given its cosine, which is overwritten.  [N, V]"""
        return similarities.mul_(self.beta).softmax(-1)

    def looked_into(self, seen: Tensor, read: TokensRead) -> TokensRead:
        """Add the nearest token, its cosine and the weights' entropy."""
        # The token read tends to the nearest as beta goes to infinity.
        if read.words is not None:  # a subclass reads single words
            return read
        similarities = self.similarities(self.prepared(seen))
        cosines, words = similarities.max(-1, keepdim=True)
        entropy = torch.special.entr(self.weights(similarities)).sum(-1)
        return TokensRead(read.tokens, words, cosines, entropy)

    def flat(self, images: Tensor) -> Tensor:
        """Return o.  [N, H*W]"""
        return images.mean(1).flatten(1)

    def similarities(self, images: Tensor) -> Tensor:
        """Return the cosine of each projected image with every token.  [N, V]"""
        state = self.flat(images) @ self.projection.T  # [N, D]
        norms = torch.outer(state.norm(dim=-1), self.embeddings.norms)
        return self.embeddings.dot(state).div_(norms.add_(1e-8))


class ColourHopfield(FrozenHopfield):
    """The same with all colours, o being the whole image; P is [D, C*H*W]."""

    def flat(self, images: Tensor) -> Tensor:
        return images.flatten(1)


class VectorHopfield(FrozenHopfield):
    """The same of vectors, o being the vector itself, normalised first; P is [D, F]."""

    def __init__(self, normalizer: nn.Module, *given: Any) -> None:
        super().__init__(*given)
        self.normalizer = normalizer

    def seen(self, observations: Observations) -> Tensor:
        assert observations.vectors is not None, "this retrieval was chosen for vectors"
        # Normalised here: results are cached by what they are computed of.
        return self.normalizer(observations.vectors).contiguous().view(torch.uint8)

    def prepared(self, seen: Tensor) -> Tensor:
        """Return the vectors, each as an image of one row and no colours.  [N, 1, F]"""
        return seen.view(torch.float32)[:, None]


EPSILON = 1e-8  # added to the deviation that a feature is divided by, as in the original


class RunningStandardization(RunningMoments):
    """Standardises features by mean and deviation of all rows seen so far; at first 0 and 1."""

    @property
    def deviation(self) -> Tensor:
        """Return the unbiased standard deviation of every feature, 0 after a single row.  [W]"""
        deviation = (self.squares / (self.count - 1).clamp(min=1)).sqrt()
        return torch.where(self.count > 0, deviation, 1.0)

    def forward(self, features: Tensor) -> Tensor:
        return ((features - self.mean) / (self.deviation + EPSILON)).float()


class ClipProjection(ImageToLanguage):
    """Match the distribution of image features to that of the token embeddings.

        token = (f - mean_f) / (std_f + 1e-8) * std_E + mean_E    per feature; f = encoder(image)

    The original takes mean and deviation of f over the N current observations, so that an
    environment's memory depends on its neighbours and a single environment has none. Here they run
    over all frames of training, are part of the checkpoint and stay fixed in evaluation, as in a
    frozen BatchNorm. An encoder of a width other than D is followed by a fixed random projection
    with entries from N(0, 1/D), so that the token has the embeddings' mean and deviation all the
    same.
    """

    projection: Tensor | None

    def __init__(self, encoder: ImageTextEncoder, embeddings: TokenEmbeddings) -> None:
        super().__init__()
        self._encoder = Frozen(encoder)
        self.block_size = encoder.images_at_a_time
        width = embeddings.width
        bridge = None if encoder.width == width else random_projection(width, encoder.width)
        self.register_buffer("projection", bridge)
        self.standardize = RunningStandardization(width)
        self.register_buffer("scale", embeddings.std.clone(), persistent=False)
        self.register_buffer("shift", embeddings.mean.clone(), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        features = self._encoder.module(images)
        return features if self.projection is None else features @ self.projection.T

    def read(self, encoded: Tensor) -> TokensRead:
        return TokensRead((self.standardize(encoded) * self.scale + self.shift)[:, None])

    def observe(self, encoded: Tensor) -> None:
        self.standardize.update(encoded)

    def fingerprints(self) -> dict[str, str]:
        return {"clip_encoder": self._encoder.module.fingerprint}


DECIMALS = 6  # to which similarities are compared, so that no rounding error decides a tie


class TokenRetrieval(ImageToLanguage):
    """Map an image to its best descriptions among the tokens (SHELM, arXiv:2306.09312, section 3).

        tokens = E[top-K of cosine(encoder(image), e_s) over all words s]

    Of equally similar words the one with the lower number comes first. An image is encoded as the
    numbers of its words, exact as floats, and their cosines, the most similar first: [N, K, 2].
    The S words have `text_features` e [S, W] for the encoder and `token_vectors` E [S, D] for the
    language model.
    """

    text_features: Tensor
    token_vectors: Tensor

    def __init__(
        self,
        encoder: ImageTextEncoder,
        text_features: Tensor,
        token_vectors: Tensor,
        words: list[str],
        topk: int,
    ) -> None:
        super().__init__()
        self._encoder = Frozen(encoder)
        table = text_features.cpu().numpy().tobytes()  # as it was prepared
        self._table_fingerprint = hashlib.sha256("\n".join(words).encode() + table).hexdigest()
        self.block_size = encoder.images_at_a_time
        self.register_buffer("text_features", F.normalize(text_features, dim=-1), persistent=False)
        self.register_buffer("token_vectors", token_vectors, persistent=False)
        self.words, self.n_tokens = words, topk

    def forward(self, images: Tensor) -> Tensor:
        features = F.normalize(self._encoder.module(images), dim=-1)
        similarities = (features @ self.text_features.T).round(decimals=DECIMALS)  # [N, S]
        similarities, indices = similarities.sort(dim=-1, descending=True, stable=True)
        best = (indices[:, : self.n_tokens].float(), similarities[:, : self.n_tokens])
        return torch.stack(best, dim=-1)

    def read(self, encoded: Tensor) -> TokensRead:
        words = encoded[..., 0].long()
        return TokensRead(self.token_vectors[words], words, encoded[..., 1])

    def fingerprints(self) -> dict[str, str]:
        return {
            "clip_encoder": self._encoder.module.fingerprint,
            "embeddings": self._table_fingerprint,
        }
