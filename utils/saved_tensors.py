"""What `torch.save` writes, and reading it; a file can hold data only, never code."""

import warnings
from pathlib import Path
from typing import Any, BinaryIO

import torch


def save_tensors(value: Any, file: BinaryIO) -> None:
    """Write like `torch.save`, which hides an error of the disk behind one of its own."""
    try:
        torch.save(value, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def load_saved(file: Path | BinaryIO) -> Any:
    """Return the content of a file on the CPU, with nothing in it run.

    Raises:
        Exception: of any kind; torch documents no set of exceptions for a bad file.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a file that is refused needs no warning besides
        return torch.load(file, map_location="cpu", weights_only=True)
