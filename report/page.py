"""The episode page: everything of an evaluation in one HTML file that needs no network."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from report.packing import (
    Packed,
    Pictures,
    coloured,
    looking_back,
    packed,
    packed_within,
    quantized,
)
from trainers.evaluation import Recording
from utils.files import written_whole

HERE = Path(__file__).parent
SCRIPTS = ("decode.js", "charts.js", "player.js", "page.js")
# What compressed bytes may take, so that ten episodes stay under 5 MB once written as text.
ATTENTION_BYTES = 1.5e6
PICTURE_BYTES = 0.6e6
TEXTS = {  # of an episode, by their names in the page
    "text": "text",
    "caption": "caption",
    "suggestions": "suggestions",
    "phrases": "phrase",
    "matched": "matched",
    "unlocked": "unlocked",
}
MOST_ACTIONS, BEST_ACTIONS = 24, 12  # up to so many are all shown; of more so many
COSINE_STEPS = 10_000  # cosines are kept to four decimals


class EpisodePage:
    """Gathers episodes as they are played and writes their page.

    Args:
        title: Who played what.
        actions: What the A actions are called.
        numbers: What the numbers of a vector are called, the first of them or all.
        legend: What the colours of the whole world mean.
    """

    def __init__(
        self, title: str, actions: Sequence[str], numbers: Sequence[str] = (), legend: str = ""
    ) -> None:
        self._title, self._actions = title, actions
        self._names, self._legend = numbers, legend
        self._episodes: list[dict[str, Any]] = []
        self._attention: list[np.ndarray] = []
        self._words: dict[str, int] = {}
        self._sentences: dict[str, int] = {}
        self._pictures = {"views": Pictures(), "wholes": Pictures()}

    def add(self, recording: Recording) -> None:
        """Take in an episode that was recorded in detail."""
        arrays = recording.steps | recording.details
        frames = {}
        if is_picture(arrays):
            frames["views"] = coloured(arrays["observations"])
        if "overviews" in arrays:
            frames["wholes"] = arrays["overviews"]
        numbers = {name: self._pictures[name].add(shown) for name, shown in frames.items()}
        self._episodes.append(
            {
                "return": recording.episode.episode_return,
                **{name: packed(of.astype(np.uint16)) for name, of in numbers.items()},
                **_numbers(arrays),
                **self._told(arrays),
                **_reached(arrays),
                **_course(arrays),
                **self._retrieved(arrays),
            }
        )
        if "attention" in arrays:
            self._attention.append(looking_back(arrays["attention"]))
            self._episodes[-1]["seen"] = arrays["attention"].shape[-1]

    def data(self, facts: Mapping[str, str]) -> dict[str, Any]:
        """Return all that the page shows, as JSON can hold it; the facts stand at its head."""
        attention, coarseness = packed_within(self._attention, ATTENTION_BYTES)
        for episode, looks in zip(self._episodes, attention, strict=False):
            episode["attention"] = looks
        return {
            "title": self._title,
            "facts": facts,
            "actions": self._actions,
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
        """Write the page."""
        # No "<" may stand in a script, lest a word should end it.
        data = json.dumps(self.data(facts), separators=(",", ":")).replace("<", "\\u003c")
        parts = {
            "style": (HERE / "page.css").read_text(encoding="utf-8"),
            "script": "\n".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS),
            "data": data,
        }
        page = (HERE / "template.html").read_text(encoding="utf-8")
        for name, part in parts.items():
            page = page.replace(f"{{{{{name}}}}}", part)
        with written_whole(path) as file:
            file.write(page.encode())

    def _told(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Packed]:
        """Return the texts of an episode by their numbers: [T, K], or [T] where each has one."""
        told = {name: arrays[kept] for name, kept in TEXTS.items() if kept in arrays}
        return {name: _numbered(texts, self._sentences) for name, texts in told.items()}

    def _retrieved(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Packed]:
        """Return the words of an episode [T, K] by their numbers, with their cosines."""
        if "words" not in arrays:
            return {}
        cosines = np.rint(COSINE_STEPS * arrays["similarities"])
        return {
            "words": _numbered(arrays["words"], self._words),
            "similarities": packed(cosines.astype(np.int16)),
        }


def _numbered(texts: np.ndarray, table: dict[str, int]) -> Packed:
    """Return texts by their numbers in a table, which gets those it has not."""
    numbers = [table.setdefault(str(text), len(table)) for text in texts.flat]
    kind = np.uint16 if len(table) <= 1 << 16 else np.uint32
    return packed(np.array(numbers, kind).reshape(texts.shape))


def is_picture(arrays: Mapping[str, np.ndarray]) -> bool:
    """Return whether the observations of T steps are images [T, C, H, W], not vectors [T, F]."""
    return "observations" in arrays and arrays["observations"].ndim == 4


def _numbers(arrays: Mapping[str, np.ndarray]) -> dict[str, Packed]:
    """Return the numbers of vectors, [T, F]; nothing where there are none."""
    vectors = arrays.get("vectors" if is_picture(arrays) else "observations")
    if vectors is None:
        return {}
    return {"numbers": packed(vectors.reshape(len(vectors), -1).astype(np.float32))}


def _course(arrays: Mapping[str, np.ndarray]) -> dict[str, Packed]:
    """Return what an episode has one number of at each step, and the actions' probabilities."""
    course = {"actions": packed(arrays["actions"].astype(np.uint16))}
    for name in ("rewards", "values", "entropy"):
        if name in arrays:
            course[name] = packed(arrays[name].astype(np.float32))
    return course | _judged(arrays)


def _judged(arrays: Mapping[str, np.ndarray]) -> dict[str, Packed]:
    """Return how probable each action is, or what it is worth, [T, A]; of many the best, [T, K].

    Which those are, [T, K], stands beside them then.
    """
    name = next((name for name in ("probabilities", "action_values") if name in arrays), None)
    if name is None:
        return {}
    judged, ranked = arrays[name], {}
    if judged.shape[1] > MOST_ACTIONS:
        best = best_actions(judged, arrays["actions"])
        judged, ranked = np.take_along_axis(judged, best, 1), {"ranked": packed(best)}
    if name == "probabilities":
        return ranked | {"probabilities": packed(quantized(judged))}
    return ranked | {"actionValues": packed(judged.astype(np.float32))}


def best_actions(judged: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return the best actions of each step, the best first; the chosen one is among them.

    Args:
        judged: How good each action is.  [T, A]
        chosen: Which was taken.  [T]

    Returns:
        Their numbers.  [T, BEST_ACTIONS] uint16
    """
    best = np.argsort(-judged, axis=1, kind="stable")[:, :BEST_ACTIONS]
    is_missing = (best != chosen[:, None]).all(1)
    best[is_missing, -1] = chosen[is_missing]
    return best.astype(np.uint16)


def _reached(arrays: Mapping[str, np.ndarray]) -> dict[str, Packed]:
    """Return what each step was paid for goals, and whether reaching one changed the world."""
    kinds = {"goal_rewards": ("goalRewards", np.float32), "goal_success": ("changed", np.uint8)}
    return {
        name: packed(arrays[kept].astype(kind))
        for kept, (name, kind) in kinds.items()
        if kept in arrays
    }
