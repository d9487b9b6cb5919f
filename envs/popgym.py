"""POPGym: light tasks that isolate one kind of memory each, in three difficulties.

Morad et al. (2023, arXiv:2303.01859). Tasks are called as the package registers them, such as
popgym-RepeatPreviousEasy-v0. All returns lie between -1 and 1. Observations are those of the
package, without the previous action that its own baselines add to them, which Battleship,
Concentration, MineSweeper and MultiarmedBandit ask for (`obs_requires_prev_action`): there an agent
that is not told its last action must remember it. The pendulums have continuous actions and are
refused.
"""

import functools

import gymnasium
from gymnasium.vector import VectorEnv

from envs.any_gymnasium import vector_of
from settings import Config

PREFIX = "popgym-"


def names() -> list[str]:
    """Return the names of all tasks."""
    import popgym  # noqa: F401  (registers its environments with Gymnasium)

    return sorted(name for name in gymnasium.registry if name.startswith(PREFIX))


def make(config: Config, seed: int) -> VectorEnv:
    """Return `config.n_envs` environments, environment i seeded with seed + i.

    A step is plain Python of some microseconds, so all are stepped in this process.

    Raises:
        UserError: the task has continuous actions.
    """
    import popgym  # noqa: F401  (registers its environments with Gymnasium)

    make_one = functools.partial(gymnasium.make, config.env, disable_env_checker=True)
    return vector_of(make_one, config.n_envs, seed)
