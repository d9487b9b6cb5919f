import itertools
import json
import logging
import os
import re
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

import plot
from analysis.figures import Labels, draw
from analysis.run_data import group_runs, read_runs
from analysis.statistics import compare, summarize
from tests.bad_inputs.harness import refused
from tests.test_analysis import refusal, rows, write_run_folder
from utils.loggers import RETURN

SETTINGS = {"model": "HELM", "env": "Maze-v0", "seed": 0, "beta": 100.0, "save_ckpt": True}


def write_run(name, scores, every=16, **changes):
    """Write a run folder with one of the scores in each row."""
    numbers = range(1, len(scores) + 1)
    columns = {"env_steps": [every * n for n in numbers], "rollout/return_mean": scores}
    columns["time/seconds"] = [n + 0.5 for n in numbers]
    write_run_folder(name, SETTINGS | changes, columns)


@pytest.fixture
def runs(in_empty_folder):
    for seed, last in enumerate((0.5, 0.6, 0.7)):
        write_run(f"runs/helm{seed}", [0.0, 0.4, last], seed=seed)
    for seed, last in enumerate((0.1, 0.65)):
        write_run(f"runs/cnn{seed}", [0.0, 0.05, last], seed=seed, model="CNN-PPO")
    return in_empty_folder


def compared(*command):
    assert plot.main([*command]) == 0
    return rows("curves.csv", ".")


