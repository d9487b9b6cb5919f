"""Our own household: which things belong where, what can be done there, and how it is drawn.

data/household/places.json holds rooms, receptacles and things, written by us from common sense. It
is no data of Housekeep (Kant et al. 2022, arXiv:2205.10712), whose rankings come from people who
were asked. Households are N houses in arrays, without rewards and without words. A plan of a house
has a row a room, a square a receptacle, a dot a thing.
"""

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

PLACES_FILE = Path(__file__).resolve().parents[2] / "data" / "household" / "places.json"
NEXT_ROOM, PREVIOUS_ROOM, NEXT_PLACE, PREVIOUS_PLACE, LOOK, TURN, PICK_UP, PLACE = range(8)
N_ACTIONS = 8
NONE = -1  # no thing is held or targeted; a thing that is held is nowhere; pads lists of places

SQUARE = 22  # pixels of a receptacle, its frame included
DOT, GAP, PER_ROW = 5, 1, 3
MOST_DOTS = PER_ROW * PER_ROW
WALL, FLOOR, UNKNOWN = (70, 70, 70), (250, 250, 250), (205, 205, 205)
RIGHT, WRONG, HELD, AGENT = (40, 150, 60), (210, 50, 40), (255, 150, 0), (40, 100, 230)
PICTURE_LEGEND = (
    "a row a room, a square a receptacle; blue frame: the agent; green: a thing where it belongs; "
    "red: one that is misplaced; orange: one that is held; grey: rooms not seen yet"
)


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
def house_of(n_rooms: int) -> House:
    """Return the house of the first rooms."""
    catalogue = json.loads(PLACES_FILE.read_text(encoding="utf-8"))
    all_rooms, belongs = catalogue["rooms"], catalogue["belongs"]
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
    lists = np.full(suit.shape, NONE)
    for own, row in zip(lists, suit, strict=True):
        found = np.flatnonzero(row)
        own[: len(found)] = found
    return lists, suit.sum(1)


class Deeds(NamedTuple):
    """What came of one action in each household.

    Attributes:
        succeeded: Whether it could be done.  [N]
        things: Which kind of thing was turned to, picked up or placed; NONE otherwise.  [N]
    """

    succeeded: np.ndarray
    things: np.ndarray


class Households:
    """N houses in which things lie about, and somebody in each.

    Args:
        house: The rooms, the same for all.
        n_envs: N.
        n_things: K, that lie about in each.

    Attributes:
        kinds: Which of the house's things each thing is.  [N, K]
        places: Where each is; NONE if it is held.  [N, K]
        at: Where the agents are.  [N]
        targets: Which thing they would pick up.  [N]
        held: Which thing they hold.  [N]
        known_rooms: Where they have been, a bit for each room.  [N]
        has_looked: Whether they have looked around from where they are.  [N]
        n_changes: How often something was picked up or placed.  [N]
    """

    def __init__(self, house: House, n_envs: int, n_things: int) -> None:
        self.house = house
        self._rows, self._slots = np.arange(n_envs), np.arange(n_things)
        self._moves = moves(house)
        self._room_bits = 1 << house.room_of
        self.kinds = np.zeros((n_envs, n_things), np.int64)
        self.places = np.zeros((n_envs, n_things), np.int64)
        self.at = np.zeros(n_envs, np.int64)
        self.targets, self.held = np.full(n_envs, NONE), np.full(n_envs, NONE)
        self.known_rooms = np.zeros(n_envs, np.int64)
        self.has_looked = np.zeros(n_envs, bool)
        self.n_changes = np.zeros(n_envs, np.int64)

    def begin(self, row: int, kinds: np.ndarray, places: np.ndarray, start: int) -> None:
        """Begin anew in one household.

        Args:
            row: Its number.
            kinds: Which things lie about, each once.  [K]
            places: Where.  [K]
            start: Where the agent is.
        """
        self.kinds[row], self.places[row], self.at[row] = kinds, places, start
        self.held[row], self.has_looked[row], self.n_changes[row] = NONE, False, 0
        self.known_rooms[row] = self._room_bits[start]
        self._target_first(np.array([row]))

    def act(self, actions: np.ndarray) -> Deeds:
        """Do one thing in every household, where it can be done.  [N]"""
        before, looks = self.at, actions == LOOK
        self.at = self._moves[before, actions]
        moved = self.at != before
        self.has_looked = (self.has_looked & ~moved) | looks
        self.known_rooms |= self._room_bits[self.at]
        self._target_first(moved.nonzero()[0])

        deeds = Deeds(moved | looks, np.full(len(actions), NONE))
        can_take = (self.held == NONE) & (self.targets != NONE)
        self._turn((actions == TURN).nonzero()[0], deeds)
        self._pick_up(((actions == PICK_UP) & can_take).nonzero()[0], deeds)
        self._place(((actions == PLACE) & (self.held != NONE)).nonzero()[0], deeds)
        return deeds

    def in_view(self) -> tuple[np.ndarray, np.ndarray]:
        """Return whether each thing lies where the agent is, and whether it is seen.  [N, K]"""
        near = self.places == self.at[:, None]
        # NONE, where what is held is, would be the last place of the table.
        rooms = self.house.room_of[self.places]
        in_room = (rooms == self.house.room_of[self.at][:, None]) & (self.places != NONE)
        return near, near | (in_room & self.has_looked[:, None])

    def held_kinds(self) -> np.ndarray:
        """Return which kind of thing is held; NONE if there is none.  [N]"""
        return np.where(self.held == NONE, NONE, self.kinds[self._rows, self.held])

    def n_right(self, row: int) -> int:
        """Return how many things are where they belong in one household."""
        suits = self.house.suits[self.kinds[row], self.places[row]]
        return int(np.count_nonzero(suits & (self.places[row] != NONE)))

    def _turn(self, rows: np.ndarray, deeds: Deeds) -> None:
        """Turn to the next of the things that lie here."""
        if not len(rows):
            return
        n_things, targets = len(self._slots), self.targets[rows]
        distances = (self._slots - targets[:, None] - 1) % n_things  # [R, K]
        distances[self.places[rows] != self.at[rows, None]] = n_things
        following = distances.argmin(1)
        other = (distances[np.arange(len(rows)), following] < n_things) & (following != targets)
        rows, following = rows[other], following[other]
        self.targets[rows] = following
        self._note(rows, following, deeds)

    def _pick_up(self, rows: np.ndarray, deeds: Deeds) -> None:
        """Take the thing that is targeted."""
        if not len(rows):
            return
        slots = self.targets[rows]
        self.places[rows, slots] = NONE
        self.held[rows] = slots
        self.n_changes[rows] += 1
        self._target_first(rows)
        self._note(rows, slots, deeds)

    def _place(self, rows: np.ndarray, deeds: Deeds) -> None:
        """Put down here what is held."""
        if not len(rows):
            return
        slots = self.held[rows]
        self.places[rows, slots] = self.at[rows]
        self.held[rows] = NONE
        self.targets[rows] = slots
        self.n_changes[rows] += 1
        self._note(rows, slots, deeds)

    def _note(self, rows: np.ndarray, slots: np.ndarray, deeds: Deeds) -> None:
        """Write down that something was done with a thing of each row."""
        deeds.succeeded[rows] = True
        deeds.things[rows] = self.kinds[rows, slots]

    def _target_first(self, rows: np.ndarray) -> None:
        """Turn to the first of the things that lie where the agent is."""
        if not len(rows):
            return
        is_here = self.places[rows] == self.at[rows, None]
        self.targets[rows] = np.where(is_here.any(1), is_here.argmax(1), NONE)


