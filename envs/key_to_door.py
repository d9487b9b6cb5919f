"""KeyToDoor-v0: take the key; after a field of apples it opens a door.

Key-to-Door of Ni et al. (2023, arXiv:2307.03864, section 5.2), from Hung et al. (2019,
arXiv:1810.06721): 15 steps in a room with a key, which pays nothing, L among apples, 10 in front of
a door. With the key the door can be entered, which pays 5 once. Nothing has to be remembered: the
door is in the same place always. What is tested is whether the reward finds its way back to the
key. An agent that does not take it is never paid in the last phase.
"""

from typing import NamedTuple

import numpy as np

from envs.cues import NOT_SHOWN
from envs.t_maze import LengthSettings
from envs.three_phases import (
    LAST_PHASE,
    MOVE_NAMES,
    ORCHARD,
    Cell,
    ThreePhases,
    board,
    cell_number,
    draw_apples,
)

NAME = "KeyToDoor-v0"
ACTION_NAMES = MOVE_NAMES
ROOM = board(
    "..#######..",
    *["..#.....#.."] * 2,
    "..##...##..",
    *["..#.....#.."] * 2,
    "..#######..",
)
DOORWAY = board("." * 11, "...##d##...", *["...#...#..."] * 3, "...#####...", "." * 11)
BOARDS = np.stack([ROOM, ORCHARD, DOORWAY])
LAST_STEPS = 10
KEY_PHASE = 0
LAST_START = (3, 5)
COLUMNS = range(3, 8)
KEY_CELLS = np.array([(row, column) for row in (1, 2) for column in COLUMNS])
START_CELLS = np.array([(row, column) for row in (4, 5) for column in COLUMNS])
INDICATOR_NUMBER, DOOR_NUMBER = cell_number((0, 5)), cell_number((1, 5))

READS = (LengthSettings,)


class Draws(NamedTuple):
    """All that is random in an episode.

    Attributes:
        apple_cells: (row, column) of each.  [10, 2]
        key_cell: (row, column).  [2]
        player_cell: Where the agent begins.  [2]
    """

    apple_cells: np.ndarray
    key_cell: np.ndarray
    player_cell: np.ndarray


def make(config: LengthSettings, seed: int) -> "KeyToDoorVectorEnv":
    """Return `config.n_envs` worlds of a run's seed."""
    return KeyToDoorVectorEnv(config.n_envs, seed, config.length)


class KeyToDoorVectorEnv(ThreePhases):
    """Worlds with a key, apples, and a door that the key opens.

    Args:
        n_envs: Number of environments.
        seed: Of the run.
        length: L, steps among apples.
    """

    def __init__(self, n_envs: int, seed: int, length: int) -> None:
        super().__init__(n_envs, seed, length, LAST_STEPS, LAST_START)

    def begin(self, row: int, generator: np.random.Generator) -> None:
        """Draw an episode."""
        self.begin_with(row, self.draw(generator))

    def draw(self, generator: np.random.Generator) -> Draws:
        """Return the draws of an episode."""
        return Draws(
            draw_apples(generator),
            KEY_CELLS[generator.integers(len(KEY_CELLS))],
            START_CELLS[generator.integers(len(START_CELLS))],
        )

    def begin_with(self, row: int, draws: Draws) -> None:
        """Begin the episode of given draws in environment `row`."""
        self.begin_on(row, BOARDS, draws.apple_cells, cell_number(draws.player_cell))
        self._boards[row, KEY_PHASE, cell_number(draws.key_cell)] = Cell.KEY

    def react(self, entered: np.ndarray) -> None:
        """Unlock the door of whoever has taken the key, and show for one step that it has."""
        has_key = entered == Cell.KEY
        self._boards[:, KEY_PHASE, INDICATOR_NUMBER] = np.where(has_key, Cell.INDICATOR, Cell.WALL)
        self._boards[has_key, LAST_PHASE, DOOR_NUMBER] = Cell.UNLOCKED

    def cues(self) -> np.ndarray:
        """Return whether the key has been taken, 0 or 1, where an agent is in its room.  [N]"""
        is_taken = ~(self._boards[:, KEY_PHASE] == Cell.KEY).any(1)
        return np.where(self._phases == KEY_PHASE, is_taken, NOT_SHOWN)
