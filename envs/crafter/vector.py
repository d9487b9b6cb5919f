"""Crafter as a vector environment: worlds, pictures, rewards, and what episodes achieve."""

from typing import Any

import numpy as np

from envs.converted import ACTION_NAMES
from envs.crafter import words
from envs.crafter.achievements import AchievementStatistics
from envs.crafter.actions import game_commands
from envs.crafter.compiled import tell_of_compiling
from envs.crafter.drawing import draw
from envs.crafter.landscape import new_world
from envs.crafter.package import ACTIONS, rules_of_crafter
from envs.crafter.player import Rules
from envs.crafter.step import (
    daylight_of,
    step_worlds,
    unlock,
)
from envs.crafter.world import ACHIEVEMENTS, HEALTH, WORLD
from envs.numpy_vector import NumpyVectorEnv
from utils.arrays import objects

SIDE = 64  # pixels
RENDERED_SIDE = 144  # of a picture for people: textures in their own size
MOST_SEED = 2**31 - 1


class CrafterVectorEnv(NumpyVectorEnv):
    """The unmodified game: pictures, its own actions and rewards.

    An episode of seed s has the first world of `crafter.Env(seed=s)`. The noise of the night is
    drawn from a generator of its own.

    Args:
        n_envs: Number of environments.
        seed: Of the run.
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
        tell_of_compiling()
        self._commands = game_commands() if commands is None else commands
        self._rules = rules_of_crafter() if rules is None else rules
        super().__init__(n_envs, seed, (3, SIDE, SIDE), n_actions=len(self._commands))
        self.metadata[ACTION_NAMES] = ACTIONS
        self.render_mode = "rgb_array"
        self.achievements = AchievementStatistics()
        self.length = length
        self._worlds = np.zeros(n_envs, WORLD)
        self._changed = np.zeros(n_envs, bool)
        self._news = np.zeros((n_envs, len(ACHIEVEMENTS)), bool)

    @property
    def worlds(self) -> np.ndarray:
        """The worlds as they are now, to look at.  [N] of WORLD"""
        return self._worlds

    def begin(self, row: int, generator: np.random.Generator) -> None:
        """Make the world of the episode in environment `row`."""
        # Crafter seeds a world with a hash of its environment's seed and of how many it has made.
        new_world(self._worlds, row, hash((self.seed_of(row), 1)) % MOST_SEED)
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
        info["unlocked"] = objects(words.unlocked_names(row.tobytes()) for row in self._news)
        return *results, info

    def observe(self, rows: np.ndarray) -> np.ndarray:
        """Draw what players see, the night with its noise.  [R, 3, 64, 64]"""
        return draw(self._worlds, rows, SIDE, self._generators)

    def render(self) -> tuple[np.ndarray, ...]:
        """Return larger pictures of the same, without noise.  [144, 144, 3] each"""
        return tuple(draw(self._worlds, self._rows, RENDERED_SIDE).transpose(0, 2, 3, 1))

    def metrics(self) -> dict[str, float]:
        """Return how many achievements episodes unlock, and how often each."""
        return self.achievements.metrics()

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics of episodes that have ended."""
        return {"achievements": self.achievements.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from saved statistics."""
        self.achievements.load_state_dict(state["achievements"])
