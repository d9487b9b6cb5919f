"""What the player does in a step, by the rules of Crafter 1.8.3 or by those of CrafterText."""

from typing import NamedTuple

import numpy as np

from envs.crafter.compiled import compiled
from envs.crafter.creatures import RIPE, add_creature
from envs.crafter.vitals import live
from envs.crafter.world import (
    COW,
    DEFEAT_SKELETON,
    DEFEAT_ZOMBIE,
    DIRECTIONS,
    EAT_COW,
    EAT_PLANT,
    ENERGY,
    FOOD,
    HEALTH,
    IRON_SWORD,
    LAVA,
    MOST,
    N_MATERIALS,
    OUTSIDE,
    PLANT,
    SKELETON,
    STONE_SWORD,
    WAKE_UP,
    WATER,
    WOOD_SWORD,
    ZOMBIE,
    World,
    is_walkable,
    material_at,
    move,
    target,
    thing_at,
    uniform,
)

# What a command does; most have an object. FAIL does nothing and never succeeds; DO is Crafter's
# one action for whatever is faced, COLLECT, HIT and EAT are those of CrafterText.
FAIL, WAIT, MOVE, SLEEP, DO, COLLECT, HIT, EAT, PLACE, MAKE = range(10)


class Rules(NamedTuple):
    """What the two games differ in, and the recipes of the package.

    Attributes:
        damage: What a blow does at least.
        collects_beyond: Whether what is collected counts where there are nine of it already.
        leaves: What a material becomes when it is collected, 0 where it cannot be.  [13]
        receives: The item it gives.  [13]
        needs: The item that must be held, -1 for none.  [13]
        probability: That it gives anything.  [13]
        collected: The achievement.  [13]
        places: The material, or PLANT, that is placed.  [4]
        place_uses: The item it takes, and how many.  [4, 2]
        place_where: Whether it can be placed on a material.  [4, 13]
        placed: The achievement.  [4]
        makes: The item that is made.  [6]
        make_uses: How many of each item it takes.  [6, 16]
        make_near: Whether a material must be beside the player.  [6, 13]
        made: The achievement.  [6]
    """

    damage: int
    collects_beyond: bool
    leaves: np.ndarray
    receives: np.ndarray
    needs: np.ndarray
    probability: np.ndarray
    collected: np.ndarray
    places: np.ndarray
    place_uses: np.ndarray
    place_where: np.ndarray
    placed: np.ndarray
    makes: np.ndarray
    make_uses: np.ndarray
    make_near: np.ndarray
    made: np.ndarray


@compiled
def sleeps_on(world: World) -> bool:
    """Return whether the player will go on sleeping, whatever it is told to do."""
    return world.sleeping and world.inventory[ENERGY] < MOST


@compiled
def update_player(world: World, command: int, what: int, rules: Rules) -> bool:
    """Let the player act; return whether that really changed the world.

    Args:
        world: A record of WORLD.
        command: FAIL to MAKE.
        what: Its object: a direction, a material, a kind, or the number of a recipe.
        rules: Of the game.
    """
    told = command
    if sleeps_on(world):
        command = SLEEP
    elif world.sleeping:
        world.sleeping = False
        world.achievements[WAKE_UP] += 1
    has_changed = _act(world, command, what, rules)
    live(world)
    return has_changed and command == told


@compiled
def _act(world: World, command: int, what: int, rules: Rules) -> bool:
    """Carry out a command; return whether it had an effect."""
    if command == WAIT:
        return True
    if command == MOVE:
        return _move(world, what)
    if command == SLEEP:
        if world.inventory[ENERGY] >= MOST:
            return False
        world.sleeping = True
        return True
    if command == PLACE:
        return _place(world, what, rules)
    if command == MAKE:
        return _make(world, what, rules)
    return _interact(world, command, what, rules)


@compiled
def _interact(world: World, command: int, what: int, rules: Rules) -> bool:
    """Do something to what is faced."""
    x, y = target(world)
    thing, material = thing_at(world, x, y), material_at(world, x, y)
    kind = int(world.kind[thing]) if thing >= 0 else 0
    if command == DO:
        if thing < 0:
            return _collect(world, x, y, rules)
        return _eat(world, thing) if kind == PLANT else _hit(world, thing, rules)
    if command == COLLECT:
        return material == what and _collect(world, x, y, rules)
    if command == HIT:
        return kind == what and _hit(world, thing, rules)
    if command == EAT:
        return kind == PLANT and _eat(world, thing)
    return False


