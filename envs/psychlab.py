"""Psychlab's continuous recognition in DeepMind Lab: was the picture on the screen shown before?

Psychlab (Leibo et al. 2018, arXiv:1801.08116) is part of DeepMind Lab (arXiv:1612.03801), which
is built from its sources; docs/how-to/housekeep_and_psychlab.md says how, and how to fetch
the pictures.

As in the original implementation of HELM, the Lab counts thirty frames a second, an action is held
for four of them, and an agent has the first eleven of the fifteen published actions. Its SHELM and
HELM took an image [80, 80, 3] for one of [3, 80, 80]; here every agent sees the picture.
"""

from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from envs.episodes import Options, ResetResult, SingleEnvs, SingleStepResult
from utils.environments import Action, Suite
from utils.errors import UserError
from utils.settings import Config

NAME = "psychlab_continuous_recognition"
LEVEL = "contributed/dmlab30/psychlab_continuous_recognition"
SIDE = 80
CAMERA = "RGB_INTERLEAVED"
FRAMES_PER_SECOND = 30  # of game time; the Lab's own is 60
ACTION_REPEAT = 4  # frames an action is held
LAB_SEEDS = 2**31 - 1

# Look right, look down, strafe right, forward, fire, jump, crouch.
ACTIONS = np.array(
    [
        (0, 0, 0, 1, 0, 0, 0),
        (0, 0, 0, -1, 0, 0, 0),
        (0, 0, -1, 0, 0, 0, 0),
        (0, 0, 1, 0, 0, 0, 0),
        (-10, 0, 0, 0, 0, 0, 0),
        (10, 0, 0, 0, 0, 0, 0),
        (-60, 0, 0, 0, 0, 0, 0),
        (60, 0, 0, 0, 0, 0, 0),
        (0, 10, 0, 0, 0, 0, 0),
        (0, -10, 0, 0, 0, 0, 0),
        (-10, 0, 0, 1, 0, 0, 0),
    ],
    dtype=np.intc,
)
MOVES = ("forward", "backward", "strafe left", "strafe right")
LOOKS = ("look left 10", "look right 10", "look left 60", "look right 60", "look down", "look up")
ACTION_NAMES = (*MOVES, *LOOKS, "forward left 10")


class Psychlab(Suite):
    scale_rewards, action_names = True, ACTION_NAMES

    def names(self) -> list[str]:
        return [NAME]

    def make(self, config: Config, seed: int) -> VectorEnv:
        _import_lab()
        return SingleEnvs(PsychlabEnv, config.n_envs, seed, in_processes=True)


class PsychlabEnv(gymnasium.Env):
    """One DeepMind Lab level, showing channel-first images.  [3, 80, 80]

    An action is held for four frames of 1/30 s. The Lab's clock and its cap on the number of
    pictures both end an episode without saying which it was, so every end counts as terminated. The
    Lab shows nothing after the last frame; the final observation is the last image seen.
    """

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (3, SIDE, SIDE), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(ACTIONS))
        self._lab: Any = None
        self._image = np.zeros((3, SIDE, SIDE), np.uint8)

    def reset(self, *, seed: int | None = None, options: Options = None) -> ResetResult:
        super().reset(seed=seed)
        if self._lab is None:
            screen = {"width": str(SIDE), "height": str(SIDE), "fps": str(FRAMES_PER_SECOND)}
            self._lab = _import_lab().Lab(LEVEL, [CAMERA], config=screen, renderer="software")
        # A level may look at the episode's number; without it the Lab counts on.
        self._lab.reset(episode=0, seed=int(self.np_random.integers(LAB_SEEDS)))
        return self._look(), {}

    def step(self, action: Action) -> SingleStepResult:
        reward = float(self._lab.step(ACTIONS[int(action)], num_steps=ACTION_REPEAT))
        terminated = not self._lab.is_running()
        image = self._image if terminated else self._look()
        return image, reward, terminated, False, {}

    def close(self) -> None:
        if self._lab is not None:
            self._lab.close()
            self._lab = None

    def _look(self) -> np.ndarray:
        shown = self._lab.observations()[CAMERA]
        self._image = np.ascontiguousarray(shown.transpose(2, 0, 1))
        return self._image


def _import_lab() -> ModuleType:
    try:
        import deepmind_lab
    except ImportError as error:
        raise UserError(
            f"env: '{NAME}' needs deepmind_lab, which is not installed and must be built from "
            "source with the pictures of data/brady_konkle_oliva2008. See "
            "docs/how-to/housekeep_and_psychlab.md#psychlab"
        ) from error
    return deepmind_lab
