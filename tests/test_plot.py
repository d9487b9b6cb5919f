import json

import pytest

import plot


@pytest.fixture
def runs(in_empty_folder):
    """Write two runs of one agent and one of another."""
    for name, model, value in (("a", "HELM", 0.5), ("b", "HELM", 0.7), ("c", "CNN-PPO", 0.1)):
        folder = in_empty_folder / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"model": model}))
        rows = f"env_steps,rollout/return_mean\n16,0.0\n32,{value}\n"
        (folder / "metrics.csv").write_text(rows)
    return in_empty_folder


def test_runs_are_grouped_by_agent_and_drawn(runs, capsys):
    assert plot.main(["a", "b", "c", "--output", "curves.png"]) == 0
    assert (runs / "curves.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "HELM         2 runs, last value 0.600" in printed
    assert "CNN-PPO      1 runs, last value 0.100" in printed


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (["nowhere"], "not a run folder"),
        (["a", "--metric", "luck"], "--metric luck: not a column"),
        ([], "required: RUN_FOLDER"),
    ],
)
def test_a_mistake_gets_one_line(runs, capsys, command, line):
    assert plot.main(command) == 2
    error = capsys.readouterr().err
    assert line in error
    assert len(error.strip().splitlines()) == 1
