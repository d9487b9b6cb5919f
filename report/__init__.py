"""Pages and movies of what an agent did, and what a run shows while it trains."""

from typing import Any


def configured_showcase(config: Any, agent: Any) -> Any:
    """Return what shows a run while it trains, None where the settings ask for nothing."""
    if config.media_minutes is None:
        return None
    from report.while_training import Showcase  # brings in Matplotlib and the analyses

    return Showcase(agent, config.media_minutes)
