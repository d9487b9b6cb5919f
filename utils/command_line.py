"""Command lines of the programs: arguments, one-line errors and exit statuses."""

import argparse
import contextlib
import io
import logging
import math
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from utils.errors import EXHAUSTED, Interrupted, RunError, UserError, escape, one_line
from utils.packages import EXTRAS, missing
from utils.starting import restore_sigint

MOST_DIGITS = 40
GIVEN = "given_options"

# Libraries that tell every request, and every table of a font.
TALKATIVE = ("httpx", "httpx2", "fontTools", "matplotlib")


class OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return one_line(record.getMessage())


class StoreOnce(argparse.Action):
    """Stores an option's value, and refuses a second, which would silently replace the first."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        given = vars(namespace).setdefault(GIVEN, set())
        if option_string and self.dest in given:
            parser.error(f"{option_string} is given twice, give it once")
        given.add(self.dest)
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UserErrors, so that its errors read like all others."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.register("action", None, StoreOnce)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{self.prog}: {message}. See {self.prog} --help")


def add_var(parser: argparse.ArgumentParser, meaning: str, metavar: str = "KEY=VALUE") -> None:
    parser.add_argument("--var", action="append", default=[], metavar=metavar, help=meaning)


def add_trust(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trust",
        action="store_true",
        help="follow the settings of a run that you did not begin here, where they lead to code, "
        "addresses or places; also run its code if that has changed since",
    )


def run_program(program: Callable[[Sequence[str] | None], None], argv: Sequence[str] | None) -> int:
    """Run a program and return its exit status.

    0 is success, 2 a user's mistake, 1 a run that could not go on, 128 + n the signal n. A file
    that cannot be read or written is a user's mistake, too; a full disk or memory is none.
    """
    restore_sigint()
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine())
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    for library in TALKATIVE:
        logging.getLogger(library).setLevel(logging.WARNING)
    words = sys.argv[1:] if argv is None else argv
    try:
        _check_streams()
        if any(word.startswith("--") and word.endswith("=--") for word in words):
            raise UserError("'--' is no value of an option")  # argparse would take it for a list
        program(words)
        sys.stdout.flush()
    except UserError as error:
        return _ended(2, str(error))
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in EXTRAS:
            raise
        return _ended(2, str(missing(str(error.name), "this")))
    except RunError as error:
        return _ended(1, str(error))
    except Interrupted as error:
        return _ended(128 + error.signal, str(error))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of the output, such as head, has had enough
        _discard_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        return _ended(*_failure(error))
    except (MemoryError, RuntimeError) as error:
        # PyTorch tells that memory ran out in RuntimeErrors, and in a kind of its own.
        told = str(error)
        is_full = "allocate memory" in told or "out of memory" in told.lower()
        if not (is_full or isinstance(error, MemoryError)):
            raise
        line = (told.splitlines() or [type(error).__name__])[0].rpartition("] ")[2].rstrip(".")
        return _ended(1, f"not enough memory: {line}. Choose smaller settings")
    return 0


def exit_process(status: int) -> NoReturn:
    """End the process; at once where torchrun started it, when all is written and closed."""
    # The threads of PyTorch's process groups now and then abort a process that has done its work,
    # while the interpreter is being taken down.
    if "WORLD_SIZE" not in os.environ:
        sys.exit(status)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _check_streams() -> None:
    """Refuse closed streams: the first opened file would take their place and their lines."""
    for name, stream in (("output", sys.stdout), ("error", sys.stderr)):
        if stream is None:
            raise UserError(f"standard {name} is closed. Lead it to a file or to {os.devnull}")
    if isinstance(sys.stdout, io.TextIOWrapper):  # a folder's name may not fit its encoding
        sys.stdout.reconfigure(errors="backslashreplace")


def _ended(status: int, line: str) -> int:
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr or sys.stdout, flush=True)
    return status


def _failure(error: OSError) -> tuple[int, str]:
    """Return exit status and line for an error of the system; raise it if its object is unknown."""
    status = 1 if error.errno in EXHAUSTED else 2
    if error.filename is not None:
        return status, escape(f"{error.filename}: {error.strerror}")
    try:
        print(flush=True)  # the output that could not be printed is forgotten by now
    except OSError:
        _discard_output()
        return status, f"standard output: {error.strerror}"
    if status == 2:
        raise error
    return status, str(error.strerror)


def _discard_output() -> None:
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def finite_number(low: float, high: float = math.inf) -> Callable[[str], float]:

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and low <= value <= high):
            ends = [f" {word} {end:g}" for word, end in (("from", low), ("to", high))]
            allowed = "".join(end for end in ends if "inf" not in end)
            raise argparse.ArgumentTypeError(
                f"'{text[:MOST_DIGITS]}' is not a finite number{allowed}"
            )
        return value

    return convert


def whole_number(low: int, high: int) -> Callable[[str], int]:

    def convert(text: str) -> int:
        is_number = text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS
        if not is_number or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(
                f"'{text[:MOST_DIGITS]}' is not a whole number from {low} to {high}"
            )
        return int(text)

    return convert
