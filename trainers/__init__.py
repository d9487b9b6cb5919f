"""Training: the loop, who learns in it, by name, and what a run keeps."""

import pkgutil
from typing import Any

from settings import Part
from utils.errors import UserError, suggestion

LEARNERS = {
    "PPO": "trainers.ppo:PPO",
    "DQN": "trainers.dqn:DQN",
    "SAC": "trainers.sac:SAC",
    "NStepDQN": "trainers.n_step_dqn:NStepDQN",
}


def learner_class(name: str) -> Any:
    """Return the class of a `Learner`, to be built from (config, agent, ranks, reward).

    Raises:
        UserError: there is none of this name.
    """
    if name not in LEARNERS:
        hint = suggestion(name, LEARNERS)
        raise UserError(f"algorithm: unknown name '{name}', known: {', '.join(LEARNERS)}.{hint}")
    return pkgutil.resolve_name(LEARNERS[name])


def known_as(name: str) -> str | None:
    """Return the name an algorithm is listed under, None if it is not."""
    return name if name in LEARNERS else None


def settings_by_name() -> dict[str, tuple[type[Part], ...]]:
    """Return the settings that each algorithm reads."""
    return {name: learner_class(name).reads for name in LEARNERS}
