"""What environments show that is to be remembered: told to who looks on, never to an agent."""

from numbers import Integral
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper

from utils.errors import UserError

NOT_SHOWN = -1


def cues_of(env: VectorEnv) -> np.ndarray | None:
    """Return what each of N environments shows now that is to be remembered.

    A vector environment, or a wrapper of one, has `cues()`: numbers from 0 on, and NOT_SHOWN or
    None where it shows no such thing now. A single one has `cue()`, see `envs/any_gymnasium.py`.

    Returns:
        [N] int64, or None if the environment does not say.

    Raises:
        UserError: it says something else.
    """
    teller = env
    while isinstance(teller, VectorWrapper) and not hasattr(teller, "cues"):
        teller = teller.env
    told = teller.cues() if hasattr(teller, "cues") else None
    if told is None:
        return None
    if len(told) != env.num_envs:
        raise UserError(f"env: cues() has {len(told)} numbers and there are {env.num_envs} worlds")
    return np.array([_number(cue) for cue in np.asarray(told, object).tolist()], dtype=np.int64)


def _number(cue: Any) -> int:
    if cue is None:
        return NOT_SHOWN
    if not isinstance(cue, Integral) or cue < NOT_SHOWN:
        raise UserError(
            f"env: its cue is {cue!r}. Tell a number from 0 on, or None while it shows nothing "
            "that is to be remembered"
        )
    return int(cue)
