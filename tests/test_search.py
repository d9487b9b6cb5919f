"""sweep.py --search through its command line, with a stand-in for Ray and for the runs."""

import contextlib
import csv
import json
import math
from pathlib import Path

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

import sweep as sweep_program
from sweeps import search as searching
from sweeps.search import JOURNAL, read_space
from tests.bad_inputs.harness import refused
from utils.errors import UserError
from utils.given_settings import load_config
from utils.run_folder import mark_finished, write_json

FIXED = {"model": "CNN-PPO", "env": "RandomMaze-v0", "device": "cpu", "n_steps": 1000}
RANGES = {
    "learning_rate": {"low": 1e-5, "high": 1e-1, "log": True},
    "n_epochs": {"low": 1, "high": 4},
    "lr_decay": {"choices": ["none", "linear"]},
}
PLACE = Path("searches/search")
STEP = 100  # between two rows
HEADER = "env_steps,rollout/return_mean,time/steps_per_second\n"


def final_return(config):
    """Return the final return of a run: best at a learning rate of 1e-3."""
    return 1 - abs(math.log10(config.learning_rate) + 3) / 3 + 0.01 * config.n_epochs


class FakeRuns:
    """Runs that go on by a row each time they are asked for, as many at once as there are places.

    Attributes:
        begun: The runs that were submitted, by name.
    """

    def __init__(self, n_places=1, rows_a_look=3, endings=()):
        self.n_places, self.rows_a_look = n_places, rows_a_look
        self.endings = dict(endings)
        self.running, self.begun = [], []
        self.looks_left, self.stopped = math.inf, False

    def submit(self, job):
        assert len(self.running) < self.n_places
        assert json.loads(Path(f"{job.desk}.json").read_text())["n_steps"] == 1000
        assert not job.stop.exists()
        self.begun.append(job.run.run_id)
        self.running.append(job)
        job.log.touch()
        if not job.run.folder.exists():
            job.run.folder.mkdir(parents=True)
            write_json(job.run.folder / "config.json", job.run.config.as_dict())
            write_json(job.run.folder / "run.json", {})

    def ended(self, seconds):
        self.looks_left -= 1
        if self.looks_left < 0:
            raise Killed
        looks = [(job, self.go_on(job)) for job in self.running]
        self.running = [job for job, ending in looks if ending is None]
        return [(job, ending) for job, ending in looks if ending is not None]

    def stop(self):
        self.stopped = True

    def go_on(self, job):
        """Add rows to a run's metrics; return its ending once it has one."""
        if job.run.run_id in self.endings:
            return self.endings[job.run.run_id]
        if self.stopped or job.stop.exists():
            return "saved"
        path = job.run.folder / "metrics.csv"
        text = path.read_text() if path.exists() else HEADER
        first = text.count("\n")
        rows = range(first, min(first + self.rows_a_look, 11))
        values = ["" if row == 1 else final_return(job.run.config) * row / 10 for row in rows]
        lines = [f"{row * STEP},{v},50\n" for row, v in zip(rows, values, strict=True)]
        path.write_text(text + "".join(lines))
        job.log.write_text(f"{path.read_text().count(',')} rows")
        if rows[-1] < 10:
            return None
        mark_finished(job.run.folder)
        return "bye"


class Killed(BaseException):
    """Ends everything at once."""


@pytest.fixture
def here(in_empty_folder):
    (in_empty_folder / "mine.json").write_text(json.dumps(FIXED | RANGES))
    return in_empty_folder


@pytest.fixture
def search(here, monkeypatch):
    """Return how to search with runs that are none, and without pictures unless they are drawn."""

    def searched(n_trials, *options, runs=None, drawn=False):
        runs = runs or FakeRuns()
        fake = contextlib.nullcontext(runs)
        monkeypatch.setattr(sweep_program.jobs, "ray_pool", lambda *_: fake)
        if not drawn:
            monkeypatch.setattr(searching, "PICTURES", {})
        command = ["--search", str(n_trials), "--config", "mine.json", *options]
        return sweep_program.main(command), runs

    return searched


