"""A step of every world: commands, recipes, the player, and the turns of all that lives there.

The rules are those of Crafter 1.8.3 or those of CrafterText. A thing that is gone still finishes
its step, as there: a zombie that has just been killed may strike. Every tenth step balances
creatures. Chunks have their turn in the order in which something first came there, and a chunk's
creatures are counted in the order of their arrival.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from envs.crafter.world import (
    ACHIEVEMENTS,
    ARROW,
    CHUNK,
    CHUNKS,
    COW,
    DEFEAT_SKELETON,
    DEFEAT_ZOMBIE,
    DIRECTIONS,
    DRINK,
    EAT_COW,
    EAT_PLANT,
    ENERGY,
    FOOD,
    FURNACE,
    GRASS,
    HEALTH,
    IRON_SWORD,
    ITEMS,
    LAVA,
    MOST,
    N_MATERIALS,
    NAMES,
    OUTSIDE,
    PATH,
    PLANT,
    SIDE,
    SKELETON,
    STONE_SWORD,
    TABLE,
    WAKE_UP,
    WATER,
    WOOD_SWORD,
    ZOMBIE,
    World,
    add,
    add_creature,
    below,
    chunk_of,
    compiled,
    constants,
    distance,
    is_walkable,
    kind_at,
    material_at,
    move,
    remove,
    target,
    thing_at,
    tidy,
    uniform,
)

NEAR = 18  # steps from the player within which things have their turn
BALANCE_EVERY = 10
DAY = 300  # steps
TEXT_DAMAGE = 5
RIPE = 300  # a plant older than this can be eaten
TEXT_TABLE_WOOD = 1

# Commands; most have an object. FAIL does nothing and never succeeds; DO is Crafter's one action
# on any faced thing, COLLECT, HIT and EAT are those of CrafterText.
FAIL, WAIT, MOVE, SLEEP, DO, COLLECT, HIT, EAT, PLACE, MAKE = range(10)

PLACES, MAKES = list(constants.place), list(constants.make)
# The commands of Crafter's own actions: a command and its object.
GAME_COMMANDS = (
    {"noop": (WAIT, 0), "do": (DO, 0), "sleep": (SLEEP, 0)}
    | {f"move_{name}": (MOVE, n) for n, name in enumerate(("left", "right", "up", "down"))}
    | {f"place_{name}": (PLACE, n) for n, name in enumerate(PLACES)}
    | {f"make_{name}": (MAKE, n) for n, name in enumerate(MAKES)}
)


def game_commands() -> np.ndarray:
    """Return the command of each of Crafter's own actions, and its object.  [17, 2]"""
    return np.array([GAME_COMMANDS[name] for name in constants.actions])