def test_runs_are_averaged_and_compared(runs, capsys):
    Path("out").mkdir()
    for name in ("all", "again"):
        assert plot.main(["runs", "--threshold", "0.55", "--output", f"out/{name}.png"]) == 0
    for ending in (".png", ".svg", ".csv", "_improvement.csv"):
        assert Path(f"out/all{ending}").read_bytes() == Path(f"out/again{ending}").read_bytes()
    assert (runs / "out/all.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (runs / "out/all.svg").read_text()[:1000]
    cnn, helm = rows("all.csv", "out")
    assert (helm["agent"], helm["runs"], helm["environment"]) == ("HELM", "3", "Maze-v0")
    assert float(helm["final"]) == pytest.approx(0.6)
    assert 0.5 <= float(helm["low"]) < 0.6 < float(helm["high"]) <= 0.7
    assert (float(helm["steps to 0.55"]), helm["runs there"]) == (48, "2")
    assert (cnn["steps to 0.55"], cnn["runs there"]) == ("never", "1")
    (pair,) = rows("all_improvement.csv", "out")
    assert (pair["agent"], pair["beats"]) == ("HELM", "CNN-PPO")
    assert float(pair["probability"]) == pytest.approx(4 / 6)
    assert "0.600" in capsys.readouterr().out
    assert "| HELM | Maze-v0 | 3 |" in (runs / "out/all.md").read_text()


def test_names_sizes_and_tables_of_a_paper(runs, capsys):
    words = ["runs", "--format", "svg,tex", "--size", "3.3,2.2,7"]
    named = ["--rename", "CNN-PPO=no memory", "--rename", "Maze-v0=the & maze"]
    assert [line["agent"] for line in compared(*words, *named)] == ["no memory", "HELM"]
    svg = Path("curves.svg").read_text()
    assert ("no memory" in svg or "no&#" in svg, 'width="237.6pt"' in svg) == (True, True)
    assert 'height="158.4pt"' in svg
    tex = Path("curves_table.tex").read_text()
    assert r"no memory & the \& maze & 2 & 48 & 0.375" in tex
    assert {line.count(" & ") for line in tex.splitlines() if "HELM" in line} == {6}
    points = rows("curves_steps.csv", ".")
    of_helm = [each for each in points if each["agent"] == "HELM"]
    assert [float(each["steps"]) for each in of_helm] == [16, 32, 48]
    assert [float(each["value"]) for each in of_helm] == pytest.approx([0, 0.4, 0.6])
    assert float(of_helm[-1]["low"]) < 0.6 < float(of_helm[-1]["high"])


def test_a_run_alone_has_no_interval_and_counts_once_without_the_row_being_written(runs):
    with (runs / "runs/helm0/metrics.csv").open("a") as file:
        file.write("64,0.9")
    (line,) = compared("runs/helm0", "runs/../runs/helm0", "--axis", "seconds")
    assert (line["seconds"], line["low"], line["runs"]) == ("3.5", "", "1")
    assert not (runs / "curves_improvement.csv").exists()


@pytest.mark.slow
def test_pictures_for_a_paper_and_scores_over_environments(runs, capsys, caplog):
    caplog.set_level(logging.INFO)
    for seed, (ours, other) in enumerate(((5.0, 1.0), (6.0, 2.0), (7.0, 3.0))):
        write_run(f"runs/b{seed}", [0.0, ours], seed=seed, env="B_v0")
        write_run(f"runs/c{seed}", [0.0, other], seed=seed, env="B_v0", model="CNN-PPO")
    metrics = "rollout/return_mean,time/seconds"
    assert plot.main(["runs", "--format", "pdf,tex", "--metric", metrics, "--output", "a.svg"]) == 0
    names = ("a_rollout_return_mean", "a_time_seconds")
    endings = (".pdf", ".tex", ".svg", "_aggregate.pdf", "_profile.csv")
    assert {f"{name}{ending}" for name in names for ending in endings} <= set(os.listdir())
    assert Path("a_time_seconds.pdf").read_bytes().startswith(b"%PDF")
    assert not caplog.records  # the libraries tell of every table of a font
    tex = Path(f"{names[0]}.tex").read_text()
    assert tex.count("\\begin{axis}") == tex.count("\\end{axis}") == 2
    assert "title={B\\_v0}" in tex
    assert "(16,0) (32,6)" in tex  # HELM's mean
    cnn, helm = rows(f"{names[0]}_aggregate.csv", ".")
    # In Maze-v0 0.1 is 0 and 0.7 is 1, in B_v0 1 and 7.
    maze, other = ([(each - 0.1) / 0.6 for each in (0.5, 0.6, 0.7)], [4 / 6, 5 / 6, 1])
    middle = sorted(maze + other)[1:-1]
    assert float(helm["IQM, normalised"]) == pytest.approx(sum(middle) / 4)
    assert float(helm["low"]) < float(helm["IQM, normalised"]) < float(helm["high"])
    assert float(cnn["IQM, normalised"]) < float(helm["low"])
    above = [float(row["runs above"]) for row in rows(f"{names[0]}_profile.csv", ".")]
    for profile in (above[:51], above[51:]):
        assert profile == sorted(profile, reverse=True)
        assert profile[-1] == 0
    assert above[0] == pytest.approx(3 / 5)  # both are the lowest of their environment once


def test_runs_of_unequal_length_are_averaged_where_all_have_been(runs, capsys):
    write_run("runs/helm3", [0.0, 0.2, 0.4, 0.6, 0.8], every=8, seed=3)
    (line,) = compared(*(f"runs/helm{seed}" for seed in range(4)), "--statistic", "mean")
    assert float(line["steps"]) == 40
    assert float(line["final"]) == pytest.approx((0.45 + 0.5 + 0.55 + 0.8) / 4)
    assert "the runs end between 40 and 48 steps" in capsys.readouterr().out
    write_run("runs/again", [0.0, 0.4, 0.9, 0.9], seed=1)  # one seed counts once
    (_, helm) = compared("runs")
    assert helm["runs"] == "4"
    line = "left out, since others have the same settings and seed (1): runs/helm1"
    assert f"HELM on Maze-v0: {line}" in capsys.readouterr().out


@pytest.mark.slow
def test_environments_or_other_settings_tell_panels_apart(runs):
    write_run("runs/other", [0.1, 0.2], env="Other-v0")
    found = [(line["agent"], line["environment"]) for line in compared("runs")]
    assert found == [("CNN-PPO", "Maze-v0"), ("HELM", "Maze-v0"), ("HELM", "Other-v0")]
    for task in ("place plant", "collect wood"):
        for model in ("HELM", "CNN"):
            write_run(f"tasks/{task} {model}", [0.1, 0.2], single_task=task, model=model)
    lines = compared("tasks", "--panels", "single_task,single_task", "--by", "env,model")
    agents = ["env=Maze-v0, CNN", "env=Maze-v0, HELM"]
    expected = [(name, task) for task in ("collect wood", "place plant") for name in agents]
    assert [(line["agent"], line["environment"]) for line in lines] == expected


@pytest.mark.slow
def test_runs_that_differ_in_more_than_the_seed_are_drawn_apart(runs, capsys):
    write_run("runs/kept", [0.0, 0.4, 0.9], seed=4, save_ckpt=False, showcase_minutes=1)
    assert len(compared("runs")) == 2, "how a run is kept does not matter"
    write_run("runs/helm3", [0.0, 0.4, 0.9], seed=3, beta=1.0, n_layer=2)
    line = refusal(capsys, ["runs"], plot.main)
    assert "HELM on Maze-v0: these runs differ in more than the seed" in line
    assert "beta (1.0, 100.0), n_layer (2, null). Draw them apart with --by model,beta" in line
    found = [(line["agent"], line["runs"]) for line in compared("runs", "--by", "model,beta")]
    expected = [("CNN-PPO", "2"), ("HELM, beta=1.0", "1"), ("HELM, beta=100.0", "4")]
    assert found == expected


@pytest.mark.slow
def test_runs_that_began_with_the_parameters_of_others_are_drawn_apart(runs, capsys):
    for seed in range(3):
        write_run(f"runs/finetuned{seed}", [0.5, 0.8, 0.9], seed=seed)
        began = {"init_from": {"checkpoint": f"/runs/{seed}/ckpt_best.pt"}}
        Path(f"runs/finetuned{seed}/run.json").write_text(json.dumps(began))
    assert plot.main(["runs"]) == 2
    assert "in more than the seed: pretrained (false, true)" in capsys.readouterr().err
    lines = compared("runs", "--by", "model,pretrained")
    found = {line["agent"]: float(line["final"]) for line in lines}
    assert found["HELM, pretrained=true"] == pytest.approx(0.9)
    assert found["HELM, pretrained=false"] == pytest.approx(0.6)


@pytest.mark.parametrize("steps", [[16, 48, 32], [16, 32, 32]])
def test_steps_that_fall_or_repeat_are_told_with_file_and_line(steps, runs, capsys):
    write_run("runs/bad", [0.1, 0.2, 0.3], seed=7)
    path = Path("runs/bad/metrics.csv")
    heading, *rows = path.read_text().splitlines()
    own = [f"{n},{row.partition(',')[2]}" for n, row in zip(steps, rows, strict=True)]
    path.write_text("\n".join([heading, *own, ""]))
    refused(capsys, "plot", ["runs"], f"{path}: line 4: env_steps 32 follows {steps[1]}")


def describe(seed, description):
    Path(f"runs/helm{seed}/run.json").write_text(json.dumps(description))


MODULES = [{"user_modules": {"my_envs": {"sha256": text}}} for text in ("aa", "bb")]
SOURCES = [{"source_sha256": text} for text in ("aa", "bb")]
RECORDED = {  # in run.json of two runs of three, and whether they are averaged, or say so
    "an environment's size": ([{"environment": {"size": n}} for n in (5, 8)], "environment.size"),
    "its own code": (MODULES, "code.my_envs"),
    "changed when it was resumed": (
        [{**MODULES[0], "resumed": [MODULES[1]]}, MODULES[1]],
        "code.my_envs",
    ),
    "not recorded once": ([{"environment": {"size": 5}}, {"environment": {}}], None),
    "an argument that is the seed": ([{"environment": {"n": n}} for n in (0, 1)], None),
    "seeds of a vector": ([{"environment": {"n": [n, n + 1]}} for n in (0, 1)], None),
    "a yes that looks like a seed": (
        [{"environment": {"n": yes}} for yes in (False, True)],
        "environment.n",
    ),
    "the program's source": (SOURCES, "say so"),
    "packages": ([{"packages": {"torch": text}} for text in ("2.1", "2.2")], "say so"),
    "the package around": ([{"environment": {"package.my": x}} for x in "ab"], "say so"),
    "of other types": ([{"environment": [5], "user_modules": {"a": 1}}, {"resumed": [3]}], None),
    "deep and long": (
        [{"environment": {"a": [[[5]]], "b\n": "x" * 9999}, "packages": {"torch": 3}}, {}],
        None,
    ),
}


@pytest.mark.quick("its own code")
@pytest.mark.parametrize("facts", RECORDED)
def test_what_differs_in_more_than_the_seed_is_refused_or_said(facts, runs, capsys):
    descriptions, expected = RECORDED[facts]
    for seed, description in enumerate(descriptions):
        describe(seed, description)
    if expected in (None, "say so"):
        assert compared("runs")[1]["runs"] == "3"
        said = "averaged all the same" in capsys.readouterr().out
        assert said == (expected == "say so")
        return
    refused(capsys, "plot", ["runs"], f"in more than the seed: {expected} (")
    assert len(compared("runs", "--by", f"model,{expected}")) == 4  # unknown, too, is apart
    for ignored in (expected, expected.partition(".")[0]):
        assert compared("runs", "--ignore", ignored)[1]["runs"] == "3"
        assert f"HELM on Maze-v0 ({expected})" in Path("curves.md").read_text()


T_MAZE = {"env": "TMazePassive-v0", "length": 6}
CODES = {  # what the two agents of a panel differ in, and whether they are compared
    "length": ({"length": 30}, {}, False),
    "environment.size": ({}, {"environment": {"size": 8}}, False),
    "gamma": ({"gamma": 0.9}, {}, True),
    "n_rollout_steps": ({"n_rollout_steps": 64}, {}, True),
    "program.source": ({}, {"source_sha256": "bb"}, True),
    "code.my_layers": ({}, {"user_modules": {"my_layers": {"sha256": "bb"}}}, True),
    "": ({"mem_len": 7, "house_steps": 9}, {"environment": {"n": 0}}, True),  # read by none of them
}


@pytest.mark.quick("gamma")
@pytest.mark.parametrize("name", CODES)
def test_agents_of_one_panel_have_one_environment_and_other_differences_are_told(
    name, in_empty_folder, capsys
):
    changes, described, is_compared = CODES[name]
    one = {"source_sha256": "aa", "user_modules": {"my_layers": {"sha256": "aa"}}}
    one["environment"] = {"size": 5}
    for model, more, facts in (("LSTM", {}, {}), ("GRU", changes, described)):
        for seed in (0, 1):
            folder = f"runs/{model}{seed}"
            write_run(folder, [0.1, 0.2 + seed], seed=seed, model=model, **T_MAZE | more)
            Path(folder, "run.json").write_text(json.dumps(one | facts))
    if not is_compared:
        refused(capsys, "plot", ["runs"], f"--panels env,{name}", f"--ignore {name}")
        found = [each["environment"] for each in compared("runs", "--panels", f"env,{name}")]
        assert len({*found}) == 2
        assert not Path("curves_improvement.csv").exists()
    compared("runs", *([] if is_compared else ["--ignore", name]), "--format", "svg,tex")
    assert Path("curves_improvement.csv").exists()
    capsys.readouterr()
    for file in ("curves.md", "curves.svg", "curves.tex"):
        text = Path(file).read_text()
        assert ("the agents also differ in" in text) == bool(name), file
        assert name.replace("_", r"_") in text
    compared("runs", "--by", f"model,{name}" if name else "model")
    assert "also differ" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("others", [["b/gpt2", "a/llama"], ["a/llama", "b/llama"]])
def test_a_path_is_called_by_its_last_part_unless_two_are_alike(others, runs):
    for name in others:
        write_run(f"runs/{name}", [0.1, 0.2], language_model=f"/models/{name}")
    lines = compared(*(f"runs/{name}" for name in others), "--by", "model,language_model")
    named = ["gpt2", "llama"] if "b/gpt2" in others else [f"/models/{name}" for name in others]
    assert [line["agent"] for line in lines] == [f"HELM, language_model={n}" for n in named]


def drawn(folder, by):
    """Return the picture of runs, and the places of its texts that are words."""
    groups = group_runs(read_runs([folder], RETURN, "steps", []), by, [])
    results = [summarize(group, "mean", None) for group in groups]
    figure = draw(results, compare(results), Labels("rollout/return_mean", "steps", "mean"))
    figure.canvas = FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    named = [text for text in figure.findobj(Text) if re.search("[a-z]", text.get_text())]
    return figure, {t.get_text(): t.get_window_extent() for t in named if t.get_visible()}


def test_long_names_stay_within_the_picture_and_off_the_curves(runs):
    for name in ("first", "second"):
        for seed in range(2):
            changes = {"seed": seed, "single_task": f"the {name} of two long tasks", "n_layer": 3}
            write_run(f"long/{name}{seed}", [0.1, 0.2], **changes)
    figure, boxes = drawn(runs / "long", ["single_task", "n_layer", "model"])
    width = figure.bbox.width
    assert [text for text, box in boxes.items() if not 0 <= box.x0 < box.x1 <= width] == []
    curves, finals, _ = (axes.get_window_extent() for part in figure.subfigs for axes in part.axes)
    (name,) = (name for name in boxes if name.startswith("single_task=the first") and "run" in name)
    assert width / 3 < curves.x1 <= boxes[name].x0 <= boxes[name].x1 <= finals.x0


def test_long_names_among_short_ones_do_not_touch(runs):
    for n in range(3):
        write_run(f"many/{n}", [0.1, 0.2], n_layer=n + 1, readout_steps=n)
    for model in ("GRU", "LSTM", "GPT"):
        write_run(f"many/{model}", [0.1, 0.2], model=model)
    _, boxes = drawn(runs / "many", ["model", "n_layer", "readout_steps"])
    beside = sorted((box for text, box in boxes.items() if "(1 run)" in text), key=lambda b: b.y0)
    assert len(beside) == 6
    assert all(below.y1 <= above.y0 for below, above in itertools.pairwise(beside))


def test_many_short_names_stay_off_the_curves(runs):
    for model in ("GRU", "LSTM", "GPT", "HELM"):
        write_run(f"many/{model}", [0.1, 0.2], model=model)
    figure, boxes = drawn(runs / "many", ["model"])
    curves = figure.subfigs[0].axes[0].get_window_extent()
    beside = [box for text, box in boxes.items() if "(1 run)" in text]
    assert len(beside) == 4
    assert all(curves.x1 <= box.x0 for box in beside)


@pytest.mark.slow
def test_shorter_runs_are_left_out_unless_they_are_drawn_apart(in_empty_folder, capsys):
    for seed in (0, 1):
        write_run(f"runs/long{seed}", [0.0, 0.4, 0.5], seed=seed, n_steps=48)
        write_run(f"runs/look{seed}", [0.0], seed=seed, n_steps=16)
    (line,) = compared("runs")
    assert (line["runs"], float(line["final"])) == ("2", 0.5)
    said = capsys.readouterr().out
    assert "left out, shorter than 48 steps: runs/look0, runs/look1 (--by model,n_steps" in said
    for command in (["runs", "--by", "model,n_steps"], ["runs/look0", "runs/look1"]):
        assert {line["runs"] for line in compared(*command)} == {"2"}
        assert "left out" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_curve_begins_where_an_episode_has_ended(runs, capsys):
    write_run("runs/helm3", ["", "", 0.6], seed=3)
    _, helm = compared("runs")
    assert (helm["steps"], helm["runs"]) == ("48.0", "4")
    write_run("runs/young", ["", ""], seed=4)
    capsys.readouterr()
    assert len(compared("runs")) == 2
    without = "rollout/return_mean has no value yet (it has one when an episode has ended)"
    assert f"left out, {without}: runs/young" in capsys.readouterr().out
    assert plot.main(["runs/young"]) == 2
    assert f"runs/young: {without}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (["runs", "--metric", "rollout/return_men"], "Did you mean 'rollout/return_mean'?"),
        (["runs", "--panels", "env,evn"], "--panels evn: no setting of these runs. Did you mean"),
        (["runs", "--ignore", "environmnt"], "--ignore environmnt: no setting of these runs"),
        (["runs", "--by", "modle"], "--by modle: no setting of these runs. Did you mean 'model'?"),
        (["runs", "--output", "curves.gif"], "--output curves.gif: name a file ending in .png, "),
        (["runs", "--output", "nowhere/x.png"], "there is no folder nowhere"),
        (
            ["runs", "--rename", "HELN=x"],
            "--rename HELN: no agent and no environment of these runs",
        ),
        (["runs", "--rename", "HELM=CNN-PPO"], "two agents of an environment would have one name"),
        (["runs", "--rename", "HELM"], "'HELM' is not OLD=NEW"),
        (["runs", "--size", "3"], "--size: '3' is not WIDTH,HEIGHT"),
        (["runs", "--size", "3,0"], "--size"),
        (["runs", "--format", "jpg"], "'jpg' is none of png, svg, pdf, tex"),
        ([], "required: FOLDER"),
    ],
)
def test_a_mistake_gets_one_line(runs, capsys, command, line):
    assert line in refusal(capsys, command, plot.main)
