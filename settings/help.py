"""The settings as `--help` explains them, part by part."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from settings.declaration import Declaration
from settings.loading import DEFAULT_FILE, read_json_object
from settings.parts import NOTHING, all_settings, reading
from settings.values import kind_text, range_text


def describe_settings(
    chosen: Mapping[str, Any] = NOTHING, default_file: Path = DEFAULT_FILE
) -> str:
    """Return all settings by part, each with type, default and explanation.

    Those of an agent of the user's own are among them where it is chosen.
    """
    defaults, readers = read_json_object(default_file), reading(chosen).readers
    groups: dict[str, list[Declaration]] = {}
    for each in all_settings(chosen).values():
        groups.setdefault(_heading(each, readers(each.name)), []).append(each)
    return "\n".join(
        "\n".join([f"\n{heading}:", *(_described(each, defaults) for each in group)])
        for heading, group in groups.items()
    )


def _heading(declaration: Declaration, readers: list[str]) -> str:
    """Return what a setting is listed under: its part, and who reads it if not every run does."""
    title = declaration.title
    return title if readers in ([], [title]) else f"{title} (read by {', '.join(readers)})"


def _described(declaration: Declaration, defaults: dict[str, object]) -> str:
    default = defaults.get(declaration.name, declaration.metadata["default"])
    shown = f"{kind_text(declaration)}, default {json.dumps(default)}"
    explanation = f"{declaration.metadata['help']}{range_text(declaration)}"
    return f"  {declaration.name} ({shown})\n      {explanation}"
