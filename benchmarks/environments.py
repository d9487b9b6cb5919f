"""Environments: ours beside the packages they come from, and steps per second of every suite.

Run: python -m benchmarks.environments [TASK ...]
"""

import argparse
import contextlib
import io
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, flatdim
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from torch import Tensor

from benchmarks.measuring import Pair, Table, Work, in_words, this_machine
from envs import make_vector_env
from envs import minigrid as our_minigrid
from envs.episodes import SingleEnvs
from envs.minigrid_captions import played_views
from trainers import parts  # noqa: F401  settings know no part before
from utils.errors import UserError
from utils.given_settings import load_config
from utils.settings import Config

KEY_CORRIDOR = "MiniGrid-KeyCorridorS3R1-v0"
CRAFTER = "Crafter-v1"
N_ENVS = 16
BALANCED = 10  # steps of Crafter before the package's order of creatures is that of addresses
TASKS = (
    *(KEY_CORRIDOR, "MiniGrid-MemoryS11-v0", "BabyAI-GoToRedBall-v0", "RandomMaze-v0"),
    *("TMazePassive-v0", "TMazeActive-v0", "VisualMatch-v0", "KeyToDoor-v0"),
    *("ContinuousRecognition-v0", CRAFTER, "CrafterText-v0"),
    *("popgym-RepeatPreviousEasy-v0", "popgym-MineSweeperEasy-v0"),
    *("HousekeepText-v0", "CartPole-v1"),
    *("caveflyer", "dodgeball", "heist", "jumper", "maze", "miner"),
    *("MiniWorld-Hallway-v0", "MiniWorld-Sign-v0", "psychlab_continuous_recognition"),
)


def settings(task: str = KEY_CORRIDOR, n_envs: int = N_ENVS) -> Config:
    return load_config().replace(env=task, n_envs=n_envs)


def seen_images(n_envs: int = N_ENVS) -> Iterator[Tensor]:
    """Yield the images [N, 3, 56, 56] uint8 of KeyCorridor played at random, always the same."""
    env = make_vector_env(settings(n_envs=n_envs), seed=0)
    images, _ = env.reset(seed=0)
    for actions in random_actions(env, 1):
        yield torch.from_numpy(images)
        images = env.step(actions[0])[0]


def random_actions(env: VectorEnv, n_steps: int) -> Iterator[np.ndarray]:
    """Yield uniform actions, always the same.  [n_steps, N], or [n_steps, N, A] of a Box"""
    generator, shape = np.random.default_rng(0), (n_steps, env.num_envs)
    space = env.single_action_space
    while True:
        if isinstance(space, Box):
            yield generator.uniform(-1, 1, (*shape, *space.shape)).astype(np.float32)
        else:
            yield generator.integers(0, flatdim(space), shape)


def minigrid(quick: bool) -> Iterator[Pair]:
    """Compare drawing, pixel by pixel, and stepping; layouts come from other random numbers."""
    n_envs = 2 if quick else N_ENVS
    plain = partial(drawings, draw_by_minigrid, n_envs)
    ours = partial(drawings, our_minigrid.draw, n_envs)
    yield Pair(f"MiniGrid drawing, {n_envs} views", plain, ours, note="views of KeyCorridor")
    make = partial(our_minigrid.make_by_envpool, KEY_CORRIDOR, n_envs, seed=0)
    yield Pair(
        "MiniGrid step",
        partial(plays, partial(plain_minigrid, n_envs), 16),
        partial(plays, make, 16),
        steps=16,
        note=f"{n_envs} environments",
    )


def crafter(quick: bool) -> Iterator[Pair]:
    n_envs = 2 if quick else N_ENVS
    plain = partial(SingleEnvs, PlainCrafter, n_envs, seed=0)
    ours = partial(make_vector_env, settings(CRAFTER, n_envs), seed=0)
    note = f"{n_envs} environments, resets included"
    first = partial(beginnings, plain), partial(beginnings, ours)
    yield Pair("Crafter, new worlds and 9 steps", *first, note=note)
    yield Pair("Crafter step", partial(plays, plain, 32), partial(plays, ours, 32), 32, note=note)


