"""Environments that each need a process of their own: renderers and game engines."""

import functools
import multiprocessing
import signal
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.async_vector_env import AsyncState

from utils.errors import RunError

# Every process imports the program's main module, and with it these.
SHARED_MODULES = ["torch", "gymnasium"]
SECONDS_TO_DIE = 0.1


def one_process_each(
    make_envs: Sequence[Callable[[], gymnasium.Env]], shared_memory: bool = True
) -> VectorEnv:
    """Return a vector environment in SAME_STEP mode with one process per environment.

    The processes come from a fork server, as neither OpenGL nor PyTorch's threads survive a fork
    of this one; it imports the heaviest modules once, for all. They end when this process does,
    even if it is killed: each waits on a pipe that only this process holds the other end of. A
    single environment stays in this process.

    Args:
        make_envs: Each makes one environment.
        shared_memory: Whether observations come that way, and not as messages.
    """
    if len(make_envs) == 1:
        return SyncVectorEnv(make_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    multiprocessing.get_context("forkserver").set_forkserver_preload(SHARED_MODULES)
    return ProcessVectorEnv(
        [functools.partial(_undisturbed, make_env) for make_env in make_envs],
        shared_memory=shared_memory,
        context="forkserver",
        autoreset_mode=AutoresetMode.SAME_STEP,
    )


class ProcessVectorEnv(AsyncVectorEnv):
    """Environments in processes; the death of one of them is a RunError of one line."""

    def reset(self, **options: Any) -> Any:
        """Begin a new episode everywhere."""
        return self._watched(super().reset, **options)

    def step(self, actions: Any) -> Any:
        """Take one step everywhere."""
        return self._watched(super().step, actions)

    def _watched(self, work: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Let the processes work.

        Not a context manager, whose generator crashes Python 3.12.1 later on, when it collects
        garbage.

        Raises:
            RunError: one of them has died.
        """
        try:
            return work(*arguments, **options)
        except (EOFError, ConnectionError):
            for process in self.processes:
                process.join(SECONDS_TO_DIE)
            died = {n: p.exitcode for n, p in enumerate(self.processes) if not p.is_alive()}
            self._give_up()
            which = ", ".join(f"{n} (exit code {code})" for n, code in died.items())
            raise RunError(f"the process of environment {which or 'unknown'} died") from None

    def _give_up(self) -> None:
        """End all processes without waiting for an answer of any."""
        for process in self.processes:
            process.kill()
        self._state = AsyncState.DEFAULT
        self.close(terminate=True)


def _undisturbed(make_env: Callable[[], gymnasium.Env]) -> gymnasium.Env:
    """Open an environment; its process leaves signals to the one that trains.

    A terminal sends Ctrl-C, and a cluster its warnings, to every process of a run.
    """
    if multiprocessing.parent_process() is not None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
    return make_env()
