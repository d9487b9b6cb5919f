"""RandomMaze-v0: find the goal in a new maze every episode, seeing only 9x9 cells around."""

from functools import cache

import numpy as np

from envs.vector import NumpyVectorEnv
from utils.environments import Suite
from utils.settings import Config

NAME = "RandomMaze-v0"
MIN_SIDE, MAX_SIDE = 5, 25
COMPLEXITY = DENSITY = 0.75
MAX_STEPS = 100
VIEW = 9
PADDING = VIEW // 2
CANVAS = MAX_SIDE + 2 * PADDING

FREE, WALL, GOAL, AGENT = range(4)
COLOURS = np.array(
    [(224, 224, 224), (160, 160, 160), (51, 255, 51), (51, 153, 255)], dtype=np.uint8
)
# North, south, east, west as (row, column).
MOVES = np.array([(-1, 0), (1, 0), (0, 1), (0, -1)])
ACTION_NAMES = ("north", "south", "east", "west")

# Any of 2, 3 or 4 neighbours is uniform among this many numbers, taken modulo.
NEIGHBOUR_DRAWS = 12


class RandomMazeVectorEnv(NumpyVectorEnv):
    """Mazes with a side of 5 to 25 cells; +1 and the end at the goal, -1 a bump, -0.01 else.

    The agent begins on a random free cell, the goal is the free cell in the lower right corner,
    and every goal can be reached. Actions: north, south, east, west. After 100 steps the episode
    is truncated. The observation is one colour per cell, the agent in the centre; beyond the
    maze there is only wall.  [3, 9, 9]
    """

    def __init__(self, n_envs: int, seed: int) -> None:
        super().__init__(n_envs, seed, image_shape=(3, VIEW, VIEW), n_actions=len(MOVES))
        self._cells = np.full((n_envs, CANVAS, CANVAS), WALL, dtype=np.uint8)
        self._positions = np.full((n_envs, 2), PADDING)
        self._steps = np.zeros(n_envs, dtype=np.int64)
        self.render_mode = "rgb_array"

    def render(self) -> tuple[np.ndarray, ...]:
        """Return every maze whole, a pixel a cell, in the corner of the largest.  [S, S, 3] each"""
        cells = self._cells.copy()
        cells[self._rows, self._positions[:, 0], self._positions[:, 1]] = AGENT
        inside = slice(PADDING, PADDING + MAX_SIDE)
        return tuple(COLOURS[cells[:, inside, inside]])

    def begin(self, row: int, generator: np.random.Generator) -> None:
        """Draw a maze and a free cell to begin on; the goal is not one, as it may be originally."""
        maze = random_maze(int(generator.integers(MIN_SIDE, MAX_SIDE + 1)), generator)
        free = np.argwhere(maze == FREE)
        side = len(maze)
        # A smaller maze than the last one must not show its remains.
        self._cells[row] = WALL
        self._cells[row, PADDING : PADDING + side, PADDING : PADDING + side] = maze
        self._positions[row] = free[generator.integers(len(free))] + PADDING
        self._steps[row] = 0

    def advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        targets = self._positions + MOVES[actions]
        cells = self._cells[self._rows, targets[:, 0], targets[:, 1]]
        self._positions = np.where((cells == WALL)[:, None], self._positions, targets)
        self._steps += 1
        terminated = cells == GOAL
        # A goal in the last step is a true end, not a cut.
        truncated = (self._steps >= MAX_STEPS) & ~terminated
        # By kind of the cell that was entered: free, wall, goal.
        rewards = np.array([-0.01, -1.0, 1.0], dtype=np.float32)[cells]
        return rewards, terminated, truncated

    def observe(self, rows: np.ndarray) -> np.ndarray:
        window = np.arange(-PADDING, PADDING + 1)
        down = self._positions[rows, 0, None, None] + window[:, None]  # [R, 9, 1]
        across = self._positions[rows, 1, None, None] + window  # [R, 1, 9]
        cells = self._cells[rows[:, None, None], down, across]  # [R, 9, 9]
        cells[:, PADDING, PADDING] = AGENT
        return COLOURS.T[:, cells].swapaxes(0, 1).copy()  # [3, R, 9, 9] -> [R, 3, 9, 9]


class RandomMaze(Suite):
    action_names = ACTION_NAMES

    def make(self, config: Config, seed: int) -> RandomMazeVectorEnv:
        return RandomMazeVectorEnv(config.n_envs, seed)


def random_maze(side: int, generator: np.random.Generator) -> np.ndarray:
    """Return a maze by the classic generator with complexity and density.

    Posts stand on every second cell in both directions, the border's included. DENSITY * half^2
    times a post is drawn; there begins a wall that tries COMPLEXITY * 5 * (height + width) times
    to go on to a random neighbouring post, and does where no wall stands yet. Walls are
    therefore trees that never enclose anything: all free cells stay connected. GOAL is in the lower
    right corner.  [S, S], S = side // 2 * 2 + 1
    """
    half = side // 2
    size = 2 * half + 1
    maze = np.zeros((size, size), dtype=np.uint8)
    maze[[0, -1]] = maze[:, [0, -1]] = WALL
    posts = maze[::2, ::2].ravel().tolist()  # [(half + 1)^2]
    for post in generator.integers(len(posts), size=int(DENSITY * half * half)).tolist():
        posts[post] = WALL
        for begin, end in _wall(post, posts, half, generator):
            # Twice a post's row is its cell's row: the cell between two posts is their sum.
            maze[tuple(np.add(divmod(begin, half + 1), divmod(end, half + 1)))] = WALL
    maze[::2, ::2] = np.reshape(posts, (half + 1, half + 1))
    maze[-2, -2] = GOAL
    return maze


def _wall(
    post: int, posts: list[int], half: int, generator: np.random.Generator
) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    ways, tries = neighbours(half + 1), int(COMPLEXITY * 5 * 2 * (2 * half + 1))
    if all(posts[other] for other in ways[post]):
        return pairs
    for draw in generator.integers(NEIGHBOUR_DRAWS, size=tries).tolist():
        others = ways[post]
        other = others[draw % len(others)]
        if not posts[other]:
            posts[other] = WALL
            pairs.append((post, other))
            post = other
        elif all(posts[other] for other in others):
            break
    return pairs


@cache
def neighbours(side: int) -> tuple[tuple[int, ...], ...]:
    """Return for every post of a side x side grid, row by row, the posts next to it."""
    grid = np.pad(np.arange(side * side).reshape(side, side), 1, constant_values=-1)
    around = np.stack([grid[:-2, 1:-1], grid[2:, 1:-1], grid[1:-1, :-2], grid[1:-1, 2:]])
    return tuple(
        tuple(int(post) for post in posts if post >= 0) for posts in around.reshape(4, -1).T
    )
