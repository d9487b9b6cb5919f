"""EnvPool's environments under the contract of every suite: an ended episode leaves no trace.

The suite here is Procgen's memory mode: the agent sees its surroundings of a large world. Six games
have such a mode; Procgen's other ten have none. An episode ends with a picture of the level just
played: EnvPool's Procgen, unlike the original, does not open the next level on the last step but on
the reset after it. So the final observation is the true one, and resetting right away skips no
level.
"""

import contextlib
import functools
import io
from collections.abc import Callable
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from envs.episodes import FIRST_ENV, Options, ResetResult, StepResult, episode_seed
from envs.vector import final_observations
from utils.settings import Config

ACTION_NAMES = (
    *("left down", "left", "left up", "down", "nothing", "up", "right down", "right", "right up"),
    *("D", "A", "W", "S", "Q", "E"),
)
IMAGE_SHAPE = (3, 64, 64)


def make(config: Config, seed: int) -> VectorEnv:
    """Return environments of one of Procgen's games, with levels drawn from all there are.

    Time limits are the games' own: 500 steps in maze, 2000 in jumper, 1000 in the others.
    """
    open_game = functools.partial(open_procgen, config.env)
    return EnvPoolVectorEnv(open_game, config.n_envs, seed, lambda shown: shown, IMAGE_SHAPE)


def open_procgen(game: str, seeds: list[int]) -> Any:
    # No number of levels stands for all there are.
    return open_pool(f"{game.capitalize()}Memory-v0", seeds, num_levels=0, start_level=0)


def open_pool(task_id: str, seeds: list[int], **options: Any) -> Any:
    """Return EnvPool's Gymnasium environment with one environment for every seed.

    `task_id` is EnvPool's own name, such as `MazeMemory-v0`; seeds are in [0, 2^31).
    """
    envpool = _import_envpool()
    return envpool.make_gymnasium(task_id, num_envs=len(seeds), seed=seeds, **options)


def pool_tasks() -> list[str]:
    try:
        return list(_import_envpool().list_all_envs())
    except ImportError:
        return []


def _import_envpool() -> ModuleType:
    # A package that EnvPool needs prints a notice about itself when it is imported.
    with contextlib.redirect_stderr(io.StringIO()):
        import envpool
    return envpool


class EnvPoolVectorEnv(VectorEnv):
    """An EnvPool in SAME_STEP autoreset mode, its observations turned into images.

    EnvPool itself resets an ended environment on the step *after* the last one and ignores that
    step's action. Here the ended environments are reset right after the step that ended them, so
    every transition belongs to an episode. Each environment has its own random stream in EnvPool,
    and the early reset opens the same episode that the late one would have. The seed of the run
    decides the first episodes, and each environment's stream all that follow. `to_images` turns a
    pool's observations into uint8 images [N, C, H, W].
    """

    def __init__(
        self,
        open_pool: Callable[[list[int]], Any],
        n_envs: int,
        seed: int,
        to_images: Callable[[Any], np.ndarray],
        image_shape: tuple[int, int, int],
    ) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.num_envs = n_envs
        self._open_pool = open_pool
        self._to_images = to_images
        self._pool = open_pool(_seeds(seed, n_envs))
        self.single_observation_space = gymnasium.spaces.Box(0, 255, image_shape, np.uint8)
        self.observation_space = batch_space(self.single_observation_space, n_envs)
        self.single_action_space = gymnasium.spaces.Discrete(int(self._pool.action_space.n))
        self.action_space = batch_space(self.single_action_space, n_envs)

    def reset(self, *, seed: int | None = None, options: Options = None) -> ResetResult:
        if seed is not None:
            first_env = (options or {}).get(FIRST_ENV, 0)
            self._pool = self._open_pool(_seeds(seed, self.num_envs, first_env))
        observations, _ = self._pool.reset()
        return self._to_images(observations), {}

    def step(self, actions: np.ndarray) -> StepResult:
        observations, rewards, terminated, truncated, _ = self._pool.step(np.asarray(actions))
        images = self._to_images(observations)
        ended = terminated | truncated
        if not ended.any():
            return images, rewards, terminated, truncated, {}
        rows = np.flatnonzero(ended)
        fresh, pool_info = self._pool.reset(rows.astype(np.int32))
        shown = images.copy()
        shown[pool_info["env_id"]] = self._to_images(fresh)  # it may answer in any order
        info = {"final_obs": final_observations(images, rows), "_final_obs": ended}
        return shown, rewards, terminated, truncated, info


def _seeds(seed: int, n_envs: int, first_env: int = 0) -> list[int]:
    return [episode_seed(seed, first_env + row, 0) for row in range(n_envs)]
