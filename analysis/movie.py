"""Movies of an episode: view, whole world, words, action and value in one frame."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.page import coloured, is_picture
from trainers.evaluation import Recording
from utils.errors import RunError

if TYPE_CHECKING:
    from PIL import Image, ImageDraw

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
    draw.text((left, MARGIN + 16), actions[int(arrays["actions"][step])], INK, large)
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
