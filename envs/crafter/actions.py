"""What each action of either game tells the player to do, and which things its phrase names."""

from collections.abc import Sequence

import numpy as np

from envs.crafter.package import ACTIONS, MAKES, PLACES
from envs.crafter.player import COLLECT, DO, EAT, FAIL, HIT, MAKE, MOVE, PLACE, SLEEP, WAIT
from envs.crafter.world import COW, ITEMS, N_MATERIALS, NAMES, PLANT, SKELETON, ZOMBIE

DIRECTIONS = ("left", "right", "up", "down")
TABLE = "crafting table"  # what both games place is called "table" by the package
HITS = {"attack zombie": ZOMBIE, "attack skeleton": SKELETON, "attack cow": COW, "eat cow": COW}
COLLECTS = (
    *("chop tree", "chop grass", "drink water"),
    *("mine stone", "mine coal", "mine iron", "mine diamond"),
)


def game_commands() -> np.ndarray:
    """Return what each of Crafter's own actions tells the player: command and object.  [17, 2]"""
    plain = {"noop": (WAIT, 0), "do": (DO, 0), "sleep": (SLEEP, 0)}
    plain |= {f"move_{name}": (MOVE, number) for number, name in enumerate(DIRECTIONS)}
    plain |= {f"place_{name}": (PLACE, number) for number, name in enumerate(PLACES)}
    plain |= {f"make_{name}": (MAKE, number) for number, name in enumerate(MAKES)}
    return np.array([plain[name] for name in ACTIONS])


def text_commands(phrases: Sequence[str]) -> np.ndarray:
    """Return what each phrase tells the player: command and object.  [A, 2]"""
    known = {"do nothing": (WAIT, 0), "sleep": (SLEEP, 0), "eat plant": (EAT, PLANT)}
    known |= {f"move {name}": (MOVE, number) for number, name in enumerate(DIRECTIONS)}
    known |= {phrase: (HIT, kind) for phrase, kind in HITS.items()}
    known |= {phrase: (COLLECT, NAMES.index(phrase.split()[1])) for phrase in COLLECTS}
    known |= {f"place {_said(name)}": (PLACE, number) for number, name in enumerate(PLACES)}
    known |= {f"make {_said(name)}": (MAKE, number) for number, name in enumerate(MAKES)}
    known[f"make {TABLE}"] = known[f"place {TABLE}"]
    return np.array([known.get(phrase, (FAIL, 0)) for phrase in phrases])


def text_nouns(phrases: Sequence[str]) -> np.ndarray:
    """Return what each phrase names: a material, a kind and an item, -1 for none.  [A, 3]"""
    nouns = np.full((len(phrases), 3), -1)
    for row, phrase in enumerate(phrases):
        noun = phrase.partition(" ")[2]
        if noun in NAMES:
            number = NAMES.index(noun)
            nouns[row, int(number >= N_MATERIALS)] = number
        if noun.replace(" ", "_") in ITEMS:
            nouns[row, 2] = ITEMS.index(noun.replace(" ", "_"))
    return nouns


def _said(name: str) -> str:
    """Return how a phrase calls what the package does."""
    return TABLE if name == "table" else name.replace("_", " ")
