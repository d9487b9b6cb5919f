"""What the three programs share: one-line errors and exit statuses."""

import argparse
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from utils.errors import Interrupted, RunError, UserError


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are UserErrors, so that they read like all others."""

    def error(self, message: str) -> NoReturn:
        """Raise the message as one line."""
        raise UserError(f"{self.prog}: {message}. See {self.prog} --help")


def run_program(program: Callable[[Sequence[str] | None], None], argv: Sequence[str] | None) -> int:
    """Run a program and return its exit status.

    0 is success, 2 a user's mistake, 1 a run that could not go on, 128 + n the signal n.
    """
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    try:
        program(argv)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except RunError as error:
        print(error, file=sys.stderr)
        return 1
    except Interrupted as error:
        print(error, file=sys.stderr)
        return 128 + error.signal
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def whole_number(low: int) -> Callable[[str], int]:
    """Return an argument type: a whole number of at least `low`."""

    def convert(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < low:
            raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of {low} or more")
        return int(text)

    return convert