class Rules(NamedTuple):
    """The differences between the two games, and the recipes of the package.

    Attributes:
        damage: The least of a blow.
        collects_beyond: Whether collecting counts where there are nine of an item already.
        leaves: The material after collecting, 0 where there is nothing to collect.  [13]
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
    return Rules(1, True, *_collecting(), *_placing(), *_making())


def rules_of_text() -> Rules:
    """Return the rules of CrafterText: every creature falls at once, and a table costs one wood."""
    rules = rules_of_crafter()
    rules.place_uses[PLACES.index("table"), 1] = TEXT_TABLE_WOOD
    return rules._replace(damage=TEXT_DAMAGE, collects_beyond=False)


def _collecting() -> Sequence[np.ndarray]:
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
    recipes = constants.place.items()
    places = np.array([NAMES.index(name) for name in PLACES])
    uses = [(ITEMS.index(item), n) for _, recipe in recipes for item, n in recipe["uses"].items()]
    where = np.stack([_mask(recipe["where"]) for _, recipe in recipes])
    return places, np.array(uses), where, _achievements("place", PLACES)


def _making() -> Sequence[np.ndarray]:
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
    return world.sleeping and world.inventory[ENERGY] < MOST


@compiled
def update_player(world: World, command: int, what: int, rules: Rules) -> bool:
    """Let the player act; return whether its command, FAIL to MAKE, really changed the world."""
    told = command
    if sleeps_on(world):
        command = SLEEP
    elif world.sleeping:
        world.sleeping = False
        world.achievements[WAKE_UP] += 1
    has_changed = _act(world, command, what, rules)
    live(world)
    return has_changed and command == told  # a sleeper carries out no other command


@compiled
def _act(world: World, command: int, what: int, rules: Rules) -> bool:
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
    material = material_at(world, x, y)
    if material == OUTSIDE or rules.leaves[material] == 0:
        return False
    if material == WATER:
        world.thirst = 0.0
    needed = rules.needs[material]
    if needed >= 0 and world.inventory[needed] < 1:
        return False
    world.materials[x, y] = rules.leaves[material]
    if uniform(world) > rules.probability[material]:  # a sapling is rare in grass
        return False
    item = rules.receives[material]
    if world.inventory[item] >= MOST and not rules.collects_beyond:
        return False
    world.inventory[item] += 1
    world.achievements[rules.collected[material]] += 1
    return True


@compiled
def _eat(world: World, plant: int) -> bool:
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
    damage = rules.damage
    for sword, does in ((WOOD_SWORD, 2), (STONE_SWORD, 3), (IRON_SWORD, 5)):
        if world.inventory[sword]:
            damage = max(damage, does)
    world.health[thing] = max(0, world.health[thing] - damage)
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
def _place(world: World, number: int, rules: Rules) -> bool:
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
    """Return whether a material is on one of the nine cells around the player."""
    # At the left and the upper edge of the map nothing is: Crafter's slice begins at -1 there.
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
    _need(world)
    _recover(world)
    for item in range(len(world.inventory)):
        world.inventory[item] = max(0, min(world.inventory[item], MOST))
    if world.inventory[HEALTH] < world.last_health:
        world.sleeping = False
    world.last_health = world.inventory[HEALTH]


@compiled
def _need(world: World) -> None:
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


class Balance(NamedTuple):
    """How creatures of a kind come into chunks and go.

    With a probability one may come where there are too few, and go where there are too many: in a
    chunk with `least_space` cells of their material, and at the least distances from the player.
    """

    kind: int
    material: int
    least_space: int
    may_come: float
    may_go: float
    comes_from: int
    goes_from: int


ZOMBIES = Balance(ZOMBIE, GRASS, 50, 0.3, 0.4, 6, 0)
SKELETONS = Balance(SKELETON, PATH, 6, 0.1, 0.1, 7, 7)
COWS = Balance(COW, GRASS, 30, 0.01, 0.1, 5, 5)


@compiled
def update_thing(world: World, thing: int) -> None:
    kind = world.kind[thing]
    if kind == PLANT:
        _grow(world, thing)
        return
    if kind == ARROW:
        _fly(world, thing)
        return
    if world.health[thing] <= 0:  # it has its last turn nevertheless, as in Crafter
        remove(world, thing)
    if kind == COW:
        if uniform(world) < 0.5:
            _stroll(world, thing)
    elif kind == ZOMBIE:
        _hunt(world, thing)
    elif kind == SKELETON:
        _guard(world, thing)


@compiled
def _try(world: World, thing: int, dx: int, dy: int) -> bool:
    """Let a creature take a step; return whether nothing was in its way."""
    x, y = world.x[thing] + dx, world.y[thing] + dy
    if not is_walkable(material_at(world, x, y)) or thing_at(world, x, y) >= 0:
        return False
    move(world, thing, x, y)
    return True


@compiled
def _stroll(world: World, thing: int) -> None:
    dx, dy = DIRECTIONS[below(world, 4)]
    _try(world, thing, dx, dy)


@compiled
def _toward_player(world: World, thing: int, along_longer: bool) -> tuple[int, int]:
    dx, dy = world.x[0] - world.x[thing], world.y[0] - world.y[thing]
    if (abs(dx) > abs(dy)) == along_longer:
        return np.sign(dx), 0
    return 0, np.sign(dy)


@compiled
def _hunt(world: World, thing: int) -> None:
    if distance(world, world.x[thing], world.y[thing]) <= 8 and uniform(world) < 0.9:
        dx, dy = _toward_player(world, thing, uniform(world) < 0.8)
        _try(world, thing, dx, dy)
    else:
        _stroll(world, thing)
    if distance(world, world.x[thing], world.y[thing]) > 1:
        return
    if world.timer[thing]:
        world.timer[thing] -= 1
        return
    _hurt(world, 0, 7 if world.sleeping else 2)
    world.timer[thing] = 5  # steps until it strikes again


@compiled
def _guard(world: World, thing: int) -> None:
    world.timer[thing] = max(0, world.timer[thing] - 1)
    away = distance(world, world.x[thing], world.y[thing])
    if away <= 3:
        dx, dy = _toward_player(world, thing, uniform(world) < 0.6)
        if _try(world, thing, -dx, -dy):
            return
    if away <= 5 and uniform(world) < 0.5:
        _shoot(world, thing)
    elif away <= 8 and uniform(world) < 0.3:
        dx, dy = _toward_player(world, thing, uniform(world) < 0.6)
        _try(world, thing, dx, dy)
    elif uniform(world) < 0.2:
        _stroll(world, thing)


@compiled
def _arrow_can_be(material: int) -> bool:
    return is_walkable(material) or material in (WATER, LAVA)


@compiled
def _shoot(world: World, thing: int) -> None:
    if world.timer[thing] > 0:
        return
    dx, dy = _toward_player(world, thing, True)
    x, y = world.x[thing] + dx, world.y[thing] + dy
    if not _arrow_can_be(material_at(world, x, y)) or thing_at(world, x, y) >= 0:
        return
    arrow = add(world, ARROW, x, y)
    if arrow >= 0:
        world.facing_x[arrow], world.facing_y[arrow] = dx, dy
    world.timer[thing] = 4


@compiled
def _hurt(world: World, thing: int, damage: int) -> None:
    if thing == 0:
        world.inventory[HEALTH] = max(0, world.inventory[HEALTH] - damage)
    else:
        world.health[thing] = max(0, world.health[thing] - damage)


@compiled
def _fly(world: World, arrow: int) -> None:
    x, y = world.x[arrow] + world.facing_x[arrow], world.y[arrow] + world.facing_y[arrow]
    hit, material = thing_at(world, x, y), material_at(world, x, y)
    if hit >= 0:
        _hurt(world, hit, 2)
        remove(world, arrow)
    elif not _arrow_can_be(material):
        remove(world, arrow)
        if material in (TABLE, FURNACE):
            world.materials[x, y] = PATH
    else:
        move(world, arrow, x, y)


@compiled
def _grow(world: World, plant: int) -> None:
    world.timer[plant] += 1
    is_eaten = False
    for i in range(4):
        x, y = world.x[plant] + DIRECTIONS[i, 0], world.y[plant] + DIRECTIONS[i, 1]
        kind = kind_at(world, x, y)
        is_eaten |= kind in (ZOMBIE, SKELETON, COW)
    if is_eaten:
        world.health[plant] = max(0, world.health[plant] - 1)
    if world.health[plant] <= 0:
        remove(world, plant)


@compiled
def balance_chunks(world: World) -> None:
    light = world.daylight
    for i in range(world.n_chunks):
        chunk = int(world.chunks[i])
        _balance(world, chunk, ZOMBIES, 3.5 - 3 * light, 3.5 - 3 * light)
        _balance(world, chunk, SKELETONS, 1.0, 2.0)
        _balance(world, chunk, COWS, 1.0, 1.5 + light)


@compiled
def _balance(world: World, chunk: int, of: Balance, least: float, most: float) -> None:
    """Let a creature come into a chunk where there are fewer than `least`, or go from too many."""
    space, n = _space(world, chunk, of.material), 0
    for thing in range(world.n_things):
        n += _is_in(world, thing, chunk, of.kind)
    is_room = space >= of.least_space
    # Both limits are cut to whole numbers, as in Crafter.
    if is_room and n < int(least) and uniform(world) < of.may_come:
        _spawn(world, chunk, of, space)
    elif n > int(most) and uniform(world) < of.may_go:
        thing = _nth_arrived(world, chunk, of.kind, below(world, n))
        if distance(world, world.x[thing], world.y[thing]) >= of.goes_from:
            remove(world, thing)


@compiled
def _is_in(world: World, thing: int, chunk: int, kind: int) -> bool:
    is_one = world.kind[thing] == kind and not world.gone[thing]
    return is_one and chunk_of(world.x[thing], world.y[thing]) == chunk


@compiled
def _bounds(chunk: int) -> tuple[int, int, int, int]:
    x, y = (chunk // CHUNKS) * CHUNK, (chunk % CHUNKS) * CHUNK
    # The map's side is no multiple of a chunk's.
    return x, min(x + CHUNK, SIDE), y, min(y + CHUNK, SIDE)


@compiled
def _space(world: World, chunk: int, material: int) -> int:
    x0, x1, y0, y1 = _bounds(chunk)
    n = 0  # counted one by one: NumPy's count takes half as long again
    for x in range(x0, x1):
        for y in range(y0, y1):
            n += world.materials[x, y] == material
    return n


@compiled
def _spawn(world: World, chunk: int, of: Balance, space: int) -> None:
    """Put a creature on one of a chunk's cells, if that is free and not too near the player."""
    left = below(world, space)  # drawn even if that cell is taken, to keep Crafter's stream
    x0, x1, y0, y1 = _bounds(chunk)
    for x in range(x0, x1):
        for y in range(y0, y1):
            if world.materials[x, y] != of.material:
                continue
            if left == 0:
                if thing_at(world, x, y) < 0 and distance(world, x, y) >= of.comes_from:
                    add_creature(world, of.kind, x, y)
                return
            left -= 1


