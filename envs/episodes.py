"""An episode is a seed and its actions: how each gets a seed of its own, and is played again.

Episode k of environment i in a run of seed s has a seed of its own, so that runs of neighbouring
seeds share no worlds, and none that an evaluation plays (utils/seeding.py). A run resumes by
beginning the running episodes again and repeating their actions, which is exact wherever seed and
actions decide all. Checksums of observations tell where they do not. Renderers and game engines
need a process each.
"""

import functools
import importlib
import itertools
import multiprocessing
import os
import signal
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, ParamSpec, SupportsFloat, TypeVar, cast

import gymnasium
import numpy as np

if tuple(map(int, gymnasium.__version__.split(".")[:2])) < (1, 4):
    # With 1.1 to 1.3 a resumed run went on with other observations; older ones lack a mode.
    raise SystemExit(
        f"gymnasium {gymnasium.__version__} is installed, and 1.4 or newer is needed. "
        "Run: pip install 'gymnasium>=1.4'"
    )
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.async_vector_env import AsyncState

from envs.notices import name_of
from utils.environments import Action, Environments, Info, Observation
from utils.errors import ENDINGS, EXHAUSTED, EnvFault, RunError, UserError, error_text
from utils.seeding import episode_seed, seed_everything
from utils.user_modules import refuse_unguarded_script

# An option of `reset`: the number within the run of the first of these environments.
FIRST_ENV = "first_env"
# Every process imports the program's main module, and with it these.
SHARED_MODULES = ["torch", "gymnasium"]
SECONDS_TO_DIE = 0.1
PARTED = (list, tuple, np.ndarray)
MAKE_ANEW = ". Let the function make a new one in every call, such as lambda: MyEnv()"

ResetOptions = dict[str, Any]  # by the names that an environment gives them
Options = ResetOptions | None
ChooseOptions = Callable[[int], ResetOptions]
ResetResult = tuple[Observation, Info]
StepResult = tuple[Observation, np.ndarray, np.ndarray, np.ndarray, Info]
SingleStepResult = tuple[Observation, SupportsFloat, bool, bool, Info]
Seeds = int | list[int | None] | None  # of all environments, or of each
MakeOne = Callable[[], gymnasium.Env]
Given = ParamSpec("Given")
Result = TypeVar("Result")
# Seed of the run, number of the environment within it, number of the episode, checksum, options.
Running = tuple[int, int, int, int, Options]


def checksum(shown: object, so_far: int = 0) -> int:
    # An array of objects holds their addresses: what they are is in the parts.
    if isinstance(shown, np.ndarray) and shown.dtype.kind != "O":
        # A CRC, not a cryptographic hash: it is taken of every step, and nobody attacks it.
        return zlib.crc32(np.ascontiguousarray(shown).data, so_far)
    if isinstance(shown, dict):
        shown = list(shown.items())
    if isinstance(shown, PARTED):
        for part in shown:
            so_far = checksum(part, so_far)
        return so_far
    # Texts and numbers: `str` of a float holds all its digits.
    return zlib.crc32(str(shown).encode(), so_far)


def as_fault(error: BaseException, before: str, after: str) -> BaseException:
    """Return an EnvFault for an exception of an environment; of the machine or our own as it is."""
    is_machines = isinstance(error, MemoryError | BrokenPipeError)
    # A full disk or memory is no mistake of the environment's author.
    is_machines |= isinstance(error, OSError) and error.errno in EXHAUSTED
    if isinstance(error, EnvFault):
        return EnvFault(f"{before}{error}{after}")
    if is_machines or isinstance(error, UserError | RunError):
        return error
    return EnvFault(f"{before}{error_text(error)}{after}")


