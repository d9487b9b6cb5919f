"""MiniGrid as it comes: the yardstick of `benchmarks.minigrid`."""

import functools

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv


def vector_env(task: str, n_envs: int) -> SyncVectorEnv:
    """Return environments that show what the agent sees, drawn by MiniGrid."""
    make = functools.partial(_make, task)
    return SyncVectorEnv([make] * n_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def draw(symbols: np.ndarray) -> np.ndarray:
    """Draw partial views [N, 7, 7, 3] uint8, each by MiniGrid.  [N, 3, 56, 56] uint8"""
    from minigrid.core.grid import Grid

    images = []
    for view in symbols:
        grid, seen = Grid.decode(view)
        middle, front = view.shape[0] // 2, view.shape[1] - 1
        image = grid.render(8, (middle, front), 3, highlight_mask=seen)
        images.append(image.transpose(2, 0, 1))
    return np.stack(images)


def _make(task: str) -> gymnasium.Env:
    from minigrid.wrappers import ImgObsWrapper, RGBImgPartialObsWrapper

    env = gymnasium.make(task, disable_env_checker=True)
    return ImgObsWrapper(RGBImgPartialObsWrapper(env, tile_size=8))
