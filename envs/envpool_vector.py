"""EnvPool's environments under the contract of every suite: an ended episode leaves no trace.

The suite here is Procgen's memory mode: the agent sees its surroundings of a large world. Six games
have such a mode; Procgen's other ten have none. An episode ends with a picture of the level just
played: EnvPool's Procgen, unlike the original, does not open the next level on the last step but on
the reset after it. So the final observation is the true one, and resetting right away skips no
level.
"""

import contextlib
import ctypes
import functools
import importlib.util
import io
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from tqdm import tqdm

from envs.episodes import FIRST_ENV, Options, ResetResult, StepResult
from envs.vector import final_observations, put
from utils.environments import Environments, Observation, State, Suite
from utils.errors import UserError
from utils.saved_state import check_like
from utils.seeding import episode_seed
from utils.settings import Config

MOVES = ("left down", "left", "left up", "down", "nothing", "up", "right down", "right", "right up")
ACTION_NAMES = (*MOVES, "D", "A", "W", "S", "Q", "E")
IMAGES = gymnasium.spaces.Box(0, 255, (3, 64, 64), np.uint8)

# Procgen draws with Qt 5, each library with those before it.
QT = ("icudata.so.56", "icuuc.so.56", "icui18n.so.56", "Qt5Core.so.5", "Qt5Gui.so.5")

# Resets of all environments: two minutes in MiniGrid, 3 to 100 in Procgen on one core.
MOST_RESETS = 1_000_000
# Tasks whose episodes depend on more than the number of resets: obstacles draw in every step, or
# nothing is put where the agent stood last, or its last move still counts.
DRAWING = ("MiniGrid-Dynamic-Obstacles", "dodgeball")
DEPEND_ON_STEPS = (*DRAWING, "MiniGrid-Fetch", "MiniGrid-GoToObject", "MiniGrid-PutNear")


class Procgen(Suite):
    scale_rewards, action_names = True, ACTION_NAMES

    def make(self, config: Config, seed: int) -> Environments:
        """Return environments of one of Procgen's games, with levels drawn from all there are.

        Time limits are the games' own: 500 steps in maze, 2000 in jumper, 1000 in the others.
        """
        open_game = functools.partial(open_procgen, config.env)
        return EnvPoolVectorEnv(
            config.env, open_game, config.n_envs, seed, lambda images: images, IMAGES
        )


def open_procgen(game: str, seeds: list[int]) -> Any:
    try:
        # No number of levels stands for all there are.
        return open_pool(f"{game.capitalize()}Memory-v0", seeds, num_levels=0, start_level=0)
    except ModuleNotFoundError:
        raise  # EnvPool itself is not installed
    except ImportError as error:
        raise UserError(
            f"env: '{game}' needs Qt 5's libraries, which were not found. Run: pip install "
            "PyQt5-Qt5, or apt-get install libqt5gui5"
        ) from error


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
    _load_qt()
    # A package that EnvPool needs prints a notice about itself when it is imported.
    with contextlib.redirect_stderr(io.StringIO()):
        import envpool
    return envpool


@functools.cache
def _load_qt() -> None:
    """Load the package PyQt5-Qt5, if it is there: EnvPool itself finds the system's Qt alone."""
    package = importlib.util.find_spec("PyQt5")  # a folder; nothing of it is imported
    places = package.submodule_search_locations if package else None
    for place in places or []:
        with contextlib.suppress(OSError):  # where there are others, or none, Procgen tells
            for name in QT:
                ctypes.CDLL(str(Path(place, "Qt5/lib", f"lib{name}")), ctypes.RTLD_GLOBAL)


