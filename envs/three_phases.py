"""VisualMatch-v0, KeyToDoor-v0: three phases on small boards, the middle one a field of apples.

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

from envs.settings import FULL, PER_ENVIRONMENT, PER_EPISODE, LengthSettings, VisualMatchSettings
from envs.vector import NumpyVectorEnv
from utils.environments import NOT_SHOWN, Suite
from utils.seeding import episode_seed

N_ROWS, N_COLUMNS, VIEW = 7, 11, 5
PADDING = VIEW // 2
WIDTH = N_COLUMNS + 2 * PADDING
N_CELLS = (N_ROWS + 2 * PADDING) * WIDTH  # of a board and its surroundings, row by row
CELL_NUMBERS = np.arange(N_CELLS).reshape(-1, WIDTH)[PADDING:-PADDING, PADDING:-PADDING]
FIRST_STEPS = 15  # of the first phase
REGROWTH = 21  # steps until an apple is back
N_APPLES = 10
DOOR_REWARD = 5.0

ACTION_NAMES = ("north", "south", "west", "east")
MOVES = np.array([-WIDTH, WIDTH, -1, 1])
# The cells of a view, relative to its centre.  [25]
WINDOW = np.add.outer(
    np.arange(-PADDING, PADDING + 1) * WIDTH, np.arange(-PADDING, PADDING + 1)
).ravel()
CENTRE = len(WINDOW) // 2


class GridCell(IntEnum):
    """The kinds of cells. Signs and doors of Visual Match stand in the order of colours."""

    FREE, OUTSIDE, WALL, PLAYER, APPLE, KEY, INDICATOR = range(7)
    LOCKED, UNLOCKED, OPENED = range(7, 10)
    RED_SIGN, GREEN_SIGN, BLUE_SIGN = range(10, 13)
    WRONG_RED, WRONG_GREEN, WRONG_BLUE = range(13, 16)
    RIGHT_RED, RIGHT_GREEN, RIGHT_BLUE = range(16, 19)


class Kind(NamedTuple):
    """A kind of cell; it `becomes` another, or stays (None), once an agent was there."""

    colour: tuple[int, int, int]
    blocks: bool = False
    reward: float = 0.0
    becomes: GridCell | None = None


BACKGROUND, DOOR = (204, 204, 204), (134, 206, 235)
KINDS = {
    GridCell.FREE: Kind(BACKGROUND),
    GridCell.OUTSIDE: Kind(BACKGROUND, blocks=True),
    GridCell.WALL: Kind((25, 25, 25), blocks=True),
    GridCell.PLAYER: Kind((228, 148, 109)),
    GridCell.APPLE: Kind((140, 178, 0), reward=1.0, becomes=GridCell.FREE),
    GridCell.KEY: Kind((159, 81, 44), becomes=GridCell.FREE),
    GridCell.INDICATOR: Kind((255, 255, 255), blocks=True),
    GridCell.LOCKED: Kind(DOOR, blocks=True),
    GridCell.UNLOCKED: Kind(DOOR, reward=DOOR_REWARD, becomes=GridCell.OPENED),
    GridCell.OPENED: Kind(DOOR),
}
for number, colour in enumerate(((255, 0, 0), (0, 255, 0), (0, 0, 255))):
    KINDS[GridCell(GridCell.RED_SIGN + number)] = Kind(colour, blocks=True)
    KINDS[GridCell(GridCell.WRONG_RED + number)] = Kind(colour, becomes=GridCell.FREE)
    KINDS[GridCell(GridCell.RIGHT_RED + number)] = Kind(
        colour, reward=DOOR_REWARD, becomes=GridCell.FREE
    )
COLOURS = np.array([KINDS[cell].colour for cell in GridCell], dtype=np.uint8)  # [K, 3]
COLOUR_PLANES = np.ascontiguousarray(COLOURS.T)  # [3, K]
BLOCKS = np.array([KINDS[cell].blocks for cell in GridCell])
REWARDS = np.array([KINDS[cell].reward for cell in GridCell], dtype=np.float32)
BECOMES = np.array(
    [cell if KINDS[cell].becomes is None else KINDS[cell].becomes for cell in GridCell],
    dtype=np.uint8,
)
# The centre of a view shows the agent, but an open door is in front of it.
IN_CENTRE = np.full(len(GridCell), GridCell.PLAYER, np.uint8)
IN_CENTRE[GridCell.OPENED] = GridCell.OPENED

N_PHASES = 3
FIRST_PHASE, APPLES_PHASE, LAST_PHASE = range(3)
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
    kinds = {".": GridCell.FREE, "#": GridCell.WALL, "d": GridCell.LOCKED}
    inside = [[kinds[sign] for sign in row] for row in rows]
    return np.pad(np.array(inside, np.uint8), PADDING, constant_values=GridCell.OUTSIDE).ravel()


ORCHARD = board("#" * 11, *["#.........#"] * 5, "#" * 11)


class ThreePhases(NumpyVectorEnv):
    """N grid worlds of three phases; the second has ten apples, +1 each.

    Actions: north, south, west, east; a move into an obstacle does nothing. An apple is
    back 21 steps after it was taken. An episode succeeds if it is paid in its last phase. The
    observation is one colour per cell, the agent in the centre.  [3, 5, 5] In the twin the agent
    itself shows what is to be remembered, in the colour of its sign or of its key.
    The second phase has `length` steps, L; the last begins with the agent at `last_start`.
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
    def carried(self, rows: np.ndarray) -> np.ndarray:
        """Return the kind of cell that each agent is to remember, 0 for none.  [R]"""

    @abstractmethod
    def react(self, entered: np.ndarray) -> None:
        """Change boards by the kinds of cells that agents have entered.  [N]"""

    def begin_on(
        self, row: int, boards: np.ndarray, apple_cells: np.ndarray, start: np.ndarray
    ) -> None:
        """Begin an episode in environment `row`, with the agent on the cell number `start`.

        `boards` [3, N_CELLS] come without apples; `apple_cells` [10, 2] are (row, column) each.
        """
        self._boards[row] = boards
        self._boards[row, APPLES_PHASE, cell_number(apple_cells)] = GridCell.APPLE
        self._cells[row] = start
        self._phases[row] = self._steps[row] = self._regrowths[row] = self._succeeded[row] = 0

    def advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self._steps += 1
        begins = self._board_begins(self._rows)
        # Boards have a border of blocked cells, so that no move leaves the array.
        targets = self._cells + MOVES[actions]
        is_blocked = BLOCKS[self._flat_boards[begins + targets]]
        self._cells = np.where(is_blocked, self._cells, targets)

        places = begins + self._cells
        entered = self._flat_boards[places]
        # Written for all: kinds that stay become themselves.
        self._flat_boards[places] = BECOMES[entered]
        rewards = REWARDS[entered]
        # Nothing else pays 5, and doors stand in the last phase alone.
        self._succeeded |= rewards == DOOR_REWARD
        # After moves: an apple that grows back under an agent is not eaten in this step.
        self._grow_apples(entered)
        self.react(entered)
        # Last: the step that ends a phase is still paid on its board.
        self._turn_phases()
        terminated = self._steps >= self.episode_length
        return rewards, terminated, np.zeros_like(terminated)

    def succeeded(self) -> np.ndarray:
        return self._succeeded

    def observe(self, rows: np.ndarray) -> np.ndarray:
        centres = self._board_begins(rows) + self._cells[rows]
        kinds = self._flat_boards[centres[:, None] + WINDOW]  # [R, 25]
        kinds[:, CENTRE] = IN_CENTRE[kinds[:, CENTRE]]
        if self.is_twin:
            carried = self.carried(rows)
            # Kind 0 is a free cell: nothing to be remembered, and the agent looks like itself.
            kinds[:, CENTRE] = np.where(carried, carried, kinds[:, CENTRE])
        images = COLOUR_PLANES.take(kinds, axis=1).swapaxes(0, 1)  # [3, R, 25] -> [R, 3, 25]
        return images.reshape(len(rows), 3, VIEW, VIEW)

    def render(self) -> tuple[np.ndarray, ...]:
        """Return the board of the present phase of each, a pixel a cell.  [7, 11, 3] each"""
        kinds = self._boards[self._rows, self._phases]  # a copy
        kinds[self._rows, self._cells] = IN_CENTRE[kinds[self._rows, self._cells]]
        inside = slice(PADDING, -PADDING)
        return tuple(COLOURS[kinds.reshape(self.num_envs, -1, WIDTH)[:, inside, inside]])

    def _board_begins(self, rows: np.ndarray) -> np.ndarray:
        return (self._offsets[rows] + self._phases[rows]) * N_CELLS

    def _grow_apples(self, entered: np.ndarray) -> None:
        is_taken = entered == GridCell.APPLE
        if np.count_nonzero(is_taken):
            rows = np.flatnonzero(is_taken)
            self._regrowths[rows, self._cells[rows]] = self._steps[rows] + REGROWTH
        # Equal, not less: each step comes once, and nothing has to be erased afterwards.
        is_back = self._regrowths == self._steps[:, None]
        if np.count_nonzero(is_back):
            self._boards[:, APPLES_PHASE][is_back] = GridCell.APPLE

    def _turn_phases(self) -> None:
        phases = self._phase_of.take(self._steps, mode="clip")
        is_over = phases != self._phases
        if np.count_nonzero(is_over):
            self._cells = np.where(is_over, self._starts[phases], self._cells)
            self._phases = phases


