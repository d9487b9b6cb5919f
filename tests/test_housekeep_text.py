import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from envs import make_vector_env
from envs.household import housekeep_text
from envs.household.house import (
    AGENT,
    HELD,
    LOOK,
    N_ACTIONS,
    NEXT_PLACE,
    NEXT_ROOM,
    PICK_UP,
    PLACE,
    PLACES_FILE,
    PREVIOUS_PLACE,
    PREVIOUS_ROOM,
    RIGHT,
    SQUARE,
    TURN,
    UNKNOWN,
    WRONG,
    house_of,
)
from envs.household.housekeep_text import ACTION_NAMES, FIGURES, SIDE
from envs.wrappers import EpisodeStatistics
from utils.errors import UserError
from utils.household import read_known, read_sights

SINK, COUNTER, TABLE, FRIDGE, CABINET = range(5)


def settings(n_envs=1, **changed):
    own = {"house_rooms": 2, "house_things": 4, "house_misplaced": 2, "house_steps": 30}
    own |= {"env": housekeep_text.NAME, "n_envs": n_envs, "use_text": True}
    return SimpleNamespace(**(own | changed))


def laid_out(places, start, n_rooms=1, **changed):
    """Return one house with things in given places, by name, and the agent's place by number."""
    config = settings(house_rooms=n_rooms, house_things=len(places), house_misplaced=1, **changed)
    env = housekeep_text.make(config, 0)
    env.reset()
    house = env.households.house
    kinds = np.array([house.things.index(thing) for thing in places])
    numbers = np.array([house.places.index(place) for place in places.values()])
    env.begin_with(0, kinds, numbers, start)
    return env


def act(env, *actions):
    for action in actions:
        outcome = env.step(np.array([action]))
    return outcome


def phrases(env, *actions):
    """Return what each of several steps did, in words."""
    said = []
    for action in actions:
        info = act(env, action)[-1]
        said.append(info["phrase"][0] if info["action_success"][0] else f"no {info['phrase'][0]}")
    return said


def test_every_place_of_a_thing_exists_and_every_house_fits_the_image():
    found = json.loads(PLACES_FILE.read_text())
    places = {f"{room} {name}" for room, names in found["rooms"].items() for name in names}
    assert all(set(own) < places for own in found["belongs"].values())
    assert len(found["rooms"]) == 6
    assert len(found["belongs"]) <= SIDE * SIDE
    assert max(map(len, found["rooms"].values())) <= SIDE
    names = [*places, *found["belongs"]]
    assert not any(sign in name for name in names for sign in (",", ".", " at ", " and "))


@pytest.mark.parametrize("n_rooms", range(1, 7))
def test_every_thing_of_a_house_belongs_somewhere_but_not_everywhere(n_rooms):
    house = house_of(n_rooms)
    assert len(house.rooms) == n_rooms
    assert house.suits.any(1).all()
    assert not house.suits.all(1).any()
    assert len(house.things) >= 15
    assert house.suitable()["milk"] == ["kitchen fridge"]


def test_an_agent_goes_round_the_places_of_a_room_and_round_the_rooms():
    env = laid_out({"mug": "kitchen fridge"}, CABINET, n_rooms=2)
    moves = (NEXT_PLACE, PREVIOUS_PLACE, NEXT_ROOM, NEXT_PLACE, PREVIOUS_ROOM, NEXT_ROOM)
    assert phrases(env, *moves) == [
        *("go to kitchen sink", "go to kitchen cabinet", "go to bedroom bed"),
        *("go to bedroom wardrobe", "go to kitchen sink", "go to bedroom bed"),
    ]
    alone = laid_out({"mug": "kitchen fridge"}, SINK)
    assert phrases(alone, NEXT_ROOM, PREVIOUS_ROOM) == ["no next room", "no previous room"]


def test_things_are_turned_to_picked_up_and_placed():
    env = laid_out({"mug": "kitchen fridge", "milk": "kitchen sink", "salt": "kitchen sink"}, SINK)
    deeds = (PLACE, TURN, TURN, TURN, PICK_UP, PICK_UP, TURN, NEXT_PLACE, PICK_UP, TURN, PLACE)
    assert phrases(env, *deeds) == [
        *("no place", "turn to salt", "turn to milk", "turn to salt"),
        *("pick up salt", "no pick up", "no turn to the next thing", "go to kitchen counter"),
        *("no pick up", "no turn to the next thing", "place salt at kitchen counter"),
    ]
    assert phrases(env, PICK_UP, LOOK) == ["pick up salt", "look around"]


