"""Episodes to look at: an evaluation as one HTML page that needs no network, and movies.

Arrays and pictures stand in the page as compressed text, which `decode.js` reads. A frame of a
movie shows the view, the whole world, words, action and value.
"""

import base64
import contextlib
import io
import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from models.agent import Agent
from trainers.evaluation import Recording
from utils.environments import Environments
from utils.errors import RunError
from utils.files import atomic_write

if TYPE_CHECKING:
    from PIL import Image, ImageDraw

HERE = Path(__file__).parent
SCRIPTS = ("decode.js", "charts.js", "player.js", "page.js")
# Limits of compressed bytes, so that ten episodes stay under 5 MB once written as text.
LOOKS_BYTES = 1.5e6  # attention and saliency
PICTURE_BYTES = 0.6e6
TEXTS = {  # of an episode, by their names in the page
    "text": "text",
    "caption": "caption",
    "suggestions": "suggestions",
    "phrases": "phrase",
    "matched": "matched",
    "unlocked": "unlocked",
}
NUMBERS = {  # one of each step, likewise, with their types there
    "actions": ("actions", np.uint16),  # or vectors of float32
    "rewards": ("rewards", np.float32),
    "values": ("values", np.float32),
    "entropy": ("entropy", np.float32),
    "goalRewards": ("goal_rewards", np.float32),
    "changed": ("goal_success", np.uint8),  # whether reaching a goal changed the world
}
MOST_ACTIONS, BEST_ACTIONS = 24, 12  # of more than 24 actions, the best 12 are shown
COSINE_STEPS = 10_000  # cosines are kept to four decimals
PIXEL_COLOURS = 3
SMALLEST_TILE = 4
TRIAL_FRAMES = 64  # from which the side of a tile is chosen
LOSSY_QUALITIES = (80, 60, 40, 20)
COARSENESS = (1, 2, 4, 8, 16, 32, 64, 128)

# Of a movie.
PICTURE = 288  # height of both pictures, in pixels
SHARP_FACTOR = 3  # from which on pixels are enlarged by whole numbers only
MARGIN = 16
TEXT_WIDTH = 272
SIZES = 26, 17, 13  # of letters
GROUND, INK, QUIET, ACCENT, TRACK = "#14181d", "#f1f3f5", "#98a1ad", "#7ea6ff", "#2a3038"
MOST_LINES = 6  # words or actions
FRAMES_PER_SECOND = 4
FORMATS: dict[str, dict[str, Any]] = {
    ".gif": {"duration": 1000 / FRAMES_PER_SECOND, "loop": 0},
    ".mp4": {"fps": FRAMES_PER_SECOND, "macro_block_size": 16},
}

Packed = dict[str, object]


