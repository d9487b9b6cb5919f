"""A client of OpenAI-compatible servers: one question, one answer, and nothing said of the key.

The key comes from an environment variable and leaves in the header of a request alone: no file, no
log and no error has it. The connection is the standard library's; redirections are not followed,
for they could carry the key elsewhere.
"""

import contextlib
import http.client
import ipaddress
import json
import logging
import os
import random
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from utils.errors import UserError, printable

log = logging.getLogger(__name__)

MOST_BYTES = 10_000_000  # of an answer
PIECE = 65_536
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # seconds between tries
WORTH_ANOTHER_TRY = {408, 409, 425, 429, *range(500, 600)}
HIDDEN = b"(key)"
TOLD = 200  # signs of what a server says


class ServerError(Exception):
    """A server that gives no answer; one line.

    Attributes:
        may_pass: Whether another try could go better.
        status: What the server answered with; None without an answer.
        wait: Seconds the server asks to wait; None if it says nothing.
    """

    def __init__(
        self,
        line: str,
        may_pass: bool,
        status: int | None = None,
        wait: float | None = None,
    ) -> None:
        super().__init__(printable(line))
        self.may_pass, self.status, self.wait = may_pass, status, wait


class Patience(NamedTuple):
    """How long a server is waited for.

    Attributes:
        seconds: For a whole answer.
        retries: Tries after the first.
        sleep: Waits between tries.
    """

    seconds: float = 60.0
    retries: int = 4
    sleep: Callable[[float], None] = time.sleep


class Server:
    """An OpenAI-compatible server.

    Args:
        url: Its address up to /v1.
        key_variable: The environment variable with the key; the server gets none where it is unset.
        patience: How long it is waited for.

    Raises:
        UserError: the address or the name of the variable cannot be one, or the key cannot be sent.
    """

    def __init__(self, url: str, key_variable: str, patience: Patience) -> None:
        self.url, self.patience = checked_url(url), patience
        self._key = key_in(key_variable)
        self._variable = key_variable
        local = is_local(self.url)
        if self._key and self.url.startswith("http:") and not local:
            raise UserError(
                f"suggester_url: {self.url} is not encrypted, and the key in {key_variable} would "
                f"be read on the way. Use https, or unset {key_variable}"
            )
        proxies: dict[str, str] | None = {} if local else None  # None: those of the environment
        self._opener = urllib.request.build_opener(
            _NoRedirection, urllib.request.ProxyHandler(proxies)
        )

    def post(self, path: str, body: Mapping[str, Any], sent: Callable[[], None]) -> dict[str, Any]:
        """Return the object that a server answers with, trying again where that may help.

        Args:
            path: Below the address.
            body: The request.
            sent: Called before each try; what it raises ends the trying.

        Raises:
            ServerError: no answer is to be had.
        """
        for number in range(self.patience.retries + 1):
            sent()
            try:
                return self._request(path, json.dumps(body).encode())
            except ServerError as error:
                if not error.may_pass or number == self.patience.retries:
                    raise
                wait = pause(number, error.wait)
                log.info("%s; another try in %.1f seconds", error, wait)
                self.patience.sleep(wait)
        raise AssertionError("the last try returns or raises")

    def models(self) -> list[str]:
        """Return the names of the models that the server says it has; none if it does not say."""
        try:
            found = self._request("models", None)
            return [str(each["id"]) for each in found["data"]]
        except ServerError as error:
            if error.status in (404, 405):
                return []
            raise
        except (KeyError, TypeError):
            return []

    def _request(self, path: str, body: bytes | None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json", "User-Agent": "helm"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        request = urllib.request.Request(f"{self.url}/{path}", body, headers)
        end = time.monotonic() + self.patience.seconds
        try:
            with self._opener.open(request, timeout=self.patience.seconds) as response:
                return self._parsed(self._without_key(_whole(response, end)))
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error) from None
        except TimeoutError:
            raise self._silent(f"no answer in {self.patience.seconds:g} seconds") from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            if isinstance(reason, TimeoutError):
                reason = f"no answer in {self.patience.seconds:g} seconds"
            raise self._silent(f"{reason}" or type(error).__name__) from None

    def _parsed(self, content: bytes) -> dict[str, Any]:
        try:
            found = json.loads(content)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self._silent(f"its answer is no JSON object: {_beginning(content)!r}")
        return found

    def _refused(self, error: urllib.error.HTTPError) -> ServerError:
        """Return the error for a status other than 200."""
        try:
            said = _beginning(self._without_key(error.read(PIECE)))
        except (OSError, http.client.HTTPException):
            said = ""
        why = error.reason
        if error.code == 401:
            why = f"the key in the environment variable {self._variable} is missing or wrong"
        line = f"{self.url} answers {error.code} ({why})" + (f": {said}" if said else "")
        may_pass = error.code in WORTH_ANOTHER_TRY
        return ServerError(line, may_pass, error.code, _asked_wait(error.headers))

    def _silent(self, reason: str) -> ServerError:
        return ServerError(f"{self.url}: {reason}", may_pass=True)

    def _without_key(self, content: bytes) -> bytes:
        """Return what a server sends without the key, which some repeat: it may be kept or told."""
        return content.replace(self._key.encode(), HIDDEN) if self._key else content


