"""Arrays of things that are not numbers."""

from collections.abc import Iterable
from typing import Any

import numpy as np


def objects(parts: Iterable[Any]) -> np.ndarray:
    """Return N things as an array of objects, tuples and dictionaries included.  [N]"""
    things = list(parts)
    array = np.empty(len(things), dtype=object)
    array[:] = things
    return array
