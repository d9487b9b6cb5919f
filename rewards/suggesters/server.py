"""Suggestions of a language model on an OpenAI-compatible server, within a budget of requests.

The key comes from an environment variable and leaves only in the header of a request: no file, log
or error has it. Redirections are not followed, for they could carry the key elsewhere.
"""

import asyncio
import contextlib
import ipaddress
import json
import logging
import os
import random
import re
import ssl
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from time import monotonic, perf_counter, sleep
from typing import Any
from urllib.parse import urlsplit

import httpx

from rewards.settings import (
    CHAT,
    COMPLETIONS,
    END_RUN,
    NO_SUGGESTIONS,
    ServerSettings,
)
from rewards.suggesters.language_model import (
    FIRST_TOKENS,
    PromptedSuggester,
    lm_sentence,
    question,
    writing_parameters,
)
from rewards.suggesters.rules import TextState
from utils.answer_cache import AnswerCache, Completion, CompletionRequest, open_cache
from utils.environments import State
from utils.errors import RunError, UserError, did_you_mean, escape
from utils.settings import Config

Answer = dict[str, Any]  # the JSON object of a server

log = logging.getLogger(__name__)

AT_ONCE = 8  # requests under way
FIRST_REST, LONGEST_REST = 10.0, 600.0  # seconds in which a server that failed is not asked
MOST_BYTES = 10_000_000  # of an answer
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # seconds between tries
WORTH_ANOTHER_TRY = {408, 409, 425, 429, *range(500, 600)}
OURS = ("by", "api")  # parameters of a question that no server is told
HIDDEN = b"(key)"
TOLD = 200  # signs of a server's message


class ServerError(Exception):
    """A request without an answer; one line.

    Attributes:
        may_pass: Whether another try could succeed.
        status: Of the server's answer; None without one.
        wait: Seconds to wait, as the server asks; None without such a demand.
    """

    def __init__(
        self, line: str, may_pass: bool, status: int | None = None, wait: float | None = None
    ) -> None:
        super().__init__(escape(line))
        self.may_pass, self.status, self.wait = may_pass, status, wait


class OverBudget(Exception):
    """The budget of requests is spent."""


