"""TMazePassive-v0, TMazeActive-v0: remember through a corridor which way to turn at its end.

Passive and Active T-Maze of Ni et al. (2023, arXiv:2307.03864, section 5.1), after Bakker (2001).
With L the length, the corridor is y = 0 and 0 <= x <= o + L; at its end (o + L) two goal cells lie
at y = 1 and y = -1. Which of them pays is shown at x = 0 only, the first time in an episode that
the agent is there. The passive agent begins there (o = 0), the active one a step beside it (o = 1),
so that it has to look for itself. An episode has L + 1 + 2 * o steps.

    r_t = -1 / L if x_t < t - o else 0    for t < T: a price for being behind the fastest way
    r_T = 1 if y_T is the goal's side, else 0

A perfect agent gets 1, the best without a memory 0.5 in the mean. The twin shows the goal's side
everywhere, at the end in the place of y.
"""

import numpy as np
from gymnasium.spaces import Box

from envs.settings import FULL, LengthSettings
from envs.vector import NumpyVectorEnv
from utils.environments import NOT_SHOWN, Suite

# By name: how many steps beside the oracle (x = 0) an episode begins.
ORACLE_DISTANCES = {"TMazePassive-v0": 0, "TMazeActive-v0": 1}
ACTION_NAMES = ("right", "up", "left", "down")
NUMBER_NAMES = ("at the end", "side")  # 1 where the corridor ends; the goal's side, or the row
RIGHT, UP, LEFT, DOWN = range(4)

WALL, CORRIDOR, ORACLE, GOAL, AGENT = range(5)
COLOURS = np.array(
    [(90, 90, 90), (224, 224, 224), (255, 200, 60), (51, 255, 51), (51, 153, 255)], dtype=np.uint8
)
MOST_COLUMNS = 31  # of a picture; a longer corridor is shown to scale


class TMazeVectorEnv(NumpyVectorEnv):
    """Corridors that end in two cells, of which one pays.

    Actions: right, up, left, down; a move off the cells does nothing. The observation is (0, goal's
    side) at x = 0 the first time, (0, 0) in the corridor, (1, y) where it ends.  [2] float32
    `length` is L, `oracle_distance` is o.
    """

    has_success = True

    def __init__(self, n_envs: int, seed: int, length: int, oracle_distance: int) -> None:
        space = Box(-1, 1, (2,), np.float32)
        super().__init__(n_envs, seed, n_actions=len(ACTION_NAMES), observation_space=space)
        self._length, self._start = length, oracle_distance
        self._end = oracle_distance + length
        self.episode_length = length + 1 + 2 * oracle_distance
        # Cells are numbered: those of the corridor by their x, then the upper and the lower goal.
        self._xs = np.append(np.arange(self._end + 1), [self._end, self._end])
        self._ys = np.append(np.zeros(self._end + 1, int), [1, -1])
        self._next_cells = next_cells(self._end)
        at_end = self._xs == self._end
        self._looks = np.stack([at_end, self._ys], 1).astype(np.float32)
        self._cells = np.zeros(n_envs, dtype=np.int64)
        self._steps = np.zeros(n_envs, dtype=np.int64)
        self._goal_sides = np.ones(n_envs, dtype=np.int64)
        self._has_seen = np.zeros(n_envs, dtype=bool)  # the goal's side, in this episode
        self._sees_side = np.zeros(n_envs, dtype=bool)  # now
        self.render_mode = "rgb_array"

    @property
    def positions(self) -> np.ndarray:
        """Where each agent is, (x, y).  [N, 2]"""
        return np.stack([self._xs[self._cells], self._ys[self._cells]], 1)

    def begin(self, row: int, generator: np.random.Generator) -> None:
        self.begin_with(row, 2 * int(generator.integers(2)) - 1)

    def begin_with(self, row: int, goal_side: int) -> None:
        self._cells[row], self._steps[row] = self._start, 0
        self._goal_sides[row] = goal_side
        self._has_seen[row] = self._sees_side[row] = self._start == 0

    def advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self._steps += 1
        self._cells = self._next_cells[self._cells, actions]
        # Once an episode: who comes back to the oracle must have remembered it.
        self._sees_side = (self._cells == 0) & ~self._has_seen
        self._has_seen |= self._sees_side
        terminated = self._steps >= self.episode_length
        # A price for each step behind the fastest way; the last step pays for the side alone.
        is_behind = self._xs[self._cells] < self._steps - self._start
        rewards = np.where(terminated, self.succeeded(), is_behind * (-1 / self._length))
        return rewards.astype(np.float32), terminated, np.zeros_like(terminated)

    def succeeded(self) -> np.ndarray:
        return self._ys[self._cells] == self._goal_sides

    def cues(self) -> np.ndarray:
        """Return the goal's side where it is shown, 0 for the lower and 1 for the upper.  [N]"""
        return np.where(self._sees_side | self.is_twin, self._goal_sides > 0, NOT_SHOWN)

    def observe(self, rows: np.ndarray) -> np.ndarray:
        shown = self._looks[self._cells[rows]]
        # y is 0 at the oracle, so that the sum is the side.
        shown[:, 1] += self._sees_side[rows] * self._goal_sides[rows]
        if self.is_twin:
            shown[:, 1] = self._goal_sides[rows]
        return shown

    def render(self) -> tuple[np.ndarray, ...]:
        """Return every maze whole, a pixel a cell, in the middle of a square.  [S, S, 3] each

        A corridor of more than 31 cells is drawn with 31 pixels.
        """
        n_columns = min(self._end + 1, MOST_COLUMNS)
        side = max(n_columns, 3) + 2
        middle, last = side // 2, n_columns
        kinds = np.full((self.num_envs, side, side), WALL)
        kinds[:, middle, 1 : last + 1] = CORRIDOR
        kinds[:, middle, 1] = ORACLE
        kinds[:, [middle - 1, middle + 1], last] = CORRIDOR
        kinds[self._rows, middle - self._goal_sides, last] = GOAL
        xs, ys = self.positions.T
        columns = 1 + np.rint(xs * ((n_columns - 1) / self._end)).astype(int)
        kinds[self._rows, middle - ys, columns] = AGENT
        return tuple(COLOURS[kinds])


class TMaze(Suite):
    action_names, number_names = ACTION_NAMES, NUMBER_NAMES
    picture_legend = "blue: the agent; yellow: here the side is told; green: the cell that pays"

    def make(self, config: LengthSettings, seed: int) -> TMazeVectorEnv:
        env = TMazeVectorEnv(config.n_envs, seed, config.length, ORACLE_DISTANCES[config.env])
        env.is_twin = config.observability == FULL
        return env


def next_cells(end: int) -> np.ndarray:
    """Return the cell that each action leads to from each cell, by their numbers.  [C, 4]"""
    upper, lower = end + 1, end + 2
    table = np.repeat(np.arange(end + 3)[:, None], len(ACTION_NAMES), axis=1)
    # Every other action leads from a cell to itself, as it stands in the table.
    table[:end, RIGHT] += 1
    table[1 : end + 1, LEFT] -= 1
    table[end, [UP, DOWN]] = upper, lower
    table[upper, DOWN] = table[lower, UP] = end
    return table
