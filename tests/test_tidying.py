"""Tidying up as suggested: the rewards, in small houses of the text world."""

import numpy as np
import pytest

from envs import make_vector_env
from envs.vector import EpisodeStatistics
from rewards.episode_goals import Tidying
from rewards.goals import GoalRewards, with_goals
from rewards.suggesters.household import YesNoSuggester, prompt
from rewards.suggesters.rules import HouseholdOracle, HouseholdSuggester
from tests.test_housekeep_text import LOOK, N_ACTIONS, NEXT_PLACE, PICK_UP, PLACE, SINK, laid_out
from tests.test_yes_no import Answers
from utils.given_settings import load_config
from utils.household import Goal


def house(suggester=None, **places):
    """Return one kitchen with given things; the agent is at the sink and has looked around.

    Its own oracle suggests unless another suggester is given.
    """
    env = laid_out(places, SINK)
    suggester = suggester or HouseholdOracle(env.metadata["suitable"])
    layer = GoalRewards(EpisodeStatistics(env, ""), [Tidying()], suggester)
    pay(layer, LOOK)
    return layer


def pay(layer, *actions):
    """Return the rewards of several steps."""
    return [layer.step(np.array([action]))[1].item() for action in actions]


def wanted(layer):
    return layer.episodes[0].goals


MUG = {"mug": "kitchen fridge", "milk": "kitchen sink"}
TO_FRIDGE, FROM_FRIDGE = [NEXT_PLACE] * 3, [NEXT_PLACE] * 2


def test_picking_up_and_placing_as_suggested_is_paid_once_each():
    layer = house(**MUG)
    assert pay(layer, *TO_FRIDGE) == [0, 0, 0]
    assert wanted(layer) == ("pick up mug",)
    assert pay(layer, PICK_UP) == [2.5]
    assert wanted(layer)[0] == "place mug at kitchen sink"
    # An achieved thing is suggested no more, and taking it costs.
    assert pay(layer, *FROM_FRIDGE, PLACE, PICK_UP, PLACE) == [0, 0, 2.5, -0.25, -0.25]


def test_a_thing_misplaced_and_tidied_again_pays_two_in_all():
    layer = house(mug="kitchen sink", milk="kitchen table")
    paid = pay(layer, PICK_UP, *TO_FRIDGE, PLACE, PICK_UP, *FROM_FRIDGE, PLACE)
    assert [reward for reward in paid if reward] == [-0.25, -0.25, 2.5]


def test_what_nobody_suggested_and_what_fails_costs_and_a_pick_up_is_paid_once():
    layer = house(mug="kitchen sink", milk="kitchen table")
    assert pay(layer, PLACE, PICK_UP, PICK_UP, LOOK) == [-0.2, -0.25, -0.2, 0]
    assert pay(house(**MUG), PICK_UP, PLACE, PICK_UP) == [2.5, -0.25, 0]


def test_without_judgement_every_thing_and_every_place_is_worth_it():
    layer = house(HouseholdSuggester(), mug="kitchen sink", milk="kitchen table")
    assert wanted(layer) == ("pick up mug", "pick up milk")
    assert pay(layer, PICK_UP, PLACE) == [2.5, 2.5]
    assert wanted(layer) == ("pick up milk",)


def test_a_language_model_is_paid_for_what_it_thinks():
    wrong = {prompt(Goal("mug", "kitchen fridge")): {" Yes": -0.1, " No": -3.0}}
    suggester = YesNoSuggester(Answers(lambda asked: wrong.get(asked, {" No": -0.1})))
    layer = house(suggester, mug="kitchen sink", milk="kitchen table")
    assert pay(layer, PICK_UP, *TO_FRIDGE, PLACE) == [2.5, 0, 0, 0, 2.5]


@pytest.mark.parametrize("name", ["oracle", "novelty"])
def test_play_at_random_is_paid_all_there_is_and_goes_on_where_it_was_saved(name):
    config = load_config(None, ["env=HousekeepText-v0", f"suggester={name}", "n_envs=4"])
    first, second = (with_goals(make_vector_env(config, seed), config) for seed in (0, 1))
    actions = np.random.default_rng(0).integers(0, N_ACTIONS, (160, 4))
    for layer in (first, second):
        layer.reset()
    paid = [first.step(row)[1] for row in actions[:80]]
    assert set(np.unique(paid)) | {-0.25} == {-0.25, -0.2, 0, 2.5}
    assert second.load_state_dict(first.state_dict())
    for row in actions[80:]:
        one, other = first.step(row), second.step(row)
        assert (one[1] == other[1]).all()
        assert one[-1]["suggestions"].tolist() == other[-1]["suggestions"].tolist()
