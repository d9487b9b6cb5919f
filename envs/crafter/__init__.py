"""Crafter-v1: the unmodified game of Hafner (2022, arXiv:2109.06780), a world to survive in.

A map of 64 x 64 cells with wood, stone, ores, animals and monsters. The player sees 9 x 7 cells of
it and its items, and can unlock 22 achievements, from collecting wood to finding a diamond. The
first of each in an episode pays 1; a tenth of every health point lost is taken, and paid where
it comes back. An episode ends with the player's death or after 10,000 steps.

The worlds are those of the package `crafter` 1.8.3; docs/crafter.md lists the differences.
"""

from dataclasses import dataclass
from typing import Any

from utils.settings import Config, setting

LENGTH = 10_000
ACTION_NAMES = (
    *("noop", "move_left", "move_right", "move_up", "move_down", "do", "sleep"),
    *("place_stone", "place_table", "place_furnace", "place_plant"),
    *("make_wood_pickaxe", "make_stone_pickaxe", "make_iron_pickaxe"),
    *("make_wood_sword", "make_stone_sword", "make_iron_sword"),
)


@dataclass(frozen=True)
class CrafterSettings(Config):
    title = "Crafter"

    crafter_length: int | None = setting(
        "steps after which an episode is cut off; null: 10000 in Crafter-v1, 400 in CrafterText-v0",
        low=1,
        high=1_000_000,
        default=None,
    )


READS = (CrafterSettings,)


def make(config: CrafterSettings, seed: int) -> Any:
    from envs.crafter.vector import CrafterVectorEnv

    return CrafterVectorEnv(config.n_envs, seed, config.crafter_length or LENGTH)
