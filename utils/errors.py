"""The exceptions that a program answers with one line and an exit status."""

import difflib
import signal
from collections.abc import Callable, Iterable


class UserError(Exception):
    """Bad input of any kind; the programs print a line for each mistake and exit with status 2.

    A line says where, what was given, what is allowed and what to do. What a user gave may hold
    line breaks and other signs that do not print: they are shown as Python writes them.
    """

    def __init__(self, *lines: str) -> None:
        self.lines = [printable(line) for line in lines]
        super().__init__("\n".join(self.lines))


def printable(text: str) -> str:
    r"""Return a text with what does not print written out, such as \n for a line break."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


class RunError(Exception):
    """A run that cannot go on, by no mistake of the user; one line and exit status 1."""


class Interrupted(Exception):
    """A run that was asked to end; one line and exit status 128 + the signal's number.

    Attributes:
        signal: What asked.
    """

    def __init__(self, message: str, signal: signal.Signals) -> None:
        super().__init__(message)
        self.signal = signal


def suggestion(name: str, allowed: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the closest of the allowed names, or an empty string."""
    matches = difflib.get_close_matches(name, list(allowed), n=1, cutoff=0.6)
    return f" Did you mean '{matches[0]}'?" if matches else ""


def raise_all(*checks: Callable[[], object]) -> None:
    """Run every check and raise the UserErrors of all of them as one, a line for each mistake."""
    problems: list[str] = []
    for check in checks:
        try:
            check()
        except UserError as error:
            problems += error.lines
    if problems:
        raise UserError(*dict.fromkeys(problems))
