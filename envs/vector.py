"""Vector environments: N of our own in NumPy arrays, and statistics of episodes around any.

An exception of an environment is told in one line. A cue, which an agent has to remember, is told
to analyses; agents see it at every step in the environment's twin alone.
"""

import itertools
import logging
import math
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from numbers import Integral

import gymnasium
import numpy as np
from gymnasium.spaces import Box, flatdim
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from envs.episodes import (
    FIRST_ENV,
    Given,
    MakeOne,
    Options,
    ResetResult,
    Result,
    StepResult,
    as_fault,
    checksum,
    episode_seed,
)
from envs.settings import FULL, TwinSettings
from envs.spaces import ACTION_NAMES, NUMBER_NAMES, brief
from utils.environments import (
    NOT_SHOWN,
    Environments,
    Info,
    Legend,
    Observation,
    State,
    Suite,
    Wrapped,
)
from utils.errors import ENDINGS, UserError

LONGEST_REPLAY = 100_000  # steps; an environment without an end would fill the memory
STEPS_UNTIL_FORGOTTEN = 1_000  # actions of ended episodes are kept so long

# Of N environments: an array [N, ...], or several by name, those of text holding objects.
Shown = np.ndarray | dict[str, np.ndarray]

log = logging.getLogger(__name__)


def final_observations(shown: Shown, rows: Iterable[int]) -> np.ndarray:
    """Return Gymnasium's `final_obs`: of the given rows, None elsewhere.  [N] of objects."""
    parts = shown if isinstance(shown, dict) else {"": shown}
    final = np.full(len(next(iter(parts.values()))), None, dtype=object)
    for row in rows:
        own = {name: copy(values[row]) for name, values in parts.items()}  # the next step's differ
        final[row] = own if isinstance(shown, dict) else own[""]
    return final


def put(shown: Shown, rows: np.ndarray, fresh: Shown) -> None:
    if isinstance(shown, dict):
        assert isinstance(fresh, dict), "an environment shows the same kinds always"
        for name, values in shown.items():
            values[rows] = fresh[name]
    else:
        shown[rows] = fresh


