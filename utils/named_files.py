"""What the settings of a run or checkpoint make a program read that nobody has named to it."""

import os
from pathlib import Path

from utils.config import Config
from utils.errors import printable

READ_BY = {
    "language_model": ("HELM", "HELMv2", "SHELM"),
    "clip_pretrained": ("HELMv2", "SHELM"),
    "embeddings": ("SHELM",),
}
WITH_STIMULI = "ContinuousRecognition-v0"


def say_named_files(config: Config, source: Path, with_agent: bool = True) -> None:
    """Print a line with the files, folders and hub repositories that settings lead to, if any.

    Args:
        config: Settings that came with a run folder or a checkpoint, perhaps somebody else's.
        source: Where they stand.
        with_agent: Whether the agent is built from them, not only the environment.
    """
    read = [name for name, agents in READ_BY.items() if with_agent and config.model in agents]
    if config.env == WITH_STIMULI:
        read.append("stimuli")
    named = [f"{name}={getattr(config, name)}" for name in read if _leads_out(config, name)]
    if named:
        print(printable(f"as {source} says, reading {', '.join(named)}"), flush=True)


def _leads_out(config: Config, name: str) -> bool:
    """Return whether a setting's value is a path or somebody's repository, not a known name."""
    value = getattr(config, name)
    if value is None:
        return False
    is_repository = name == "language_model" and "/" in value
    return is_repository or os.path.exists(value)