class SeededEnv(gymnasium.Wrapper):
    """An environment that seeds every episode, and can play the running one again.

    `row` is its number among those that are stepped together; `seed` is the run's, until `reset` is
    given another.
    """

    def __init__(self, env: gymnasium.Env, row: int, seed: int) -> None:
        super().__init__(env)
        self._row = row
        self._seed, self._number, self._episode = seed, row, -1
        self._checksum = self._n_steps = 0  # of the episode: of all it has shown and paid
        self._options: Options = None  # of the episode
        self._choose: ChooseOptions | None = None

    def reset(self, *, seed: int | None = None, options: Options = None) -> ResetResult:
        """Begin the next episode, or with a seed the first one of a run of that seed."""
        if seed is None:
            self._episode += 1
        else:
            others = dict(options or {})
            # By its number in the whole run: a rank plays what its part of one process would.
            self._seed, self._number = seed, others.pop(FIRST_ENV, 0) + self._row
            # The environment itself must not see our option.
            self._episode, options = 0, others
        chosen = {} if self._choose is None else self._choose(self._number)
        # They belong to the episode: played again, it begins with them again.
        self._options = {**(options or {}), **chosen} or None
        return self._begin()

    def step(self, action: Action) -> SingleStepResult:
        self._n_steps += 1
        try:
            shown, reward, terminated, truncated, info = self.env.step(action)
        except ENDINGS:
            raise
        except BaseException as error:  # whatever its author did
            raise self._fault(error) from error
        # Of all steps, not of the last alone: different ways may lead to one picture.
        self._checksum = checksum(reward, checksum(shown, self._checksum))
        return shown, reward, terminated, truncated, info

    def choose_options(self, choose: "ChooseOptions") -> None:
        self._choose = choose

    def running(self) -> Running:
        return self._seed, self._number, self._episode, self._checksum, self._options

    def replay(self, running: Sequence[Running], actions: Sequence[np.ndarray]) -> bool:
        """Play the running episode of a saved state again; return whether it came out the same."""
        # Both arguments are those of every environment, actions being [T] each.
        self._seed, self._number, self._episode, saved, *options = running[self._row]
        self._options = options[0] if options else None  # earlier versions kept none
        self._begin()
        for action in actions[self._row]:
            _, _, terminated, truncated, _ = self.step(action)
            # A running episode has not ended, so this is another one.
            if terminated or truncated:
                return False
        # Saved while it was running, it looks and has paid as it did then.
        return self._checksum == saved

    def _begin(self) -> ResetResult:
        self._n_steps = 0
        try:
            shown, info = self.env.reset(seed=self._episode_seed, options=self._options)
        except ENDINGS:
            raise
        except BaseException as error:
            raise self._fault(error) from error
        self._checksum = checksum(shown)
        return shown, info

    @property
    def _episode_seed(self) -> int:
        return episode_seed(self._seed, self._number, self._episode)

    def _fault(self, error: BaseException) -> BaseException:
        # With this seed the user can bring about the same fault alone.
        begun = f"reset(seed={self._episode_seed})"
        where = f", in step {self._n_steps:,} after {begun}" if self._n_steps else f", in {begun}"
        return as_fault(error, f"environment {self._number}: ", where)


class WithOptions(gymnasium.Wrapper):
    """An environment that is given these options at each reset."""

    def __init__(self, env: gymnasium.Env, options: ResetOptions) -> None:
        super().__init__(env)
        self.options = options

    def reset(self, *, seed: int | None = None, options: Options = None) -> ResetResult:
        return self.env.reset(seed=seed, options={**self.options, **(options or {})} or None)


class SingleEnvs(VectorWrapper, Environments):
    """N single environments that can play their running episodes again.

    With `in_processes` each has a process of its own; the numbers are the same. Observations leave
    the processes by `shared_memory`, or else as messages. With `has_success`, the info of an
    episode's last step has "success".
    """

    def __init__(
        self,
        make_one: MakeOne,
        n_envs: int,
        seed: int,
        in_processes: bool = False,
        shared_memory: bool = True,
        has_success: bool = False,
    ) -> None:

        here = os.getpid()
        makers = [functools.partial(_seeded, make_one, row, seed, here) for row in range(n_envs)]
        env: VectorEnv
        if in_processes:
            # A renderer's context belongs to its process, and most engines have but one.
            env = one_process_each(makers, shared_memory)
        else:
            env = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
            check_are_several(env.envs)
        super().__init__(env)
        self.has_success = has_success
        from envs.streams import Streams  # not above: it brings PyTorch

        self._streams = Streams(name_of(env))

    def reset(self, *, seed: int | None = None, options: Options = None) -> ResetResult:
        seeds: Any = None if seed is None else [seed] * self.num_envs
        with self._streams.anew(seed, (options or {}).get(FIRST_ENV, 0)):
            return self.env.reset(seed=seeds, options=options)

    def step(self, actions: np.ndarray) -> StepResult:
        with self._streams:
            shown, rewards, terminated, truncated, info = self.env.step(actions)
        final = info.get("final_info", {})  # where an episode ended, info is the next one's
        # Told where ours and EpisodeStatistics read it: beside the step that ended.
        info |= {name: final[name] for name in ("success", "_success") if name in final}
        return shown, rewards, terminated, truncated, info

    def cues(self) -> Sequence[object] | None:
        """Return the cue that each shows now, None if one has no cues."""
        return self._call("cue") if all(self._call("has_wrapper_attr", "cue")) else None

    def running(self) -> list[Running]:
        return list(self._call("running"))

    def replay(self, running: Sequence[Running], actions: Sequence[np.ndarray]) -> bool:
        with self._streams.anew():
            # All of them play, also behind one that comes out otherwise.
            return all(self._call("replay", running, actions))

    def _call(self, name: str, *arguments: object) -> tuple[Any, ...]:
        return cast(Any, self.env).call(name, *arguments)


