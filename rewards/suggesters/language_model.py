"""Suggestions of a language model: the prompt, reading and keeping answers, and a local decoder.

The prompt is the paper's (Du et al. 2023, arXiv:2302.06692): the list of actions, two examples,
then the things in view and held. The answer is a list of bullets, a suggestion a line. A local
decoder can score likely actions instead of writing. Questions can be asked aside, by a thread,
while the agent plays on.
"""

import atexit
import json
import logging
import re
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from tqdm import tqdm

from models.language.files import find_model
from rewards.settings import (
    FOR_ANSWERS,
    LAST_GOALS,
    SCORING,
    WRITING,
    LanguageModelSuggesterSettings,
    WritingSettings,
)
from rewards.suggesters.rules import Suggester, TextState
from utils.answer_cache import AnswerCache, Completion, CompletionRequest, open_cache
from utils.environments import State
from utils.errors import UserError
from utils.settings import Config

log = logging.getLogger(__name__)

FIRST_TOKENS = "first-tokens"
STOP = "\n\n"
DIGITS = 4  # of scores: further ones differ between threads and processors
PATIENCE = 2  # seconds without a progress bar
ASIDE = 8  # questions that a thread asks at once
COUNTS = ("asked", "from_cache", "rejected", "unanswered", "tokens", "seconds")
FOUND = TypeVar("FOUND")

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
THOUGHT = re.compile(r"<think>.*?(</think>|$)", re.DOTALL)
# A line of a list, such as "2) **Chop tree** (for wood)", without its sign and its reason.
ITEM = re.compile(r"\s*(?:[-*+•–]+|\(?\d+[.):])\s*(.*?)\s*(?:[:(–—].*| - .*)?")
# Things made of others that are held, or put down, need not be in view.
BUILDING = ("make", "place")


