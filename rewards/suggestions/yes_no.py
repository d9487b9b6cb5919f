"""Asking a language model, by yes and no, what belongs where in a household.

Three worked examples stand before each question (Du et al. 2023, arXiv:2302.06692, section 4.2);
the wording is ours.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, Protocol

from rewards.suggestions.household import Candidate, Household, HouseholdSuggester
from rewards.suggestions.language_model import check_writes
from rewards.suggestions.server import ServerSettings, ServerSuggester
from settings import Config, Part, setting
from utils.household import Goal

YES, NO = " Yes", " No"  # tokens of an answer
UNLIKELY = -100.0  # log-probability of a token that is not among those told
LARGEST_EXPONENT = 700.0  # of a float64
QUESTION = "Does a {thing} belong in or on a {receptacle}?"
EXAMPLES = (
    (Goal("dirty spoon", "chair"), NO),
    (Goal("mixing bowl", "dishwasher"), YES),
    (Goal("clean sock", "drawer"), YES),
)
INTRODUCTION = (
    "You are a robot that tidies up a house. You can pick things up and put them somewhere else. "
    "Say of each thing whether it belongs in or on the receptacle."
)


@dataclass(frozen=True)
class YesNoSettings(ServerSettings):
    """What the suggester that asks for yes or no reads."""

    title = "goals"

    yes_threshold: float = setting(
        "a thing belongs somewhere if yes is likelier than this, against no",
        low=0.0,
        high=1.0,
        default=0.5,
    )


class FirstTokens(Protocol):
    """A language model that says how each of several prompts goes on."""

    def __call__(self, prompts: Sequence[str]) -> Sequence[Mapping[str, float]]:
        """Return the log-probabilities of the likeliest first tokens of each answer."""


class YesNoSuggester(HouseholdSuggester):
    """Suggests what a language model holds for right, asked once for a thing and a receptacle.

    A thing belongs somewhere if p(yes) / (p(yes) + p(no)) is above the threshold. Who holds a thing
    that has been placed as suggested before is told nothing.

    Args:
        first_tokens: The language model.
        threshold: Of that probability.
    """

    reads: ClassVar[tuple[type[Part], ...]] = (YesNoSettings,)

    def __init__(self, first_tokens: FirstTokens, threshold: float = 0.5) -> None:
        self._first_tokens, self._threshold = first_tokens, threshold
        self._probabilities: dict[Goal, float] = {}
        self._n_looked_up = 0

    @classmethod
    def configured(cls, config: Config, action_names: Sequence[str]) -> "YesNoSuggester":
        """Return the suggester of a run's settings: it asks the server, or else a decoder here.

        Raises:
            UserError: the settings are unusable.
        """
        own = config.part(YesNoSettings)
        if own.suggester_url:
            server = ServerSuggester.configured(config, action_names)
            return cls(server.top_log_probabilities, own.yes_threshold)
        check_writes(own.suggester_model)
        return cls(partial(first_tokens_of, own.suggester_model), own.yes_threshold)

    def candidates(self, household: Household) -> list[Candidate]:
        """Return what there is to choose from; nothing while something achieved is held."""
        if household.holding in household.achieved:
            return []
        return super().candidates(household)

    def prepare(self, goals: Iterable[Goal]) -> None:
        """Ask the model all that it has not been asked yet, at once."""
        needed = list(goals)
        new = [goal for goal in dict.fromkeys(needed) if goal not in self._probabilities]
        self._n_looked_up += len(needed)
        if new:
            answers = self._first_tokens([prompt(goal) for goal in new])
            for goal, answer in zip(new, answers, strict=True):
                self._probabilities[goal] = probability_of_yes(answer)

    def accepts(self, candidate: Candidate) -> bool:
        """Return whether a thing that is held belongs there, or one in view does not."""
        belongs = self._probabilities[candidate.goal] > self._threshold
        return belongs == candidate.is_held

    def metrics(self) -> dict[str, float]:
        """Return how many questions were asked, how many there were, and how many had a yes."""
        asked = len(self._probabilities)
        n_yes = sum(each > self._threshold for each in self._probabilities.values())
        return {
            "yes_no/n_asked": float(asked),
            "yes_no/n_needed": float(self._n_looked_up),
            "yes_no/yes_mean": n_yes / asked if asked else math.nan,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return all answers."""
        answers = [[*goal, probability] for goal, probability in self._probabilities.items()]
        return {"answers": answers, "n_needed": self._n_looked_up}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with all answers."""
        self._probabilities = {Goal(*pair): answer for *pair, answer in state["answers"]}
        self._n_looked_up = state["n_needed"]


def first_tokens_of(name: str, prompts: Sequence[str]) -> list[dict[str, float]]:
    """Return how a decoder on this machine goes on after each prompt about a household."""
    return _decoder(name).top_log_probabilities(prompts, shared=beginning())


@cache
def _decoder(name: str) -> Any:
    from models.language.generation import load_text_model  # brings in transformers

    return load_text_model(name)


def prompt(goal: Goal) -> str:
    """Return what a language model is asked of a thing and a receptacle, after three examples."""
    return beginning() + _question(goal)


def beginning() -> str:
    """Return what stands before every question."""
    examples = [f"{_question(example)}{answer}" for example, answer in EXAMPLES]
    return "\n".join([INTRODUCTION, "", *examples, ""])


def probability_of_yes(answer: Mapping[str, float]) -> float:
    """Return how likely yes is where it is yes or no.

        p = p(" Yes") / (p(" Yes") + p(" No"))

    Args:
        answer: Log-probabilities of the likeliest first tokens; one that is missing has -100.
    """
    difference = answer.get(NO, UNLIKELY) - answer.get(YES, UNLIKELY)
    return 1 / (1 + math.exp(min(difference, LARGEST_EXPONENT)))


def _question(goal: Goal) -> str:
    return QUESTION.format(thing=goal.thing, receptacle=goal.receptacle)
