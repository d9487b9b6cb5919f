"""Control tasks that show positions alone (PendulumP-v0, ...) or velocities alone (PendulumV-v0).

The idea of Ni et al. 2022 (arXiv:2110.05038) and of Memory-RL's continuous tasks: what is not shown
has to be remembered. Pendulum shows the cosine and sine of its angle, or its angular velocity.
MuJoCo's robots show their `qpos`, as far as Gymnasium does, or their `qvel`, and the ant no contact
forces. PyBullet's, of Memory-RL, show three velocities of the body, then an angle and a velocity of
each joint; all else are positions. A time limit is no end: agents learn as if the episode went on.
"""

import functools
import importlib
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import TransformObservation

from envs.any_gymnasium import DRAWN, how_drawn, vector_of
from envs.spaces import LONGEST_SIDE
from utils.environments import Suite
from utils.settings import Config

SIDES: dict[str, Any] = {"width": LONGEST_SIDE, "height": LONGEST_SIDE}  # of a picture
ROBOTS: dict[str, dict[str, Any]] = {
    "Ant": {"include_cfrc_ext_in_observation": False},
    "HalfCheetah": {},
    "Hopper": {},
    "Walker2d": {},
}
N_JOINTS = {"AntBullet": 8, "HalfCheetahBullet": 6, "HopperBullet": 3, "Walker2DBullet": 6}


class PartialControl(Suite):
    def make(self, config: Config, seed: int, **drawn: str) -> VectorEnv:
        return vector_of(functools.partial(_partial, config.env, **drawn), config.n_envs, seed)

    def make_drawn(self, config: Config, seed: int) -> VectorEnv:
        plain, drawn = (functools.partial(_partial, config.env, **how) for how in ({}, DRAWN))
        return self.make(config, seed, **how_drawn(config.env, plain, drawn))


def _partial(name: str, **drawn: Any) -> gymnasium.Env:
    task, shows_positions = name[: -len("P-v0")], name.endswith("P-v0")
    if task == "Pendulum":
        env, velocities = gymnasium.make("Pendulum-v1", **drawn), np.arange(2, 3)
    elif task in N_JOINTS:
        importlib.import_module("pybullet_envs_gymnasium")
        env = gymnasium.make(f"{task}Env-v0", **drawn)
        velocities = np.r_[3:6, 9 : 9 + 2 * N_JOINTS[task] : 2]
    else:
        env = gymnasium.make(f"{task}-v5", **SIDES, **ROBOTS[task], **drawn)
        sizes = env.get_wrapper_attr("observation_structure")
        velocities = sizes["qpos"] + np.arange(sizes["qvel"])
    space = env.observation_space
    assert isinstance(space, spaces.Box), "these environments show vectors"
    positions = np.delete(np.arange(len(space.low)), velocities)
    kept = positions if shows_positions else velocities
    part = spaces.Box(space.low[kept], space.high[kept], dtype=space.dtype.type)
    return TransformObservation(env, lambda shown: shown[kept], part)
