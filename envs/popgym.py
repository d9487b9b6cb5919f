"""POPGym: light tasks that isolate one kind of memory each, in three difficulties.

Morad et al. (2023, arXiv:2303.01859). Tasks are called as the package registers them, such as
popgym-RepeatPreviousEasy-v0. All returns lie between -1 and 1. As in all published results
(popgym/baselines/ppo.py) the package's wrappers add the last action and the flag of the first step
to what a task shows; both can be left out. The pendulums have continuous actions. The two tasks
that repeat cards have twins, which show the card to be repeated in the place of the present one.
"""

import functools
import itertools
from collections.abc import Callable, Iterable

import gymnasium
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from envs.any_gymnasium import vector_of
from envs.episodes import Options, ResetResult, SingleStepResult
from envs.settings import FULL, POPGYM, PopgymSettings
from envs.vector import twin_if_asked
from utils.environments import Action, Observation, Suite

REPEAT_FIRST, REPEAT_PREVIOUS = "popgym-RepeatFirst", "popgym-RepeatPrevious"


class Popgym(Suite):
    def names(self) -> list[str]:
        import popgym  # noqa: F401  (registers its environments with Gymnasium)

        return sorted(name for name in gymnasium.registry if name.startswith(POPGYM))

    def make(self, config: PopgymSettings, seed: int) -> VectorEnv:
        is_telling = config.observability == FULL
        return self._made(config, seed, _make_telling if is_telling else gymnasium.make)

    def make_drawn(self, config: PopgymSettings, seed: int) -> VectorEnv:
        return self._made(config, seed, _make_telling)

    def _made(
        self, config: PopgymSettings, seed: int, make_one: Callable[..., gymnasium.Env]
    ) -> VectorEnv:
        """Return `config.n_envs` environments, all stepped here: a step takes microseconds."""
        import popgym  # noqa: F401  (registers its environments with Gymnasium)

        task = twin_if_asked(
            functools.partial(make_one, config.env, disable_env_checker=True), config
        )
        parts = config.popgym_previous_action, config.popgym_antialias
        return vector_of(
            lambda: PublishedInputs(task(), *parts) if any(parts) else task(), config.n_envs, seed
        )


class PublishedInputs(gymnasium.Wrapper):
    """Shows, behind the task's own, the last action and the flag of the first step."""

    # As popgym's Antialias(PreviousAction(env)), which take no wrappers but their own.

    def __init__(self, env: gymnasium.Env, previous_action: bool, antialias: bool) -> None:
        from popgym.wrappers import PreviousAction

        super().__init__(env)
        self._is_tuple = isinstance(env.observation_space, spaces.Tuple)
        self._null_action = PreviousAction.get_null_action(env.action_space)
        self._is_shown = previous_action, antialias
        more = itertools.compress((env.action_space, spaces.Discrete(2)), self._is_shown)
        self.observation_space = spaces.Tuple((*self._parts(env.observation_space), *more))

    def _parts(self, shown: Observation) -> Iterable[Observation]:
        return shown if self._is_tuple else (shown,)

    def _with(self, shown: Observation, action: Action, flag: int) -> tuple[Observation, ...]:
        return (*self._parts(shown), *itertools.compress((action, flag), self._is_shown))

    def reset(self, *, seed: int | None = None, options: Options = None) -> ResetResult:
        shown, info = self.env.reset(seed=seed, options=options)
        return self._with(shown, self._null_action, 1), info

    def step(self, action: Action) -> SingleStepResult:
        shown, reward, terminated, truncated, info = self.env.step(action)
        return self._with(shown, action, 0), reward, terminated, truncated, info


class ShownCard(gymnasium.Wrapper):
    """Tells the suit that is shown, the first one alone or each, if it is to be remembered."""

    def __init__(self, env: gymnasium.Env, first_only: bool) -> None:
        super().__init__(env)
        self._first_only = first_only
        self._cards: list[int] = []

    def cue(self) -> int | None:
        is_told = len(self._cards) == 1 or not self._first_only
        return self._cards[-1] if is_told else None

    def show_cue(self, observation: Observation) -> Observation:
        """Return the suit to be named now, where there is one yet."""
        n_back = len(self._cards) if self._first_only else self.get_wrapper_attr("k")
        return self._cards[-n_back] if n_back <= len(self._cards) else observation

    def reset(self, *, seed: int | None = None, options: Options = None) -> ResetResult:
        shown, info = self.env.reset(seed=seed, options=options)
        self._cards = [int(shown)]
        return shown, info

    def step(self, action: Action) -> SingleStepResult:
        shown, *others = self.env.step(action)
        self._cards.append(int(shown))
        return shown, *others


def _make_telling(name: str, **options: bool) -> gymnasium.Env:
    env = gymnasium.make(name, **options)
    if name.startswith((REPEAT_FIRST, REPEAT_PREVIOUS)):
        return ShownCard(env, first_only=name.startswith(REPEAT_FIRST))
    return env
