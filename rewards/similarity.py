"""How much a phrase that was done is like a goal that was suggested."""

from collections.abc import Iterable
from functools import cached_property

import torch
from torch import Tensor

from models.sentence_encoder import SentenceEncoder, load_sentence_encoder
from utils.starting import one_thread

SAME_TEXT = "same-text"


class SameText:
    """1 for two texts that are the same letter by letter, 0 for others.

    Attributes:
        fingerprint: Says that there are no weights.
    """

    fingerprint = SAME_TEXT

    def best(self, phrase: str, goals: Iterable[str]) -> tuple[str | None, float]:
        """Return the goal that is most like a phrase, and how much it is."""
        return (phrase, 1.0) if phrase in goals else (None, 0.0)


class SentenceSimilarity:
    """The cosine of the vectors that a frozen sentence encoder makes of two texts.

    Each text is read once, by itself and with one thread, so that the same bits come out with any
    number of them. The cosine is x.y / sqrt(x.x * y.y) in double precision, which of two equal
    vectors is exactly 1: a phrase that is among the goals need not be read for that.

    Args:
        name_or_folder: Of the encoder.

    Raises:
        UserError: there is none.
    """

    def __init__(self, name_or_folder: str) -> None:
        self._encoder: SentenceEncoder = load_sentence_encoder(name_or_folder, "goal_encoder")
        self._vectors: dict[str, Tensor] = {}
        self._cosines: dict[tuple[str, str], float] = {}

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of the encoder's weights."""
        return self._encoder.fingerprint

    def best(self, phrase: str, goals: Iterable[str]) -> tuple[str | None, float]:
        """Return the goal that is most like a phrase, the first of equals, and how much it is.

        The phrase itself comes before others; None and 0 where there are no goals.
        """
        goals = list(goals)
        if not goals or phrase in goals:
            return (phrase, 1.0) if goals else (None, 0.0)
        goal = max(goals, key=lambda each: self.cosine(phrase, each))
        return goal, self.cosine(phrase, goal)

    def cosine(self, one: str, other: str) -> float:
        """Return how much two texts are alike, from -1 to 1."""
        pair = (one, other)
        if pair not in self._cosines:
            x, y = self._vector(one), self._vector(other)
            self._cosines[pair] = (x.dot(y) / torch.sqrt(x.dot(x) * y.dot(y))).item()
        return self._cosines[pair]

    def _vector(self, text: str) -> Tensor:
        """Return what the encoder makes of a text.  [D] float64"""
        if text not in self._vectors:
            with one_thread():
                self._vectors[text] = self._encoder([text])[0].double()
        return self._vectors[text]


Similarity = SameText | SentenceSimilarity


def similarity(name: str) -> Similarity:
    """Return how texts are compared: letter by letter, or by a sentence encoder of this name.

    Raises:
        UserError: there is no such encoder.
    """
    return SameText() if name == SAME_TEXT else SentenceSimilarity(name)
