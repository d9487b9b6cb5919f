"""HousekeepText-v0: tidy up a house that is told in words.

A light symbolic world of our own, after the task of Housekeep (Kant et al. 2022, arXiv:2205.10712)
as Du et al. (2023, arXiv:2302.06692) use it: things lie where they do not belong, and nobody says
where they do. It is no reproduction: there is no simulator, no picture of a room, and which things
belong where we have written down ourselves (`household.py`). Scores are not comparable.

An agent stands at a receptacle of a room. It goes to the next one, or to the first one of the next
room; sees what lies where it stands, and after looking around what lies in the whole room; turns
from one thing to the next; picks one up and places it. With n_t the number of things where they
belong, none of them held,

    r_t = n_t - n_{t-1}

An episode ends when every thing is where it belongs, which is its success, or after `house_steps`.
What Housekeep's agents are paid beside is a reward of suggestions (`rewards/tidying.py`).
"""

import string
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Text

from envs.household.house import (
    PICK_UP,
    PICTURE_LEGEND,
    PLACE,
    Deeds,
    Households,
    drawn_plans,
    house_of,
    places_that,
)
from envs.household.words import HouseholdWords
from envs.numpy_vector import NumpyVectorEnv
from envs.spaces import ACTION_NAMES as NAMED_ACTIONS
from settings import Config, setting
from utils import household as words
from utils.errors import UserError

__all__ = ["ACTION_NAMES", "PICTURE_LEGEND", "READS", "make"]

NAME = "HousekeepText-v0"
ACTION_NAMES = (
    *("next room", "previous room", "next receptacle", "previous receptacle"),
    *("look around", "turn to the next thing", words.PICK_UP, words.PLACE),
)
SIDE = 8  # of the symbolic image; a house has 8 * 8 kinds of things and 8 rooms of 8 at most
TARGETED, NEAR, IN_VIEW = 255, 160, 80  # how bright a thing is in it
LONGEST_SENTENCE = 4096
MOST_THINGS = 20
EPISODES_AVERAGED = 100
FIGURES = (  # of an episode, as they are logged: shares of the things, and numbers
    *("rollout/rearrange_success", "rollout/rearrange_success_best"),
    *("rollout/rearrange_success_first", "rollout/n_rearranged"),
    *("rollout/n_picked_up", "rollout/n_placed"),
)
SENTENCES = ("scene", "inventory", "status")
# What an action does to the number of things that are where they belong, if the place suits.
WORTH = np.zeros(len(ACTION_NAMES), np.int64)
WORTH[PICK_UP], WORTH[PLACE] = -1, 1


@dataclass(frozen=True)
class HouseSettings(Config):
    """What the text version of Housekeep reads."""

    title = "HousekeepText"

    house_rooms: int = setting(
        "rooms: the first of kitchen, bedroom, bathroom, living room, study, hallway",
        low=1,
        high=6,
        default=4,
    )
    house_things: int = setting("things that lie about", low=1, high=MOST_THINGS, default=8)
    house_misplaced: int = setting(
        "how many of them lie where they do not belong", low=1, high=MOST_THINGS, default=4
    )
    house_steps: int = setting("steps of the longest episode", low=1, high=100_000, default=200)
    use_text: bool = setting("show what is seen, held and felt as text, too", default=True)


READS = (HouseSettings,)


def make(config: HouseSettings, seed: int) -> "HousekeepTextVectorEnv":
    """Return `config.n_envs` houses of a run's seed.

    Raises:
        UserError: there are not so many things for so few rooms, or more misplaced than there are.
    """
    n_things, n_misplaced = config.house_things, config.house_misplaced
    n_available = len(house_of(config.house_rooms).things)
    if n_things > n_available:
        raise UserError(
            f"house_things: {n_things}, and {n_available} things belong in a house with "
            f"house_rooms={config.house_rooms}. Take fewer things or more rooms"
        )
    if n_misplaced > n_things:
        raise UserError(
            f"house_misplaced: {n_misplaced}, and there are house_things={n_things}. Misplace as "
            "many as there are at most"
        )
    return HousekeepTextVectorEnv(config, seed)


