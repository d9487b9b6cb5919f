"""What can be done in a household: N of them in arrays, without rewards and without words."""

from typing import NamedTuple

import numpy as np

from envs.household.house import House

NEXT_ROOM, PREVIOUS_ROOM, NEXT_PLACE, PREVIOUS_PLACE, LOOK, TURN, PICK_UP, PLACE = range(8)
N_ACTIONS = 8
NONE = -1  # no thing is held or targeted; a thing that is held is nowhere


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
