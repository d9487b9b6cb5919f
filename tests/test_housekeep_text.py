import json

import numpy as np

from envs.household import text_world
from envs.household.text_world import ACTION_NAMES, FIGURES, PLACES_FILE, SIDE, SQUARE, house_of
from tests.agents import small_config
from utils.household import read_known, read_sights

SINK, COUNTER, TABLE, FRIDGE, CABINET = range(5)
N_ACTIONS = len(ACTION_NAMES)
NEXT_ROOM, PREVIOUS_ROOM, NEXT_PLACE, PREVIOUS_PLACE, LOOK, TURN, PICK_UP, PLACE = range(N_ACTIONS)


def settings(n_envs=1, **changed):
    own = {"house_rooms": 2, "house_things": 4, "house_misplaced": 2, "house_steps": 30}
    return small_config(env=text_world.NAME, n_envs=n_envs, **(own | changed))


def laid_out(places, start, n_rooms=1, **changed):
    """Return one house with things in given places, by name, and the agent's place by number."""
    config = settings(house_rooms=n_rooms, house_things=len(places), house_misplaced=1, **changed)
    env = text_world.HousekeepText().make(config, 0)
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
    """Return the deed of each of several steps, in words."""
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
    for n_rooms in range(1, 7):  # things belong somewhere, but not everywhere
        house = house_of(n_rooms)
        assert len(house.rooms) == n_rooms
        assert house.suits.any(1).all()
        assert not house.suits.all(1).any()
        assert house.suitable()["milk"] == ["kitchen fridge"]


def test_an_agent_goes_round_the_places_of_a_room_and_round_the_rooms():
    env = laid_out({"mug": "kitchen fridge"}, CABINET, n_rooms=2)
    moves = (NEXT_PLACE, PREVIOUS_PLACE, NEXT_ROOM, NEXT_PLACE, PREVIOUS_ROOM, NEXT_ROOM)
    places = ("kitchen sink", "kitchen cabinet", "bedroom bed", "bedroom wardrobe")
    sink, cabinet, bed, wardrobe = (f"go to {place}" for place in places)
    assert phrases(env, *moves) == [sink, cabinet, bed, wardrobe, sink, bed]
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
    here = "kitchen cabinet"
    told = f"you are at {here}. you see mug at {here}. you are targeting mug."
    assert info["last_scene"][0] == told
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


def test_what_is_seen_held_and_known_is_told():
    places = {"mug": "kitchen sink", "milk": "kitchen sink", "salt": "bedroom bed"}
    env = laid_out(places, SINK, n_rooms=2)
    info = act(env, LOOK, PICK_UP)[-1]  # the room is shown until the agent moves
    assert read_sights(info["scene"][0]) == {"milk": "kitchen sink"}
    assert info["inventory"][0] == "you have in your inventory mug."
    assert info["items"][0] == {"mug": 1}
    info = act(env, PLACE)[-1]
    assert set(read_sights(info["scene"][0])) == {"mug", "milk"}
    assert info["scene"][0].endswith("you are targeting mug.")
    assert info["inventory"][0] == ""
    assert read_sights(act(env, NEXT_PLACE)[-1]["scene"][0]) == {}
    places = env.households.house.places
    assert read_known(info["status"][0]) == places[:5]
    assert read_known(act(env, NEXT_ROOM)[-1]["status"][0]) == places


def test_the_image_has_a_board_of_things_of_what_is_held_and_of_places():
    def boards(*actions):
        """Return the values of the cells that are not empty, by number, of each board."""
        planes = act(env, *actions)[0]["image"][0].reshape(3, -1)
        return [{k: plane[k] for k in np.flatnonzero(plane)} for plane in planes]

    env = laid_out({"mug": "kitchen sink", "salt": "kitchen sink", "milk": "kitchen table"}, SINK)
    things = list(json.loads(PLACES_FILE.read_text())["belongs"])
    mug, salt, milk = map(things.index, ("mug", "salt", "milk"))
    assert boards(LOOK) == [{mug: 255, salt: 160, milk: 80}, {}, {SINK: 255}]
    assert boards(PICK_UP, NEXT_PLACE) == [{}, {mug: 255}, {COUNTER: 255}]


def test_a_cell_of_the_image_means_the_same_in_a_larger_house():
    small, large = (laid_out({"coat": "kitchen sink"}, SINK, n) for n in (2, 6))
    numbers = [env.households.house.things.index("coat") for env in (small, large)]
    assert numbers[0] != numbers[1]
    np.testing.assert_array_equal(*(act(env, LOOK)[0]["image"] for env in (small, large)))


def test_a_house_begins_with_as_many_misplaced_things_as_the_settings_say():
    env = text_world.HousekeepText().make(settings(n_envs=20, house_things=6, house_misplaced=5), 0)
    env.reset()
    of = env.households
    assert [of.n_right(row) for row in range(20)] == [1] * 20
    assert all(len(set(kinds)) == 6 for kinds in of.kinds.tolist())
    assert len({tuple(row) for row in of.kinds.tolist()}) == 20


def test_a_plan_shows_where_the_agent_is_what_it_holds_and_what_is_misplaced():
    env = laid_out({"mug": "kitchen sink", "milk": "kitchen sink"}, SINK, n_rooms=2)

    def colours(row):
        """Return the colours of a room's first place."""
        (plan,) = env.render()
        assert (plan.shape, plan.dtype) == ((2 * SQUARE, 5 * SQUARE, 3), np.uint8)
        square = plan[row * SQUARE : (row + 1) * SQUARE, :SQUARE]
        return {tuple(colour) for colour in square.reshape(-1, 3).tolist()}

    assert {text_world.AGENT, text_world.RIGHT, text_world.WRONG} <= colours(0)
    assert text_world.UNKNOWN in colours(1)
    act(env, PICK_UP, NEXT_ROOM)
    assert {text_world.AGENT, text_world.HELD} <= colours(1)
    assert text_world.UNKNOWN not in colours(1)
