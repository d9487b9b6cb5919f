import functools
import os
import sys

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from envs import episodes, make_vector_env
from envs.household import simulator as housekeep
from envs.household.simulator import GRAB_RELEASE, N_STEPS
from tests import fake_housekeep
from tests.agents import small_config
from utils.errors import UserError
from utils.seeding import episode_seed

TURN_RIGHT = 2


SUITABLE = {name: ["kitchen sink", "kitchen top cabinet"] for name in ("mug", "mug 2")}
SUITABLE |= {"throw cushion": ["living room sofa"]}


def settings(folder, n_envs=1, **changed):
    own = {"housekeep_folder": str(folder), "housekeep_scene": "rs_int", "env": housekeep.NAME}
    return small_config(n_envs=n_envs, **(own | changed))


@pytest.fixture
def simulator(monkeypatch, tmp_path):
    return fake_housekeep.install(monkeypatch, tmp_path)


@pytest.fixture
def env(simulator, tmp_path):
    env = housekeep.Housekeep().make(settings(tmp_path), seed=5)
    env.reset()
    return env


def act(env, *actions):
    """Return the result of the last of several steps of one environment."""
    for action in actions:
        outcome = env.step(np.array([action]))
    return outcome


def test_the_simulator_is_opened_as_the_paper_says(env, simulator):
    (opened,) = simulator.opened
    task = opened.config.TASK_CONFIG
    assert task.ENVIRONMENT.MAX_EPISODE_STEPS == 1000
    assert (task.SIMULATOR.TURN_ANGLE, task.SIMULATOR.TILT_ANGLE) == (20, 10)
    for camera in (task.SIMULATOR.RGB_SENSOR, task.SIMULATOR.SEMANTIC_SENSOR):
        assert (camera.WIDTH, camera.HEIGHT) == (128, 128)
    grab = task.TASK.ACTIONS.GRAB_RELEASE
    assert (grab.GRAB_TYPE, grab.GRAB_DISTANCE, grab.CROSSHAIR_POS) == ("crosshair", 3.0, [64, 64])
    assert (task.DATASET.SCENE, task.DATASET.CHECKPOINT_FILE) == ("rs_int", None)
    assert task.DATASET.DATA_PATH == "data/datasets/cos_eor_v11_pruned/train/"
    assert opened.seeds == [episode_seed(5, 0, 0)]


def test_six_actions_reach_the_simulator_in_its_own_folder(env, simulator, tmp_path):
    before = os.getcwd()
    for number, name in enumerate(housekeep.ACTIONS):
        act(env, number)
        assert simulator.opened[0].taken == name
    assert env.single_action_space.n == 6
    assert os.getcwd() == before != simulator.opened[0].folder == str(tmp_path)


def test_an_image_and_what_has_been_seen_so_far_are_shown_and_what_is_in_view_is_told(env):
    shown, *_ = act(env, TURN_RIGHT)
    assert env.observation_space.contains(shown)
    assert shown["image"].shape == (1, 3, 128, 128)
    assert shown["image"][0, :, 0, 0].tolist() == [1, 1, 7]
    assert shown["seen"] == ("you have seen mug 2, and throw cushion.",)
    assert shown["status"] == ("you know kitchen sink, and kitchen top cabinet.",)
    assert shown["inventory"] == ("",)
    _, info = env.reset()
    assert info["scene"][0] == "you see mug 2 at kitchen sink."
    *_, info = act(env, TURN_RIGHT)
    assert info["scene"][0] == "you see throw cushion at kitchen top cabinet."
    assert (info["phrase"][0], info["action_success"][0]) == ("turn right", True)
    assert info["items"][0] == {}


def test_things_are_picked_up_and_placed_by_name_and_paid_by_where_they_belong(env):
    assert env.metadata["suitable"] == SUITABLE
    _, reward, *_, info = act(env, GRAB_RELEASE)  # a mug that is where it belongs
    assert (info["phrase"][0], reward[0]) == ("pick up mug 2", -1)
    assert info["items"][0] == info["items_after"][0] == {"mug 2": 1}
    assert info["inventory"][0] == "you have in your inventory mug 2."
    _, reward, *_, info = act(env, TURN_RIGHT, GRAB_RELEASE)
    assert (info["phrase"][0], reward[0]) == ("place mug 2 at kitchen top cabinet", 1)
    _, reward, *_, info = act(env, TURN_RIGHT, GRAB_RELEASE)
    assert (info["phrase"][0], reward[0]) == ("pick up mug", 0)
    assert info["rearrange_success"][0] == pytest.approx(1 / 3)
    *_, info = act(env, GRAB_RELEASE, TURN_RIGHT, GRAB_RELEASE)  # nothing is left in the sink
    assert (info["phrase"][0], info["action_success"][0]) == ("pick up", False)


def test_an_episode_lasts_a_thousand_steps_and_the_next_begins_tidy_in_mind(env, monkeypatch):
    monkeypatch.setattr(housekeep, "N_STEPS", 3)
    act(env, GRAB_RELEASE, TURN_RIGHT)
    shown, _, terminated, truncated, info = act(env, GRAB_RELEASE)
    assert (terminated[0], truncated[0]) == (False, True)
    assert info["phrase"][0] == "place mug 2 at kitchen top cabinet"
    assert info["last_scene"][0].startswith("you see mug 2 at kitchen top cabinet")
    assert info["scene"][0] == "you see mug 2 at kitchen sink."
    assert shown["seen"] == ("you have seen mug 2.",)
    assert info["final_obs"][0]["seen"] == "you have seen mug 2, and throw cushion."
    assert env.metrics() == {"rollout/rearrange_success": pytest.approx(1 / 3)}
    assert N_STEPS == 1000


def test_two_environments_have_their_own_episodes(simulator, tmp_path, monkeypatch):
    here = functools.partial(SyncVectorEnv, autoreset_mode=AutoresetMode.SAME_STEP)
    monkeypatch.setattr(episodes, "one_process_each", lambda makers, _: here(makers))
    env = make_vector_env(settings(tmp_path, n_envs=2), 3)
    env.reset(seed=3)
    *_, info = env.step(np.array([TURN_RIGHT, GRAB_RELEASE]))
    assert info["phrase"].tolist() == ["turn right", "pick up mug 2"]
    seeds = [opened.seeds[-1] for opened in simulator.opened[-2:]]
    assert seeds == [episode_seed(3, row, 0) for row in range(2)]


def test_the_episode_of_the_settings_is_played_and_one_too_high_refused(simulator, tmp_path):
    housekeep.Housekeep().make(settings(tmp_path, housekeep_episode=2), seed=0)
    assert simulator.opened[0].episode.number == 2
    with pytest.raises(UserError, match=r"rs_int has 3 in the split train\. Take one from 0 to 2"):
        housekeep.Housekeep().make(settings(tmp_path, housekeep_episode=3), 0)


def test_what_is_missing_is_named_with_where_help_is(monkeypatch, tmp_path, simulator):
    with pytest.raises(UserError, match=r"housekeep_folder: '.*where' is no folder of Housekeep"):
        housekeep.Housekeep().make(settings(tmp_path / "elsewhere"), 0)
    monkeypatch.setitem(sys.modules, "habitat_sim", None)
    with pytest.raises(UserError, match=r"habitat_sim, which is not installed.*/how-to/house"):
        housekeep.Housekeep().make(settings(tmp_path), 0)
