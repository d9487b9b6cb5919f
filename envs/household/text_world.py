"""HousekeepText-v0: tidy up a house that is told in words.

A light symbolic world of our own, after the task of Housekeep (Kant et al. 2022, arXiv:2205.10712)
as Du et al. (2023, arXiv:2302.06692) use it: things lie where they do not belong, and nobody says
where they do. Scores are not comparable: docs/reference/environments.md has the differences.

An agent stands at a receptacle of a room. It goes on to the next, looks around, turns from one
thing to another, picks one up and places it. With n_t the number of things where they belong, none
of them held,

    r_t = n_t - n_{t-1}

An episode ends when every thing is where it belongs, which is its success, or after `house_steps`.
Housekeep's agents are paid for following suggestions besides (`rewards/episode_goals.py`).
"""

import json
import string
from collections import deque
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from gymnasium.spaces import Box, Dict, Space, Text

from envs.settings import HouseSettings
from envs.spaces import ACTION_NAMES as NAMED_ACTIONS
from envs.vector import NumpyVectorEnv
from utils import household as words
from utils.environments import Info, State, Suite
from utils.errors import UserError
from utils.files import object_array
from utils.household import Goal, known_sentence, listed, sights_sentence

NAME = "HousekeepText-v0"
PLACES_FILE = Path(__file__).resolve().parents[2] / "data" / "household" / "places.json"
GOING = ("next room", "previous room", "next receptacle", "previous receptacle")
ACTION_NAMES = (*GOING, "look around", "turn to the next thing", words.PICK_UP, words.PLACE)
N_ACTIONS = len(ACTION_NAMES)
NEXT_ROOM, PREVIOUS_ROOM, NEXT_PLACE, PREVIOUS_PLACE, LOOK, TURN, PICK_UP, PLACE = range(N_ACTIONS)
MOVES = [NEXT_ROOM, PREVIOUS_ROOM, NEXT_PLACE, PREVIOUS_PLACE]
NONE = -1  # no thing is held or targeted; a thing that is held is nowhere; pads lists of places
# The effect of an action on the number of things that are where they belong, if the place suits.
WORTH = np.zeros(N_ACTIONS, np.int64)
WORTH[PICK_UP], WORTH[PLACE] = -1, 1
SIDE = 8  # of the symbolic image; a house has 8 * 8 kinds of things and 8 rooms of 8 at most
TARGETED, NEAR, IN_VIEW = 255, 160, 80  # how bright a thing is in it
LONGEST_SENTENCE = 4096
REMEMBERED = 2**16  # sentences
EPISODES_AVERAGED = 100
# Of an episode, as they are logged: shares of the things, and numbers.
SHARES = ("rearrange_success", "rearrange_success_best", "rearrange_success_first")
FIGURES = tuple(f"rollout/{name}" for name in (*SHARES, "n_rearranged", "n_picked_up", "n_placed"))
SENTENCES = ("scene", "inventory", "status")

SQUARE = 22  # pixels of a receptacle in a plan, its frame included
DOT, GAP, PER_ROW = 5, 1, 3
WALL, FLOOR, UNKNOWN = (70, 70, 70), (250, 250, 250), (205, 205, 205)
RIGHT, WRONG, HELD, AGENT = (40, 150, 60), (210, 50, 40), (255, 150, 0), (40, 100, 230)
PICTURE_LEGEND = (
    "a row a room, a square a receptacle; blue frame: the agent; green: a thing where it belongs; "
    "red: one that is misplaced; orange: one that is held; grey: rooms not seen yet"
)


class HousekeepText(Suite):
    action_names, picture_legend = ACTION_NAMES, PICTURE_LEGEND

    def make(self, config: HouseSettings, seed: int) -> "HousekeepTextVectorEnv":
        """Return `config.n_envs` houses; UserError unless there are enough things to misplace."""
        n_things, n_misplaced = config.house_things, config.house_misplaced
        n_available = len(house_of(config.house_rooms).things)
        if n_things > n_available:
            raise UserError(
                f"house_things: {n_things}, and {n_available} things belong in a house with "
                f"house_rooms={config.house_rooms}. Take fewer things or more rooms"
            )
        if n_misplaced > n_things:
            raise UserError(
                f"house_misplaced: {n_misplaced}, and there are house_things={n_things}. Misplace "
                "as many as there are at most"
            )
        return HousekeepTextVectorEnv(config, seed)


