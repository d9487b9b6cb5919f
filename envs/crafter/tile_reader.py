"""A small network that reads the tiles of pictures of Crafter, trained from played frames."""

import hashlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from utils.environments import State
from utils.files import DATA_FOLDER
from utils.small_networks import Batches, fit, load_reader, save_reader

FILE = "crafter-captions.pt"
PROGRAM = "prepare_captions.py"
GRID, TILE = 9, 7
SIDE = GRID * TILE  # pixels that are read; those beyond belong to no tile
LEARNING_RATE = 3e-3


class TileNetwork(nn.Module):
    def __init__(self, n_kinds: int, n_features: int = 64) -> None:
        super().__init__()
        self.patterns = nn.Conv2d(3, n_features, TILE, stride=TILE)
        self.positions = nn.Parameter(torch.zeros(n_features, GRID, GRID))
        self.neighbours = nn.Conv2d(n_features, n_features, 3, padding=1, groups=n_features)
        self.features = nn.Conv2d(2 * n_features, n_features, 1)
        self.output = nn.Conv2d(n_features, n_kinds, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Map images in [0, 1], [N, 3, H, W], to scores of K kinds [N, K, 9, 9]."""
        tiles = F.relu(self.patterns(images[..., :SIDE, :SIDE]) + self.positions)
        both = torch.cat((tiles, F.relu(self.neighbours(tiles))), 1)
        return self.output(F.relu(self.features(both)))


class TileReader:
    """A frozen network for the kinds of tiles; `about`, such as accuracy, is saved with it."""

    def __init__(self, network: TileNetwork, about: State | None = None) -> None:
        self.network = network.requires_grad_(False).eval()
        self.about = dict(about or {})

    @torch.no_grad()
    def __call__(self, frames: np.ndarray) -> np.ndarray:
        """Map pictures [R, 3, H, W] uint8 to probabilities [R, K, 9, 9] float32."""
        return self.network(_in_0_to_1(frames)).softmax(1).numpy()

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for name, weight in self.network.state_dict().items():
            digest.update(name.encode() + weight.numpy().tobytes())
        return digest.hexdigest()

    def save(self, data_folder: Path = DATA_FOLDER) -> Path:
        state = {"network": self.network.state_dict(), "about": self.about}
        return save_reader(state, data_folder / FILE)


def load_tile_reader(data_folder: Path = DATA_FOLDER) -> TileReader:
    """Return the reader of `prepare_captions.py`; UserError if missing or damaged."""

    def build(saved: State) -> TileReader:
        n_kinds, n_features = saved["network"]["output.weight"].shape[:2]
        network = TileNetwork(n_kinds, n_features)
        network.load_state_dict(saved["network"])
        return TileReader(network, saved["about"])

    return load_reader(data_folder / FILE, build, "crafter_captions", PROGRAM)


def train_tile_reader(
    frames: Batches, n_kinds: int, seed: int, progress: bool = True
) -> TileReader:
    """Return a reader after one step on each batch.

    A batch is pictures [B, 3, H, W] uint8 and the kinds of their tiles [B, 9, 9] uint8, of K kinds.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = TileNetwork(n_kinds)

    def loss_of(images: np.ndarray, tiles: np.ndarray) -> Tensor:
        scores = network(_in_0_to_1(images))
        return F.cross_entropy(scores, torch.from_numpy(tiles).long())

    fit(network, frames, loss_of, LEARNING_RATE, "captions" if progress else None)
    return TileReader(network)


def _in_0_to_1(frames: np.ndarray) -> Tensor:
    return torch.from_numpy(frames).float().div_(255)
