from types import SimpleNamespace

import numpy as np
import pytest
from scipy.ndimage import label

from envs import random_maze
from envs.random_maze import AGENT, COLOURS, FREE, GOAL, MOVES, WALL

CENTRE = (4, 4)


def make(n_envs, seed=0):
    return random_maze.RandomMaze().make(SimpleNamespace(env=random_maze.NAME, n_envs=n_envs), seed)


def kinds(colours):
    """Return the kind of every cell from its colour.  [..., 3] -> [...]"""
    same = (colours[..., None, :] == COLOURS).all(-1)
    assert same.any(-1).all()
    return same.argmax(-1)


def seen(images):
    return kinds(images.transpose(0, 2, 3, 1))


def plain_maze(side, generator):
    """Return which cells are walls, by the generator's description, one try after the other."""
    size = side // 2 * 2 + 1
    walls = np.zeros((size, size), bool)
    walls[[0, -1]] = walls[:, [0, -1]] = True
    for _ in range(int(0.75 * (size // 2) ** 2)):
        row, column = 2 * generator.integers(size // 2 + 1, size=2)
        walls[row, column] = True
        for _ in range(int(0.75 * 5 * 2 * size)):
            around = [(row + 2 * r, column + 2 * c) for r, c in MOVES]
            around = [(r, c) for r, c in around if 0 <= r < size and 0 <= c < size]
            r, c = around[generator.integers(len(around))]
            if not walls[r, c]:
                walls[r, c] = walls[(r + row) // 2, (c + column) // 2] = True
                row, column = r, c
    return walls


@pytest.mark.parametrize("side", [5, 6, 12, 24, 25])
def test_every_free_cell_of_a_walled_in_maze_leads_to_the_goal(side):
    for seed in range(10):
        maze = random_maze.random_maze(side, np.random.default_rng(seed))
        assert maze.shape == (side // 2 * 2 + 1, side // 2 * 2 + 1)
        assert (maze[[0, -1]] == WALL).all()
        assert (maze[:, [0, -1]] == WALL).all()
        assert np.argwhere(maze == GOAL).tolist() == [[len(maze) - 2, len(maze) - 2]]
        assert label(maze != WALL)[1] == 1  # of connected parts


@pytest.mark.slow
def test_mazes_are_as_dense_as_the_plain_generators():
    generator = np.random.default_rng(0)
    ours = [(random_maze.random_maze(9, generator) == WALL).sum() for _ in range(150)]
    plain = [plain_maze(9, generator).sum() for _ in range(150)]
    error = np.sqrt((np.var(ours) + np.var(plain)) / 150)
    assert abs(np.mean(ours) - np.mean(plain)) < 4 * error


def test_episodes_use_every_size_and_begin_within_the_maze_and_not_on_the_goal():
    env = make(200)
    env.reset(seed=3)
    mazes = kinds(np.stack(env.render()))
    assert (np.count_nonzero(mazes == GOAL, axis=(1, 2)) == 1).all()
    corners = {tuple(np.argwhere(maze == GOAL)[0] + 2) for maze in mazes}
    assert corners == {(size, size) for size in range(5, 26, 2)}
    assert all(label(maze != WALL)[1] == 1 for maze in mazes)


@pytest.mark.parametrize("action", range(4))
def test_a_move_shifts_the_view_and_a_bump_leaves_it(action):
    env = make(64)
    before = seen(env.reset(seed=2)[0])
    images, rewards, terminated, truncated, _ = env.step(np.full(64, action))
    after = seen(images)
    down, across = MOVES[action]
    ahead = before[:, 4 + down, 4 + across]
    np.testing.assert_allclose(rewards, np.choose(ahead, [-0.01, -1.0, 1.0]), rtol=1e-6)
    np.testing.assert_array_equal(terminated, ahead == GOAL)
    assert not truncated.any()
    np.testing.assert_array_equal(after[ahead == WALL], before[ahead == WALL])
    moved = after[ahead == FREE]
    assert 0 < len(moved) < 64
    np.testing.assert_array_equal(moved[:, 4 - down, 4 - across], FREE)
    shifted = np.roll(before[ahead == FREE], (-down, -across), (1, 2))
    inner = (slice(None), slice(1, -1), slice(1, -1))
    differing = (moved[inner] != shifted[inner]).sum((1, 2))
    # Only where the agent was and where it is now.
    np.testing.assert_array_equal(differing, 2)


def test_the_agent_sees_itself_in_the_centre_of_its_surroundings_which_are_drawn_whole():
    env = make(6)
    images, _ = env.reset(seed=1)
    assert images.shape == (6, 3, 9, 9)
    assert images.dtype == np.uint8
    for view, maze in zip(seen(images), kinds(np.stack(env.render())), strict=True):
        ((row, column),) = np.argwhere(maze == AGENT)
        around = np.pad(maze, 4, constant_values=WALL)
        np.testing.assert_array_equal(view, around[row : row + 9, column : column + 9])
        assert view[CENTRE] == AGENT
