"""A step of every world: the commands of either game, the recipes, and what becomes of the player.

The rules are those of Crafter 1.8.3 or those of CrafterText.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from envs.crafter.creatures import RIPE, balance_chunks, update_thing
from envs.crafter.world import (
    ACHIEVEMENTS,
    COW,
    DEFEAT_SKELETON,
    DEFEAT_ZOMBIE,
    DIRECTIONS,
    DRINK,
    EAT_COW,
    EAT_PLANT,
    ENERGY,
    FOOD,
    HEALTH,
    IRON_SWORD,
    ITEMS,
    LAVA,
    MOST,
    N_MATERIALS,
    NAMES,
    OUTSIDE,
    PLANT,
    SKELETON,
    STONE_SWORD,
    WAKE_UP,
    WATER,
    WOOD_SWORD,
    ZOMBIE,
    World,
    add_creature,
    compiled,
    constants,
    distance,
    is_walkable,
    kind_at,
    material_at,
    move,
    target,
    thing_at,
    tidy,
    uniform,
)

NEAR = 18  # steps from the player within which things have their turn
BALANCE_EVERY = 10
DAY = 300  # steps
TEXT_DAMAGE = 5
TEXT_TABLE_WOOD = 1

# What a command does; most have an object. FAIL does nothing and never succeeds; DO is Crafter's
# one action for whatever is faced, COLLECT, HIT and EAT are those of CrafterText.
FAIL, WAIT, MOVE, SLEEP, DO, COLLECT, HIT, EAT, PLACE, MAKE = range(10)

PLACES, MAKES = list(constants.place), list(constants.make)
# The commands of Crafter's own actions: a command and its object.
GAME_COMMANDS = (
    {"noop": (WAIT, 0), "do": (DO, 0), "sleep": (SLEEP, 0)}
    | {f"move_{name}": (MOVE, n) for n, name in enumerate(("left", "right", "up", "down"))}
    | {f"place_{name}": (PLACE, n) for n, name in enumerate(PLACES)}
    | {f"make_{name}": (MAKE, n) for n, name in enumerate(MAKES)}
)
# Those of CrafterText's phrases, which call a table a crafting table.
TEXT_COMMANDS = (
    {
        name.replace("_", " ").replace("table", "crafting table"): command
        for name, command in GAME_COMMANDS.items()
    }
    | {"do nothing": (WAIT, 0), "eat plant": (EAT, PLANT), "eat cow": (HIT, COW)}
    | {f"attack {NAMES[kind]}": (HIT, kind) for kind in (ZOMBIE, SKELETON, COW)}
    | {f"chop {name}": (COLLECT, NAMES.index(name)) for name in ("tree", "grass")}
    | {
        f"mine {name}": (COLLECT, NAMES.index(name))
        for name in ("stone", "coal", "iron", "diamond")
    }
    | {"drink water": (COLLECT, WATER), "make crafting table": (PLACE, PLACES.index("table"))}
)


def game_commands() -> np.ndarray:
    """Return the command of each of Crafter's own actions, and its object.  [17, 2]"""
    return np.array([GAME_COMMANDS[name] for name in constants.actions])


def text_commands(phrases: Sequence[str]) -> np.ndarray:
    """Return the command of each phrase, and its object.  [A, 2]"""
    return np.array([TEXT_COMMANDS.get(phrase, (FAIL, 0)) for phrase in phrases])


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


def rules_of_crafter() -> Rules:
    """Return the rules of the unmodified game."""
    return Rules(1, True, *_collecting(), *_placing(), *_making())


def rules_of_text() -> Rules:
    """Return the rules of CrafterText: every creature falls at once, and a table costs one wood."""
    rules = rules_of_crafter()
    rules.place_uses[PLACES.index("table"), 1] = TEXT_TABLE_WOOD
    return rules._replace(damage=TEXT_DAMAGE, collects_beyond=False)


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
    uses = np.array(
        [[recipe["uses"].get(item, 0) for item in ITEMS] for recipe in recipes], np.int16
    )
    near = np.stack([_mask(recipe["nearby"]) for recipe in recipes])
    return makes, uses, near, _achievements("make", MAKES)


def _mask(materials: Sequence[str]) -> np.ndarray:
    return np.isin(NAMES[:N_MATERIALS], materials)


def _achievements(verb: str, names: Sequence[str]) -> np.ndarray:
    return np.array([ACHIEVEMENTS.index(f"{verb}_{name}") for name in names])


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


@compiled
def live(world: World) -> None:
    """Let the player get hungry, thirsty and tired, recover or suffer, and wake when hurt."""
    _need(world)
    _recover(world)
    for item in range(len(world.inventory)):
        world.inventory[item] = max(0, min(world.inventory[item], MOST))
    if world.inventory[HEALTH] < world.last_health:
        world.sleeping = False
    world.last_health = world.inventory[HEALTH]


@compiled
def _need(world: World) -> None:
    """Let time pass for food, drink and energy."""
    pace = 0.5 if world.sleeping else 1.0
    world.hunger += pace
    if world.hunger > 25:
        world.hunger = 0.0
        world.inventory[FOOD] -= 1
    world.thirst += pace
    if world.thirst > 20:
        world.thirst = 0.0
        world.inventory[DRINK] -= 1
    world.fatigue = min(world.fatigue - 1, 0.0) if world.sleeping else world.fatigue + 1
    if world.fatigue < -10:
        world.fatigue = 0.0
        world.inventory[ENERGY] += 1
    if world.fatigue > 30:
        world.fatigue = 0.0
        world.inventory[ENERGY] -= 1


@compiled
def _recover(world: World) -> None:
    """Let the player get health while it lacks nothing, and lose it while it does."""
    items, sleeping = world.inventory, world.sleeping
    lacks_nothing = items[FOOD] > 0 and items[DRINK] > 0 and (items[ENERGY] > 0 or sleeping)
    if lacks_nothing:
        world.recovery += 2 if sleeping else 1
    else:
        world.recovery -= 0.5 if sleeping else 1.0
    if world.recovery > 25:
        world.recovery = 0.0
        items[HEALTH] = max(0, items[HEALTH] + 1)
    if world.recovery < -15:
        world.recovery = 0.0
        items[HEALTH] = max(0, items[HEALTH] - 1)


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
        world, command = worlds[row], commands[row]
        world.steps += 1
        world.daylight = daylights[row]
        n_things = world.n_things  # those that come in this step wait for the next
        changed[row] = update_player(world, command[0], command[1], rules)
        for thing in range(1, n_things):
            if distance(world, world.x[thing], world.y[thing]) < NEAR:
                update_thing(world, thing)
        if world.steps % BALANCE_EVERY == 0:
            balance_chunks(world)
        tidy(world)


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
