"""What an agent is rewarded for beyond what the environment pays, and how rewards are scaled."""

import pkgutil
from collections.abc import Sequence
from typing import Any

from settings import Part
from utils.errors import UserError, suggestion

CURIOSITIES = {
    "RND": "rewards.curiosity:RandomNetworkDistillation",
    "NovelD": "rewards.curiosity:NovelD",
    "APT": "rewards.curiosity:ActivePretraining",
}


def curiosity_class(name: str) -> Any:
    """Return the class of an intrinsic reward, importing only its module.

    Raises:
        UserError: there is none of this name.
    """
    if name not in CURIOSITIES:
        hint = suggestion(name, CURIOSITIES)
        known = ", ".join(CURIOSITIES)
        raise UserError(f"curiosity: unknown name '{name}', known: {known}, or null.{hint}")
    return pkgutil.resolve_name(CURIOSITIES[name])


def check_curiosity(config: Any) -> None:
    """Raise UserError where settings choose an intrinsic reward that there is not."""
    if config.curiosity is not None:
        curiosity_class(config.curiosity)


def known_as(name: str) -> str | None:
    """Return the name an intrinsic reward is listed under, None if it is not."""
    return name if name in CURIOSITIES else None


def settings_by_name() -> dict[str, Sequence[type[Part]]]:
    """Return the settings that each intrinsic reward reads."""
    return {name: curiosity_class(name).reads for name in CURIOSITIES}


def contradictions(config: Any, agent: Any) -> list[str]:
    """Return one line for every pair of settings that cannot both hold with such an agent."""
    if known_as(config.curiosity or "") is None:
        return []
    return curiosity_class(config.curiosity).contradictions(config, agent)
