"""The settings as `--help` explains them, part by part."""

import json
from collections.abc import Mapping
from typing import Any

from settings.declaration import Declaration
from settings.parts import NOTHING, all_settings, reading
from settings.values import kind_text, range_text


def describe_settings(chosen: Mapping[str, Any] = NOTHING) -> str:
    """Return all settings by part, each with type, default and explanation.

    Those of an agent of the user's own are among them where it is chosen.
    """
    readers = reading(chosen).readers
    groups: dict[str, list[Declaration]] = {}
    for each in all_settings(chosen).values():
        groups.setdefault(_heading(each, readers(each.name)), []).append(each)
    return "\n".join(
        "\n".join([f"\n{heading}:", *map(_described, group)]) for heading, group in groups.items()
    )


def _heading(declaration: Declaration, readers: list[str]) -> str:
    """Return what a setting is listed under: its part, and who reads it if not every run does."""
    title = declaration.title
    return title if readers in ([], [title]) else f"{title} (read by {', '.join(readers)})"


def _described(declaration: Declaration) -> str:
    shown = f"{kind_text(declaration)}, default {json.dumps(declaration.metadata['default'])}"
    explanation = f"{declaration.metadata['help']}{range_text(declaration)}"
    return f"  {declaration.name} ({shown})\n      {explanation}"