class HousekeepTextVectorEnv(NumpyVectorEnv):
    """N houses to tidy up.

    An observation is a dictionary: "image" [3, 8, 8] uint8, and three sentences where the settings
    say so: "scene" (where the agent is, what it sees, what it would pick up), "inventory" (what it
    holds), "status" (the receptacles of the rooms it has been in). The image has a board of 8x8
    cells for each of three kinds: things, those in view, the targeted one brightest; the thing that
    is held; and places, a row a room, with the one where the agent is. A cell means the same in
    houses of any size, so that an agent may be played in another.

    Args:
        config: The settings.
        seed: Of the run.
    """

    has_success = True

    def __init__(self, config: HouseSettings, seed: int) -> None:
        n_envs, n_things = config.n_envs, config.house_things
        space = shown_space(config.use_text)
        super().__init__(n_envs, seed, n_actions=len(ACTION_NAMES), observation_space=space)
        house = house_of(config.house_rooms)
        self.metadata |= {NAMED_ACTIONS: ACTION_NAMES, words.SUITABLE: house.suitable()}
        self.render_mode = "rgb_array"
        self.households = Households(house, n_envs, n_things)
        self._words = HouseholdWords(self.households, ACTION_NAMES)
        self._shown = ("image", *SENTENCES) if config.use_text else ("image",)
        self._is_misplaced = np.arange(n_things) < config.house_misplaced
        self._limit = config.house_steps
        self._right_places = places_that(house.suits)
        self._wrong_places = places_that(~house.suits)
        self._place_cells = house.room_of * SIDE + house.numbers_in_room
        self._steps = np.zeros(n_envs, np.int64)
        self._n_right = np.zeros((n_envs, 3), np.int64)  # at first, now, at best
        self._n_handled = np.zeros((n_envs, 2), np.int64)  # picked up, placed
        self._figures: deque[tuple[float, ...]] = deque(maxlen=EPISODES_AVERAGED)
        self._now: dict[str, np.ndarray] | None = None  # what there is to see and to tell
        self._deeds: dict[str, np.ndarray] = {}

    def begin(self, row: int, generator: np.random.Generator) -> None:
        """Draw which things lie about, which of them are misplaced, and where all are."""
        house, n_things = self.households.house, len(self._is_misplaced)
        kinds = generator.permutation(len(house.things))[:n_things]
        chances = generator.random(n_things)
        right, wrong = (
            places[kinds, (chances * counts[kinds]).astype(int)]
            for places, counts in (self._right_places, self._wrong_places)
        )
        places = np.where(self._is_misplaced, wrong, right)
        order = generator.permutation(n_things)
        start = int(generator.integers(len(house.places)))
        self.begin_with(row, kinds[order], places[order], start)

    def begin_with(self, row: int, kinds: np.ndarray, places: np.ndarray, start: int) -> None:
        """Begin an episode with given things [K] in given places [K], and the agent's place."""
        self.households.begin(row, kinds, places, start)
        self._words.forget(row)
        self._steps[row] = self._n_handled[row] = 0
        self._n_right[row] = self.households.n_right(row)
        self._now = None

    def advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Carry out what every agent does, and pay for what is now where it belongs."""
        self._steps += 1
        deeds = self.households.act(actions)
        suits = self.households.house.suits[deeds.things, self.households.at]
        change = WORTH[actions] * (deeds.succeeded & suits)
        self._n_right[:, 1] += change
        np.maximum(self._n_right[:, 2], self._n_right[:, 1], out=self._n_right[:, 2])
        for number, action in enumerate((PICK_UP, PLACE)):
            self._n_handled[:, number] += deeds.succeeded & (actions == action)
        terminated = self.succeeded()
        truncated = (self._steps >= self._limit) & ~terminated
        self._note_deeds(actions, deeds)
        self._note_episodes(np.flatnonzero(terminated | truncated))
        return change.astype(np.float32), terminated, truncated

    def succeeded(self) -> np.ndarray:
        """Return where every thing is where it belongs.  [N]"""
        return self._n_right[:, 1] == len(self._is_misplaced)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin a new episode everywhere, and tell of it in words."""
        shown, info = super().reset(seed=seed, options=options)
        return shown, info | self._told()

    def step(
        self, actions: np.ndarray
    ) -> tuple[dict[str, Any], np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Take one step everywhere, and tell in words what was done and what is the case now."""
        shown, rewards, terminated, truncated, info = super().step(actions)
        info |= self._deeds | self._told()
        return shown, rewards, terminated, truncated, info

    def observe(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return the symbolic images [R, 3, 8, 8], and the sentences [R] where they are shown."""
        now = self._look()
        return {name: now[name][rows] for name in self._shown}

    def state_dict(self) -> dict[str, Any]:
        """Return the figures of episodes that have ended."""
        return {"figures": list(self._figures)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from saved figures."""
        self._figures = deque(state["figures"], EPISODES_AVERAGED)

    def metrics(self) -> dict[str, float]:
        """Return the means of the last 100 episodes; NaN before one has ended."""
        known = np.array(self._figures)
        means = known.mean(0) if len(known) else np.full(len(FIGURES), np.nan)
        return dict(zip(FIGURES, means.tolist(), strict=True))

    def render(self) -> tuple[np.ndarray, ...]:
        """Return a plan of every house.  [H, W, 3] each"""
        return drawn_plans(self.households)

    def _look(self) -> dict[str, np.ndarray]:
        """Return the images [N, 3, 8, 8] and all that is told [N], found out once a step."""
        if self._now is None:
            near, is_seen = self.households.in_view()
            images = self._images(near, is_seen)
            self._now = {"image": images} | self._words.told(near, is_seen)
        return self._now

    def _told(self) -> dict[str, np.ndarray]:
        """Return what is the case now, for info.  [N] each"""
        now = self._look()
        return {name: now[name] for name in (*SENTENCES, "items")}

    def _images(self, near: np.ndarray, is_seen: np.ndarray) -> np.ndarray:
        """Return the symbolic images, given which things are near and seen [N, K].  [N, 3, 8, 8]"""
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

    def _note_deeds(self, actions: np.ndarray, deeds: Deeds) -> None:
        """Keep what info tells of the step that has been taken."""
        self._now = None
        told = self._told()
        self._deeds = {
            "phrase": self._words.phrases(actions, deeds),
            "action_success": deeds.succeeded,
            "eval_success": deeds.succeeded.copy(),
            "items_after": told["items"],
        }
        self._deeds |= {f"last_{name}": told[name] for name in SENTENCES}

    def _note_episodes(self, rows: np.ndarray) -> None:
        """Keep the figures of episodes that end with this step."""
        n_things = len(self._is_misplaced)
        for row in rows.tolist():
            first, last, best = self._n_right[row].tolist()
            shares = last / n_things, best / n_things, first / n_things
            self._figures.append((*shares, float(last), *map(float, self._n_handled[row])))


def shown_space(with_text: bool) -> Dict:
    """Return the space of what one environment shows."""
    text = Text(LONGEST_SENTENCE, min_length=0, charset=string.printable)
    image = {"image": Box(0, 255, (3, SIDE, SIDE), np.uint8)}
    return Dict(image | (dict.fromkeys(SENTENCES, text) if with_text else {}))
