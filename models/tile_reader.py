"""A small network that reads what each tile of a picture shows.

It is trained on the spot from played frames and knows the tiles of one game alone. What they mean,
and what there is to say of them, is that game's.
"""

import hashlib
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from models.caching import unit_images
from models.clip import DATA_FOLDER
from utils.errors import UserError
from utils.files import load_saved, save_tensors, written_whole
from utils.starting import typed

FILE = "crafter-captions.pt"
PROGRAM = "prepare_captions.py"
GRID, TILE = 9, 7
SIDE = GRID * TILE  # pixels that are read; those beyond belong to no tile
LEARNING_RATE = 3e-3

AnyEnv = TypeVar("AnyEnv", bound=VectorEnv)
Reader = TypeVar("Reader")


class Batches(Protocol):
    """Batches to learn from, a known number of them."""

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Return the batches, one after the other."""

    def __len__(self) -> int:
        """Return how many there are."""


class TileNetwork(nn.Module):
    """Compares each tile with learned patterns, notes where it is, and looks at its neighbours.

    Args:
        n_kinds: K, what a tile can show.
        n_features: Width of the hidden layers.
    """

    def __init__(self, n_kinds: int, n_features: int = 64) -> None:
        super().__init__()
        self.patterns = nn.Conv2d(3, n_features, TILE, stride=TILE)
        self.positions = nn.Parameter(torch.zeros(n_features, GRID, GRID))
        self.neighbours = nn.Conv2d(n_features, n_features, 3, padding=1, groups=n_features)
        self.features = nn.Conv2d(2 * n_features, n_features, 1)
        self.output = nn.Conv2d(n_features, n_kinds, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Map images in [0, 1], [N, 3, H, W], to scores [N, K, 9, 9]."""
        tiles = F.relu(self.patterns(images[..., :SIDE, :SIDE]) + self.positions)
        both = torch.cat((tiles, F.relu(self.neighbours(tiles))), 1)
        return self.output(F.relu(self.features(both)))


class TileReader:
    """Says how likely each tile of a picture shows what: a trained network, frozen.

    Args:
        network: It.
        about: What is to be kept beside its weights, such as how often it is right.
    """

    def __init__(self, network: TileNetwork, about: Mapping[str, Any] | None = None) -> None:
        self.network = network.requires_grad_(False).eval()
        self.about = dict(about or {})

    @torch.no_grad()
    def __call__(self, frames: np.ndarray) -> np.ndarray:
        """Map pictures [R, 3, H, W] uint8 to probabilities [R, K, 9, 9] float32."""
        return self.network(unit_images(torch.from_numpy(frames))).softmax(1).numpy()

    @property
    def fingerprint(self) -> str:
        """Return the sha256 of the weights."""
        digest = hashlib.sha256()
        for name, weight in self.network.state_dict().items():
            digest.update(name.encode() + weight.numpy().tobytes())
        return digest.hexdigest()

    def save(self, data_folder: Path = DATA_FOLDER) -> Path:
        """Write the file `load_tile_reader` reads, whole or not at all, and return its path."""
        state = {"network": self.network.state_dict(), "about": self.about}
        return save_reader(state, data_folder / FILE)


def load_tile_reader(data_folder: Path = DATA_FOLDER) -> TileReader:
    """Return the reader that `prepare_captions.py` has trained.

    Raises:
        UserError: It is missing, or the file holds something else.
    """

    def build(saved: Any) -> TileReader:
        n_kinds, n_features = saved["network"]["output.weight"].shape[:2]
        network = TileNetwork(n_kinds, n_features)
        network.load_state_dict(saved["network"])
        return TileReader(network, saved["about"])

    return load_reader(data_folder / FILE, build, "captions", PROGRAM)


def with_tile_reader(env: AnyEnv) -> AnyEnv:
    """Return environments, those that say what is in their pixels with what reads them.

    Args:
        env: Its worlds have `reads_pixels`, true, and `tile_reader`, if they are such.

    Raises:
        UserError: There is no such reader.
    """
    worlds: Any = env.unwrapped
    if getattr(worlds, "reads_pixels", False):
        worlds.tile_reader = load_tile_reader()
    return env


def train_tile_reader(
    frames: Batches, n_kinds: int, seed: int, progress: bool = True
) -> TileReader:
    """Return a reader after one step on each batch.

    Args:
        frames: Pictures [B, 3, H, W] uint8, and what their tiles show [B, 9, 9] uint8.
        n_kinds: K, what a tile can show.
        seed: Decides the initial weights.
        progress: Whether to show a progress bar.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = TileNetwork(n_kinds)

    def loss_of(images: np.ndarray, tiles: np.ndarray) -> Tensor:
        scores = network(unit_images(torch.from_numpy(images)))
        return F.cross_entropy(scores, torch.from_numpy(tiles).long())

    fit(network, frames, loss_of, LEARNING_RATE, "captions" if progress else None)
    return TileReader(network)


def fit(
    network: nn.Module,
    batches: Batches,
    loss_of: Callable[..., Tensor],
    learning_rate: float,
    name: str | None,
) -> None:
    """Take one step on each batch.

    The learning rate is constant for the first half and falls linearly to zero in the second.

    Args:
        network: What is trained.
        batches: What there is to learn from.
        loss_of: Maps what is in a batch to its loss.
        learning_rate: That of the first half.
        name: What the progress bar says; None for no bar.
    """
    optimizer = torch.optim.AdamW(network.parameters(), lr=learning_rate)
    n_steps = len(batches)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, 2 - 2 * step / n_steps)
    )
    with tqdm(batches, desc=name, unit="batch", disable=name is None) as bar:
        for batch in bar:
            loss = loss_of(*batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            bar.set_postfix(loss=f"{loss.item():.4f}", refresh=False)


def load_reader(path: Path, build: Callable[[Any], Reader], setting: str, program: str) -> Reader:
    """Return what is built of a file that `save_reader` wrote; UserError if it cannot be."""
    again = shlex.join(typed(program))
    if not path.is_file():
        raise UserError(f"{setting}: {path} is missing. Run: {again}")
    try:
        return build(load_saved(path))
    except Exception as error:  # a broken file raises about ten kinds of errors
        problem = f"{setting}: {path}: not a file of {program}. Delete it and run: {again}"
        raise UserError(problem) from error


def save_reader(state: dict[str, Any], path: Path) -> Path:
    """Write a small network that was trained here, whole or not at all, and return where."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as file:
        save_tensors(state, file)
    return path
