"""The turns of creatures, arrows and plants, and how creatures come and go: Crafter 1.8.3.

What is gone still finishes its step, as there: a zombie that has just been killed may strike.
Every tenth step balances creatures. Chunks have their turn in the order in which something first
came there, and a chunk's creatures are counted in the order of their arrival.
"""

from typing import NamedTuple

from envs.crafter.world import (
    ARROW,
    CHUNK,
    CHUNKS,
    COW,
    DIRECTIONS,
    FURNACE,
    GRASS,
    HEALTH,
    LAVA,
    PATH,
    PLANT,
    SIDE,
    SKELETON,
    TABLE,
    WATER,
    ZOMBIE,
    World,
    add,
    add_creature,
    below,
    chunk_of,
    compiled,
    distance,
    is_walkable,
    kind_at,
    material_at,
    move,
    remove,
    thing_at,
    uniform,
)

RIPE = 300  # a plant older than this can be eaten


class Balance(NamedTuple):
    """How creatures of a kind come into chunks and go.

    Attributes:
        kind: Of the creatures.
        material: Where they live.
        least_space: Cells of it without which none comes.
        may_come: Probability that one comes where there are too few.
        may_go: Probability that one goes where there are too many.
        comes_from: Least distance from the player of one that comes.
        goes_from: Least distance of one that goes.
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
    """Let something have its turn."""
    kind = world.kind[thing]
    if kind == PLANT:
        _grow(world, thing)
        return
    if kind == ARROW:
        _fly(world, thing)
        return
    if world.health[thing] <= 0:
        remove(world, thing)
    if kind == COW:
        if uniform(world) < 0.5:
            _stroll(world, thing)
    elif kind == ZOMBIE:
        _hunt(world, thing)
    elif kind == SKELETON:
        _guard(world, thing)


@compiled
def _is_free(world: World, x: int, y: int) -> bool:
    return is_walkable(material_at(world, x, y)) and thing_at(world, x, y) < 0


@compiled
def _try(world: World, thing: int, dx: int, dy: int) -> bool:
    """Let a creature take a step; return whether nothing was in its way."""
    x, y = world.x[thing] + dx, world.y[thing] + dy
    if not _is_free(world, x, y):
        return False
    move(world, thing, x, y)
    return True


@compiled
def _stroll(world: World, thing: int) -> None:
    """Take a step in any direction."""
    dx, dy = DIRECTIONS[below(world, 4)]
    _try(world, thing, dx, dy)


@compiled
def _sign(number: int) -> int:
    return int(number > 0) - int(number < 0)


@compiled
def _toward_player(world: World, thing: int, along_longer: bool) -> tuple[int, int]:
    """Return the direction of the player, along the longer or the shorter way."""
    dx, dy = world.x[0] - world.x[thing], world.y[0] - world.y[thing]
    if (abs(dx) > abs(dy)) == along_longer:
        return _sign(dx), 0
    return 0, _sign(dy)


@compiled
def _hunt(world: World, thing: int) -> None:
    """Let a zombie come near and strike."""
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
    world.timer[thing] = 5


@compiled
def _guard(world: World, thing: int) -> None:
    """Let a skeleton keep its distance and shoot."""
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
    """Let a skeleton send an arrow to where the player is."""
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
    """Take health from something, the player being number 0."""
    if thing == 0:
        world.inventory[HEALTH] = max(0, world.inventory[HEALTH] - damage)
    else:
        world.health[thing] = max(0, world.health[thing] - damage)


@compiled
def _fly(world: World, arrow: int) -> None:
    """Let an arrow fly on, or end in what it hits."""
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
    """Let a plant grow, or be eaten by creatures beside it."""
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
    """Let creatures come and go in every chunk where something has ever been."""
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
    if is_room and n < int(least) and uniform(world) < of.may_come:
        _spawn(world, chunk, of.kind, of.material, space, of.comes_from)
    elif n > int(most) and uniform(world) < of.may_go:
        thing = _nth_arrived(world, chunk, of.kind, below(world, n))
        if distance(world, world.x[thing], world.y[thing]) >= of.goes_from:
            remove(world, thing)


@compiled
def _is_in(world: World, thing: int, chunk: int, kind: int) -> bool:
    """Return whether something is of a kind, in a chunk and not gone."""
    is_one = world.kind[thing] == kind and not world.gone[thing]
    return is_one and chunk_of(world.x[thing], world.y[thing]) == chunk


@compiled
def _bounds(chunk: int) -> tuple[int, int, int, int]:
    """Return where a chunk begins and ends."""
    x, y = (chunk // CHUNKS) * CHUNK, (chunk % CHUNKS) * CHUNK
    return x, min(x + CHUNK, SIDE), y, min(y + CHUNK, SIDE)


@compiled
def _space(world: World, chunk: int, material: int) -> int:
    """Return how many cells of a chunk are of a material."""
    x0, x1, y0, y1 = _bounds(chunk)
    n = 0
    for x in range(x0, x1):
        for y in range(y0, y1):
            n += world.materials[x, y] == material
    return n


@compiled
def _spawn(
    world: World, chunk: int, kind: int, material: int, space: int, least_distance: int
) -> None:
    """Put a creature on one of a chunk's cells, if that is free and not too near the player."""
    left = below(world, space)
    x0, x1, y0, y1 = _bounds(chunk)
    for x in range(x0, x1):
        for y in range(y0, y1):
            if world.materials[x, y] != material:
                continue
            if left == 0:
                if thing_at(world, x, y) < 0 and distance(world, x, y) >= least_distance:
                    add_creature(world, kind, x, y)
                return
            left -= 1


@compiled
def _nth_arrived(world: World, chunk: int, kind: int, n: int) -> int:
    """Return the creature of a kind that came into a chunk as number n of those there."""
    for thing in range(world.n_things):
        if not _is_in(world, thing, chunk, kind):
            continue
        before = 0
        for other in range(world.n_things):
            is_before = world.arrival[other] < world.arrival[thing]
            before += is_before and _is_in(world, other, chunk, kind)
        if before == n:
            return thing
    return -1
