"""What every vector environment is checked for before an agent sees it."""

from typing import Any

from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode, VectorEnv

from envs.conversion import acted, seen, shown
from utils.errors import UserError


def checked_vector_env(env: Any) -> VectorEnv:
    """Return a vector environment as it is, if agents can be trained in it.

    It restarts an ended episode within the step that ends it (SAME_STEP), shows what agents see
    in the form in which they see it, and takes one Discrete action from 0 on.

    Args:
        env: Somebody's vector environment.

    Raises:
        UserError: it is none, or does something else; the line says what to write.
    """
    if not isinstance(env, VectorEnv):
        raise UserError(
            f"env: a {type(env).__name__} is given, not a gymnasium.vector.VectorEnv. Write: "
            "gymnasium.vector.SyncVectorEnv([make_one] * 16, "
            "autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP)"
        )
    _check_autoreset(env)
    observations, actions = env.single_observation_space, env.single_action_space
    _check_as_seen(observations, seen(observations).space)
    wanted = acted(actions).space
    if actions != wanted:
        raise UserError(
            f"actions: {shown(actions)} is to be {wanted}. Wrap each environment in "
            "gymnasium.wrappers.TransformAction"
        )
    return env


def _check_autoreset(env: VectorEnv) -> None:
    """Raise UserError unless an ended episode's successor begins in the same step."""
    mode = env.metadata.get("autoreset_mode")
    if mode in (AutoresetMode.SAME_STEP, AutoresetMode.SAME_STEP.value):
        return
    given = "none" if mode is None else getattr(mode, "name", str(mode))
    raise UserError(
        f"env: {type(env.unwrapped).__name__} has autoreset mode {given}, and with another than "
        "SAME_STEP an agent would learn from steps between episodes. Write: "
        'gymnasium.make_vec(..., vectorization_mode="sync", '
        'vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP})'
    )


def _check_as_seen(space: Space, wanted: Space) -> None:
    """Raise UserError where observations would have to be converted."""
    if space == wanted:
        return
    raise UserError(
        f"observations: {shown(space)} is to be {shown(wanted)}: images are channel first, boxes "
        "of more dimensions flat, tuples dictionaries. Wrap each environment in "
        "gymnasium.wrappers.TransformObservation"
    )