@compiled
def _move(world: World, direction: int) -> bool:
    """Turn, and go there unless something is in the way; lava kills."""
    dx, dy = DIRECTIONS[direction]
    world.facing_x[0], world.facing_y[0] = dx, dy
    x, y = target(world)
    material = material_at(world, x, y)
    can_go = is_walkable(material) or material == LAVA
    is_free = can_go and thing_at(world, x, y) < 0
    if is_free:
        move(world, 0, x, y)
    if world.materials[world.x[0], world.y[0]] == LAVA:
        world.inventory[HEALTH] = 0
    return is_free


@compiled
def _collect(world: World, x: int, y: int, rules: Rules) -> bool:
    """Take what a cell gives, if the player has the tool for it."""
    material = material_at(world, x, y)
    if material == OUTSIDE or rules.leaves[material] == 0:
        return False
    if material == WATER:
        world.thirst = 0.0
    needed = rules.needs[material]
    if needed >= 0 and world.inventory[needed] < 1:
        return False
    world.materials[x, y] = rules.leaves[material]
    if uniform(world) > rules.probability[material]:
        return False
    item = rules.receives[material]
    if world.inventory[item] >= MOST and not rules.collects_beyond:
        return False
    world.inventory[item] += 1
    world.achievements[rules.collected[material]] += 1
    return True


@compiled
def _eat(world: World, plant: int) -> bool:
    """Eat a plant if it is ripe; it grows again."""
    if world.timer[plant] <= RIPE:
        return False
    world.timer[plant] = 0
    world.inventory[FOOD] += 4
    world.achievements[EAT_PLANT] += 1
    return True


@compiled
def _hit(world: World, thing: int, rules: Rules) -> bool:
    """Strike a creature with the best sword held; return whether it is one."""
    kind = world.kind[thing]
    if kind != ZOMBIE and kind != SKELETON and kind != COW:
        return False
    world.health[thing] = max(0, world.health[thing] - _damage(world, rules))
    if world.health[thing] > 0:
        return True
    if kind == ZOMBIE:
        world.achievements[DEFEAT_ZOMBIE] += 1
    elif kind == SKELETON:
        world.achievements[DEFEAT_SKELETON] += 1
    else:
        world.achievements[EAT_COW] += 1
        world.inventory[FOOD] += 6
        world.hunger = 0.0
    return True


@compiled
def _damage(world: World, rules: Rules) -> int:
    """Return what a blow does."""
    damage = rules.damage
    for sword, does in ((WOOD_SWORD, 2), (STONE_SWORD, 3), (IRON_SWORD, 5)):
        if world.inventory[sword]:
            damage = max(damage, does)
    return damage


@compiled
def _place(world: World, number: int, rules: Rules) -> bool:
    """Put down a material or a plant where the player faces."""
    x, y = target(world)
    item, amount = rules.place_uses[number]
    if thing_at(world, x, y) >= 0 or not rules.place_where[number, material_at(world, x, y)]:
        return False
    if world.inventory[item] < amount:
        return False
    world.inventory[item] -= amount
    if rules.places[number] == PLANT:
        add_creature(world, PLANT, x, y)
    else:
        world.materials[x, y] = rules.places[number]
    world.achievements[rules.placed[number]] += 1
    return True


@compiled
def _make(world: World, number: int, rules: Rules) -> bool:
    """Make a tool, if all it needs is held and beside the player."""
    for material in range(N_MATERIALS):
        if rules.make_near[number, material] and not _is_near(world, material):
            return False
    uses = rules.make_uses[number]
    for item in range(len(uses)):
        if world.inventory[item] < uses[item]:
            return False
    for item in range(len(uses)):
        world.inventory[item] -= uses[item]
    world.inventory[rules.makes[number]] += 1
    world.achievements[rules.made[number]] += 1
    return True


@compiled
def _is_near(world: World, material: int) -> bool:
    """Return whether a material is on one of the nine cells around the player.

    At the left and the upper edge of the map nothing is: Crafter's slice begins at -1 there.
    """
    x, y = world.x[0], world.y[0]
    if x == 0 or y == 0:
        return False
    for i in range(-1, 2):
        for j in range(-1, 2):
            if material_at(world, x + i, y + j) == material:
                return True
    return False