def test_every_step_pays_for_what_has_come_to_where_it_belongs():
    env = laid_out({"mug": "kitchen fridge", "milk": "kitchen sink"}, SINK)
    rewards = [act(env, each)[1][0] for each in (PICK_UP, PLACE, PICK_UP)]
    assert rewards == [0, 0, 0]  # milk does not belong in the sink
    rewards = [act(env, each)[1][0] for each in (*[NEXT_PLACE] * 3, PLACE, PICK_UP, PLACE)]
    assert rewards == [0, 0, 0, 1, -1, 1]


def test_an_episode_ends_when_all_is_where_it_belongs():
    env = laid_out({"mug": "kitchen fridge", "salt": "kitchen sink"}, SINK)
    outcomes = [act(env, each) for each in (PICK_UP, NEXT_PLACE, PLACE, NEXT_PLACE, NEXT_PLACE)]
    assert not any(outcome[2][0] or outcome[3][0] for outcome in outcomes)
    act(env, PICK_UP, NEXT_PLACE)
    shown, reward, terminated, truncated, info = act(env, PLACE)
    assert (reward[0], terminated[0], truncated[0]) == (1, True, False)
    assert info["success"][0]
    assert info["last_scene"][0] == (
        "you are at kitchen cabinet. you see mug at kitchen cabinet. you are targeting mug."
    )
    assert info["final_obs"][0]["scene"] == info["last_scene"][0]
    assert info["scene"][0] == shown["scene"][0]
    assert info["items_after"][0] == {}


def test_an_episode_is_cut_off_in_the_end_and_says_how_tidy_it_left_the_house():
    env = laid_out({"mug": "kitchen sink", "milk": "kitchen sink"}, SINK, house_steps=3)
    assert np.isnan(list(env.metrics().values())).all()
    _, _, terminated, truncated, info = act(env, PICK_UP, PLACE, PICK_UP)
    assert (terminated[0], truncated[0], info["success"][0]) == (False, True, False)
    assert info["items_after"][0] == {"mug": 1}
    assert info["items"][0] == {}
    assert env.metrics() == dict(zip(FIGURES, (0, 0.5, 0.5, 0, 2, 1), strict=True))


def test_looking_around_shows_the_room_until_the_agent_moves():
    env = laid_out({"mug": "kitchen fridge", "milk": "bedroom bed"}, SINK, n_rooms=2)
    assert env._told()["scene"][0] == "you are at kitchen sink. you see nothing."
    seen = act(env, LOOK)[-1]["scene"][0]
    assert seen == "you are at kitchen sink. you see mug at kitchen fridge."
    assert read_sights(seen) == {"mug": "kitchen fridge"}
    assert read_sights(act(env, NEXT_PLACE)[-1]["scene"][0]) == {}


def test_what_was_looked_at_changes_with_what_is_carried_away():
    env = laid_out({"mug": "kitchen sink", "milk": "kitchen sink"}, SINK)
    assert read_sights(act(env, LOOK, PICK_UP)[-1]["scene"][0]) == {"milk": "kitchen sink"}
    info = act(env, PLACE)[-1]
    assert set(read_sights(info["scene"][0])) == {"mug", "milk"}
    assert info["scene"][0].endswith("you are targeting mug.")


def test_what_is_held_and_what_is_known_is_told():
    env = laid_out({"mug": "kitchen sink", "milk": "kitchen sink"}, SINK, n_rooms=2)
    assert env._told()["inventory"][0] == ""
    info = act(env, PICK_UP)[-1]
    assert info["inventory"][0] == "you have in your inventory mug."
    assert info["items"][0] == {"mug": 1}
    known = read_known(info["status"][0])
    assert known == env.households.house.places[:5]
    assert read_known(act(env, NEXT_ROOM)[-1]["status"][0]) == env.households.house.places


def test_the_image_has_a_board_of_things_of_what_is_held_and_of_places():
    env = laid_out({"mug": "kitchen sink", "salt": "kitchen sink", "milk": "kitchen table"}, SINK)
    things = list(json.loads(PLACES_FILE.read_text())["belongs"])
    image = act(env, LOOK)[0]["image"][0].reshape(3, -1)
    expected = {"mug": 255, "salt": 160, "milk": 80}
    assert {things[k]: image[0, k] for k in np.flatnonzero(image[0])} == expected
    assert not image[1].any()
    assert np.flatnonzero(image[2]).tolist() == [SINK]
    image = act(env, PICK_UP, NEXT_PLACE)[0]["image"][0].reshape(3, -1)
    assert not image[0].any()
    assert np.flatnonzero(image[1]).tolist() == [things.index("mug")]
    assert np.flatnonzero(image[2]).tolist() == [COUNTER]