def draw_apples(generator: np.random.Generator) -> np.ndarray:
    """Return ten of the cells where apples can lie, (row, column) each.  [10, 2]"""
    return APPLE_CELLS[generator.permutation(len(APPLE_CELLS))[:N_APPLES]]


EMPTY = "." * 11
MATCH_BOARDS = np.stack(
    [
        board(EMPTY, "....###....", "....#.#....", "....###....", EMPTY, EMPTY, EMPTY),
        ORCHARD,
        board("#" * 11, *["#.........#"] * 3, "####...####", "...#...#...", "...#####..."),
    ]
)
MATCH_START = (2, 5)
SIGN_CELLS = np.array(
    [(row, column) for row in (1, 2, 3) for column in (4, 5, 6) if (row, column) != MATCH_START]
)
DOOR_NUMBERS = cell_number(np.array([(1, 2), (1, 5), (1, 8)]))
N_COLOURS = 3  # red, green, blue


class MatchDraws(NamedTuple):
    """All that is random in an episode of Visual Match.

    Cells are (row, column): apples [10, 2], target [2]; colours 0 red, 1 green, 2 blue, those of
    the doors [3] from left to right.
    """

    apple_cells: np.ndarray
    target_colour: int
    target_cell: np.ndarray
    door_colours: np.ndarray


