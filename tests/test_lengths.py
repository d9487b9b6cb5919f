import json

import numpy as np
import pytest

from analysis.__main__ import main
from analysis.lengths import context_of, final_score, rolling_mean
from tests.test_analysis import refusal, rows, write_run_folder
from utils.given_settings import load_config

N_STEPS = 1000
PASSIVE = {"model": "GPT", "algorithm": "DQN", "env": "TMazePassive-v0", "mem_len": 64}


def write_run(name, value, column="eval/return_mean", n_rows=10, **changes):
    settings = {"seed": 0, "length": 10, "n_steps": N_STEPS, "context_length": -1, "topk": 1}
    columns = {"env_steps": range(100, 100 * n_rows + 1, 100), column: [value] * n_rows}
    return write_run_folder(f"runs/{name}", settings | PASSIVE | changes, columns)


def write_evaluation(folder, score, name="last_eval_greedy", **changes):
    result = {"env": "TMazePassive-v0", "n_episodes": 10, "env_steps": N_STEPS, "random": False}
    result |= {"greedy": True, "return_mean": score, "success_mean": score, "var": {}}
    (folder / f"{name}.json").write_text(json.dumps(result | changes))


@pytest.fixture
def runs(in_empty_folder):
    """Write runs of a GPT at two lengths, two seeds each, and one of an LSTM; one played at 40."""
    for length, scores in {10: (1.0, 0.8), 20: (0.6, 0.4)}.items():
        for seed, score in enumerate(scores):
            folder = write_run(f"gpt{length}_{seed}", score, length=length, seed=seed)
            write_evaluation(folder, score / 2, "last_eval_greedy_length_40", var={"length": 40})
    write_run("lstm", 0.5, model="LSTM")
    return in_empty_folder


@pytest.mark.slow
def test_runs_are_shown_by_the_length_trained_and_played_at(runs, capsys):
    assert main(["lengths", "runs"]) == 0
    printed = capsys.readouterr().out
    assert (runs / "analysis_output/lengths.png").read_bytes().startswith(b"\x89PNG")
    columns = ("agent", "length", "runs", "score", "low", "high", "context", "horizon", "chance")
    assert [tuple(row[name] for name in columns) for row in rows("lengths_summary.csv")] == [
        ("GPT DQN", "10", "2", "0.900", "0.800", "1.000", "64", "10", "0.500"),
        ("GPT DQN", "20", "2", "0.500", "0.400", "0.600", "64", "20", "0.500"),
        ("LSTM DQN", "10", "1", "0.500", "", "", "any", "10", "0.500"),
    ]
    lines = printed[printed.index("GPT DQN on TMazePassive-v0") :].splitlines()[2:4]
    assert lines[0].split() == ["10", "64", "0.900", "0.450"]
    assert lines[1].split() == ["20", "64", "0.500", "0.250"]
    assert "LSTM DQN on TMazePassive-v0" not in printed, "it was played nowhere else"
    found = [row for row in rows("lengths.csv") if row["run"] == "runs/gpt20_0"]
    assert [(row["trained_at"], row["played_at"]) for row in found] == [("20", "20"), ("20", "40")]
    assert [float(row["score"]) for row in found] == pytest.approx([0.6, 0.3])


def test_of_several_evaluations_the_greedy_one_of_the_most_episodes_counts(in_empty_folder):
    folder = write_run("one", 1.0)
    at_40 = {"var": {"length": 40}}
    write_evaluation(folder, 0.1, "last_eval_greedy_few", **at_40)
    write_evaluation(folder, 0.2, "last_eval_greedy_many", n_episodes=50, **at_40)
    write_evaluation(folder, 0.3, "last_eval_sampled", n_episodes=90, greedy=False, **at_40)
    write_evaluation(folder, 0.4, "last_eval_random", n_episodes=99, random=True, **at_40)
    write_evaluation(folder, 0.5, "last_eval_doors", var={"length": 40, "door_order": "episode"})
    assert main(["lengths", "runs"]) == 0
    assert [float(row["score"]) for row in rows("lengths.csv")] == [1.0, 0.2]


