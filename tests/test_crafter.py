"""Crafter's worlds: those of the package, step by step, and the game in words as the original."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from envs import crafter, crafter_text, make_vector_env
from envs import crafter_words as words
from envs.crafter_actions import text_commands, text_nouns
from envs.crafter_drawing import draw, greyed
from envs.crafter_package import rules_of_text
from envs.crafter_phrases import ALL_ACTIONS, GOOD_ACTIONS
from envs.crafter_step import daylight_of, look, names_match, step_worlds, unlock
from envs.crafter_world import ACHIEVEMENTS, ITEMS, N_MATERIALS, NAMES, kind_at, material_at, target
from tests.crafter_worlds import add_things, their_game, world_of
from tests.golden_data import GOLDEN

FOLDER = GOLDEN / "ellm"
OBJECT = ("kind", "position", "health", "timer", "facing")
CRAFTER, TEXT = "Crafter-v1", "CrafterText-v0"


def settings(env=TEXT, n_envs=2, **changes):
    own = {"crafter_length": None, "crafter_actions": "all", "crafter_image": "gray"}
    own |= {"use_text": True, "dying": True}
    return SimpleNamespace(env=env, n_envs=n_envs, **(own | changes))


def make(seed=0, **changes):
    config = settings(**changes)
    module = crafter if config.env == CRAFTER else crafter_text
    return module.make(config, seed)


def arrays_of(name):
    with np.load(FOLDER / f"{name}.npz") as arrays:
        return dict(arrays)


def selected(arrays, at, chosen):
    """Return the state at an index, and what is in it of objects chosen by a mask."""
    state = {
        name: array[at]
        for name, array in arrays.items()
        if not name.startswith(("object_", "frame_")) and name != "things"
    }
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
    """Return the worlds after the golden steps, and both flags."""
    after = worlds.copy()
    return after, *play(after, steps["action"].astype(int))


def sentences(worlds):
    facts = np.zeros((len(worlds), 5), np.int64)
    look(worlds, facts)
    return [
        (words.scene_sentence(*f[:3]), words.inventory_sentence(f[3]), words.status_sentence(f[4]))
        for f in facts.tolist()
    ]


def local_views(worlds):
    """Return what is around each player: things, else materials.  [N, 9, 7]"""
    rows = np.arange(len(worlds))
    kinds = np.concatenate([np.zeros((len(worlds), 1), np.uint8), worlds["kind"]], 1)
    cells = np.where(
        worlds["standing"] > 0,
        kinds[rows[:, None, None], worlds["standing"]],
        worlds["materials"],
    )
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
    assert list(ALL_ACTIONS) == [each["string"] for each in tables["actions_139"]]
    assert list(GOOD_ACTIONS) == [each["string"] for each in tables["actions_27"]]
    has_effect = text_commands(ALL_ACTIONS)[:, 0] > 0
    assert has_effect.tolist() == [each["good"] for each in tables["actions_139"]]


def test_a_state_is_seen_and_said_as_in_the_original(worlds, steps, said):
    np.testing.assert_array_equal(local_views(worlds), steps["local_view"])
    expected = [(row["scene"], row["inventory_text"], row["status_text"]) for row in said]
    assert sentences(worlds) == expected


def test_what_is_faced_is_what_the_original_says(worlds, steps):
    cells = [target(world) for world in worlds]
    found = [material_at(world, *cell) for world, cell in zip(worlds, cells, strict=True)]
    assert found == steps["faced_material"].tolist()
    found = [kind_at(world, *cell) for world, cell in zip(worlds, cells, strict=True)]
    assert found == steps["faced_object"].tolist()


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
    unlocked = [list(words.unlocked_names(row.tobytes())) for row in news]
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


def test_the_unmodified_game_is_the_packages_day_and_night(monkeypatch):
    """Play until the second morning, resting now and then; 3 is a seed where the player lives."""
    seed = 3
    env, theirs = make(seed, env=CRAFTER, n_envs=1), None
    theirs = their_game(monkeypatch, seed, np.random.default_rng(seed))
    images, _ = env.reset(seed=seed)
    np.testing.assert_array_equal(images[0], theirs.reset().transpose(2, 0, 1))
    lights, slept, ended = [], False, 0
    actions = random_actions(env, 420)[:, 0]
    for step, action in enumerate(actions):
        action = 6 if 170 < step < 240 else int(action)
        image, reward, over, _ = theirs.step(action)
        images, rewards, terminated, truncated, info = env.step(np.array([action]))
        shown = info["final_obs"][0] if over else images[0]
        np.testing.assert_array_equal(shown, image.transpose(2, 0, 1), f"step {step}")
        assert rewards[0] == np.float32(reward)
        assert (terminated | truncated)[0] == over
        lights.append(theirs._world.daylight)
        slept |= theirs._player.sleeping
        if over:
            ended += 1
            np.testing.assert_array_equal(env.observe(np.arange(1))[0], theirs.reset().transpose(2, 0, 1))
    assert min(lights) < 0.1
    assert slept


def test_worlds_and_creatures_of_many_seeds_are_the_packages(monkeypatch):
    env = make(100, env=CRAFTER, n_envs=3)
    env.reset(seed=100)
    games = [their_game(monkeypatch, 100 + row) for row in range(3)]
    for game in games:
        game.reset()
    for actions in random_actions(env, 150):
        *_, terminated, truncated, _ = env.step(actions)
        for row, game in enumerate(games):
            if game.step(actions[row])[2]:
                game.reset()
            world, theirs = env._worlds[row], game._world
            np.testing.assert_array_equal(world["materials"], theirs._mat_map)
            found = zip(world["x"], world["y"], strict=True)
            expected = [tuple(thing.pos) for thing in theirs.objects]
            assert list(found)[: world["n_things"]] == expected
            assert world["inventory"].tolist() == list(game._player.inventory.values())
            assert world["words"].tolist() == theirs.random.get_state()[1].tolist()
