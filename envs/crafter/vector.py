"""Crafter as vector environments: the unmodified game, and the game of ELLM in words."""

import math
import string

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Text
from gymnasium.vector.utils import batch_space

from envs.crafter import rules as game
from envs.crafter import sentences
from envs.crafter.render import GREY_SIDE, draw, greyed
from envs.crafter.tile_reader import TileReader
from envs.crafter.world import ACHIEVEMENTS, HEALTH, WORLD, new_world, tell_of_compiling
from envs.spaces import ACTION_NAMES
from envs.vector import NumpyVectorEnv, Shown, put
from utils.environments import Info, State
from utils.files import object_array

SIDE = 64  # pixels
RENDERED_SIDE = 144  # of a picture for people: textures in their own size
MOST_SEED = 2**31 - 1
EPISODES_AVERAGED = 100
# The names in info of the sentences on the state that a step has led to, before any reset.
AFTER_STEP = {
    "scene": "last_scene",
    "inventory": "last_inventory",
    "status": "last_status",
    "items": "items_after",
}


class CrafterVectorEnv(NumpyVectorEnv):
    """The unmodified game: pictures, its own actions and rewards.

    An episode of seed s has the first world of `crafter.Env(seed=s)`. The noise of the night is
    drawn from a generator of its own. An episode is cut off after `length` steps; `commands` [A, 2]
    are those of the actions.
    """

    def __init__(
        self,
        n_envs: int,
        seed: int,
        length: int,
        commands: np.ndarray | None = None,
        rules: game.Rules | None = None,
    ) -> None:
        tell_of_compiling()
        self._commands = game.game_commands() if commands is None else commands
        self._rules = game.rules_of_crafter() if rules is None else rules
        super().__init__(n_envs, seed, (3, SIDE, SIDE), n_actions=len(self._commands))
        self.render_mode = "rgb_array"
        self.length = length
        self.worlds = np.zeros(n_envs, WORLD)  # as they are now
        self._changed = np.zeros(n_envs, bool)
        # Achievements unlocked in this step, in each of the last episodes, since the run began.
        self._news = np.zeros((n_envs, len(ACHIEVEMENTS)), bool)
        self._last_episodes = np.zeros((0, len(ACHIEVEMENTS)), bool)
        self._ever = np.zeros(len(ACHIEVEMENTS), bool)

    def begin(self, row: int, generator: np.random.Generator) -> None:
        # Crafter seeds a world with a hash of its environment's seed and of how many it has made.
        new_world(self.worlds, row, hash((self.seed_of(row), 1)) % MOST_SEED)
        self.worlds["daylight"][row] = game.daylight_of(np.zeros(1))[0]

    def advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        worlds = self.worlds
        light = game.daylight_of(worlds["steps"] + 1)
        game.step_worlds(worlds, self._commands[actions], light, self._rules, self._changed)
        game.unlock(worlds, self._news)
        self._ever |= self._news.any(0)
        rewards = self.pay()
        terminated = self.died()
        truncated = (worlds["steps"] >= self.length) & ~terminated
        ended = terminated | truncated
        if ended.any():
            episodes = np.concatenate([self._last_episodes, worlds["unlocked"][ended] > 0])
            self._last_episodes = episodes[-EPISODES_AVERAGED:]
        return rewards.astype(np.float32), terminated, truncated

    def pay(self) -> np.ndarray:
        """Return rewards [N]: a tenth of health won or lost, and 1 where anything was unlocked."""
        health = self.worlds["inventory"][:, HEALTH]
        rewards = (health - self.worlds["paid_health"]) / 10 + self._news.any(1)
        self.worlds["paid_health"] = health
        return rewards

    def died(self) -> np.ndarray:
        return self.worlds["inventory"][:, HEALTH] <= 0

    def words(self, actions: np.ndarray | None) -> Info:
        if actions is None:
            return {}
        return {
            "unlocked": object_array(sentences.unlocked_names(row.tobytes()) for row in self._news)
        }

    def observe(self, rows: np.ndarray) -> Shown:
        return draw(self.worlds, rows, SIDE, self._generators)

    def render(self) -> tuple[np.ndarray, ...]:
        """Return larger pictures of the same, without noise.  [144, 144, 3] each"""
        return tuple(draw(self.worlds, self._rows, RENDERED_SIDE).transpose(0, 2, 3, 1))

    def metrics(self) -> dict[str, float]:
        """Return the mean number of achievements, and each one's share; NaN before the first."""
        shares = np.full(len(ACHIEVEMENTS), math.nan)
        if len(self._last_episodes):
            shares = self._last_episodes.mean(0)
        names = (f"achievements/{name}" for name in ACHIEVEMENTS)
        return {
            "rollout/achievements_mean": float(shares.sum()),
            "rollout/achievements_total": float(self._ever.sum()),
            **dict(zip(names, shares.tolist(), strict=True)),
        }

    def state_dict(self) -> State:
        return {
            "achievements": {
                "episodes": torch.from_numpy(self._last_episodes.copy()),
                "ever": torch.from_numpy(self._ever.copy()),
            }
        }

    def load_state_dict(self, state: State) -> bool:
        saved = state["achievements"]
        episodes, ever = saved["episodes"].numpy(), saved["ever"].numpy()
        if episodes.shape[1:] != self._ever.shape or ever.shape != self._ever.shape:
            raise ValueError(f"achievements {episodes.shape}, {ever.shape}: not those of Crafter")
        self._last_episodes, self._ever = episodes.copy(), ever.copy()
        return True


