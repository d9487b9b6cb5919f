"""Control tasks that show positions alone (PendulumP-v0, ...) or velocities alone (PendulumV-v0).

The idea of Ni et al. 2022 (arXiv:2110.05038) and of Memory-RL's continuous tasks, on environments
of Gymnasium: what is not shown has to be remembered. Pendulum shows the cosine and sine of its
angle, or its angular velocity. MuJoCo's robots show their `qpos`, as far as Gymnasium does, or
their `qvel`, and the ant no contact forces. A time limit is no end: agents learn as if the episode
went on.
"""

import functools
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import TransformObservation

from envs.any_gymnasium import DRAWN, how_drawn, vector_of
from envs.spaces import LONGEST_SIDE
from utils.settings import Config

SIDES: dict[str, Any] = {"width": LONGEST_SIDE, "height": LONGEST_SIDE}  # of a picture
ROBOTS: dict[str, dict[str, Any]] = {
    "Ant": {"include_cfrc_ext_in_observation": False},
    "HalfCheetah": {},
    "Hopper": {},
    "Walker2d": {},
}


def make(config: Config, seed: int, **drawn: str) -> VectorEnv:
    return vector_of(functools.partial(_partial, config.env, **drawn), config.n_envs, seed)


def make_drawn(config: Config, seed: int) -> VectorEnv:
    plain, drawn = (functools.partial(_partial, config.env, **how) for how in ({}, DRAWN))
    return make(config, seed, **how_drawn(config.env, plain, drawn))


def _partial(name: str, **drawn: Any) -> gymnasium.Env:
    task, shows_positions = name[: -len("P-v0")], name.endswith("P-v0")
    if task == "Pendulum":
        env, n_positions = gymnasium.make("Pendulum-v1", **drawn), 2
    else:
        env = gymnasium.make(f"{task}-v5", **SIDES, **ROBOTS[task], **drawn)
        n_positions = env.get_wrapper_attr("observation_structure")["qpos"]
    kept = slice(n_positions) if shows_positions else slice(n_positions, None)
    space = env.observation_space
    assert isinstance(space, spaces.Box), "these environments show vectors"
    part = spaces.Box(space.low[kept], space.high[kept], dtype=space.dtype.type)
    return TransformObservation(env, lambda shown: shown[kept], part)
