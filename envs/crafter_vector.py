"""Crafter's worlds as vector environments: the game itself, and the game in words."""

import string
from collections.abc import Iterable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Text
from gymnasium.vector.utils import batch_space

from envs import crafter_words as words
from envs.converted import ACTION_NAMES
from envs.crafter_achievements import AchievementStatistics
from envs.crafter_actions import game_commands, text_commands, text_nouns
from envs.crafter_drawing import GREY_SIDE, draw, greyed
from envs.crafter_landscape import new_world
from envs.crafter_package import ACTIONS, rules_of_crafter, rules_of_text
from envs.crafter_player import Rules
from envs.crafter_step import (
    daylight_of,
    look,
    look_around_target,
    names_match,
    step_worlds,
    unlock,
)
from envs.crafter_world import ACHIEVEMENTS, HEALTH, ITEMS, N_VITALS, WORLD
from envs.numpy_vector import NumpyVectorEnv

SIDE = 64  # pixels
RENDERED_SIDE = 144  # of a picture for people: textures in their own size
MOST_SEED = 2**31 - 1
# What is said of the state that a step has led to, before any reset.
AFTER_STEP = {
    "scene": "last_scene",
    "inventory": "last_inventory",
    "status": "last_status",
    "items": "items_after",
}


class CrafterVectorEnv(NumpyVectorEnv):
    """The unmodified game: pictures, its own actions and rewards.

    Environment i has the worlds of `crafter.Env(seed=seed + i)`, one after the other. The noise of
    the night is drawn from a generator of its own.

    Args:
        n_envs: Number of environments.
        seed: Environment i is seeded with seed + i.
        length: Steps after which an episode is cut off.
        commands: What each action tells the player.  [A, 2]
        rules: Of the game.
    """

    def __init__(
        self,
        n_envs: int,
        seed: int,
        length: int,
        commands: np.ndarray | None = None,
        rules: Rules | None = None,
    ) -> None:
        self._commands = game_commands() if commands is None else commands
        self._rules = rules_of_crafter() if rules is None else rules
        super().__init__(n_envs, seed, (3, SIDE, SIDE), n_actions=len(self._commands))
        self.metadata[ACTION_NAMES] = ACTIONS
        self.render_mode = "rgb_array"
        self.achievements = AchievementStatistics()
        self.length = length
        self._worlds = np.zeros(n_envs, WORLD)
        self._seeds = np.arange(seed, seed + n_envs)
        self._episodes = np.zeros(n_envs, np.int64)
        self._changed = np.zeros(n_envs, bool)
        self._news = np.zeros((n_envs, len(ACHIEVEMENTS)), bool)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin a new episode everywhere; a seed begins the worlds of that seed."""
        if seed is not None:
            self._seeds[:] = seed + self._rows
            self._episodes[:] = 0
        return super().reset(seed=seed, options=options)

    def begin(self, row: int, generator: np.random.Generator) -> None:
        """Make the next world of environment `row`, as Crafter numbers them."""
        self._episodes[row] += 1
        numbers = (int(self._seeds[row]), int(self._episodes[row]))
        new_world(self._worlds, row, hash(numbers) % MOST_SEED)
        self._worlds["daylight"][row] = daylight_of(np.zeros(1))[0]

    def advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Take one step everywhere."""
        worlds = self._worlds
        light = daylight_of(worlds["steps"] + 1)
        step_worlds(worlds, self._commands[actions], light, self._rules, self._changed)
        unlock(worlds, self._news)
        self.achievements.note(self._news)
        rewards = self.pay()
        terminated = self.died()
        truncated = (worlds["steps"] >= self.length) & ~terminated
        ended = terminated | truncated
        if ended.any():
            self.achievements.note_episodes(worlds["unlocked"][ended].astype(bool))
        return rewards.astype(np.float32), terminated, truncated

    def pay(self) -> np.ndarray:
        """Return the rewards of the step just taken: a tenth of the health won or lost, and one
        where anything has been unlocked.  [N]
        """
        health = self._worlds["inventory"][:, HEALTH]
        rewards = (health - self._worlds["paid_health"]) / 10 + self._news.any(1)
        self._worlds["paid_health"] = health
        return rewards

    def died(self) -> np.ndarray:
        """Return where the player has no health left.  [N]"""
        return self._worlds["inventory"][:, HEALTH] <= 0

    def step(
        self, actions: np.ndarray
    ) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Take one step everywhere; info["unlocked"] [N] names what was unlocked with it."""
        *results, info = super().step(actions)
        info["unlocked"] = _objects(words.unlocked_names(row.tobytes()) for row in self._news)
        return *results, info  # type: ignore[return-value]

    def observe(self, rows: np.ndarray) -> np.ndarray:
        """Draw what players see, the night with its noise.  [R, 3, 64, 64]"""
        return draw(self._worlds, rows, SIDE, self._generators)

    def render(self) -> tuple[np.ndarray, ...]:
        """Return larger pictures of the same, without noise.  [144, 144, 3] each"""
        return tuple(draw(self._worlds, self._rows, RENDERED_SIDE).transpose(0, 2, 3, 1))

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what the worlds consist of, their generators included."""
        fields = {name: self._worlds[name] for name in WORLD.names or ()}
        fields["words"] = fields["words"].view(np.int32)  # PyTorch does little with uint32
        return fields | {"seeds": self._seeds, "episodes": self._episodes}

    def metrics(self) -> dict[str, float]:
        """Return how many achievements episodes unlock, and how often each."""
        return self.achievements.metrics()

    def state_dict(self) -> dict[str, Any]:
        """Return worlds, random streams and statistics."""
        return super().state_dict() | {"achievements": self.achievements.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        super().load_state_dict(state)
        self.achievements.load_state_dict(state["achievements"])


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
        return {others.get(name, name): _objects(part) for name, part in parts}


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
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin a new episode everywhere and say what the players see."""
        images, info = super().reset(seed=seed, options=options)
        said = self._say()
        return self._shown(images, said), info | said.info({})

    def step(
        self, actions: np.ndarray
    ) -> tuple[dict[str, Any], np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
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
        return self._news.any(1) * 1.0

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
            "around_target": _objects(around),
        }


def _held(amounts: list[int]) -> dict[str, int]:
    """Return how many of each thing are held, those that are."""
    things = zip(ITEMS[N_VITALS:], amounts[N_VITALS:], strict=True)
    return {name: amount for name, amount in things if amount}


def _objects(parts: Iterable[Any]) -> np.ndarray:
    """Return N things as an array of objects, tuples included.  [N]"""
    things = list(parts)
    array = np.empty(len(things), dtype=object)
    array[:] = things
    return array
