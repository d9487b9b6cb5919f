"""POPGym: light tasks that isolate one kind of memory each, in three difficulties.

Morad et al. (2023, arXiv:2303.01859). Tasks are called as the package registers them, such as
popgym-RepeatPreviousEasy-v0. All returns lie between -1 and 1. Observations are those of the
package, without the previous action that its own baselines add to them, which Battleship,
Concentration, MineSweeper and MultiarmedBandit ask for (`obs_requires_prev_action`):
`last_action_input` is that. The pendulums have continuous actions. The two tasks
that repeat cards have twins, which show the card to be repeated in the place of the present one.
"""

import functools
from collections.abc import Callable
from typing import Any, SupportsFloat

import gymnasium
from gymnasium.vector import VectorEnv

from envs.any_gymnasium import vector_of
from envs.vector import FULL, TwinSettings, twin_if_asked

PREFIX = "popgym-"
REPEAT_FIRST, REPEAT_PREVIOUS = "popgym-RepeatFirst", "popgym-RepeatPrevious"
READS = (TwinSettings,)


def names() -> list[str]:
    import popgym  # noqa: F401  (registers its environments with Gymnasium)

    return sorted(name for name in gymnasium.registry if name.startswith(PREFIX))


def make(
    config: TwinSettings, seed: int, make_one: Callable[..., gymnasium.Env] = gymnasium.make
) -> VectorEnv:
    """Return `config.n_envs` environments, all stepped here: a step takes microseconds."""
    import popgym  # noqa: F401  (registers its environments with Gymnasium)

    make_one = _make_telling if config.observability == FULL else make_one
    named = functools.partial(make_one, config.env, disable_env_checker=True)
    return vector_of(twin_if_asked(named, config), config.n_envs, seed)


def make_drawn(config: TwinSettings, seed: int) -> VectorEnv:
    return make(config, seed, _make_telling)


class ShownCard(gymnasium.Wrapper):
    """Tells the suit that is shown, the first one alone or each, if it is to be remembered."""

    def __init__(self, env: gymnasium.Env, first_only: bool) -> None:
        super().__init__(env)
        self._first_only = first_only
        self._cards: list[int] = []

    def cue(self) -> int | None:
        is_told = len(self._cards) == 1 or not self._first_only
        return self._cards[-1] if is_told else None

    def show_cue(self, observation: Any) -> Any:
        """Return the suit to be named now, where there is one yet."""
        n_back = len(self._cards) if self._first_only else self.get_wrapper_attr("k")
        return self._cards[-n_back] if n_back <= len(self._cards) else observation

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        shown, info = self.env.reset(**options)
        self._cards = [int(shown)]
        return shown, info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        shown, *others = self.env.step(action)
        self._cards.append(int(shown))
        return shown, *others


def _make_telling(name: str, **options: Any) -> gymnasium.Env:
    env = gymnasium.make(name, **options)
    if name.startswith((REPEAT_FIRST, REPEAT_PREVIOUS)):
        return ShownCard(env, first_only=name.startswith(REPEAT_FIRST))
    return env
