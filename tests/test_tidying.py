from types import SimpleNamespace

import numpy as np

from envs.household import housekeep_text
from envs.household.house import LOOK, N_ACTIONS, NEXT_PLACE, PICK_UP, PLACE
from rewards.suggestions.household import HouseholdNovelty, HouseholdOracle
from rewards.suggestions.suggester import Situation
from rewards.suggestions.yes_no import YesNoSuggester, prompt
from rewards.tidying import TidyingGoals
from tests.test_housekeep_text import SINK, laid_out, settings
from utils.household import Goal

TOLD = ("scene", "inventory", "status", "items")


class Tidying:
    """One or more houses whose steps are paid as suggested."""

    def __init__(self, env, suggester):
        self.env, self.goals = env, TidyingGoals(suggester, env.num_envs)
        self.look(env._told())

    def look(self, info):
        rows = range(self.env.num_envs)
        self.goals.look([Situation(*(info[name][row] for name in TOLD)) for row in rows])

    def step(self, actions):
        """Return what every environment is paid."""
        *_, info = self.env.step(actions)
        pairs = zip(info["phrase"], info["action_success"], strict=True)
        deeds = [SimpleNamespace(phrase=phrase, succeeded=done) for phrase, done in pairs]
        reached = self.goals.reached(deeds)
        self.goals.begin(np.flatnonzero(info.get("_final_obs", ())))
        self.look(info)
        return reached

    def pay(self, *actions):
        """Return what one environment is paid for several steps."""
        return [self.step(np.array([action]))[0].reward for action in actions]


def oracle_of(env):
    return HouseholdOracle(env.metadata["suitable"])


def house(**places):
    """Return one house of a kitchen with given things, whose agent is at the sink."""
    return laid_out(places, SINK)


def test_picking_up_and_placing_as_suggested_is_paid_once_each():
    env = house(mug="kitchen fridge", milk="kitchen fridge")
    tidying = Tidying(env, oracle_of(env))
    to_fridge, from_fridge = [NEXT_PLACE] * 3, [NEXT_PLACE] * 2
    assert tidying.pay(*to_fridge) == [0, 0, 0]
    assert tidying.goals.shown == [("pick up mug",)]
    assert tidying.pay(PICK_UP) == [2.5]
    assert tidying.goals.shown[0][0] == "place mug at kitchen sink"
    assert tidying.pay(*from_fridge, PLACE) == [0, 0, 2.5]


def test_an_achieved_thing_is_suggested_no_more_and_taking_it_costs():
    env = house(mug="kitchen fridge", milk="kitchen sink")
    tidying = Tidying(env, oracle_of(env))
    tidying.pay(*[NEXT_PLACE] * 3, PICK_UP, *[NEXT_PLACE] * 2)
    assert tidying.pay(PLACE, PICK_UP, PLACE) == [2.5, -0.25, -0.25]


def test_a_suggested_pick_up_is_paid_the_first_time_only():
    env = house(mug="kitchen fridge", milk="kitchen sink")
    tidying = Tidying(env, oracle_of(env))
    assert tidying.pay(PICK_UP, PLACE, PICK_UP) == [2.5, -0.25, 0]


def test_what_nobody_suggested_and_what_fails_costs():
    env = house(mug="kitchen sink", milk="kitchen table")
    tidying = Tidying(env, oracle_of(env))
    assert tidying.pay(PLACE, PICK_UP, PICK_UP, LOOK) == [-0.2, -0.25, -0.2, 0]


def test_without_judgement_every_thing_and_every_place_is_worth_it():
    env = house(mug="kitchen sink", milk="kitchen table")
    tidying = Tidying(env, HouseholdNovelty())
    assert tidying.goals.shown == [("pick up mug",)]
    assert tidying.pay(PICK_UP, PLACE) == [2.5, 2.5]
    assert tidying.goals.shown == [()]


def test_a_language_model_is_paid_for_what_it_thinks():
    env = house(mug="kitchen sink", milk="kitchen table")
    wrong = {prompt(Goal("mug", "kitchen fridge")): {" Yes": -0.1, " No": -3.0}}
    suggester = YesNoSuggester(lambda asked: [wrong.get(each, {" No": -0.1}) for each in asked])
    tidying = Tidying(env, suggester)
    assert tidying.pay(PICK_UP, *[NEXT_PLACE] * 3, PLACE) == [2.5, 0, 0, 0, 2.5]


def test_play_at_random_is_paid_all_there_is_to_be_paid():
    env = housekeep_text.make(settings(n_envs=4), 0)
    env.reset()
    tidying = Tidying(env, oracle_of(env))
    generator = np.random.default_rng(0)
    rewards = [
        [each.reward for each in tidying.step(generator.integers(0, N_ACTIONS, 4))]
        for _ in range(80)
    ]
    assert set(np.unique(rewards)) == {-0.25, -0.2, 0, 2.5}


def test_it_goes_on_exactly_where_it_was_saved():
    env, other = (laid_out({"mug": "kitchen fridge", "milk": "kitchen sink"}, SINK) for _ in "ab")
    first, second = Tidying(env, oracle_of(env)), Tidying(other, oracle_of(other))
    first.pay(PICK_UP, PLACE)
    other.load_state_dict(env.state_dict())
    second.goals.load_state_dict(first.goals.state_dict())
    assert second.goals.shown == first.goals.shown
    actions = [PICK_UP, *[NEXT_PLACE] * 3, PLACE, PICK_UP]
    assert first.pay(*actions) == second.pay(*actions)


def test_an_episode_that_ended_is_forgotten():
    goals = TidyingGoals(HouseholdNovelty(), 1)
    situation = Situation("you see mug at kitchen sink.", "", "", {})
    goals.look([situation])
    done = SimpleNamespace(phrase="pick up mug", succeeded=True)
    assert [goals.reached([done])[0].reward for _ in range(2)] == [2.5, 0]
    assert goals.foreseen(0, situation) == ("pick up mug",)
    goals.begin([0])
    assert goals.reached([done])[0] == (done.phrase, 2.5, False)
    assert goals.metrics() == {}
