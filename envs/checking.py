"""Whether a vector environment keeps what the trainers count on."""

from gymnasium.vector import AutoresetMode, VectorEnv

from utils.errors import UserError


def checked_vector_env(env: VectorEnv) -> VectorEnv:
    """Return a vector environment that agents can be trained in.

    Raises:
        UserError: it does not restart an ended episode within the step that ends it.
    """
    mode = env.metadata.get("autoreset_mode")
    if mode != AutoresetMode.SAME_STEP:
        raise UserError(
            f"env: a vector environment in {getattr(mode, 'name', mode)} mode cannot be trained "
            "in. Make it with autoreset_mode=AutoresetMode.SAME_STEP"
        )
    return env
