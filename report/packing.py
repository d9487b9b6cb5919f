"""Arrays and pictures as text that a page can hold: small, and read by `decode.js`."""

import base64
import io
import math
import zlib
from collections.abc import Iterator, Sequence

import numpy as np

PIXEL_COLOURS = 3
SMALLEST_TILE = 4
TRIAL_FRAMES = 64  # from which the side of a tile is chosen
LOSSY_QUALITIES = (80, 60, 40, 20)
COARSENESS = (1, 2, 4, 8, 16, 32, 64, 128)

Packed = dict[str, object]


def packed(array: np.ndarray) -> Packed:
    """Return an array as its type, shape and compressed bytes."""
    return _packed_bytes(zlib.compress(np.ascontiguousarray(array).tobytes(), 9), array)


def quantized(shares: np.ndarray) -> np.ndarray:
    """Return numbers in [0, 1] as uint8, small ones kept apart: round(255 sqrt(x))."""
    return np.rint(255 * np.sqrt(np.clip(shares.astype(np.float32), 0, 1))).astype(np.uint8)


def coloured(images: np.ndarray) -> np.ndarray:
    """Return images [T, C, H, W] as pictures [T, H, W, 3].

    Where there are not three channels the last is shown in grey: the newest of stacked frames.
    """
    if images.shape[1] != PIXEL_COLOURS:
        images = images[:, -1:].repeat(PIXEL_COLOURS, axis=1)
    return images.transpose(0, 2, 3, 1)


def looking_back(attention: np.ndarray) -> np.ndarray:
    """Return what can be seen of an episode's attention, its steps one after the other.

    Args:
        attention: Of each step to the last S steps, oldest first.  [T, L, H, S]

    Returns:
        Quantised; step t has the latest min(t+1, S) steps, oldest first.  [L, H, R]
    """
    n_steps, *_, n_seen = attention.shape
    exists = np.arange(n_seen) >= n_seen - 1 - np.arange(n_steps)[:, None]  # [T, S]
    return quantized(attention.transpose(1, 2, 0, 3)[:, :, exists])


def packed_within(arrays: Sequence[np.ndarray], max_bytes: float) -> tuple[list[Packed], int]:
    """Pack uint8 arrays together in at most `max_bytes`, as coarsely as that takes.

    Returns:
        The arrays, their numbers rounded to multiples of some step, and the step.
    """
    for step in COARSENESS:
        blobs, room = [], max_bytes if step < COARSENESS[-1] else math.inf
        for array in arrays:
            blobs.append(zlib.compress(rounded(array, step).tobytes(), 6))
            room -= len(blobs[-1])
            if room < 0:  # no need to pack the others
                break
        else:
            break
    pairs = zip(blobs, arrays, strict=True)
    return [_packed_bytes(blob, array) for blob, array in pairs], step


