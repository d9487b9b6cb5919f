"""The programs through their command lines, with tiny settings."""

import csv
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import eval as eval_program
import main as main_program
from tests import runs
from tests.bad_inputs.harness import refused
from tests.full_disk import largest_file
from tests.golden_data import GOLDEN
from trainers.checkpoint import BEST, LAST

TASK = "MiniGrid-Empty-5x5-v0"
TINY_MODEL = str(GOLDEN / "transfo_xl_k1")


def train(name, run_id, **changes):
    return runs.train(name, run_id, **({"env": TASK, "n_steps": 64} | changes))


def play(place, *more, n_episodes=1):
    """Evaluate and return the exit status."""
    return eval_program.main(["--ckpt-path", str(place), "--n-episodes", str(n_episodes), *more])


def metrics(folder):
    """Return the rows of a run without times."""
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


@pytest.mark.slow
def test_an_agent_is_trained_then_evaluated(in_empty_folder, capsys):
    folder = train("HELM", "first")
    assert str(folder) == f"experiments/HELM/{TASK}/first"
    said = capsys.readouterr()
    assert "mean return" in said.out
    assert "\n100%" in said.err  # a log gets lines, not carriage returns
    assert play(folder, "--video", n_episodes=2) == 0
    (result,) = folder.glob("ckpt_best_eval_*.json")
    result = json.loads(result.read_text())
    assert result["return_mean"] == pytest.approx(sum(result["returns"]) / 2)
    assert "std" in capsys.readouterr().out
    kept = sorted(Path("episodes", TASK, "HELM").iterdir())
    assert {path.suffix for path in kept} == {".npz", ".gif", ".mp4"}
    for number, path in enumerate(path for path in kept if path.suffix == ".npz"):
        with np.load(path, allow_pickle=False) as arrays:
            assert arrays["observations"].shape == (result["lengths"][number], 3, 56, 56)
            assert arrays["rewards"].sum() == pytest.approx(result["returns"][number])


def test_an_evaluation_is_repeatable_and_says_who_plays_and_how(in_empty_folder, capsys):
    folder, results = train("CNN-PPO", "first"), []
    by_agent = f"CNN-PPO on {TASK}, from {folder / LAST} of step 64"
    by_chance = f"random actions on {TASK}, the environment of {folder / LAST} of step 64"
    for policy in ([], [], ["--greedy"], ["--random"]):
        capsys.readouterr()
        assert play(folder / LAST, "--seed", "5", *policy, n_episodes=4) == 0
        line = by_chance if "--random" in policy else by_agent
        assert capsys.readouterr().out.splitlines()[0] == line
        name = "".join(policy).removeprefix("--") or "sampled"
        path = folder / f"ckpt_last_eval_{name}_4_episodes_seed_5.json"
        results.append(json.loads(path.read_text()))
    assert results[0] == results[1]
    assert results[0]["returns"] != results[3]["returns"]
    chosen = [result["actions"] for result in results]
    assert chosen == ["sampled", "sampled", "most probable", "random"]
    kept = {path.parent.name for path in Path("episodes", TASK).rglob("*.npz")}
    assert kept == {"CNN-PPO", "random"}  # chance is kept apart
    capsys.readouterr()
    assert play(folder) == 0
    assert f"from {folder / BEST} of" in capsys.readouterr().out


def test_the_settings_of_a_run_are_printed_and_nothing_else(in_empty_folder, capfd):
    folder = train("CNN-PPO", "first", gamma=0.5)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    capfd.readouterr()
    assert main_program.main(["--print-config", "--resume", str(folder)]) == 0
    printed = capfd.readouterr()
    assert json.loads(printed.out) == json.loads((folder / "config.json").read_text())
    assert not printed.err
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


TRAINING_MISTAKES = {
    "algorithm=PPPO": "known: PPO, DQN, SAC, TD3, EllmDQN. Did you mean 'PPO'?",
    "model=HELMv2": "Run: python prepare_embeddings.py",
    "model=HELMv2 env=RandomMaze-v0": "grid-clip knows the images of MiniGrid-* and BabyAI-* only",
    "device=cpu:7": "device: 'cpu:7' is not on this",
    f"env={'x' * 100_000}": "xxx ... xxx",
}


@pytest.mark.parametrize("mistake", TRAINING_MISTAKES, ids=lambda text: text[:40])
def test_a_mistake_gets_one_line_and_leaves_nothing(mistake, in_empty_folder, capsys):
    words = [f"--var={text}" for text in mistake.split()]
    refused(capsys, "main", words, TRAINING_MISTAKES[mistake])


RESULT = "ckpt_best_eval_sampled_1_episodes_seed_0"
TAKEN_PLACES = {
    "the result": ("{run}/{result}.json", []),
    "the page": ("{run}/{result}.html", ["--report"]),
    "an episode": ("episodes/{task}/CNN-PPO/first_{result}_001.npz", []),
    "a movie": ("episodes/{task}/CNN-PPO/first_{result}_001.mp4", ["--video"]),
}


def test_an_evaluation_whose_files_cannot_be_written_is_not_played(in_empty_folder, capsys):
    run = train("CNN-PPO", "first")

    def check(line, *options, checkpoint=run):
        command = ["--ckpt-path", str(checkpoint), "--n-episodes", "1", *options]
        assert line in refused(capsys, "eval", command)[0]

    for place, options in TAKEN_PLACES.values():
        taken = Path(place.format(run=run, result=RESULT, task=TASK))
        taken.mkdir(parents=True)
        check(f"{taken}: a folder, where a file is to be written", *options)
        taken.rmdir()
    shutil.rmtree("episodes")
    Path("episodes").touch()
    check("is not a folder", "--report")
    Path("episodes").unlink()
    long = run / f"{'c' * 210}.pt"
    shutil.copy(run / BEST, long)
    check("no room", checkpoint=long)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_bytes", "option", "named"),
    [
        (100, [], ".npz: "),
        (500, [], ".npz: "),
        (3_000, ["--video"], ".mp4 and .gif cannot be written"),
        (9_000, ["--report"], ".html: "),
    ],
)
def test_an_evaluation_that_does_not_fit_on_the_disk_leaves_nothing_half_written(
    n_bytes, option, named, in_empty_folder, capsys
):
    folder = train("CNN-PPO", "first", env="RandomMaze-v0")
    before = set(in_empty_folder.rglob("*"))
    with largest_file(n_bytes):
        assert play(folder, *option) == 1
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert named in error.splitlines()[-1]
    new = {path for path in in_empty_folder.rglob("*") if path.is_file()} - before
    assert not [path for path in new if "partial" in path.name]
    for path in (path for path in new if path.suffix == ".npz"):
        with np.load(path) as arrays:
            assert len(arrays["actions"]) == len(arrays["observations"])


@pytest.mark.slow
def test_a_reader_who_has_had_enough_gets_no_traceback():
    listing = [sys.executable, main_program.__file__, "--list-configs"]
    with subprocess.Popen(listing, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.wait(60) == 128 + signal.SIGPIPE
        assert process.stderr.read() == b""
