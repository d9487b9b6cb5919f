"""A language model judges where things belong in a household, asked for yes or no.

Three worked examples precede each question (Du et al. 2023, arXiv:2302.06692, section 4.2);
the wording is ours.
"""

import math
from collections.abc import Mapping, Sequence

from rewards.settings import YesNoSettings
from rewards.suggesters.language_model import (
    LanguageModelSuggester,
    PromptedSuggester,
    check_writes,
)
from rewards.suggesters.rules import Household, HouseholdSuggester
from rewards.suggesters.server import ServerSuggester
from utils.answer_cache import open_cache
from utils.environments import State
from utils.household import Goal
from utils.settings import Config

YES, NO = " Yes", " No"  # tokens of an answer
UNLIKELY = -100.0  # log-probability of a token that is not listed
LARGEST_EXPONENT = 700.0  # of a float64
BEGINNING = """\
You are a robot that tidies up a house. You can pick things up and put them somewhere else. \
Say of each thing whether it belongs in or on the receptacle.

Does a dirty spoon belong in or on a chair? No
Does a mixing bowl belong in or on a dishwasher? Yes
Does a clean sock belong in or on a drawer? Yes
"""


class YesNoSuggester(HouseholdSuggester):
    """Suggests by a language model's judgement, asked once for a thing and a receptacle.

    A thing belongs somewhere if p(yes) / (p(yes) + p(no)) is above the threshold. Pairs without an
    answer, or without one yet, are not suggested.
    """

    def __init__(self, asker: PromptedSuggester, threshold: float = 0.5) -> None:
        self._asker, self._threshold = asker, threshold
        self._probabilities: dict[Goal, float] = {}
        self._n_looked_up = 0

    @classmethod
    def configured(cls, config: Config, action_names: Sequence[str]) -> "YesNoSuggester":
        own = config.part(YesNoSettings)
        if own.suggester_url:
            return cls(ServerSuggester.configured(config, action_names), own.yes_threshold)
        check_writes(own.suggester_model)
        asker = LanguageModelSuggester(own, action_names, open_cache(own.suggester_cache))
        return cls(asker, own.yes_threshold)

    def candidates(self, household: Household) -> list[Goal]:
        if household.holding in household.achieved:  # nothing is picked up meanwhile
            return []
        return super().candidates(household)

    def prepare(self, goals: Sequence[Goal]) -> None:
        # All new questions at once: the model reads them as one batch.
        new = [goal for goal in dict.fromkeys(goals) if goal not in self._probabilities]
        self._n_looked_up += len(goals)
        if new:
            answers = self._asker.first_tokens([prompt(goal) for goal in new], BEGINNING)
            for goal, answer in zip(new, answers, strict=True):
                if answer is not None:
                    self._probabilities[goal] = probability_of_yes(answer)

    def fits(self, goal: Goal, is_placing: bool) -> bool:
        probability = self._probabilities.get(goal)
        return probability is not None and (probability > self._threshold) == is_placing

    def metrics(self) -> dict[str, float]:
        asked = len(self._probabilities)
        n_yes = sum(self.fits(goal, True) for goal in self._probabilities)
        return self._asker.metrics() | {
            "yes_no/n_asked": float(asked),
            "yes_no/n_lookups": float(self._n_looked_up),
            "yes_no/yes_mean": n_yes / asked if asked else math.nan,
        }

    def close(self) -> None:
        self._asker.close()

    def state_dict(self) -> State:
        answers = [[*goal, probability] for goal, probability in self._probabilities.items()]
        state = {"answers": answers, "n_needed": self._n_looked_up}
        return state | {"asker": self._asker.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self._probabilities = {Goal(*pair): answer for *pair, answer in state["answers"]}
        self._n_looked_up = state["n_needed"]
        self._asker.load_state_dict(state["asker"])


def prompt(goal: Goal) -> str:
    return f"{BEGINNING}Does a {goal.thing} belong in or on a {goal.receptacle}?"


def probability_of_yes(answer: Mapping[str, float]) -> float:
    """Return the probability of yes, given yes or no.

        p = p(" Yes") / (p(" Yes") + p(" No"))

    Args:
        answer: Log-probabilities of the likeliest first tokens; a missing one has -100.
    """
    difference = answer.get(NO, UNLIKELY) - answer.get(YES, UNLIKELY)
    return 1 / (1 + math.exp(min(difference, LARGEST_EXPONENT)))
