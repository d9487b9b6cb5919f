import logging
import re
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from minigrid.core.constants import COLOR_TO_IDX
from minigrid.core.grid import Grid
from minigrid.core.world_object import Ball, Box, Door, Floor, Goal, Key, Lava, Wall, WorldObj
from minigrid.envs.babyai.core import verifier
from minigrid.utils.baby_ai_bot import BabyAIBot
from minigrid.wrappers import RGBImgPartialObsWrapper

from envs import clips_rewards, make_vector_env, minigrid
from envs.envpool_vector import open_pool, pool_tasks
from tests.agents import small_config
from utils.seeding import episode_seed

PUBLISHED = [
    "MiniGrid-DoorKey-5x5-v0",
    "MiniGrid-DoorKey-6x6-v0",
    "MiniGrid-Dynamic-Obstacles-5x5-v0",
    "MiniGrid-KeyCorridorS3R1-v0",
    "MiniGrid-MemoryS11-v0",
    "MiniGrid-RedBlueDoors-6x6-v0",
    "MiniGrid-Unlock-v0",
]
TASKS = minigrid.MiniGrid().names()
LEVEL = "BabyAI-GoToObjS4-v0"
# Of every kind of mission and of rooms.
LEVELS = [
    "ActionObjDoor",
    "BossLevel",
    "BossLevelNoUnlock",
    "FindObjS5",
    "GoTo",
    "GoToDoor",
    "GoToImpUnlock",
    "GoToLocal",
    "GoToObjMazeS5",
    "GoToRedBall",
    "GoToSeq",
    "Pickup",
    "MoveTwoAcrossS5N2",
    "OpenDoorsOrderN4",
    "OpenRedDoor",
    "PickupAbove",
    "PickupLoc",
    "PutNextLocal",
    "SynthSeq",
    "UnblockPickup",
    "UnlockToUnlock",
]
INSTRUCTIONS = {
    ", then ": verifier.BeforeInstr,
    " after you ": verifier.AfterInstr,
    " and ": verifier.AndInstr,
    "go to ": verifier.GoToInstr,
    "open ": verifier.OpenInstr,
    "pick up ": verifier.PickupInstr,
    " next to ": verifier.PutNextInstr,
}
PLACES = {" in front of you": "front", " behind you": "behind"}
PLACES |= {" on your left": "left", " on your right": "right"}
THING = rf"(?:a|the) (?:(\w+) )?(\w+?)({'|'.join(PLACES)})?"
DOORS = {"open": {"is_open": True}, "closed": {}, "locked": {"is_locked": True}}
needs_envpool = pytest.mark.skipif(not pool_tasks(), reason="envpool is not installed")


def task(env_id):
    return gymnasium.make(env_id, disable_env_checker=True).unwrapped


def settings(env, n_envs=3, minigrid_missions=None):
    return small_config(env=env, n_envs=n_envs, minigrid_missions=minigrid_missions)


def assert_drawn_alike(env):
    """Compare our image of the agent's view with MiniGrid's own, pixel by pixel."""
    expected = RGBImgPartialObsWrapper(env, tile_size=8).observation({})["image"]
    drawn = minigrid.draw(env.gen_obs()["image"][None])[0]
    np.testing.assert_array_equal(drawn.transpose(1, 2, 0), expected)


# MiniGrid's wheel lacks the pictures from which the tasks of wave function collapse are made.
@pytest.mark.quick(
    "MiniGrid-KeyCorridorS3R1-v0",
    "MiniGrid-DoorKey-5x5-v0",
    "MiniGrid-MemoryS7-v0",
)
@pytest.mark.parametrize(
    "env_id",
    [
        name
        for name in minigrid.MiniGrid().names()
        if name.startswith("MiniGrid-") and "WFC" not in name
    ],
)
def test_every_task_is_drawn_as_minigrid_draws_it(env_id):
    env = task(env_id)
    env.reset(seed=1)
    rng = np.random.default_rng(2)
    for _ in range(200 if env_id in PUBLISHED else 10):
        assert_drawn_alike(env)
        _, _, terminated, truncated, _ = env.step(rng.integers(env.action_space.n))
        if terminated or truncated:
            env.reset()


