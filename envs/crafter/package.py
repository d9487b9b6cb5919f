"""What the package `crafter` 1.8.3 gives: recipes as tables, and textures."""

import contextlib
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

with contextlib.redirect_stderr(io.StringIO()):  # of the old gym, where that is installed
    from crafter import constants, engine

from envs.crafter.player import Rules
from envs.crafter.world import ACHIEVEMENTS, ITEMS, MOST, N_MATERIALS, NAMES

ACTIONS: list[str] = constants.actions
PLACES: list[str] = list(constants.place)
MAKES: list[str] = list(constants.make)
TEXT_DAMAGE = 5
TEXT_TABLE_WOOD = 1
VIGNETTE_WIDTH = 0.5


def rules_of_crafter() -> Rules:
    """Return the rules of the unmodified game."""
    return Rules(1, True, *_collecting(), *_placing(), *_making())


def rules_of_text() -> Rules:
    """Return the rules of CrafterText: every creature falls at once, and a table costs one wood."""
    rules = rules_of_crafter()
    rules.place_uses[PLACES.index("table"), 1] = TEXT_TABLE_WOOD
    return rules._replace(damage=TEXT_DAMAGE, collects_beyond=False)


def textures() -> engine.Textures:
    """Return the pictures of everything, in any size."""
    return engine.Textures(constants.root / "assets")


def draw(canvas: np.ndarray, texture: np.ndarray) -> None:
    """Draw a texture onto a cell [x, y, 3] uint8."""
    engine._draw(canvas, (0, 0), texture)


def draw_over(canvas: np.ndarray, texture: np.ndarray) -> None:
    """Draw a texture that lets a cell [x, y, 3] uint8 shine through."""
    engine._draw_alpha(canvas, (0, 0), texture)


def item_tiles(unit: int) -> np.ndarray:
    """Return how up to nine of each item are shown.  [16, 10, unit, unit, 3] uint8, [x, y]"""
    show = engine.ItemView(textures(), (1, 1))
    amounts = range(MOST + 1)
    return np.stack([[show({item: n}, (unit, unit)) for n in amounts] for item in ITEMS])


def vignette(shape: tuple[int, int]) -> np.ndarray:
    """Return how much noise lies over each pixel of a map at night, [x, y]."""
    view = engine.LocalView.__new__(engine.LocalView)
    return view._vignette(shape, VIGNETTE_WIDTH)


def _collecting() -> Sequence[np.ndarray]:
    """Return what collecting gives, takes and leaves, by material."""
    leaves, receives, collected = (np.zeros(N_MATERIALS, np.int64) for _ in range(3))
    needs, probability = np.full(N_MATERIALS, -1), np.ones(N_MATERIALS)
    for name, recipe in constants.collect.items():
        material, (item,) = NAMES.index(name), recipe["receive"]
        leaves[material], receives[material] = NAMES.index(recipe["leaves"]), ITEMS.index(item)
        collected[material] = ACHIEVEMENTS.index(f"collect_{item}")
        probability[material] = recipe.get("probability", 1)
        for tool in recipe["require"]:
            needs[material] = ITEMS.index(tool)
    return leaves, receives, needs, probability, collected


def _placing() -> Sequence[np.ndarray]:
    """Return what is placed, what of and where, by the number of the recipe."""
    recipes = constants.place.items()
    places = np.array([NAMES.index(name) for name in PLACES])
    uses = [(ITEMS.index(item), n) for _, recipe in recipes for item, n in recipe["uses"].items()]
    where = np.stack([_mask(recipe["where"]) for _, recipe in recipes])
    return places, np.array(uses), where, _achievements("place", PLACES)


def _making() -> Sequence[np.ndarray]:
    """Return what is made, what of and beside what, by the number of the recipe."""
    recipes = constants.make.values()
    makes = np.array([ITEMS.index(name) for name in MAKES])
    uses = np.stack([_amounts(recipe["uses"]) for recipe in recipes])
    near = np.stack([_mask(recipe["nearby"]) for recipe in recipes])
    return makes, uses, near, _achievements("make", MAKES)


def _mask(materials: Sequence[str]) -> np.ndarray:
    return np.isin(NAMES[:N_MATERIALS], materials)


def _amounts(uses: Mapping[str, Any]) -> np.ndarray:
    return np.array([uses.get(item, 0) for item in ITEMS], np.int16)


def _achievements(verb: str, names: Sequence[str]) -> np.ndarray:
    return np.array([ACHIEVEMENTS.index(f"{verb}_{name}") for name in names])
