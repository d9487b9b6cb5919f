"""Environments that each need a process of their own: renderers and game engines."""

import multiprocessing
from collections.abc import Callable, Sequence

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

# Every process imports the program's main module, and with it these.
SHARED_MODULES = ["torch", "gymnasium"]


def one_process_each(make_envs: Sequence[Callable[[], gymnasium.Env]]) -> VectorEnv:
    """Return a vector environment in SAME_STEP mode with one process per environment.

    The processes come from a fork server, as neither OpenGL nor PyTorch's threads survive a fork
    of this one; it imports the heaviest modules once, for all. They end when this process does,
    even if it is killed: each waits on a pipe that only this process holds the other end of. A
    single environment stays in this process.
    """
    if len(make_envs) == 1:
        return SyncVectorEnv(make_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    multiprocessing.get_context("forkserver").set_forkserver_preload(SHARED_MODULES)
    return AsyncVectorEnv(
        make_envs,
        shared_memory=True,
        context="forkserver",
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