@pytest.mark.parametrize("colour", COLOR_TO_IDX)
@pytest.mark.parametrize("kind", [Ball, Box, Floor, Goal, Key, Wall, *DOORS, Lava])
def test_every_object_of_every_colour_is_drawn_as_minigrid_draws_it(kind, colour):
    env = task("MiniGrid-Empty-8x8-v0")
    env.reset(seed=0)
    empty = minigrid.draw(env.gen_obs()["image"][None])
    if kind in (Ball, Box, Key):  # carried, it is drawn under the agent
        env.carrying = kind(colour)
        assert_drawn_alike(env)
        assert (minigrid.draw(env.gen_obs()["image"][None]) != empty).any()
    if kind in DOORS:
        thing = Door(colour, **DOORS[kind])
    else:
        thing = Lava() if kind is Lava else kind(colour)
    env.put_obj(thing, *env.front_pos)
    assert_drawn_alike(env)


@needs_envpool
def test_envpool_episodes_follow_one_another_as_in_pools_of_one_that_waste_a_step():
    env_id, seed, n_envs = "MiniGrid-Dynamic-Obstacles-5x5-v0", 7, 4
    env = minigrid.make_by_envpool(settings(env_id, n_envs), seed)
    pools = [open_pool(env_id, [episode_seed(seed, row, 0)]) for row in range(n_envs)]
    images, _ = env.reset()
    expected = [pool.reset()[0]["image"] for pool in pools]
    np.testing.assert_array_equal(images, minigrid.draw(np.concatenate(expected)))
    n_ends = 0
    for actions in np.random.default_rng(0).integers(0, 3, (200, n_envs)):
        images, *outcomes, info = env.step(actions)
        for row, pool in enumerate(pools):
            raw, *outcome, _ = pool.step(actions[row : row + 1])
            assert [values[row] for values in outcomes] == outcome
            if outcome[1] or outcome[2]:
                last = minigrid.draw(raw["image"])[0]
                np.testing.assert_array_equal(info["final_obs"][row], last)
                raw, *_ = pool.step(actions[row : row + 1])
                n_ends += 1
            np.testing.assert_array_equal(images[row], minigrid.draw(raw["image"])[0])
    assert n_ends > 40


@needs_envpool
def test_envpool_rewards_and_time_limits_are_minigrids():
    env_id, n_envs = "MiniGrid-Empty-Random-5x5-v0", 16
    max_steps = task(env_id).max_steps
    env = minigrid.make_by_envpool(settings(env_id, n_envs), 3)
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


def understood(text):
    """Return BabyAI's own instruction, or the description of a thing, that a text was made of."""
    for words, kind in INSTRUCTIONS.items():
        before, found, after = text.partition(words)
        if found:
            parts = [part.removeprefix("put ") for part in (before, after) if part]
            return kind(*map(understood, parts))
    colour, kind, place = re.fullmatch(THING, text).groups()
    return verifier.ObjDesc(None if kind == "object" else kind, colour, PLACES.get(place))


def put_world(pool, env):
    """Put the world that a pool of one has just made into Gymnasium's environment."""
    world = pool.debug_states()[0]
    shape = world.width, world.height, 3
    cells, contents = (
        np.array(part, np.uint8).reshape(shape) for part in (world.grid, world.grid_contains)
    )
    env.grid, _ = Grid.decode(cells)
    for place in np.ndindex(shape[:2]):
        thing = env.grid.get(*place)
        if thing:
            thing.init_pos = thing.cur_pos = place
            thing.contains = WorldObj.decode(*contents[place])
    env.agent_pos, env.agent_dir = np.array(world.agent_pos), world.agent_dir
    env.carrying, env.step_count = None, 0


