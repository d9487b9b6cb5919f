"""A language model behind an OpenAI-compatible server suggests, within a budget of requests."""

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any, ClassVar

from rewards.suggestions.cache import Answer, AnswerCache, Question, open_cache
from rewards.suggestions.language_model import STOP, WRITING, WritingSettings
from rewards.suggestions.open_ai import Patience, Server, ServerError
from rewards.suggestions.prompted import PromptedSuggester, awaited
from rewards.suggestions.prompts import goals_of, lm_sentence, question
from rewards.suggestions.suggester import Situation
from settings import Config, Part, setting
from utils.errors import RunError, UserError, suggestion

log = logging.getLogger(__name__)

CHAT, COMPLETIONS = "chat", "completions"
END_RUN, NO_SUGGESTIONS = "end-run", "no-suggestions"
KEY_VARIABLE = "OPENAI_API_KEY"
AT_ONCE = 8  # requests under way
FIRST_REST, LONGEST_REST = 10.0, 600.0  # seconds in which a server that failed is not asked


@dataclass(frozen=True)
class ServerSettings(WritingSettings):
    """What a server that suggests reads."""

    title = "server that suggests"

    suggester_url: str | None = setting(
        "address of an OpenAI-compatible server, such as http://localhost:8000/v1",
        default=None,
        safe=(None,),
    )
    suggester_api: str = setting(
        "which of its questions is asked: chat, or completions of the prompt as it stands",
        choices=(CHAT, COMPLETIONS),
        default=CHAT,
    )
    suggester_key_variable: str = setting(
        "environment variable with the server's key; the key itself is written nowhere",
        default=KEY_VARIABLE,
        safe=(KEY_VARIABLE,),
        typed=True,
    )
    suggester_budget: int | None = setting(
        "requests that a run may send, retries among them; 0: the cache alone; null: no limit",
        low=0,
        high=10**9,
        default=10_000,
    )
    suggester_timeout: float = setting(
        "seconds a server has for an answer", low=0.1, high=3600, default=60.0
    )
    suggester_retries: int = setting(
        "tries after one that failed, twice as long after each", low=0, high=20, default=4
    )
    suggester_failure: str = setting(
        "what a run does without an answer: end-run, or go on with no-suggestions",
        choices=(END_RUN, NO_SUGGESTIONS),
        default=END_RUN,
    )


class OverBudget(Exception):
    """No request may be sent any more."""


