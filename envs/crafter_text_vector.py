"""The game in words as a vector environment: phrases as actions, sentences beside pictures."""

import string
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Text
from gymnasium.vector.utils import batch_space

from envs import crafter_words as words
from envs.converted import ACTION_NAMES
from envs.crafter_actions import text_commands, text_nouns
from envs.crafter_grey import GREY_SIDE, greyed
from envs.crafter_package import rules_of_text
from envs.crafter_step import look, look_around_target, names_match
from envs.crafter_vector import SIDE, CrafterVectorEnv, objects
from envs.crafter_world import ITEMS, N_VITALS

# What is said of the state that a step has led to, before any reset.
AFTER_STEP = {
    "scene": "last_scene",
    "inventory": "last_inventory",
    "status": "last_status",
    "items": "items_after",
}


class Said(NamedTuple):
    """What there is to say of N worlds.

    Attributes:
        scene, inventory, status: The three sentences.
        items: How many of each thing are held, by name.
    """

    scene: list[str]
    inventory: list[str]
    status: list[str]
    items: list[dict[str, int]]

    def captions(self) -> tuple[str, ...]:
        """Return the sentences of each world as one text."""
        sentences = zip(self.scene, self.inventory, self.status, strict=True)
        return tuple(" ".join(filter(None, each)) for each in sentences)

    def info(self, others: dict[str, str]) -> dict[str, np.ndarray]:
        """Return each part as an array [N] of objects, under another name where one is given."""
        parts = self._asdict().items()
        return {others.get(name, name): objects(part) for name, part in parts}


class TextGame(NamedTuple):
    """How CrafterText is played.

    Attributes:
        phrases: What the actions are called.
        length: Steps after which an episode is cut off.
        is_grey: Whether pictures are grey, 84 x 84.
        use_text: Whether the sentences are shown beside them.
        dying: Whether an episode ends where no health is left.
    """

    phrases: tuple[str, ...]
    length: int
    is_grey: bool = True
    use_text: bool = True
    dying: bool = True


class CrafterTextVectorEnv(CrafterVectorEnv):
    """The game of ELLM (Du et al. 2023): actions that are phrases, and sentences beside pictures.

    It says everything in words in `info`, too: after `reset` and `step` "scene", "inventory",
    "status" and "items" of the state in which the next action is taken; of the step just taken
    "phrase", "action_success", "eval_success", "unlocked", and of the state it led to, before any
    reset, "around_target", "items_after", "last_scene", "last_inventory" and "last_status".  [N]

    Args:
        n_envs: Number of environments.
        seed: Environment i is seeded with seed + i.
        game: What is shown, and how it is played.
    """

    def __init__(self, n_envs: int, seed: int, game: TextGame) -> None:
        super().__init__(n_envs, seed, game.length, text_commands(game.phrases), rules_of_text())
        self.metadata[ACTION_NAMES] = game.phrases
        self._game = game
        self._phrases = np.array(game.phrases, dtype=object)
        self._nouns = text_nouns(game.phrases)
        self._matched = np.zeros(n_envs, bool)
        self._around = np.zeros((n_envs, 3, 3), np.uint8)
        self._last: Said | None = None  # of the state that the last step led to
        self._set_spaces()

    def _set_spaces(self) -> None:
        """Say in the spaces what is shown."""
        shape = (1, GREY_SIDE, GREY_SIDE) if self._game.is_grey else (3, SIDE, SIDE)
        parts: dict[str, gymnasium.Space] = {"image": Box(0, 255, shape, np.uint8)}
        if self._game.use_text:
            letters = string.ascii_lowercase + " ,._"
            parts["caption"] = Text(words.MOST_LETTERS, charset=letters)
        self.single_observation_space = gymnasium.spaces.Dict(parts)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin a new episode everywhere and say what the players see."""
        images, info = super().reset(seed=seed, options=options)
        said = self._say()
        return self._shown(images, said), info | said.info({})

    def step(
        self, actions: np.ndarray
    ) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Take one step everywhere, and say what was done and what the players see now."""
        images, rewards, terminated, truncated, info = super().step(actions)
        last, ended = self._last, terminated | truncated
        assert last is not None, "advance() says it"
        said = self._say() if ended.any() else last
        if ended.any():
            finals = self._shown(info["final_obs"], last)
            for row in np.flatnonzero(ended):
                info["final_obs"][row] = {name: part[row] for name, part in finals.items()}
        info |= said.info({}) | last.info(AFTER_STEP) | self._done(np.asarray(actions))
        return self._shown(images, said), rewards, terminated, truncated, info

    def advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Take one step everywhere and note what can be said of it."""
        names_match(self._worlds, self._nouns[actions], self._matched)
        results = super().advance(actions)
        look_around_target(self._worlds, self._around)
        self._last = self._say()
        return results

    def pay(self) -> np.ndarray:
        """Return one where anything has been unlocked.  [N]"""
        return np.asarray(self._news.any(1), np.float64)

    def died(self) -> np.ndarray:
        """Return where the player has no health left, if that matters.  [N]"""
        return super().died() & self._game.dying

    def observe(self, rows: np.ndarray) -> np.ndarray:
        """Draw what players see.  [R, 1, 84, 84] grey or [R, 3, 64, 64]"""
        frames = super().observe(rows)
        return greyed(frames) if self._game.is_grey else frames

    def _say(self) -> Said:
        """Say what the players see, hold and feel."""
        facts = np.empty((self.num_envs, 5), np.int64)
        look(self._worlds, facts)
        rows = facts.tolist()
        return Said(
            [words.scene_sentence(*row[:3]) for row in rows],
            [words.inventory_sentence(row[3]) for row in rows],
            [words.status_sentence(row[4]) for row in rows],
            [_held(amounts) for amounts in self._worlds["inventory"].tolist()],
        )

    def _shown(self, images: np.ndarray, said: Said) -> dict[str, Any]:
        """Return images, and beside each what is said as one text."""
        return {"image": images} | ({"caption": said.captions()} if self._game.use_text else {})

    def _done(self, actions: np.ndarray) -> dict[str, np.ndarray]:
        """Return what there is to say of the step just taken."""
        around = (words.names_around(cells.tobytes()) for cells in self._around)
        return {
            "phrase": self._phrases[actions],
            "action_success": self._changed | self._matched,
            "eval_success": self._changed.copy(),
            "around_target": objects(around),
        }


def _held(amounts: list[int]) -> dict[str, int]:
    """Return how many of each thing are held, those that are."""
    things = zip(ITEMS[N_VITALS:], amounts[N_VITALS:], strict=True)
    return {name: amount for name, amount in things if amount}