@needs_envpool
@pytest.mark.slow
@pytest.mark.quick("GoToLocal", "SynthSeq")
@pytest.mark.parametrize("name", LEVELS)
def test_envpools_babyai_is_gymnasiums(name):
    """Each world of the pool, put into Gymnasium's environment, says, shows and pays the same."""
    env = minigrid.make_by_envpool(settings(f"BabyAI-{name}-v0", 1), 5)
    other = task(f"BabyAI-{name}-v0")
    other.reset(seed=0)
    shown, _ = env.reset()
    rng, wages = np.random.default_rng(0), []
    for episode in range(6):
        put_world(env._pool, other)
        (mission,) = shown["mission"]
        other.instrs = understood(mission)
        # Its words, "a" or "the" among them, follow from the instruction and the world.
        assert other.instrs.surface(other) == mission
        other.instrs.reset_verifier(other)
        if not other.fixed_max_steps:
            rooms = other.num_rows * other.num_cols
            other.max_steps = other.num_navs_needed(other.instrs) * other.room_size**2 * rooms
        seen = other.gen_obs()["image"][None]
        np.testing.assert_array_equal(shown["image"], minigrid.draw(seen))
        bot, ended = BabyAIBot(other), False
        while not ended:
            # Every third episode is played at random, which seldom ends well.
            action = rng.integers(7) if episode % 3 == 2 else bot.replan()
            shown, (wage,), (terminated,), (truncated,), info = env.step(np.array([action]))
            _, expected, succeeded, is_late, _ = other.step(action)
            assert wage == pytest.approx(expected)
            assert (terminated, truncated) == (succeeded and not is_late, is_late)
            ended = terminated or truncated
            last = info["final_obs"][0] if ended else {k: v[0] for k, v in shown.items()}
            assert last["mission"] == mission
            np.testing.assert_array_equal(
                last["image"], minigrid.draw(other.gen_obs()["image"][None])[0]
            )
        wages.append(wage)
    assert np.count_nonzero(wages) >= 4


def test_a_task_unknown_to_envpool_is_played_slower_with_a_notice(monkeypatch, caplog):
    monkeypatch.setattr(minigrid, "pool_tasks", list)
    config = settings(PUBLISHED[0], 2)
    with caplog.at_level(logging.WARNING):
        env = minigrid.MiniGrid().make(config, seed=0)
    assert isinstance(env.unwrapped, gymnasium.vector.SyncVectorEnv)
    assert len(caplog.messages) == 1
    assert PUBLISHED[0] in caplog.messages[0]


def test_environments_to_look_at_draw_the_whole_grid_of_every_episode():
    config = settings("MiniGrid-Empty-5x5-v0", 2)
    env = minigrid.MiniGrid().make_drawn(config, seed=0)
    env.reset()
    before = env.render()
    forward = minigrid.ACTION_NAMES.index("forward")
    env.step(np.array([forward, minigrid.ACTION_NAMES.index("done")]))
    after = env.render()
    assert [picture.shape for picture in after] == [(80, 80, 3)] * 2
    assert (before[0] != after[0]).any()
    assert (before[1] == after[1]).all()


@pytest.mark.parametrize("env_id", ["MiniGrid-Dynamic-Obstacles-5x5-v0", LEVEL])
def test_it_shows_minigrids_own_pixels_and_missions_of_every_episode(env_id):
    env = minigrid.MiniGrid().make_drawn(settings(env_id, minigrid_missions=True), seed=0)
    shown, _ = env.reset(seed=11)
    others = [RGBImgPartialObsWrapper(task(env_id), tile_size=8) for _ in range(3)]
    episodes = [0, 0, 0]
    expected = [other.reset(seed=episode_seed(11, n, 0))[0] for n, other in enumerate(others)]
    generator, missions = np.random.default_rng(0), set()
    for _ in range(60):
        assert shown["mission"] == tuple(each["mission"] for each in expected)
        pixels = np.stack([each["image"] for each in expected]).transpose(0, 3, 1, 2)
        np.testing.assert_array_equal(shown["image"], pixels)
        missions |= set(shown["mission"])
        actions = generator.integers(0, env.single_action_space.n, 3)
        shown, _, terminated, truncated, info = env.step(actions)
        for n, other in enumerate(others):
            expected[n] = other.step(actions[n])[0]
            if terminated[n] or truncated[n]:
                assert info["final_obs"][n]["mission"] == expected[n]["mission"]
                episodes[n] += 1
                expected[n] = other.reset(seed=episode_seed(11, n, episodes[n]))[0]
    assert sum(episodes) > 6
    assert len(missions) > 3 or env_id != LEVEL


