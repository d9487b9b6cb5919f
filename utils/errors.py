"""The one exception that stands for a user's mistake."""

import difflib
from collections.abc import Callable, Iterable


class UserError(Exception):
    """Bad input of any kind; the programs print its one line and exit with status 2.

    The message says where, what was given, what is allowed and what to do.
    """


def suggestion(name: str, allowed: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the closest of the allowed names, or an empty string."""
    matches = difflib.get_close_matches(name, list(allowed), n=1, cutoff=0.6)
    return f" Did you mean '{matches[0]}'?" if matches else ""


def raise_all(*checks: Callable[[], object]) -> None:
    """Run every check and raise the UserErrors of all of them as one, a line each."""
    problems = []
    for check in checks:
        try:
            check()
        except UserError as error:
            problems.append(str(error))
    if problems:
        raise UserError("\n".join(problems))
