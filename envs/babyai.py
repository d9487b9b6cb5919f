"""BabyAI: MiniGrid's levels with a mission in words, which differs from episode to episode.

The images are drawn as MiniGrid's are; the mission stands beside them as text unless the settings
say otherwise. EnvPool does not offer the levels.
"""

from gymnasium.vector import VectorEnv

from envs import minigrid
from envs.minigrid import ACTION_NAMES, READS, MissionSettings

__all__ = ["ACTION_NAMES", "READS", "make", "names"]


def names() -> list[str]:
    """Return the names of all BabyAI levels."""
    return minigrid.registered("BabyAI-")


def make(config: MissionSettings, seed: int) -> VectorEnv:
    """Return the levels, stepped one after the other; they can be drawn whole."""
    with_missions = config.missions is not False
    return minigrid.make_by_gymnasium(config.env, config.n_envs, seed, with_missions)
