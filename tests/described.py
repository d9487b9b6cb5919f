"""A small described environment: trees, a table, stones, and everything said in words."""

from dataclasses import dataclass

import gymnasium
import numpy as np

from envs.vector import NumpyVectorEnv
from rewards.suggesters.rules import Novelty
from utils.environments import Suite
from utils.settings import Part, setting

ACTION_NAMES = (
    *("do nothing", "chop tree", "place crafting table", "make wood pickaxe", "mine stone"),
    *("drink water", "attack tree"),
)
NAME = "Described-v0"
SCENES = ("you see grass, and tree.", "you see stone, and tree.", "you see water.", "you see .")
LENGTH = 7
ITEMS = ("wood", "stone", "wood_pickaxe")


class Described(Suite):
    def names(self):
        return [NAME, "Silent-v0"]

    def make(self, config, seed):
        kind = DescribedVectorEnv if config.env == NAME else SilentVectorEnv
        return kind(config.n_envs, seed)


class SilentVectorEnv(NumpyVectorEnv):
    """Shows the number of its scene as an image and pays 1 for the first stone of an episode."""

    def __init__(self, n_envs, seed):
        super().__init__(n_envs, seed, image_shape=(3, 9, 9), n_actions=len(ACTION_NAMES))
        self.metadata = {**self.metadata, "action_names": list(ACTION_NAMES)}
        self._scene, self._steps = np.zeros(n_envs, np.int64), np.zeros(n_envs, np.int64)
        self._table = np.zeros(n_envs, np.int64)
        self._held = np.zeros((n_envs, len(ITEMS)), np.int64)
        self._dice = [None] * n_envs

    def begin(self, row, generator):
        self._dice[row] = generator
        self._scene[row] = generator.integers(len(SCENES))
        self._steps[row] = self._table[row] = self._held[row] = 0

    def advance(self, actions):
        before = self._held[:, 1].copy()
        self._words = [self._act(row, ACTION_NAMES[a]) for row, a in enumerate(actions)]
        self._steps += 1
        truncated = self._steps == LENGTH
        paid = ((before == 0) & (self._held[:, 1] == 1)) * 1.0
        return paid, np.zeros_like(truncated), truncated

    def observe(self, rows):
        images = np.zeros((len(rows), 3, 9, 9), np.uint8)
        images[:, 0, 0] = self._scene[rows, None]
        images[:, 1, :3, 0] = self._held[rows]
        return images

    def _act(self, row, name):
        """Do it and return whether it succeeded, whether it changed the world, and the end."""
        scene, held = SCENES[self._scene[row]], self._held[row]
        changed = {
            "do nothing": True,
            "chop tree": "tree" in scene,
            "place crafting table": held[0] > 0,
            "make wood pickaxe": held[0] > 0 and self._table[row] > 0,
            "mine stone": "stone" in scene and held[2] > 0,
            "drink water": "water" in scene,
            "attack tree": False,
        }[name]
        gains = {"chop tree": 0, "mine stone": 1, "make wood pickaxe": 2}
        if changed and name in gains:
            held[gains[name]] += 1
        if changed and name in ("place crafting table", "make wood pickaxe"):
            held[0] -= 1
        self._table[row] |= changed and name == "place crafting table"
        succeeded = changed or (name == "attack tree" and "tree" in scene)
        self._scene[row] = self._dice[row].integers(len(SCENES))
        return name, succeeded, changed, self._seen(row)

    def _seen(self, row):
        """Return the texts of scene, inventory and status, and the items held."""
        items = {name: int(n) for name, n in zip(ITEMS, self._held[row], strict=True) if n}
        held = f"you have in your inventory {', '.join(items)}." if items else ""
        return SCENES[self._scene[row]], held, "", items


class DescribedVectorEnv(SilentVectorEnv):
    """The same in words."""

    def reset(self, **given):
        observations, info = super().reset(**given)
        return observations, info | self._described()

    def step(self, actions):
        observations, rewards, terminated, truncated, info = super().step(actions)
        phrases, succeeded, changed, after = zip(*self._words, strict=True)
        words = {
            **{"phrase": objects(phrases), "action_success": np.array(succeeded)},
            **{"eval_success": np.array(changed), "unlocked": objects([()] * len(phrases))},
            "around_target": objects([(("grass",) * 3,) * 3] * len(phrases)),
        }
        keys = ("last_scene", "last_inventory", "last_status", "items_after")
        words |= dict(zip(keys, map(objects, zip(*after, strict=True)), strict=True))
        return observations, rewards, terminated, truncated, info | words | self._described()

    def _described(self):
        columns = zip(*(self._seen(row) for row in range(self.num_envs)), strict=True)
        keys = ("scene", "inventory", "status", "items")
        return {key: objects(column) for key, column in zip(keys, columns, strict=True)}


def objects(values):
    array = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        array[row] = value
    return array


class ToldVectorEnv(gymnasium.vector.VectorEnv):
    """Says given words: the first scene and, step by step, the outcome."""

    def __init__(self, first, steps, action_names, ends=()):
        self.num_envs = 1
        self.metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
        self.metadata["action_names"] = list(action_names)
        self.single_observation_space = gymnasium.spaces.Discrete(1)
        self.single_action_space = gymnasium.spaces.Discrete(len(action_names))
        self.first, self.steps, self.ends = first, list(steps), ends
        self.n_steps = 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.int64), {key: objects([value]) for key, value in self.first.items()}

    def step(self, actions):
        said = {key: objects([value]) for key, value in self.steps[self.n_steps].items()}
        ended = np.array([self.n_steps in self.ends])
        self.n_steps += 1
        return np.zeros(1, np.int64), np.zeros(1), ended, np.zeros(1, bool), said


@dataclass(frozen=True)
class ShoutingSettings(Part):
    title = "shouting"

    loudness: int = setting("times that a goal is said", low=1, high=9, default=1)


class Shouting(Novelty):
    """Suggests one goal, with a setting of its own."""

    @classmethod
    def configured(cls, config, action_names):
        return cls([f"{action_names[1]}!" * config.part(ShoutingSettings).loudness])