@pytest.mark.parametrize(
    ("env", "column", "horizon", "chance"),
    [
        ("TMazePassive-v0", "rollout/return_mean", 10, "0.500"),
        ("TMazeActive-v0", "eval/return_mean", 11, "0.500"),
        ("VisualMatch-v0", "eval/success_mean", 11, "0.333"),
        ("KeyToDoor-v0", "rollout/success_mean", 12, "0.000"),
    ],
)
def test_a_task_has_its_metric_chance_and_horizon(in_empty_folder, env, column, horizon, chance):
    write_run("one", 0.7, column, env=env)
    assert main(["lengths", "runs"]) == 0
    (row,) = rows("lengths_summary.csv")
    assert (row["score"], row["horizon"], row["chance"]) == ("0.700", str(horizon), chance)


def test_a_young_run_is_left_out_and_said_so(runs, capsys):
    write_run("young", 0.9, n_rows=8, seed=2)
    write_run("nearly", 0.9, n_rows=9, seed=3)
    assert main(["lengths", "runs", "--by", "model,mem_len"]) == 0
    assert "left out, at 800 of its 1,000 steps: runs/young" in capsys.readouterr().out
    (first, *_) = rows("lengths_summary.csv")
    assert (first["runs"], first["agent"]) == ("3", "GPT, mem_len=64")


def test_the_score_is_the_end_of_a_smoothed_curve():
    x, y = np.arange(1, 301) * 10, np.zeros(300)
    y[-15:] = 1
    assert final_score(x, y) == 1
    assert rolling_mean(np.array([4.0, 2.0, 0.0, 6.0]), 2).tolist() == [4, 3, 1, 3]
    # Two points only: the last 15 of 300 between 0 and 1.
    assert final_score(np.array([0, 1]), np.array([0.0, 1.0])) == pytest.approx(1 - 7 / 299)


@pytest.mark.parametrize(
    ("changes", "context"),
    [
        ({"model": "CNN"}, "0"),
        ({"model": "LSTM"}, "any"),
        ({"model": "LSTM", "algorithm": "DQN", "context_length": 20}, "20"),
        ({"model": "GPT", "algorithm": "DQN", "mem_len": 30}, "30"),
        ({"model": "GPT", "algorithm": "SAC", "mem_len": 30, "context_length": 20}, "20"),
        ({"model": "GPT", "mem_len": 30}, "30"),
        ({"model": "GTrXL", "mem_len": 30}, "30"),
        ({"model": "HELM", "algorithm": "DQN", "mem_len": 64, "context_length": 20}, "64"),
        ({"model": "SHELM", "mem_len": 64, "topk": 4}, "16"),
    ],
)
def test_an_agent_looks_back_as_far_as_it_was_trained_to_see(changes, context):
    settings = load_config(overrides=[f"{name}={value}" for name, value in changes.items()])
    assert context_of(vars(settings)) == context


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ([], "required: RUNS"),
        (["runs/grid"], 'env is "MiniGrid-MemoryS11-v0". Name runs in TMaze'),
        (["runs/gpt10_0", "runs/other"], "these runs differ in more than the seed: mem_len"),
        (["runs/young"], "left out, at 100 of its 1,000 steps: runs/young. No run is left"),
        (["runs/damaged"], "last_eval_greedy.json: not an evaluation that eval.py wrote"),
    ],
)
def test_a_mistake_about_runs_gets_one_line(runs, capsys, command, line):
    write_run("grid", 1.0, env="MiniGrid-MemoryS11-v0")
    write_run("other", 1.0, mem_len=32, seed=5)
    write_run("young", 1.0, n_rows=1)
    write_evaluation(write_run("damaged", 1.0), None)
    assert line in refusal(capsys, ["lengths", *command])