class VisualMatchVectorEnv(ThreePhases):
    """VisualMatch-v0: a colour is shown; after a field of apples one of three doors has it.

    Passive Visual Match of Ni et al. (2023, section 5.1): an agent cannot help seeing the colour,
    so that only its memory is tested. 15 steps in front of the sign, L among apples, 15 in a hall
    with three doors. The first door entered pays 5 if it has the colour of the sign; all three
    vanish. An agent that does not remember the colour finds the right door one time in three.
    """

    def __init__(self, n_envs: int, seed: int, length: int, door_order: str = PER_EPISODE) -> None:
        super().__init__(n_envs, seed, length, last_steps=15, last_start=(5, 5))
        self._door_order = door_order

    def begin(self, row: int, generator: np.random.Generator) -> None:
        draws = self.draw(generator)
        if self._door_order == PER_ENVIRONMENT:
            # The doors of episode 0 hold for all, found again without any state that must be saved.
            first = episode_seed(self._seed, self._first_env + row, 0)
            doors = self.draw(np.random.default_rng(first)).door_colours
            draws = draws._replace(door_colours=doors)
        self.begin_with(row, draws)

    def draw(self, generator: np.random.Generator) -> MatchDraws:
        return MatchDraws(
            draw_apples(generator),
            int(generator.integers(N_COLOURS)),
            SIGN_CELLS[generator.integers(len(SIGN_CELLS))],
            generator.permutation(N_COLOURS),
        )

    def begin_with(self, row: int, draws: MatchDraws) -> None:
        self.begin_on(row, MATCH_BOARDS, draws.apple_cells, cell_number(MATCH_START))
        sign = GridCell.RED_SIGN + draws.target_colour
        self._boards[row, FIRST_PHASE, cell_number(draws.target_cell)] = sign
        # Colours count up from red in signs and doors alike: an offset makes the kind.
        is_right = draws.door_colours == draws.target_colour
        doors = np.where(is_right, GridCell.RIGHT_RED, GridCell.WRONG_RED) + draws.door_colours
        self._boards[row, LAST_PHASE, DOOR_NUMBERS] = doors

    def react(self, entered: np.ndarray) -> None:
        is_door = entered >= GridCell.WRONG_RED
        if np.count_nonzero(is_door):
            # All three vanish, so that nobody can try one door after another.
            self._boards[np.flatnonzero(is_door)[:, None], LAST_PHASE, DOOR_NUMBERS] = GridCell.FREE

    def carried(self, rows: np.ndarray) -> np.ndarray:
        # Signs have the highest kinds on this board.
        return self._boards[rows, FIRST_PHASE].max(1)  # its sign

    def cues(self) -> np.ndarray:
        """Return the colour of the sign, 0 to 2, where an agent stands before it.  [N]"""
        colours = self.carried(self._rows).astype(np.int64) - int(GridCell.RED_SIGN)
        return np.where((self._phases == FIRST_PHASE) | self.is_twin, colours, NOT_SHOWN)


