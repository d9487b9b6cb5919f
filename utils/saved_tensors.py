"""Reading what `torch.save` wrote; a file can hold data only, never code."""

import warnings
from pathlib import Path
from typing import Any, BinaryIO

import torch


def load_saved(file: Path | BinaryIO) -> Any:
    """Return the content of a file on the CPU, with nothing in it run.

    Raises:
        Exception: of any kind; torch documents no set of exceptions for a bad file.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a file that is refused needs no warning besides
        return torch.load(file, map_location="cpu", weights_only=True)
