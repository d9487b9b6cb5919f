"""The scoreboard: the runs that count, their scores, the table."""

import csv
import itertools
import json
import shutil
from pathlib import Path

import pytest
import torch

from analysis import scoreboard
from analysis.__main__ import main
from analysis.run_data import grouped, markdown, read_columns
from sweeps.grid import make_grid
from tests.test_analysis import refusal, rows
from trainers.checkpoint import LAST, save_checkpoint
from utils.given_settings import CONFIGS, load_config
from utils.loggers import MetricsWriter
from utils.run_folder import create_run_folder, mark_finished
from utils.saved_state import with_moments

T_MAZE = {"env": "TMazePassive-v0", "algorithm": "DQN", "n_steps": 100}
MEMORY = {"env": "MiniGrid-MemoryS11-v0", "n_steps": 2_000_000}
HELM = {"model": "HELM", "language_model": "SmolLM2-135M-Instruct"}
NUMBERS = itertools.count()


def write_run(score, name="eval/return_mean", finished=True, init_checkpoint=None, **changes):
    """Write a run with two rows, the second at a score."""
    config = load_config(values={"model": "LSTM", "showcase_minutes": None} | changes)
    folder = create_run_folder(
        config, f"run{next(NUMBERS):04d}", [], init_checkpoint=init_checkpoint
    )
    with MetricsWriter(folder, config) as metrics:
        for step, value in ((50, score - 0.2), (100, score)):
            metrics.write(step, {name: value, "time/seconds": step / 10})
    if finished:
        mark_finished(folder)
    return folder


def cells_and_lines(*paths):
    """Return the cells by task and agent, and the runs that do not count by their reasons."""
    left_out = []
    cells = scoreboard.read_cells(paths or [Path("experiments")], left_out)
    by_why = grouped(left_out, lambda run: run.why)
    reasons = {why: {run.folder for run in runs} for why, runs in by_why.items()}
    return {(cell.task.name, cell.agent.name): cell for cell in cells}, reasons


@pytest.fixture
def runs(in_empty_folder, monkeypatch):
    monkeypatch.setattr("utils.run_folder.describe_basis", lambda config: {})
    for seed, score in enumerate((1.1, 0.85, 0.6)):
        write_run(score, seed=seed, **T_MAZE)
    write_run(0.6, model="CNN", **T_MAZE)
    write_run(0.4952, "rollout/return_mean", model="Impala-PPO", **MEMORY)
    return in_empty_folder


def test_the_table_has_agents_by_tasks_with_intervals_and_seeds(runs, capsys):
    assert main(["scoreboard", "experiments"]) == 0
    assert (runs / "analysis_output/scoreboard.png").read_bytes().startswith(b"\x89PNG")
    page = (runs / "analysis_output/scoreboard.md").read_text()
    assert page in capsys.readouterr().out
    lines = {line.split(" | ")[0].strip("| "): line.split(" | ") for line in page.splitlines()}
    assert lines["task, steps"][1:] == ["none", "LSTM", "minutes a run", "published |"]
    # Scores are means of the last five evaluations, here two: 1.0, 0.75 and 0.5 of 0.5 to 1.
    assert lines["T-Maze 10, 100"][1:4] == ["0.00 ×1", "0.50 [0.00, 1.00] ×3", "0"]
    assert lines["MemoryS11, 2,000,000"][2] == "0.00 ×1"
    published = "SHELM 0.95 at 2,000,000 (arXiv:2306.09312); none 0.01, LSTM 0.01, GRU 0.01, GTrXL"
    assert lines["MemoryS11, 2,000,000"][-1].startswith(published)
    assert lines["MemoryS11, 2,000,000"][1] == "not run"
    assert lines["MemoryS11, 2,000,000"][3] == "3,333", "2,000,000 steps, 10 of them a second"
    assert "which of two sides, seen in the first step alone, for 10 steps" in page
    lstms = [row for row in rows("scoreboard.csv") if row["agent"] == "LSTM"]
    assert [row["task"] for row in lstms] == ["T-Maze 10"] * 3 + ["MemoryS11"]
    assert [row["score"] for row in lstms] == ["1.0", "0.75", "0.5", "0.4952"]
    assert [row["normalised"] for row in lstms[:3]] == ["1", "0.5", "0"]
    assert [row["seed"] for row in lstms[:3]] == ["0", "1", "2"]
    assert {row["steps_per_second"] for row in lstms} == {"10.0"}
    assert all(Path(row["run"]).is_dir() for row in lstms)