class CrafterTextVectorEnv(CrafterVectorEnv):
    """The game of ELLM (Du et al. 2023): actions that are phrases, and sentences beside pictures.

    All words are in `info`, too: after `reset` and `step` "scene", "inventory", "status" and
    "items" of the state in which the next action is taken; of the step just taken "phrase",
    "action_success", "eval_success", "unlocked", and of the state it led to, before any reset,
    "around_target", "items_after", "last_scene", "last_inventory" and "last_status".  [N]

    Grey pictures are 84 x 84. With `terminate_on_death`, an episode ends where no health is left.
    A `tile_reader` reads the sentences from coloured pictures.
    """

    def __init__(
        self,
        n_envs: int,
        seed: int,
        length: int,
        phrases: tuple[str, ...],
        is_grey: bool = True,
        use_text: bool = True,
        terminate_on_death: bool = True,
        tile_reader: TileReader | None = None,
    ) -> None:
        super().__init__(
            n_envs, seed, length, sentences.text_commands(phrases), game.rules_of_text()
        )
        self.metadata[ACTION_NAMES] = phrases
        self._is_grey, self._use_text, self._dying = is_grey, use_text, terminate_on_death
        self._tile_reader = tile_reader
        self._phrases = np.array(phrases, dtype=object)
        self._nouns = sentences.text_nouns(phrases)
        self._matched = np.zeros(n_envs, bool)
        self._around = np.zeros((n_envs, 3, 3), np.uint8)
        # The sentences on the state before any reset, and on the present one.
        self._last: dict[str, np.ndarray] = {}
        self._now: dict[str, np.ndarray] = {}
        shape = (1, GREY_SIDE, GREY_SIDE) if is_grey else (3, SIDE, SIDE)
        parts: dict[str, gymnasium.Space] = {"image": Box(0, 255, shape, np.uint8)}
        if use_text:
            parts["caption"] = Text(sentences.MOST_LETTERS, charset=string.ascii_lowercase + " ,._")
        self.single_observation_space = gymnasium.spaces.Dict(parts)
        self.observation_space = batch_space(self.single_observation_space, n_envs)

    def words(self, actions: np.ndarray | None) -> Info:
        info = super().words(actions) | {name: self._now[name] for name in AFTER_STEP}
        if actions is None:
            return info
        info |= {after: self._last[name] for name, after in AFTER_STEP.items()}
        info["phrase"] = self._phrases[actions]
        info["action_success"] = self._changed | self._matched
        # A copy: the next step writes into the array.
        info["eval_success"] = self._changed.copy()
        info["around_target"] = object_array(
            sentences.names_around(cells.tobytes()) for cells in self._around
        )
        return info

    def advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self._last = {}  # of the step before
        game.names_match(self.worlds, self._nouns[actions], self._matched)
        results = super().advance(actions)
        sentences.look_around_target(self.worlds, self._around)
        return results

    def pay(self) -> np.ndarray:
        return np.asarray(self._news.any(1), np.float64)

    def died(self) -> np.ndarray:
        return super().died() & self._dying

    def observe(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        frames = draw(self.worlds, rows, SIDE, self._generators)
        if self._tile_reader is not None:
            facts = sentences.facts_of_tiles(self._tile_reader(frames))
        else:
            everywhere = len(rows) == self.num_envs  # taking rows of worlds copies them
            facts = sentences.facts_of_worlds(self.worlds if everywhere else self.worlds[rows])
        fresh = sentences.said(facts)
        if not self._last:  # the first look of a step is before any reset, at all of them
            self._last = self._now = fresh
        else:  # the info of earlier steps keeps its arrays
            self._now = {name: values.copy() for name, values in self._now.items()}
            put(self._now, rows, fresh)
        image = greyed(frames) if self._is_grey else frames
        return {"image": image, "caption": fresh["caption"]} if self._use_text else {"image": image}

    def fingerprints(self) -> dict[str, str]:
        return {"captions": self._tile_reader.fingerprint} if self._tile_reader else {}

    def state_dict(self) -> State:
        return super().state_dict() | self.fingerprints()

    def load_state_dict(self, state: State) -> bool:
        if self._tile_reader and state["captions"] != self._tile_reader.fingerprint:
            raise ValueError(
                "crafter_captions: they are read by other weights than when it was saved"
            )
        return super().load_state_dict(state)
