"""The papers' analyses, python -m analysis --help; pages and movies of episodes."""

from typing import Any


def build_showcase(config: Any, agent: Any) -> Any:
    if config.showcase_minutes is None:
        return None
    from analysis.while_training import Showcase  # brings in Matplotlib and the analyses

    return Showcase(agent, config.showcase_minutes)
