"""Sentences about a household, for agents and suggesters, and how they are parsed.

Worlds write them and suggesters read them, so both directions stand here. No name of a thing or of
a receptacle has a comma, a full stop, or the words "at" and "and" in it.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

SUITABLE = "suitable"  # in an environment's metadata: where each thing belongs, all by name
SEE, KNOW = "you see ", "you know "
AT = " at "
PICK_UP, PLACE = "pick up", "place"
REMEMBERED = 4096  # sentences that have been read
SEPARATOR = re.compile(r", (?:and )?")


class Goal(NamedTuple):
    """Picking up a thing, or placing it at a receptacle ("kitchen sink") if that is not empty."""

    thing: str
    receptacle: str = ""

    @property
    def phrase(self) -> str:
        if not self.receptacle:
            return f"{PICK_UP} {self.thing}"
        return f"{PLACE} {self.thing}{AT}{self.receptacle}"

    @classmethod
    def read(cls, phrase: str) -> "Goal | None":
        if phrase.startswith(f"{PICK_UP} "):
            return cls(phrase.removeprefix(f"{PICK_UP} "))
        thing, is_placed, receptacle = phrase.removeprefix(f"{PLACE} ").partition(AT)
        if not phrase.startswith(f"{PLACE} ") or not is_placed:
            return None
        return cls(thing, receptacle)


def listed(names: Iterable[str]) -> str:
    """Return names as a list: "a", "a, and b", "a, b, and c"."""
    *first, last = names
    return ", ".join([*first, f"and {last}" if first else last])


def sights_sentence(places: Mapping[str, str]) -> str:
    if not places:
        return f"{SEE}nothing."
    return f"{SEE}{listed(f'{thing}{AT}{place}' for thing, place in places.items())}."


def known_sentence(receptacles: Iterable[str]) -> str:
    return f"{KNOW}{listed(receptacles)}."


@lru_cache(REMEMBERED)
def read_sights(text: str) -> Mapping[str, str]:
    """Return the places of the things in view; not to be changed."""
    pairs = (each.partition(AT) for each in _read_list(text, SEE))
    return {thing: place for thing, is_told, place in pairs if is_told}


@lru_cache(REMEMBERED)
def read_known(text: str) -> tuple[str, ...]:
    return _read_list(text, KNOW)


def _read_list(text: str, beginning: str) -> tuple[str, ...]:
    _, is_there, rest = text.partition(beginning)
    return tuple(SEPARATOR.split(rest.partition(".")[0])) if is_there else ()
