"""What there is to say of players in words, whether from their worlds or from their pictures."""

from typing import NamedTuple, TypeVar

import numpy as np

from envs.crafter import words
from envs.crafter.step import look
from envs.crafter.tiles import Facts, facts_of
from envs.crafter.world import ITEMS, N_VITALS
from utils.arrays import objects

Value = TypeVar("Value")


class Said(NamedTuple):
    """What there is to say of R players.

    Attributes:
        scene, inventory, status: The three sentences.
        items: How many of each thing are held, by name.
    """

    scene: list[str]
    inventory: list[str]
    status: list[str]
    items: list[dict[str, int]]

    def captions(self) -> tuple[str, ...]:
        """Return the sentences of each player as one text."""
        sentences = zip(self.scene, self.inventory, self.status, strict=True)
        return tuple(" ".join(filter(None, each)) for each in sentences)

    def info(self, others: dict[str, str]) -> dict[str, np.ndarray]:
        """Return each part as an array [R] of objects, under another name where one is given."""
        parts = self._asdict().items()
        return {others.get(name, name): objects(part) for name, part in parts}

    def replaced(self, rows: np.ndarray, fresh: "Said") -> "Said":
        """Return the same with other things said of some rows."""
        numbers = rows.tolist()
        return Said(
            _replaced(self.scene, numbers, fresh.scene),
            _replaced(self.inventory, numbers, fresh.inventory),
            _replaced(self.status, numbers, fresh.status),
            _replaced(self.items, numbers, fresh.items),
        )


def said_of_worlds(worlds: np.ndarray) -> Said:
    """Say what the players of worlds [R] see, hold and feel."""
    sight = np.empty((len(worlds), 5), np.int64)
    look(worlds, sight)
    return _said(Facts(sight, worlds["inventory"]))


def said_of_tiles(probabilities: np.ndarray) -> Said:
    """Say what pictures show, given how likely each tile shows what.  [R, K, 9, 9]"""
    return _said(facts_of(probabilities))


def sentences(facts: Facts) -> tuple[list[str], list[str], list[str]]:
    """Return scenes, inventories and statuses of R players."""
    rows = facts.sight.tolist()
    return (
        [words.scene_sentence(*row[:3]) for row in rows],
        [words.inventory_sentence(row[3]) for row in rows],
        [words.status_sentence(row[4]) for row in rows],
    )


def _said(facts: Facts) -> Said:
    return Said(*sentences(facts), [_held(amounts) for amounts in facts.items.tolist()])


def _held(amounts: list[int]) -> dict[str, int]:
    """Return how many of each thing are held, those that are."""
    things = zip(ITEMS[N_VITALS:], amounts[N_VITALS:], strict=True)
    return {name: amount for name, amount in things if amount}


def _replaced(values: list[Value], rows: list[int], fresh: list[Value]) -> list[Value]:
    """Return values with those of some rows replaced."""
    new = dict(zip(rows, fresh, strict=True))
    return [new.get(row, value) for row, value in enumerate(values)]
