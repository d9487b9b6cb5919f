"""What Visual Match and Key-to-Door share: three phases on small boards, the middle one of apples.

Reimplemented from the behaviour of the grid worlds of Hung et al. (2019, arXiv:1810.06721) as Ni
et al. (2023, arXiv:2307.03864) use them. Boards have 7 rows and 11 columns; an agent sees the 5x5
cells around it, one pixel each. A phase has a fixed number of steps; the step that ends it is
carried out and paid, and shows the next phase already.

Everything that can lie on a cell is a kind with a colour, which may block the way, pay, and become
another kind once an agent is there: a step is a few look-ups in tables, for all N together.
"""

from abc import abstractmethod
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from envs.numpy_vector import NumpyVectorEnv

N_ROWS, N_COLUMNS, VIEW = 7, 11, 5
PADDING = VIEW // 2
WIDTH = N_COLUMNS + 2 * PADDING
N_CELLS = (N_ROWS + 2 * PADDING) * WIDTH  # of a board with what lies around it, row by row
CELL_NUMBERS = np.arange(N_CELLS).reshape(-1, WIDTH)[PADDING:-PADDING, PADDING:-PADDING]
FIRST_STEPS = 15  # of the first phase
REGROWTH = 21  # steps until an apple is back
N_APPLES = 10
DOOR_REWARD = 5.0

MOVE_NAMES = ("north", "south", "west", "east")
MOVES = np.array([-WIDTH, WIDTH, -1, 1])
# What a view shows, relative to its centre.  [25]
WINDOW = np.add.outer(
    np.arange(-PADDING, PADDING + 1) * WIDTH, np.arange(-PADDING, PADDING + 1)
).ravel()
CENTRE = len(WINDOW) // 2


class Cell(IntEnum):
    """What can lie on a cell. Signs and doors of Visual Match stand in the order of colours."""

    FREE, OUTSIDE, WALL, PLAYER, APPLE, KEY, INDICATOR = range(7)
    LOCKED, UNLOCKED, OPENED = range(7, 10)
    RED_SIGN, GREEN_SIGN, BLUE_SIGN = range(10, 13)
    WRONG_RED, WRONG_GREEN, WRONG_BLUE = range(13, 16)
    RIGHT_RED, RIGHT_GREEN, RIGHT_BLUE = range(16, 19)


class Kind(NamedTuple):
    """What a kind of cell is like.

    Attributes:
        colour: Red, green, blue.
        blocks: Whether no agent can enter.
        reward: What an agent there is paid.
        becomes: What lies there after an agent has been; None for the same.
    """

    colour: tuple[int, int, int]
    blocks: bool = False
    reward: float = 0.0
    becomes: Cell | None = None


BACKGROUND, DOOR = (204, 204, 204), (134, 206, 235)
RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
KINDS = {
    Cell.FREE: Kind(BACKGROUND),
    Cell.OUTSIDE: Kind(BACKGROUND, blocks=True),
    Cell.WALL: Kind((25, 25, 25), blocks=True),
    Cell.PLAYER: Kind((228, 148, 109)),
    Cell.APPLE: Kind((140, 178, 0), reward=1.0, becomes=Cell.FREE),
    Cell.KEY: Kind((159, 81, 44), becomes=Cell.FREE),
    Cell.INDICATOR: Kind((255, 255, 255), blocks=True),
    Cell.LOCKED: Kind(DOOR, blocks=True),
    Cell.UNLOCKED: Kind(DOOR, reward=DOOR_REWARD, becomes=Cell.OPENED),
    Cell.OPENED: Kind(DOOR),
    Cell.RED_SIGN: Kind(RED, blocks=True),
    Cell.GREEN_SIGN: Kind(GREEN, blocks=True),
    Cell.BLUE_SIGN: Kind(BLUE, blocks=True),
    Cell.WRONG_RED: Kind(RED, becomes=Cell.FREE),
    Cell.WRONG_GREEN: Kind(GREEN, becomes=Cell.FREE),
    Cell.WRONG_BLUE: Kind(BLUE, becomes=Cell.FREE),
    Cell.RIGHT_RED: Kind(RED, reward=DOOR_REWARD, becomes=Cell.FREE),
    Cell.RIGHT_GREEN: Kind(GREEN, reward=DOOR_REWARD, becomes=Cell.FREE),
    Cell.RIGHT_BLUE: Kind(BLUE, reward=DOOR_REWARD, becomes=Cell.FREE),
}
COLOURS = np.array([KINDS[cell].colour for cell in Cell], dtype=np.uint8)  # [K, 3]
COLOUR_PLANES = np.ascontiguousarray(COLOURS.T)  # [3, K]
BLOCKS = np.array([KINDS[cell].blocks for cell in Cell])
REWARDS = np.array([KINDS[cell].reward for cell in Cell], dtype=np.float32)
BECOMES = np.array(
    [cell if KINDS[cell].becomes is None else KINDS[cell].becomes for cell in Cell], dtype=np.uint8
)
# What is seen where the agent is: the agent, but an open door is in front of it.
IN_CENTRE = np.array(
    [cell if cell == Cell.OPENED else Cell.PLAYER for cell in Cell], dtype=np.uint8
)

