"""A world of Crafter as one record of numbers: its map, what stands on it, the player, its dice.

Positions are (x, y), x to the right and y down; maps are indexed [x, y]. What stands on a cell is a
thing: the player, which is always number 0, a creature, an arrow or a plant. Things are kept, and
updated, in the order in which they came into the world.
"""

from typing import Any

import numpy as np

from envs.crafter.compiled import compiled

# What a cell can be, then what can stand on it: `crafter`'s own numbers.
NAMES = (
    *("outside", "water", "grass", "stone", "path", "sand", "tree", "lava"),
    *("coal", "iron", "diamond", "table", "furnace"),
    *("player", "cow", "zombie", "skeleton", "arrow", "plant"),
)
OUTSIDE, WATER, GRASS, STONE, PATH, SAND, TREE, LAVA, COAL, IRON, DIAMOND, TABLE, FURNACE = range(
    13
)
PLAYER, COW, ZOMBIE, SKELETON, ARROW, PLANT = range(13, 19)
N_MATERIALS = PLAYER

ITEMS = (
    *("health", "food", "drink", "energy"),
    *("sapling", "wood", "stone", "coal", "iron", "diamond"),
    *("wood_pickaxe", "stone_pickaxe", "iron_pickaxe", "wood_sword", "stone_sword", "iron_sword"),
)
HEALTH, FOOD, DRINK, ENERGY, SAPLING = range(5)
WOOD_SWORD, STONE_SWORD, IRON_SWORD = range(13, 16)
N_VITALS = 4
MOST = 9  # of every item

ACHIEVEMENTS = (
    *("collect_coal", "collect_diamond", "collect_drink", "collect_iron", "collect_sapling"),
    *("collect_stone", "collect_wood", "defeat_skeleton", "defeat_zombie", "eat_cow", "eat_plant"),
    *("make_iron_pickaxe", "make_iron_sword", "make_stone_pickaxe", "make_stone_sword"),
    *("make_wood_pickaxe", "make_wood_sword", "place_furnace", "place_plant", "place_stone"),
    *("place_table", "wake_up"),
)
DEFEAT_SKELETON, DEFEAT_ZOMBIE, EAT_COW, EAT_PLANT = range(7, 11)
WAKE_UP = 21

SIDE = 64  # cells of the map
VIEW = (9, 7)  # cells in view, the player in the middle
CHUNK = 12  # cells of the squares in which creatures come and go
CHUNKS = -(-SIDE // CHUNK)
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
        ("last_health", np.int16),  # what the player remembers; it wakes when hurt
        ("paid_health", np.int16),  # after the last step that was paid
        ("steps", np.int32),
        ("daylight", np.float64),
        ("words", np.uint32, (N_WORDS,)),  # of the generator, NumPy's RandomState
        ("next_word", np.int32),
    ]
)

World = Any  # a record of WORLD; compiled code has its fields as attributes


def begin_world(worlds: np.ndarray, row: int, seed: int) -> int:
    """Empty a world but for the player in its middle; return the seed of its landscape.

    Args:
        worlds: [N] of WORLD.
        row: Which of them.
        seed: Of all that is random in it.
    """
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
    """Make the next block of a Mersenne Twister's words."""
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
    """Return whether a cell is on the map."""
    return 0 <= x < SIDE and 0 <= y < SIDE


@compiled
def material_at(world: World, x: int, y: int) -> int:
    """Return what a cell is, OUTSIDE where there is none."""
    return int(world.materials[x, y]) if inside(x, y) else OUTSIDE


@compiled
def thing_at(world: World, x: int, y: int) -> int:
    """Return the number of what stands on a cell, -1 for nothing."""
    return int(world.standing[x, y]) - 1 if inside(x, y) else -1


@compiled
def kind_at(world: World, x: int, y: int) -> int:
    """Return the kind of what stands on a cell, 0 for nothing."""
    thing = thing_at(world, x, y)
    return int(world.kind[thing]) if thing >= 0 else 0


@compiled
def target(world: World) -> tuple[int, int]:
    """Return the cell that the player faces."""
    return world.x[0] + world.facing_x[0], world.y[0] + world.facing_y[0]


@compiled
def distance(world: World, x: int, y: int) -> int:
    """Return the steps from the player to a cell."""
    return abs(world.x[0] - x) + abs(world.y[0] - y)


@compiled
def is_walkable(material: int) -> bool:
    """Return whether creatures can go there."""
    return material in (GRASS, PATH, SAND)


@compiled
def chunk_of(x: int, y: int) -> int:
    """Return the number of a cell's chunk."""
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
def remove(world: World, thing: int) -> None:
    """Take something off the map; it keeps its number to the end of the step."""
    if not world.gone[thing]:
        world.standing[world.x[thing], world.y[thing]] = 0
        world.gone[thing] = True


@compiled
def move(world: World, thing: int, x: int, y: int) -> None:
    """Bring something to a free cell; what is gone stays so."""
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
    """Note that something has come into its chunk, behind what is there."""
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
            _renumber(world, thing, kept)
        kept += 1
    world.n_things = kept


@compiled
def _renumber(world: World, old: int, new: int) -> None:
    """Give a thing another number."""
    world.kind[new], world.x[new], world.y[new] = world.kind[old], world.x[old], world.y[old]
    world.facing_x[new], world.facing_y[new] = world.facing_x[old], world.facing_y[old]
    world.health[new], world.timer[new] = world.health[old], world.timer[old]
    world.gone[new], world.arrival[new] = False, world.arrival[old]
    world.standing[world.x[new], world.y[new]] = new + 1
