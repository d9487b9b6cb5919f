"""Crafter's worlds: those of the package, step by step, and the game in words as the original."""

import json
from pathlib import Path

import numba
import numpy as np
import pytest
from numba import config

from envs import crafter, make_vector_env
from envs.crafter import ALL_ACTIONS, GOOD_ACTIONS, CrafterText
from envs.crafter import world as compilation
from envs.crafter.render import draw, greyed
from envs.crafter.rules import daylight_of, names_match, rules_of_text, step_worlds, unlock
from envs.crafter.sentences import facts_of_worlds, text_commands, text_nouns, unlocked_names
from envs.crafter.sentences import said as said_of
from envs.crafter.world import ACHIEVEMENTS, ITEMS, NAMES, constants, material_at, target
from envs.episodes import checksum
from envs.vector import EpisodeStatistics
from tests.agents import small_config
from tests.crafter_worlds import add_things, their_game, world_of
from tests.golden_data import GOLDEN
from utils.seeding import episode_seed

FOLDER = GOLDEN / "ellm"
OBJECT = ("kind", "position", "health", "timer", "facing")
CRAFTER, TEXT = "Crafter-v1", "CrafterText-v0"


def make(seed=0, env=TEXT, n_envs=2, **changes):
    suite = crafter.Crafter() if env == CRAFTER else CrafterText()
    return suite.make(small_config(env=env, n_envs=n_envs, **changes), seed)


def arrays_of(name):
    with np.load(FOLDER / f"{name}.npz") as arrays:
        return dict(arrays)


def selected(arrays, at, chosen):
    """Return the state at an index, and its objects chosen by a mask."""
    others = ("object_", "frame_", "things")
    state = {name: arrays[name][at] for name in arrays if not name.startswith(others)}
    rows = np.flatnonzero(chosen)
    objects = [{name: arrays[f"object_{name}"][row] for name in OBJECT} for row in rows]
    return state, objects


@pytest.fixture(scope="module")
def steps():
    return arrays_of("crafter_steps")


@pytest.fixture(scope="module")
def said():
    return json.loads((FOLDER / "crafter_steps.json").read_text())


@pytest.fixture(scope="module")
def worlds(steps):
    """Return the worlds of all rows before their steps; tests copy them."""
    made = []
    bounds = np.searchsorted(steps["object_row"], np.arange(len(steps["seed"]) + 1))
    for row, seed in enumerate(steps["seed"]):
        chosen = np.zeros(len(steps["object_row"]), bool)
        chosen[bounds[row] : bounds[row + 1]] = True
        state, objects = selected(steps, row, chosen)
        made.append(world_of(state, seed))
        add_things(made[-1][0], objects)
    return np.concatenate(made)


def play(worlds, actions, phrases=ALL_ACTIONS):
    """Take one step of CrafterText; return both success flags.  [N] and [N]"""
    matched, changed = (np.zeros(len(worlds), bool) for _ in range(2))
    names_match(worlds, text_nouns(phrases)[actions], matched)
    light = daylight_of(worlds["steps"] + 1)
    step_worlds(worlds, text_commands(phrases)[actions], light, rules_of_text(), changed)
    return changed | matched, changed


@pytest.fixture(scope="module")
def played(worlds, steps):
    after = worlds.copy()
    return after, *play(after, steps["action"].astype(int))


def sentences(worlds):
    parts = said_of(facts_of_worlds(worlds))
    return list(zip(*(parts[name] for name in ("scene", "inventory", "status")), strict=True))


def local_views(worlds):
    """Return the cells around each player: things, else materials.  [N, 9, 7]"""
    rows = np.arange(len(worlds))
    kinds = np.concatenate([np.zeros((len(worlds), 1), np.uint8), worlds["kind"]], 1)
    standing = worlds["standing"]
    cells = np.where(standing > 0, kinds[rows[:, None, None], standing], worlds["materials"])
    padded = np.pad(cells, ((0, 0), (4, 4), (3, 3)))
    corners = zip(padded, worlds["x"][:, 0], worlds["y"][:, 0], strict=True)
    return np.stack([each[x : x + 9, y : y + 7] for each, x, y in corners])


