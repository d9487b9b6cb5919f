"""A world of Crafter as one record of numbers: its map, the things on it, the player, its dice.

Positions are (x, y), x to the right and y down; maps are indexed [x, y]. A thing stands on a cell:
the player, which is always number 0, a creature, an arrow or a plant. Things are kept, and updated,
in the order in which they came into the world.

The landscape, ores, caves and first creatures are those of Crafter 1.8.3 for a seed. All that
happens in a world is plain loops, compiled by numba and kept on the disk. numba keeps compiled code
per file and does not notice changes in a function that another file's code has taken in; so all
of it lies in a folder named after the sources of all that is compiled.
"""

import contextlib
import hashlib
import io
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
from opensimplex import internals

with contextlib.redirect_stderr(io.StringIO()):  # of the old gym, where that is installed
    from crafter import constants, engine  # noqa: F401

from utils.files import cache_folder

log = logging.getLogger(__name__)

SOURCES = "*.py"
COMPILED = "*.nbc"  # numba's files


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function at its first call, or take the code that an earlier process compiled."""
    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = before or FOLDER
    try:
        return numba.njit(cache=True)(function)
    except RuntimeError:  # there is no place to write to
        return numba.njit(function)
    finally:
        config.CACHE_DIR = before


def tell_of_compiling() -> None:
    config: Any = numba.config
    if not any(Path(config.CACHE_DIR or FOLDER).rglob(COMPILED)):
        log.warning("compiling the rules of Crafter for this machine, once: about half a minute")


def _folder() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob(SOURCES)):
        source = path.read_bytes()
        if b"@compiled" in source:
            digest.update(source)
    return str(cache_folder() / "crafter" / digest.hexdigest()[:16])


FOLDER = _folder()


# The materials of cells, then the things on them: `crafter`'s own numbers.
GROUNDS = ("outside", "water", "grass", "stone", "path", "sand", "tree", "lava")
SOLID = ("coal", "iron", "diamond", "table", "furnace")
CREATURES = ("player", "cow", "zombie", "skeleton", "arrow", "plant")
NAMES = (*GROUNDS, *SOLID, *CREATURES)
OUTSIDE, WATER, GRASS, STONE, PATH, SAND, TREE, LAVA, COAL, IRON, DIAMOND, TABLE, FURNACE = range(
    13
)
PLAYER, COW, ZOMBIE, SKELETON, ARROW, PLANT = range(13, 19)
N_MATERIALS = PLAYER

ITEMS = tuple(constants.items)
HEALTH, FOOD, DRINK, ENERGY = range(4)
WOOD_SWORD, STONE_SWORD, IRON_SWORD = (
    ITEMS.index(f"{material}_sword") for material in ("wood", "stone", "iron")
)
N_VITALS = 4
MOST = 9  # of every item

ACHIEVEMENTS = tuple(constants.achievements)
DEFEAT_SKELETON, DEFEAT_ZOMBIE, EAT_COW, EAT_PLANT, WAKE_UP = (
    ACHIEVEMENTS.index(name)
    for name in ("defeat_skeleton", "defeat_zombie", "eat_cow", "eat_plant", "wake_up")
)

SIDE = 64  # cells of the map
VIEW = (9, 7)  # cells in view, the player in the middle
CHUNK = 12  # cells of the squares in which creatures come and go
CHUNKS = -(-SIDE // CHUNK)
FIRST_HEALTH = (3, 5, 3, 0, 1)  # of COW to PLANT
THINGS = 1024  # that a world has room for
N_WORDS = 624  # of a Mersenne Twister

DIRECTIONS = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])  # left, right, up, down

WORLD = np.dtype(
    [
        ("materials", np.uint8, (SIDE, SIDE)),
        ("standing", np.int16, (SIDE, SIDE)),  # 1 + the thing on each cell, 0 for none
        ("n_things", np.int32),
        ("kind", np.uint8, (THINGS,)),
        ("x", np.int16, (THINGS,)),
        ("y", np.int16, (THINGS,)),
        ("facing_x", np.int8, (THINGS,)),  # the player's and arrows'
        ("facing_y", np.int8, (THINGS,)),
        ("health", np.int16, (THINGS,)),  # the player's is an item
        ("timer", np.int32, (THINGS,)),  # zombie: cooldown; skeleton: reload; plant: age
        ("gone", np.uint8, (THINGS,)),  # in this step; numba knows no fields of several bools
        ("arrival", np.int32, (THINGS,)),  # when it came into its chunk
        ("n_arrivals", np.int32),
        ("chunks", np.uint8, (CHUNKS**2,)),  # in the order in which something first came there
        ("n_chunks", np.int32),
        ("inventory", np.int16, (len(ITEMS),)),
        ("achievements", np.int32, (len(ACHIEVEMENTS),)),  # how often each
        ("unlocked", np.uint8, (len(ACHIEVEMENTS),)),  # and paid
        ("sleeping", np.bool_),
        ("hunger", np.float64),
        ("thirst", np.float64),
        ("fatigue", np.float64),
        ("recovery", np.float64),
        ("last_health", np.int16),  # the player remembers it and wakes when hurt
        ("paid_health", np.int16),  # after the last step that was paid
        ("steps", np.int32),
        ("daylight", np.float64),
        ("words", np.uint32, (N_WORDS,)),  # of the generator, NumPy's RandomState
        ("next_word", np.int32),
    ]
)

World = Any  # a record of WORLD; compiled code has its fields as attributes
Tables = tuple[np.ndarray, np.ndarray]  # of opensimplex, for one seed
noise3 = internals._noise3


def new_world(worlds: np.ndarray, row: int, seed: int) -> None:
    """Make world `row` of worlds [N] of WORLD the one of a seed."""
    tables = internals._init(begin_world(worlds, row, seed))
    _fill(worlds[row], tables)


def begin_world(worlds: np.ndarray, row: int, seed: int) -> int:
    """Empty a world but for the player in its middle; return the seed of its landscape."""
    random = np.random.RandomState(seed)
    landscape = int(random.randint(0, 2**31 - 1))
    worlds[row] = np.zeros((), WORLD)
    world = worlds[row]
    state = random.get_state(legacy=False)["state"]
    world["words"], world["next_word"] = state["key"], state["pos"]
    world["inventory"][:N_VITALS] = MOST
    world["last_health"] = world["paid_health"] = MOST
    add(world, PLAYER, SIDE // 2, SIDE // 2)
    world["facing_y"][0] = 1
    return landscape


@compiled
def next_word(world: World) -> int:
    """Return the next 32 random bits (Matsumoto & Nishimura 1998, MT19937)."""
    if world.next_word == N_WORDS:
        _renew(world.words)
        world.next_word = 0
    bits = world.words[world.next_word]
    world.next_word += 1
    bits ^= bits >> np.uint32(11)
    bits ^= (bits << np.uint32(7)) & np.uint32(0x9D2C5680)
    bits ^= (bits << np.uint32(15)) & np.uint32(0xEFC60000)
    return bits ^ (bits >> np.uint32(18))


@compiled
def _renew(words: np.ndarray) -> None:
    for i in range(N_WORDS):
        both = (words[i] & np.uint32(0x80000000)) | (
            words[(i + 1) % N_WORDS] & np.uint32(0x7FFFFFFF)
        )
        mixed = words[(i + 397) % N_WORDS] ^ (both >> np.uint32(1))
        if both & np.uint32(1):
            mixed ^= np.uint32(0x9908B0DF)
        words[i] = mixed


@compiled
def uniform(world: World) -> float:
    """Return a random number in [0, 1), as RandomState.uniform() does."""
    high, low = next_word(world) >> np.uint32(5), next_word(world) >> np.uint32(6)
    return (high * 67108864.0 + low) / 9007199254740992.0


@compiled
def below(world: World, n: int) -> int:
    """Return a random number from 0 to n - 1, as RandomState.randint(0, n) does."""
    if n == 1:
        return 0
    mask = 1
    while mask < n - 1:
        mask = 2 * mask + 1
    found = next_word(world) & np.uint32(mask)
    while found > n - 1:
        found = next_word(world) & np.uint32(mask)
    return int(np.int64(found))


@compiled
def inside(x: int, y: int) -> bool:
    return 0 <= x < SIDE and 0 <= y < SIDE


@compiled
def material_at(world: World, x: int, y: int) -> int:
    return int(world.materials[x, y]) if inside(x, y) else OUTSIDE


@compiled
def thing_at(world: World, x: int, y: int) -> int:
    """Return the number of the thing on a cell, -1 for none."""
    return int(world.standing[x, y]) - 1 if inside(x, y) else -1


@compiled
def kind_at(world: World, x: int, y: int) -> int:
    """Return the kind of the thing on a cell, 0 for none."""
    thing = thing_at(world, x, y)
    return int(world.kind[thing]) if thing >= 0 else 0


@compiled
def target(world: World) -> tuple[int, int]:
    return world.x[0] + world.facing_x[0], world.y[0] + world.facing_y[0]


@compiled
def distance(world: World, x: int, y: int) -> int:
    return abs(world.x[0] - x) + abs(world.y[0] - y)


@compiled
def is_walkable(material: int) -> bool:
    return material in (GRASS, PATH, SAND)


@compiled
def chunk_of(x: int, y: int) -> int:
    return (x // CHUNK) * CHUNKS + y // CHUNK


@compiled
def add(world: World, kind: int, x: int, y: int) -> int:
    """Put something on a free cell and return its number; -1 where the world has no more room."""
    thing = world.n_things
    if thing == THINGS:
        return -1
    world.n_things += 1
    world.kind[thing], world.x[thing], world.y[thing] = kind, x, y
    world.facing_x[thing] = world.facing_y[thing] = 0
    world.health[thing] = world.timer[thing] = 0
    world.gone[thing] = False
    world.standing[x, y] = thing + 1
    _arrive(world, thing)
    return thing


@compiled
def add_creature(world: World, kind: int, x: int, y: int) -> None:
    thing = add(world, kind, x, y)
    if thing >= 0:
        world.health[thing] = FIRST_HEALTH[kind - COW]


@compiled
def remove(world: World, thing: int) -> None:
    """Take something off the map; it keeps its number to the end of the step."""
    if not world.gone[thing]:
        world.standing[world.x[thing], world.y[thing]] = 0
        world.gone[thing] = True


@compiled
def move(world: World, thing: int, x: int, y: int) -> None:
    if world.gone[thing]:
        return
    old_chunk = chunk_of(world.x[thing], world.y[thing])
    world.standing[world.x[thing], world.y[thing]] = 0
    world.standing[x, y] = thing + 1
    world.x[thing], world.y[thing] = x, y
    if chunk_of(x, y) != old_chunk:
        _arrive(world, thing)


@compiled
def _arrive(world: World, thing: int) -> None:
    world.arrival[thing] = world.n_arrivals
    world.n_arrivals += 1
    chunk = chunk_of(world.x[thing], world.y[thing])
    for i in range(world.n_chunks):
        if world.chunks[i] == chunk:
            return
    world.chunks[world.n_chunks] = chunk
    world.n_chunks += 1


@compiled
def tidy(world: World) -> None:
    """Give those that are still there the first numbers, in their order."""
    kept = 0
    for thing in range(world.n_things):
        if world.gone[thing]:
            continue
        if kept < thing:
            world.kind[kept], world.arrival[kept] = world.kind[thing], world.arrival[thing]
            world.x[kept], world.y[kept] = world.x[thing], world.y[thing]
            world.facing_x[kept] = world.facing_x[thing]
            world.facing_y[kept] = world.facing_y[thing]
            world.health[kept], world.timer[kept] = world.health[thing], world.timer[thing]
            world.gone[kept] = False
            world.standing[world.x[kept], world.y[kept]] = kept + 1
        kept += 1
    world.n_things = kept


@compiled
def _fill(world: World, tables: Tables) -> None:
    tunnels = np.zeros((SIDE, SIDE), np.bool_)
    for x in range(SIDE):
        for y in range(SIDE):
            world.materials[x, y] = _material(world, x, y, tunnels, tables)
    for x in range(SIDE):
        for y in range(SIDE):
            _inhabit(world, x, y, tunnels)


@compiled
def _noise(tables: Tables, x: float, y: float, z: float, size: float) -> float:
    """Return the noise of one size at a cell, in layer z."""
    # All are written as floats: numba would compile it anew for every other whole number.
    return noise3(x / size, y / size, z, tables[0], tables[1])


@compiled
def _material(world: World, x: int, y: int, tunnels: np.ndarray, tables: Tables) -> int:
    away = math.sqrt((x - world.x[0]) ** 2 + (y - world.y[0]) ** 2)
    start = 4 - away + 2 * _noise(tables, x, y, 8.0, 3.0)
    start = 1 / (1 + math.exp(-start))
    water = (
        _noise(tables, x, y, 3.0, 15.0) + 0.15 * _noise(tables, x, y, 3.0, 5.0) + 0.1 - 2 * start
    )
    mountain = (_noise(tables, x, y, 0.0, 15.0) + 0.3 * _noise(tables, x, y, 0.0, 5.0)) / 1.3
    mountain -= 4 * start + 0.3 * water
    if start > 0.5:
        return GRASS
    if mountain > 0.15:
        return _rock(world, x, y, mountain, tunnels, tables)
    if 0.25 < water <= 0.35 and _noise(tables, x, y, 4.0, 9.0) > -0.2:
        return SAND
    if water > 0.3:
        return WATER
    if _noise(tables, x, y, 5.0, 7.0) > 0 and uniform(world) > 0.8:
        return TREE
    return GRASS


@compiled
def _rock(
    world: World, x: int, y: int, mountain: float, tunnels: np.ndarray, tables: Tables
) -> int:
    if _noise(tables, x, y, 6.0, 7.0) > 0.15 and mountain > 0.3:
        return PATH
    is_level = _noise(tables, 2.0 * x, y / 5, 7.0, 3.0) > 0.4
    if is_level or _noise(tables, x / 5, 2.0 * y, 7.0, 3.0) > 0.4:
        tunnels[x, y] = True
        return PATH
    if _noise(tables, x, y, 1.0, 8.0) > 0 and uniform(world) > 0.85:
        return COAL
    if _noise(tables, x, y, 2.0, 6.0) > 0.4 and uniform(world) > 0.75:
        return IRON
    if mountain > 0.18 and uniform(world) > 0.994:
        return DIAMOND
    if mountain > 0.3 and _noise(tables, x, y, 6.0, 5.0) > 0.35:
        return LAVA
    return STONE


@compiled
def _inhabit(world: World, x: int, y: int, tunnels: np.ndarray) -> None:
    material = world.materials[x, y]
    if not is_walkable(material):
        return
    away = math.sqrt((x - world.x[0]) ** 2 + (y - world.y[0]) ** 2)
    if away > 3 and material == GRASS and uniform(world) > 0.985:
        add_creature(world, COW, x, y)
    elif away > 10 and uniform(world) > 0.993:
        add_creature(world, ZOMBIE, x, y)
    elif material == PATH and tunnels[x, y] and uniform(world) > 0.95:
        add_creature(world, SKELETON, x, y)
