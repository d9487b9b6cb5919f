"""POPGym: light tasks that isolate one kind of memory each, in three difficulties.

Morad et al. (2023, arXiv:2303.01859). Tasks are called as the package registers them, such as
popgym-RepeatPreviousEasy-v0. All returns lie between -1 and 1. Observations are those of the
package, without the previous action that its own baselines add to them, which Battleship,
Concentration, MineSweeper and MultiarmedBandit ask for (`obs_requires_prev_action`):
`last_action_input` is that. The pendulums have continuous actions and are refused.
"""

import functools
from collections.abc import Callable
from typing import Any, SupportsFloat

import gymnasium
from gymnasium.vector import VectorEnv

from envs.any_gymnasium import vector_of
from utils.settings import Config

PREFIX = "popgym-"
REPEAT_FIRST, REPEAT_PREVIOUS = "popgym-RepeatFirst", "popgym-RepeatPrevious"


def names() -> list[str]:
    import popgym  # noqa: F401  (registers its environments with Gymnasium)

    return sorted(name for name in gymnasium.registry if name.startswith(PREFIX))


def make(
    config: Config, seed: int, make_one: Callable[..., gymnasium.Env] = gymnasium.make
) -> VectorEnv:
    """Return `config.n_envs` environments, all stepped in this process: a step takes microseconds.

    Raises:
        UserError: the task has continuous actions.
    """
    import popgym  # noqa: F401  (registers its environments with Gymnasium)

    named = functools.partial(make_one, config.env, disable_env_checker=True)
    return vector_of(named, config.n_envs, seed)


def make_drawn(config: Config, seed: int) -> VectorEnv:
    return make(config, seed, _make_telling)


class ShownCard(gymnasium.Wrapper):
    """Tells the suit that is shown, the first one alone or each, if it is to be remembered."""

    def __init__(self, env: gymnasium.Env, first_only: bool) -> None:
        super().__init__(env)
        self._first_only = first_only
        self._cue: int | None = None

    def cue(self) -> int | None:
        return self._cue

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        shown, info = self.env.reset(**options)
        self._cue = int(shown)
        return shown, info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        shown, *others = self.env.step(action)
        self._cue = None if self._first_only else int(shown)
        return shown, *others


def _make_telling(name: str, **options: Any) -> gymnasium.Env:
    """Return one environment; the two tasks that repeat cards tell their cues."""
    env = gymnasium.make(name, **options)
    if name.startswith((REPEAT_FIRST, REPEAT_PREVIOUS)):
        return ShownCard(env, first_only=name.startswith(REPEAT_FIRST))
    return env
