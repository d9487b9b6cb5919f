"""What stops a run: numbers that are not finite, a disk that cannot be written."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runs.folder import resume_command
from utils.errors import RunError
from utils.files import save_tensors, written_whole

BAD_MINIBATCH = "bad_minibatch.pt"


class NotFiniteError(Exception):
    """A loss or a gradient that is infinite or no number.

    Attributes:
        minibatch: The first that had one, with its epoch and number, as tensors and plain types.
    """

    def __init__(self, minibatch: dict[str, Any]) -> None:
        super().__init__(f"in epoch {minibatch['epoch']}, minibatch {minibatch['number']}")
        self.minibatch = minibatch


@contextmanager
def guarded(folder: Path) -> Iterator[None]:
    """Turn what stops a run in this folder into one line; its last good checkpoint stays."""
    try:
        with _bad_minibatch_saved(folder):
            yield
    except OSError as error:
        raise RunError(_not_writable(folder, error)) from None


@contextmanager
def _bad_minibatch_saved(folder: Path) -> Iterator[None]:
    try:
        yield
    except NotFiniteError as error:
        path = folder / BAD_MINIBATCH
        with written_whole(path) as file:
            save_tensors(error.minibatch, file)
        raise RunError(
            f"{folder}: a loss or gradient is not finite {error}; the minibatch is in {path}, "
            "the run's last good checkpoint stays"
        ) from None


def _not_writable(folder: Path, error: OSError) -> str:
    if not folder.is_dir():
        return f"{folder}: the run folder vanished while the run went on"
    place = error.filename or folder
    return f"{place}: {error.strerror or error}. Then go on with: {resume_command(folder)}"
