import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from sweeps.worker import Ending, Order, attempt, last_line

PATIENCE = 20.0
WAITING_RUN = """
import pathlib, signal, sys, time
def save(*_):
    pathlib.Path("saved").touch()
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
pathlib.Path("ready").touch()
time.sleep(60)
"""


def order(folder, program, **changes):
    (folder / "program.py").write_text(program)
    names = Path("runs/a"), Path("a.json"), Path("a.log"), (Path("stop"), Path("a.stop"))
    return Order(folder, folder / "program.py", *names, n_threads=3, on_gpu=False)._replace(
        **changes
    )


def wait_for(path):
    """Return whether the path is there in the end."""
    end = time.monotonic() + PATIENCE
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.01)
    return path.exists()


def test_a_run_is_begun_with_its_settings_and_threads(tmp_path):
    program = "import os, sys; print(sys.argv[1:], *map(os.environ.get, sys.argv[5:] or NAMES))"
    program = program.replace("NAMES", "['OMP_NUM_THREADS', 'CUDA_VISIBLE_DEVICES']")
    assert attempt(order(tmp_path, program)) == Ending(
        0, "['--config', 'a.json', '--run-id', 'a'] 3"
    )


def test_a_run_that_has_a_folder_goes_on(tmp_path):
    (tmp_path / "runs/a").mkdir(parents=True)
    ending = attempt(order(tmp_path, "import sys; print(sys.argv[1:])"))
    assert ending.last_line == "['--resume', 'runs/a']"


def test_gpus_are_hidden_from_runs_that_were_given_none(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    program = "import os; print('sees', repr(os.environ['CUDA_VISIBLE_DEVICES']))"
    assert attempt(order(tmp_path, program)).last_line == "sees ''"
    assert attempt(order(tmp_path, program, on_gpu=True)).last_line == "sees '5'"


def test_a_failure_is_told_by_its_last_line(tmp_path):
    ending = attempt(order(tmp_path, "import sys; print('disk full'); print(); sys.exit(1)"))
    assert (ending.status, str(ending)) == (1, "disk full")


def test_a_kill_is_told_by_its_signal(tmp_path):
    ending = attempt(order(tmp_path, "import os; os.kill(os.getpid(), 9)"))
    assert (ending.status, str(ending)) == (-9, "killed by SIGKILL")


def test_attempts_add_to_the_log(tmp_path):
    for word in ("first", "second"):
        attempt(order(tmp_path, f"print('{word} words')"))
    assert "first words" in (tmp_path / "a.log").read_text()
    assert last_line(tmp_path / "a.log") == "second words"


def test_a_run_saves_and_ends_once_it_is_asked_to(tmp_path):
    def ask():
        assert wait_for(tmp_path / "ready")
        (tmp_path / "stop").touch()

    thread = threading.Thread(target=ask)
    thread.start()
    ending = attempt(order(tmp_path, WAITING_RUN))
    thread.join()
    assert ending.status == 143
    assert (tmp_path / "saved").exists()


def test_nothing_is_begun_once_all_is_to_end(tmp_path):
    (tmp_path / "stop").touch()
    assert attempt(order(tmp_path, WAITING_RUN)).last_line == "not begun"
    assert not (tmp_path / "a.log").exists()


def test_a_run_saves_and_ends_when_its_worker_is_killed(tmp_path):
    worker = os.fork()
    if not worker:
        attempt(order(tmp_path, WAITING_RUN))
        os._exit(0)
    assert wait_for(tmp_path / "ready")
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)
    assert wait_for(tmp_path / "saved")


def test_a_worker_imports_nothing_heavy():
    import subprocess

    code = (
        "import sys, sweeps.worker; sys.exit(bool({'torch', 'numpy', 'ray'} & sys.modules.keys()))"
    )
    root = Path(__file__).parent.parent
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


@pytest.mark.parametrize(("text", "line"), [("", ""), ("\n\n", ""), ("a\n b \n\n", "b")])
def test_the_last_line_is_the_last_that_says_something(tmp_path, text, line):
    (tmp_path / "log").write_text(text)
    assert last_line(tmp_path / "log") == line