class NumpyVectorEnv(Environments):
    """N environments stepped together, in SAME_STEP autoreset mode.

    A subclass has `begin` for one environment, `advance` and `observe` for all. Every episode draws
    from a generator of its own (envs/episodes.py). Observations are uint8 images of `image_shape`
    (C, H, W), or of another `observation_space`. Where `has_success` is true, an episode succeeds
    or fails, and `succeeded` tells which. With `is_twin`, `observe` shows the cue at every step,
    where a subclass has a twin.
    """

    is_twin = False

    def __init__(
        self,
        n_envs: int,
        seed: int,
        image_shape: tuple[int, int, int] | None = None,
        n_actions: int = 2,
        observation_space: gymnasium.Space | None = None,
    ) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.num_envs = n_envs
        self.single_observation_space = observation_space or gymnasium.spaces.Box(
            0, 255, image_shape, np.uint8
        )
        self.observation_space = batch_space(self.single_observation_space, n_envs)
        self.single_action_space = gymnasium.spaces.Discrete(n_actions)
        self.action_space = batch_space(self.single_action_space, n_envs)
        self._rows = np.arange(n_envs)
        self._seed, self._first_env = seed, 0
        self._episodes = np.full(n_envs, -1)  # how many have begun before the present one
        self._generators = [np.random.default_rng(seed)] * n_envs  # every episode brings its own
        self._observations: Shown = np.empty(0)

    @abstractmethod
    def begin(self, row: int, generator: np.random.Generator) -> None:
        """Begin a new episode in environment `row`, drawing only from its generator."""

    @abstractmethod
    def advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Take one step everywhere: actions [N] -> rewards [N], terminated [N], truncated [N]."""

    @abstractmethod
    def observe(self, rows: np.ndarray) -> Shown:
        """Return fresh observations of the given environments: rows [R] -> [R, ...].

        A dictionary holds such arrays, of objects where they are text.
        """

    def succeeded(self) -> np.ndarray:
        """Return whether each episode has succeeded, asked for where one has just ended.  [N]"""
        raise NotImplementedError

    def words(self, actions: np.ndarray | None) -> Info:
        """Return more for `info`, after a step with these actions, after `reset` with None."""
        return {}

    def reset(self, *, seed: int | None = None, options: Options = None) -> ResetResult:
        """Begin the next episode everywhere, or with a seed the first ones of its run."""
        if seed is not None:
            self._seed, self._first_env = seed, (options or {}).get(FIRST_ENV, 0)
            # The episode before the first: `_begin_next` counts one on.
            self._go_to(self._rows, [0] * self.num_envs)
        self._begin_next(self._rows)
        self._observations = self.observe(self._rows)
        return self._observations, self.words(None)

    def step(self, actions: np.ndarray) -> StepResult:
        """Take one step everywhere and begin the next episode where one ended.

        Where an episode ended, info has `final_obs` and, where `has_success`, `success` [N], valid
        where the masks `_final_obs` and `_success` are true.
        """
        actions = np.asarray(actions)
        info: Info = {}
        rewards, terminated, truncated = self.advance(actions)
        self._observations = shown = self.observe(self._rows)
        ended = terminated | truncated
        if ended.any():
            rows = np.flatnonzero(ended)
            # Before anything begins anew: `put` writes over these observations.
            info = {"final_obs": final_observations(shown, rows), "_final_obs": ended}
            if self.has_success:
                # Asked of the episode that ended: the next one begins below.
                info |= {"success": self.succeeded() & ended, "_success": ended}
            self._begin_next(rows)
            # In place: `final_obs` holds copies already.
            put(shown, rows, self.observe(rows))
        return shown, rewards, terminated, truncated, info | self.words(actions)

    def running(self) -> State:
        return {
            "seed": self._seed,
            "first_env": self._first_env,
            "episodes": self._episodes.tolist(),
            "checksum": checksum(self._observations),
        }

    def replay(self, running: State, actions: Sequence[np.ndarray]) -> bool:
        """Play saved episodes again, given the actions of each, N of [T]; return if they agree."""
        # All are stepped together and end at the same step, so each begins when as many steps are
        # left as it has. Until then its environment plays something else.
        # How many steps each running episode has taken.
        lengths = np.array([len(taken) for taken in actions])
        n_steps = int(lengths.max())
        # Action 0 until an episode's turn: what is played before it does not count.
        padded = np.stack([np.pad(taken, (n_steps - len(taken), 0)) for taken in actions])
        self._seed, self._first_env = running["seed"], running["first_env"]
        self.reset()
        for step in range(n_steps + 1):
            if step:
                self.step(padded[:, step - 1])
            rows = np.flatnonzero(lengths == n_steps - step)
            if len(rows):
                self._go_to(rows, [running["episodes"][row] for row in rows])
                self._begin_next(rows)
                put(self._observations, rows, self.observe(rows))
        return checksum(self._observations) == running["checksum"]

    def seed_of(self, row: int) -> int:
        return episode_seed(self._seed, self._first_env + row, int(self._episodes[row]))

    def _begin_next(self, rows: np.ndarray) -> None:
        self._episodes[rows] += 1
        for row in rows.tolist():
            # One for each episode: how much the last one drew changes nothing in this one.
            self._generators[row] = np.random.default_rng(self.seed_of(row))
            self.begin(row, self._generators[row])

    def _go_to(self, rows: np.ndarray, episodes: Sequence[int]) -> None:
        # `_begin_next` counts up.
        self._episodes[rows] = np.asarray(episodes) - 1


class EpisodeStatistics(RecordEpisodeStatistics, Wrapped):
    """Raw return and length of every episode that ends, as Gymnasium records them.

    Where an episode ended, info["episode"] holds "r" [N] and "l" [N], and where the environment
    says so "success" [N], valid where the mask info["_episode"] [N] is true. Where `has_success` is
    true, an episode that ends without a word has failed; else its success is unknown, NaN.
    """

    def __init__(self, env: VectorEnv, name: str, suite: Suite | type[Suite] = Suite) -> None:
        super().__init__(env)
        self.name, self._suite, self._n_steps = name, suite, 0
        self._is_success_said = self.has_success
        # Of the last steps, back to where the longest running episode began.  [N] each
        self._actions: deque[np.ndarray] = deque(maxlen=LONGEST_REPLAY)

    def reset(self, seed: int | None = None, options: Options = None) -> ResetResult:
        # A reset ends all episodes: no step before it will be asked for again.
        self._actions.clear()
        return self._told(super().reset, seed=seed, options=options)

    def step(self, actions: np.ndarray) -> StepResult:
        self._n_steps += 1
        observations, rewards, terminated, truncated, info = self._told(super().step, actions)
        if "_episode" in info and (self.has_success or "success" in info):
            # Beside Gymnasium's r and l, where everything reads the outcome of an episode.
            info["episode"]["success"] = self._success(info)
        # A copy: the caller may write the next actions into the same array.
        self._actions.append(np.array(actions))
        # Now and then, since each time the queue is copied.
        if self._n_steps % STEPS_UNTIL_FORGOTTEN == 0:
            # Seldom, as it copies the queue: between, a few steps too many are kept.
            self._actions = deque(self._running_actions(), LONGEST_REPLAY)
        return observations, rewards, terminated, truncated, info

    def cues(self) -> np.ndarray | None:
        """Return the cue that each of N environments shows now, NOT_SHOWN where none.  [N] int64

        None stands for environments without cues. UserError if one says something else.
        """
        told = super().cues()
        if told is None:
            return None
        if len(told) != self.num_envs:
            raise UserError(
                f"env: cues() has {len(told)} numbers and there are {self.num_envs} worlds"
            )
        return np.array([_number(cue) for cue in np.asarray(told, object).tolist()], dtype=np.int64)

    def legend(self) -> Legend:
        """Return the names of the metadata, else the suite's; actions without one are numbered."""
        names = [str(each) for each in self.metadata.get(ACTION_NAMES, self._suite.action_names)]
        n_actions = flatdim(self.single_action_space)
        actions = [*names[:n_actions], *map(str, range(len(names), n_actions))]
        numbers = self.metadata.get(NUMBER_NAMES, self._suite.number_names)
        return Legend(actions, [str(each) for each in numbers], self._suite.picture_legend)

    def state_dict(self) -> State:
        """Return the running episodes, or nothing of them where they cannot be played again."""
        import torch  # not above: --help would wait for it

        # Longer than what is kept: the first actions of that episode are gone.
        is_short = self.episode_lengths.max() <= len(self._actions)
        running = self.running() if is_short else None
        if running is None:
            return {"resumable": False}
        actions, space = self._running_actions(), self.single_action_space
        shape = self.num_envs, *(space.shape or ())
        return {
            "resumable": True,
            "running": running,
            "actions": torch.from_numpy(np.array(actions, space.dtype).reshape(-1, *shape)),
            "returns": torch.from_numpy(self.episode_returns.copy()),
            "lengths": torch.from_numpy(self.episode_lengths.copy()),
            "own": super().state_dict(),
        }

    def load_state_dict(self, state: State) -> bool:
        """Play saved episodes again; return False where that cannot be: begin new ones then.

        Raises:
            Exception: of several kinds; it is not the state of such environments.
        """
        if not state["resumable"]:
            return False
        actions, lengths = state["actions"].numpy(), state["lengths"].numpy()
        # Before anything is played: a foreign state may hold actions that would crash an engine.
        self._check(actions, lengths)
        if state["returns"].shape != lengths.shape or not state["returns"].isfinite().all():
            raise ValueError("the state holds no returns of its environments")
        n_steps = len(actions)
        # All end at the last saved step, so each has its last `length` actions.
        taken = [actions[n_steps - length :, row] for row, length in enumerate(lengths)]
        is_same = self.replay(state["running"], taken)
        if state["own"]:
            super().load_state_dict(state["own"])
        if not is_same:
            log.warning(
                "env: in '%s' the same seeds and actions lead elsewhere than when the run was "
                "saved. Something else decides, too, or it has changed. New episodes begin",
                self.name,
            )
            return False
        self._actions = deque(actions, LONGEST_REPLAY)
        self.episode_returns[:] = state["returns"].numpy()
        self.episode_lengths[:] = lengths
        return True

    def _success(self, info: Info) -> np.ndarray:
        is_told = info["_episode"] & info.get("_success", "success" in info)
        if self.has_success:
            return is_told & info.get("success", False)
        if not self._is_success_said:
            self._is_success_said = True
            log.info(
                "env: '%s' tells the success of an episode at its end alone. Write metadata = "
                '{"has_success": True} in its class: then an episode without it counts as failed',
                self.name,
            )
        # Unknown is not failed.
        return np.where(is_told, info["success"], math.nan)

    def _running_actions(self) -> list[np.ndarray]:
        """Return those since the longest running episode began.  [N] each"""
        n_old = len(self._actions) - int(self.episode_lengths.max())
        return list(itertools.islice(self._actions, max(n_old, 0), None))

    def _check(self, actions: np.ndarray, lengths: np.ndarray) -> None:
        space = self.single_action_space
        if actions.shape[1:2] != (self.num_envs,) or lengths.shape != (self.num_envs,):
            n_saved = len(lengths)
            raise ValueError(f"the state holds {n_saved} environments, this is {self.num_envs}")
        if len(actions) > LONGEST_REPLAY:
            raise ValueError(f"the state holds {len(actions):,} steps, at most {LONGEST_REPLAY:,}")
        if not ((lengths >= 0) & (lengths <= len(actions))).all():
            raise ValueError(f"the state holds {len(actions)} steps, episodes have {lengths}")
        low, high = np.array(0), np.array(flatdim(space) - 1)
        if isinstance(space, Box):
            low, high = space.low, space.high
        is_inside = (actions >= low) & (actions <= high)
        if actions.shape[2:] != (space.shape or ()) or not is_inside.all():
            raise ValueError(f"the state holds actions that are not of {brief(space)}")

    def _told(
        self, work: Callable[Given, Result], *arguments: Given.args, **options: Given.kwargs
    ) -> Result:
        """Let the environments work; raise EnvFault if one raises something or ends the program."""
        try:
            return work(*arguments, **options)
        except ENDINGS:
            raise
        except BaseException as error:  # whatever its author did
            step = f" (vector step {self._n_steps:,} of this process)"
            raise as_fault(error, f"env: '{self.name}': ", step) from error


class Twin(gymnasium.ObservationWrapper):
    """A single environment that shows its cue at every step, in the same space.

    Its method `show_cue(observation)` returns an observation with that in it.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        if not env.has_wrapper_attr("show_cue"):
            raise UserError(
                f"observability: {type(env.unwrapped).__name__} has no twin: no method "
                "show_cue(observation), which puts the cue into an observation. Write one "
                "(docs/tutorials/your_environment.md), choose another env, or leave observability "
                "at partial"
            )
        self._show_cue = env.get_wrapper_attr("show_cue")

    def observation(self, observation: Observation) -> Observation:
        return self._show_cue(observation)


def twin_if_asked(make_one: MakeOne, config: TwinSettings) -> MakeOne:
    return (lambda: Twin(make_one())) if config.observability == FULL else make_one


def _number(cue: object) -> int:
    if cue is None:
        return NOT_SHOWN
    if not isinstance(cue, Integral) or not NOT_SHOWN <= int(cue) < 2**63:
        raise UserError(
            f"env: its cue is {brief(cue)}. Tell a number from 0 on, or None while it shows "
            "nothing that is to be remembered"
        )
    return int(cue)
