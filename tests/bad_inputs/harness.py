"""Running a program on a bad input and demanding what every refusal has in common."""

import warnings
from pathlib import Path

import eval as eval_program
import main as main_program
import plot
import prepare_embeddings
import sweep
from analysis import __main__ as analysis
from benchmarks import __main__ as benchmarks

PROGRAMS = {
    "main": main_program,
    "eval": eval_program,
    "prepare": prepare_embeddings,
    "plot": plot,
    "sweep": sweep,
    "analysis": analysis,
    "benchmarks": benchmarks,
}


def refused(capsys, program, command, n_lines=1):
    """Run a program, demand a refusal, and return its lines on stderr."""
    before = tree()
    capsys.readouterr()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        status = PROGRAMS[program].main(command)
    captured = capsys.readouterr()
    lines = captured.err.removesuffix("\n").split("\n")
    assert status == 2
    assert len(lines) == n_lines, captured.err
    assert all(line.strip() and "Traceback" not in line for line in lines)
    assert all(line.isprintable() for line in lines)
    assert captured.out.count("\n") <= 1, captured.out  # the heading, such as "HELM on ..."
    assert [str(each.message) for each in warned if each.category is not DeprecationWarning] == []
    assert tree() == before
    return lines


def tree():
    """Return every path below the working directory, with its size and time of change."""
    found = {}
    for path in sorted(Path().rglob("*")):
        facts = path.lstat()
        found[path] = (facts.st_size, facts.st_mtime_ns)
    return found


def settings(**changes):
    """Return the command line of some settings."""
    return [f"--var={name}={value}" for name, value in changes.items()]
