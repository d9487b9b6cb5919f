"""Suggestions of a language model: the prompt, reading and keeping answers, and a local decoder.

The prompt is the paper's (Du et al. 2023, arXiv:2302.06692): the list of actions, two examples,
then the things in view and held. The answer is a list of bullets, a suggestion a line. A local
decoder can score likely actions instead of writing.
"""

import json
import logging
import re
import time
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from tqdm import tqdm

from models.language.files import find_model
from rewards.suggesters.answer_cache import AnswerCache, Completion, CompletionRequest, open_cache
from rewards.suggesters.rules import Suggester, TextState
from utils.errors import UserError
from utils.settings import Config, Part, setting

log = logging.getLogger(__name__)

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
SCORING, WRITING = "scoring", "writing"
STOP = "\n\n"
DIGITS = 4  # of scores: further ones differ between threads and processors
PATIENCE = 2  # seconds without a progress bar
COUNTS = ("asked", "from_cache", "rejected", "unanswered", "tokens", "seconds")

# The beginning of every question, which a decoder reads once.
INSTRUCTION = """\
Valid actions: sleep, eat, attack, chop, drink, place, make, mine
You are a player playing a game. Suggest the best actions the player can take based on the things \
you see and the items in your inventory. Only use valid actions and objects.

You see plant, tree, and skeleton. You are targeting skeleton. What do you do?
- Eat plant
- Chop tree
- Attack skeleton

You see water, grass, cow, and diamond. You are targeting grass. You have in your inventory \
plant. What do you do?
- Drink water
- Chop grass
- Attack cow
- Place plant

"""
BULLET = "-"
FENCES = ('\n"""', "\n'''", "\n```")  # dropped at the end of an answer
# Things made of others that are held, or put down, need not be in view.
BUILDING = ("make", "place")


@dataclass(frozen=True)
class WritingSettings(Part):
    title = "language models that suggest"

    suggester_model: str = setting(
        f"language model of the suggester: {DEFAULT_MODEL}, hub name, folder or GGUF file; of a "
        "server, the model's name there",
        default=DEFAULT_MODEL,
        safe=(DEFAULT_MODEL,),
    )
    suggester_max_tokens: int = setting(
        "largest number of tokens of a written answer", low=1, high=10_000, default=200
    )
    suggester_temperature: float = setting(
        "temperature of writing; 0: always the likeliest", low=0, high=2, default=0.1
    )
    retry_malformed: bool = setting(
        "ask again after an answer that is no list of bullets, as the original does", default=False
    )
    suggester_cache: str | None = setting(
        "SQLite file of answers that runs share; null: one in the user's cache folder",
        has_effect=False,
        default=None,
        safe=(None,),
    )


@dataclass(frozen=True)
class LanguageModelSuggesterSettings(WritingSettings):
    suggest_by: str = setting(
        "scoring actions on things in view or held, or writing freely",
        choices=(SCORING, WRITING),
        default=SCORING,
    )
    n_suggestions: int = setting(
        "by scoring: largest number of suggested actions", low=1, high=1000, default=5
    )
    suggestion_threshold: float = setting(
        "by scoring: least score of a suggested action", low=-1000, high=1000, default=-1000.0
    )


