"""How programs start, speak and end, whatever signals and streams they are given."""

import errno
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import main as main_program
from utils import starting
from utils.command_line import run_program
from utils.errors import COMMANDS, cli_command
from utils.files import atomic_write

ROOT = Path(main_program.__file__).parent
FULL = Path("/dev/full")
needs_full_device = pytest.mark.skipif(not FULL.exists(), reason="needs a device always full")


def run(*arguments, **options):
    """Run main.py as a process of its own and return it, finished."""
    command = [sys.executable, main_program.__file__, *arguments]
    return subprocess.run(command, text=True, timeout=120, check=False, **options)


@pytest.mark.slow
@needs_full_device
@pytest.mark.parametrize(
    ("option", "stream", "status", "said"),
    [
        ("--print-config", "stdout", 1, "standard output: No space left on device\n"),
        ("--no-such-option", "stderr", 2, None),  # nobody can be told
    ],
)
def test_a_full_stream_is_one_line_or_an_exit_status(option, stream, status, said, in_empty_folder):
    with FULL.open("wb") as full:
        ended = run(option, **({"stderr": subprocess.PIPE} | {stream: full}))
    assert (ended.stderr, ended.returncode) == (said, status)


@pytest.mark.slow
@pytest.mark.parametrize(("closed", "name"), [(1, "output"), (2, "error")])
def test_a_closed_stream_is_refused_before_anything_is_done(closed, name, in_empty_folder):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    ended = run("--run-id=x", **pipes, preexec_fn=lambda: os.close(closed))
    line = f"standard {name} is closed. Lead it to a file or to /dev/null\n"
    assert ended.stdout + ended.stderr == line
    assert ended.returncode == 2
    assert list(in_empty_folder.iterdir()) == []


def test_a_name_that_the_terminal_cannot_show_is_printed_all_the_same():
    code = "import sys; from utils.command_line import run_program\n"
    code += "sys.exit(run_program(lambda _: print('mémoire \\udcff'), []))"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        check=True,
    )
    assert ended.stdout == b"m\\xe9moire \\udcff\n"


def failing(error):
    def program(words):
        raise error

    return program


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 1, "No space left on device"),
        (OSError(errno.ENOSPC, "No space left", "a.npz"), 1, "a.npz: No space left"),
        (PermissionError(errno.EACCES, "Permission denied", "a"), 2, "a: Permission denied"),
        (MemoryError("Unable to allocate 3 GiB"), 1, "not enough memory: Unable to allocate 3 GiB"),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes."),
            1,
            "not enough memory: DefaultCPUAllocator: can't allocate memory: 9 bytes",
        ),
    ],
)
def test_what_a_machine_lacks_is_one_line(error, status, line, capsys):
    assert run_program(failing(error), []) == status
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(line)


def test_a_broken_invariant_is_no_mistake_of_the_user():
    with pytest.raises(RuntimeError, match="shapes"):
        run_program(failing(RuntimeError("shapes 3 and 4")), [])
    with pytest.raises(OSError, match="odd"):
        run_program(failing(OSError("odd")), [])


@needs_full_device
def test_a_file_that_did_not_fit_is_named_and_leaves_nothing(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    path.write_text("before")
    monkeypatch.setattr(os, "fsync", lambda _: FULL.open("wb", buffering=0).write(b"x"))
    with pytest.raises(OSError, match=r"result\.json") as raised, atomic_write(path) as file:
        file.write(b"after")
    assert raised.value.errno == errno.ENOSPC
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(path.name, "before")]


@pytest.mark.parametrize("option", ["--config", "--seed", "--run-id", "--resume"])
def test_an_option_given_twice_is_refused(option, in_empty_folder, capsys):
    assert main_program.main([option, "1", option, "2", "--print-config"]) == 2
    assert f"{option} is given twice" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGUSR1, 0)]
)
def test_a_signal_while_a_program_loads_prints_no_traceback(number, status, tmp_path):
    (tmp_path / "program.py").write_text(
        "import os, signal\n"
        # A shell's background job is begun with Ctrl-C ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import utils.starting\n"
        "utils.starting.defer_sigint()\n"
        f"os.kill(os.getpid(), {int(number)})\n"
        "utils.starting.restore_sigint()\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
    )
    ended = subprocess.run(
        [sys.executable, str(tmp_path / "program.py")],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
        capture_output=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (status, b"")


@pytest.mark.parametrize(
    ("started", "is_program", "words"),
    [
        ("/somewhere/bin/helm-sweep", True, ["helm-eval"]),
        (str(ROOT / "main.py"), True, ["python", str(ROOT / "eval.py")]),
        (str(ROOT / "analysis" / "__main__.py"), True, None),
        (str(ROOT / "tests" / "faults.py"), False, None),
        ("main.py", None, ["python", "eval.py"]),
        ("/somewhere/main.py", None, ["python", "eval.py"]),
    ],
)
def test_a_program_sets_signals_and_tells_what_to_type(started, is_program, words, monkeypatch):
    monkeypatch.setattr(sys, "argv", [started])
    assert is_program in (None, starting.is_started(started))
    assert words in (None, cli_command("eval.py"))
    assert not starting.is_started(None)


def test_what_is_installed_is_what_there_is():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    modules = project["tool"]["setuptools"]["py-modules"]
    assert modules == sorted(file.stem for file in ROOT.glob("*.py"))
    commands = {name: f"{Path(file).stem}:main" for file, name in COMMANDS.items()}
    assert project["project"]["scripts"] == commands