class VisualMatch(Suite):
    action_names = ACTION_NAMES

    def make(self, config: VisualMatchSettings, seed: int) -> VisualMatchVectorEnv:
        env = VisualMatchVectorEnv(config.n_envs, seed, config.length, config.door_order)
        env.is_twin = config.observability == FULL
        return env


KEY_BOARDS = np.stack(
    [
        board(
            "..#######..", *["..#.....#.."] * 2, "..##...##..", *["..#.....#.."] * 2, "..#######.."
        ),
        ORCHARD,
        board(EMPTY, "...##d##...", *["...#...#..."] * 3, "...#####...", EMPTY),
    ]
)
COLUMNS = range(3, 8)
KEY_CELLS = np.array([(row, column) for row in (1, 2) for column in COLUMNS])
START_CELLS = np.array([(row, column) for row in (4, 5) for column in COLUMNS])
INDICATOR_NUMBER, DOOR_NUMBER = cell_number((0, 5)), cell_number((1, 5))


class KeyDraws(NamedTuple):
    apple_cells: np.ndarray
    key_cell: np.ndarray
    player_cell: np.ndarray


class KeyToDoorVectorEnv(ThreePhases):
    """KeyToDoor-v0: take the key; after a field of apples it opens a door.

    Key-to-Door of Ni et al. (2023, section 5.2): 15 steps in a room with a key, which pays nothing,
    L among apples, 10 in front of a door. With the key the door can be entered, which pays 5 once.
    Nothing has to be remembered: the door is in the same place always. The test is whether the
    reward finds its way back to the key: without it an agent is never paid in the last phase.
    """

    def __init__(self, n_envs: int, seed: int, length: int) -> None:
        super().__init__(n_envs, seed, length, last_steps=10, last_start=(3, 5))

    def begin(self, row: int, generator: np.random.Generator) -> None:
        draws = KeyDraws(
            draw_apples(generator),
            KEY_CELLS[generator.integers(len(KEY_CELLS))],
            START_CELLS[generator.integers(len(START_CELLS))],
        )
        self.begin_with(row, draws)

    def begin_with(self, row: int, draws: KeyDraws) -> None:
        self.begin_on(row, KEY_BOARDS, draws.apple_cells, cell_number(draws.player_cell))
        self._boards[row, FIRST_PHASE, cell_number(draws.key_cell)] = GridCell.KEY

    def react(self, entered: np.ndarray) -> None:
        has_key = entered == GridCell.KEY
        indicators = np.where(has_key, GridCell.INDICATOR, GridCell.WALL)
        self._boards[:, FIRST_PHASE, INDICATOR_NUMBER] = indicators
        self._boards[has_key, LAST_PHASE, DOOR_NUMBER] = GridCell.UNLOCKED

    def carried(self, rows: np.ndarray) -> np.ndarray:
        is_left = (self._boards[rows, FIRST_PHASE] == GridCell.KEY).any(1)
        return np.where(is_left, GridCell.FREE, GridCell.KEY)

    def cues(self) -> np.ndarray:
        """Return whether the key has been taken, 0 or 1, where an agent is in its room.  [N]"""
        is_taken = self.carried(self._rows) == GridCell.KEY
        return np.where((self._phases == FIRST_PHASE) | self.is_twin, is_taken, NOT_SHOWN)


class KeyToDoor(Suite):
    action_names = ACTION_NAMES

    def make(self, config: LengthSettings, seed: int) -> KeyToDoorVectorEnv:
        env = KeyToDoorVectorEnv(config.n_envs, seed, config.length)
        env.is_twin = config.observability == FULL
        return env