class PromptedSuggester(Suggester):
    """Asks a language model about each new situation, and remembers its answers.

    With `asks_again` it asks again after a rejected answer, as the original does; else it keeps
    that answer, which suggests nothing.

    Attributes:
        counts: Questions asked of the model; those answered from the cache; answers rejected;
            questions left open; tokens read and written, and seconds taken, for those asked.
    """

    def __init__(self, cache: AnswerCache, asks_again: bool = False) -> None:
        self.cache, self.asks_again = cache, asks_again
        self.counts: dict[str, float] = dict.fromkeys(COUNTS, 0)

    @abstractmethod
    def question(self, situation: TextState) -> CompletionRequest:
        """Return the question about a situation."""

    @abstractmethod
    def ask(self, questions: Sequence[CompletionRequest]) -> list[Completion | None]:
        """Ask the model; None for a question without an answer, with the reason logged."""

    def goals(self, answer: str) -> list[str] | None:
        """Return the goals of an answer, in its order; None if it is rejected."""
        return goals_of(answer)

    def suggest(self, situations: Sequence[TextState]) -> list[list[str]]:
        questions = [self.question(situation) for situation in situations]
        keys = [each.key for each in questions]
        distinct = dict(zip(keys, questions, strict=True))
        kept = self.cache.find(list(distinct.values()))
        goals = {
            key: self.goals(each.text) for key, each in zip(distinct, kept, strict=True) if each
        }
        again = self.asks_again  # a kept answer that is rejected counts as missing then
        new = [key for key in distinct if key not in goals or (again and goals[key] is None)]
        self.counts["from_cache"] += len(keys) - len(new)
        if new:
            answers = self.ask([distinct[key] for key in new])
            for key, answer in zip(new, answers, strict=True):
                goals[key] = self._kept(distinct[key], answer)
        return [list(dict.fromkeys(goals[key] or ())) for key in keys]

    def metrics(self) -> dict[str, float]:
        return {f"suggester/{name}": count for name, count in self.counts.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"counts": dict(self.counts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.counts |= state["counts"]

    def _kept(self, question: CompletionRequest, answer: Completion | None) -> list[str] | None:
        """Count a new answer, keep it, and return its goals."""
        if answer is None:
            self.counts["unanswered"] += 1
            return None
        self.counts["asked"] += 1
        self.counts["tokens"] += answer.tokens
        self.counts["seconds"] += answer.seconds
        goals = self.goals(answer.text)
        self.counts["rejected"] += goals is None
        if goals is None and self.asks_again:
            return None
        # If another process was quicker, its answer counts for all.
        return self.goals(self.cache.keep(question, answer).text)


class LanguageModelSuggester(PromptedSuggester):
    """Suggests by a decoder on this machine, loaded when first needed."""

    reads: ClassVar[tuple[type[Part], ...]] = (LanguageModelSuggesterSettings,)

    def __init__(
        self,
        config: LanguageModelSuggesterSettings,
        action_names: Sequence[str],
        cache: AnswerCache,
    ) -> None:
        super().__init__(cache, config.retry_malformed)
        self.config, self.action_names = config, tuple(action_names)
        self._fingerprint = find_model(config.suggester_model).fingerprint()

    @classmethod
    def configured(cls, config: Config, action_names: Sequence[str]) -> "LanguageModelSuggester":
        own = config.part(LanguageModelSuggesterSettings)
        check_writes(own.suggester_model)
        if not action_names:
            raise UserError(
                f"suggester: a language model suggests actions by name, and {config.env} names "
                "none. Choose an environment with names of actions (action_names)"
            )
        return cls(own, action_names, open_cache(own.suggester_cache))

    @cached_property
    def model(self) -> Any:
        from models.language.generation import load_text_model  # brings in transformers

        with tqdm.external_write_mode():  # beside the progress bar
            log.info("reading %s, which suggests goals", self.config.suggester_model)
        return load_text_model(self.config.suggester_model)

    def question(self, situation: TextState) -> CompletionRequest:
        config, shown, text = self.config, lm_sentence(situation), question(situation)
        if config.suggest_by == SCORING:
            parameters = {"by": SCORING, "phrases": candidates(self.action_names, situation)}
            return CompletionRequest(self._fingerprint, text + BULLET, parameters, shown)
        return CompletionRequest(self._fingerprint, text, writing_parameters(config), shown)

    def ask(self, questions: Sequence[CompletionRequest]) -> list[Completion | None]:
        if self.config.suggest_by == SCORING:
            return list(awaited(map(self._scored, questions), len(questions)))
        return self._written(questions)

    def goals(self, answer: str) -> list[str] | None:
        if self.config.suggest_by == WRITING:
            return goals_of(answer)
        try:
            scores = {str(phrase): float(score) for phrase, score in json.loads(answer).items()}
        except (ValueError, TypeError, AttributeError, RecursionError):
            return None  # another program's answer
        best = sorted(scores, key=lambda phrase: -scores[phrase])[: self.config.n_suggestions]
        return [phrase for phrase in best if scores[phrase] >= self.config.suggestion_threshold]

    def _scored(self, asked: CompletionRequest) -> Completion:
        phrases = asked.parameters["phrases"]
        begun, read_before = time.perf_counter(), self.model.n_read
        scores = self.model.phrase_log_probabilities(
            asked.text, [bullet(phrase) for phrase in phrases], INSTRUCTION
        )
        rounded = [round(score, DIGITS) for score in scores]
        text = json.dumps(dict(zip(phrases, rounded, strict=True)))
        return Completion(text, self.model.n_read - read_before, time.perf_counter() - begun)

    def _written(self, questions: Sequence[CompletionRequest]) -> list[Completion | None]:
        from models.language.generation import Writing

        config, begun, read_before = self.config, time.perf_counter(), self.model.n_read
        writing = Writing(config.suggester_max_tokens, config.suggester_temperature, STOP)
        found = self.model.write([each.text for each in questions], writing, INSTRUCTION)
        share = (time.perf_counter() - begun) / len(found)
        tokens = (self.model.n_read - read_before) // len(found)
        return [Completion(each.text, tokens, share) for each in found]


def check_writes(name: str) -> None:
    """Raise UserError unless a language model exists and can write; no weights are loaded."""
    from models.language.generation import supported  # brings in transformers

    supported(find_model(name))


def awaited(answers: Iterable[Any], n: int) -> Iterable[Any]:
    """Yield n answers as they come, with a progress bar if they take long."""
    return tqdm(answers, desc="new scenes", total=n, unit="scene", leave=False, delay=PATIENCE)


def writing_parameters(config: WritingSettings) -> dict[str, Any]:
    """Return all that a written answer depends on beside model and prompt."""
    return {
        "by": WRITING,
        "stop": STOP,
        "max_tokens": config.suggester_max_tokens,
        "temperature": config.suggester_temperature,
    }


def lm_sentence(situation: TextState) -> str:
    """Return the model's description of a situation; of the status it has sleepiness only."""
    sleepy = "you feel sleepy." if "sleepy" in situation.status else ""
    told = " ".join(filter(None, (situation.scene, situation.inventory, sleepy)))
    return re.sub(r"(?:^|(?<=\. ))[a-z]", lambda letter: letter[0].upper(), told)


def question(situation: TextState) -> str:
    """Return the whole prompt, to be answered by a list of bullets."""
    return f"{INSTRUCTION}{lm_sentence(situation)} What do you do?\n"


def goals_of(answer: str) -> list[str] | None:
    """Return the suggestions of an answer, in its order and as often as it names them.

    None if the answer is rejected: a line does not begin with "-".
    """
    if answer.endswith(FENCES):
        answer = answer[: -len(FENCES[0])]
    if not all(line.startswith(BULLET) for line in answer.split("\n")):
        return None
    parts = (part.strip(" .\n") for part in answer.lower().split(BULLET))
    return [part for part in parts if part]


def candidates(action_names: Sequence[str], situation: TextState) -> list[str]:
    """Return the names of actions with things in view or held, or made of things held.

    An action is a verb and a thing, or a verb alone that the agent feels like (sleepy: sleep).
    """
    seen = " ".join((situation.scene, situation.inventory)).replace("_", " ")
    holds = any(situation.items.values())
    found = []
    for name in action_names:
        verb, _, thing = name.partition(" ")
        fits = thing in seen if thing else verb in situation.status
        if fits or (holds and verb in BUILDING):
            found.append(name)
    return found


def bullet(name: str) -> str:
    """Return an action as an answer would name it, after the bullet's sign."""
    return f" {name[:1].upper()}{name[1:]}"
