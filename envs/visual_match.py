"""VisualMatch-v0: a colour is shown; after a field of apples one of three doors has it.

Passive Visual Match of Ni et al. (2023, arXiv:2307.03864, section 5.1), from Hung et al. (2019,
arXiv:1810.06721): an agent cannot help seeing the colour, so that only its memory is tested.
15 steps in front of the sign, L among apples, 15 in a hall with three doors. The first door
entered pays 5 if it has the colour of the sign; all three vanish. Who does not remember the colour
finds the right door one time in three.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from envs.cues import NOT_SHOWN
from envs.episodes import episode_seed
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
from settings import setting

NAME = "VisualMatch-v0"
ACTION_NAMES = MOVE_NAMES
EMPTY = "." * 11
SIGN_ROOM = board(EMPTY, "....###....", "....#.#....", "....###....", EMPTY, EMPTY, EMPTY)
HALL = board("#" * 11, *["#.........#"] * 3, "####...####", "...#...#...", "...#####...")
BOARDS = np.stack([SIGN_ROOM, ORCHARD, HALL])
LAST_STEPS = 15
FIRST_START, LAST_START = (2, 5), (5, 5)
SIGN_CELLS = np.array(
    [(row, column) for row in (1, 2, 3) for column in (4, 5, 6) if (row, column) != FIRST_START]
)
START_NUMBER = cell_number(FIRST_START)
DOOR_NUMBERS = cell_number(np.array([(1, 2), (1, 5), (1, 8)]))
N_COLOURS = 3  # red, green, blue
SIGN_PHASE = 0
PER_EPISODE, PER_ENVIRONMENT = "episode", "environment"


@dataclass(frozen=True)
class VisualMatchSettings(LengthSettings):
    """The settings read here."""

    title = NAME

    door_order: str = setting(
        "when the colours of the doors are drawn: in every episode, or once per environment, as in "
        "the original",
        choices=(PER_EPISODE, PER_ENVIRONMENT),
        default=PER_EPISODE,
    )


READS = (VisualMatchSettings,)


class Draws(NamedTuple):
    """All that is random in an episode.

    Attributes:
        apple_cells: (row, column) of each.  [10, 2]
        target_colour: 0 red, 1 green, 2 blue.
        target_cell: Where the sign is, (row, column).  [2]
        door_colours: Of the doors from left to right.  [3]
    """

    apple_cells: np.ndarray
    target_colour: int
    target_cell: np.ndarray
    door_colours: np.ndarray


def make(config: VisualMatchSettings, seed: int) -> "VisualMatchVectorEnv":
    """Return `config.n_envs` worlds of a run's seed."""
    return VisualMatchVectorEnv(config.n_envs, seed, config.length, config.door_order)


class VisualMatchVectorEnv(ThreePhases):
    """Worlds with a sign, apples, and three doors of which one has the colour of the sign.

    Args:
        n_envs: Number of environments.
        seed: Of the run.
        length: L, steps among apples.
        door_order: Whether doors get colours in every "episode" or once per "environment".
    """

    def __init__(self, n_envs: int, seed: int, length: int, door_order: str = PER_EPISODE) -> None:
        super().__init__(n_envs, seed, length, LAST_STEPS, LAST_START)
        self._door_order = door_order

    def begin(self, row: int, generator: np.random.Generator) -> None:
        """Draw an episode; its doors may be those of the environment's first one."""
        draws = self.draw(generator)
        if self._door_order == PER_ENVIRONMENT:
            first = episode_seed(self._seed, self._first_env + row, 0)
            doors = self.draw(np.random.default_rng(first)).door_colours
            draws = draws._replace(door_colours=doors)
        self.begin_with(row, draws)

    def draw(self, generator: np.random.Generator) -> Draws:
        """Return the draws of an episode."""
        return Draws(
            draw_apples(generator),
            int(generator.integers(N_COLOURS)),
            SIGN_CELLS[generator.integers(len(SIGN_CELLS))],
            generator.permutation(N_COLOURS),
        )

    def begin_with(self, row: int, draws: Draws) -> None:
        """Begin the episode of given draws in environment `row`."""
        self.begin_on(row, BOARDS, draws.apple_cells, START_NUMBER)
        sign = Cell.RED_SIGN + draws.target_colour
        self._boards[row, SIGN_PHASE, cell_number(draws.target_cell)] = sign
        is_right = draws.door_colours == draws.target_colour
        doors = np.where(is_right, Cell.RIGHT_RED, Cell.WRONG_RED) + draws.door_colours
        self._boards[row, LAST_PHASE, DOOR_NUMBERS] = doors

    def react(self, entered: np.ndarray) -> None:
        """Let all doors vanish where one was entered."""
        is_door = entered >= Cell.WRONG_RED
        if np.count_nonzero(is_door):
            self._boards[np.flatnonzero(is_door)[:, None], LAST_PHASE, DOOR_NUMBERS] = Cell.FREE

    def cues(self) -> np.ndarray:
        """Return the colour of the sign, 0 to 2, where an agent stands before it.  [N]"""
        colours = self._boards[:, SIGN_PHASE].max(1).astype(np.int64) - int(Cell.RED_SIGN)
        return np.where(self._phases == SIGN_PHASE, colours, NOT_SHOWN)
