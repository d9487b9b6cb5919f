"""A step of every world, and what there is to say of them in numbers."""

import numpy as np

from envs.crafter.balance import balance_chunks
from envs.crafter.compiled import compiled
from envs.crafter.creatures import update_thing
from envs.crafter.player import Rules, sleeps_on, update_player
from envs.crafter.world import (
    ITEMS,
    MOST,
    N_VITALS,
    VIEW,
    World,
    distance,
    kind_at,
    material_at,
    target,
    tidy,
)

NEAR = 18  # steps from the player within which things have their turn
BALANCE_EVERY = 10
DAY = 300  # steps


def daylight_of(steps: np.ndarray) -> np.ndarray:
    """Return how light it is after so many steps of an episode, 1 at noon.  [N]"""
    progress = (steps / DAY) % 1 + 0.3
    return 1 - np.abs(np.cos(np.pi * progress)) ** 3


@compiled
def step_worlds(
    worlds: np.ndarray,
    commands: np.ndarray,
    daylights: np.ndarray,
    rules: Rules,
    changed: np.ndarray,
) -> None:
    """Take one step in every world.

    Args:
        worlds: [N] of WORLD.
        commands: What each player is to do: the command and its object.  [N, 2]
        daylights: How light it is after the step.  [N]
        rules: Of the game.
        changed: Filled with whether the players' actions had an effect.  [N] bool
    """
    for row in range(len(worlds)):
        world = worlds[row]
        changed[row] = step_world(world, commands[row], daylights[row], rules)


@compiled
def step_world(world: World, command: np.ndarray, daylight: float, rules: Rules) -> bool:
    """Take one step; return whether the player's action had an effect."""
    world.steps += 1
    world.daylight = daylight
    n_things = world.n_things  # those that come in this step wait for the next
    has_changed = update_player(world, command[0], command[1], rules)
    for thing in range(1, n_things):
        if distance(world, world.x[thing], world.y[thing]) < NEAR:
            update_thing(world, thing)
    if world.steps % BALANCE_EVERY == 0:
        balance_chunks(world)
    tidy(world)
    return has_changed


@compiled
def unlock(worlds: np.ndarray, news: np.ndarray) -> None:
    """Note achievements that are new in this episode.

    Args:
        worlds: [N] of WORLD.
        news: Filled with which of them are new.  [N, 22] bool
    """
    for row in range(len(worlds)):
        world = worlds[row]
        for number in range(len(world.achievements)):
            is_new = world.achievements[number] > 0 and world.unlocked[number] == 0
            news[row, number] = is_new
            if is_new:
                world.unlocked[number] = 1


@compiled
def names_match(worlds: np.ndarray, nouns: np.ndarray, matched: np.ndarray) -> None:
    """Say whether an action's noun names what the player faces or holds.

    Args:
        worlds: [N] of WORLD.
        nouns: Of each action: a material, a kind and an item, -1 for none.  [N, 3]
        matched: Filled in; false while the player sleeps on.  [N] bool
    """
    for row in range(len(worlds)):
        world = worlds[row]
        x, y = target(world)
        material, kind, item = nouns[row]
        is_faced = material == material_at(world, x, y) or kind == kind_at(world, x, y)
        is_held = item >= 0 and world.inventory[item] > 0
        matched[row] = (is_faced or is_held) and not sleeps_on(world)


@compiled
def seen_at(world: World, i: int, j: int) -> int:
    """Return what is on cell (i, j) of the view: what stands there, else what it is."""
    x, y = world.x[0] - VIEW[0] // 2 + i, world.y[0] - VIEW[1] // 2 + j
    kind = kind_at(world, x, y)
    return kind if kind else material_at(world, x, y)


@compiled
def look(worlds: np.ndarray, facts: np.ndarray) -> None:
    """Say in bits what the players see, face, hold and need.

    Args:
        worlds: [N] of WORLD.
        facts: Filled with: what is in view, a bit for each of NAMES; the material that is faced;
            the kind that is faced, 0 for none; items held; vitals below nine.  [N, 5] int64
    """
    for row in range(len(worlds)):
        world, seen, held = worlds[row], 0, 0
        for i in range(VIEW[0]):
            for j in range(VIEW[1]):
                seen |= 1 << seen_at(world, i, j)
        x, y = target(world)
        for item in range(len(ITEMS)):
            limit = MOST if item < N_VITALS else 1
            held |= int(world.inventory[item] >= limit) << item
        facts[row, 0] = seen
        facts[row, 1], facts[row, 2] = material_at(world, x, y), kind_at(world, x, y)
        facts[row, 3] = held >> N_VITALS
        facts[row, 4] = ~held & ((1 << N_VITALS) - 1)


@compiled
def look_around_target(worlds: np.ndarray, around: np.ndarray) -> None:
    """Say what is on the nine cells around the one each player faces.

    Args:
        worlds: [N] of WORLD.
        around: Filled with numbers of NAMES.  [N, 3, 3] uint8
    """
    for row in range(len(worlds)):
        world = worlds[row]
        x, y = target(world)
        for i in range(3):
            for j in range(3):
                kind = kind_at(world, x + i - 1, y + j - 1)
                here = kind if kind else material_at(world, x + i - 1, y + j - 1)
                around[row, i, j] = here