def choose_episodes(env: VectorEnv, choose: ChooseOptions) -> None:
    """Let a function choose the options of each reset, given the environment's number.

    Raises:
        UserError: these environments are no single ones of Gymnasium in this process.
    """
    inner = env
    while isinstance(inner, VectorWrapper) and not isinstance(inner, SingleEnvs):
        inner = inner.env
    # In a process of its own an environment would ask a copy, whose state stays there.
    if not isinstance(inner, SingleEnvs) or not isinstance(inner.env, SyncVectorEnv):
        raise UserError(
            f"callbacks: before_episode chooses options of single Gymnasium environments in one "
            f"process, and {name_of(env)} has others. Leave env_processes at false, or give a "
            "function that makes one environment"
        )
    inner.env.call("choose_options", choose)


def _seeded(make_one: MakeOne, row: int, seed: int, trains_here: int) -> SeededEnv:
    if os.getpid() != trains_here:  # the global streams of all forks stand at one place
        seed_everything(episode_seed(seed, row, 0))
    return SeededEnv(make_one(), row, seed)


def check_are_several(envs: Iterable[gymnasium.Env]) -> None:
    """Raise UserError where two of some environments are one: each step would be a step of both."""
    inner = [env.unwrapped for env in envs]
    # By what is inside: wrappers may differ around one and the same world.
    if len(set(map(id, inner))) < len(inner):
        raise UserError(f"env: all environments are one {type(inner[0]).__name__}{MAKE_ANEW}")


def one_process_each(
    make_envs: Sequence[Callable[[], gymnasium.Env]], shared_memory: bool = True
) -> VectorEnv:
    """Return a SAME_STEP vector environment with a process for each of several environments."""
    # The processes end with this one, even if it is killed: each waits on a pipe that only this
    # process holds the other end of.
    if len(make_envs) == 1:
        return SyncVectorEnv(make_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    refuse_unguarded_script()
    # Neither OpenGL nor PyTorch's threads survive a fork of this process, so a server is forked,
    # which imports the heaviest modules once for all.
    multiprocessing.get_context("forkserver").set_forkserver_preload(SHARED_MODULES)
    return ProcessVectorEnv(
        [functools.partial(_undisturbed, make_env) for make_env in make_envs],
        shared_memory=shared_memory,
        context="forkserver",
        autoreset_mode=AutoresetMode.SAME_STEP,
    )


class ProcessVectorEnv(AsyncVectorEnv):
    """Environments in processes; the death of one of them is a RunError of one line."""

    def reset(self, *, seed: Seeds = None, options: Options = None) -> ResetResult:
        return self._watched(super().reset, seed=seed, options=options)

    def step(self, actions: np.ndarray) -> StepResult:
        return self._watched(super().step, actions)

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        ended = [not success for success in successes]
        if any(ended):  # Gymnasium's would print tracebacks
            self._state = AsyncState.DEFAULT
            for pipe in itertools.compress(self.parent_pipes, ended):
                pipe.close()
            # The exception itself, which came through the queue; its place in the code is lost.
            raise self.error_queue.get()[2]

    def _watched(
        self, work: Callable[Given, Result], *arguments: Given.args, **options: Given.kwargs
    ) -> Result:
        """Let the processes work; raise RunError if one of them has died."""
        # Not a context manager: its generator crashes Python 3.12.1 later on, in garbage
        # collection.
        try:
            return work(*arguments, **options)
        except EnvFault:
            self.close()  # the others have answered; cut off, each would print a traceback
            raise
        except (EOFError, ConnectionError):
            for process in self.processes:
                # A broken pipe may be seen before the process has an exit code.
                process.join(SECONDS_TO_DIE)
            died = {n: p.exitcode for n, p in enumerate(self.processes) if not p.is_alive()}
            for process in self.processes:
                # The others may be within a step, and nobody will read its result.
                process.kill()
            self._state = AsyncState.DEFAULT  # none of them is waited for
            self.close(terminate=True)
            which = ", ".join(f"{n} (exit code {code})" for n, code in died.items())
            raise RunError(f"the process of environment {which or 'unknown'} died") from None


def _undisturbed(make_env: Callable[[], gymnasium.Env]) -> gymnasium.Env:
    # A terminal sends Ctrl-C, and a cluster its warnings, to every process of a run: signals are
    # left to the one that trains.
    if multiprocessing.parent_process() is not None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
    return make_env()


def import_before_mesa() -> None:
    # PyTorch's optimisers import Triton. Its LLVM and that of Mesa's software renderer share
    # symbols, and the process dies when Mesa's comes first.
    with suppress(ImportError):
        importlib.import_module("triton")
