from analysis.run_data import Progress, read_progress

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
