"""The page of GPU figures, rehearsed on the CPU; rows that need a GPU say so."""

import time

import pytest

from benchmarks import gpu, training
from benchmarks.measuring import in_own_process


def cells(text):
    return [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]


@pytest.mark.slow
def test_a_rehearsal_measures_every_row_that_needs_no_gpu(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(training, "in_own_process", lambda call, *given, seconds: call(*given))
    monkeypatch.setattr(gpu, "AGENTS", ("SHELM", "CNN-PPO"))
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "page.md"
    assert gpu.main(["--rehearse", "--output", str(path)]) == 0
    out, progress = capsys.readouterr()
    assert path.read_text() == out
    assert "no figure means anything" in out
    assert "13 of 13" in progress
    reasons = {row[0].strip(): row[3] for row in cells(out) if row[1] == "–"}
    recorded = {"Transformer-XL step, recorded", "MiniLM step, recorded"}
    assert reasons.keys() == recorded | {"training, SHELM"}
    assert "not measured: needs a GPU" in reasons["MiniLM step, recorded"]
    assert "not measured: clip_encoder: data/grid-clip" in reasons["training, SHELM"]
    measured = {row[0].strip(): row[1] for row in cells(out) if row[1] != "–"}
    assert measured.pop("training, CNN-PPO").endswith(" steps/s")
    assert all(figure.endswith(" ms") for figure in measured.values())


def test_a_failure_becomes_one_short_line_and_the_page_comes_to_an_end():
    def fail(seconds):
        raise RuntimeError("out of memory " + "x" * 500 + "\nand so on")

    value, memory, reason = gpu.found(gpu.Row("", "", fail), 10)
    assert (value, memory) == ("–", "–")
    assert reason.startswith("not measured: out of memory")
    assert len(reason) < 230
    row = gpu.Row("", "", lambda seconds: (seconds, "s", 0))
    assert gpu.found(row, 1000)[0] == f"{gpu.ROW_SECONDS:.2f} s"
    assert "may take" in gpu.found(row, 0)[2]
    with pytest.raises(TimeoutError, match="not through after 0 s"):
        in_own_process(time.sleep, 600, seconds=0.2)
