"""grid-clip, the embedded stand-in for CLIP on MiniGrid.

A small image encoder is trained within minutes to map images into the space of a frozen sentence
encoder. It knows the tiles of MiniGrid and nothing else: it shows how SHELM works where the weights
of CLIP cannot be had, and its figures say nothing about CLIP's.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from models.caching import to_float01
from models.encoders import ImageTextEncoder
from models.language.files import find_model
from models.language.load import SentenceEncoder
from utils.environments import State
from utils.files import DATA_FOLDER
from utils.small_networks import Batches, fit, load_reader, save_reader

NAME = "grid-clip"
FILE = "grid-clip.pt"
TEXT_MODEL = "all-MiniLM-L6-v2"
WIDTH = 384

VIEW, TILE = 7, 8
SIDE = VIEW * TILE

LEARNING_RATE = 2e-3
SCALE = 40.0  # inverse temperature of every cosine
NOUN, ADJECTIVE = 3.0, 1.0  # how much the words of a caption count
ARTICLES = ("a", "an", "the")
BLOCK = 1024  # words embedded at a time

EmbedTexts = Callable[[list[str]], Tensor]


class ViewEncoder(nn.Module):
    """Encode each tile and its position; max-pool every feature over the view."""

    def __init__(self, n_channels: int = 128, n_features: int = 256, n_hidden: int = 512) -> None:
        super().__init__()
        self.tiles = nn.Sequential(
            nn.Conv2d(3, n_channels, TILE, stride=TILE), nn.BatchNorm2d(n_channels)
        )
        self.positions = nn.Parameter(torch.zeros(n_channels, VIEW, VIEW))
        self.features = nn.Sequential(nn.ReLU(), nn.Conv2d(n_channels, n_features, 1), nn.ReLU())
        self.output = nn.Sequential(
            nn.Linear(n_features, n_hidden), nn.ReLU(), nn.Linear(n_hidden, WIDTH)
        )

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[-2:] != (SIDE, SIDE):
            images = F.interpolate(images, size=(SIDE, SIDE), mode="bilinear")
        placed = self.tiles(images) + self.positions  # [N, channels, 7, 7]
        return self.output(self.features(placed).amax((2, 3)))


class GridClip(ImageTextEncoder):
    name = NAME
    width = WIDTH

    def __init__(self, views: ViewEncoder) -> None:
        super().__init__()
        self.views = views.requires_grad_(False).eval()

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        return self.views(images)

    def embed_texts(self, texts: list[str]) -> Tensor:
        device = self.views.positions.device
        return self._sentences.to(device)(texts)

    @cached_property
    def vocabulary(self) -> list[str]:
        return whole_words(find_model(TEXT_MODEL).vocabulary())

    @cached_property
    def _sentences(self) -> SentenceEncoder:
        # No part of this module: its weights come from its own package and are not saved here.
        return SentenceEncoder(find_model(TEXT_MODEL))

    def save(self, data_folder: Path = DATA_FOLDER) -> Path:
        state = {"text_model": TEXT_MODEL, "views": self.views.state_dict()}
        return save_reader(state, data_folder / FILE)


def load_grid_clip(device: str = "cpu", data_folder: Path = DATA_FOLDER) -> GridClip:
    """Return the encoder of `prepare_embeddings.py`; UserError if missing or damaged."""

    def build(saved: State) -> GridClip:
        views = ViewEncoder()
        views.load_state_dict(saved["views"])
        return GridClip(views).to(device)

    return load_reader(data_folder / FILE, build, "clip_encoder", "prepare_embeddings.py")


def whole_words(tokens: Iterable[str]) -> list[str]:
    """Return the tokens of two or more letters a-z: no pieces, signs or special tokens."""
    return [token for token in tokens if token.isascii() and token.isalpha() and len(token) > 1]


def train_grid_clip(batches: Batches, seed: int, progress: bool = True) -> GridClip:
    """Train a view encoder against the frozen sentence encoder.

    A batch is images [B, 3, H, W] uint8 and B captions, all of their words in the vocabulary.
    """
    sentences = SentenceEncoder(find_model(TEXT_MODEL))
    vocabulary = whole_words(find_model(TEXT_MODEL).vocabulary())
    loss = ContrastiveLoss(sentences, vocabulary, progress)
    return GridClip(train_view_encoder(batches, loss, seed, progress))


def train_view_encoder(
    batches: Batches, loss: "ContrastiveLoss", seed: int, progress: bool = True
) -> ViewEncoder:
    # The weights follow from the seed, and the caller's stream stays where it is.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        views = ViewEncoder()

    def loss_of(images: np.ndarray, captions: list[str]) -> Tensor:
        return loss(views(to_float01(torch.from_numpy(images))), captions)

    fit(views, batches, loss_of, LEARNING_RATE, NAME if progress else None)
    return views


class ContrastiveLoss:
    """Distance of images from their captions in a batch, and from the captions' words among all.

    The sum of two parts, both on cosines times a fixed inverse temperature: CLIP's symmetric cross-
    entropy between the images and captions of a batch (Radford et al. 2021, arXiv:2103.00020),
    equal captions sharing the target; and the cross-entropy between an image's softmax over the
    whole vocabulary and the shares of its caption's words.

    `embed_texts` maps n texts to features [n, W]; `vocabulary` are the V words to choose from, with
    every word of a caption but articles and "and".
    """

    def __init__(
        self, embed_texts: EmbedTexts, vocabulary: Sequence[str], progress: bool = False
    ) -> None:
        self.embed_texts = embed_texts
        self.number_of = {word: number for number, word in enumerate(vocabulary)}
        is_first = range(0, len(vocabulary), BLOCK)
        blocks = [list(vocabulary[start : start + BLOCK]) for start in is_first]
        bar = tqdm(blocks, desc="vocabulary", unit="block", disable=None if progress else True)
        self.words = F.normalize(torch.cat([embed_texts(block) for block in bar]), dim=-1)  # [V, W]
        self._captions: dict[str, Tensor] = {}

    def __call__(self, features: Tensor, captions: list[str]) -> Tensor:
        """Return the loss of features [B, W] of images with B captions."""
        directions = F.normalize(features, dim=-1)
        return self.among_captions(directions, captions) + self.among_words(directions, captions)

    def among_captions(self, directions: Tensor, captions: list[str]) -> Tensor:
        """Return CLIP's loss of unit vectors [B, W]."""
        scores = SCALE * directions @ self._embed_captions(captions).T  # [B, B]
        # Equal captions are one answer: an image must not be pushed away from its own words.
        firsts = torch.tensor([captions.index(caption) for caption in captions])
        right = (firsts == firsts[:, None]).float()
        # A distribution: equal captions share the target.
        right /= right.sum(1, keepdim=True)
        return (F.cross_entropy(scores, right) + F.cross_entropy(scores.T, right)) / 2

    def among_words(self, directions: Tensor, captions: list[str]) -> Tensor:
        """Return the cross-entropy of unit vectors [B, W] with the captions' words."""
        log_probs = (SCALE * directions @ self.words.T).log_softmax(-1)  # [B, V]
        entries = [
            (row, self.number_of[word], share)
            for row, caption in enumerate(captions)
            for word, share in word_shares(caption).items()
        ]
        rows, columns, shares = zip(*entries, strict=True)
        return -(torch.tensor(shares) * log_probs[rows, columns]).sum() / len(captions)

    def _embed_captions(self, captions: list[str]) -> Tensor:
        """Return unit vectors [B, W]; a caption met before is not embedded again."""
        new = [caption for caption in dict.fromkeys(captions) if caption not in self._captions]
        if new:
            directions = F.normalize(self.embed_texts(new), dim=-1)
            self._captions.update(zip(new, directions, strict=True))
        return torch.stack([self._captions[caption] for caption in captions])


def word_shares(caption: str) -> dict[str, float]:
    """Return the words of a caption's phrases, with shares that sum to 1; nouns count more."""
    shares: dict[str, float] = {}
    for phrase in caption.split(" and "):
        *adjectives, noun = [word for word in phrase.split() if word not in ARTICLES]
        shares[noun] = shares.get(noun, 0) + NOUN
        for word in adjectives:
            shares[word] = shares.get(word, 0) + ADJECTIVE
    total = sum(shares.values())
    return {word: share / total for word, share in shares.items()}
