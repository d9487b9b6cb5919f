"""How creatures come and go in a step that balances them: Crafter 1.8.3.

Chunks have their turn in the order in which something first came there, and a chunk's creatures
are counted in the order of their arrival.
"""

from envs.crafter.compiled import compiled
from envs.crafter.creatures import add_creature
from envs.crafter.world import (
    CHUNK,
    CHUNKS,
    COW,
    GRASS,
    PATH,
    SIDE,
    SKELETON,
    ZOMBIE,
    World,
    below,
    chunk_of,
    distance,
    remove,
    thing_at,
    uniform,
)


@compiled
def balance_chunks(world: World) -> None:
    """Let creatures come and go in every chunk where something has ever been."""
    light = world.daylight
    for i in range(world.n_chunks):
        chunk = int(world.chunks[i])
        n, space = _count(world, chunk, ZOMBIE), _space(world, chunk, GRASS)
        most = 3.5 - 3 * light
        least = 0.0 if space < 50 else most
        if _comes(world, n, least, 0.3):
            _spawn(world, chunk, ZOMBIE, GRASS, space, 6)
        elif _goes(world, n, most, 0.4):
            _despawn(world, chunk, ZOMBIE, n, 0)

        n, space = _count(world, chunk, SKELETON), _space(world, chunk, PATH)
        if _comes(world, n, 0.0 if space < 6 else 1.0, 0.1):
            _spawn(world, chunk, SKELETON, PATH, space, 7)
        elif _goes(world, n, 2.0, 0.1):
            _despawn(world, chunk, SKELETON, n, 7)

        n, space = _count(world, chunk, COW), _space(world, chunk, GRASS)
        if _comes(world, n, 0.0 if space < 30 else 1.0, 0.01):
            _spawn(world, chunk, COW, GRASS, space, 5)
        elif _goes(world, n, 1.5 + light, 0.1):
            _despawn(world, chunk, COW, n, 5)


@compiled
def _comes(world: World, n: int, least: float, probability: float) -> bool:
    return n < int(least) and uniform(world) < probability


@compiled
def _goes(world: World, n: int, most: float, probability: float) -> bool:
    return n > int(most) and uniform(world) < probability


@compiled
def _is_in(world: World, thing: int, chunk: int, kind: int) -> bool:
    """Return whether something is of a kind, in a chunk and not gone."""
    is_one = world.kind[thing] == kind and not world.gone[thing]
    return is_one and chunk_of(world.x[thing], world.y[thing]) == chunk


@compiled
def _count(world: World, chunk: int, kind: int) -> int:
    """Return how many of a kind are in a chunk."""
    n = 0
    for thing in range(world.n_things):
        n += _is_in(world, thing, chunk, kind)
    return n


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
def _despawn(world: World, chunk: int, kind: int, n: int, least_distance: int) -> None:
    """Take one of the n of a kind from a chunk, if it is not too near the player."""
    thing = _nth_arrived(world, chunk, kind, below(world, n))
    if distance(world, world.x[thing], world.y[thing]) >= least_distance:
        remove(world, thing)


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
