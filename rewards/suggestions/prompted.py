"""What suggesters that ask a language model share: kept answers, and counting what it costs."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from tqdm import tqdm

from rewards.suggestions.cache import Answer, AnswerCache, Question
from rewards.suggestions.suggester import Situation

COUNTS = ("asked", "from_cache", "rejected", "unanswered", "tokens", "seconds")
PATIENCE = 2  # seconds without a bar


def awaited(answers: Iterable[Any], n: int) -> Iterable[Any]:
    """Yield n answers as they come, with a bar where that takes longer."""
    return tqdm(answers, desc="new scenes", total=n, unit="scene", leave=False, delay=PATIENCE)


class PromptedSuggester(ABC):
    """Asks a language model about each new situation, and remembers what it says.

    Args:
        cache: Where answers are kept.
        asks_again: Ask anew where an answer was rejected, as the original does; else it is kept,
            and suggests nothing.

    Attributes:
        counts: Questions asked of the model; those answered from the cache; answers rejected;
            questions left open; tokens read and written, and seconds taken, for those asked.
    """

    checks_success: ClassVar[bool] = True

    def __init__(self, cache: AnswerCache, asks_again: bool = False) -> None:
        self.cache, self.asks_again = cache, asks_again
        self.counts: dict[str, float] = dict.fromkeys(COUNTS, 0)

    @abstractmethod
    def question(self, situation: Situation) -> Question:
        """Return what the model is asked about a situation."""

    @abstractmethod
    def ask(self, questions: Sequence[Question]) -> list[Answer | None]:
        """Ask the model; None where no answer can be had, for which it has said why."""

    @abstractmethod
    def goals(self, answer: str) -> list[str] | None:
        """Return what an answer suggests, in its order; None if it is rejected."""

    def suggest(self, situations: Sequence[Situation]) -> list[list[str]]:
        """Return the goals for each of N situations, none twice; none without an answer."""
        questions = [self.question(situation) for situation in situations]
        known = self._known(questions)
        new = list({each.key: each for each in questions if each.key not in known}.values())
        self.counts["from_cache"] += len(questions) - len(new)
        known |= self._asked(new)
        return [list(dict.fromkeys(known[each.key])) for each in questions]

    def metrics(self) -> dict[str, float]:
        """Return what was asked since the run began, and what it cost."""
        return {f"suggester/{name}": count for name, count in self.counts.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return what was counted; the answers are in the cache."""
        return {"counts": dict(self.counts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on counting."""
        self.counts |= state["counts"]

    def _known(self, questions: Sequence[Question]) -> dict[str, list[str]]:
        """Return the goals of kept answers, by the question's key."""
        distinct = list({each.key: each for each in questions}.values())
        found = {}
        for question, answer in zip(distinct, self.cache.find(distinct), strict=True):
            if answer is None:
                continue
            goals = self.goals(answer.text)
            if goals is not None or not self.asks_again:
                found[question.key] = goals or []
        return found

    def _asked(self, questions: Sequence[Question]) -> dict[str, list[str]]:
        """Ask the model, keep what it says, and return the goals by the question's key."""
        if not questions:
            return {}
        found: dict[str, list[str]] = {}
        for question, answer in zip(questions, self.ask(questions), strict=True):
            if answer is None:
                self.counts["unanswered"] += 1
                found[question.key] = []
                continue
            self._count(answer)
            goals = self.goals(answer.text)
            if goals is None:
                self.counts["rejected"] += 1
            if goals is not None or not self.asks_again:
                goals = self.goals(self.cache.keep(question, answer).text)
            found[question.key] = goals or []
        return found

    def _count(self, answer: Answer) -> None:
        self.counts["asked"] += 1
        self.counts["tokens"] += answer.tokens
        self.counts["seconds"] += answer.seconds
