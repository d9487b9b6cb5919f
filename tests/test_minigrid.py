import logging
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

from envs import minigrid
from envs.envpool_vector import open_pool, pool_tasks
from envs.episodes import episode_seed

pytest.importorskip("minigrid")
from minigrid.core.constants import COLOR_TO_IDX
from minigrid.core.world_object import Ball, Box, Door, Floor, Goal, Key, Lava, Wall
from minigrid.wrappers import RGBImgPartialObsWrapper

PUBLISHED = [
    "MiniGrid-DoorKey-5x5-v0",
    "MiniGrid-DoorKey-6x6-v0",
    "MiniGrid-Dynamic-Obstacles-5x5-v0",
    "MiniGrid-KeyCorridorS3R1-v0",
    "MiniGrid-MemoryS11-v0",
    "MiniGrid-RedBlueDoors-6x6-v0",
    "MiniGrid-Unlock-v0",
]
DOORS = {"open": {"is_open": True}, "closed": {}, "locked": {"is_locked": True}}
# MiniGrid's wheel lacks the pictures from which the tasks of wave function collapse are made.
OTHERS = [
    name
    for name in minigrid.names()
    if name not in PUBLISHED and not name.startswith("MiniGrid-WFC-")
]
needs_envpool = pytest.mark.skipif(not pool_tasks(), reason="envpool is not installed")


def task(env_id):
    """Return one of MiniGrid's own environments."""
    return gymnasium.make(env_id, disable_env_checker=True).unwrapped


def assert_drawn_alike(env):
    """Compare our image of what the agent sees with MiniGrid's own, pixel by pixel."""
    expected = RGBImgPartialObsWrapper(env, tile_size=8).observation({})["image"]
    drawn = minigrid.draw(env.gen_obs()["image"][None])[0]
    np.testing.assert_array_equal(drawn.transpose(1, 2, 0), expected)


def assert_random_play_is_drawn_alike(env_id, n_steps):
    env = task(env_id)
    env.reset(seed=1)
    rng = np.random.default_rng(2)
    for _ in range(n_steps):
        assert_drawn_alike(env)
        _, _, terminated, truncated, _ = env.step(rng.integers(env.action_space.n))
        if terminated or truncated:
            env.reset()


@pytest.mark.parametrize("env_id", PUBLISHED)
def test_published_tasks_are_drawn_as_minigrid_draws_them(env_id):
    assert_random_play_is_drawn_alike(env_id, 200)


@pytest.mark.parametrize("env_id", OTHERS)
def test_every_other_task_is_drawn_as_minigrid_draws_it(env_id):
    assert_random_play_is_drawn_alike(env_id, 10)


@pytest.mark.parametrize("colour", COLOR_TO_IDX)
@pytest.mark.parametrize("kind", [Ball, Box, Floor, Goal, Key, Wall, *DOORS, Lava])
def test_every_object_of_every_colour_is_drawn_as_minigrid_draws_it(kind, colour):
    env = task("MiniGrid-Empty-8x8-v0")
    env.reset(seed=0)
    if kind in DOORS:
        thing = Door(colour, **DOORS[kind])
    else:
        thing = Lava() if kind is Lava else kind(colour)
    env.put_obj(thing, *env.front_pos)
    assert_drawn_alike(env)


@pytest.mark.parametrize("colour", COLOR_TO_IDX)
@pytest.mark.parametrize("kind", [Ball, Box, Key])
def test_a_carried_object_is_drawn_under_the_agent(kind, colour):
    env = task("MiniGrid-Empty-8x8-v0")
    env.reset(seed=0)
    empty_handed = minigrid.draw(env.gen_obs()["image"][None])
    env.carrying = kind(colour)
    assert_drawn_alike(env)
    assert (minigrid.draw(env.gen_obs()["image"][None]) != empty_handed).any()


def test_a_batch_is_drawn_as_its_views_one_by_one():
    symbols = np.random.default_rng(0).integers(0, 3, (5, 7, 7, 3), np.uint8)
    one_by_one = [minigrid.draw(view[None])[0] for view in symbols]
    np.testing.assert_array_equal(minigrid.draw(symbols), one_by_one)


@needs_envpool
@pytest.mark.parametrize("env_id", PUBLISHED)
def test_envpool_offers_the_published_tasks_with_the_same_actions(env_id):
    fast = minigrid.make_by_envpool(env_id, 1, 0)
    assert fast.single_action_space == task(env_id).action_space
    assert fast.single_observation_space.shape == (3, 56, 56)