class EnvPoolVectorEnv(Environments):
    """An EnvPool in SAME_STEP autoreset mode, which shows its observations in our form.

    EnvPool itself resets an ended environment on the step *after* the last one and ignores that
    step's action. Here it is reset at once, so every transition belongs to an episode, and the
    early reset opens the same episode. The seed of the run decides the first episodes, each
    environment's own random stream all that follow. `show` turns a pool's observations into those
    of `space`, N at once.
    """

    # A stream moves only when its environment is reset. So a running episode is played again by as
    # many resets in a fresh pool, and its actions.

    def __init__(
        self,
        task: str,
        open_pool: Callable[[list[int]], Any],
        n_envs: int,
        seed: int,
        show: Callable[[Observation], Observation],
        space: gymnasium.Space,
    ) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.num_envs = n_envs
        self._task = task
        self._open_pool = open_pool
        self._show = show
        self._open(seed, 0)
        self.single_observation_space = space
        self.observation_space = batch_space(space, n_envs)
        self.single_action_space = gymnasium.spaces.Discrete(int(self._pool.action_space.n))
        self.action_space = batch_space(self.single_action_space, n_envs)

    def reset(self, *, seed: int | None = None, options: Options = None) -> ResetResult:
        if seed is not None:
            self._open(seed, (options or {}).get(FIRST_ENV, 0))
        return self._show(self._begin_next(np.arange(self.num_envs))), {}

    def step(self, actions: np.ndarray) -> StepResult:
        last, rewards, terminated, truncated = self._play(np.arange(self.num_envs), actions)
        shown = self._show(last)
        ended = terminated | truncated
        if not ended.any():
            return shown, rewards, terminated, truncated, {}
        rows = np.flatnonzero(ended)
        info = {"final_obs": final_observations(shown, rows), "_final_obs": ended}
        put(shown, rows, self._show(self._begin_next(rows)))
        return shown, rewards, terminated, truncated, info

    def running(self) -> State | None:
        if sum(self._resets) > MOST_RESETS:
            return None
        return {
            "seed": self._seed,
            "first_env": self._first_env,
            "resets": list(self._resets),
            "checksums": list(self._checksums),
        }

    def replay(self, running: State | list[object], actions: Sequence[np.ndarray]) -> bool:
        if isinstance(running, list):
            return False  # of BabyAI when Gymnasium played it; the run goes on with new episodes
        check_like(running, self.running(), "running")
        if min(running["resets"]) < 1 or sum(running["resets"]) > MOST_RESETS:
            raise ValueError(f"running.resets are not from 1 on, and {MOST_RESETS:,} in all")
        resets = np.array(running["resets"])
        # There an episode depends on earlier steps, and those of ended episodes are gone.
        if self._task.startswith(DEPEND_ON_STEPS) and resets.max() > 1:
            return False
        self._open(running["seed"], running["first_env"])

        # Each environment is reset as often as it had been ...
        with tqdm(
            desc=f"{self._task}: finding the running episodes",
            total=resets.sum(),
            unit=" resets",
            leave=False,
            delay=2,  # seconds
            disable=self._first_env > 0 or None,  # None: where nobody looks
        ) as bar:
            for number in range(resets.max()):
                rows = np.flatnonzero(resets > number)
                self._begin_next(rows)
                bar.update(len(rows))

        # ... and takes the steps since then.
        lengths = np.array([len(taken) for taken in actions])
        for step in range(lengths.max()):
            rows = np.flatnonzero(lengths > step)
            taken = np.array([actions[row][step] for row in rows.tolist()])
            _, _, terminated, truncated = self._play(rows, taken)
            if terminated.any() or truncated.any():
                return False
        return self._checksums == running["checksums"]

    def _open(self, seed: int, first_env: int) -> None:
        self._seed, self._first_env = seed, first_env
        rows = range(self.num_envs)
        # A fresh pool: a stream cannot be set back.
        self._pool = self._open_pool([episode_seed(seed, first_env + row, 0) for row in rows])
        self._resets = [0] * self.num_envs
        # Of the first that every episode has shown, and of all that the running one has shown.
        self._firsts, self._checksums = [0] * self.num_envs, [0] * self.num_envs

    def _begin_next(self, rows: np.ndarray) -> Observation:
        """Return the first observations of some environments' next episodes."""
        first, _ = self._pool.reset(rows.astype(np.int32))
        # Answers come in the order of the rows.
        for row, own in zip(rows.tolist(), _image(first), strict=True):
            self._resets[row] += 1
            self._firsts[row] = self._checksums[row] = zlib.crc32(own, self._firsts[row])
        return first

    def _play(
        self, rows: np.ndarray, actions: np.ndarray
    ) -> tuple[Observation, np.ndarray, np.ndarray, np.ndarray]:
        """Return some environments' observations after a step, rewards, and which have ended."""
        following, *outcome, _ = self._pool.step(np.asarray(actions), rows)
        for row, own in zip(rows.tolist(), _image(following), strict=True):
            self._checksums[row] = zlib.crc32(own, self._checksums[row])
        return following, *outcome


def _image(observations: Observation) -> np.ndarray:
    # MiniGrid's also tell direction and mission.
    return observations["image"] if isinstance(observations, dict) else observations
