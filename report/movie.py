"""Movies of an episode: view, whole world, words, action and value in one frame."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from report.page import coloured, is_picture
from trainers.evaluation import Recording
from utils.errors import RunError

if TYPE_CHECKING:
    from PIL import Image, ImageDraw, ImageFont

PICTURE = 288  # height of both pictures, in pixels
SHARP_FACTOR = 3  # from which on pixels are enlarged by whole numbers only
MARGIN = 16
TEXT_WIDTH = 272
SIZES = {"large": 26, "normal": 17, "small": 13}
GROUND, INK, QUIET, ACCENT, TRACK = "#14181d", "#f1f3f5", "#98a1ad", "#7ea6ff", "#2a3038"
MOST_LINES = 6  # words or actions
FRAMES_PER_SECOND = 4
FORMATS: dict[str, dict[str, Any]] = {
    ".gif": {"duration": 1000 / FRAMES_PER_SECOND, "loop": 0},
    ".mp4": {"fps": FRAMES_PER_SECOND, "macro_block_size": 16},
}


def write_movies(path: Path, recording: Recording, actions: Sequence[str]) -> None:
    """Write an episode that was recorded in detail as .gif and as .mp4, whole or not at all.

    Args:
        path: Its ending is replaced.
        recording: The episode.
        actions: What the actions are called.

    Raises:
        RunError: they cannot be written.
    """
    partials = {ending: path.with_suffix(f".partial{ending}") for ending in FORMATS}
    try:
        _encode(partials, recording, actions)
        for ending, partial in partials.items():
            partial.replace(path.with_suffix(ending))
    except OSError as error:  # of the program that encodes, too, which gives no reason
        reason = error.strerror or "the file is not whole. Is the disk full?"
        raise RunError(f"{path.with_suffix('.mp4')} and .gif cannot be written: {reason}") from None
    finally:
        for partial in partials.values():
            partial.unlink(missing_ok=True)


def _encode(paths: Mapping[str, Path], recording: Recording, actions: Sequence[str]) -> None:
    """Write the movies; OSError where the disk does not take all of them."""
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
    try:  # the encoder's exit status is not looked at by the package
        n_frames, _ = imageio_ffmpeg.count_frames_and_secs(str(paths[".mp4"]))
    except RuntimeError as error:
        raise OSError(str(error)) from None
    if n_frames != recording.episode.length:
        raise OSError(f"{n_frames} frames of {recording.episode.length}")


def frames(recording: Recording, actions: Sequence[str]) -> Iterator[np.ndarray]:
    """Yield one frame a step.  [H, W, 3] uint8, both sides multiples of 16"""
    arrays = recording.steps | recording.details
    for step in range(recording.episode.length):
        yield np.asarray(_frame(arrays, step, actions))


def _frame(arrays: Mapping[str, np.ndarray], step: int, actions: Sequence[str]) -> "Image.Image":
    from PIL import Image, ImageDraw

    pictures = []
    if is_picture(arrays):
        pictures.append(coloured(arrays["observations"][step : step + 1])[0])
    if "overviews" in arrays:
        pictures.append(arrays["overviews"][step])
    shown = [_enlarged(picture) for picture in pictures]
    width = sum(picture.width + MARGIN for picture in shown) + TEXT_WIDTH + 2 * MARGIN
    size = (_multiple_of_16(width), _multiple_of_16(PICTURE + 2 * MARGIN))
    frame = Image.new("RGB", size, GROUND)
    left = MARGIN
    for picture in shown:
        frame.paste(picture, (left, MARGIN + (PICTURE - picture.height) // 2))
        left += picture.width + MARGIN
    _write(ImageDraw.Draw(frame), left, arrays, step, actions)
    return frame


def _enlarged(picture: np.ndarray) -> "Image.Image":
    """Return a picture [H, W, 3] about PICTURE high, its pixels sharp where they are large."""
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
    """Write what the agent does and remembers beside its pictures."""
    length = len(arrays["actions"])
    gained = float(arrays["rewards"][:step].sum())
    _text(draw, (left, MARGIN), f"step {step + 1} of {length}", "small", QUIET)
    _text(draw, (left, MARGIN + 16), actions[int(arrays["actions"][step])], "large")
    value = f"value {arrays['values'][step]:.2f}    " if "values" in arrays else ""
    numbers = f"{value}return so far {gained:.2f}"
    _text(draw, (left, MARGIN + 52), numbers, "small", QUIET)
    top = MARGIN + 86
    if "words" in arrays:
        lines = list(zip(arrays["words"][step], arrays["similarities"][step], strict=True))
    elif "probabilities" in arrays:
        lines = list(zip(actions, arrays["probabilities"][step], strict=True))
    else:
        lines = []
    for word, share in lines[:MOST_LINES]:
        _bar(draw, (left, top), str(word), float(share))
        top += 34


def _bar(draw: "ImageDraw.ImageDraw", at: tuple[int, int], word: str, share: float) -> None:
    """Write a word, its number, and the number as a bar under both."""
    left, top = at
    right = left + TEXT_WIDTH
    _text(draw, at, word, "normal")
    draw.text((right, top + 3), f"{share:.2f}", QUIET, _font("small"), anchor="ra")
    draw.rectangle((left, top + 24, right, top + 27), TRACK)
    filled = left + round(TEXT_WIDTH * min(max(share, 0.0), 1.0))
    draw.rectangle((left, top + 24, filled, top + 27), ACCENT)


def _text(
    draw: "ImageDraw.ImageDraw", at: tuple[int, int], text: str, size: str, fill: str = INK
) -> None:
    draw.text(at, text, fill, _font(size))


def _font(size: str) -> "ImageFont.FreeTypeFont | ImageFont.ImageFont":
    from PIL import ImageFont

    return ImageFont.load_default(SIZES[size])


def _multiple_of_16(pixels: int) -> int:
    """Return the next side that video encoders take as it is."""
    return -(-pixels // 16) * 16
