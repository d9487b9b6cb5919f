"""What the settings of a run or checkpoint make a program read that nobody has named to it."""

import dataclasses
import os
from collections.abc import Collection
from pathlib import Path

from settings import Config, read_settings
from utils.errors import printable
from utils.user_modules import folder_of, named_modules

OF_ENVIRONMENTS = ("stimuli", "goal_encoder")
OF_AGENTS = ("language_model", "clip_pretrained", "embeddings")
OF_LEARNERS = ("guide",)


def say_named_files(
    config: Config,
    source: Path,
    with_agent: bool = True,
    changed: Collection[str] = (),
    learns: bool = False,
) -> None:
    """Print a line with the files, folders and hub repositories that settings lead to, if any.

    Args:
        config: Settings that came with a run folder or a checkpoint, perhaps somebody else's.
        source: Where they stand.
        with_agent: Whether the agent is built from them, not only the environment.
        changed: Names of settings that are the user's own.
        learns: Whether the agent goes on learning.
    """
    of_agent = OF_AGENTS if with_agent else ()
    names = (*of_agent, *OF_ENVIRONMENTS, *(OF_LEARNERS if learns else ()))
    read = read_settings(config).intersection(names).difference(changed)
    leading = [name for name in names if name in read and _leads_out(config, name)]
    named = [f"{name}={getattr(config, name)}" for name in leading]
    modules = named_modules(dataclasses.asdict(config))
    places = {name: folder_of(module) for name, module in modules.items()}
    code = [f"{name}={getattr(config, name)} in {place}" for name, place in places.items() if place]
    named = code + named
    if named:
        print(printable(f"as {source} says, reading {', '.join(named)}"), flush=True)


def _leads_out(config: Config, name: str) -> bool:
    """Return whether a setting's value is a path or somebody's repository, not a known name."""
    value = getattr(config, name)
    if value is None:
        return False
    is_repository = name in ("language_model", "goal_encoder") and "/" in value
    return is_repository or os.path.exists(value)
