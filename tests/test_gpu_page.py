"""The page of GPU figures, rehearsed on the CPU; what only a GPU has says so."""

import time

import pytest
import torch

from benchmarks import gpu, training
from benchmarks.measuring import in_own_process, peak_gpu_megabytes
from models.language import captured_step
from models.language.layer_stack import LayerStack

TINY = gpu.Bench("cpu", tiny=True)


@pytest.fixture
def in_this_process(monkeypatch):
    monkeypatch.setattr(
        training, "in_own_process", lambda function, *given, seconds: function(*given)
    )


def cells(text):
    return [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]


def test_without_a_gpu_one_line_says_so_and_nothing_is_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main(["--output", str(tmp_path / "page.md")]) == 2
    out, line = capsys.readouterr()
    assert (out, line.count("\n")) == ("", 1)
    assert "finds no GPU" in line
    assert "--rehearse" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--only", "grahp"], "Did you mean 'graph'?"),
        (["--output", "."], "a folder"),
        (["--output", "/dev/null/page.md"], "is not a folder"),
    ],
)
def test_wrong_options_are_told_before_anything_is_measured(options, said, capsys):
    assert gpu.main(["--rehearse", *options]) == 2
    out, line = capsys.readouterr()
    assert out == ""
    assert said in line


def test_a_rehearsal_measures_every_row_that_needs_no_gpu(tmp_path, capsys):
    path = tmp_path / "page.md"
    names = ["graph", "n-step", "ranks"]
    assert gpu.main(["--rehearse", "--output", str(path), "--only", *names]) == 0
    out, progress = capsys.readouterr()
    assert path.read_text() == out
    assert "no figure means anything" in out
    assert "6 of 6" in progress
    rows = cells(out)
    needy = {row[0].strip() for row in rows if "not measured: needs a GPU" in row[3]}
    assert needy == {"Transformer-XL step, recorded", "MiniLM step, recorded"}
    assert all(row[1].endswith(" ms") for row in rows if row[0].strip() not in needy)


def test_updates_of_all_learners_from_replay_stand_on_the_page():
    rows = list(gpu.off_policy_rows(TINY))
    assert [row.name for row in rows] == [
        *("update, DQN-LSTM, T=6, random", "update, DQN-GPT, T=6, random"),
        *("update, SAC-LSTM, T=33, random", "update, SAC-GPT, T=33, random"),
    ]
    assert gpu.found(rows[1], 60)[0].endswith(" ms")


def test_agents_are_trained_and_one_that_cannot_be_leaves_the_others_alone(
    in_this_process, in_empty_folder, monkeypatch, capsys
):
    monkeypatch.setattr(gpu, "AGENTS", ("SHELM", "CNN-PPO"))
    assert gpu.main(["--rehearse", "--only", "training"]) == 0
    without_files, trained = cells(capsys.readouterr().out)
    assert "not measured: data/grid-clip" in without_files[3]
    assert trained[1].endswith(" steps/s")
    assert "from step 16 to 48" in trained[3]


def test_a_failure_becomes_one_short_line():
    def fail(seconds):
        raise RuntimeError("out of memory " + "x" * 500 + "\nand so on")

    value, memory, reason = gpu.found(gpu.Row("", fail), 10)
    assert (value, memory) == ("–", "–")
    assert reason.startswith("not measured: out of memory")
    assert len(reason) < 230


def test_the_page_comes_to_an_end(monkeypatch):
    row = gpu.Row("", lambda seconds: gpu.Figure(seconds, "s", 0, ""))
    assert gpu.found(row, 5)[0] == "5.00 s"
    assert gpu.found(row, 1000)[0] == f"{gpu.ROW_SECONDS:.2f} s"
    assert "may take" in gpu.found(row, 0)[2]


def test_what_takes_too_long_in_a_process_of_its_own_is_killed():
    with pytest.raises(TimeoutError, match="not through after 0 s"):
        in_own_process(time.sleep, 600, seconds=0.2)


def test_a_graph_that_does_not_work_has_no_figure_but_its_reason(monkeypatch):
    def refuse(work):
        raise RuntimeError("operation not permitted when stream is capturing\nCompile with ...")

    monkeypatch.setattr(LayerStack, "captures", True)
    monkeypatch.setattr(captured_step, "recorded", refuse)
    row = next(gpu.graph_rows(TINY))
    assert "not permitted when stream is capturing" in gpu.found(row, 10)[2]


def test_a_step_is_left_unrecorded_where_that_is_asked_for(monkeypatch):
    model = gpu.transformer_xl(TINY)
    monkeypatch.setattr(torch.nn.Parameter, "is_cuda", True)
    assert model.captures
    model.may_capture = False
    assert not model.captures


def test_a_wrong_mean_of_gradients_is_no_figure(monkeypatch):
    def doubled(parameters):
        for parameter in parameters:
            parameter.grad *= 2

    monkeypatch.setattr(gpu, "average_gradients", doubled)
    reason = gpu.found(next(gpu.ranks_rows(TINY)), 10)[2]
    assert "the mean over one rank is not what the rank had" in reason


def test_without_a_gpu_there_is_no_memory_of_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert peak_gpu_megabytes() is None
