"""What becomes of an environment's numbers: some turn infinite or wrap, others lose digits.

A batch of observations has the dtype of their space, and networks compute in float32.
"""

import math

import numpy as np

from envs.notices import say_once
from utils.errors import EnvFault, shortened

NUMBERS = (int, float, np.number, np.bool_)
READ = np.dtype(np.float32)  # by all networks
LARGEST = float(np.finfo(READ).max)
EXACT = 2.0 ** (np.finfo(READ).nmant + 1)  # up to here float32 has every whole number
UNITS = 2.0**53  # beyond it float64 has not every whole number either
LOSES = "Subtract an offset, or scale it, if its last digits tell something"


class Narrowing:
    """Numbers on their way into another dtype.

    Those that turn infinite or wrap there are an EnvFault. Whole ones that lose digits are told
    once. Where the dtype of an array makes neither possible, nothing is computed.
    """

    def __init__(self, kind: np.dtype, name: str, verb: str = "shows") -> None:
        self._kind, self._name, self._verb, self._is_told = kind, name, verb, False
        self._is_float = kind.kind == "f"
        if self._is_float:
            self._high = 2.0 ** (np.finfo(kind).nmant + 1)
            self._low = -self._high
        else:
            self._low, self._high = np.iinfo(kind).min, np.iinfo(kind).max
        self._why = "in which networks compute" if kind == READ else "the dtype of its space"

    def check(self, array: np.ndarray, where: str) -> None:
        """Check finite numbers, which came from "step()", say; EnvFault where one does not fit."""
        if np.can_cast(array.dtype, self._kind) or self._is_inside(array):
            return
        with np.errstate(all="ignore"):
            kept = array.astype(self._kind)
        beyond = (array < self._low) | (array > self._high)
        wrong = ~np.isfinite(kept) if self._is_float else beyond
        if wrong.any():
            remedy = "Scale it"
            if self._kind != READ:
                remedy = f"Give the space a dtype that holds it, such as {array.dtype}"
            raise EnvFault(f"{self._became(array, kept, wrong, where)}. {remedy}")
        if not self._is_float or self._is_told:
            return
        wide = np.longdouble  # holds int64, uint64 and float64
        lost = beyond & (kept.astype(wide) != array.astype(wide))
        if array.dtype.kind == "f":
            lost &= abs(array) <= UNITS
        if lost.any():
            self._is_told = True
            line = self._became(array, kept, lost, "")
            say_once(f"env: '{self._name}': {where}", f"{line}. {LOSES}")

    def _is_inside(self, array: np.ndarray) -> bool:
        if not array.size:
            return True
        if array.dtype.kind == "f":
            # The sum of squares is quicker than the largest number, and mostly enough.
            with np.errstate(over="ignore"):
                if float(np.vdot(array, array)) <= self._high**2:
                    return True
        return bool(array.min() >= self._low and array.max() <= self._high)

    def _became(self, array: np.ndarray, kept: np.ndarray, rows: np.ndarray, where: str) -> str:
        before, after = array[rows][0], kept[rows][0]
        if array.dtype.kind in "iu" and math.isfinite(after):
            after = int(after)  # prints all its digits
        kinds = f"({array.dtype}), which is {after} in {self._kind}, {self._why}"
        return f"{where} {self._verb} {before} {kinds}"


def narrowings(kind: np.dtype, name: str) -> list[Narrowing]:
    """Return the ways of a Box's numbers: into the dtype of its space, and into float32."""
    return [Narrowing(each, name) for each in dict.fromkeys((kind, READ)) if each.kind in "fiu"]


def check_reward(reward: object, name: str) -> None:
    """Check a reward that may be beyond EXACT; EnvFault unless it is finite, in float32 too."""
    kind = type(reward).__name__
    if not isinstance(reward, NUMBERS) or (
        not isinstance(reward, int) and not math.isfinite(reward)
    ):
        raise EnvFault(f"step() pays {reward!s:.100} ({kind}), and a reward is a finite number")
    paid = reward.item() if isinstance(reward, np.generic) else reward
    if abs(paid) > LARGEST:
        raise EnvFault(
            f"step() pays {shortened(str(paid))} ({kind}), which is infinite in float32, in which "
            "networks compute. Scale it"
        )
    kept = float(np.float32(paid))
    if kept != paid and EXACT < abs(paid) <= (UNITS if isinstance(paid, float) else LARGEST):
        subject = f"env: '{name}': step() pays"
        say_once(subject, f" {paid} ({kind}), which is {kept:.0f} in float32. {LOSES}")
