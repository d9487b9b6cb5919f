"""What the programs share: one-line errors and exit statuses."""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from utils.errors import Interrupted, RunError, UserError, printable

MOST_DIGITS = 40
LONGEST_MESSAGE = 500


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are UserErrors, so that they read like all others."""

    def error(self, message: str) -> NoReturn:
        """Raise the message as one line, cut where what was given is very long."""
        if len(message) > LONGEST_MESSAGE:
            message = f"{message[:LONGEST_MESSAGE]}..."
        raise UserError(f"{self.prog}: {message}. See {self.prog} --help")


def run_program(program: Callable[[Sequence[str] | None], None], argv: Sequence[str] | None) -> int:
    """Run a program and return its exit status.

    0 is success, 2 a user's mistake, 1 a run that could not go on, 128 + n the signal n. A file
    that cannot be read or written is a user's mistake, too.
    """
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    words = sys.argv[1:] if argv is None else argv
    try:
        if any(word.startswith("--") and word.endswith("=--") for word in words):
            raise UserError("'--' is no value of an option")  # argparse would take it for a list
        program(words)
        sys.stdout.flush()
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
    except BrokenPipeError:  # who reads the output, such as head, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.filename is None:
            raise
        print(printable(f"{error.filename}: {error.strerror}"), file=sys.stderr)
        return 2
    return 0


def whole_number(low: int, high: int) -> Callable[[str], int]:
    """Return an argument type: a whole number from `low` to `high`."""

    def convert(text: str) -> int:
        is_number = text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS
        if not is_number or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(
                f"'{text[:MOST_DIGITS]}' is not a whole number from {low} to {high}"
            )
        return int(text)

    return convert
