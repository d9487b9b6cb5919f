"""Numbers of the original implementation, under the names our modules give them."""

from pathlib import Path

import numpy as np
import torch

GOLDEN = Path(__file__).parent / "golden"
OUR_NAMES = {
    "block1.0.": "convolutions.0.",
    "block2.0.": "convolutions.2.",
    "fc.": "linear.",
    "actor.actor.": "heads.actor.",
    "critic.": "heads.critic.",
}


def load(name):
    """Return every array of a golden file as a tensor."""
    with np.load(GOLDEN / f"{name}.npz") as arrays:
        return {key: _tensor(np.asarray(arrays[key])) for key in arrays.files}


def _tensor(array):
    """Return an array of numbers as a tensor, and one of text as it is."""
    return array if array.dtype.kind == "U" else torch.from_numpy(array)


def under(arrays, prefix):
    """Return the arrays under a prefix, by the rest of their names."""
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


def parameters(arrays, prefix):
    """Return the parameters under a prefix, renamed to ours."""
    found = {}
    for name, value in under(arrays, prefix).items():
        for theirs, ours in OUR_NAMES.items():
            name = name.replace(theirs, ours)
        found[name] = value
    return found