class PromptedSuggester(Suggester):
    """Asks a language model about each new situation, and remembers its answers.

    A rejected answer suggests nothing; its question is asked again by the next run, with
    `asks_again` whenever it comes up, as in the original. Unless it waits for answers, a thread
    asks, and answers are used when they come: from run to run at other steps.

    Attributes:
        model_id: The sha256 of the model's weights, or its name on a server.
        counts: Questions asked of the model; those answered from the cache; answers rejected;
            questions left open; tokens read and written, and seconds taken, for those asked.
        rejected: Keys of questions that are not asked again in this run.
        pending: Those that the thread is asking, by key.
    """

    model_id: str

    def __init__(
        self, cache: AnswerCache, asks_again: bool = False, wait: str = FOR_ANSWERS
    ) -> None:
        self.cache, self.asks_again, self.wait = cache, asks_again, wait
        self.counts: dict[str, float] = dict.fromkeys(COUNTS, 0)
        self.rejected: set[str] = set()
        self.pending: dict[str, CompletionRequest] = {}
        self._to_ask: SimpleQueue[CompletionRequest | None] = SimpleQueue()
        self._told: SimpleQueue[dict[str, Completion | None] | Exception] = SimpleQueue()
        self._thread: Thread | None = None
        self.is_over = False

    @abstractmethod
    def question(self, situation: TextState) -> CompletionRequest:
        """Return the question about a situation."""

    @abstractmethod
    def ask(self, questions: Sequence[CompletionRequest]) -> list[Completion | None]:
        """Ask the model; None for a question without an answer, with the reason logged."""

    def load(self) -> None:
        """Load the model, if it must be, before a thread asks it."""

    def goals(self, answer: str) -> list[str] | None:
        """Return the goals of an answer, in its order; None if it is rejected."""
        return goals_of(answer) if self.asks_again else listed_goals(answer)

    def suggest(self, situations: Sequence[TextState]) -> list[list[str] | None]:
        questions = [self.question(situation) for situation in situations]
        found = self.answered(questions, self.goals)
        keeps_last = self.wait == LAST_GOALS
        return [
            None if keeps_last and each.key in self.pending else list(dict.fromkeys(goals or ()))
            for each, goals in zip(questions, found, strict=True)
        ]

    def first_tokens(
        self, prompts: Sequence[str], shared: str = ""
    ) -> list[Mapping[str, float] | None]:
        """Return log-probabilities of answers' likeliest first tokens; None without an answer."""
        # `shared` is the common beginning of all prompts.
        how = {"by": FIRST_TOKENS, "max_tokens": 1, "temperature": 0, "logprobs": 5}
        model = self.model_id
        asked = [CompletionRequest(model, each, how, each.removeprefix(shared)) for each in prompts]
        return self.answered(asked, read_scores)

    def answered(
        self, questions: Sequence[CompletionRequest], read: Callable[[str], FOUND | None]
    ) -> list[FOUND | None]:
        for question, answer in self._come():
            self._keep(question, answer, read)
        keys = [each.key for each in questions]
        # Several environments may be in one situation: it is asked about once.
        distinct = dict(zip(keys, questions, strict=True))
        kept = self.cache.find(list(distinct.values()))
        found = {key: read(each.text) for key, each in zip(distinct, kept, strict=True) if each}
        # A kept answer that can no longer be read is asked for again.
        wanted = [key for key in distinct if found.get(key) is None and key not in self.rejected]
        # A question under way is not asked a second time.
        new = [key for key in wanted if key not in self.pending]
        self.counts["from_cache"] += len(keys) - len(wanted)
        if new and self.wait != FOR_ANSWERS:
            self._ask_aside([distinct[key] for key in new])
        elif new:
            for key, answer in zip(new, self.ask([distinct[key] for key in new]), strict=True):
                found[key] = self._keep(distinct[key], answer, read)
        return [found.get(key) for key in keys]

    def awaited(self, answers: Iterable[FOUND], n: int) -> Iterable[FOUND]:
        return tqdm(
            answers,
            total=n,
            delay=PATIENCE,
            desc="new scenes",
            unit="scene",
            leave=False,
            disable=None if self.wait == FOR_ANSWERS else True,
        )

    def metrics(self) -> dict[str, float]:
        return {f"suggester/{name}": count for name, count in self.counts.items()}

    def state_dict(self) -> State:
        return {"counts": dict(self.counts), "rejected": sorted(self.rejected)}

    def close(self) -> None:
        if self._thread is not None:
            self.is_over = True
            self._to_ask.put(None)
            # PyTorch may abort where its thread is cut off: questions under way are waited for.
            self._thread.join()
            atexit.unregister(self.close)

    def load_state_dict(self, state: State) -> None:
        self.counts |= state["counts"]
        self.rejected = set(state["rejected"])

    def _keep(
        self,
        question: CompletionRequest,
        answer: Completion | None,
        read: Callable[[str], FOUND | None],
    ) -> FOUND | None:
        """Count a new answer, keep it unless it is rejected, and return it as it is read."""
        if answer is None:
            self.counts["unanswered"] += 1
            return None
        # Rejected answers count as well: they have cost as much.
        self.counts["asked"] += 1
        self.counts["tokens"] += answer.tokens
        self.counts["seconds"] += answer.seconds
        if read(answer.text) is None:
            self.counts["rejected"] += 1
            if not self.asks_again:
                self.rejected.add(question.key)
            return None
        # If another process was quicker, its answer counts for all, unless it is rejected.
        found = read(self.cache.keep(question, answer).text)
        if found is None:
            self.cache.drop(question)
            found = read(self.cache.keep(question, answer).text)
        return found

    def _ask_aside(self, questions: Sequence[CompletionRequest]) -> None:
        if self._thread is None:
            log.info(
                "suggester_wait=%s: answers are used when they come, so that another run of this "
                "seed, or this one resumed, may meet them at other steps",
                self.wait,
            )
            self.load()
            self._thread = Thread(target=self._ask_on, daemon=True)
            self._thread.start()
            atexit.register(self.close)
        for each in questions:
            self.pending[each.key] = each
            self._to_ask.put(each)

    def _ask_on(self) -> None:
        while True:
            asked = [self._to_ask.get()]
            while len(asked) < ASIDE and not self._to_ask.empty():
                asked.append(self._to_ask.get())
            if self.is_over:
                return
            # None only wakes the thread, so that it ends.
            questions = [each for each in asked if each is not None]
            try:
                answers = self.ask(questions)
                self._told.put({q.key: a for q, a in zip(questions, answers, strict=True)})
            except Exception as error:  # raised again where the run can end
                self._told.put(error)

    def _come(self) -> Iterable[tuple[CompletionRequest, Completion | None]]:
        while not self._told.empty():
            told = self._told.get()
            if isinstance(told, Exception):
                raise told
            for key, answer in told.items():
                yield self.pending.pop(key), answer