@pytest.mark.slow
def test_a_table_stands_for_the_folders_it_was_made_from_also_beside_others(runs):
    assert main(["scoreboard", "experiments"]) == 0
    first = Path("analysis_output").rename("first")
    table = first / "scoreboard.csv"
    shutil.rmtree("experiments")
    assert main(["scoreboard", str(table)]) == 0
    for name in ("scoreboard.csv", "scoreboard.md", "scoreboard_summary.csv"):
        assert (Path("analysis_output") / name).read_text() == (first / name).read_text()
    write_run(0.85, seed=3, **T_MAZE)
    write_run(1.1, seed=2, **T_MAZE)
    write_run(1.1, **T_MAZE | {"model": "GPT"})
    cells, reasons = cells_and_lines(Path("experiments"), table)
    assert list(cells["T-Maze 10", "LSTM"].scores) == pytest.approx([1.0, 0.75, 1.0, 0.75])
    assert list(cells["T-Maze 10", "GPT"].scores) == pytest.approx([1.0])
    assert cells["T-Maze 10", "none"].results[0].steps_per_second == 10
    assert reasons.keys() == {"same settings and seed"}


@pytest.mark.slow
def test_the_published_table_is_that_of_the_published_runs():
    results = Path(__file__).resolve().parent.parent / "docs" / "results"
    left_out = []
    cells = scoreboard.read_cells([results / "scoreboard.csv"], left_out)
    page = (results / "scoreboard.md").read_text()
    assert markdown(scoreboard.scores_table(cells)) in page
    assert markdown(scoreboard.summary_table(cells)) in page
    assert markdown(scoreboard.appendix_table(cells)) in page
    assert left_out == []


@pytest.mark.slow
def test_the_summary_sets_agents_beside_the_lstm_over_the_tasks_of_both(in_empty_folder):
    tasks = [{"length": n, "env": "TMazePassive-v0", "algorithm": "DQN"} for n in (10, 30, 50)]
    for seed in range(2):
        for task in tasks:
            write_run(1.1, seed=seed, **task)
            write_run(0.6, seed=seed, model="CNN", **task)
            write_run(1.11, seed=seed, model="GRU", **task)
        write_run((0.6, 1.1)[seed], seed=seed, model="GPT", **tasks[0])
        write_run(1.1, seed=seed, model="GPT", **tasks[1])
        write_run(1.1, seed=seed, model="MinGRU", **tasks[0])
    write_run(1.1, model="MinGRU", **tasks[1])  # one seed is too few, and one task, too
    told = {row[0]: row[1:] for row in scoreboard.summary_table([*cells_and_lines()[0].values()])}
    assert told.pop("agent")
    assert told.pop("none") == (3, "0.00", "1.00", "-1.00", "behind")
    assert told.pop("GRU") == (3, "1.02", "1.00", "0.02", "comparable")
    n_tasks, *_, verdict = told.pop("GPT")
    assert (n_tasks, verdict, told) == (2, "inconclusive", {})


def test_runs_too_short_for_their_task_stand_in_the_appendix_until_one_is_long_enough(runs):
    task = {"env": "KeyToDoor-v0", "length": 20, "algorithm": "SAC"}
    for model in "LSTM", "GPT":
        write_run(0.5, "eval/success_mean", model=model, n_steps=100, **task)
    cells = [*cells_and_lines()[0].values()]
    names = [row[0] for row in scoreboard.scores_table(cells)]
    assert names[1:-1] == ["T-Maze 10, 100", "MemoryS11, 2,000,000"]
    # 1,800,450 steps at 10 a second.
    hours = "LSTM 50.0; GPT 50.0"
    row = "Key-to-Door 20", "100", "1,800,450", hours, ""
    assert scoreboard.appendix_table(cells)[1:] == [row]
    write_run(1.0, "eval/success_mean", n_steps=1_800_450, **task)
    cells = [*cells_and_lines()[0].values()]
    assert scoreboard.appendix_table(cells)[1:] == []
    line = scoreboard.scores_table(cells)[-2]
    assert line == ("Key-to-Door 20, 1,800,450", "not run", "0.90 ×1", "3,001", "")
    assert cells_and_lines()[0]["Key-to-Door 20", "GPT"].empty == "other number of steps"


def test_agents_are_compared_at_the_steps_that_most_have_and_the_larger_of_two(runs):
    longer = write_run(1.0, **T_MAZE | {"model": "GPT", "n_steps": 200})
    cells, reasons = cells_and_lines()
    assert cells["T-Maze 10", "GPT"].empty == "other number of steps"
    assert [run.n_steps for run in cells["T-Maze 10", "LSTM"].runs] == [100] * 3
    assert reasons == {"other number of steps": {longer}}
    write_run(1.0, **T_MAZE | {"model": "LSTM", "n_steps": 200})
    cells, _ = cells_and_lines()
    assert cells["T-Maze 10", "none"].empty == "other number of steps"
    assert len(cells["T-Maze 10", "LSTM"].runs) == len(cells["T-Maze 10", "GPT"].runs) == 1


