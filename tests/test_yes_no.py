import json
import math

import pytest

from rewards.suggestions.household import Household, HouseholdNovelty, HouseholdOracle, by_rule
from rewards.suggestions.suggester import Situation
from rewards.suggestions.yes_no import (
    YesNoSuggester,
    probability_of_yes,
    prompt,
)
from tests.golden_data import GOLDEN
from utils.household import Goal, known_sentence, sights_sentence

DATA = json.loads((GOLDEN / "ellm" / "housekeep_yes_no.json").read_text())
YES, NO = {" Yes": -0.1, " No": -2.0}, {" No": -0.1}


class Table:
    """Answers as a table of suitable places does, and keeps what it was asked."""

    def __init__(self, rows):
        pairs = {Goal(row["object"], row["receptacle"]): row["suitable"] for row in rows}
        self._answers = {prompt(pair): YES if is_yes else NO for pair, is_yes in pairs.items()}
        self.asked = []

    def __call__(self, prompts):
        self.asked.append(prompts)
        return [self._answers[each] for each in prompts]


def of_table(threshold=0.5):
    table = Table(DATA["suitable"])
    return YesNoSuggester(table, threshold), table


def oracle():
    suitable = {}
    for row in DATA["suitable"]:
        suitable.setdefault(row["object"], [])
        if row["suitable"]:
            suitable[row["object"]].append(row["receptacle"])
    return HouseholdOracle(suitable)


SUGGESTERS = {
    "language_model": lambda: of_table()[0],
    "oracle": oracle,
    "novel": HouseholdNovelty,
}


def household(row):
    return Household(
        *(row["holding"], row["all_receptacles"], row["visible_objects"]), set(row["achieved"])
    )


def in_words(row):
    """Return the same situation as a world tells it."""
    items = {row["holding"]: 1} if row["holding"] else {}
    achieved = tuple(Goal(thing, "hall bench").phrase for thing in row["achieved"])
    sights, known = sights_sentence(row["visible_objects"]), known_sentence(row["all_receptacles"])
    return Situation(sights, "", known, items, achieved=achieved)


@pytest.mark.parametrize("row", DATA["answers"])
def test_an_answer_is_as_likely_to_be_yes_as_in_the_original(row):
    probability = probability_of_yes(row["top_log_probabilities"])
    assert probability == pytest.approx(row["probability_of_yes"], rel=1e-12)
    assert (probability > row["threshold"]) == row["accepted"]


@pytest.mark.parametrize("row", DATA["answers"])
def test_a_thing_is_placed_where_the_model_says_yes_and_picked_up_where_it_does_not(row):
    suggester = YesNoSuggester(lambda _: [row["top_log_probabilities"]], row["threshold"])
    held, lying = Household("mug", ["sink"], {}), Household(None, ["sink"], {"mug": "sink"})
    assert suggester.goals([held]) == [[Goal("mug", "sink")] if row["accepted"] else []]
    assert suggester.goals([lying]) == [[] if row["accepted"] else [Goal("mug")]]


def test_extreme_answers_do_not_overflow():
    assert probability_of_yes({" Yes": -math.inf, " No": -0.1}) < 1e-300
    assert probability_of_yes({" Yes": -0.1, " No": -5000.0}) == 1


@pytest.mark.parametrize("who", SUGGESTERS)
@pytest.mark.parametrize("row", DATA["suggestions"])
def test_suggestions_are_those_of_the_original(row, who):
    expected = [Goal(*pair) for pair in row["suggestions"][who]]
    suggester = SUGGESTERS[who]()
    assert suggester.goals([household(row)]) == [expected]
    assert suggester.suggest([in_words(row)]) == [[goal.phrase for goal in expected]]


@pytest.mark.parametrize("row", DATA["suggestions"])
def test_words_say_all_that_a_suggester_needs(row):
    told = Household.of(in_words(row))
    assert told == household(row)._replace(receptacles=tuple(row["all_receptacles"]))


def test_a_pair_is_asked_about_once_and_all_new_ones_together():
    suggester, table = of_table()
    households = [household(row) for row in DATA["suggestions"]]
    first = suggester.goals(households)
    assert len(table.asked) == 1
    assert len(set(table.asked[0])) == len(table.asked[0]) == suggester.metrics()["yes_no/n_asked"]
    assert suggester.goals(households) == first
    assert len(table.asked) == 1
    needed = suggester.metrics()["yes_no/n_needed"]
    assert needed > 2 * suggester.metrics()["yes_no/n_asked"]


def test_answers_are_kept_with_a_run():
    suggester, _ = of_table()
    households = [household(row) for row in DATA["suggestions"]]
    expected = suggester.goals(households)
    state = json.loads(json.dumps(suggester.state_dict()))
    other, table = of_table()
    other.load_state_dict(state)
    assert other.metrics() == suggester.metrics()
    assert other.goals(households) == expected
    assert table.asked == []


def test_the_threshold_decides():
    row = {" Yes": math.log(0.6), " No": math.log(0.4)}
    for threshold, expected in ((0.5, [[Goal("mug", "sink")]]), (0.7, [[]])):
        suggester = YesNoSuggester(lambda _: [row], threshold)
        assert suggester.goals([Household("mug", ["sink"], {})]) == expected


def test_the_question_follows_three_examples_with_their_answers():
    *head, one, two, three, question = prompt(Goal("mug", "kitchen sink")).split("\n")
    assert head[-1] == ""
    assert [line.rsplit("?", 1)[1] for line in (one, two, three)] == [" No", " Yes", " Yes"]
    assert "dirty spoon" in one
    assert "mixing bowl" in two
    assert "clean sock" in three
    assert question == "Does a mug belong in or on a kitchen sink?"


def test_a_phrase_is_read_back_as_the_goal_it_names():
    for goal in (Goal("toy car"), Goal("toy car", "living room toy box")):
        assert Goal.read(goal.phrase) == goal
    assert [Goal.read(each) for each in ("go to kitchen sink", "place mug", "pick up")] == [
        None
    ] * 3


def test_what_is_not_told_is_not_seen():
    nothing = Household.of(Situation("you see nothing.", "", "", {"mug": 0}))
    assert nothing == Household(None, (), {}, frozenset())


def test_who_asks_nobody_is_found_by_name():
    suitable = {"mug": ["kitchen sink"]}
    suggested = {"oracle": [[]], "novelty": [[Goal("mug")]]}
    for name, expected in suggested.items():
        suggester = by_rule(name, suitable)
        assert suggester.goals([Household(None, [], {"mug": "kitchen sink"})]) == expected
    assert by_rule("yes-no", suitable) is None