@needs_envpool
def test_envpool_episodes_follow_one_another_as_in_a_pool_that_wastes_a_step():
    env_id, seed, n_steps = "MiniGrid-Dynamic-Obstacles-5x5-v0", 7, 400
    actions = np.random.default_rng(0).integers(0, 3, n_steps)
    env = minigrid.make_by_envpool(env_id, 1, seed)
    pool = open_pool(env_id, [episode_seed(seed, 0, 0)])
    np.testing.assert_array_equal(env.reset()[0], minigrid.draw(pool.reset()[0]["image"]))
    n_ends = 0
    for action in actions:
        image, reward, terminated, truncated, info = env.step(np.array([action]))
        raw, *outcome, _ = pool.step(np.array([action]))
        assert [reward, terminated, truncated] == outcome
        if terminated or truncated:
            np.testing.assert_array_equal(info["final_obs"][0], minigrid.draw(raw["image"])[0])
            raw, *_ = pool.step(np.array([action]))
            n_ends += 1
        np.testing.assert_array_equal(image, minigrid.draw(raw["image"]))
    assert n_ends > 20


@needs_envpool
def test_envpool_rewards_and_time_limits_are_minigrids():
    env_id, n_envs = "MiniGrid-Empty-Random-5x5-v0", 16
    max_steps = task(env_id).max_steps
    env = minigrid.make_by_envpool(env_id, n_envs, 3)
    env.reset()
    rng = np.random.default_rng(4)
    lengths = np.zeros(n_envs, int)
    seen = {"terminated": 0, "truncated": 0}
    for _ in range(300):
        _, rewards, terminated, truncated, _ = env.step(rng.integers(0, 7, n_envs))
        lengths += 1
        expected = np.where(terminated, 1 - 0.9 * lengths / max_steps, 0)
        np.testing.assert_allclose(rewards[~truncated], expected[~truncated], atol=1e-6)
        np.testing.assert_array_equal(truncated, lengths == max_steps)
        seen["terminated"] += terminated.sum()
        seen["truncated"] += truncated.sum()
        lengths[terminated | truncated] = 0
    assert min(seen.values()) > 5


def test_gymnasium_environments_equal_minigrid_played_by_hand():
    env_id, n_envs, seed = "MiniGrid-Dynamic-Obstacles-5x5-v0", 2, 11
    env = minigrid.make_by_gymnasium(env_id, n_envs, seed=0)
    images, _ = env.reset(seed=seed)
    by_hand = [RGBImgPartialObsWrapper(task(env_id), tile_size=8) for _ in range(n_envs)]
    episodes = [0] * n_envs
    expected = [
        each.reset(seed=episode_seed(seed, i, 0))[0]["image"] for i, each in enumerate(by_hand)
    ]
    rng = np.random.default_rng(5)
    for _ in range(60):
        np.testing.assert_array_equal(images.transpose(0, 2, 3, 1), expected)
        actions = rng.integers(0, 3, n_envs)
        images, _, terminated, truncated, info = env.step(actions)
        for i, each in enumerate(by_hand):
            expected[i] = each.step(actions[i])[0]["image"]
            if terminated[i] or truncated[i]:
                np.testing.assert_array_equal(info["final_obs"][i].transpose(1, 2, 0), expected[i])
                episodes[i] += 1
                own = episode_seed(seed, i, episodes[i])
                expected[i] = each.reset(seed=own)[0]["image"]
    assert min(episodes) > 1


def test_a_task_unknown_to_envpool_is_played_slower_with_a_notice(monkeypatch, caplog):
    monkeypatch.setattr(minigrid, "pool_tasks", list)
    config = SimpleNamespace(env=PUBLISHED[0], n_envs=2, missions=None)
    with caplog.at_level(logging.WARNING):
        env = minigrid.make(config, seed=0)
    assert isinstance(env.unwrapped, gymnasium.vector.SyncVectorEnv)
    assert len(caplog.messages) == 1
    assert PUBLISHED[0] in caplog.messages[0]


def test_environments_to_look_at_draw_the_whole_grid_of_every_episode():
    config = SimpleNamespace(env="MiniGrid-Empty-5x5-v0", n_envs=2, missions=None)
    env = minigrid.make_drawn(config, seed=0)
    env.reset()
    before = env.render()
    forward = minigrid.ACTION_NAMES.index("forward")
    env.step(np.array([forward, minigrid.ACTION_NAMES.index("done")]))
    after = env.render()
    assert [picture.shape for picture in after] == [(80, 80, 3)] * 2
    assert (before[0] != after[0]).any()
    assert (before[1] == after[1]).all()