def trials(name="search"):
    """Return the table of a search."""
    with Path("searches", name, "trials.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def tried(name):
    """Return the values and outcomes of the trials of a search."""
    columns = ("score", "learning_rate", "n_epochs", "lr_decay", "state")
    return [[row[column] for column in columns] for row in trials(name)]


@pytest.mark.slow
def test_a_search_ends_with_table_best_settings_and_pictures(search, capsys):
    assert search(8, drawn=True)[0] == 0
    table = trials()
    assert [row["trial"] for row in table] == [str(n) for n in range(8)]
    done = [row for row in table if row["state"] == "complete"]
    best = max(done, key=lambda row: float(row["score"]))
    settings = json.loads((PLACE / "config.json").read_text())
    assert settings | FIXED == settings
    assert {name: str(settings[name]) for name in RANGES} == {name: best[name] for name in RANGES}
    # the mean of the last tenth of the run, one row of it here
    expected = final_return(load_config(PLACE / "config.json"))
    assert float(best["score"]) == pytest.approx(expected)
    for name in searching.PICTURES:
        assert (PLACE / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert f"best: trial {best['trial']}, score {expected:.3f}" in printed
    assert f"main.py --config {PLACE}/config.json" in printed


@pytest.mark.slow
def test_the_same_seed_tries_the_same_values_and_another_others(search):
    for name, seed in (("one", "3"), ("two", "3"), ("three", "4")):
        assert search(7, "--name", name, "--seed", seed)[0] == 0
    assert tried("one") == tried("two") != tried("three")
    assert load_config(Path("searches/one/config.json")).seed == 3


@pytest.mark.slow
@pytest.mark.parametrize("looks", [1, 5, 12])
def test_a_search_that_is_killed_goes_on_as_if_it_were_not(looks, search):
    assert search(11, "--name", "whole", "--sampler", "random")[0] == 0
    runs = FakeRuns()
    runs.looks_left = looks
    with pytest.raises(Killed):
        search(11, "--sampler", "random", runs=runs)
    status, again = search(11, "--sampler", "random")
    assert status == 0
    assert tried("search") == tried("whole")
    twice = set(runs.begun) & set(again.begun)
    assert twice <= {runs.begun[-1]}  # finished trials are not begun again


def test_a_finished_search_begins_nothing_and_may_be_made_longer(search):
    search(12)
    before = trials()
    status, runs = search(12)
    assert (status, runs.begun, trials()) == (0, [], before)
    status, runs = search(13)
    assert (status, runs.begun) == (0, ["search_trial=012"])
    assert trials()[:12] == before


@pytest.mark.slow
@pytest.mark.parametrize("pruner", ["median", "asha"])
def test_runs_that_do_badly_are_ended_early_and_stay_so(pruner, search):
    search(14, "--pruner", pruner, runs=FakeRuns(rows_a_look=1))
    table = trials()
    pruned = [row["run"] for row in table if row["state"] == "pruned"]
    assert pruned
    assert all(Path(run, "metrics.csv").read_text().count("\n") < 11 for run in pruned)
    status, runs = search(14, "--pruner", pruner)
    assert (status, runs.begun, trials()) == (0, [], table)


def test_a_trial_that_keeps_failing_is_told_and_tried_again_next_time(search, capsys):
    broken = FakeRuns(endings={"search_trial=001": "disk full"})
    status, _ = search(3, "--retries", "1", runs=broken)
    assert status == 1
    assert "search_trial=001: disk full. See experiments/.sweep/" in capsys.readouterr().err
    assert [row["state"] for row in trials()] == ["complete", "running", "complete"]
    status, runs = search(3)
    assert (status, runs.begun) == (0, ["search_trial=001"])


def test_values_that_cannot_be_together_are_a_failed_trial(search):
    ranges = {"n_rollout_steps": {"low": 2, "high": 40}, "n_batches": {"low": 1, "high": 400}}
    Path("mine.json").write_text(json.dumps(FIXED | {"n_envs": 1} | ranges))
    assert search(6, "--sampler", "random")[0] == 0
    failed = [row for row in trials() if row["state"] == "fail"]
    assert failed
    assert all("n_batches" in row["run"] for row in failed)  # why, where others have their run


def test_a_dry_run_tells_ranges_and_cost_and_writes_nothing(search, here, capsys):
    assert search(5, "--dry-run")[0] == 0
    printed = capsys.readouterr().out
    assert all(text in printed for text in (*RANGES, "1e-05", "5,000 environment steps"))
    assert [path.name for path in here.iterdir()] == ["mine.json"]


MINE = ["--search", "3", "--config", "mine.json"]


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (["--search", "3"], "nothing to search"),
        (["--search", "3", "--seeds", "2"], "--seeds is for a grid"),
        (["--search", "3", "--output", "x.png"], "--output is for a grid"),
        ([*MINE, "mine.json"], "has one settings file"),
        (["--pruner", "median"], "--pruner is for --search N"),
        (["--seed", "1"], "a grid's seeds are --seeds N"),
        ([*MINE, "--name", "../x"], "one folder name"),
        (["--search", "3", "--var", 'model={"choices": ["LSTN", "CNN"]}'], "mean 'LSTM'?"),
    ],
)
def test_a_mistake_gets_one_line_and_nothing_is_started_or_written(command, line, here, capsys):
    refused(capsys, "sweep", command, line)