class EpisodePage:
    """Gathers episodes as they are played and writes their page.

    Args:
        title: The agent and its task.
        actions: The names of the A actions, or of the numbers of a continuous one.
        numbers: The names of a vector's numbers, the first of them or all.
        legend: The meaning of the colours of the whole world.
    """

    def __init__(
        self, title: str, actions: Sequence[str], numbers: Sequence[str] = (), legend: str = ""
    ) -> None:
        self._title, self.actions = title, actions
        self._names, self._legend = numbers, legend
        self._episodes: list[dict[str, Any]] = []
        self._looks: list[tuple[dict[str, Any], str, np.ndarray]] = []
        self._words: dict[str, int] = {}
        self._sentences: dict[str, int] = {}
        self._pictures = {"views": Pictures(), "wholes": Pictures()}

    def add(self, recording: Recording, saliency: np.ndarray | None = None) -> None:
        """Take in an episode that was recorded in detail, and the saliency of its first S steps."""
        arrays = recording.steps | recording.details
        frames = {}
        if is_picture(arrays):
            frames["views"] = coloured(arrays["observations"])
        if "overviews" in arrays:
            frames["wholes"] = arrays["overviews"]
        numbers = {name: self._pictures[name].add(shown) for name, shown in frames.items()}
        said = {name: arrays[kept] for name, kept in TEXTS.items() if kept in arrays}
        episode = {
            "return": recording.episode.episode_return,
            **{name: packed(of.astype(np.uint16)) for name, of in numbers.items()},
            **{name: numbered(texts, self._sentences) for name, texts in said.items()},
            **{
                name: packed(arrays[kept].astype(kind if arrays[kept].ndim == 1 else np.float32))
                for name, (kept, kind) in NUMBERS.items()
                if kept in arrays
            },
            **judged_actions(arrays),
        }
        vectors = arrays.get("vectors" if is_picture(arrays) else "observations")
        if vectors is not None:
            episode["numbers"] = packed(vectors.reshape(len(vectors), -1).astype(np.float32))
        if "words" in arrays:
            cosines = np.rint(COSINE_STEPS * arrays["similarities"])
            episode["words"] = numbered(arrays["words"], self._words)
            episode["similarities"] = packed(cosines.astype(np.int16))
        if "attention" in arrays:
            self._looks.append((episode, "attention", looking_back(arrays["attention"])))
            episode["seen"] = arrays["attention"].shape[-1]
        if saliency is not None:
            shares = quantized(saliency[np.tril_indices(len(saliency))])
            self._looks.append((episode, "saliency", shares[None, None]))
        self._episodes.append(episode)

    def data(self, facts: Mapping[str, str]) -> dict[str, Any]:
        looks, coarseness = packed_within([shares for *_, shares in self._looks], LOOKS_BYTES)
        for (episode, name, _), shares in zip(self._looks, looks, strict=True):
            episode[name] = shares
        return {
            "title": self._title,
            "facts": facts,
            "actions": self.actions,
            "numbers": self._names,
            "legend": self._legend,
            "words": list(self._words),
            "sentences": list(self._sentences),
            "leastAttention": (coarseness // 2 / 255) ** 2,
            "pictures": {
                name: pictures.packed(PICTURE_BYTES)
                for name, pictures in self._pictures.items()
                if pictures.shape
            },
            "episodes": self._episodes,
        }

    def write(self, path: Path, facts: Mapping[str, str]) -> None:
        page, style, *scripts = (
            (HERE / name).read_text(encoding="utf-8")
            for name in ("template.html", "page.css", *SCRIPTS)
        )
        # Escaped: a "</script>" in a text would end the script.
        data = json.dumps(self.data(facts), separators=(",", ":")).replace("<", "\\u003c")
        for name, part in {"style": style, "script": "\n".join(scripts), "data": data}.items():
            page = page.replace(f"{{{{{name}}}}}", part)
        with atomic_write(path) as file:
            file.write(page.encode())


def page_of(env: Environments, agent: Agent, title: str) -> EpisodePage:
    """Return an empty page for these environments, with the words for all it shows."""
    actions, numbers, picture = env.legend()
    return EpisodePage(title, actions, numbers or agent.reader.number_names, picture)


def is_picture(arrays: Mapping[str, np.ndarray]) -> bool:
    """Return whether the observations of T steps are images [T, C, H, W], not vectors [T, F]."""
    return "observations" in arrays and arrays["observations"].ndim == 4


def judged_actions(arrays: Mapping[str, np.ndarray]) -> dict[str, Packed]:
    """Return the probability or the value of each action [T, A], or of the best of many [T, K].

    Of many, the chosen action is always kept, and the actions' numbers [T, K] stand beside.
    """
    name = next((name for name in ("probabilities", "action_values") if name in arrays), None)
    if name is None:
        return {}
    judged, chosen, ranked = arrays[name], arrays["actions"], {}
    if judged.shape[1] > MOST_ACTIONS:
        best = np.argsort(-judged, axis=1, kind="stable")[:, :BEST_ACTIONS]
        is_missing = (best != chosen[:, None]).all(1)
        best[is_missing, -1] = chosen[is_missing]
        judged = np.take_along_axis(judged, best, 1)
        ranked = {"ranked": packed(best.astype(np.uint16))}
    if name == "probabilities":
        return ranked | {"probabilities": packed(quantized(judged))}
    return ranked | {"actionValues": packed(judged.astype(np.float32))}


def numbered(texts: np.ndarray, table: dict[str, int]) -> Packed:
    numbers = [table.setdefault(str(text), len(table)) for text in texts.flat]
    kind = np.uint16 if len(table) <= 1 << 16 else np.uint32
    return packed(np.array(numbers, kind).reshape(texts.shape))


def packed(array: np.ndarray) -> Packed:
    return _packed_bytes(zlib.compress(np.ascontiguousarray(array).tobytes(), 9), array)


def quantized(shares: np.ndarray) -> np.ndarray:
    """Return numbers in [0, 1] as uint8, with a finer scale for small ones: round(255 sqrt(x))."""
    return np.rint(255 * np.sqrt(np.clip(shares.astype(np.float32), 0, 1))).astype(np.uint8)


def coloured(images: np.ndarray) -> np.ndarray:
    """Return images [T, C, H, W] as pictures [T, H, W, 3]."""
    # Unless there are three channels the last is shown in grey: the newest of stacked frames.
    if images.shape[1] != PIXEL_COLOURS:
        images = images[:, -1:].repeat(PIXEL_COLOURS, axis=1)
    return images.transpose(0, 2, 3, 1)


def looking_back(attention: np.ndarray) -> np.ndarray:
    """Return an episode's attention, its steps one after the other.

    [T, L, H, S], of each step to the last S, oldest first → quantised [L, H, R], where step t has
    the latest min(t+1, S) steps.
    """
    n_steps, *_, n_seen = attention.shape
    exists = np.arange(n_seen) >= n_seen - 1 - np.arange(n_steps)[:, None]  # [T, S]
    return quantized(attention.transpose(1, 2, 0, 3)[:, :, exists])


def packed_within(arrays: Sequence[np.ndarray], max_bytes: float) -> tuple[list[Packed], int]:
    """Pack uint8 arrays in `max_bytes`, rounded to a step as small as fits; return it, too."""
    for step in COARSENESS:
        blobs = [zlib.compress(rounded(array, step).tobytes(), 6) for array in arrays]
        if sum(map(len, blobs)) <= max_bytes:
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
    """Pictures of one size; equal ones are kept once, and so are equal tiles."""

    # A picture of a grid world is a few tiles over and over; one without repetition is one tile.

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
        numbers = []
        for frame in frames:
            number = self._numbers.setdefault(frame.tobytes(), len(self._maps))
            if number == len(self._maps):
                tiles = tiled(frame[None], self._tile)
                found = [self._tiles.setdefault(t.tobytes(), len(self._tiles)) for t in tiles]
                self._maps.append(np.array(found))
            numbers.append(number)
        return np.array(numbers)

    def packed(self, max_bytes: float) -> Packed:
        """Return the pictures with an atlas of at most `max_bytes` if any quality allows."""
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


def best_tile(frames: np.ndarray) -> tuple[int, int]:
    """Return height and width of the tiles that describe frames [T, H, W, 3] most briefly."""
    height, width = frames.shape[1:3]
    common = math.gcd(height, width)
    sides = [side for side in range(SMALLEST_TILE, common + 1) if common % side == 0]
    costs = {}  # approximate bytes: the pixels of the tiles and their numbers
    for tile in [(height, width), *((side, side) for side in sides)]:
        tiles = tiled(frames, tile)
        costs[tile] = len({each.tobytes() for each in tiles}) * tiles[0].size + 2 * len(tiles)
    return min(costs, key=lambda tile: costs[tile])


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
    from PIL import Image

    picture = Image.fromarray(image)
    for quality in (None, *LOSSY_QUALITIES):
        file = io.BytesIO()
        picture.save(file, "WEBP", lossless=quality is None, quality=quality or 80)
        if file.tell() <= max_bytes:
            break
    return file.getvalue()


def write_movies(path: Path, recording: Recording, actions: Sequence[str]) -> None:
    partials = {ending: path.with_suffix(f".partial{ending}") for ending in FORMATS}
    try:
        _encode(partials, recording, actions)
        for ending, partial in partials.items():
            partial.replace(path.with_suffix(ending))
    except OSError as error:  # ffmpeg's errors have no reason
        reason = error.strerror or "the file is not whole. Is the disk full?"
        raise RunError(f"{path.with_suffix('.mp4')} and .gif cannot be written: {reason}") from None
    finally:
        for partial in partials.values():
            partial.unlink(missing_ok=True)


def _encode(paths: Mapping[str, Path], recording: Recording, actions: Sequence[str]) -> None:
    import imageio.v2 as imageio
    import imageio_ffmpeg  # type: ignore[import-untyped]

    with contextlib.ExitStack() as stack:
        writers: list[Any] = [
            stack.enter_context(imageio.get_writer(paths[ending], **options))
            for ending, options in FORMATS.items()
        ]
        for frame in frames(recording, actions):
            for writer in writers:
                writer.append_data(frame)
    try:  # the package ignores ffmpeg's exit status
        n_frames, _ = imageio_ffmpeg.count_frames_and_secs(str(paths[".mp4"]))
    except RuntimeError as error:
        raise OSError(str(error)) from None
    if n_frames != recording.episode.length:
        raise OSError(f"{n_frames} frames of {recording.episode.length}")


def frames(recording: Recording, actions: Sequence[str]) -> Iterator[np.ndarray]:
    """Yield one frame a step.  [H, W, 3] uint8, both sides multiples of 16"""
    from PIL import Image, ImageDraw

    arrays = recording.steps | recording.details
    for step in range(recording.episode.length):
        pictures = []
        if is_picture(arrays):
            pictures.append(_enlarged(coloured(arrays["observations"][step : step + 1])[0]))
        if "overviews" in arrays:
            pictures.append(_enlarged(arrays["overviews"][step]))
        width = sum(picture.width + MARGIN for picture in pictures) + TEXT_WIDTH + 2 * MARGIN
        # Video encoders would rescale sides that are no multiples of 16.
        columns, rows = (-(-side // 16) * 16 for side in (width, PICTURE + 2 * MARGIN))
        frame = Image.new("RGB", (columns, rows), GROUND)
        left = MARGIN
        for picture in pictures:
            frame.paste(picture, (left, MARGIN + (PICTURE - picture.height) // 2))
            left += picture.width + MARGIN
        _write(ImageDraw.Draw(frame), left, arrays, step, actions)
        yield np.asarray(frame)


def _enlarged(picture: np.ndarray) -> "Image.Image":
    """Return a picture [H, W, 3] about PICTURE high, its pixels sharp if they are large."""
    from PIL import Image

    image = Image.fromarray(picture)
    factor = max(1, PICTURE // image.height)
    if factor * image.height != PICTURE and factor < SHARP_FACTOR:
        return image.resize((image.width * PICTURE // image.height, PICTURE))
    return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)


def _write(
    draw: "ImageDraw.ImageDraw",
    left: int,
    arrays: Mapping[str, np.ndarray],
    step: int,
    actions: Sequence[str],
) -> None:
    from PIL import ImageFont

    large, normal, small = (ImageFont.load_default(size) for size in SIZES)
    value = f"value {arrays['values'][step]:.2f}    " if "values" in arrays else ""
    numbers = f"{value}return so far {float(arrays['rewards'][:step].sum()):.2f}"
    draw.text((left, MARGIN), f"step {step + 1} of {len(arrays['actions'])}", QUIET, small)
    taken = arrays["actions"][step]
    numbers_given = (
        ", ".join(f"{number:.2f}" for number in taken[:MOST_LINES]) if taken.ndim else ""
    )
    draw.text((left, MARGIN + 16), numbers_given or actions[int(taken)], INK, large)
    draw.text((left, MARGIN + 52), numbers, QUIET, small)
    lines: list[tuple[str, float]] = []
    if "words" in arrays:
        lines = list(zip(arrays["words"][step], arrays["similarities"][step], strict=True))
    elif "probabilities" in arrays:
        lines = list(zip(actions, arrays["probabilities"][step], strict=True))
    top, right = MARGIN + 86, left + TEXT_WIDTH
    for name, share in lines[:MOST_LINES]:
        draw.text((left, top), str(name), INK, normal)
        draw.text((right, top + 3), f"{share:.2f}", QUIET, small, anchor="ra")
        draw.rectangle((left, top + 24, right, top + 27), TRACK)
        filled = left + round(TEXT_WIDTH * float(np.clip(share, 0, 1)))
        draw.rectangle((left, top + 24, filled, top + 27), ACCENT)
        top += 34
