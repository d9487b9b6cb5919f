import csv
import re

import pytest

from analysis.run_data import Progress, aligned, markdown, read_progress, write_csv

HEADER = "env_steps,train/loss,rollout/return_mean,time/steps_per_second\r\n"


def write_metrics(folder, *rows):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.csv").write_bytes((HEADER + "".join(rows)).encode())


FILES = {
    "a row still being written": ("16,0.1,0.5,100.0\r\n", "32,0.1,0.75,200.0\r\n", "48,0.1,0."),
    "no episode has ended": ("16,0.1,,100.0\r\n",),
    "long": tuple(f"{n},0.1,0.5,{n}.0\r\n" for n in range(1, 3000)),
    "no row": (),
    "half a row": ("16,0.1,0.5",),
    "no numbers": ("a,b,c,d\r\n",),
    "a short row": ("16\r\n",),
}
EXPECTED = [Progress(32, 0.75, 200.0), Progress(16, None, 100.0), Progress(2999, 0.5, 2999.0)]


def test_the_last_whole_row_counts(tmp_path):
    found = []
    for name, rows in FILES.items():
        write_metrics(tmp_path / name, *rows)
        found.append(read_progress(tmp_path / name))
    assert [*found, read_progress(tmp_path / "nowhere")] == EXPECTED + [Progress()] * 5


FORMULAS = ["=1+1", "+SUM(A1)", "-cmd|' /C calc'!A0", "@SUM(1)", "\t=1", "\r=1"]
PLAIN = ["-0.5", "+1e-3", "-inf", "0.85 [0.80, 0.90]", "a-b", ""]


def test_no_cell_of_a_table_is_a_formula_and_numbers_stay(tmp_path):
    write_csv(tmp_path / "table.csv", [FORMULAS, PLAIN, [-0.5, 1, None]])
    with (tmp_path / "table.csv").open(newline="") as file:
        formulas, *plain = csv.reader(file)
    assert formulas == [*(f"'{cell}" for cell in FORMULAS[:4]), r"\t=1", r"\r=1"]
    assert plain == [PLAIN, ["-0.5", "1", ""]]


@pytest.mark.parametrize("cell", ["<img src=x>", "a|b", "[a](javascript:1)", "`", "\x1b[31m\nb"])
def test_a_cell_stays_a_cell(cell):
    text = markdown([["name"], [cell]])
    assert len(re.findall(r"(?<!\\)\|", text)) == 6
    assert text.count("\n") == 3
    assert "<" not in text
    assert not re.search(r"(?<!\\)\]\(", text)
    assert all(line.isprintable() for line in aligned([["name"], [cell]]).split("\n"))