@compiled
def _nth_arrived(world: World, chunk: int, kind: int, n: int) -> int:
    for thing in range(world.n_things):
        if not _is_in(world, thing, chunk, kind):
            continue
        before = 0  # numbers are by arrival in the world, not in this chunk
        for other in range(world.n_things):
            is_before = world.arrival[other] < world.arrival[thing]
            before += is_before and _is_in(world, other, chunk, kind)
        if before == n:
            return thing
    return -1


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
    """Take one step in every world; fill `changed` [N] bool with whether actions had an effect.

    Commands [N, 2] come with their objects; daylights [N] are those after the step.
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
    """Fill news [N, 22] bool with the achievements that are new in this episode."""
    for row in range(len(worlds)):
        world = worlds[row]
        for number in range(len(world.achievements)):
            is_new = world.achievements[number] > 0 and world.unlocked[number] == 0
            news[row, number] = is_new
            if is_new:
                world.unlocked[number] = 1


@compiled
def names_match(worlds: np.ndarray, nouns: np.ndarray, matched: np.ndarray) -> None:
    """Fill matched [N] bool with whether an action's noun names a thing that is faced or held.

    Nouns [N, 3] are a material, a kind and an item, -1 for none. A sleeping player matches none.
    """
    for row in range(len(worlds)):
        world = worlds[row]
        x, y = target(world)
        material, kind, item = nouns[row]
        is_faced = material == material_at(world, x, y) or kind == kind_at(world, x, y)
        is_held = item >= 0 and world.inventory[item] > 0
        matched[row] = (is_faced or is_held) and not sleeps_on(world)
