"""Who suggests what to want next: one file each, found by name.

A suggester is a class that satisfies `Suggester`, with two things more:

    reads                                   the classes of the settings that it alone reads
    configured(config, action_names)        one for environments whose actions are called so
"""

import dataclasses
import pkgutil
from typing import Any, NamedTuple

from settings import Part


class Source(NamedTuple):
    """Where a suggester's class stands, and what it is like.

    Attributes:
        place: Of the class.
        checks_success: Whether its goals are paid for success alone.
        asks: Whether it asks a language model.
    """

    place: str
    checks_success: bool = True
    asks: bool = False


SILENT = "silent"
SUGGESTERS = {
    SILENT: Source("rewards.suggestions.suggester:Silent"),
    "oracle": Source("rewards.suggestions.oracle:Oracle"),
    "novelty": Source("rewards.suggestions.novelty:Novelty", checks_success=False),
    "language-model": Source(
        "rewards.suggestions.language_model:LanguageModelSuggester", asks=True
    ),
    "server": Source("rewards.suggestions.server:ServerSuggester", asks=True),
    "yes-no": Source("rewards.suggestions.yes_no:YesNoSuggester", asks=True),
}


def suggester_class(name: str) -> Any:
    """Return the class of a suggester by its name in the table, importing only its module."""
    return pkgutil.resolve_name(SUGGESTERS[name].place)


def settings_of_suggester(name: str) -> set[str]:
    """Return the names of the settings that a suggester alone reads."""
    return {
        field.name for part in suggester_class(name).reads for field in dataclasses.fields(part)
    }


def known_as(name: str) -> str | None:
    """Return the name a suggester is listed under, None if it is not."""
    return name if name in SUGGESTERS else None


def settings_by_name() -> dict[str, tuple[type[Part], ...]]:
    """Return the settings that each suggester alone reads."""
    return {name: suggester_class(name).reads for name in SUGGESTERS}