class Budget:
    """How many requests a run may send; what was sent is noted in the cache, too.

    A resumed run goes on from the greater of what its checkpoint and the cache know, so that what
    was asked between a checkpoint and a kill counts.

    Args:
        most: Requests; None for no limit.
        cache: Where it is noted.
    """

    def __init__(self, most: int | None, cache: AnswerCache) -> None:
        self.most, self._cache = most, cache
        self.run, self.sent = uuid.uuid4().hex, 0
        self._lock = Lock()

    def take(self) -> None:
        """Count a request that is about to be sent; OverBudget if there is none left."""
        with self._lock:
            if self.most is not None and self.sent >= self.most:
                raise OverBudget
            self.sent += 1

    def note(self) -> None:
        """Write down what was sent; by the thread that the cache belongs to."""
        self.sent = self._cache.spend(self.run, self.sent)

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""
        return {"run": self.run, "sent": self.sent}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state, or from what the cache knows to have been sent since."""
        self.run, self.sent = state["run"], state["sent"]
        self.note()


class ServerSuggester(PromptedSuggester):
    """Suggests what a server's model writes.

    Args:
        config: The settings of the run.
        cache: Where answers are kept.
        sleep: Waits between tries.
        clock: Tells the seconds.
    """

    reads: ClassVar[tuple[type[Part], ...]] = (ServerSettings,)

    def __init__(
        self,
        config: ServerSettings,
        cache: AnswerCache,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(cache, config.ask_again)
        self.config, self.clock = config, clock
        if not config.suggester_url:
            raise UserError(
                "suggester_url: missing. Give the server's address, such as "
                "suggester_url=http://localhost:8000/v1"
            )
        patience = Patience(config.suggester_timeout, config.suggester_retries, sleep)
        self.server = Server(config.suggester_url, config.suggester_key_variable, patience)
        self.budget = Budget(config.suggester_budget, cache)
        self._rests_until, self._rest = 0.0, FIRST_REST
        self._told_budget = False

    @classmethod
    def configured(cls, config: Config, action_names: Sequence[str]) -> "ServerSuggester":
        """Return the suggester of a run's settings, having asked the server which models it has.

        Raises:
            UserError: the settings, the server or the cache are unusable.
        """
        own = config.part(ServerSettings)
        suggester = cls(own, open_cache(own))
        if own.suggester_budget != 0 and own.suggester_failure == END_RUN:
            suggester.check_server()
        return suggester

    def check_server(self) -> None:
        """Raise UserError where the server does not answer, or has no model of the name."""
        try:
            names = self.server.models()
        except ServerError as error:
            raise UserError(
                f"suggester_url: {error}. Start the server, or give suggester_budget=0 to use the "
                "cache alone"
            ) from None
        name = self.config.suggester_model
        if names and name not in names:
            raise UserError(
                f"suggester_model: {self.config.suggester_url} has no '{name}'."
                f"{suggestion(name, names)} It has {', '.join(names[:5])}"
            )

    def question(self, situation: Situation) -> Question:
        """Return the prompt about a situation, and how it is asked."""
        config = self.config
        parameters = {
            **{"by": WRITING, "stop": STOP, "api": config.suggester_api},
            **{"max_tokens": config.suggester_max_tokens},
            "temperature": config.suggester_temperature,
        }
        shown = lm_sentence(situation)
        return Question(config.suggester_model, question(situation), parameters, shown)

    def goals(self, answer: str) -> list[str] | None:
        """Return the bullets of an answer."""
        return goals_of(answer)

    def ask(self, questions: Sequence[Question]) -> list[Answer | None]:
        """Ask the server, several questions at a time."""
        if self.clock() < self._rests_until:
            return [None] * len(questions)
        with ThreadPoolExecutor(min(AT_ONCE, len(questions))) as threads:
            found = list(awaited(threads.map(self._outcome, questions), len(questions)))
        self.budget.note()
        failures = [each for each in found if isinstance(each, ServerError)]
        if failures:
            self._fail(failures[0])
        elif any(each is not None for each in found):
            self._rest = FIRST_REST
        if None in found:
            self._tell_budget()
        return [each if isinstance(each, Answer) else None for each in found]

    def top_log_probabilities(
        self, prompts: Sequence[str], n_top: int = 5
    ) -> list[dict[str, float]]:
        """Return the log-probabilities of the likeliest tokens after each prompt.

        It needs a server whose completions tell them (`logprobs`), whatever `suggester_api` says.

        Raises:
            RunError: there is no answer, or it does not tell them.
        """
        return [self._top(prompt, n_top) for prompt in prompts]

    def metrics(self) -> dict[str, float]:
        """Return what was asked since the run began, and what it cost."""
        return super().metrics() | {"suggester/requests": self.budget.sent}

    def state_dict(self) -> dict[str, Any]:
        """Return what was counted, and what of the budget is spent."""
        return super().state_dict() | {"budget": self.budget.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on counting, and within what is left of the budget."""
        super().load_state_dict(state)
        self.budget.load_state_dict(state["budget"])

    def _outcome(self, asked: Question) -> Answer | ServerError | None:
        """Return an answer, why there is none, or None where the budget is spent."""
        begun = time.perf_counter()
        try:
            path, body = self._request(asked)
            found = self.server.post(path, body, self.budget.take)
            text = _text(found)
            if text is None:
                raise ServerError(f"{self.server.url}: its answer has no text", may_pass=False)
        except OverBudget:
            return None
        except ServerError as error:
            return error
        usage = found.get("usage")
        tokens = usage.get("total_tokens") if isinstance(usage, dict) else 0
        return Answer(text, tokens if type(tokens) is int else 0, time.perf_counter() - begun)

    def _request(self, asked: Question) -> tuple[str, dict[str, Any]]:
        sent = {name: asked.parameters[name] for name in ("max_tokens", "temperature", "stop")}
        sent["model"] = self.config.suggester_model
        if self.config.suggester_api == COMPLETIONS:
            return "completions", sent | {"prompt": asked.text}
        return "chat/completions", sent | {"messages": [{"role": "user", "content": asked.text}]}

    def _top(self, prompt: str, n_top: int) -> dict[str, float]:
        sent = {"model": self.config.suggester_model, "prompt": prompt, "max_tokens": 1}
        try:
            found = self.server.post(
                "completions", sent | {"temperature": 0, "logprobs": n_top}, self.budget.take
            )
            self.budget.note()
            top = found["choices"][0]["logprobs"]["top_logprobs"][0]
            return {str(token): float(value) for token, value in top.items()}
        except OverBudget:
            raise RunError(self._spent()) from None
        except ServerError as error:
            raise RunError(f"suggester_url: {error}") from None
        except (KeyError, IndexError, TypeError, AttributeError, ValueError):
            raise RunError(
                f"suggester_url: {self.server.url} does not tell log-probabilities of tokens. "
                "Choose a server that does, or suggester=language-model"
            ) from None

    def _fail(self, error: ServerError) -> None:
        """End the run, or leave the server alone for a while, each time longer."""
        if self.config.suggester_failure == END_RUN:
            raise RunError(
                f"suggester_url: {error}. What was answered is kept: --resume goes on, or give "
                f"suggester_failure={NO_SUGGESTIONS}"
            )
        log.warning("%s; it is not asked for %.0f seconds", error, self._rest)
        self._rests_until = self.clock() + self._rest
        self._rest = min(2 * self._rest, LONGEST_REST)

    def _tell_budget(self) -> None:
        if not self._told_budget:
            log.warning("%s: what is new from now on has no suggestions", self._spent())
            self._told_budget = True

    def _spent(self) -> str:
        return f"suggester_budget: all {self.config.suggester_budget} requests of this run are sent"


def _text(found: Mapping[str, Any]) -> str | None:
    """Return what a server's model has written, None if an answer is of another form.

    A model may also refuse to write: that is an empty text.
    """
    try:
        choice = found["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
    except (KeyError, IndexError, TypeError):
        return None
    return "" if text is None else text if isinstance(text, str) else None
