"""A language model on this machine suggests: by what it writes, or by what it finds likely."""

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from tqdm import tqdm

from models.language.files import find_model
from rewards.suggestions.cache import Answer, AnswerCache, CacheSettings, Question, open_cache
from rewards.suggestions.prompted import PromptedSuggester, awaited
from rewards.suggestions.prompts import (
    BULLET,
    INSTRUCTION,
    bullet,
    candidates,
    goals_of,
    lm_sentence,
    question,
)
from rewards.suggestions.suggester import Situation
from settings import Config, Part, setting
from utils.errors import UserError

log = logging.getLogger(__name__)

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
SCORING, WRITING = "scoring", "writing"
STOP = "\n\n"
DIGITS = 4  # of scores: what threads and processors make of further ones differs


@dataclass(frozen=True)
class WritingSettings(CacheSettings):
    """How a language model writes suggestions."""

    suggester_model: str = setting(
        f"who suggests: {DEFAULT_MODEL}, a decoder by hub name, folder or GGUF file; of a server, "
        "the name it knows the model by",
        default=DEFAULT_MODEL,
        safe=(DEFAULT_MODEL,),
    )
    suggester_max_tokens: int = setting(
        "tokens of a written answer at most", low=1, high=10_000, default=200
    )
    suggester_temperature: float = setting(
        "how boldly it writes; 0: always the likeliest", low=0, high=2, default=0.1
    )
    ask_again: bool = setting(
        "ask anew where an answer was no list of bullets, as the original does", default=False
    )


@dataclass(frozen=True)
class LanguageModelSuggesterSettings(WritingSettings):
    """What a language model that suggests on this machine reads."""

    suggest_by: str = setting(
        "scoring actions with what is in view or held, or writing freely",
        choices=(SCORING, WRITING),
        default=SCORING,
    )
    n_suggestions: int = setting(
        "by scoring: the likeliest actions suggested at most", low=1, high=1000, default=5
    )
    suggestion_threshold: float = setting(
        "by scoring: least score of a suggested action", low=-1000, high=1000, default=-1000.0
    )


class LanguageModelSuggester(PromptedSuggester):
    """Suggests what a decoder on this machine says; its weights are read when first needed.

    Args:
        config: The settings of the run.
        action_names: What actions are called.
        cache: Where answers are kept.
    """

    reads: ClassVar[tuple[type[Part], ...]] = (LanguageModelSuggesterSettings,)

    def __init__(
        self,
        config: LanguageModelSuggesterSettings,
        action_names: Sequence[str],
        cache: AnswerCache,
    ) -> None:
        super().__init__(cache, config.ask_again)
        self.config, self.action_names = config, tuple(action_names)
        self._fingerprint = find_model(config.suggester_model).fingerprint()

    @classmethod
    def configured(cls, config: Config, action_names: Sequence[str]) -> "LanguageModelSuggester":
        """Return the suggester of a run's settings.

        Raises:
            UserError: the model is none that writes, or the cache is unusable.
        """
        own = config.part(LanguageModelSuggesterSettings)
        check_writes(own.suggester_model)
        if not action_names:
            raise UserError(
                f"suggester: a language model suggests actions by name, and {config.env} names "
                "none. Choose an environment that says what its actions are called"
            )
        return cls(own, action_names, open_cache(own))

    @cached_property
    def model(self) -> Any:
        """The decoder."""
        from models.language.generation import load_text_model  # brings in transformers

        with tqdm.external_write_mode():  # beside the progress bar
            log.info("reading %s, which suggests goals", self.config.suggester_model)
        return load_text_model(self.config.suggester_model)

    def question(self, situation: Situation) -> Question:
        """Return the prompt about a situation, and what is to be done with it."""
        shown = lm_sentence(situation)
        if self.config.suggest_by == SCORING:
            phrases = candidates(self.action_names, situation)
            parameters: dict[str, Any] = {"by": SCORING, "phrases": phrases}
            return Question(self._fingerprint, question(situation) + BULLET, parameters, shown)
        parameters = {"by": WRITING, "stop": STOP, "max_tokens": self.config.suggester_max_tokens}
        parameters["temperature"] = self.config.suggester_temperature
        return Question(self._fingerprint, question(situation), parameters, shown)

    def ask(self, questions: Sequence[Question]) -> list[Answer | None]:
        """Have the model score each question's phrases, or write an answer to all at once."""
        if self.config.suggest_by == SCORING:
            return list(awaited(map(self._scored, questions), len(questions)))
        return self._written(questions)

    def goals(self, answer: str) -> list[str] | None:
        """Return the suggestions of an answer: its bullets, or the likeliest phrases."""
        if self.config.suggest_by == WRITING:
            return goals_of(answer)
        scores = _scores(answer)
        if scores is None:
            return None
        best = sorted(scores, key=lambda phrase: -scores[phrase])[: self.config.n_suggestions]
        return [phrase for phrase in best if scores[phrase] >= self.config.suggestion_threshold]

    def _scored(self, asked: Question) -> Answer:
        phrases = asked.parameters["phrases"]
        begun, read_before = time.perf_counter(), self.model.n_read
        scores = self.model.phrase_log_probabilities(
            asked.text, [bullet(phrase) for phrase in phrases], INSTRUCTION
        )
        rounded = [round(score, DIGITS) for score in scores]
        text = json.dumps(dict(zip(phrases, rounded, strict=True)))
        return Answer(text, self.model.n_read - read_before, time.perf_counter() - begun)

    def _written(self, questions: Sequence[Question]) -> list[Answer | None]:
        from models.language.generation import Writing

        begun = time.perf_counter()
        config = self.config
        writing = Writing(config.suggester_max_tokens, config.suggester_temperature, STOP)
        read_before = self.model.n_read
        found = self.model.write([each.text for each in questions], writing, INSTRUCTION)
        share = (time.perf_counter() - begun) / len(found)
        tokens = (self.model.n_read - read_before) // len(found)
        return [Answer(each.text, tokens, share) for each in found]


def check_writes(name: str) -> None:
    """Raise UserError unless a language model is there and writes; weights are not read."""
    from models.language.generation import supported  # brings in transformers

    supported(find_model(name))


def _scores(answer: str) -> dict[str, float] | None:
    """Return the score of each phrase, None if an answer is of another form."""
    try:
        return {str(phrase): float(score) for phrase, score in json.loads(answer).items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
