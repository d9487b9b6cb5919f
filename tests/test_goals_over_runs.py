from pathlib import Path

import numpy as np
import pytest
from matplotlib.text import Text

from analysis.__main__ import main
from analysis.goals import analyse, shares_of
from tests.test_analysis import refusal, rows, write_run_folder
from utils.given_settings import load_config

GRADES = ("good", "context_insensitive", "common_sense_insensitive", "impossible")
STEPS = (100, 200, 300, 400)


def of_crafter(level):
    """Return the columns of a run: achievements at a level, none before the first episode."""
    means = ["", level, level, 2 * level]
    columns = {"rollout/achievements_mean": means, "rollout/achievements_total": [1, 2, 3, 4]}
    return columns | {"achievements/collect_wood": means, "achievements/wake_up": ["", 0, 0, 0]}


def of_goals(good, impossible):
    """Return counts of suggestions since the run began, growing evenly."""
    counts = dict.fromkeys(GRADES, 0) | {"good": good, "impossible": impossible}
    columns = {
        f"goals/{occasion}_{grade}": [count * n for n in range(1, 5)]
        for grade, count in counts.items()
        for occasion in ("suggested", "rewarded")
    }
    return columns | {"suggester/asked": [5, 6, 7, 8], "suggester/tokens": [50, 60, 70, 80]}


def write_run(name, columns, **changes):
    settings = {"model": "CNN", "env": "CrafterText-v0", "seed": 0, "suggester": "oracle"}
    settings = vars(load_config()) | settings | changes
    return write_run_folder(f"runs/{name}", settings, {"env_steps": STEPS} | columns)


@pytest.fixture
def runs(in_empty_folder):
    for seed, level in enumerate((0.2, 0.4)):
        columns = of_crafter(level) | of_goals(3, 1 + 4 * seed)
        write_run(f"goals_{seed}", columns, seed=seed)
    write_run("plain", of_crafter(0.1), suggester=None)
    return in_empty_folder


@pytest.mark.slow
def test_agents_are_shown_with_achievements_suggestions_and_costs(runs, capsys):
    assert main(["goals", "runs"]) == 0
    assert (runs / "analysis_output/goals.png").read_bytes().startswith(b"\x89PNG")
    plain, told = rows("goals_summary.csv")
    assert (plain["agent"], plain["runs"], plain["an episode"]) == ("CNN PPO", "1", "0.20")
    assert (plain["good suggestions"], plain["asked"]) == ("", "")
    assert (told["agent"], told["runs"], told["steps"]) == ("CNN PPO oracle", "2", "400")
    assert (told["an episode"], told["over the run"]) == ("0.60", "4.00")
    assert told["good suggestions"] == told["good of paid"] == "50.0%"  # 24 of 24 + 4 + 20
    assert (told["asked"], told["tokens"]) == ("8", "80")
    assert "rejected" not in told, "no run has it"
    shown = capsys.readouterr().out
    assert "collect wood    0.200           0.600" in shown


@pytest.mark.slow
def test_achievements_that_nobody_unlocks_have_a_line_in_the_place_of_bars(runs):
    figure = analyse([Path("runs")], ["suggester"]).figure
    labels = [label.get_text() for axes in figure.axes for label in axes.get_yticklabels()]
    assert ("collect wood" in labels, "wake up" in labels) == (True, False)
    texts = [text.get_text() for text in figure.findobj(Text)]
    assert "by no agent: wake up" in texts


@pytest.mark.slow
def test_every_number_of_the_picture_is_in_the_table_with_its_interval(runs):
    assert main(["goals", "runs"]) == 0
    told = [row for row in rows("goals.csv") if row["agent"] == "CNN PPO oracle"]
    mean = [row for row in told if row["name"] == "rollout/achievements_mean"]
    assert [float(row["env_steps"]) for row in mean] == [200, 300, 400]
    last = [float(mean[-1][name]) for name in ("value", "low", "high")]
    assert last == pytest.approx([0.6, 0.4, 0.8])
    good = [row for row in told if row["name"] == "goals/suggested_good share"]
    assert [float(row["value"]) for row in good] == pytest.approx([0.5] * 4)
    (wood,) = (row for row in told if row["name"] == "achievements/collect_wood")
    assert float(wood["value"]) == pytest.approx(0.6)


def test_a_share_is_that_of_the_goals_since_the_window_before():
    columns = {f"goals/suggested_{grade}": np.zeros(4) for grade in GRADES}
    columns["goals/suggested_good"] = np.array([0.0, 10, 10, 10])
    columns["goals/suggested_common_sense_insensitive"] = np.array([0.0, 0, 30, 30])
    shares = shares_of([columns | {"env_steps": np.array(STEPS, float)}], "suggested")
    assert shares.x.tolist() == list(STEPS)
    nan = np.nan
    expected = [[nan, 1, 0, nan], [nan, 0, 0, nan], [nan, 0, 1, nan], [nan, 0, 0, nan]]
    np.testing.assert_array_equal(shares.shares, expected)
    assert shares.whole.tolist() == [0.25, 0, 0.75, 0]


def test_runs_before_their_first_episode_or_without_some_columns_are_shown(in_empty_folder):
    nothing = [""] * 4
    columns = {"rollout/achievements_mean": nothing, "rollout/achievements_total": [0] * 4}
    write_run("young", columns | {"achievements/wake_up": nothing})
    write_run("house", {"suggester/asked": [1, 2, 3, 4]}, env="HousekeepText-v0")
    assert main(["goals", "runs"]) == 0
    found = {row["environment"]: row["over the run"] for row in rows("goals_summary.csv")}
    assert found == {"CrafterText-v0": "0.00", "HousekeepText-v0": ""}


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ([], "required: RUNS"),
        (["runs/maze"], "runs/maze: it has logged no achievements and no goals. Name runs in"),
        (["runs/plain", "runs/maze"], "runs/maze: it has logged no achievements and no goals"),
        (["runs/empty"], "runs/empty/metrics.csv has no rows yet"),
        (["runs/damaged"], "runs/damaged/metrics.csv: its columns are not numbers in every row"),
        (["runs/silent"], "runs/silent: its metrics of goals have no value yet"),
        (["runs/goals_0", "runs/other"], "these runs differ in more than the seed: gamma"),
        (["runs/plain", "--output", "/dev/null/x"], "--output"),
    ],
)
def test_a_mistake_about_runs_with_goals_gets_one_line(runs, capsys, command, line):
    write_run("maze", {"rollout/return_mean": [1, 1, 1, 1]}, env="MiniGrid-MemoryS11-v0")
    write_run("other", of_crafter(1), gamma=0.5, seed=5)
    (write_run("empty", of_crafter(1)) / "metrics.csv").write_text("env_steps,goals/return_mean\n")
    write_run("damaged", of_crafter("much"))
    write_run("silent", {"goals/return_mean": ["", "", "", ""]})
    assert line in refusal(capsys, ["goals", *command])