def checked_url(url: str) -> str:
    """Return an address without a slash at its end; UserError where it is none."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise UserError(f"suggester_url: {error}. Give one like http://localhost:8000/v1") from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise UserError(
            "suggester_url: it holds more than an address, which would be written into files. "
            "A key belongs into an environment variable, which suggester_key_variable names"
        )
    if parts.scheme not in ("http", "https") or not host or re.search(r"[\s\x00-\x1f]", url):
        raise UserError(
            f"suggester_url: '{url}' is no address. Give one like http://localhost:8000/v1"
        )
    return url.rstrip("/")


def key_in(variable: str) -> str:
    """Return the key that an environment variable holds, empty if it is not set.

    Raises:
        UserError: the variable has no such name, or what it holds cannot be sent.
    """
    if not re.fullmatch(r"[A-Z_][A-Z0-9_]{0,63}", variable):
        raise UserError(  # it may be the key itself: it is not shown
            "suggester_key_variable: not the name of an environment variable (capitals, digits and "
            "_). Give its name, not the key"
        )
    key = os.environ.get(variable, "").strip()
    if not re.fullmatch(r"[\x21-\x7e]*", key):
        raise UserError(f"{variable}: holds signs that no key has. Set it anew")
    return key


def is_local(url: str) -> bool:
    """Return whether an address is on this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def pause(number: int, asked: float | None) -> float:
    """Return how many seconds to wait after a try: twice as long each time, or as asked.

    Args:
        number: Tries before this one.
        asked: What the server wants.
    """
    if asked is not None:
        return min(asked, LONGEST_WAIT)
    longest = min(FIRST_WAIT * 2**number, LONGEST_WAIT)
    return longest * random.Random().uniform(0.5, 1.0)  # several processes do not come back at once


def _whole(response: Any, end: float) -> bytes:
    """Return what a server sends, if it does so in time and it is not too much."""
    content = bytearray()
    while piece := response.read1(PIECE):
        content += piece
        if time.monotonic() > end:
            raise TimeoutError
        if len(content) > MOST_BYTES:
            raise http.client.HTTPException(f"its answer has more than {MOST_BYTES:,} bytes")
    return bytes(content)


def _asked_wait(headers: Any) -> float | None:
    try:
        return max(float(headers.get("Retry-After")), 0.0)
    except (TypeError, ValueError):
        return None


def _beginning(content: bytes) -> str:
    """Return the first signs of what a server says, of an error its message."""
    text = content.decode(errors="replace")
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        text = str(json.loads(text)["error"]["message"])
    return " ".join(text.split())[:TOLD]


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow none: the answer is an error with the status of a redirection."""
