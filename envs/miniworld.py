"""MiniWorld: rooms and corridors seen in the first person, rendered by OpenGL.

The original implementation of HELM used gym-miniworld at commit ff61a67, which placed a thing of
radius r that is bounded to [a, b] within [a + r, b - r]; the release used here places it within
[a - r, b + r]. The agent of Sign thereby begins at x in [3.6, 5.4] and z in [3.6, 6.4] instead of
[4.4, 4.6] and [4.4, 5.6], and the boxes of Hallway, TMaze and YMaze and Hallway's agent stand in
wider ranges than the published ones.
"""

import contextlib
import functools
import io
import multiprocessing
import os

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from envs.episodes import SingleEnvs, import_before_mesa
from utils.environments import Observation, Suite
from utils.errors import UserError
from utils.settings import Config

# Written down because importing MiniWorld opens OpenGL.
MAZES = ("Maze", "MazeS2", "MazeS3", "MazeS3Fast")
T_MAZES = ("TMaze", "TMazeLeft", "TMazeRight", "YMaze", "YMazeLeft", "YMazeRight")
ROOMS = ("FourRooms", "Hallway", "OneRoom", "OneRoomS6", "OneRoomS6Fast", "ThreeRooms", "WallGap")
THINGS = ("CollectHealth", "PickupObjects", "PutNext", "RoomObjects", "Sidewalk", "Sign")
TASKS = (*MAZES, *T_MAZES, *ROOMS, *THINGS)
MOVES = ("turn left", "turn right", "forward", "back")
ACTION_NAMES = (*MOVES, "pick up", "drop", "toggle", "done")
IMAGE_SHAPE = (3, 60, 80)
PACKAGES = "libegl1 libgl1 libgl1-mesa-dri libglu1-mesa"


class MiniWorld(Suite):
    scale_rewards, action_names = True, ACTION_NAMES

    def names(self) -> list[str]:
        return [f"MiniWorld-{task}-v0" for task in sorted(TASKS)]

    def make(self, config: Config, seed: int) -> VectorEnv:
        """Return `config.n_envs` environments, each in a process of its own, of about 160 MB.

        Raises:
            UserError: OpenGL is missing.
            ModuleNotFoundError: MiniWorld is not installed.
        """
        _import_miniworld()
        make_one = functools.partial(make_single, config.env)
        return SingleEnvs(make_one, config.n_envs, seed, in_processes=True)


def make_single(name: str) -> gymnasium.Env:
    """Return one MiniWorld environment that shows channel-first images only.  [3, 60, 80]"""
    _import_miniworld()
    # MiniWorld prints the abilities of its frame buffers.
    with contextlib.redirect_stdout(io.StringIO()):
        env = gymnasium.make(name, disable_env_checker=True)
    space = gymnasium.spaces.Box(0, 255, IMAGE_SHAPE, np.uint8)
    return gymnasium.wrappers.TransformObservation(env, _image, space)


def _image(observation: Observation) -> np.ndarray:
    """Return the image [3, H, W]; Sign's observation is a dictionary that holds it."""
    image = observation["obs"] if isinstance(observation, dict) else observation
    return np.ascontiguousarray(image.transpose(2, 0, 1))


def _import_miniworld() -> None:
    import pyglet

    if multiprocessing.parent_process() is None:  # workers have no optimiser
        import_before_mesa()
    if "DISPLAY" not in os.environ:
        pyglet.options["headless"] = True
        # Mesa's software renderer would start a thread per core in every process.
        os.environ.setdefault("LP_NUM_THREADS", "0")
    try:
        import miniworld  # noqa: F401  (registers its environments with Gymnasium)
    except ModuleNotFoundError:
        raise
    except Exception as error:
        # Pyglet has no common base for "no library", "no display" and "no suitable context".
        raise UserError(
            f"MiniWorld: OpenGL is not usable ({error}). Run: apt-get install {PACKAGES}"
        ) from error
