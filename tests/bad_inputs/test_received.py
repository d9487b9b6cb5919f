"""Runs that somebody else has made, gone on with: nothing is overwritten, and nothing hangs."""

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import signal
import tempfile
from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as examples
from hypothesis import strategies as st

import main as main_program
from tests.bad_inputs.harness import ended, refused, tree
from tests.bad_inputs.spoiling import cut, flipped
from tests.runs import CNN, DQN, ELLM, LSTM, PPO, words_of
from trainers.checkpoint import LAST, PREVIOUS, Checkpoints, load_checkpoint, save_checkpoint
from utils import files

SHORT = {"env": "TMazePassive-v0", "length": 4}
RUNS = {
    "ppo": PPO | CNN | SHORT | {"normalize_reward": "true"},
    "dqn": DQN | LSTM,
    "ellm": ELLM | SHORT | {"replay_capacity": 1000},
}
ESCAPE, MANY = "\x1b[31mred\x1b]0;title\x07\n\rline", "k" * 10**6


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """Return a folder with an unfinished run of each kind and a file of the user's own."""
    folder = tmp_path_factory.mktemp("received") / "theirs"
    folder.mkdir()
    after_update = Checkpoints.after_update

    def interrupting(self, *arguments):
        if self.last_saved > 0:
            os.kill(os.getpid(), signal.SIGTERM)
        self.interruption.save = True
        after_update(self, *arguments)

    with contextlib.chdir(folder), mock.patch.object(Checkpoints, "after_update", interrupting):
        for name, row in RUNS.items():
            assert main_program.main([*words_of(row), f"--run-id={name}"]) == 128 + signal.SIGTERM
            next(Path("experiments").glob(f"*/*/{name}")).rename(name)
        shutil.rmtree("experiments")
        Path("precious").write_text("precious\n" * 1000)
    return folder


@pytest.fixture
def received(theirs, tmp_path, monkeypatch):
    """Work in a copy of that folder."""
    monkeypatch.chdir(shutil.copytree(theirs, tmp_path / "place"))


def put(path, make, at=None):
    """Put something else where a file or folder of a run is; `at`: which of several."""
    found = sorted(Path().glob(path))[at or 0] if "*" in path else Path(path)
    if found.is_dir():
        shutil.rmtree(found)
    found.unlink(missing_ok=True)
    found.parent.mkdir(exist_ok=True)
    make(found)


def link(path):
    path.symlink_to(Path("precious").resolve())


def second_name(path):
    os.link("precious", path)


def endless(path):
    path.symlink_to("/dev/zero")


def hollow(path):
    path.touch()
    os.truncate(path, 2 * 10**12)


def empty_replay(run="ellm"):
    """Let a checkpoint say that no row has been written, so that the run begins with the first."""
    change(run, ("learner", "replay"), None)


def change(run, keys, value):
    """Change a value of the last checkpoint, the only one then."""
    state = load_checkpoint(Path(run, LAST))
    *before, last = keys
    inner = state
    for key in before:
        inner = inner[key]
    inner[last] = value(inner[last]) if callable(value) else value
    save_checkpoint(Path(run, LAST), state)
    Path(run, PREVIOUS).unlink(missing_ok=True)


def describe(changes, name="run.json", run="ppo"):
    path = Path(run, name)
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


REPLAY = "ellm/replay/env0000_000000000000.rows"
PLACES = [
    *itertools.product(["ellm"], [REPLAY], [link, endless, os.mkfifo, second_name]),
    *itertools.product(["dqn"], ["dqn/replay/rows_*"], [link, endless, os.mkfifo, hollow]),
    *itertools.product(["ppo"], ["ppo/metrics.csv"], [link, os.mkfifo, second_name]),
    *itertools.product(["ppo"], ["ppo/lock"], [link, second_name, os.mkfifo]),
    *itertools.product(["ppo"], ["ppo/run.json", f"ppo/{LAST}"], [link, endless, os.mkfifo]),
    ("ellm", "ellm/replay", link),
    ("ellm", "ellm/replay.rank1/env0000_000000000000.rows", link),
    ("ppo", "ppo/a/b/c", link),
    ("ppo", "ppo/wandb/latest-run", link),
    ("ppo", "ppo/wandb", link),
]


