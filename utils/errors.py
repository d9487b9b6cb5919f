"""The exceptions that a program answers with one line and an exit status."""

import difflib
import errno
import math
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

LEAST_LIKENESS = 0.6  # of a suggested name, from 0 to 1
LONGEST_LINE = 3000
SHORTEST_PART, MOST_SUGGESTED = 3, 3
LONGEST_MESSAGE = 200
OF_FILES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
OF_MEMORY = (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE)
EXHAUSTED = OF_FILES + OF_MEMORY  # the machine, not a mistake of its user's
# What a user's code raises is told as its fault; these only end a program, or a generator.
ENDINGS = (KeyboardInterrupt, GeneratorExit)
ROOT = Path(__file__).resolve().parent.parent
ENVS = ROOT / "envs"
LONGEST_SHOWN = 100
# The programs, and their names where the package is installed.
COMMANDS = {
    "main.py": "helm-train",
    "eval.py": "helm-eval",
    "plot.py": "helm-plot",
    "sweep.py": "helm-sweep",
    "prepare_embeddings.py": "helm-prepare",
    "prepare_captions.py": "helm-prepare-captions",
    "publish.py": "helm-publish",
}


class UserError(Exception):
    """Bad input of any kind; the programs print a line for each mistake and exit with status 2.

    A line names the place, the given value, the allowed ones and the remedy. Line breaks and other
    signs that do not print are shown as Python writes them. The middle of a very long line is
    left out.
    """

    def __init__(self, *lines: str) -> None:
        self.lines = [one_line(line) for line in lines]
        super().__init__("\n".join(self.lines))


def one_line(text: str) -> str:
    if len(text) > LONGEST_LINE:
        text = f"{text[: LONGEST_LINE // 2]} ... {text[-LONGEST_LINE // 3 :]}"
    return escape(text)


def escape(text: str) -> str:
    r"""Return a text with signs that do not print written out, such as \n for a line break."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


class EnvFault(UserError):
    """A fault of an environment while it was reset or stepped."""


class RunError(Exception):
    """A run that cannot go on, by no mistake of the user; one line and exit status 1."""


class NotFiniteError(Exception):
    """A loss or a gradient that is infinite or no number.

    Args:
        step: The first gradient step that had one: its `epoch`, its `number` there, and the numbers
            that were `logged`.

    Attributes:
        env_steps: The run's, when it was met.
    """

    def __init__(self, step: Mapping[str, Any]) -> None:
        bad = [name for name, value in step["logged"].items() if not math.isfinite(value)]
        where = bad[0] if bad else "a loss or gradient of another rank"
        super().__init__(
            f"{where} is not finite in epoch {step['epoch']}, minibatch {step['number']}"
        )
        self.env_steps = 0


class Interrupted(Exception):
    """A run that a signal asked to end; one line and exit status 128 + the signal's number."""

    def __init__(self, message: str, signal: signal.Signals) -> None:
        super().__init__(message)
        self.signal = signal


def error_text(error: BaseException) -> str:
    """Return an error's kind and message, and the last line of its author's."""
    # That is one outside of installed packages and of our own wrappers, if any.
    try:
        message = " ".join(str(error).split())[:LONGEST_MESSAGE]
    except Exception:  # whatever its author did
        message = "(its message cannot be made)"
    kind = f"{type(error).__name__}: {message}"
    if isinstance(error, SyntaxError):  # its message has the line
        return kind
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames
        if frame.filename[0] != "<"
        and "site-packages" not in frame.filename
        and Path(frame.filename).parent != ENVS
    ]
    where = (own or frames)[-1]
    return f"{kind} ({Path(where.filename).name}, line {where.lineno})"


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the closest of the allowed names, or an empty string.

    Case, punctuation, a version at the end (-v0) and a beginning common to all ("MiniGrid-") do not
    count. Of names that contain the given one up to three are suggested.
    """
    names = list(allowed)
    plain = [re.sub(r"-v\d+$", "", each.casefold()) for each in (name, *names)]
    beginning = re.sub(r"[^-_/]*$", "", os.path.commonprefix(plain))  # noqa: RUF071 (no paths)
    given, *stems = (re.sub(r"[\W_]+", "", each.removeprefix(beginning)) for each in plain)
    same = [stem for stem in stems if stem == given and given]
    parts = [stem for stem in stems if given in stem and len(given) >= SHORTEST_PART]
    begin = [stem for stem in parts if stem.startswith(given)]
    close = difflib.get_close_matches(given, stems, n=len(stems) or 1, cutoff=LEAST_LIKENESS)
    likeness = {each: difflib.SequenceMatcher(None, each, given).ratio() for each in close}
    close = sorted(likeness, key=lambda stem: (-likeness[stem], stems.index(stem)))[:1]
    # Of those that hold the given name, the shortest are nearest to it.
    nearest = same[:1] or sorted(begin or parts, key=len)[:MOST_SUGGESTED] or close
    found = [f"'{names[stems.index(stem)]}'" for stem in dict.fromkeys(nearest)]
    if len(found) > 1:
        found = [f"{', '.join(found[:-1])} or {found[-1]}"]
    return f" Did you mean {found[0]}?" if found else ""


def raise_any(problems: Iterable[str]) -> None:
    if lines := dict.fromkeys(problems):
        raise UserError(*lines)


def raise_all(*calls: Callable[[], Any]) -> list[Any]:
    """Return the results of all calls, or raise one UserError with the lines of all theirs."""
    results, problems = [], list[str]()
    for call in calls:
        try:
            results.append(call())
        except UserError as error:
            problems += error.lines
    raise_any(problems)
    return results


def received(value: object) -> str:
    """Return a value that somebody else may have written as it may be shown on a terminal."""
    return escape(shortened(str(value)))


def shortened(text: str) -> str:
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}..."


def cli_command(program: str) -> list[str]:
    started = Path(sys.argv[0])
    if started.name in COMMANDS.values():
        return [COMMANDS[program]]
    folder = started.parent if started.resolve().parent == ROOT else Path()
    return ["python", str(folder / program)]
