"""How often it is right what somebody reads from Crafter's pictures, in episodes held out."""

import math
from typing import NamedTuple

import numpy as np

from envs.crafter.drawing import DARK
from envs.crafter.frames import Player
from envs.crafter.phrases import GOOD_ACTIONS
from envs.crafter.said import sentences
from envs.crafter.step import look
from envs.crafter.text import LENGTH
from envs.crafter.text_vector import CrafterTextVectorEnv, TextGame, TileReader
from envs.crafter.tiles import Facts, facts_of
from envs.crafter.words import UNSEEN, UNTARGETED
from envs.crafter.world import N_VITALS, NAMES

SEED = 1_000_000  # of the first environment
N_ENVS = 32  # half of them play at random, half with some sense
SAYABLE = [number for number in range(len(NAMES)) if number not in UNSEEN]


class Accuracy(NamedTuple):
    """What was read, and what was there, in M pictures.

    Attributes:
        shares: How often what was read rightly, by when ("all", "day", "dark", "asleep") and by
            what; "pictures" is the share of pictures.
        names: By what can be in view: the share of pictures that show it, how many of those it was
            read from, and how many of those it was read from show it; nan where there are none.
    """

    shares: dict[str, dict[str, float]]
    names: dict[str, tuple[float, float, float]]


def accuracy(reader: TileReader, n_steps: int = LENGTH, n_envs: int = N_ENVS) -> Accuracy:
    """Return how often it is right what a reader of pictures says.

    Args:
        reader: It.
        n_steps: To play; 400 is an episode.
        n_envs: Environments to play in.
    """
    env = CrafterTextVectorEnv(
        n_envs, SEED, TextGame(GOOD_ACTIONS, LENGTH, is_grey=False, use_text=False)
    )
    generator = np.random.default_rng(SEED)
    player, at_random = Player(n_envs, generator), np.arange(n_envs) < n_envs // 2
    shown, _ = env.reset()
    found = []
    for _ in range(n_steps):
        worlds = env.worlds
        light = np.where(worlds["daylight"] < DARK, 1, 0)
        when = np.where(worlds["sleeping"], 2, light)
        found.append((_there(worlds), facts_of(reader(shown["image"])), when))
        guesses = generator.integers(len(GOOD_ACTIONS), size=n_envs)
        shown, *_ = env.step(np.where(at_random, guesses, player.actions(worlds)))
    there, read, moments = (list(part) for part in zip(*found, strict=True))
    return _compared(_joined(there), _joined(read), np.concatenate(moments))


def _there(worlds: np.ndarray) -> Facts:
    sight = np.empty((len(worlds), 5), np.int64)
    look(worlds, sight)
    return Facts(sight, worlds["inventory"].astype(np.int64))


def _joined(parts: list[Facts]) -> Facts:
    return Facts(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _compared(there: Facts, read: Facts, moments: np.ndarray) -> Accuracy:
    """Compare M pictures, taken by day (0), in the dark (1) or asleep (2)."""
    right = _right(there, read)
    groups = {
        "all": moments >= 0,
        "day": moments == 0,
        "dark": moments == 1,
        "asleep": moments == 2,
    }
    shares = {
        name: {"pictures": float(chosen.mean())}
        | {what: float(each[chosen].mean()) for what, each in right.items() if chosen.any()}
        for name, chosen in groups.items()
    }
    names = {NAMES[number]: _of_name(number, there, read) for number in SAYABLE}
    return Accuracy(shares, names)


def _of_name(number: int, there: Facts, read: Facts) -> tuple[float, float, float]:
    """Return how often something is in view, is found then, and is there when it is read."""
    true, said = (facts.sight[:, 0] >> number & 1 > 0 for facts in (there, read))
    both = int((true & said).sum())
    found, right = (
        both / each if each else math.nan for each in (int(true.sum()), int(said.sum()))
    )
    return float(true.mean()), found, right


def _right(there: Facts, read: Facts) -> dict[str, np.ndarray]:
    """Return by what it is in which pictures it was read rightly.  [M] each"""
    texts = [sentences(facts) for facts in (there, read)]
    said = {
        name: np.array([one == other for one, other in zip(*parts, strict=True)])
        for name, *parts in zip(("scene", "inventory", "status"), *texts, strict=True)
    }
    return {
        "faced": _faced(there) == _faced(read),
        "scene": said["scene"],
        "inventory": said["inventory"],
        "amounts": (there.items[:, N_VITALS:] == read.items[:, N_VITALS:]).all(1),
        "status": said["status"],
        "caption": said["scene"] & said["inventory"] & said["status"],
    }


def _faced(facts: Facts) -> np.ndarray:
    """Return the number of what is said to be faced, 0 for nothing.  [M]"""
    material, kind = facts.sight[:, 1], facts.sight[:, 2]
    return np.where(kind > 0, kind, np.where(np.isin(material, UNTARGETED), 0, material))