@pytest.mark.parametrize("row", PLACES, ids=lambda row: f"{row[1]} {row[2].__name__}")
def test_a_run_goes_on_in_its_own_files_alone(row, received, capsys):
    run, path, make = row
    if run == "ellm":
        empty_replay()
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    put(path, make)
    refused(capsys, "main", ["--resume", run], path.split("*")[0])
    assert set(Path("precious").read_text().split()) == {"precious"}


@pytest.mark.parametrize("name", ["metrics.csv", "config.json"])
@pytest.mark.parametrize("make", [link, endless, os.mkfifo])
def test_no_reader_of_runs_follows_a_link_or_waits(name, make, received, capsys):
    put(f"ppo/{name}", make)
    (line,) = refused(capsys, "plot", ["ppo"])
    assert line.startswith("ppo")


def test_what_is_opened_is_asked_and_not_what_was_there_before(received, capsys, monkeypatch):
    """Somebody puts a link in the place of a file when it has been looked at."""
    for module in ("utils.run_folder", "trainers.checkpoint"):
        monkeypatch.setattr(f"{module}.check_plain", lambda *_, **__: None)
    empty_replay()
    put(REPLAY, link)
    assert main_program.main(["--resume", "ellm"]) == 2
    assert f"{REPLAY}: a link" in capsys.readouterr().err
    assert set(Path("precious").read_text().split()) == {"precious"}


def test_links_that_wandb_makes_to_its_own_files_stay(received):
    Path("ppo/wandb/run-1/logs").mkdir(parents=True)
    Path("ppo/wandb/run-1/logs/debug.log").touch()
    Path("ppo/wandb/latest-run").symlink_to("run-1")
    Path("ppo/wandb/debug.log").symlink_to("run-1/logs/debug.log")
    assert main_program.main(["--resume", "ppo"]) == 0


def nested(depth):
    value = {"a": 1}
    for _ in range(depth):
        value = {"a": value, "b": value}
    return value


def short_files(saved):
    read = lambda name: Path("ellm/replay", name).read_bytes()[:10]  # noqa: E731
    return {name: (10, hashlib.sha256(read(name)).hexdigest()) for name in saved}


def added(number):
    return lambda value: value + number


ENV, COUNTS = ("collector", "env"), ("learner", "counts")
CONTRADICTIONS = [
    ("ppo", ("env_steps",), added(2)),
    ("ppo", ("collector", "env_steps"), 0),
    *(("ppo", ("collector", "n_episodes"), number) for number in (-1, 1, 10**6, 10**400)),
    ("ppo", ("collector", "episodes"), lambda saved: saved[1:]),
    *(
        ("ppo", ("collector", "episodes", 0), episode)
        for episode in (
            *((1.0, 5, "yes"), (1.0, -5, None), (1.0, 0, None), (1.0, 10**6, None)),
            *((float("nan"), 5, None), (float("inf"), 5, None), ("1", 5, None), (1.0, 5, 1.0)),
        )
    ),
    ("ppo", ("collector", "episodes"), lambda saved: [(1e308, 1, None)] * len(saved)),
    ("ppo", (*ENV, "returns"), lambda saved: saved * float("nan")),
    ("ppo", (*ENV, "returns"), lambda saved: saved[:1]),
    ("ppo", (*ENV, "actions"), lambda saved: saved[:1].expand(30_000_000, 2)),
    ("ppo", (*ENV, "actions"), lambda saved: torch.zeros(100_001, 2, dtype=saved.dtype)),
    ("ppo", ("collector", "sentences"), nested(60)),
    ("ppo", ("agent",), nested(60)),
    ("ppo", ("learner", "n_epochs_done"), -1),
    ("ppo", ("learner", "n_epochs_done"), 10**12),
    ("ppo", ("run", "seconds"), -1.0),
    ("ppo", ("run", "best_return"), float("nan")),
    ("ppo", ("run", "n_evaluations"), -1),
    ("dqn", (*COUNTS, "n_updates"), -1),
    ("dqn", (*COUNTS, "n_owed"), 10**12),
    ("dqn", (*COUNTS, "n_explored"), added(2)),
    ("dqn", ("learner", "replay", "n_written"), added(1)),
    ("ellm", (*COUNTS, "n_seen"), added(2)),
    ("ellm", (*COUNTS, "first_reward_step"), 10**9),
    ("ellm", (*COUNTS, "paid"), float("inf")),
    ("ellm", ("learner", "replay", "logs", 0, "n_written"), added(100)),
    ("ellm", ("learner", "replay", "files"), short_files),
]