def test_of_several_settings_those_of_most_seeds_count_and_the_others_are_named(runs):
    other = write_run(0.5, seed=3, learning_rate=0.01, **T_MAZE)
    twice = write_run(0.5, seed=2, **T_MAZE)
    cells, reasons = cells_and_lines()
    assert list(cells["T-Maze 10", "LSTM"].scores) == pytest.approx([1.0, 0.75, 0.5])
    expected = {"same settings and seed": {twice}, "settings differ (learning_rate)": {other}}
    assert reasons == expected


def test_unread_settings_do_not_tell_runs_apart_and_language_models_do(runs):
    folder = write_run(1.0, model="CNN", seed=1, **T_MAZE)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"mem_len": 7}))
    write_run(1.0, **T_MAZE | HELM)
    write_run(0.75, **T_MAZE | HELM | {"language_model": "all-MiniLM-L6-v2"})
    cells, reasons = cells_and_lines()
    helms = [cells["T-Maze 10", f"HELM, {name}"].scores[0] for name in ("SmolLM2", "MiniLM")]
    assert helms == pytest.approx([0.9, 0.65])
    assert len(cells["T-Maze 10", "none"].runs) == 2
    assert reasons == {}


def test_a_cell_with_as_many_seeds_of_two_settings_stays_empty_and_says_so(runs):
    write_run(1.0, model="CNN", seed=1, learning_rate=0.01, **T_MAZE)
    cells, reasons = cells_and_lines()
    assert cells["T-Maze 10", "none"].empty == "settings differ"
    assert len(reasons["settings differ (learning_rate)"]) == 2


def test_runs_that_are_unfinished_begun_with_others_or_of_no_task_are_named(runs):
    young = write_run(1.0, finished=False, **T_MAZE | HELM)
    foreign = write_run(1.0, env="TMazeActive-v0", length=7, algorithm="DQN")
    by_another = write_run(1.0, **T_MAZE | {"algorithm": "PPO"})
    elsewhere = write_run(1.0, **T_MAZE | {"length": 11})
    warm = write_run(
        1.0, init_checkpoint={"checkpoint": "/x/ckpt_best.pt"}, **T_MAZE | {"model": "GPT"}
    )
    cells, reasons = cells_and_lines()
    assert cells["T-Maze 10", "GPT"].empty == "begun with another run's parameters"
    assert cells["T-Maze 10", "HELM, SmolLM2"].empty == "not finished"
    assert reasons == {
        "not finished": {young},
        "begun with another run's parameters": {warm},
        "of no task and agent of the ladder": {foreign, by_another, elsewhere},
    }


def test_runs_of_twins_are_lines_of_their_own_with_gaps_and_biases(runs, capsys):
    twin = T_MAZE | {"observability": "full"}
    for seed, score in enumerate((1.1, 0.85, 1.1)):
        write_run(score, seed=seed, **twin)
    write_run(1.1, model="CNN", **twin)
    write_run(1.1, model="GPT", learning_rate=0.01, **twin)
    write_run(0.85, model="GPT", **T_MAZE)
    before = scoreboard.scores_table([*cells_and_lines()[0].values()])
    assert main(["scoreboard", "experiments"]) == 0
    page = capsys.readouterr().out
    agents = "none", "LSTM", "GPT"
    table = {
        row["task, steps"]: [row[agent] for agent in agents]
        for row in rows("scoreboard_summary.csv")
    }
    assert table["T-Maze 10, 100"] == ["0.00 ×1", "0.50 [0.00, 1.00] ×3", "0.50 ×1"]
    assert table["T-Maze 10, twin, 100"] == ["1.00 ×1", "0.83 [0.50, 1.00] ×3", "1.00 ×1"]
    assert table["T-Maze 10, gap"] == ["1.00", "0.33 [-0.17, 0.83]", "learning_rate differ"]
    assert table["T-Maze 10, bias"] == ["", "-0.17", "0.00"]
    assert "| T-Maze 10, gap | 1.00 |" in page
    assert "observability=full" in page
    assert sum(" gap" in name for name in table) == 1, "of twins that were trained in alone"
    shutil.rmtree("experiments")
    kept, _ = cells_and_lines(Path("analysis_output/scoreboard.csv"))
    assert scoreboard.scores_table([*kept.values()]) == before


def test_a_score_is_the_mean_of_five_evaluations_or_the_last_hundred_episodes(runs):
    folder = write_run(0, seed=7, **T_MAZE)
    lines = ["env_steps,rollout/return_mean,eval/return_mean,time/seconds"]
    evaluated = ["0.0", "0.2", "", "0.4", "0.6", "0.8", "1.0"]
    lines += [f"{n},0.3,{value},{n}" for n, value in enumerate(evaluated, 1)]
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    assert scoreboard.score_of(read_columns(folder), "return_mean") == pytest.approx(0.6)
    never = [f"{n},0.{n},,{n}" for n in range(1, 8)]
    (folder / "metrics.csv").write_text("\n".join([lines[0], *never]) + "\n")
    assert scoreboard.score_of(read_columns(folder), "return_mean") == 0.7