class House(NamedTuple):
    """The rooms of a house, in their order.

    Attributes:
        rooms: Their names.  R
        places: Receptacles, each with its room: "kitchen sink".  P
        room_of: The room of each place.  [P]
        numbers_in_room: The number of each place within its room.  [P]
        first_places: Of each room.  [R]
        things: Those that belong somewhere in this house, but not everywhere.  K
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
        return {
            thing: [place for place, is_right in zip(self.places, row, strict=True) if is_right]
            for thing, row in zip(self.things, self.suits.tolist(), strict=True)
        }


@cache
def house_of(n_rooms: int) -> House:
    catalogue = json.loads(PLACES_FILE.read_text(encoding="utf-8"))
    all_rooms, belongs = catalogue["rooms"], catalogue["belongs"]
    rooms = tuple(all_rooms)[:n_rooms]
    places = tuple(f"{room} {name}" for room in rooms for name in all_rooms[room])
    sizes = [len(all_rooms[room]) for room in rooms]
    suits = np.array([[place in own for place in places] for own in belongs.values()])
    # What belongs nowhere could never be right, what belongs everywhere never wrong.
    kinds = np.flatnonzero(suits.any(1) & ~suits.all(1))
    firsts = np.cumsum([0, *sizes[:-1]])
    room_of = np.repeat(np.arange(n_rooms), sizes)
    numbers = np.arange(len(places)) - firsts[room_of]
    things = tuple(list(belongs)[kind] for kind in kinds)
    return House(rooms, places, room_of, numbers, firsts, things, kinds, suits[kinds])


class Deeds(NamedTuple):
    """The outcome of one action in each household.

    `succeeded` [N] tells whether it could be done, `things` [N] the kind of thing that was turned
    to, picked up or placed, NONE otherwise.
    """

    succeeded: np.ndarray
    things: np.ndarray


class Households:
    """N houses in which things lie about, with an agent in each.

    Attributes:
        kinds: Of each thing, among those of the house.  [N, K]
        places: Of each thing; NONE if it is held.  [N, K]
        at: The agents' places.  [N]
        targets: The things they would pick up.  [N]
        held: The things they hold.  [N]
        known_rooms: Where they have been, a bit for each room.  [N]
        has_looked: Whether they have looked around from where they are.  [N]
    """

    def __init__(self, house: House, n_envs: int, n_things: int) -> None:
        self.house = house
        self.rows, self._slots = np.arange(n_envs), np.arange(n_things)
        self._moves = moves(house)
        self._room_bits = 1 << house.room_of
        self.kinds = np.zeros((n_envs, n_things), np.int64)
        self.places = np.zeros((n_envs, n_things), np.int64)
        self.at = np.zeros(n_envs, np.int64)
        self.targets, self.held = np.full(n_envs, NONE), np.full(n_envs, NONE)
        self.known_rooms = np.zeros(n_envs, np.int64)
        self.has_looked = np.zeros(n_envs, bool)

    def begin(self, row: int, kinds: np.ndarray, places: np.ndarray, start: int) -> None:
        """Begin anew in household `row`, with different things [K] in places [K]."""
        self.kinds[row], self.places[row], self.at[row] = kinds, places, start
        self.held[row], self.has_looked[row] = NONE, False
        self.known_rooms[row] = self._room_bits[start]
        self._target_first(np.array([row]))

    def act(self, actions: np.ndarray) -> Deeds:
        before, looks = self.at, actions == LOOK
        self.at = self._moves[before, actions]
        moved = self.at != before
        self.has_looked = (self.has_looked & ~moved) | looks
        self.known_rooms |= self._room_bits[self.at]
        # Elsewhere something else lies first; who stays keeps the aim.
        self._target_first(moved.nonzero()[0])

        deeds = Deeds(moved | looks, np.full(len(actions), NONE))
        holds = self.held != NONE
        for does, run_jobs in (
            (actions == TURN, self._turn),
            ((actions == PICK_UP) & ~holds & (self.targets != NONE), self._pick_up),
            ((actions == PLACE) & holds, self._place),
        ):
            rows = does.nonzero()[0]
            if len(rows):
                rows, slots = run_jobs(rows)
                deeds.succeeded[rows] = True
                deeds.things[rows] = self.kinds[rows, slots]
        return deeds

    def in_view(self) -> tuple[np.ndarray, np.ndarray]:
        """Return whether each thing lies where the agent is, and whether it is seen.  [N, K]"""
        near = self.places == self.at[:, None]
        # NONE, the place of a thing that is held, would be the last place of the table.
        rooms = self.house.room_of[self.places]
        in_room = (rooms == self.house.room_of[self.at][:, None]) & (self.places != NONE)
        return near, near | (in_room & self.has_looked[:, None])

    def held_kinds(self) -> np.ndarray:
        """Return which kind of thing is held; NONE if there is none.  [N]"""
        return np.where(self.held == NONE, NONE, self.kinds[self.rows, self.held])

    def n_right(self, row: int) -> int:
        suits = self.house.suits[self.kinds[row], self.places[row]]
        return int(np.count_nonzero(suits & (self.places[row] != NONE)))

    def _turn(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Target the next thing here; return the rows where there is another, and its slot."""
        n_things, targets = len(self._slots), self.targets[rows]
        # Steps round the slots from the one behind the aim: the next thing is the nearest.
        distances = (self._slots - targets[:, None] - 1) % n_things  # [R, K]
        # Further than any that is here.
        distances[self.places[rows] != self.at[rows, None]] = n_things
        following = distances.argmin(1)
        other = (distances[np.arange(len(rows)), following] < n_things) & (following != targets)
        rows, following = rows[other], following[other]
        self.targets[rows] = following
        return rows, following

    def _pick_up(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        slots = self.targets[rows]
        self.places[rows, slots] = NONE
        self.held[rows] = slots
        self._target_first(rows)
        return rows, slots

    def _place(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        slots = self.held[rows]
        self.places[rows, slots] = self.at[rows]
        self.held[rows] = NONE
        self.targets[rows] = slots
        return rows, slots

    def _target_first(self, rows: np.ndarray) -> None:
        if not len(rows):
            return
        is_here = self.places[rows] == self.at[rows, None]
        self.targets[rows] = np.where(is_here.any(1), is_here.argmax(1), NONE)


def moves(house: House) -> np.ndarray:
    """Return where each action leads from each place, the place itself but for moves.  [P, 8]"""
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


class HouseholdWords:
    """Sentences on N households, from tables; those on views are remembered for a while."""

    def __init__(self, households: Households) -> None:
        self._of, self._house = households, households.house
        self._phrases, self._names = _phrase_table(self._house), np.array(ACTION_NAMES, object)
        things, n_rooms = self._house.things, len(self._house.rooms)
        # The last one is for nothing held, which is number -1.
        self._inventories = object_array(
            [*(f"you have in your inventory {listed([thing])}." for thing in things), ""]
        )
        self._items = object_array([*({thing: 1} for thing in things), {}])
        self._statuses = object_array([self._known(rooms) for rooms in range(1 << n_rooms)])
        self._scene = lru_cache(REMEMBERED)(self._scene_of)

    def phrases(self, actions: np.ndarray, deeds: Deeds) -> np.ndarray:
        """Return the deeds, "pick up mug"; the action's name where it failed.  [N] objects"""
        done = self._phrases[actions, deeds.things, self._of.at]
        return np.where(deeds.succeeded, done, self._names[actions])

    def describe(self, is_seen: np.ndarray) -> dict[str, np.ndarray]:
        """Return the sentences on all households, and the things held there.  [N] objects each

        `is_seen` tells which things are in view.  [N, K]
        """
        held = self._of.held_kinds()
        return {
            "scene": self._scenes_now(is_seen),
            "inventory": self._inventories[held],
            "status": self._statuses[self._of.known_rooms],
            "items": self._items[held],
        }

    def _scenes_now(self, is_seen: np.ndarray) -> np.ndarray:
        of = self._of
        aimed = np.where(of.targets == NONE, NONE, of.kinds[of.rows, of.targets])
        seen = (np.where(is_seen, each, NONE) for each in (of.kinds, of.places))
        facts = np.column_stack([of.at, aimed, *seen])
        return object_array([self._scene(row.tobytes()) for row in facts])

    def _scene_of(self, facts: bytes) -> str:
        """Return the sentence on a place, the thing aimed at, kinds and places of those in view."""
        at, aimed, *seen = np.frombuffer(facts, np.int64).tolist()
        house, pairs = self._house, zip(seen[: len(seen) // 2], seen[len(seen) // 2 :], strict=True)
        sights = {house.things[kind]: house.places[place] for kind, place in pairs if kind != NONE}
        target = "" if aimed == NONE else f" you are targeting {house.things[aimed]}."
        return f"you are at {house.places[at]}. {sights_sentence(sights)}{target}"

    def _known(self, rooms: int) -> str:
        names = zip(self._house.places, self._house.room_of.tolist(), strict=True)
        known = [place for place, room in names if rooms >> room & 1]
        return known_sentence(known) if known else ""


def _phrase_table(house: House) -> np.ndarray:
    """Return the name of each action with its thing and place.  [8, K + 1, P] objects

    The last of the things stands for none, which is number -1.
    """
    table = np.empty((N_ACTIONS, len(house.things) + 1, len(house.places)), object)
    table[:] = np.array(ACTION_NAMES, object)[:, None, None]
    table[MOVES] = [f"go to {place}" for place in house.places]
    for number, thing in enumerate(house.things):
        table[TURN, number] = f"turn to {thing}"
        table[PICK_UP, number] = Goal(thing).phrase
        table[PLACE, number] = [Goal(thing, place).phrase for place in house.places]
    return table


class HousekeepTextVectorEnv(NumpyVectorEnv):
    """N houses to tidy up.

    An observation is a dictionary: "image" [3, 8, 8] uint8, and three sentences where the settings
    say so: "scene" (the agent's place, its view, the thing it would pick up), "inventory" (the
    thing it holds), "status" (the receptacles of the rooms it has been in). The image has a board
    of 8x8 cells for each of three kinds: things, those in view, the targeted one brightest; the
    thing that is held; and places, a row a room, with the one where the agent is. A cell means the
    same in houses of any size, so that an agent may be played in another.
    """

    has_success = True

    def __init__(self, config: HouseSettings, seed: int) -> None:
        n_envs, n_things = config.n_envs, config.house_things
        text = Text(LONGEST_SENTENCE, min_length=0, charset=string.printable)
        shown: dict[str, Space] = {"image": Box(0, 255, (3, SIDE, SIDE), np.uint8)}
        shown |= dict.fromkeys(SENTENCES, text) if config.use_text else {}
        super().__init__(n_envs, seed, n_actions=N_ACTIONS, observation_space=Dict(shown))
        self._shown = tuple(shown)
        house = house_of(config.house_rooms)
        self.metadata |= {NAMED_ACTIONS: ACTION_NAMES, words.SUITABLE: house.suitable()}
        self.render_mode = "rgb_array"
        self.households = Households(house, n_envs, n_things)
        self._words = HouseholdWords(self.households)
        self._is_misplaced = np.arange(n_things) < config.house_misplaced
        self._limit = config.house_steps
        self._place_cells = house.room_of * SIDE + house.numbers_in_room
        self._steps = np.zeros(n_envs, np.int64)
        self._n_right = np.zeros((n_envs, 3), np.int64)  # at first, now, at best
        self._n_handled = np.zeros((n_envs, 2), np.int64)  # picked up, placed
        self._figures: deque[tuple[float, ...]] = deque(maxlen=EPISODES_AVERAGED)
        self._now: dict[str, np.ndarray] | None = None  # images and sentences of this step
        self._deeds: dict[str, np.ndarray] = {}

    def begin(self, row: int, generator: np.random.Generator) -> None:
        house, n_things = self.households.house, len(self._is_misplaced)
        kinds = generator.permutation(len(house.things))[:n_things]
        # One draw a thing, however many places suit it.
        chances = generator.random(n_things).tolist()
        # Unequal: a misplaced thing goes where it does not suit, another one where it does.
        possible = map(np.flatnonzero, house.suits[kinds] != self._is_misplaced[:, None])
        drawn = zip(possible, chances, strict=True)
        places = np.array([own[int(chance * len(own))] for own, chance in drawn])
        order = generator.permutation(n_things)  # misplaced things have no slots of their own
        start = int(generator.integers(len(house.places)))
        self.begin_with(row, kinds[order], places[order], start)

    def begin_with(self, row: int, kinds: np.ndarray, places: np.ndarray, start: int) -> None:
        """Begin an episode with given things [K] in given places [K], and the agent's place."""
        self.households.begin(row, kinds, places, start)
        self._steps[row] = self._n_handled[row] = 0
        self._n_right[row] = self.households.n_right(row)
        self._now = None

    def advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self._steps += 1
        deeds = self.households.act(actions)
        suits = self.households.house.suits[deeds.things, self.households.at]
        # r_t = n_t - n_{t-1}: only a thing that is picked up or placed where it belongs changes n.
        change = WORTH[actions] * (deeds.succeeded & suits)
        self._n_right[:, 1] += change
        np.maximum(self._n_right[:, 2], self._n_right[:, 1], out=self._n_right[:, 2])
        for number, action in enumerate((PICK_UP, PLACE)):
            self._n_handled[:, number] += deeds.succeeded & (actions == action)
        terminated = self.succeeded()
        truncated = (self._steps >= self._limit) & ~terminated
        self._now = None
        # Before any reset: the sentences on the state that the step led to.
        told = self._told()
        self._deeds = {
            "phrase": self._words.phrases(actions, deeds),
            "action_success": deeds.succeeded,
            "eval_success": deeds.succeeded.copy(),
            "items_after": told["items"],
        }
        self._deeds |= {f"last_{name}": told[name] for name in SENTENCES}
        n_things = len(self._is_misplaced)
        for row in np.flatnonzero(terminated | truncated).tolist():
            first, last, best = self._n_right[row].tolist()
            shares = last / n_things, best / n_things, first / n_things
            self._figures.append((*shares, float(last), *map(float, self._n_handled[row])))
        return change.astype(np.float32), terminated, truncated

    def succeeded(self) -> np.ndarray:
        return self._n_right[:, 1] == len(self._is_misplaced)

    def words(self, actions: np.ndarray | None) -> Info:
        return self._told() if actions is None else self._deeds | self._told()

    def observe(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        now = self._look()
        return {name: now[name][rows] for name in self._shown}

    def state_dict(self) -> State:
        return {"figures": list(self._figures)}

    def load_state_dict(self, state: State) -> bool:
        self._figures = deque(state["figures"], EPISODES_AVERAGED)
        return True

    def metrics(self) -> dict[str, float]:
        """Return the means of the last 100 episodes; NaN before one has ended."""
        known = np.array(self._figures)
        means = known.mean(0) if len(known) else np.full(len(FIGURES), np.nan)
        return dict(zip(FIGURES, means.tolist(), strict=True))

    def render(self) -> tuple[np.ndarray, ...]:
        return tuple(drawn_plan(self.households, row) for row in range(self.num_envs))

    def _look(self) -> dict[str, np.ndarray]:
        if self._now is None:
            near, is_seen = self.households.in_view()
            images = self._images(near, is_seen)
            self._now = {"image": images} | self._words.describe(is_seen)
        return self._now

    def _told(self) -> dict[str, np.ndarray]:
        now = self._look()
        return {name: now[name] for name in (*SENTENCES, "items")}

    def _images(self, near: np.ndarray, is_seen: np.ndarray) -> np.ndarray:
        of = self.households
        bright = np.where(near, NEAR, is_seen * IN_VIEW).astype(np.uint8)
        aimed = (of.targets >= 0).nonzero()[0]
        bright[aimed, of.targets[aimed]] = TARGETED
        images = np.zeros((self.num_envs, 3, SIDE * SIDE), np.uint8)
        cells = of.house.thing_numbers  # the same in every house
        images[self._rows[:, None], 0, cells[of.kinds]] = bright  # each kind is there once
        held = of.held_kinds()
        holding = (held >= 0).nonzero()[0]
        images[holding, 1, cells[held[holding]]] = 255
        images[self._rows, 2, self._place_cells[of.at]] = 255
        return images.reshape(self.num_envs, 3, SIDE, SIDE)


def drawn_plan(households: Households, row: int) -> np.ndarray:
    """Return a plan of one house: a row a room, a square a receptacle, a dot a thing.  [H, W, 3]"""
    house, at = households.house, int(households.at[row])
    n_columns = int(house.numbers_in_room.max()) + 1
    plan = np.full((len(house.rooms) * SQUARE, n_columns * SQUARE, 3), WALL, np.uint8)
    squares = []
    for room, number in zip(house.room_of.tolist(), house.numbers_in_room.tolist(), strict=True):
        top, left = room * SQUARE, number * SQUARE
        squares.append(plan[top : top + SQUARE, left : left + SQUARE])
        is_known = int(households.known_rooms[row]) >> room & 1
        squares[-1][1:-1, 1:-1] = FLOOR if is_known else UNKNOWN
    inside = squares[at][2:-2, 2:-2].copy()
    squares[at][:], squares[at][2:-2, 2:-2] = AGENT, inside
    dots: list[list[tuple[int, int, int]]] = [[] for _ in squares]
    pairs = zip(households.kinds[row].tolist(), households.places[row].tolist(), strict=True)
    for kind, place in sorted(pairs, key=lambda pair: pair[1]):  # a thing that is held first
        is_right = place != NONE and house.suits[kind, place]
        colour = RIGHT if is_right else HELD if place == NONE else WRONG
        dots[at if place == NONE else place].append(colour)
    first = (SQUARE - PER_ROW * DOT - (PER_ROW - 1) * GAP) // 2
    for square, colours in zip(squares, dots, strict=True):
        for number, colour in enumerate(colours[: PER_ROW * PER_ROW]):
            top, left = (first + each * (DOT + GAP) for each in divmod(number, PER_ROW))
            square[top : top + DOT, left : left + DOT] = colour
    return plan