def test_the_example_shows_symbols_as_agents_read_them():
    config = small_config(env="examples.minigrid_symbols:Symbols-MemoryS7-v0", n_envs=2)
    env, other = make_vector_env(config, seed=0), task("MiniGrid-MemoryS7-v0")
    shown, _ = env.reset(seed=11)
    expected, _ = other.reset(seed=episode_seed(11, 0, 0))
    for action in (0, 0, 2, 2, 1):
        hot = shown[0].reshape(7, 7, 20)
        assert set(np.unique(hot)) == {0, 1}
        parts = np.split(hot, np.cumsum(minigrid.SYMBOLS)[:-1], axis=-1)
        symbols = [part.argmax(-1) for part in parts]
        np.testing.assert_array_equal(np.stack(symbols, -1), expected["image"])
        shown, *_ = env.step(np.full(2, action))
        expected, *_ = other.step(action)


@pytest.mark.parametrize(
    ("name", "missions", "is_told"),
    [
        (LEVEL, None, True),
        (LEVEL, False, False),
        ("MiniGrid-Empty-5x5-v0", None, False),
        ("MiniGrid-Empty-5x5-v0", True, True),
        *((name, None, False) for name in PUBLISHED),
    ],
)
def test_minigrid_missions_says_whether_a_mission_is_told(name, missions, is_told):
    env = minigrid.MiniGrid().make(settings(name, 1, missions), seed=0)
    shown, _ = env.reset()
    assert env.single_action_space == task(name).action_space
    assert isinstance(shown, dict) == is_told
    (one,) = [{k: v[0] for k, v in shown.items()}] if is_told else shown
    assert env.single_observation_space.contains(one)
    assert (shown["image"] if is_told else shown).shape == (1, 3, 56, 56)


def test_nothing_is_printed_of_layouts_that_are_drawn_again(capsys):
    name, seeds = "BabyAI-GoToObjDoor-v0", range(6)
    for seed in seeds:
        gymnasium.make(name, disable_env_checker=True).reset(seed=seed)
    assert "Sampling rejected" in capsys.readouterr().out
    minigrid.MiniGrid().make(settings(name, len(seeds)), seed=0).reset()
    assert capsys.readouterr().out == ""


@pytest.fixture
def own_module(in_empty_folder, monkeypatch):
    Path("my_grids.py").write_text(MY_GRIDS)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("my_grids")
    for name in ("MiniGrid-MemoryMine-v0", "MiniGrid-Drawn-v0"):
        gymnasium.registry.pop(name)


@pytest.mark.parametrize("observability", ["partial", "full"])
def test_a_task_of_the_users_own_module_is_shown_as_minigrids_own(observability, own_module):
    shared = {"n_envs": 2, "observability": observability}
    of_mine = small_config(env="my_grids:MiniGrid-MemoryMine-v0", **shared, reset_options={"a": 1})
    mine = make_vector_env(of_mine, 3)
    theirs = make_vector_env(small_config(env="MiniGrid-MemoryS9-v0", **shared), 3, drawn=True)
    generator = np.random.default_rng(0)
    shown, expected = mine.reset(seed=3)[0], theirs.reset(seed=3)[0]
    for _ in range(30):
        np.testing.assert_array_equal(shown, expected)
        np.testing.assert_array_equal(mine.cues(), theirs.cues())
        actions = generator.integers(3, size=2)
        (shown, paid, *_), (expected, wage, *_) = mine.step(actions), theirs.step(actions)
        np.testing.assert_array_equal(paid, wage)
    assert clips_rewards(of_mine.env)


def test_an_own_task_that_draws_itself_stays_as_it_is(own_module):
    env = make_vector_env(small_config(env="my_grids:MiniGrid-Drawn-v0", n_envs=2), 3)
    assert env.reset(seed=3)[0]["image"].shape == (2, 3, 35, 35)


MY_GRIDS = """
import gymnasium
from minigrid.envs import EmptyEnv, MemoryEnv
from minigrid.wrappers import RGBImgPartialObsWrapper


def drawn(**options):
    return RGBImgPartialObsWrapper(EmptyEnv(**options), tile_size=5)


gymnasium.register("MiniGrid-MemoryMine-v0", MemoryEnv, kwargs={"size": 9})
gymnasium.register("MiniGrid-Drawn-v0", drawn)
"""
