"""Our own household: rooms, their receptacles, and which things belong where.

data/household/places.json holds it, written by us from common sense. It is no data of Housekeep
(Kant et al. 2022, arXiv:2205.10712), whose rankings come from people who were asked.
"""

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

PLACES_FILE = Path(__file__).resolve().parents[2] / "data" / "household" / "places.json"
NOWHERE = -1  # pads lists of places


class House(NamedTuple):
    """The rooms of a house, in their order.

    Attributes:
        rooms: Their names.  R
        places: Receptacles, each with its room: "kitchen sink".  P
        room_of: The room of each place.  [P]
        numbers_in_room: Which one of its room each place is.  [P]
        first_places: Of each room.  [R]
        things: What belongs somewhere in this house, but not everywhere.  K
        thing_numbers: Of each among those of all houses.  [K]
        suits: Whether a thing belongs in a place.  [K, P]
    """

    rooms: tuple[str, ...]
    places: tuple[str, ...]
    room_of: np.ndarray
    numbers_in_room: np.ndarray
    first_places: np.ndarray
    things: tuple[str, ...]
    thing_numbers: np.ndarray
    suits: np.ndarray

    def suitable(self) -> dict[str, list[str]]:
        """Return the names of the places where each thing belongs."""
        return {
            thing: [place for place, is_right in zip(self.places, row, strict=True) if is_right]
            for thing, row in zip(self.things, self.suits.tolist(), strict=True)
        }


@cache
def _catalogue() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the receptacles of all rooms, and the places of all things."""
    found = json.loads(PLACES_FILE.read_text(encoding="utf-8"))
    return found["rooms"], found["belongs"]


def house_of(n_rooms: int) -> House:
    """Return the house of the first rooms."""
    all_rooms, belongs = _catalogue()
    rooms = tuple(all_rooms)[:n_rooms]
    places = tuple(f"{room} {name}" for room in rooms for name in all_rooms[room])
    sizes = [len(all_rooms[room]) for room in rooms]
    suits = np.array([[place in own for place in places] for own in belongs.values()])
    kinds = np.flatnonzero(suits.any(1) & ~suits.all(1))
    firsts = np.cumsum([0, *sizes[:-1]])
    room_of = np.repeat(np.arange(n_rooms), sizes)
    numbers = np.arange(len(places)) - firsts[room_of]
    things = tuple(list(belongs)[kind] for kind in kinds)
    return House(rooms, places, room_of, numbers, firsts, things, kinds, suits[kinds])


def places_that(suit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the places that suit each thing, first in its row, and how many they are.

    Args:
        suit: Whether they do.  [K, P]

    Returns:
        Places [K, P], padded, and their number [K].
    """
    lists = np.full(suit.shape, NOWHERE)
    for own, row in zip(lists, suit, strict=True):
        found = np.flatnonzero(row)
        own[: len(found)] = found
    return lists, suit.sum(1)