def pairs(worlds, x, y):
    return np.stack([worlds[x][:, 0], worlds[y][:, 0]], 1)


def test_names_and_recipes_are_those_of_the_package_and_of_the_original():
    tables = json.loads((FOLDER / "crafter_tables.json").read_text())
    numbers = tables["material_ids"] | tables["object_ids"]
    assert list(NAMES) == sorted(numbers, key=numbers.get)
    assert (list(ITEMS), list(ACHIEVEMENTS)) == (tables["items"], tables["achievements"])
    assert list(crafter.ACTION_NAMES) == constants.actions
    assert list(ALL_ACTIONS) == [each["string"] for each in tables["actions_139"]]
    assert list(GOOD_ACTIONS) == [each["string"] for each in tables["actions_27"]]
    has_effect = text_commands(ALL_ACTIONS)[:, 0] > 0
    assert has_effect.tolist() == [each["good"] for each in tables["actions_139"]]


def test_every_step_of_the_original_is_repeated_exactly(played, steps):
    after, action_success, eval_success = played
    np.testing.assert_array_equal(action_success, steps["action_success"])
    np.testing.assert_array_equal(eval_success, steps["eval_success"])
    np.testing.assert_array_equal(after["inventory"], steps["inventory_after"])
    np.testing.assert_array_equal(after["achievements"], steps["achievements_after"])
    np.testing.assert_array_equal(after["sleeping"], steps["sleeping_after"])
    np.testing.assert_array_equal(pairs(after, "x", "y"), steps["position_after"])
    np.testing.assert_array_equal(pairs(after, "facing_x", "facing_y"), steps["facing_after"])
    np.testing.assert_array_equal(local_views(after), steps["local_view_after"])


def test_what_a_step_led_to_is_said_and_paid_as_in_the_original(played, steps, said):
    after = played[0].copy()
    names = ("scene_after", "inventory_text_after", "status_text_after")
    assert sentences(after) == [tuple(row[name] for name in names) for row in said]
    news = np.zeros((len(after), len(ACHIEVEMENTS)), bool)
    unlock(after, news)
    np.testing.assert_array_equal(news.any(1), steps["env_reward"])
    unlocked = [list(unlocked_names(row.tobytes())) for row in news]
    assert unlocked == [row["unlocked"] for row in said]
    is_over = (steps["length"] > 0) & (after["steps"] >= steps["length"])
    np.testing.assert_array_equal((after["inventory"][:, 0] <= 0) | is_over, steps["done"])


def test_all_actions_before_everything_do_what_they_do_in_the_original():
    arena = arrays_of("crafter_arena")
    actions = np.arange(len(ALL_ACTIONS))
    for thing, setting in np.ndindex(arena["seed"].shape):
        chosen = (arena["object_thing"] == thing) & (arena["object_setting"] == setting)
        state, objects = selected(arena, (thing, setting), chosen)
        (before,) = made = world_of(state, state["seed"])
        add_things(before, objects)
        x, y = target(before)
        faced = before["standing"][x, y] if 0 <= x < 64 and 0 <= y < 64 else 0
        after = np.repeat(made, len(actions))
        action_success, eval_success = play(after, actions)
        where = f"{arena['things'][thing]}, setting {setting}"
        found = {
            "action_success": action_success,
            "eval_success": eval_success,
            "inventory_change": after["inventory"] - before["inventory"],
            "achievement_change": after["achievements"],
            "position_change": pairs(after, "x", "y") - pairs(made, "x", "y"),
            "sleeping_after": after["sleeping"],
            "faced_material_after": [material_at(world, x, y) for world in after],
        }
        for name, values in found.items():
            np.testing.assert_array_equal(values, state[name], f"{where}: {name}")
        assert faced > 0 or (state["faced_object_health_after"] == -1).all()


@pytest.mark.slow
def test_pictures_by_day_are_those_of_the_game_and_of_the_original_pixel_by_pixel(worlds, steps):
    rows = steps["frame_row"]
    shown = worlds[rows]
    shown["daylight"] = steps["daylight"][rows]
    frames = draw(shown, np.arange(len(rows)), 64)
    np.testing.assert_array_equal(frames.transpose(0, 2, 3, 1), steps["frame_rgb"])
    np.testing.assert_array_equal(greyed(frames), steps["frame_gray"])