def moves(house: House) -> np.ndarray:
    """Return where each action leads from each place; what is no move leads nowhere.  [P, 8]"""
    n_places, n_rooms = len(house.places), len(house.rooms)
    table = np.repeat(np.arange(n_places)[:, None], N_ACTIONS, axis=1)
    sizes = np.bincount(house.room_of)[house.room_of]
    firsts = house.first_places[house.room_of]
    for action, step in ((NEXT_ROOM, 1), (PREVIOUS_ROOM, -1)):
        table[:, action] = house.first_places[(house.room_of + step) % n_rooms]
    for action, step in ((NEXT_PLACE, 1), (PREVIOUS_PLACE, -1)):
        table[:, action] = firsts + (house.numbers_in_room + step) % sizes
    if n_rooms == 1:
        table[:, [NEXT_ROOM, PREVIOUS_ROOM]] = np.arange(n_places)[:, None]
    return table


def drawn_plans(households: Households) -> tuple[np.ndarray, ...]:
    """Return a plan of every house.  [H, W, 3] uint8 each"""
    return tuple(_plan(households, row) for row in range(len(households.at)))


def _plan(households: Households, row: int) -> np.ndarray:
    house = households.house
    n_columns = int(house.numbers_in_room.max()) + 1
    plan = np.full((len(house.rooms) * SQUARE, n_columns * SQUARE, 3), WALL, np.uint8)
    corners = zip(house.room_of.tolist(), house.numbers_in_room.tolist(), strict=True)
    squares = [
        plan[top : top + SQUARE, left : left + SQUARE]
        for top, left in ((room * SQUARE, number * SQUARE) for room, number in corners)
    ]
    for square, room in zip(squares, house.room_of.tolist(), strict=True):
        is_known = int(households.known_rooms[row]) >> room & 1
        square[1:-1, 1:-1] = FLOOR if is_known else UNKNOWN
    here = squares[int(households.at[row])]
    inside = here[2:-2, 2:-2].copy()
    here[:], here[2:-2, 2:-2] = AGENT, inside
    for square, colours in zip(squares, _dots(households, row), strict=True):
        for number, colour in enumerate(colours[:MOST_DOTS]):
            _draw_dot(square, number, colour)
    return plan


def _dots(households: Households, row: int) -> list[list[tuple[int, int, int]]]:
    """Return the colours of the things in every place; what is held is where the agent is."""
    house = households.house
    dots: list[list[tuple[int, int, int]]] = [[] for _ in house.places]
    pairs = zip(households.kinds[row].tolist(), households.places[row].tolist(), strict=True)
    for kind, place in sorted(pairs, key=lambda pair: pair[1]):  # what is held first
        if place == NONE:
            dots[int(households.at[row])].append(HELD)
        else:
            dots[place].append(RIGHT if house.suits[kind, place] else WRONG)
    return dots


def _draw_dot(square: np.ndarray, number: int, colour: tuple[int, int, int]) -> None:
    row, column = divmod(number, PER_ROW)
    first = (SQUARE - PER_ROW * DOT - (PER_ROW - 1) * GAP) // 2
    top, left = (first + each * (DOT + GAP) for each in (row, column))
    square[top : top + DOT, left : left + DOT] = colour
