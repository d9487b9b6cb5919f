"""Random partial views of MiniGrid in symbols: rooms made up here, and play in its own tasks."""

from collections.abc import Iterator, Sequence

import gymnasium
import numpy as np

from envs import minigrid
from envs.minigrid import AGENT_CELL, VIEW

# MiniGrid's symbols, by number.
KINDS = (
    *("unseen", "empty", "wall", "floor", "door"),
    *("key", "ball", "box", "goal", "lava", "agent"),
)
COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
STATES = ("open", "closed", "locked")
EMPTY, WALL, DOOR = (KINDS.index(kind) for kind in ("empty", "wall", "door"))
THINGS = [KINDS.index(kind) for kind in ("key", "ball", "box", "goal", "lava")]
CARRIED = [KINDS.index(kind) for kind in ("key", "ball", "box")]
COLOUR_OF = {WALL: "grey", KINDS.index("goal"): "green", KINDS.index("lava"): "red"}

EPISODE = 24  # steps of play before the next layout
# Left, right, forward, pick up, drop, toggle, done.
ACTIONS = (0.15, 0.15, 0.4, 0.1, 0.05, 0.15, 0.0)


def random_rooms(n: int, generator: np.random.Generator) -> np.ndarray:
    """Return views of n random rooms with doors, things and clutter, seen as the agent sees them.

    Returns:
        (kind, colour, state) of every cell, column before row.  [n, 7, 7, 3] uint8
    """
    kinds = _random_kinds(n, generator)
    carried = np.where(generator.random(n) < 0.15, generator.choice(CARRIED, n), EMPTY)
    colours = generator.integers(len(COLOURS), size=kinds.shape)
    states = generator.integers(len(STATES), size=kinds.shape) * (kinds == DOOR)
    opaque = (kinds == WALL) | ((kinds == DOOR) & (states != STATES.index("open")))
    seen = visible_cells(opaque)
    kinds[:, *AGENT_CELL] = carried
    colours[kinds == EMPTY] = 0
    for kind, colour in COLOUR_OF.items():
        colours[kinds == kind] = COLOURS.index(colour)
    views = np.stack([kinds, colours, states], axis=-1).astype(np.uint8)
    return views * seen[..., None]


def visible_cells(opaque: np.ndarray) -> np.ndarray:
    """Return which cells MiniGrid lets the agent see: light spreads sideways and ahead.

    Args:
        opaque: Cells that hide what is behind them, column before row.  [n, 7, 7] bool

    Returns:
        [n, 7, 7] bool
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
    missing = set(tasks) - set(minigrid.names())
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
    """Yield the views of a new layout, played for a while."""
    observation, _ = env.reset()
    yield observation["image"]
    for action in generator.choice(len(ACTIONS), EPISODE, p=ACTIONS):
        if not env.action_space.contains(action):
            continue  # some tasks know the movements only
        observation, _, terminated, truncated, _ = env.step(action)
        yield observation["image"]
        if terminated or truncated:
            return