N_PHASES = 3
APPLES_PHASE, LAST_PHASE = 1, 2
APPLE_CELLS = np.array(
    [(row, column) for row in (1, 3) for column in (1, 3, 5, 7, 9)]
    + [(row, column) for row in (2, 4) for column in (2, 4, 6, 8)]
    + [(5, column) for column in (1, 3, 7, 9)]
)
APPLE_START = (5, 5)


def cell_number(place: np.ndarray | tuple[int, int]) -> np.ndarray:
    """Return the number of a cell (row, column), or of several: [2] -> [] or [K, 2] -> [K]."""
    return CELL_NUMBERS[tuple(np.asarray(place).T)]


def board(*rows: str) -> np.ndarray:
    """Return a board drawn with # for a wall, d for a locked door, . for nothing.  [N_CELLS]"""
    kinds = {".": Cell.FREE, "#": Cell.WALL, "d": Cell.LOCKED}
    inside = [[kinds[sign] for sign in row] for row in rows]
    return np.pad(np.array(inside, np.uint8), PADDING, constant_values=Cell.OUTSIDE).ravel()


ORCHARD = board("#" * 11, *["#.........#"] * 5, "#" * 11)


class ThreePhases(NumpyVectorEnv):
    """N grid worlds of three phases; the second has ten apples, +1 each.

    Actions: north, south, west, east; a move into what blocks the way does nothing. An apple is
    back 21 steps after it was taken. An episode succeeds if it is paid in its last phase. The
    observation is one colour per cell, the agent in the centre.  [3, 5, 5]

    Args:
        n_envs: Number of environments.
        seed: Of the run.
        length: L, the steps of the second phase.
        last_steps: Those of the last.
        last_start: Where the agent is when it begins, (row, column).
    """

    has_success = True

    def __init__(
        self, n_envs: int, seed: int, length: int, last_steps: int, last_start: tuple[int, int]
    ) -> None:
        super().__init__(n_envs, seed, image_shape=(3, VIEW, VIEW), n_actions=len(MOVES))
        n_steps = FIRST_STEPS, length, last_steps
        self.episode_length = sum(n_steps)
        # Which phase each step of an episode belongs to, its end being the last phase's.  [T + 1]
        self._phase_of = np.append(np.repeat(np.arange(N_PHASES), n_steps), LAST_PHASE)
        self._starts = np.array([0, cell_number(APPLE_START), cell_number(last_start)])
        self._boards = np.zeros((n_envs, N_PHASES, N_CELLS), dtype=np.uint8)
        self._flat_boards = self._boards.reshape(-1)  # a view: one index is faster than three
        self._offsets = self._rows * N_PHASES  # of an environment's boards
        self._phases = np.zeros(n_envs, dtype=np.int64)
        self._cells = np.full(n_envs, cell_number(APPLE_START))  # where the agents are
        self._steps = np.zeros(n_envs, dtype=np.int64)
        # At which step an apple is back on each cell; 0 is never.
        self._regrowths = np.zeros((n_envs, N_CELLS), dtype=np.int64)
        self._succeeded = np.zeros(n_envs, dtype=bool)
        self.render_mode = "rgb_array"

    @property
    def positions(self) -> np.ndarray:
        """Where each agent is on its board, (row, column).  [N, 2]"""
        return np.stack(np.divmod(self._cells, WIDTH), 1) - PADDING

    @abstractmethod
    def react(self, entered: np.ndarray) -> None:
        """Change boards, where it matters what kind of cell an agent is on.  [N]"""

    def begin_on(
        self, row: int, boards: np.ndarray, apple_cells: np.ndarray, start: np.ndarray
    ) -> None:
        """Begin an episode in environment `row`.

        Args:
            row: Its number.
            boards: Of its phases, without apples.  [3, N_CELLS]
            apple_cells: Where those lie, (row, column) each.  [10, 2]
            start: The cell where the agent begins, by its number.
        """
        self._boards[row] = boards
        self._boards[row, APPLES_PHASE, cell_number(apple_cells)] = Cell.APPLE
        self._cells[row] = start
        self._phases[row] = self._steps[row] = self._regrowths[row] = self._succeeded[row] = 0

    def advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Move every agent, pay for what it is on, and turn to the next phase where one is due."""
        self._steps += 1
        begins = self._board_begins(self._rows)
        targets = self._cells + MOVES[actions]
        is_blocked = BLOCKS[self._flat_boards[begins + targets]]
        self._cells = np.where(is_blocked, self._cells, targets)

        places = begins + self._cells
        entered = self._flat_boards[places]
        self._flat_boards[places] = BECOMES[entered]
        rewards = REWARDS[entered]
        self._succeeded |= rewards == DOOR_REWARD
        self._grow_apples(entered)
        self.react(entered)
        self._turn_phases()
        terminated = self._steps >= self.episode_length
        return rewards, terminated, np.zeros_like(terminated)

    def succeeded(self) -> np.ndarray:
        """Return where the last phase has paid.  [N]"""
        return self._succeeded

    def observe(self, rows: np.ndarray) -> np.ndarray:
        """Return the colours of the 5x5 cells around each agent.  [R, 3, 5, 5]"""
        centres = self._board_begins(rows) + self._cells[rows]
        kinds = self._flat_boards[centres[:, None] + WINDOW]  # [R, 25]
        kinds[:, CENTRE] = IN_CENTRE[kinds[:, CENTRE]]
        images = COLOUR_PLANES.take(kinds, axis=1).swapaxes(0, 1)  # [3, R, 25] -> [R, 3, 25]
        return images.reshape(len(rows), 3, VIEW, VIEW)

    def render(self) -> tuple[np.ndarray, ...]:
        """Return the board of the present phase of each, a pixel a cell.  [7, 11, 3] each"""
        kinds = self._boards[self._rows, self._phases]  # a copy
        kinds[self._rows, self._cells] = IN_CENTRE[kinds[self._rows, self._cells]]
        inside = slice(PADDING, -PADDING)
        return tuple(COLOURS[kinds.reshape(self.num_envs, -1, WIDTH)[:, inside, inside]])

    def _board_begins(self, rows: np.ndarray) -> np.ndarray:
        """Return where in all boards the present one of each environment begins.  [R]"""
        return (self._offsets[rows] + self._phases[rows]) * N_CELLS

    def _grow_apples(self, entered: np.ndarray) -> None:
        """Note which apples were taken, and put those back whose time has come."""
        is_taken = entered == Cell.APPLE
        if np.count_nonzero(is_taken):
            rows = np.flatnonzero(is_taken)
            self._regrowths[rows, self._cells[rows]] = self._steps[rows] + REGROWTH
        is_back = self._regrowths == self._steps[:, None]
        if np.count_nonzero(is_back):
            self._boards[:, APPLES_PHASE][is_back] = Cell.APPLE

    def _turn_phases(self) -> None:
        """Put the agents of phases that are over onto their next board."""
        phases = self._phase_of.take(self._steps, mode="clip")
        is_over = phases != self._phases
        if np.count_nonzero(is_over):
            self._cells = np.where(is_over, self._starts[phases], self._cells)
            self._phases = phases


def draw_apples(generator: np.random.Generator) -> np.ndarray:
    """Return ten of the cells where apples can lie, (row, column) each.  [10, 2]"""
    return APPLE_CELLS[generator.permutation(len(APPLE_CELLS))[:N_APPLES]]
