"""The contract of every suite. Another suite joins it as one more line of CASES."""

import pkgutil
from typing import NamedTuple

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

import envs
from envs import SUITES, check_env_name, make_vector_env, minigrid
from envs.envpool_vector import pool_tasks
from envs.vector import EpisodeStatistics
from tests.agents import small_config
from utils.errors import UserError

DYNAMIC_OBSTACLES = "MiniGrid-Dynamic-Obstacles-5x5-v0"


def settings(env, n_envs=3):
    return small_config(env=env, n_envs=n_envs, crafter_length=30, length=10)


class Case(NamedTuple):
    """A suite's environments and how they end: idle play after `time_limit` steps.

    By truncation, unless the last step `terminates`.
    """

    env: str
    time_limit: int
    terminates: bool = False
    idle_action: int = 0
    drawn: bool = False

    def make(self, n_envs, seed):
        return make_vector_env(settings(self.env, n_envs), seed, self.drawn).env


CASES = {
    "minigrid_by_gymnasium": Case(DYNAMIC_OBSTACLES, 100, drawn=True),
    "random_maze": Case("RandomMaze-v0", 100),
    "continuous_recognition": Case("ContinuousRecognition-v0", 50, terminates=True),
    "crafter": Case("Crafter-v1", 30),
    "t_maze_passive": Case("TMazePassive-v0", 11, terminates=True),
    "t_maze_active": Case("TMazeActive-v0", 13, terminates=True),
    "visual_match": Case("VisualMatch-v0", 40, terminates=True),
    "key_to_door": Case("KeyToDoor-v0", 35, terminates=True),
    "miniworld": Case("MiniWorld-Sign-v0", 20),
}
if pool_tasks():
    CASES["minigrid_by_envpool"] = Case("MiniGrid-GoToDoor-5x5-v0", 100)
    CASES["procgen"] = Case("miner", 1000, idle_action=4)
SLOW = {"miniworld", "procgen"}


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in CASES]
)
def case(request):
    if request.param == "miniworld":
        request.getfixturevalue("opengl")
    return CASES[request.param]


def random_actions(env, n_steps, seed=0):
    shape = (n_steps, env.num_envs)
    return np.random.default_rng(seed).integers(0, env.single_action_space.n, shape)


def stream(env, actions, seed=None, first_env=0):
    """Return all observations of playing the actions.  [T+1, N, ...]"""
    options = {"first_env": first_env} if first_env else None
    observations = [env.reset(seed=seed, options=options)[0]]
    observations += [env.step(step)[0] for step in actions]
    return np.stack(observations)


@pytest.mark.slow
def test_spaces_are_those_of_agents_and_promise_what_is_shown(case):
    env = case.make(3, 0)
    shown, actions = env.single_observation_space, env.single_action_space
    assert isinstance(shown, gymnasium.spaces.Box)
    if len(shown.shape) == 1:
        assert shown.dtype == np.float32
    else:
        assert (shown.dtype, shown.low.min(), shown.high.max()) == (np.uint8, 0, 255)
        assert (len(shown.shape), shown.shape[0]) == (3, 3)
    assert isinstance(actions, gymnasium.spaces.Discrete)
    assert env.observation_space.shape == (3, *shown.shape)
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    first, _ = env.reset(seed=0)
    observations, rewards, terminated, truncated, _ = env.step(random_actions(env, 1)[0])
    assert all(env.observation_space.contains(seen) for seen in (first, observations))
    assert rewards.shape == terminated.shape == truncated.shape == (3,)
    assert rewards.dtype in (np.float32, np.float64)
    assert terminated.dtype == truncated.dtype == bool


def test_the_same_seed_gives_the_same_stream_and_another_seed_another(case):
    env = case.make(2, 0)
    actions = random_actions(env, 80)
    once, other = (stream(case.make(2, seed), actions) for seed in (5, 900))
    stream(env, actions)
    np.testing.assert_array_equal(stream(env, actions, seed=5), once)
    assert (other != once).any()


def test_neighbouring_seeds_share_no_worlds(case):
    actions = random_actions(case.make(1, 0), 80).repeat(3, axis=1)
    streams = [stream(case.make(3, seed), actions) for seed in range(4)]
    worlds = {each[:, i].tobytes() for each in streams for i in range(3)}
    assert len(worlds) > 9  # of twelve; where two sides are all there is, some are equal by chance


