"""Pages and movies of episodes, and the showcase of a run while it trains."""

from typing import Any


def build_showcase(config: Any, agent: Any) -> Any:
    if config.showcase_minutes is None:
        return None
    from report.while_training import Showcase  # brings in Matplotlib and the analyses

    return Showcase(agent, config.showcase_minutes)
