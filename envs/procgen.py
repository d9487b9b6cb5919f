"""Procgen's memory mode, played by EnvPool: the agent sees its surroundings of a large world.

Six games have such a mode; Procgen's other ten have none. An episode ends with a picture of the
level just played: EnvPool's Procgen, unlike the original, does not open the next level on the last
step but on the reset after it. So the final observation is the true one, and resetting right away
skips no level.
"""

import functools
from typing import Any

from gymnasium.vector import VectorEnv

from envs.envpool_vector import EnvPoolVectorEnv, open_pool
from utils.settings import Config

ACTION_NAMES = (
    *("left down", "left", "left up", "down", "nothing", "up", "right down", "right", "right up"),
    *("D", "A", "W", "S", "Q", "E"),
)
IMAGE_SHAPE = (3, 64, 64)


def make(config: Config, seed: int) -> VectorEnv:
    """Return environments of a game, with levels drawn from all there are.

    Time limits are the games' own: 500 steps in maze, 2000 in jumper, 1000 in the others.
    """
    return EnvPoolVectorEnv(
        functools.partial(open_game, config.env),
        config.n_envs,
        seed,
        lambda shown: shown,
        IMAGE_SHAPE,
    )


def open_game(game: str, seeds: list[int]) -> Any:
    # No number of levels stands for all there are.
    return open_pool(f"{game.capitalize()}Memory-v0", seeds, num_levels=0, start_level=0)
