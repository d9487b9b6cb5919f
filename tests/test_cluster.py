"""Attempts of a small program instead of main.py: by themselves, as Ray tasks, and by Slurm."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from sweeps import jobs
from sweeps.jobs import attempt, ray_pool
from utils.errors import UserError

PATIENCE = 60.0
WAITING_RUN = """
import pathlib, signal, sys, time
def save(*_):
    pathlib.Path("saved").touch()
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
pathlib.Path("ready").touch()
time.sleep(60)
"""


def attempted(folder, program, **environment):
    """Return how an attempt with a program in the place of main.py ended."""
    (folder / "program.py").write_text(program)
    names = Path("runs/a"), Path("a"), Path("stop")
    return attempt(folder, [str(folder / "program.py")], *names, environment)


def wait_for(path):
    """Return whether the path is there in the end."""
    end = time.monotonic() + PATIENCE
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.01)
    return path.exists()


def test_a_run_is_begun_with_its_settings_and_goes_on_where_it_has_a_folder(tmp_path):
    program = "import os, sys; print(sys.argv[1:], os.environ['OMP_NUM_THREADS'])"
    begun = "['--config', 'a.json', '--run-id', 'a'] 3"
    has_path = f"{program}; assert 'PATH' in os.environ"
    assert attempted(tmp_path, has_path, OMP_NUM_THREADS="3") == begun
    (tmp_path / "runs/a").mkdir(parents=True)
    assert attempted(tmp_path, program, OMP_NUM_THREADS="4") == "['--resume', 'runs/a'] 4"
    assert begun in (tmp_path / "a.log").read_text()  # attempts add to it


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("import sys; print('a'); print(' disk full '); print(); sys.exit(1)", "disk full"),
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL"),
    ],
)
def test_an_attempt_is_told_by_its_last_line_and_a_kill_by_its_signal(program, told, tmp_path):
    assert attempted(tmp_path, program) == told


def test_a_run_saves_and_ends_once_it_is_asked_to_and_none_is_begun_then(tmp_path):
    def ask():
        assert wait_for(tmp_path / "ready")
        (tmp_path / "stop").touch()

    thread = threading.Thread(target=ask)
    thread.start()
    attempted(tmp_path, WAITING_RUN)
    thread.join()
    assert (tmp_path / "saved").exists()
    (tmp_path / "ready").unlink()
    assert attempted(tmp_path, WAITING_RUN) == "not begun"
    assert not (tmp_path / "ready").exists()


def test_a_run_saves_and_ends_when_its_worker_is_killed(tmp_path):
    worker = os.fork()
    if not worker:
        attempted(tmp_path, WAITING_RUN)
        os._exit(0)
    assert wait_for(tmp_path / "ready")
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)
    assert wait_for(tmp_path / "saved")


def job(name):
    """Return as much of a job as a pool needs."""
    desk = jobs.JOBS_DIR / name
    return SimpleNamespace(run=SimpleNamespace(folder=Path("runs", name)), desk=desk)


def endings(pool, n):
    """Return how the first n attempts that end do so, by their run's name."""
    found, end = {}, time.monotonic() + PATIENCE
    while len(found) < n and time.monotonic() < end:
        found |= {job.desk.name: ending for job, ending in pool.ended(1.0)}
    return found


@pytest.mark.slow
def test_attempts_are_carried_out_and_asked_to_save(in_empty_folder, monkeypatch):
    program = in_empty_folder / "program.py"
    monkeypatch.setattr(jobs, "PROGRAM", program)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    jobs.JOBS_DIR.mkdir(parents=True)
    with ray_pool(None, cpus=1, gpus=0) as pool:
        names = "['OMP_NUM_THREADS', 'CUDA_VISIBLE_DEVICES']"
        program.write_text(f"import os; print('has', *map(repr, map(os.environ.get, {names})))")
        pool.submit(job("quick"))
        assert endings(pool, 1) == {"quick": "has '1' ''"}
        program.write_text(WAITING_RUN)
        pool.submit(job("running"))
        assert wait_for(Path("ready"))
        pool.submit(job("waiting"))
        pool.stop()
        assert endings(pool, 2).keys() == {"running", "waiting"}
        assert Path("saved").exists()
    assert not list(jobs.JOBS_DIR.glob("stop-*"))