@pytest.mark.slow
def test_the_ladder_is_trained_by_its_settings_files_at_equal_steps():
    folder, seed = CONFIGS / "Scoreboard", {"seed": ["0"]}
    runs = make_grid(sorted(folder.glob("*.json")), seed)
    longer = {"MemoryS11-NovelD": ["10000000"], "RepeatPrevious": ["4000000", "15000000"]}
    for name, n_steps in longer.items():
        runs += make_grid([folder / f"{name}.json"], seed | {"n_steps": n_steps})
    places = {}
    for run in runs:
        settings = vars(run.config)
        task = scoreboard.task_of(settings)
        played = (each for each in scoreboard.TASKS if each.plays(settings))
        assert [task] == [one for one in played if len(one.settings) >= len(task.settings)]
        assert scoreboard.task_of(settings | {"n_steps": 1}) is not None, "of any budget"
        (agent,) = (agent for agent in scoreboard.AGENTS if agent.is_of(settings))
        places.setdefault(task.name, {})[agent.name] = run.config.n_steps
    assert len(runs) == sum(map(len, places.values())), "a cell is trained once"
    for task in scoreboard.TASKS:
        (n_steps,) = set(places[task.name].values())
        able = {agent.name for agent in scoreboard.AGENTS if not agent.blind(task)}
        assert set(places[task.name]) == able or n_steps < task.least
    scales = {run.config.env: run.config.normalize_reward for run in runs}
    with (CONFIGS.parent / "docs" / "results" / "scoreboard.csv").open(newline="") as file:
        published = [json.loads(row["settings"]) for row in csv.DictReader(file)]
    assert all(own["normalize_reward"] == scales[own["env"]] for own in published)


@pytest.mark.parametrize("place", [(), ("networks",), ("networks", "optimizers")])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.RMSprop])
def test_parameters_are_those_that_an_optimiser_moves(tmp_path, place, kind):
    trained, frozen = torch.nn.Linear(3, 2), torch.nn.Linear(5, 5)
    optimizer = with_moments(kind(trained.parameters()))
    learner = {"optimizer": optimizer.state_dict(), "target": frozen.state_dict()}
    for name in reversed(place):
        learner = {name: learner}
    state = {"config": {}, "agent": frozen.state_dict(), "weights": {}, "env_steps": 1}
    save_checkpoint(tmp_path / LAST, state | {"learner": learner})
    assert scoreboard.trained_parameters(tmp_path) == sum(
        each.numel() for each in trained.parameters()
    )
    (tmp_path / LAST).unlink()
    assert scoreboard.trained_parameters(tmp_path) is None


RUN = "run,settings,score,steps_per_second,n_trained\n"
MISTAKES = {
    "young": "left out: not finished: 1 (young). No run is left to show",
    "foreign": "left out: of no task and agent of the ladder: 1 (foreign). No run is left",
    "bare": "bare/config.json: not the settings of a run (seed is null)",
    "silent": "left out: no episode ended: 1 (silent). No run is left to show",
    "endless": "endless: rollout/return_mean is inf. Name other runs",
    "untimed": "untimed/metrics.csv: no column 'time/seconds'. Name other runs",
    "metrics.csv": "metrics.csv: not a table of the scoreboard (no column run)",
    "settings.csv": "settings.csv, line 2: not a run of the scoreboard (Expecting",
    "score.csv": "score.csv, line 2: settings must be an object and score a number",
    "empty.csv": "empty.csv has no rows yet",
}


@pytest.mark.parametrize("place", MISTAKES)
def test_a_mistake_gets_one_line_and_nothing_is_written(runs, capsys, place):
    write_run(1.0, finished=False, **T_MAZE).rename("young")
    write_run(1.0, env="CartPole-v1").rename("foreign")
    write_run(float("nan"), "rollout/return_mean", **T_MAZE).rename("silent")
    write_run(float("inf"), "rollout/return_mean", **T_MAZE).rename("endless")
    write_run(1.0, **T_MAZE).rename("untimed")
    Path("bare").mkdir()
    for name, text in {
        "bare/config.json": '{"model": "LSTM", "env": "TMazePassive-v0"}',
        "untimed/metrics.csv": "env_steps,eval/return_mean\n1,1\n",
        "metrics.csv": "env_steps,eval/return_mean\n1,1\n",
        "settings.csv": f"{RUN}a,{{,1,,\n",
        "score.csv": f"{RUN}a,{{}},nan,,\n",
        "empty.csv": RUN,
    }.items():
        Path(name).write_text(text)
    assert MISTAKES[place] in refusal(capsys, ["scoreboard", place])