def test_a_cell_of_the_image_means_the_same_in_a_larger_house():
    small, large = (laid_out({"coat": "kitchen sink"}, SINK, n) for n in (2, 6))
    numbers = [env.households.house.things.index("coat") for env in (small, large)]
    assert numbers[0] != numbers[1]
    np.testing.assert_array_equal(*(act(env, LOOK)[0]["image"] for env in (small, large)))


def test_a_house_begins_with_as_many_misplaced_things_as_the_settings_say():
    env = housekeep_text.make(settings(n_envs=20, house_things=6, house_misplaced=5), 0)
    env.reset()
    of = env.households
    assert [of.n_right(row) for row in range(20)] == [1] * 20
    assert all(len(set(kinds)) == 6 for kinds in of.kinds.tolist())
    assert len({tuple(row) for row in of.kinds.tolist()}) == 20


def test_words_are_left_out_where_the_settings_say_so_and_info_tells_them_still():
    env = housekeep_text.make(settings(use_text=False), 0)
    shown, info = env.reset()
    assert set(shown) == {"image"}
    assert env.observation_space.contains(shown)
    assert info["scene"][0].startswith("you are at ")


def play(env, actions):
    seen = []
    for row in actions:
        shown, *outcome, info = env.step(row)
        words = [tuple(info[name]) for name in ("scene", "last_scene", "phrase", "inventory")]
        seen.append((shown["image"].tobytes(), tuple(shown["scene"]), *map(tuple, outcome), words))
    return seen


def test_it_goes_on_exactly_where_it_was_saved(tmp_path):
    first, second = (
        EpisodeStatistics(housekeep_text.make(settings(3), seed), "") for seed in (3, 4)
    )
    generator = np.random.default_rng(0)
    for env in (first, second):
        env.reset()
        play(env, generator.integers(0, N_ACTIONS, (45, 3)))
    torch.save(first.state_dict(), tmp_path / "state.pt")
    assert second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert second.metrics() == first.metrics()
    actions = generator.integers(0, N_ACTIONS, (70, 3))
    assert play(first, actions) == play(second, actions)


def test_what_is_told_already_does_not_change():
    env = housekeep_text.make(settings(4, house_steps=5), 0)
    env.reset()
    generator, kept = np.random.default_rng(1), []
    for _ in range(20):
        shown, *_, info = env.step(generator.integers(0, N_ACTIONS, 4))
        words = {name: info[name] for name in ("scene", "last_scene", "phrase", "items_after")}
        parts = words | shown
        kept.append((parts, {name: values.copy() for name, values in parts.items()}))
    for parts, copies in kept:
        for name, values in parts.items():
            np.testing.assert_array_equal(values, copies[name])


def test_a_plan_shows_where_the_agent_is_what_it_holds_and_what_is_misplaced():
    env = laid_out({"mug": "kitchen sink", "milk": "kitchen sink"}, SINK, n_rooms=2)
    (plan,) = env.render()
    assert plan.shape == (2 * SQUARE, 5 * SQUARE, 3)
    assert plan.dtype == np.uint8

    def colours(picture):
        return {tuple(colour) for colour in picture.reshape(-1, 3).tolist()}

    sink, bed = plan[:SQUARE, :SQUARE], plan[SQUARE:, :SQUARE]
    assert {AGENT, RIGHT, WRONG} <= colours(sink)
    assert UNKNOWN in colours(bed)
    act(env, PICK_UP, NEXT_ROOM)
    (plan,) = env.render()
    assert {AGENT, HELD} <= colours(plan[SQUARE:, :SQUARE])
    assert UNKNOWN not in colours(plan)


def test_episodes_are_counted_and_succeed_or_not():
    env = make_vector_env(settings(2, house_steps=4), 0)
    env.reset()
    assert env.has_success
    for _ in range(4):
        *_, info = env.step(np.full(2, LOOK))
    assert info["episode"]["l"].tolist() == [4, 4]
    assert info["episode"]["success"].tolist() == [False, False]


def test_actions_have_names_of_their_own():
    assert len(set(ACTION_NAMES)) == N_ACTIONS


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (
            {"house_rooms": 1, "house_things": 20},
            "house_things: 20, and 15 things belong in a house",
        ),
        ({"house_misplaced": 5}, "house_misplaced: 5, and there are house_things=4"),
    ],
)
def test_too_many_things_are_refused(changed, line):
    with pytest.raises(UserError, match=line):
        housekeep_text.make(settings(**changed), 0)
