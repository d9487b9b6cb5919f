"""What a language model would say next, as log-probabilities of tokens, each prompt asked once."""

import json
import time
from collections.abc import Callable, Sequence

from rewards.suggestions.cache import Answer, AnswerCache, Question
from rewards.suggestions.prompted import COUNTS

LogProbabilities = dict[str, float]
Source = Callable[[Sequence[str]], list[LogProbabilities]]


class NextTokens:
    """Answers prompts with the log-probabilities of the likeliest next tokens, from a cache.

    For yes or no: `found[0][" Yes"]` and `found[0][" No"]`; what is missing was unlikely.

    Args:
        source: Whom to ask: `top_log_probabilities` of a `TextModel` or a `ServerSuggester`.
        model: The source's fingerprint, or the name a server knows its model by.
        cache: Where answers are kept.

    Attributes:
        counts: As those of a `PromptedSuggester`.
    """

    def __init__(self, source: Source, model: str, cache: AnswerCache) -> None:
        self.source, self.model, self.cache = source, model, cache
        self.counts: dict[str, float] = dict.fromkeys(COUNTS, 0)

    def __call__(self, prompts: Sequence[str]) -> list[LogProbabilities]:
        """Return a dictionary of tokens for each prompt."""
        asked = [Question(self.model, prompt, {"by": "next-tokens"}) for prompt in prompts]
        found = {
            question.key: answer.text
            for question, answer in zip(asked, self.cache.find(asked), strict=True)
            if answer is not None
        }
        new = list({each.key: each for each in asked if each.key not in found}.values())
        self.counts["asked"] += len(new)
        self.counts["from_cache"] += len(asked) - len(new)
        found |= self._ask(new)
        return [json.loads(found[question.key]) for question in asked]

    def _ask(self, questions: Sequence[Question]) -> dict[str, str]:
        if not questions:
            return {}
        begun = time.perf_counter()
        answers = self.source([question.text for question in questions])
        share = (time.perf_counter() - begun) / len(questions)
        self.counts["seconds"] += share * len(questions)
        return {
            question.key: self.cache.keep(question, Answer(json.dumps(told), 0, share)).text
            for question, told in zip(questions, answers, strict=True)
        }
