"""What is said of households, from tables: no sentence is put together twice."""

import numpy as np

from envs.household.house import (
    NEXT_PLACE,
    NEXT_ROOM,
    NONE,
    PICK_UP,
    PLACE,
    PREVIOUS_PLACE,
    PREVIOUS_ROOM,
    TURN,
    Deeds,
    House,
    Households,
)
from utils.files import objects
from utils.household import Goal, known_sentence, listed, sights_sentence

MOVES = [NEXT_ROOM, PREVIOUS_ROOM, NEXT_PLACE, PREVIOUS_PLACE]


class HouseholdWords:
    """Sentences on N households.

    Args:
        households: What they are about.
        action_names: What is said of an action that failed, and of looking around.
    """

    def __init__(self, households: Households, action_names: tuple[str, ...]) -> None:
        self._of, self._house = households, households.house
        self._phrases, self._begins, self._per_thing, self._per_place = _phrase_table(
            self._house, action_names
        )
        things = self._house.things
        # The last one is said where nothing is held, whose number is -1.
        self._inventories = objects(
            [*(f"you have in your inventory {listed([thing])}." for thing in things), ""]
        )
        self._items = objects([*({thing: 1} for thing in things), {}])
        self._statuses = objects(
            [_known(self._house, rooms) for rooms in range(1 << len(self._house.rooms))]
        )
        self._bits = 1 << np.arange(households.kinds.shape[1])
        self._scenes: list[dict[int, str]] = [{} for _ in households.at]

    def forget(self, row: int) -> None:
        """Forget what was said of a household, whose things are others now."""
        self._scenes[row].clear()

    def phrases(self, actions: np.ndarray, deeds: Deeds) -> np.ndarray:
        """Return what was done, "pick up mug"; the action's name where it failed.  [N] objects"""
        numbers = self._begins[actions] + self._per_thing[actions] * deeds.things
        numbers += self._per_place[actions] * self._of.at
        return self._phrases[np.where(deeds.succeeded, numbers, actions)]

    def told(self, near: np.ndarray, is_seen: np.ndarray) -> dict[str, np.ndarray]:
        """Return the sentences on all households, and what is held there.  [N] objects each

        Args:
            near: Whether each thing lies where the agent is.  [N, K]
            is_seen: Whether it is seen.  [N, K]
        """
        held = self._of.held_kinds()
        return {
            "scene": self._scenes_now(near, is_seen),
            "inventory": self._inventories[held],
            "status": self._statuses[self._of.known_rooms],
            "items": self._items[held],
        }

    def _scenes_now(self, near: np.ndarray, is_seen: np.ndarray) -> np.ndarray:
        """Return where the agents are and what they see."""
        of, n_things = self._of, near.shape[1]
        # What lies here says it all; after looking around, so does what has been changed so far.
        changes = np.where(of.has_looked, of.n_changes + 1, 0)
        keys = (
            (changes * len(self._house.places) + of.at) * (n_things + 1) + of.targets + 1
        ) << n_things
        keys += near @ self._bits
        scenes = np.empty(len(keys), object)
        for row, (key, known) in enumerate(zip(keys.tolist(), self._scenes, strict=True)):
            scene = known.get(key)
            if scene is None:
                scene = known[key] = self._scene(row, is_seen[row])
            scenes[row] = scene
        return scenes

    def _scene(self, row: int, is_seen: np.ndarray) -> str:
        """Return what is said of where an agent is and of what it sees, of the things [K]."""
        house, of = self._house, self._of
        slots = is_seen.nonzero()[0]
        pairs = zip(of.kinds[row, slots].tolist(), of.places[row, slots].tolist(), strict=True)
        sights = {house.things[kind]: house.places[place] for kind, place in pairs}
        scene = f"you are at {house.places[of.at[row]]}. {sights_sentence(sights)}"
        if of.targets[row] == NONE:
            return scene
        target = of.kinds[row, of.targets[row]]
        return f"{scene} you are targeting {house.things[target]}."


def _phrase_table(
    house: House, action_names: tuple[str, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return all phrases, and where those of each action begin.

    Returns:
        Phrases [...], and by action where its own begin, how many each thing has and how many each
        place has.  [8] each
    """
    things, places = house.things, house.places
    goes = [f"go to {place}" for place in places]
    turns = [f"turn to {thing}" for thing in things]
    takes = [Goal(thing).phrase for thing in things]
    puts = [Goal(thing, place).phrase for thing in things for place in places]
    begins = np.arange(len(action_names))
    per_thing, per_place = np.zeros_like(begins), np.zeros_like(begins)
    first = len(action_names)
    begins[MOVES], per_place[MOVES] = first, 1
    begins[TURN], per_thing[TURN] = first + len(goes), 1
    begins[PICK_UP], per_thing[PICK_UP] = begins[TURN] + len(turns), 1
    begins[PLACE], per_thing[PLACE], per_place[PLACE] = begins[PICK_UP] + len(takes), len(places), 1
    return objects([*action_names, *goes, *turns, *takes, *puts]), begins, per_thing, per_place


def _known(house: House, rooms: int) -> str:
    """Return what is said of the receptacles in rooms, given a bit for each room."""
    names = zip(house.places, house.room_of.tolist(), strict=True)
    known = [place for place, room in names if rooms >> room & 1]
    return known_sentence(known) if known else ""