class LanguageModelSuggester(PromptedSuggester):
    """Suggests by a decoder on this machine, loaded when first needed.

    `config` has its settings; those of `WritingSettings` are enough for `first_tokens`.
    """

    def __init__(self, config: Any, action_names: Sequence[str], cache: AnswerCache) -> None:
        super().__init__(cache, config.retry_malformed, config.suggester_wait)
        self.config, self.action_names = config, tuple(action_names)
        self.model_id = find_model(config.suggester_model).fingerprint()

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

    def load(self) -> None:
        _ = self.model

    def question(self, situation: TextState) -> CompletionRequest:
        config, shown, text = self.config, lm_sentence(situation), question(situation)
        if config.suggest_by == SCORING:
            parameters = {"by": SCORING, "phrases": candidates(self.action_names, situation)}
            return CompletionRequest(self.model_id, text + BULLET, parameters, shown)
        return CompletionRequest(self.model_id, text, writing_parameters(config), shown)

    def ask(self, questions: Sequence[CompletionRequest]) -> list[Completion | None]:
        if questions[0].parameters["by"] == WRITING:
            return self._written(questions)
        return list(self.awaited(map(self._scored, questions), len(questions)))

    def goals(self, answer: str) -> list[str] | None:
        if self.config.suggest_by == WRITING:
            return super().goals(answer)
        scores = read_scores(answer)
        if scores is None:
            return None
        best = sorted(scores, key=lambda phrase: -scores[phrase])[: self.config.n_suggestions]
        return [phrase for phrase in best if scores[phrase] >= self.config.suggestion_threshold]

    def _scored(self, asked: CompletionRequest) -> Completion:
        begun, read_before = time.perf_counter(), self.model.n_read
        if asked.parameters["by"] == FIRST_TOKENS:
            beginning = asked.text.removesuffix(asked.shown)
            (scores,) = self.model.top_log_probabilities([asked.text], shared=beginning)
        else:
            phrases = asked.parameters["phrases"]
            found = self.model.phrase_log_probabilities(
                asked.text, [bullet(phrase) for phrase in phrases], INSTRUCTION
            )
            scores = {
                name: round(score, DIGITS) for name, score in zip(phrases, found, strict=True)
            }
        n_read = self.model.n_read - read_before
        return Completion(json.dumps(scores), n_read, time.perf_counter() - begun)

    def _written(self, questions: Sequence[CompletionRequest]) -> list[Completion | None]:
        from models.language.generation import Writing

        config, begun, read_before = self.config, time.perf_counter(), self.model.n_read
        writing = Writing(config.suggester_max_tokens, config.suggester_temperature, STOP)
        found = self.model.write([each.text for each in questions], writing, INSTRUCTION)
        # Written together, so each is counted with its part of the time.
        share = (time.perf_counter() - begun) / len(found)
        tokens = (self.model.n_read - read_before) // len(found)
        return [Completion(each.text, tokens, share) for each in found]


def check_writes(name: str) -> None:
    """Raise UserError unless a language model exists and can write; no weights are loaded."""
    from models.language.generation import supported  # brings in transformers

    supported(find_model(name))


def writing_parameters(config: WritingSettings) -> dict[str, object]:
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


def listed_goals(answer: str) -> list[str] | None:
    """Return the suggestions of a chat model's answer: the lines of lists in it, among others.

    Lists may be numbered, bold, or give reasons. None if there is no list.
    """
    lines = THOUGHT.sub("", answer).lower().replace("**", "").split("\n")
    items = [item[1].strip(" .`\"'") for item in map(ITEM.fullmatch, lines) if item]
    return [item for item in items if item] if items else None


def read_scores(answer: str) -> dict[str, float] | None:
    """Return the numbers of a kept answer by their names; None if it is another program's."""
    try:
        return {str(name): float(score) for name, score in json.loads(answer).items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


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
    return f" {name[:1].upper()}{name[1:]}"
