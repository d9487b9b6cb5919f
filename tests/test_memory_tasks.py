"""T-Maze, Visual Match and Key-to-Door: whole episodes of the original, and our own additions."""

import numpy as np
import pytest

from envs import t_maze, three_phases
from envs.three_phases import KeyDraws, MatchDraws
from tests.agents import small_config
from tests.golden_data import GOLDEN

TASKS = {
    "TMazePassive-v0": (t_maze, "tmaze_passive"),
    "TMazeActive-v0": (t_maze, "tmaze_active"),
    "VisualMatch-v0": (three_phases.VisualMatchVectorEnv, "visual_match"),
    "KeyToDoor-v0": (three_phases.KeyToDoorVectorEnv, "key_to_door"),
}
RIGHT, UP, LEFT, DOWN = range(4)
NORTH, SOUTH, WEST, EAST = range(4)
every_task = pytest.mark.parametrize("task", TASKS)
both_sizes = pytest.mark.parametrize("size", ["short", "long"])


def make(task, n_envs, seed=0, length=10, door_order="episode"):
    config = small_config(env=task, n_envs=n_envs, length=length, door_order=door_order)
    return TASKS[task][0].make(config, seed)


def golden(task, size):
    with np.load(GOLDEN / "memory_rl" / f"{TASKS[task][1]}.npz") as arrays:
        names = [name for name in arrays.files if name.startswith(f"{size}.")]
        return {name.removeprefix(f"{size}."): arrays[name] for name in names}


def begun(task, arrays):
    """Return environments in episodes with the original's draws."""
    env = make(task, len(arrays["actions"]), length=int(arrays["length"]))
    env.reset()
    for row in range(env.num_envs):
        begin(task, env, row, arrays)
    return env


def begin(task, env, row, arrays):
    if TASKS[task][0] is t_maze:
        env.begin_with(row, int(arrays["goal_side"][row]))
    else:
        draws = MatchDraws if task.startswith("Visual") else KeyDraws
        env.begin_with(row, draws(*(arrays[field][row] for field in draws._fields)))


@both_sizes
@every_task
def test_every_episode_of_the_original_is_replayed_exactly(task, size):
    arrays = golden(task, size)
    env = begun(task, arrays)
    n_envs, n_steps = arrays["actions"].shape
    assert env.episode_length == n_steps == arrays["episode_length"]
    shown = env.observe(np.arange(n_envs))
    for t in range(n_steps):
        np.testing.assert_array_equal(shown.reshape(n_envs, -1), arrays["observations"][:, t])
        np.testing.assert_array_equal(env.positions, arrays["positions"][:, t])
        shown, rewards, terminated, truncated, info = env.step(arrays["actions"][:, t])
        np.testing.assert_array_equal(rewards, arrays["rewards"][:, t].astype(np.float32))
        np.testing.assert_array_equal(terminated, arrays["dones"][:, t])
        assert not truncated.any()
    last = np.stack(list(info["final_obs"])).reshape(n_envs, -1)
    np.testing.assert_array_equal(last, arrays["observations"][:, -1])
    at_goal = arrays["rewards"][:, -1] == 1  # the original of T-Maze does not say itself
    np.testing.assert_array_equal(info["success"], arrays.get("success", at_goal))
    assert set(info["success"]) == {False, True}


def test_doors_are_drawn_anew_in_every_episode_or_once_per_environment():
    def orders(env, n_episodes=8, **reset):
        """Return the colours of the doors before an episode's end.  [E, N, 9]"""
        env.reset(**reset)
        waits, found = np.full(env.num_envs, SOUTH), []
        for _ in range(n_episodes):
            for _ in range(env.episode_length - 1):
                env.step(waits)
            found.append([picture[1, 2:9:3].ravel() for picture in env.render()])
            env.step(waits)
        return np.array(found)

    anew = orders(make("VisualMatch-v0", 6, length=1), seed=0)
    assert all(len(np.unique(anew[:, n], axis=0)) > 1 for n in range(6))
    env = make("VisualMatch-v0", 6, length=1, door_order="environment")
    once = orders(env, seed=0)
    assert (once == once[0]).all()
    assert len(np.unique(once[0], axis=0)) > 1
    assert (orders(env, n_episodes=2) == once[0]).all()
    assert (orders(env, n_episodes=1, seed=50) != once[0]).any()
    assert (orders(env, n_episodes=1, seed=0) == once[0]).all()


@pytest.mark.parametrize("task", ["VisualMatch-v0", "KeyToDoor-v0"])
def test_a_board_is_drawn_whole_and_shows_what_the_agent_sees(task):
    env = make(task, 4)
    shown, _ = env.reset(seed=0)
    generator = np.random.default_rng(0)
    for t in range(env.episode_length):
        for row, (picture, place) in enumerate(zip(env.render(), env.positions, strict=True)):
            assert picture.shape == (7, 11, 3)
            padded = np.pad(picture, ((2, 2), (2, 2), (0, 0)), constant_values=204)
            down, across = place
            view = padded[down : down + 5, across : across + 5].transpose(2, 0, 1)
            np.testing.assert_array_equal(view, shown[row], err_msg=f"step {t}")
        shown = env.step(generator.integers(0, 4, 4))[0]


@pytest.mark.parametrize("length", [1, 10, 5000])
@pytest.mark.parametrize("task", ["TMazePassive-v0", "TMazeActive-v0"])
def test_a_maze_is_drawn_whole_in_a_square_of_bounded_width(task, length):
    def ways_to_goals():
        """Return how far the goal of each lies from the agent: down, right.  [N, 2]"""
        for picture in env.render():
            assert picture.shape[0] == picture.shape[1] <= 33
            kinds = (t_maze.GOAL, t_maze.AGENT)
            (goal,), (agent,) = (
                np.argwhere((picture == t_maze.COLOURS[kind]).all(2)) for kind in kinds
            )
            yield (goal - agent).tolist()

    env = make(task, 2, length=length)
    env.reset()
    for row, side in enumerate((-1, 1)):
        env.begin_with(row, side)
    assert list(ways_to_goals()) == [[1, min(length, 30)], [-1, min(length, 30)]]
    for _ in range(length):
        env.step(np.full(2, RIGHT))
    assert list(ways_to_goals()) == [[1, 0], [-1, 0]]