def drawings(draw: Callable[[np.ndarray], np.ndarray], n_views: int) -> Iterator[Work]:
    views = played_views([KEY_CORRIDOR], seed=0)
    while True:
        yield partial(draw, np.stack(list(islice(views, n_views))))


def plays(make: Callable[[], VectorEnv], n_steps: int) -> Iterator[Work]:
    env = make()
    env.reset(seed=0)

    def play(actions: np.ndarray) -> None:
        for row in actions:
            env.step(row)

    for actions in random_actions(env, n_steps):
        yield partial(play, actions)


def beginnings(make: Callable[[], VectorEnv]) -> Iterator[Work]:
    env = make()

    def begin(actions: np.ndarray) -> np.ndarray:
        return np.stack([env.reset()[0], *(env.step(row)[0] for row in actions)])

    for actions in random_actions(env, BALANCED - 1):
        yield partial(begin, actions)


def plain_minigrid(n_envs: int) -> SyncVectorEnv:
    def make() -> gymnasium.Env:
        from minigrid.wrappers import ImgObsWrapper, RGBImgPartialObsWrapper

        env = gymnasium.make(KEY_CORRIDOR, disable_env_checker=True)
        return ImgObsWrapper(RGBImgPartialObsWrapper(env, tile_size=8))

    return SyncVectorEnv([make] * n_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def draw_by_minigrid(symbols: np.ndarray) -> np.ndarray:
    """Draw partial views [N, 7, 7, 3] uint8, each by MiniGrid.  [N, 3, 56, 56] uint8"""
    from minigrid.core.grid import Grid

    images = []
    for view in symbols:
        grid, seen = Grid.decode(view)
        middle, front = view.shape[0] // 2, view.shape[1] - 1
        image = grid.render(8, (middle, front), 3, highlight_mask=seen)
        images.append(image.transpose(2, 0, 1))
    return np.stack(images)


class PlainCrafter(gymnasium.Env):
    observation_space = Box(0, 255, (3, 64, 64), np.uint8)

    def __init__(self) -> None:
        with contextlib.redirect_stderr(io.StringIO()):  # of the old gym, where that is installed
            import crafter
        self._game = crafter.Env()
        self.action_space = Discrete(len(self._game.action_names))

    def reset(self, *, seed: int | None = None, **_: Any) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin its next world, with a seed the first one of `crafter.Env(seed=seed)`."""
        super().reset(seed=seed)
        if seed is not None:
            self._game._seed, self._game._episode = seed, 0
        return self._game.reset().transpose(2, 0, 1), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        image, reward, done, _ = self._game.step(action)
        return image.transpose(2, 0, 1), reward, done, False, {}


def steps_per_second(task: str, n_envs: int, seconds: float) -> float:
    env = make_vector_env(settings(task, n_envs), seed=0)
    env.reset(seed=0)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(1000)]
    n_steps = 0
    begun = time.perf_counter()
    while (passed := time.perf_counter() - begun) < seconds:
        env.step(actions[n_steps % len(actions)])
        n_steps += 1
    env.close()
    return n_steps * n_envs / passed


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure environment steps per second.")
    parser.add_argument("--n_envs", type=int, default=16, help="parallel environments")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds per task")
    parser.add_argument("tasks", nargs="*", help="only these")
    arguments = parser.parse_args(argv)
    print(in_words(this_machine()), flush=True)
    table = Table(**{"task": "<32", "n_envs": ">6", "steps/s": ">9,.0f"})
    for task in arguments.tasks or TASKS:
        try:
            rate = steps_per_second(task, arguments.n_envs, arguments.seconds)
            table.row(task, arguments.n_envs, rate)
        except UserError as error:  # its suite is not installed
            print(f"{task:32} skipped: {error}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