@pytest.mark.quick("ppo ('agent',)", "dqn ('learner', 'counts', 'n_owed')")
@pytest.mark.parametrize("row", CONTRADICTIONS, ids=lambda row: f"{row[0]} {row[1]}")
def test_a_checkpoint_that_contradicts_itself_is_refused(row, received, capsys):
    change(*row)
    refused(capsys, "main", ["--resume", row[0]], "checkpoint")


@pytest.mark.slow
@pytest.mark.parametrize("text", [ESCAPE, MANY], ids=["escapes", "many"])
@pytest.mark.parametrize("place", ["git_commit", "packages", "python", "hardware", "resumed"])
def test_what_run_json_says_is_shown_in_one_line(place, text, received, capfd):
    of_kind = {"packages": {"torch": text}, "hardware": {"cpu": text, "gpus": [text] * 9}}
    of_kind["resumed"] = [{"source_sha256": text, "git_commit": text, **of_kind}]
    describe({"source_sha256": "other", place: of_kind.get(place, text)})
    assert main_program.main(["--resume", "ppo"]) == 0
    shown = capfd.readouterr()
    (line,) = [each for each in shown.out.split("\n") if "not exactly" in each]
    assert line.isprintable()
    assert len(line) < 3000


@pytest.mark.parametrize(
    ("changes", "trust"),
    [
        ({"init_from": {"checkpoint": "x", "sha256": "y", "env_steps": "abc"}}, ["--trust"]),
        ({"init_from": {"checkpoint": 1, "sha256": "y", "env_steps": 1}}, ["--trust"]),
        ({"id": "\ud800", "init_from": {}}, []),
    ],
)
def test_what_run_json_cannot_say_is_refused(changes, trust, received, capsys):
    describe(changes)
    for name in (LAST, PREVIOUS):
        Path("ppo", name).unlink()
    assert refused(capsys, "main", ["--resume", "ppo", *trust])


def test_trust_is_not_asked_for_where_it_cannot_help(received, somebody_else, capsys):
    somebody_else()
    unknown = {"env": "RandomMaze-v9", "wandb": True}
    describe(unknown, "config.json")
    (line,) = refused(capsys, "main", ["--resume", "ppo"])
    assert "'RandomMaze-v9'" in line
    assert "--trust" not in line
    change("ppo", ("config",), lambda settings: settings | {"env": MANY})
    (line,) = refused(capsys, "eval", ["--ckpt-path", f"ppo/{LAST}"])
    assert line.startswith("env: ")
    assert len(line) < 3000


def test_a_pipe_that_nothing_is_written_to_is_left(received, capsys, monkeypatch):
    monkeypatch.setattr(files, "PATIENCE", 0.1)
    os.mkfifo("settings")
    writer = os.open("settings", os.O_RDWR)
    assert "settings" in refused(capsys, "main", ["--config", "settings"])[0]
    os.write(writer, b'{"gamma": ')
    assert "settings" in refused(capsys, "main", ["--config", "settings"])[0]
    os.close(writer)


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
def test_any_generated_change_of_a_file_is_told_in_one_line(run, theirs, request):
    """Whatever is changed, a run goes on or is refused, and writes into its own folder alone."""
    n_examples = request.config.getoption("--examples")
    files = [each for each in sorted(theirs.glob(f"{run}/**/*")) if each.is_file()]
    paths = [str(each.relative_to(theirs)) for each in files if each.stat().st_size]

    @examples(
        max_examples=n_examples or 15,
        deadline=None,
        database=None,
        derandomize=n_examples is None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(paths), st.sampled_from([cut, flipped]), st.floats(0, 1))
    def one(path, how, share):
        with tempfile.TemporaryDirectory() as folder:
            place = Path(shutil.copytree(theirs, Path(folder, "place")))
            how(place / path, share)
            with contextlib.chdir(place):
                before = {path: each for path, each in tree().items() if not path.startswith(run)}
                ended("main", ["--resume", run])
                after = {path: each for path, each in tree().items() if not path.startswith(run)}
            assert before == after

    one()
