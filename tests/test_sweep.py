"""sweep.py through its command line: with a stand-in for Ray, and once with Ray itself."""

import contextlib
import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import sweep as sweep_program
from sweeps import grid
from tests.bad_inputs.harness import refused
from tests.test_jobs import KILLED, FakePool
from trainers import checkpoint
from utils.run_folder import is_finished

TINY = {"device": "cpu", "n_steps": 64, "n_envs": 2, "n_rollout_steps": 16, "n_batches": 2}
GRID = ["--config", "tiny.json", "--var", "model=CNN-PPO", "--var", "env=RandomMaze-v0"]
PLACE = Path("experiments/CNN-PPO/RandomMaze-v0")


@pytest.fixture
def tiny(in_empty_folder):
    """Write a settings file of short runs."""
    (in_empty_folder / "tiny.json").write_text(json.dumps(TINY))
    return in_empty_folder


@pytest.fixture
def swept(tiny, monkeypatch):
    """Sweep with a fake pool and no plot; return the pool and the arguments of the plot."""

    def run(plan, *arguments):
        pool, drawn = FakePool(plan), []
        fake = contextlib.nullcontext(pool)
        monkeypatch.setattr(sweep_program.jobs, "ray_pool", lambda *options: fake)
        monkeypatch.setattr(grid, "draw_runs", lambda *shown: drawn.append(shown))
        return sweep_program.main([*GRID, *arguments]), pool, drawn

    return run


def test_a_dry_run_prints_the_grid_and_its_cost_and_writes_nothing(tiny, capsys):
    assert sweep_program.main([*GRID, "--seeds", "3", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert f"{PLACE}/tiny_seed=2" in printed
    assert "3 runs, 3 of them missing: 192 environment steps" in printed
    assert [path.name for path in tiny.iterdir()] == ["tiny.json"]


MISTAKES = {
    "seeds twice": (["--seeds", "2", "--var", "seed=1"], "give one of them"),
    "one of the GPUs": (["--var", "device=cuda:1"], "Ray allots the GPUs"),
    "GPU without a share": (["--var", "device=cuda"], "needs --gpus"),
    "too many GPUs": (["--gpus", "64"], "this machine has"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_line_and_nothing_is_started_or_written(mistake, tiny, capsys):
    command, expected = MISTAKES[mistake]
    refused(capsys, "sweep", command, expected)


def test_a_run_that_keeps_failing_makes_the_status_1_and_is_named(swept, capsys):
    status, _, drawn = swept({1: ["disk full"] * 9}, "--seeds", "2", "--retries", "1")
    assert status == 1
    error = capsys.readouterr().err
    assert f"{PLACE}/tiny_seed=1: disk full. See experiments/.sweep/" in error
    assert len(error.strip().splitlines()) == 1
    assert drawn[0][0] == [PLACE / "tiny_seed=0"]


def test_the_same_command_again_does_only_what_is_missing_and_draws_all_runs(swept):
    swept({1: [KILLED] * 9}, "--seeds", "3")
    folders = [PLACE / f"tiny_seed={seed}" for seed in range(3)]
    for attempts in ([1], []):
        status, pool, drawn = swept({}, "--seeds", "3", "--output", "mine.png")
        assert (status, pool.attempts) == (0, attempts)
        assert drawn == [(folders, Path("mine.png"), ["model"], ["env"])]
    _, _, drawn = swept({}, "--var", "gamma=0.8,0.9")
    assert drawn[0][1:] == (Path("curves.png"), ["model", "gamma"], ["env"])


def test_an_interrupted_sweep_says_what_to_type(swept, monkeypatch, capsys):
    interrupted = contextlib.nullcontext(SimpleNamespace(stop=sweep_program.signal.SIGINT))
    monkeypatch.setattr(checkpoint, "Interruption", lambda doing: interrupted)
    status, _, drawn = swept({}, "--seeds", "2")
    assert status == 130
    command = "--config tiny.json --var model=CNN-PPO --var env=RandomMaze-v0 --seeds 2"
    assert f"Go on with: python sweep.py {command}\n" in capsys.readouterr().err
    assert drawn == []


def test_a_second_sweep_of_the_same_runs_is_refused_until_the_first_has_ended(swept, capsys):
    code = "import sys; from pathlib import Path; from sweeps.jobs import reserved\n"
    code += f"with reserved([Path('{PLACE}/tiny_seed=1')]): print('mine', flush=True); input()"
    place = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    first = subprocess.Popen(
        [sys.executable, "-c", code], env=place, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert first.stdout.readline() == b"mine\n"
    status, pool, _ = swept({}, "--seeds", "2")
    assert (status, pool.attempts) == (2, [])
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{PLACE}/tiny_seed=1: another sweep" in line
    assert swept({}, "--seeds", "1")[0] == 0  # of another run
    first.kill()
    first.communicate()
    assert swept({}, "--seeds", "2")[0] == 0


def test_other_environments_get_panels_and_other_code_is_drawn_apart(in_empty_folder, monkeypatch):
    lists = {"model": ["CNN"], "env": ["TMazePassive-v0"], "gamma": ["0.8", "0.9"]}
    runs, drawn = grid.make_grid([], lists | {"length": ["3", "4"]}), []
    for number, run in enumerate(runs):
        run.folder.mkdir(parents=True)
        code = {"user_modules": {"my_mem": {"sha256": f"{number}"}, "other": {"sha256": "same"}}}
        (run.folder / "run.json").write_text(json.dumps(code))
    monkeypatch.setattr(grid, "draw_runs", lambda *shown: drawn.append(shown[2:]))
    grid.draw(runs, Path("curves.png"))
    assert drawn == [(["model", "gamma", "code.my_mem"], ["env", "length"])]


@pytest.mark.slow
def test_two_runs_are_trained_side_by_side_by_ray(tiny, capfd):
    (tiny / "tiny.json").write_text(json.dumps(TINY | {"n_steps": 256}))  # episodes end within
    assert sweep_program.main([*GRID, "--seeds", "2"]) == 0, capfd.readouterr().err
    for seed in (0, 1):
        folder = PLACE / f"tiny_seed={seed}"
        assert is_finished(folder)
        with (folder / "metrics.csv").open(newline="") as file:
            steps = [int(row["env_steps"]) for row in csv.DictReader(file)]
        assert steps == list(range(32, 257, 32))
    assert Path("curves.png").read_bytes().startswith(b"\x89PNG")
    assert "2 runs: 2 done" in capfd.readouterr().out
