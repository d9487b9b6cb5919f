import functools
import warnings

import gymnasium
import numpy as np
import pytest
import torch

from envs import minigrid
from envs.minigrid_state import UnknownKindError, load_world_state, world_state

warnings.simplefilter("ignore")


@functools.cache
def playable_tasks():
    """Return the tasks that can be opened here; some need files their package does not bring."""
    tasks = []
    for name in minigrid.names():
        try:
            gymnasium.make(name, disable_env_checker=True).reset(seed=0)
        except FileNotFoundError:
            continue
        tasks.append(name)
    return tasks


def task(name):
    return gymnasium.make(name, disable_env_checker=True)


def play(env, actions):
    """Play on and return everything that is seen, new episodes included."""
    seen = []
    for action in actions:
        observation, *outcome, _ = env.step(action % env.action_space.n)
        if outcome[1] or outcome[2]:
            observation, _ = env.reset()
        grid = env.unwrapped.grid.encode().tobytes()
        seen.append((observation["image"].tobytes(), observation["mission"], grid, *outcome))
    return seen


def through_a_file(state, path):
    torch.save(state, path)
    return torch.load(path, weights_only=True)


def test_every_task_goes_on_exactly_where_it_was_saved(tmp_path):
    assert len(playable_tasks()) > 70
    generator = np.random.default_rng(0)
    for name in playable_tasks():
        first, second = task(name), task(name)
        first.reset(seed=3)
        second.reset(seed=4)
        play(first, generator.integers(0, 7, 20))
        state = through_a_file(world_state(first.unwrapped), tmp_path / "state.pt")
        load_world_state(second.unwrapped, state)
        actions = generator.integers(0, 7, 60)
        assert play(first, actions) == play(second, actions), name


def test_one_thing_under_two_names_stays_one_thing():
    first, second = task("MiniGrid-RedBlueDoors-6x6-v0"), task("MiniGrid-RedBlueDoors-6x6-v0")
    first.reset(seed=0)
    second.reset(seed=1)
    load_world_state(second.unwrapped, world_state(first.unwrapped))
    door = second.unwrapped.red_door
    assert any(thing is door for thing in second.unwrapped.grid.grid)
    assert door is not first.unwrapped.red_door


def test_saving_does_not_disturb_the_play():
    first, second = (
        task("MiniGrid-Dynamic-Obstacles-5x5-v0"),
        task("MiniGrid-Dynamic-Obstacles-5x5-v0"),
    )
    actions = np.random.default_rng(0).integers(0, 3, 50)
    first.reset(seed=0)
    second.reset(seed=0)
    world_state(first.unwrapped)
    assert play(first, actions) == play(second, actions)


def test_only_minigrids_own_classes_come_to_life():
    env = task("MiniGrid-Empty-5x5-v0")
    env.reset(seed=0)
    state = world_state(env.unwrapped)
    state["objects"][0] = ("subprocess.Popen", state["objects"][0][1])
    with pytest.raises(KeyError, match="subprocess"):
        load_world_state(env.unwrapped, state)


def test_what_has_no_plain_form_makes_the_state_none():
    env = minigrid.make_by_gymnasium("MiniGrid-Empty-5x5-v0", 2, seed=0)
    assert env.state_dict() is not None
    env.envs[0].unwrapped.helper = lambda: None
    with pytest.raises(UnknownKindError, match="function has no plain form"):
        world_state(env.envs[0].unwrapped)
    assert env.state_dict() is None


def test_vector_environments_go_on_with_their_random_streams(tmp_path):
    name = "MiniGrid-Dynamic-Obstacles-5x5-v0"
    first, second = (minigrid.make_by_gymnasium(name, 3, seed=seed) for seed in (0, 9))
    actions = np.random.default_rng(0).integers(0, 3, (60, 3))
    for row in actions[:25]:
        first.step(row)
    second.load_state_dict(through_a_file(first.state_dict(), tmp_path / "state.pt"))
    for row in actions:
        for one, other in zip(first.step(row)[:4], second.step(row)[:4], strict=True):
            np.testing.assert_array_equal(one, other)
