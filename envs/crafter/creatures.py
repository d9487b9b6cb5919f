"""What creatures, arrows and plants do in a step by the rules of Crafter 1.8.3.

What is gone still finishes its step, as there: a zombie that has just been killed may strike.
"""

from envs.crafter.compiled import compiled
from envs.crafter.world import (
    ARROW,
    COW,
    DIRECTIONS,
    FURNACE,
    HEALTH,
    LAVA,
    PATH,
    PLANT,
    SKELETON,
    TABLE,
    WATER,
    ZOMBIE,
    World,
    add,
    below,
    distance,
    is_walkable,
    kind_at,
    material_at,
    move,
    remove,
    thing_at,
    uniform,
)

HEALTH_AT_FIRST = 3  # of cows and skeletons
ZOMBIE_HEALTH = 5
RIPE = 300  # a plant older than this can be eaten


@compiled
def add_creature(world: World, kind: int, x: int, y: int) -> None:
    """Put a cow, zombie, skeleton or plant on a free cell."""
    thing = add(world, kind, x, y)
    if thing < 0:
        return
    if kind == PLANT:
        world.health[thing] = 1
    else:
        world.health[thing] = ZOMBIE_HEALTH if kind == ZOMBIE else HEALTH_AT_FIRST


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