def test_another_search_of_the_same_name_or_a_damaged_one_is_refused(search, capsys):
    search(1)
    assert search(1, "--var", 'gamma={"low": 0.9, "high": 0.99}')[0] == 2
    line = capsys.readouterr().err
    assert "searches/search: holds a search of other ranges" in line
    journal = (PLACE / JOURNAL).read_text()
    (PLACE / JOURNAL).write_text("{" + journal)
    assert search(1)[0] == 2
    assert f"{PLACE}/journal.log: not readable as a search" in capsys.readouterr().err


def test_ranges_stand_next_to_what_is_fixed(in_empty_folder):
    path = in_empty_folder / "mine.json"
    values = {"model": {"choices": ["LSTM", "GPT"]}, "memory_layers": {"low": 1, "high": 4}}
    values |= {"gamma": 0.9, "n_envs": {"low": 1, "high": 2}}
    path.write_text(json.dumps(values))
    space = read_space(path, ['learning_rate={"low": 1e-5, "high": 1e-3, "log": true}', "n_envs=4"])
    ranges = {
        "memory_layers": IntDistribution(1, 4),
        "learning_rate": FloatDistribution(1e-5, 1e-3, log=True),
    }
    assert space.ranges == {"model": CategoricalDistribution(("LSTM", "GPT"))} | ranges
    config = space.config({"model": "GPT", "memory_layers": 2, "learning_rate": 3e-5})
    assert (config.model, config.gamma, config.n_envs) == ("GPT", 0.9, 4)
    assert (config.memory_layers, config.learning_rate) == (2, 3e-5)
    assert [corner.model for corner in space.corners()] == ["LSTM", "GPT"]
    whole = load_config().as_dict() | {"gamma": {"low": 0.9, "high": 0.99}}
    path.write_text(json.dumps(whole))
    assert read_space(path, []).config({"gamma": 0.95}).gamma == 0.95


NO_RANGES = {
    'learning_rate={"low": 1e-3, "high": 1e-5}': "low=0.001, high=1e-05",
    'gamma={"low": 0, "high": 1, "log": true}': "low=0.0",
    'gamma={"low": 0.5, "high": 0.9, "size": 0.1}': "size",
    'gamma={"low": "a", "high": 0.9}': "is not a number",
    'gamma={"low": 0.9}': "high",
    'clip_range_vf={"low": null, "high": 0.9}': "clip_range_vf",
    'model={"low": 1, "high": 3}': "model",
    'model={"choices": []}': "choices",
    'model={"choices": 7}': "model",
    'seed={"low": 0, "high": 9}': "seed: no setting that can be searched",
    'env={"choices": ["RandomMaze-v0"]}': "env: no setting that can be searched",
    'gama={"low": 0, "high": 1}': "gama",
    "gamma=0.9": "nothing to search",
    'model={"choices": ["LSTM", "CNN"]}; memory_layers={"low": 1, "high": 3}': "is read by",
}


@pytest.mark.parametrize("text", NO_RANGES)
def test_what_is_no_range_gets_one_line(text):
    with pytest.raises(UserError) as caught:
        read_space(None, text.split("; ")).corners()
    (line,) = caught.value.lines
    assert NO_RANGES[text] in line
