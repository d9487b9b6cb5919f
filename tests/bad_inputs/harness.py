"""Programs run on bad inputs, in this process; all that a refusal must be."""

import contextlib
import io
import os
import warnings

import pytest

import eval as eval_program
import main as main_program
import plot
import prepare_embeddings
import publish
import sweep
from analysis import __main__ as analysis
from benchmarks import __main__ as benchmarks
from utils.errors import UserError

PROGRAMS = {
    "main": main_program,
    "eval": eval_program,
    "prepare": prepare_embeddings,
    "plot": plot,
    "sweep": sweep,
    "publish": publish,
    "analysis": analysis,
    "benchmarks": benchmarks,
}
TRACE = "code_was_run"  # the file an intruder would leave
LONGEST_LINE = 10_000


def settings(**changes):
    """Return the command line of some settings."""
    return [f"--var={name}={value}" for name, value in changes.items()]


def tree(place="."):
    """Return size, time of change and mode of every path below a folder; of folders the mode.

    A folder's time changes where a file in it is made and deleted again, which is nobody's loss.
    """
    found = {}
    for folder, folders, files in os.walk(place):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            facts = os.lstat(path)
            size, changed = (0, 0) if name in folders else (facts.st_size, facts.st_mtime_ns)
            found[os.path.relpath(path, place)] = (size, changed, facts.st_mode)
    return found


@contextlib.contextmanager
def in_one_line(reason):
    """Demand that the block is refused as a user's error of one line that holds the reason."""
    with pytest.raises(UserError, match=reason) as caught:
        yield caught
    assert len(caught.value.lines) == 1, caught.value
    assert "\n" not in str(caught.value)


def refused(capsys, program, command, *words, n_lines=1):
    """Run a program, demand a refusal that holds some words, and return its lines on stderr.

    The words are the place, the value given and the remedy, whatever stands between them.
    """
    before = tree()
    capsys.readouterr()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        status = PROGRAMS[program].main(command)
    captured = capsys.readouterr()
    lines = captured.err.removesuffix("\n").split("\n")
    assert status == 2
    assert len(lines) == n_lines, captured.err
    assert [word for word in words if word not in captured.err] == [], captured.err
    assert all(line.strip() and "Traceback" not in line for line in lines)
    assert all(line.isprintable() for line in lines)
    assert captured.out.count("\n") <= 1, captured.out  # the heading, such as "HELM on ..."
    # What another test left is told of whenever the garbage collector comes to it.
    silent = (DeprecationWarning, ResourceWarning)
    assert [str(each.message) for each in warned if each.category not in silent] == []
    assert tree() == before
    return lines


def ended(program, command):
    """Run a program on any input and return its exit status and its lines on stderr.

    An exception fails the test; what is refused has changed nothing.
    """
    before, out, err = tree(), io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = PROGRAMS[program].main(command)
    lines = err.getvalue().removesuffix("\n").split("\n")
    assert status in (0, 1, 2), err.getvalue()
    assert "Traceback" not in out.getvalue() + err.getvalue()
    if status == 2:
        assert all(line.strip() and line.isprintable() for line in lines), lines
        assert all(len(line) <= LONGEST_LINE for line in lines)
        assert tree() == before
    return status, lines


def no_connection(*_, **__):
    raise ConnectionError("no connection")
