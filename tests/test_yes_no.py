"""Suggestions in a household against the numbers of the original, by every suggester."""

import json
import math

import pytest

from rewards.suggesters.household import YesNoSuggester, probability_of_yes, prompt
from rewards.suggesters.rules import Household, HouseholdOracle, HouseholdSuggester, TextState
from tests.golden_data import GOLDEN
from utils.household import Goal, known_sentence, sights_sentence

DATA = json.loads((GOLDEN / "ellm" / "housekeep_yes_no.json").read_text())
YES, NO = {" Yes": -0.1, " No": -2.0}, {" No": -0.1}
SUITABLE: dict[str, list[str]] = {row["object"]: [] for row in DATA["suitable"]}
for row in DATA["suitable"]:
    SUITABLE[row["object"]] += [row["receptacle"]] * row["suitable"]


class Answers:
    """A language model that answers by a function, and its questions."""

    def __init__(self, answer):
        self.answer, self.prompts, self.state = answer, [], 0

    def first_tokens(self, prompts, shared):
        self.prompts.append(prompts)
        assert all(each.startswith(shared) for each in prompts)
        return [self.answer(each) for each in prompts]

    def metrics(self):
        return {"suggester/asked": self.state}

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


class Asked:
    """A suggester that asks a table of suitable places, and its questions."""

    def __init__(self):
        rows = [(Goal(row["object"], row["receptacle"]), row) for row in DATA["suitable"]]
        table = {prompt(pair): YES if row["suitable"] else NO for pair, row in rows}
        self.model = Answers(table.get)
        self.suggester, self.prompts = YesNoSuggester(self.model), self.model.prompts


SUGGESTERS = {"language_model": lambda: Asked().suggester, "novel": HouseholdSuggester}
SUGGESTERS |= {"oracle": lambda: HouseholdOracle(SUITABLE)}


def household(row):
    places, seen = tuple(row["all_receptacles"]), row["visible_objects"]
    return Household(row["holding"], places, seen, set(row["achieved"]))


HOUSEHOLDS = [household(row) for row in DATA["suggestions"]]


def in_words(row):
    """Return the same situation as a world tells it."""
    items = {row["holding"]: 1} if row["holding"] else {}
    achieved = tuple(Goal(thing, "hall bench").phrase for thing in row["achieved"])
    sights, known = sights_sentence(row["visible_objects"]), known_sentence(row["all_receptacles"])
    return TextState(sights, "", known, items, achieved=achieved)


@pytest.mark.parametrize("row", DATA["answers"])
def test_a_thing_is_placed_where_the_model_says_yes_and_picked_up_where_it_does_not(row):
    probability = probability_of_yes(row["top_log_probabilities"])
    assert probability == pytest.approx(row["probability_of_yes"], rel=1e-12)
    suggester = YesNoSuggester(Answers(lambda _: row["top_log_probabilities"]), row["threshold"])
    held, lying = Household("mug", ["sink"], {}), Household(None, ["sink"], {"mug": "sink"})
    assert suggester.goals([held]) == [[Goal("mug", "sink")] if row["accepted"] else []]
    assert suggester.goals([lying]) == [[] if row["accepted"] else [Goal("mug")]]


@pytest.mark.parametrize("who", SUGGESTERS)
@pytest.mark.parametrize("row", DATA["suggestions"])
def test_suggestions_are_those_of_the_original_said_in_words_too(row, who):
    expected = [Goal(*pair) for pair in row["suggestions"][who]]
    suggester = SUGGESTERS[who]()
    assert Household.of(in_words(row)) == household(row)
    assert suggester.goals([household(row)]) == [expected]
    assert suggester.suggest([in_words(row)]) == [[goal.phrase for goal in expected]]


def test_a_pair_is_asked_about_once_and_all_new_ones_together():
    asked = Asked()
    first = asked.suggester.goals(HOUSEHOLDS)
    n_asked = asked.suggester.metrics()["yes_no/n_asked"]
    assert len(set(asked.prompts[0])) == len(asked.prompts[0]) == n_asked
    assert asked.suggester.goals(HOUSEHOLDS) == first
    assert len(asked.prompts) == 1
    assert asked.suggester.metrics()["yes_no/n_lookups"] > 2 * n_asked
    other, asked.model.state = Asked(), 7  # answers are kept with a run, and its costs
    other.suggester.load_state_dict(json.loads(json.dumps(asked.suggester.state_dict())))
    assert other.suggester.metrics() == asked.suggester.metrics()
    assert other.suggester.goals(HOUSEHOLDS) == first
    assert other.prompts == []


def test_a_pair_without_an_answer_is_no_goal_and_is_asked_about_again():
    held, lying = Household("mug", ["sink"], {}), Household(None, ["sink"], {"mug": "sink"})
    silent = Answers(lambda _: None)
    suggester = YesNoSuggester(silent)
    assert suggester.goals([held, lying]) == [[], []]
    silent.answer = lambda _: YES
    assert suggester.goals([held, lying]) == [[Goal("mug", "sink")], []]


def test_the_question_follows_three_examples_with_their_answers():
    *head, one, two, three, question = prompt(Goal("mug", "kitchen sink")).split("\n")
    assert head[-1] == ""
    assert [line.rsplit("?", 1)[1] for line in (one, two, three)] == [" No", " Yes", " Yes"]
    examples = zip(("dirty spoon", "mixing bowl", "clean sock"), (one, two, three), strict=True)
    assert all(thing in line for thing, line in examples)
    assert question == "Does a mug belong in or on a kitchen sink?"


def test_phrases_and_sentences_are_read_back_and_extreme_answers_do_not_overflow():
    assert probability_of_yes({" Yes": -math.inf, " No": -0.1}) < 1e-300
    assert probability_of_yes({" Yes": -0.1, " No": -5000.0}) == 1
    for goal in (Goal("toy car"), Goal("toy car", "living room toy box")):
        assert Goal.read(goal.phrase) == goal
    assert not any(map(Goal.read, ("go to kitchen sink", "place mug", "pick up")))
    nothing = Household.of(TextState("you see nothing.", "", "", {"mug": 0}))
    assert nothing == Household(None, (), {}, frozenset())
