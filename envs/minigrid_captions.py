"""Pairs of images and captions on MiniGrid, written from the symbolic view.

Half of the views are rooms made up at random, half are random play in many tasks. Whole families
of tasks are never played here, to try an encoder that has learnt from the pairs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import gymnasium
import numpy as np

from envs.minigrid import AGENT_CELL, VIEW, MiniGrid, draw

TASKS = (
    "MiniGrid-BlockedUnlockPickup-v0",
    "MiniGrid-DistShift1-v0",
    "MiniGrid-DoorKey-5x5-v0",
    "MiniGrid-DoorKey-8x8-v0",
    "MiniGrid-Dynamic-Obstacles-6x6-v0",
    "MiniGrid-Empty-Random-6x6-v0",
    "MiniGrid-Fetch-8x8-N3-v0",
    "MiniGrid-FourRooms-v0",
    "MiniGrid-GoToDoor-8x8-v0",
    "MiniGrid-LavaCrossingS9N2-v0",
    "MiniGrid-LockedRoom-v0",
    "MiniGrid-MultiRoom-N6-v0",
    "MiniGrid-ObstructedMaze-1Dlhb-v0",
    "MiniGrid-Playground-v0",
    "MiniGrid-PutNear-8x8-N3-v0",
    "MiniGrid-SimpleCrossingS9N2-v0",
    "MiniGrid-Unlock-v0",
    "MiniGrid-UnlockPickup-v0",
)

# MiniGrid's symbols, by number.
KINDS = ("unseen", "empty", "wall", "floor", "door", "key", "ball", "box", "goal", "lava", "agent")
COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
STATES = ("open", "closed", "locked")
EMPTY, WALL, DOOR = (KINDS.index(kind) for kind in ("empty", "wall", "door"))
THINGS = [KINDS.index(kind) for kind in ("key", "ball", "box", "goal", "lava")]
CARRIED = [KINDS.index(kind) for kind in ("key", "ball", "box")]
COLOUR_OF = {WALL: "grey", KINDS.index("goal"): "green", KINDS.index("lava"): "red"}

EPISODE = 24  # steps of play before the next layout
# Left, right, forward, pick up, drop, toggle, done.
ACTIONS = (0.15, 0.15, 0.4, 0.1, 0.05, 0.15, 0.0)

NAMED = ("door", "key", "ball", "box", "goal", "lava")
MOST_NAMED = 2
KEPT_WITHOUT_OBJECTS = 0.2  # share of the views without objects in play that become pairs

_IS_NAMED = np.isin(KINDS, NAMED)


def caption(view: np.ndarray) -> str:
    """Describe a view [7, 7, 3] by the nearest one or two different things in it.

    Such as "a red key and a closed blue door", "lava", "a wall" or "an empty room". A view has
    (kind, colour, state) of every cell, column before row.
    """
    places = object_cells(view)
    distances = np.abs(places - AGENT_CELL).sum(1)
    # Stable: equally near things keep the order of columns, and captions stay the same.
    nearest = places[np.argsort(distances, kind="stable")]
    phrases = list(dict.fromkeys(_phrase(view, tuple(place)) for place in nearest))
    if phrases:
        return " and ".join(phrases[:MOST_NAMED])
    column, row = AGENT_CELL
    return "a wall" if view[column, row - 1, 0] == WALL else "an empty room"


def object_cells(view: np.ndarray) -> np.ndarray:
    """Return (column, row) of every object seen in a view [7, 7, 3], carried ones too.  [n, 2]"""
    return np.argwhere(_IS_NAMED[view[..., 0]])


def mixed_views(seed: int, tasks: Sequence[str] = TASKS) -> Iterator[np.ndarray]:
    """Yield random views [7, 7, 3] without end: by turns a random room and a view of play."""
    generator = np.random.default_rng(seed)
    played = (
        view
        for view in played_views(tasks, seed + 1)
        if len(object_cells(view)) or generator.random() < KEPT_WITHOUT_OBJECTS
    )
    while True:
        for room, view in zip(random_rooms(256, generator), played, strict=False):
            yield room
            yield view


@dataclass(frozen=True)
class CaptionBatches:
    """Random images of MiniGrid with their captions, in batches; the same each time around."""

    seed: int
    n_batches: int = 750
    batch_size: int = 64

    def __len__(self) -> int:
        return self.n_batches

    def __iter__(self) -> Iterator[tuple[np.ndarray, list[str]]]:
        """Yield images [B, 3, 56, 56] uint8 and B captions."""
        views = mixed_views(self.seed)
        for _ in range(self.n_batches):
            batch = np.stack(list(islice(views, self.batch_size)))
            yield draw(batch), [caption(view) for view in batch]


def _phrase(view: np.ndarray, place: tuple[int, ...]) -> str:
    kind, colour, state = (int(number) for number in view[place])
    noun = KINDS[kind]
    if noun == "lava":
        return noun  # all of it looks the same, and there is no "a lava"
    words = [COLOURS[colour], noun]
    if kind == DOOR:
        words.insert(0, STATES[state])
    if place == AGENT_CELL:
        words.insert(0, "carried")
    article = "an" if words[0][0] in "aeiou" else "a"
    return " ".join([article, *words])


def random_rooms(n: int, generator: np.random.Generator) -> np.ndarray:
    """Return views of n random rooms with doors, things and clutter, seen as the agent sees them.

    They have (kind, colour, state) of every cell, column before row.  [n, 7, 7, 3] uint8
    """
    kinds = _random_kinds(n, generator)
    carried = np.where(generator.random(n) < 0.15, generator.choice(CARRIED, n), EMPTY)
    colours = generator.integers(len(COLOURS), size=kinds.shape)
    states = generator.integers(len(STATES), size=kinds.shape) * (kinds == DOOR)
    opaque = (kinds == WALL) | ((kinds == DOOR) & (states != STATES.index("open")))
    # By the walls of the room, before the agent's cell is filled.
    seen = visible_cells(opaque)
    kinds[:, *AGENT_CELL] = carried
    colours[kinds == EMPTY] = 0
    for kind, colour in COLOUR_OF.items():
        colours[kinds == kind] = COLOURS.index(colour)
    views = np.stack([kinds, colours, states], axis=-1).astype(np.uint8)
    return views * seen[..., None]


def visible_cells(opaque: np.ndarray) -> np.ndarray:
    """Return the cells that MiniGrid lets the agent see: light spreads sideways and ahead.

    Args and result are [n, 7, 7] bool, column before row; `opaque` cells hide those behind them.
    """
    seen = np.zeros_like(opaque)
    seen[:, *AGENT_CELL] = True
    rightwards = [(column, column + 1) for column in range(VIEW - 1)]
    leftwards = [(column, column - 1) for column in range(VIEW - 1, 0, -1)]
    for row in reversed(range(VIEW)):
        for column, beside in rightwards + leftwards:
            lit = seen[:, column, row] & ~opaque[:, column, row]
            seen[:, beside, row] |= lit
            ahead = max(row - 1, 0)
            seen[:, column, ahead] |= lit
            seen[:, beside, ahead] |= lit
    return seen


def played_views(tasks: Sequence[str], seed: int) -> Iterator[np.ndarray]:
    """Play the tasks at random and yield each view [7, 7, 3] uint8."""
    generator = np.random.default_rng(seed)
    missing = set(tasks) - set(MiniGrid().names())
    assert not missing, f"not among MiniGrid's tasks: {missing}"
    envs = [gymnasium.make(task, disable_env_checker=True) for task in tasks]
    for env in envs:
        env.reset(seed=int(generator.integers(2**31)))
    while True:
        yield from _episode(envs[generator.integers(len(envs))], generator)


def _random_kinds(n: int, generator: np.random.Generator) -> np.ndarray:
    """Return the kind of every cell, the agent's own empty.  [n, 7, 7]"""
    middle, front = AGENT_CELL
    columns, rows = np.arange(VIEW)[:, None], np.arange(VIEW)
    left, right, ahead = (
        generator.integers(low, high, (n, 1, 1))
        for low, high in ((middle - VIEW, middle), (middle + 1, middle + VIEW), (-VIEW, front))
    )
    clutter = generator.choice([0, 0, 0.15], (n, 1, 1))
    walls = (columns == left) | (columns == right) | (rows == ahead)
    walls |= generator.random((n, VIEW, VIEW)) < clutter
    doors = generator.random((n, VIEW, VIEW)) < generator.choice([0, 0.1, 0.2], (n, 1, 1))
    things = generator.random((n, VIEW, VIEW)) < generator.uniform(0, 0.1, (n, 1, 1))
    kinds = np.where(things, generator.choice(THINGS, (n, VIEW, VIEW)), EMPTY)
    kinds = np.where(walls, np.where(doors, DOOR, WALL), kinds)
    kinds[:, middle, front] = EMPTY
    return kinds


def _episode(env: gymnasium.Env, generator: np.random.Generator) -> Iterator[np.ndarray]:
    observation, _ = env.reset()
    yield observation["image"]
    for action in generator.choice(len(ACTIONS), EPISODE, p=ACTIONS):
        if not env.action_space.contains(action):
            continue  # some tasks know the movements only
        observation, _, terminated, truncated, _ = env.step(action)
        yield observation["image"]
        if terminated or truncated:
            return