def random_actions(env, n_steps, seed=0):
    shape = (n_steps, env.num_envs)
    return np.random.default_rng(seed).integers(0, env.single_action_space.n, shape)


@pytest.mark.slow
def test_the_unmodified_game_is_the_packages_day_and_night(monkeypatch):
    seed, n_envs = 10, 3
    env = make(seed, env=CRAFTER, n_envs=n_envs)
    images, _ = env.reset(seed=seed)
    games, n_begun, lights, slept = [None] * n_envs, [0] * n_envs, [], False

    def begin(row):
        games[row] = their_game(monkeypatch, episode_seed(seed, row, n_begun[row]))
        n_begun[row] += 1
        np.testing.assert_array_equal(images[row], games[row].reset().transpose(2, 0, 1))

    for row in range(n_envs):
        begin(row)
    for step, actions in enumerate(random_actions(env, 300)):
        actions[0] = 6 if 170 < step < 240 else actions[0]  # sleep
        images, rewards, terminated, truncated, info = env.step(actions)
        for row, game in enumerate(games):
            image, reward, over, _ = game.step(actions[row])
            shown = info["final_obs"][row] if over else images[row]
            np.testing.assert_array_equal(shown, image.transpose(2, 0, 1), f"step {step}")
            assert rewards[row] == np.float32(reward)
            assert (terminated | truncated)[row] == over
            lights.append(game._world.daylight)
            slept |= game._player.sleeping
            if over:
                begin(row)
                continue
            world, theirs = env.worlds[row], game._world
            np.testing.assert_array_equal(world["materials"], theirs._mat_map)
            found = list(zip(world["x"], world["y"], strict=True))
            expected = [tuple(thing.pos) for thing in theirs.objects]
            assert found[: world["n_things"]] == expected
            assert world["inventory"].tolist() == list(game._player.inventory.values())
            assert world["words"].tolist() == theirs.random.get_state()[1].tolist()
    assert min(lights) < 0.2
    assert slept
    assert sum(n_begun) > n_envs


def observed(env, n_steps, seed=0):
    """Return how often random play was cut off, and a checksum of all observations and info."""
    n_ends, found = 0, 0
    for actions in random_actions(env, n_steps, seed):
        *shown, truncated, info = env.step(actions)
        info.pop("episode", None)  # it holds the time of day
        n_ends += int(truncated.all())
        found = checksum((shown, truncated, info), found)
    return n_ends, found


@pytest.mark.slow
def test_a_saved_game_goes_on_to_the_bit_through_the_night():
    env = EpisodeStatistics(make(5, crafter_length=190, terminate_on_death=False), TEXT)
    env.reset(seed=5)
    observed(env, 175)
    state = env.state_dict()
    expected = observed(env, 30, seed=1)
    assert expected[0] == 1
    other = EpisodeStatistics(make(0, crafter_length=190, terminate_on_death=False), TEXT)
    other.reset(seed=77)
    assert other.load_state_dict(state)
    assert observed(other, 30, seed=1) == expected
    assert other.metrics() == env.metrics()


def test_a_state_of_other_environments_is_refused():
    state = make(0).state_dict()
    state["achievements"]["ever"] = state["achievements"]["ever"][:5]
    with pytest.raises(ValueError, match="not those of Crafter"):
        make(0).load_state_dict(state)


@pytest.mark.parametrize("image", ["gray", "colour"])
@pytest.mark.parametrize("use_text", [True, False])
def test_an_observation_is_what_the_settings_ask_for(image, use_text):
    env = make(crafter_image=image, use_text=use_text)
    observation, info = env.reset(seed=0)
    shape = (2, 1, 84, 84) if image == "gray" else (2, 3, 64, 64)
    assert observation["image"].shape == shape
    assert env.observation_space.contains(observation)
    assert ("caption" in observation) == use_text
    if use_text:
        parts = zip(info["scene"], info["inventory"], info["status"], strict=True)
        expected = [" ".join(filter(None, each)) for each in parts]
        assert observation["caption"].tolist() == expected
    assert env.observation_space.contains(env.step(np.array([0, 1]))[0])


