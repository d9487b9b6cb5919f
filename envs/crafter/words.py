"""CrafterText in sentences: what a player sees, holds and feels.

The words are those of Du et al. (2023, arXiv:2302.06692), their slips included: a crafting table is
called one where it is seen and "table" where it is faced, what is held keeps its underscores.
"""

import functools

from envs.crafter.world import (
    ACHIEVEMENTS,
    ARROW,
    ITEMS,
    N_VITALS,
    NAMES,
    OUTSIDE,
    PATH,
    PLAYER,
    SAND,
)

HELD_NAMES = ("plant", *ITEMS[N_VITALS + 1 :])  # a sapling is a plant to be
NEEDS = ("hurt", "hungry", "thirsty", "sleepy")
UNSEEN = (OUTSIDE, SAND, PLAYER, ARROW)
UNTARGETED = (OUTSIDE, PATH, SAND, NAMES.index("lava"))
MOST_LETTERS = 600  # of the three sentences together; the longest has 541


@functools.cache
def scene_sentence(seen: int, material: int, kind: int) -> str:
    """Return what is in view and what is faced, in words.

    Args:
        seen: A bit for each of NAMES that is in view.
        material: What is faced.
        kind: What stands there, 0 for nothing.
    """
    numbers = [n for n in range(len(NAMES)) if seen >> n & 1 and n not in UNSEEN]
    names = sorted({"table": "crafting table"}.get(NAMES[n], NAMES[n]) for n in numbers)
    if len(names) > 1:
        names[-1] = f"and {names[-1]}"
    sentence = f"you see {', '.join(names)}."
    if kind or material not in UNTARGETED:
        sentence += f" you are targeting {NAMES[kind or material]}."
    return sentence


@functools.cache
def inventory_sentence(held: int) -> str:
    """Return what is held in words, given a bit for each item; nothing if nothing is."""
    names = [name for n, name in enumerate(HELD_NAMES) if held >> n & 1]
    return f"you have in your inventory {', '.join(names)}." if names else ""


@functools.cache
def status_sentence(needs: int) -> str:
    """Return how the player feels, given a bit for each vital below nine; nothing if well."""
    names = [name for n, name in enumerate(NEEDS) if needs >> n & 1]
    return f"you feel {', '.join(names)}." if names else ""


@functools.cache
def names_around(cells: bytes) -> tuple[tuple[str | None, ...], ...]:
    """Return the names of nine cells [3, 3] of numbers; None off the map."""
    names = [NAMES[number] if number else None for number in cells]
    return tuple(tuple(names[3 * i : 3 * i + 3]) for i in range(3))


@functools.cache
def unlocked_names(achievements: bytes) -> tuple[str, ...]:
    """Return the names of those of 22 achievements that are true."""
    return tuple(name for name, has in zip(ACHIEVEMENTS, achievements, strict=True) if has)