def rounded(array: np.ndarray, step: int) -> np.ndarray:
    """Return uint8 numbers as the nearest multiples of a step; the largest number stays itself."""
    nearest = (array.astype(np.uint16) + step // 2) // step * step
    return nearest.clip(max=255).astype(np.uint8)


def _packed_bytes(blob: bytes, array: np.ndarray) -> Packed:
    text = base64.b64encode(blob).decode("ascii")
    return {"type": array.dtype.name, "shape": array.shape, "data": text}


class Pictures:
    """Pictures of one size, every different one kept once, and of it every different tile once.

    In a grid world a picture is a few tiles over and over. Where tiles do not repeat, as in a
    rendered world, a whole picture is the tile.
    """

    def __init__(self) -> None:
        self.shape: tuple[int, int] | None = None  # (H, W)
        self._tile = (0, 0)
        self._numbers: dict[bytes, int] = {}
        self._maps: list[np.ndarray] = []
        self._tiles: dict[bytes, int] = {}

    def add(self, frames: np.ndarray) -> np.ndarray:
        """Take in frames [T, H, W, 3] uint8 and return their numbers [T]."""
        if self.shape is None:
            self.shape = frames.shape[1:3]
            self._tile = best_tile(frames[:TRIAL_FRAMES])
        if frames.shape[1:3] != self.shape:
            raise ValueError(f"pictures of {self.shape} pixels, then of {frames.shape[1:3]}")
        return np.array([self._number(frame) for frame in frames])

    def packed(self, max_bytes: float) -> Packed:
        """Return the pictures with an atlas of at most `max_bytes` where any quality allows."""
        tiles = np.stack([np.frombuffer(tile, np.uint8) for tile in self._tiles])
        tiles = tiles.reshape(-1, *self._tile, PIXEL_COLOURS)
        n_columns = math.ceil(math.sqrt(len(tiles) * self._tile[0] / self._tile[1]))
        return {
            "size": self.shape,
            "tile": self._tile,
            "columns": n_columns,
            "maps": packed(np.stack(self._maps).astype(np.uint16)),
            "atlas": base64.b64encode(encoded(atlas(tiles, n_columns), max_bytes)).decode("ascii"),
        }

    def _number(self, frame: np.ndarray) -> int:
        key = frame.tobytes()
        if key not in self._numbers:
            self._numbers[key] = len(self._maps)
            tiles = tiled(frame[None], self._tile)
            numbers = [self._tiles.setdefault(t.tobytes(), len(self._tiles)) for t in tiles]
            self._maps.append(np.array(numbers))
        return self._numbers[key]


def best_tile(frames: np.ndarray) -> tuple[int, int]:
    """Return height and width of the tiles that describe frames [T, H, W, 3] most briefly."""
    height, width = frames.shape[1:3]
    common = math.gcd(height, width)
    sides = [side for side in range(SMALLEST_TILE, common + 1) if common % side == 0]
    choices = [(height, width), *((side, side) for side in sides)]
    return min(choices, key=lambda tile: _cost(frames, tile))


def _cost(frames: np.ndarray, tile: tuple[int, int]) -> int:
    """Return about how many bytes the frames take: the pixels of the tiles and their numbers."""
    tiles = tiled(frames, tile)
    n_different = len({tile.tobytes() for tile in tiles})
    return n_different * tiles[0].size + 2 * len(tiles)


def tiled(frames: np.ndarray, tile: tuple[int, int]) -> np.ndarray:
    """Cut frames [T, H, W, 3] into tiles, row by row.  [T * n, h, w, 3]"""
    n_frames, height, width, colours = frames.shape
    rows, columns = height // tile[0], width // tile[1]
    cut = frames.reshape(n_frames, rows, tile[0], columns, tile[1], colours)
    return cut.transpose(0, 1, 3, 2, 4, 5).reshape(-1, *tile, colours)


def atlas(tiles: np.ndarray, n_columns: int) -> np.ndarray:
    """Lay tiles [n, h, w, 3] out row by row.  [rows * h, n_columns * w, 3]"""
    missing = -len(tiles) % n_columns
    filled = np.concatenate((tiles, np.zeros_like(tiles[:1]).repeat(missing, axis=0)))
    rows = filled.reshape(-1, n_columns, *tiles.shape[1:]).transpose(0, 2, 1, 3, 4)
    return rows.reshape(rows.shape[0] * rows.shape[1], -1, tiles.shape[-1])


def encoded(image: np.ndarray, max_bytes: float) -> bytes:
    """Return an image [H, W, 3] as WebP: exact if it fits, else at the best quality that does."""
    blob = b""
    for blob in _encodings(image):
        if len(blob) <= max_bytes:
            break
    return blob


def _encodings(image: np.ndarray) -> Iterator[bytes]:
    from PIL import Image

    picture = Image.fromarray(image)
    for quality in (None, *LOSSY_QUALITIES):
        file = io.BytesIO()
        picture.save(file, "WEBP", lossless=quality is None, quality=quality or 80)
        yield file.getvalue()
