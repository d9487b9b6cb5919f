"""What environments say of a step in words, in `info`: kept with the episode, to be looked at."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np


class Said(NamedTuple):
    """Something that is said of every step.

    Attributes:
        reads: Returns it as it is kept; None where something else goes by its name.
        nothing: What stands where nothing is said.
    """

    reads: Callable[[Any], Any]
    nothing: Any


def _text(value: Any) -> str | None:
    return str(value) if isinstance(value, str) else None


def _texts(value: Any) -> tuple[str, ...] | None:
    is_texts = isinstance(value, tuple | list) and all(isinstance(each, str) for each in value)
    return tuple(map(str, value)) if is_texts else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float | np.number) else None


def _truth(value: Any) -> bool | None:
    return bool(value) if isinstance(value, bool | np.bool_) else None


SENTENCES = ("scene", "inventory", "status")
TEXT, TEXTS = Said(_text, ""), Said(_texts, ())
BEFORE = {"suggestions": TEXTS}  # an action: what is wanted
AFTER = {  # an action: what it was, and what came of it
    "phrase": TEXT,
    "matched": TEXT,
    "goal_success": Said(_truth, False),
    "goal_rewards": Said(_number, 0.0),
    "unlocked": TEXTS,
}
ALL = {"caption": TEXT, **BEFORE, **AFTER}

Narration = list[dict[str, Any]]


def told_before(info: Mapping[str, Any], n_envs: int) -> Narration:
    """Return what is said before an action, of each of N environments, by name.

    "caption" is the sentences of scene, inventory and status one after the other.
    """
    rows = _told(info, BEFORE, n_envs)
    sentences = _told(info, dict.fromkeys(SENTENCES, TEXT), n_envs)
    for row, said in zip(rows, sentences, strict=True):
        if len(said) == len(SENTENCES):
            row["caption"] = " ".join(filter(None, said.values()))
    return rows


def told_after(info: Mapping[str, Any], n_envs: int) -> Narration:
    """Return what is said of the action that was taken, of each of N environments, by name."""
    return _told(info, AFTER, n_envs)


def narrated(steps: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Return what was said in L steps as arrays that need no pickle, by name.

    Names that no step has are left out. Several texts a step are an array [L, K], filled up with
    empty ones; everything else is [L].
    """
    return {
        name: _array([step.get(name, said.nothing) for step in steps], said)
        for name, said in ALL.items()
        if any(name in step for step in steps)
    }


def _told(info: Mapping[str, Any], kinds: Mapping[str, Said], n_envs: int) -> Narration:
    """Return what is said under the names of `kinds`, where it is of that kind."""
    rows: Narration = [{} for _ in range(n_envs)]
    for name, said in kinds.items():
        values = info.get(name)
        if not (isinstance(values, np.ndarray) and values.shape == (n_envs,)):
            continue
        for row, value in zip(rows, values, strict=True):
            kept = said.nothing if value is None else said.reads(value)
            if kept is not None:
                row[name] = kept
    return rows


def _array(values: Sequence[Any], said: Said) -> np.ndarray:
    if said is not TEXTS:
        return np.array(values)
    longest = max(1, *map(len, values))
    return np.array([[*texts, *[""] * (longest - len(texts))] for texts in values])