def test_info_tells_of_the_step_and_of_the_states_before_and_after_a_reset():
    env = make(crafter_length=3)
    env.reset(seed=0)
    chop = ALL_ACTIONS.index("chop grass")
    env.step(np.array([0, chop]))
    info = env.step(np.array([ALL_ACTIONS.index("move left"), chop]))[-1]
    assert info["around_target"][0][2][1] == "player"  # east of the cell that is faced
    observation, *_, truncated, info = env.step(np.array([0, chop]))
    assert truncated.all()
    assert info["phrase"].tolist() == ["do nothing", "chop grass"]
    assert info["eval_success"][0]
    for row in range(2):
        last = [info[f"last_{name}"][row] for name in ("scene", "inventory", "status")]
        assert info["final_obs"][row]["caption"] == " ".join(filter(None, last))
        assert env.single_observation_space.contains(info["final_obs"][row])
        assert info["scene"][row] in observation["caption"][row]
        assert {name for column in info["around_target"][row] for name in column} <= {*NAMES, None}
    assert info["items"].tolist() == [{}, {}]


def test_where_dying_is_off_an_episode_goes_on():
    for dying in (True, False):
        env = make(n_envs=1, terminate_on_death=dying)
        env.reset(seed=0)
        env.worlds["inventory"][:, 0] = 1
        env.worlds["recovery"] = -15
        env.worlds["inventory"][:, 1] = 0
        assert env.step(np.array([0]))[2].tolist() == [dying]


def test_achievements_are_counted_by_episode_and_over_the_run():
    env = make_vector_env(small_config(env=TEXT, n_envs=2, crafter_length=4), 0)
    env.reset(seed=0)
    assert env.metrics()["rollout/achievements_total"] == 0
    assert np.isnan(env.metrics()["rollout/achievements_mean"])
    world = env.unwrapped.worlds
    world["achievements"][0, [6, 20]] = 1  # wood collected, a table placed
    info = env.step(np.zeros(2, int))[-1]
    assert info["unlocked"].tolist() == [("collect_wood", "place_table"), ()]
    for _ in range(3):
        env.step(np.zeros(2, int))
    metrics = env.metrics()
    assert metrics["rollout/achievements_mean"] == 1
    assert metrics["rollout/achievements_total"] == 2
    assert metrics["achievements/collect_wood"] == metrics["achievements/place_table"] == 0.5
    assert metrics["achievements/collect_coal"] == 0
    assert len(metrics) == 2 + len(ACHIEVEMENTS)


def test_a_larger_picture_shows_every_world_and_draws_nothing_from_its_dice():
    env, twin = (make(n_envs=2, env=CRAFTER) for _ in range(2))
    for each in (env, twin):
        each.reset(seed=0)
        each.worlds["daylight"], each.worlds["steps"] = 0.2, 209  # the night is near
    pictures = env.render()
    assert [picture.shape for picture in pictures] == [(144, 144, 3)] * 2
    assert (pictures[0] != pictures[1]).any()
    shown, expected = (each.step(np.zeros(2, int))[0] for each in (env, twin))
    np.testing.assert_array_equal(shown, expected)  # and the night's noise in them


def test_compiled_code_has_a_folder_and_the_wait_for_it_is_told_once(monkeypatch, tmp_path, caplog):
    assert Path(compilation.FOLDER).parts[-3:-1] == ("helm", "crafter")
    monkeypatch.setattr(compilation, "FOLDER", str(tmp_path))
    before = config.CACHE_DIR
    compilation.tell_of_compiling()
    assert "compiling the rules of Crafter" in caplog.text
    caplog.clear()
    assert compilation.compiled(_twice)(21) == 42
    assert before == config.CACHE_DIR
    assert list(tmp_path.rglob("*_twice*.nbi"))
    compilation.tell_of_compiling()
    assert caplog.text == ""


def test_where_nothing_can_be_written_compiled_code_is_not_kept(monkeypatch):
    def njit(function=None, cache=False):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return function

    monkeypatch.setattr(numba, "njit", njit)
    assert compilation.compiled(_twice) is _twice


def _twice(number):
    return 2 * number
