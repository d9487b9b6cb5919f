"""T-Maze, Visual Match and Key-to-Door: whole episodes of the original, and our own additions.

And the twins of all tasks that have one, which show at every step what is to be remembered.
"""

import functools

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import envs
from envs import make_vector_env, t_maze, three_phases
from envs.three_phases import KeyDraws, MatchDraws
from tests.agents import small_config
from tests.any_envs import Cued
from tests.golden_data import GOLDEN
from utils.environments import NOT_SHOWN
from utils.errors import UserError

TASKS = {
    "TMazePassive-v0": (t_maze.TMaze, "tmaze_passive"),
    "TMazeActive-v0": (t_maze.TMaze, "tmaze_active"),
    "VisualMatch-v0": (three_phases.VisualMatch, "visual_match"),
    "KeyToDoor-v0": (three_phases.KeyToDoor, "key_to_door"),
}
RIGHT, UP, LEFT, DOWN = range(4)
NORTH, SOUTH, WEST, EAST = range(4)
every_task = pytest.mark.parametrize("task", TASKS)
both_sizes = pytest.mark.parametrize("size", ["short", "long"])


def make(task, n_envs, seed=0, length=10, door_order="episode"):
    config = small_config(env=task, n_envs=n_envs, length=length, door_order=door_order)
    return TASKS[task][0]().make(config, seed)


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
    if TASKS[task][0] is t_maze.TMaze:
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
            colours = [t_maze.COLOURS[kind] for kind in (t_maze.GOAL, t_maze.AGENT)]
            (goal,), (agent,) = (np.argwhere((picture == each).all(2)) for each in colours)
            yield (goal - agent).tolist()

    env = make(task, 2, length=length)
    env.reset()
    for row, side in enumerate((-1, 1)):
        env.begin_with(row, side)
    assert list(ways_to_goals()) == [[1, min(length, 30)], [-1, min(length, 30)]]
    for _ in range(length):
        env.step(np.full(2, RIGHT))
    assert list(ways_to_goals()) == [[1, 0], [-1, 0]]


# Where a twin shows its cue, and of how many steps ago; None: the last that was told. The key may
# be taken in the last step of its room, which shows the next room already.
N_ENVS, TILE, PIXEL = 4, np.s_[:, :, 48:, 24:32], np.s_[:, :, 2, 2]
TWINS = {
    "TMazePassive-v0": (np.s_[:, 1], None),
    "TMazeActive-v0": (np.s_[:, 1], None),
    "VisualMatch-v0": (PIXEL, None),
    "KeyToDoor-v0": (PIXEL, 0),
    "MiniGrid-MemoryS7-v0": (TILE, None),
    "MiniGrid-MemoryS13Random-v0": (TILE, None),
    "popgym-RepeatFirstEasy-v0": (np.s_[:], None),
    "popgym-RepeatPreviousEasy-v0": (np.s_[:], 3),
    "tests.any_envs:Cued-v0": (np.s_[:, 0], None),
    "object:Cued": (np.s_[:, 0], None),
}


@functools.cache
def task_and_twin(task):
    """Return N environments that tell their cues, and as many twins."""
    bare = {"popgym_antialias": False, "popgym_previous_action": False}
    kinds = ({"observability": kind} for kind in ("partial", "full"))
    both = (small_config(env=task, n_envs=N_ENVS, **bare, **kind) for kind in kinds)
    with envs.given(Cued if task.startswith("object:") else None):
        return tuple(make_vector_env(config, 0, drawn=True) for config in both)


def remembered(history, row, n_back):
    """Return the cue that an agent has to know now, given those told in the episode so far."""
    if n_back is not None:
        return history[-1 - n_back][row] if len(history) > n_back else NOT_SHOWN
    return next((told[row] for told in history[::-1] if told[row] != NOT_SHOWN), NOT_SHOWN)


@pytest.mark.quick("TMazePassive-v0", "VisualMatch-v0")
@pytest.mark.parametrize("task", TWINS)
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**31 - 1))
def test_a_twin_differs_from_its_task_by_the_cue_alone_which_it_always_shows(task, seed):
    (place, n_back), (plain, twin) = TWINS[task], task_and_twin(task)
    rng = np.random.default_rng(seed)
    assert plain.single_observation_space == twin.single_observation_space
    assert plain.single_action_space == twin.single_action_space
    (seen, _), (shown, _) = plain.reset(seed=seed), twin.reset(seed=seed)
    histories, looks = [[plain.cues()]] * N_ENVS, {}
    for _ in range(60):
        told_in_twin = np.full(N_ENVS, NOT_SHOWN) if n_back else twin.cues()
        for row, history in enumerate(histories):
            look = shown[place][row].tobytes()
            for cue in {remembered(history, row, n_back), told_in_twin[row]} - {NOT_SHOWN}:
                assert looks.setdefault(cue, look) == look
        outside = [each.copy() for each in (seen, shown)]
        for each in outside:
            each[place] = 0
        np.testing.assert_array_equal(*outside)
        assert twin.observation_space.contains(shown)
        actions = rng.integers(plain.single_action_space.n, size=N_ENVS)
        (seen, *paid, info), (shown, *paid_in_twin, _) = plain.step(actions), twin.step(actions)
        np.testing.assert_array_equal(paid, paid_in_twin)
        begun, told = info.get("_final_obs", np.zeros(N_ENVS, bool)), plain.cues()
        kept = [[] if new else each for new, each in zip(begun, histories, strict=True)]
        histories = [[*history, told] for history in kept]
    assert len(set(looks.values())) == len(looks), "every cue has its own look"


@pytest.mark.parametrize("task", [each for each in TWINS if each.startswith(("TMaze", "popgym"))])
def test_an_agent_without_memory_is_always_right_in_a_twin(task):
    twin = task_and_twin(task)[1]
    shown, _ = twin.reset(seed=1)
    returns, n_ended = np.zeros(N_ENVS), 0
    while n_ended < 5 * N_ENVS:
        actions = shown
        if task.startswith("TMaze"):
            actions = np.where(shown[:, 0] == 0, RIGHT, np.where(shown[:, 1] > 0, UP, DOWN))
        shown, rewards, terminated, _, _ = twin.step(actions)
        returns += rewards
        np.testing.assert_allclose(returns[terminated], 1, rtol=1e-5)
        n_ended += terminated.sum()
        returns[terminated] = 0


@pytest.mark.parametrize(
    ("task", "env", "message"),
    [
        ("MiniGrid-Empty-5x5-v0", None, "EmptyEnv has no twin: no method show_cue"),
        ("popgym-CountRecallEasy-v0", None, "CountRecallEasy has no twin: no method show_cue"),
        ("CartPole-v1", None, "CartPoleEnv has no twin: no method show_cue"),
        ("object:CartPoleEnv", lambda: gymnasium.make("CartPole-v1"), "CartPoleEnv has no twin"),
        (
            "object:CartPoleEnv",
            gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync"),
            "a given vector environment has no twin",
        ),
    ],
)
def test_an_environment_without_a_cue_has_no_twin(task, env, message):
    config = small_config(env=task, n_envs=2, observability="full")
    with envs.given(env), pytest.raises(UserError, match=f"observability: {message}"):
        make_vector_env(config, 0)
