"""MiniGrid by symbols, not pictures: kind, colour and state of each cell in view, one-hot."""

from typing import Any

import gymnasium
import minigrid  # noqa: F401  (registers its environments with Gymnasium)
import numpy as np
from gymnasium.spaces import Box
from gymnasium.wrappers import FlattenObservation, TransformObservation
from minigrid.wrappers import ImgObsWrapper, OneHotPartialObsWrapper


def by_symbols(named: str, **options: Any) -> gymnasium.Env:
    """Return the environment of MiniGrid with observations [7 * 7 * 20] of 0 and 1."""
    env = gymnasium.make(named, disable_env_checker=True, **options)
    one_hot = FlattenObservation(ImgObsWrapper(OneHotPartialObsWrapper(env)))
    # The wrapper's bound is 255, by which agents would divide.
    bounded = Box(0, 1, one_hot.observation_space.shape, np.uint8)
    return TransformObservation(one_hot, lambda symbols: symbols, bounded)


for name in [each for each in gymnasium.registry if each.startswith("MiniGrid-")]:
    own = name.replace("MiniGrid-", "Symbols-")  # Symbols-MemoryS11-v0
    gymnasium.register(own, f"{__name__}:by_symbols", kwargs={"named": name})
