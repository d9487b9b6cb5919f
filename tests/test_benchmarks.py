"""The programs that print figures, and fast parts beside plain ones that no other test compares."""

import json
import math
import sys
from functools import partial
from importlib.util import find_spec

import pytest
import torch

from benchmarks import __main__ as benchmarks
from benchmarks import gpu, training
from benchmarks.measuring import Pair, compare, in_own_process, measure

pytestmark = pytest.mark.slow

SHORT = [
    *("n_envs=2", "n_rollout_steps=8", "n_batches=2", "n_epochs=1", "save_ckpt=false"),
    *("n_steps=48", "device=cpu", "threads=1"),
]


def counted(*values):
    """Yield work that results in these values, again and again."""
    while True:
        for value in values:
            yield partial(torch.full, (2,), float(value))


@pytest.mark.parametrize("name", ["minilm", "update"])
def test_ours_does_what_the_plain_version_does(name):
    figures = [compare(pair, threads=1, quick=True) for pair in benchmarks.pairs(name, quick=True)]
    compared = [row["difference"] for row in figures]
    # Single parameters with next to no gradient may go either way: Adam divides by it.
    assert max(compared) < {"minilm": 1e-4, "update": 1e-3}[name]


def test_results_of_the_same_work_are_compared():
    def difference(plain, ours):
        return compare(Pair("", plain, ours), threads=1, quick=True)["difference"]

    assert difference(partial(counted, 0, 1), partial(counted, 0, 5)) == 4
    assert difference(partial(counted, 0), partial(counted, 0, math.nan)) == math.inf
    found = in_own_process(measure, partial(counted, 5, 6), 2, 0, 2)
    assert [result.tolist() for result in found.results] == [[5, 5], [6, 6]]
    assert found.peak_mb > 1


def test_the_program_prints_its_tables_and_writes_them(tmp_path, capsys):
    path = tmp_path / "figures.json"
    options = ["--quick", "--threads", "1", "--only", "n-step", "--json", str(path)]
    assert benchmarks.main(options) == 0
    figures = json.loads(path.read_text())
    (row,) = figures["parts"]
    assert (row["name"], row["ratio"]) == ("EllmDQN-ELLM, batch 4", None)  # beside nothing
    printed = capsys.readouterr().out
    assert str(figures["machine"]["torch"]) in printed
    assert "EllmDQN-ELLM, batch 4" in printed


@pytest.mark.parametrize(
    ("program", "options", "told"),
    [
        (benchmarks, ["--only", "minilmm"], "Did you mean 'minilm'?"),
        (gpu, ["--rehearse", "--output", "/dev/null/page.md"], "is not a folder"),
        (gpu, ["--output", "page.md"], "finds no GPU"),
    ],
)
def test_a_mistake_is_told_in_one_line_before_anything_is_measured(
    program, options, told, in_empty_folder, capsys, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert program.main(options) == 2
    out, line = capsys.readouterr()
    assert (out, line.count("\n")) == ("", 1)
    assert told in line
    assert list(in_empty_folder.iterdir()) == []


@pytest.fixture
def in_this_process(monkeypatch):
    monkeypatch.setattr(training, "in_own_process", lambda call, *given, seconds=None: call(*given))


@pytest.mark.parametrize("name", ["Impala-PPO", "HELM"])
def test_an_agent_is_trained_and_its_time_accounted_for(name, in_this_process):
    run = training.measured(name, SHORT, 16, shares=True)
    assert run.rate > 0
    assert run.steady > 0
    assert sum(run.shares.values()) == pytest.approx(1)
    assert min(run.shares.values()) > 0
    reads = {"language model", "observation → language"}
    assert run.shares.keys() & reads == (reads if name == "HELM" else set())
    assert {"environments", "update: backward", "rest"} <= run.shares.keys()


INSTALLED = [name for name in training.RIVALS if name != training.TORCHRL or find_spec("torchrl")]


@pytest.mark.parametrize("name", INSTALLED)
def test_a_rival_trains_on_the_same_environments(name, in_this_process):
    env = "popgym-AutoencodeEasy-v0" if name == "PPO" else "RandomMaze-v0"
    run = training.measured(name, [f"env={env}", *SHORT], 16)
    assert run.rate > 0


def test_a_rival_that_is_not_installed_is_skipped_in_one_line(in_this_process, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchrl", None)
    options = ["--agents", training.TORCHRL, "--steps", "16", "--var", "env=CartPole-v1"]
    assert training.main(options) == 0
    (line,) = (row for row in capsys.readouterr().out.splitlines() if training.TORCHRL in row)
    assert "torchrl is not installed" in line
    assert "pip install torchrl" in line