def test_an_environment_depends_on_its_own_number_and_not_on_its_neighbours(case):
    together = case.make(3, 20)
    actions = random_actions(together, 80)
    streams = stream(together, actions, seed=20)
    for i in range(3):
        alone = stream(case.make(1, 0), actions[:, i : i + 1], seed=20, first_env=i)
        np.testing.assert_array_equal(alone[:, 0], streams[:, i])
    assert (streams[:, 0] != streams[:, 1]).any()


def test_a_saved_episode_goes_on_to_the_bit(case, tmp_path):
    first, second = (EpisodeStatistics(case.make(3, seed), "") for seed in (0, 9))
    actions = random_actions(first, 130)
    first.reset(seed=4, options={"first_env": 3})
    second.reset()
    for n_before, n_after in ((0, 1), (1, 40), (60, 70)):
        for step in actions[:n_before]:
            first.step(step)
        torch.save(first.state_dict(), tmp_path / "state.pt")
        state = torch.load(tmp_path / "state.pt", weights_only=True)
        assert second.load_state_dict(state)
        for step in actions[n_before : n_before + n_after]:
            (*ours, info), (*theirs, other) = first.step(step), second.step(step)
            for one, another in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(one, another)
            for name in ("r", "l"):
                of_each = [each.get("episode", {}).get(name, np.zeros(3)) for each in (info, other)]
                np.testing.assert_array_equal(*of_each)
            np.testing.assert_array_equal(info.get("success"), other.get("success"))


def test_every_step_counts_towards_an_episode(case):
    env = case.make(2, 0)
    env.reset(seed=0)
    actions = np.full(2, case.idle_action)
    ends = []
    for t in range(1, 3 * case.time_limit + 1):
        _, _, terminated, truncated, info = env.step(actions)
        ended, other = (terminated, truncated) if case.terminates else (truncated, terminated)
        assert not other.any()
        if ended.any():
            assert ended.all()
            assert info["_final_obs"].all()
            ends.append(t)
    assert ends == [case.time_limit, 2 * case.time_limit, 3 * case.time_limit]


@pytest.mark.slow
def test_the_last_observation_of_an_ended_episode_is_kept_beside_the_first_of_the_next(case):
    env = case.make(4, 0)
    env.reset(seed=0)
    n_ends = 0
    for actions in random_actions(env, min(600, 5 * case.time_limit)):
        _, _, terminated, truncated, info = env.step(actions)
        ended = terminated | truncated
        np.testing.assert_array_equal(info.get("_final_obs", np.zeros(4, bool)), ended)
        for i in np.flatnonzero(ended):
            assert env.single_observation_space.contains(info["final_obs"][i])
            n_ends += 1
    assert n_ends > 0


@pytest.mark.parametrize(
    ("name", "suites", "reason"),
    [
        ("coinrun", {}, r"'coinrun'.* MiniGrid-\*, BabyAI-\*, MiniWorld-\*, RandomMaze-v0"),
        ("Atlantis-v0", {"Atlantis-": "atlantis"}, "needs the package 'atlantis'"),
        # The longest beginning of a name decides.
        ("MiniGrid-KeyCorridorS3R1-v0", {"MiniGrid-KeyCorridorS3R1-": "nowhere.at"}, "nowhere"),
    ],
)
def test_a_name_without_a_suite_or_its_package_is_a_users_error(name, suites, reason, monkeypatch):
    for begin, place in suites.items():
        monkeypatch.setitem(envs.SUITES, begin, place)
    check_env_name(DYNAMIC_OBSTACLES)
    with pytest.raises(UserError, match=reason):
        check_env_name(name)


def test_a_simulator_that_lacks_an_optional_part_is_a_users_error(monkeypatch):
    def make(suite, config, seed):
        raise gymnasium.error.DependencyNotInstalled("imageio is missing, please install it")

    monkeypatch.setattr(minigrid.MiniGrid, "make", make)
    with pytest.raises(UserError, match=f"'{DYNAMIC_OBSTACLES}': imageio is missing"):
        make_vector_env(settings(DYNAMIC_OBSTACLES), 0)


@pytest.mark.parametrize("suite", sorted(set(SUITES.values())))
def test_no_two_actions_of_a_suite_have_the_same_name(suite):
    names = pkgutil.resolve_name(suite).action_names
    assert len(set(names)) == len(names)