class Server:
    """A client of an OpenAI-compatible server; UserError if address, variable or key is invalid."""

    def __init__(self, config: ServerSettings) -> None:
        self.config, self.url = config, checked_url(config.suggester_url or "")
        variable = config.suggester_key_variable
        self._key = key_in(variable)
        local = is_local(self.url)
        # Refused before anything is sent, even the list of models.
        if self._key and self.url.startswith("http:") and not local:
            raise UserError(
                f"suggester_url: {self.url} is not encrypted, and the key in {variable} would "
                f"be read on the way. Use https, or unset {variable}"
            )
        self._has_proxies = not local  # those of the environment
        self._certificates = ssl.create_default_context()  # the system's, where httpx has its own

    def post(self, path: str, body: Mapping[str, object], sent: Callable[[], None]) -> Answer:
        """Return the server's JSON object, after more tries if need be, or raise ServerError."""
        # `sent` is called before each try; an exception of it ends the trying.
        number = 0
        while True:
            sent()
            try:
                return self.request(path, json.dumps(body).encode())
            except ServerError as error:
                if not error.may_pass or number == self.config.suggester_retries:
                    raise
                wait = pause(number, error.wait)
                log.info("%s; another try in %.1f seconds", error, wait)
                sleep(wait)
                number += 1

    def request(self, path: str, body: bytes | None = None) -> Answer:
        """Return the JSON object that answers one request; ServerError without one."""
        try:
            answer, content = asyncio.run(self._answer(path, body))
        except TimeoutError:
            raise self._silent(f"no answer in {self.config.suggester_timeout:g} seconds") from None
        except (OSError, httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._silent(str(error) or type(error).__name__) from None
        if not answer.is_success:
            raise self._refused(answer, content)
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(content)
            if isinstance(found, dict):
                return found
        raise self._silent(f"its answer is no JSON object: {_beginning(content)!r}")

    async def _answer(self, path: str, body: bytes | None) -> tuple[httpx.Response, bytes]:
        headers = {"Content-Type": "application/json", "User-Agent": "helm"}
        headers["Accept-Encoding"] = "identity"  # a short answer may be unpacked to gigabytes
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        method, url, content = "GET" if body is None else "POST", f"{self.url}/{path}", bytearray()
        # One end for the whole answer: httpx's timeout is that of a piece, and one byte a second
        # would keep a request waiting for good. Redirections are not followed by default.
        async with (
            asyncio.timeout(self.config.suggester_timeout),
            httpx.AsyncClient(
                verify=self._certificates, trust_env=self._has_proxies, timeout=None
            ) as client,
            client.stream(method, url, content=body, headers=headers) as answer,
        ):
            async for piece in answer.aiter_raw():
                content += piece
                if len(content) > MOST_BYTES:
                    raise httpx.HTTPError(f"its answer has more than {MOST_BYTES:,} bytes")
        return answer, self._without_key(bytes(content))

    def _refused(self, answer: httpx.Response, content: bytes) -> ServerError:
        said, why, status = _beginning(content), answer.reason_phrase, answer.status_code
        wait: float | None = None
        with contextlib.suppress(ValueError):
            wait = max(0.0, float(answer.headers.get("Retry-After", "")))  # of NaN: 0
        if status == 401:
            variable = self.config.suggester_key_variable
            why = f"the key in the environment variable {variable} is missing or wrong"
        line = f"{self.url} answers {status} ({why})" + (f": {said}" if said else "")
        return ServerError(line, status in WORTH_ANOTHER_TRY, status, wait)

    def _silent(self, reason: str) -> ServerError:
        return ServerError(f"{self.url}: {reason}", may_pass=True)

    def _without_key(self, content: bytes) -> bytes:
        # Some servers repeat the key, and answers are kept and shown.
        return content.replace(self._key.encode(), HIDDEN) if self._key else content


class ServerSuggester(PromptedSuggester):
    """Suggests by a server's model.

    A resumed run goes on with the larger number of requests in its checkpoint and in the cache, so
    that those between a checkpoint and a kill count.
    """

    def __init__(self, config: ServerSettings, cache: AnswerCache) -> None:
        super().__init__(cache, config.retry_malformed, config.suggester_wait)
        if not config.suggester_url:
            raise UserError(
                "suggester_url: missing. Give the server's address, such as "
                "suggester_url=http://localhost:8000/v1"
            )
        self.config, self.server, self.model_id = config, Server(config), config.suggester_model
        self.run, self.sent, self._lock = uuid.uuid4().hex, 0, Lock()
        self._rests_until, self._rest = 0.0, FIRST_REST
        self._told_budget = False

    @classmethod
    def configured(cls, config: Config, action_names: Sequence[str]) -> "ServerSuggester":
        own = config.part(ServerSettings)
        suggester = cls(own, open_cache(own.suggester_cache))
        if own.suggester_budget != 0 and own.suggester_failure == END_RUN:
            suggester.check_server()
        return suggester

    def check_server(self) -> None:
        """Raise UserError if the server does not answer, or has no model of the name."""
        try:
            names = [str(each["id"]) for each in self.server.request("models")["data"]]
        except ServerError as error:
            if error.status in (404, 405):  # it has no list of models
                return
            raise UserError(
                f"suggester_url: {error}. Start the server, or give suggester_budget=0 to use the "
                "cache alone"
            ) from None
        except (KeyError, TypeError):  # a list of another form
            return
        name = self.config.suggester_model
        if names and name not in names:
            raise UserError(
                f"suggester_model: {self.config.suggester_url} has no '{name}'."
                f"{did_you_mean(name, names)} It has {', '.join(names[:5])}"
            )

    def question(self, situation: TextState) -> CompletionRequest:
        config = self.config
        parameters = writing_parameters(config) | {"api": config.suggester_api}
        if config.suggester_api == CHAT and not config.retry_malformed:
            del parameters["stop"]  # an empty line may follow the chat's first words
        return CompletionRequest(
            self.model_id, question(situation), parameters, lm_sentence(situation)
        )

    def ask(self, questions: Sequence[CompletionRequest]) -> list[Completion | None]:
        # No question for now: steps go on without goals, and situations are asked about later.
        if monotonic() < self._rests_until:
            return [None] * len(questions)
        with ThreadPoolExecutor(min(AT_ONCE, len(questions))) as threads:
            found = list(self.awaited(threads.map(self._outcome, questions), len(questions)))
        failures = [each for each in found if isinstance(each, ServerError)]
        if failures:
            self._fail(failures[0])
        # It answers again: the next failure begins with a short rest.
        elif any(each is not None for each in found):
            self._rest = FIRST_REST
        if None in found and not (self._told_budget or self.is_over):  # told once
            log.warning("%s: new situations have no suggestions from now on", self._spent())
            self._told_budget = True
        return [each if isinstance(each, Completion) else None for each in found]

    def metrics(self) -> dict[str, float]:
        return super().metrics() | {"suggester/requests": self.sent}

    def state_dict(self) -> State:
        return super().state_dict() | {"run": self.run, "sent": self.sent}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        # Those sent since the start, about the scenes of a run that is being resumed, count, too.
        self.run, sent = state["run"], self.cache.spend(state["run"], state["sent"]) + self.sent
        self.sent = self.cache.spend(self.run, sent)

    def _take(self) -> None:
        """Count a request before it is sent; OverBudget if none is left, or the run is over."""
        most = self.config.suggester_budget
        with self._lock:
            if self.is_over or (most is not None and self.sent >= most):
                raise OverBudget
            self.sent = self.cache.spend(self.run, self.sent + 1)

    def _outcome(self, asked: CompletionRequest) -> Completion | ServerError | None:
        begun = perf_counter()
        # Our own parameters tell answers apart in the cache; servers refuse unknown ones.
        body = {name: value for name, value in asked.parameters.items() if name not in OURS}
        body["model"], path = self.model_id, "completions"
        is_yes_no = asked.parameters["by"] == FIRST_TOKENS
        if is_yes_no or self.config.suggester_api == COMPLETIONS:
            body["prompt"] = asked.text
        else:
            path, body["messages"] = f"chat/{path}", [{"role": "user", "content": asked.text}]
        try:
            found = self.server.post(path, body, self._take)
        except OverBudget:
            return None
        except ServerError as error:
            return error
        text = _first_tokens(found) if is_yes_no else _text(found)
        if text is None:
            lacks = "log-probabilities of tokens" if is_yes_no else "text"
            return ServerError(f"{self.server.url}: its answer has no {lacks}", may_pass=False)
        usage = found.get("usage")
        tokens = usage.get("total_tokens") if isinstance(usage, dict) else 0
        # `type`, as a bool is an int for isinstance, and foreign JSON may hold one.
        return Completion(text, tokens if type(tokens) is int else 0, perf_counter() - begun)

    def _fail(self, error: ServerError) -> None:
        """End the run, or leave the server alone for a while, each time longer."""
        if self.config.suggester_failure == END_RUN:
            raise RunError(
                f"suggester_url: {error}. Answers are kept: go on with --resume, or give "
                f"suggester_failure={NO_SUGGESTIONS}"
            )
        log.warning("%s; it is not asked for %.0f seconds", error, self._rest)
        self._rests_until = monotonic() + self._rest
        self._rest = min(2 * self._rest, LONGEST_REST)

    def _spent(self) -> str:
        return f"suggester_budget: all {self.config.suggester_budget} requests of this run are sent"


def checked_url(url: str) -> str:
    """Return an address without a slash at its end; UserError if it is invalid."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise UserError(f"suggester_url: {error}. Give one like http://localhost:8000/v1") from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise UserError(
            "suggester_url: it contains more than an address, and HELM writes it into files. Put a "
            "key into an environment variable, and name that in suggester_key_variable"
        )
    if parts.scheme not in ("http", "https") or not host or re.search(r"[\s\x00-\x1f]", url):
        raise UserError(
            f"suggester_url: '{url}' is no address. Give one like http://localhost:8000/v1"
        )
    return url.rstrip("/")


def key_in(variable: str) -> str:
    """Return the key in an environment variable, empty if unset; UserError if it cannot be sent."""
    if not re.fullmatch(r"[A-Z_][A-Z0-9_]{0,63}", variable):
        raise UserError(  # it may be the key itself: it is not shown
            "suggester_key_variable: not the name of an environment variable (capitals, digits and "
            "_). Give its name, not the key"
        )
    key = os.environ.get(variable, "").strip()
    if not re.fullmatch(r"[\x21-\x7e]*", key):
        raise UserError(f"{variable}: contains characters that no key has. Set it again")
    return key


def is_local(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def pause(number: int, asked: float | None) -> float:
    """Return the seconds to wait after a number of tries: as asked, or twice as long each time."""
    if asked is not None:
        return min(asked, LONGEST_WAIT)
    longest = min(FIRST_WAIT * 2**number, LONGEST_WAIT)
    return longest * random.Random().uniform(0.5, 1.0)  # several processes do not come back at once


def _beginning(content: bytes) -> str:
    text = content.decode(errors="replace")
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        text = str(json.loads(text)["error"]["message"])
    return " ".join(text.split())[:TOLD]


def _text(found: Answer) -> str | None:
    try:
        choice = found["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
    except (KeyError, IndexError, TypeError):
        return None
    return "" if text is None else text if isinstance(text, str) else None


def _first_tokens(found: Answer) -> str | None:
    """Return the log-probabilities of the first tokens as JSON, None without them."""
    try:
        return json.dumps(dict(found["choices"][0]["logprobs"]["top_logprobs"][0]))
    except (KeyError, IndexError, TypeError, ValueError):
        return None