@pytest.mark.slow
def test_a_cluster_that_is_not_there_gets_one_line(monkeypatch):
    from ray._private import services

    # Where a sweep goes on beside the tests, Ray would find that one's.
    monkeypatch.setattr(services, "find_bootstrap_address", lambda temp_dir: None)
    monkeypatch.setattr(services, "find_gcs_addresses", lambda: set())
    with pytest.raises(UserError, match="Ray cannot be reached"), ray_pool("auto", 1, 0):
        pass


SLURM_SCRIPT = Path(__file__).resolve().parent.parent / "docs/slurm/array.sbatch"
# In the place of main.py: a run that is finished at its second call, or at once for `--quick`.
SHORT_RUN = """
import json, pathlib, sys
words = sys.argv[1:]
given = dict(zip(words[::2], words[1::2]))
folder = pathlib.Path(given.get("--resume") or f"experiments/M/E-v0/{given['--run-id']}")
folder.mkdir(parents=True, exist_ok=True)
is_over = "--resume" in given or "--quick" in given
(folder / "run.json").write_text(json.dumps({"finished": "now"} if is_over else {}, indent=2))
with open("calls", "a") as file:
    print(*words, file=file)
"""


def submit(*arguments, indices):
    """Run the script for each index of an array; return the program's calls and the last result."""
    Path("calls").write_text("")
    for index in indices:
        slurm = {"SLURM_ARRAY_TASK_ID": str(index), "SLURM_CPUS_PER_TASK": "1"}
        command = ["bash", str(SLURM_SCRIPT), *arguments]
        ended = subprocess.run(command, env=os.environ | slurm, capture_output=True, text=True)
    return Path("calls").read_text().splitlines(), ended


@pytest.fixture
def cluster(in_empty_folder):
    Path("main.py").write_text(SHORT_RUN)
    activate = Path(".venv/bin/activate")
    activate.parent.mkdir(parents=True)
    activate.write_text(f"export PATH={Path(sys.executable).parent}:$PATH")


def test_one_array_trains_agents_and_seeds_and_again_only_what_is_missing(cluster):
    files = ["a.json", "b/config.json"]
    more = ["--quick", "1"]
    calls, _ = submit("maze", *files, *more, indices=[1])
    assert calls == ["--config b/config.json --quick 1 --seed 0 --run-id maze_b_seed=0"]
    calls, _ = submit("maze", *files, indices=range(4))
    begun = [("a.json", 0, "a"), ("a.json", 1, "a"), ("b/config.json", 1, "b")]
    assert calls == [
        f"--config {file} --seed {seed} --run-id maze_{agent}_seed={seed}"
        for file, seed, agent in sorted(begun, key=lambda each: each[1:])
    ]
    calls, _ = submit("maze", *files, indices=range(4))
    names = ("maze_a_seed=0", "maze_a_seed=1", "maze_b_seed=1")
    assert calls == [f"--resume experiments/M/E-v0/{name}" for name in names]
    calls, ended = submit("maze", *files, indices=range(4))
    assert calls == []
    assert (ended.returncode, ended.stdout) == (0, "experiments/M/E-v0/maze_b_seed=1 is finished\n")
    calls, _ = submit("other", "--var", "model=CNN", indices=[1])
    assert calls == ["--var model=CNN --seed 1 --run-id other_seed=1"]


@pytest.mark.parametrize("arguments", [[], ["a.json"], ["--var"], ["x", "a.json", "b/a.json"]])
def test_an_array_without_a_name_or_with_two_of_one_name_trains_nothing(arguments, cluster):
    calls, ended = submit(*arguments, indices=[0])
    assert calls == []
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
