"""Bad inputs through the command lines: one line, status 2, nothing written, nothing run."""

import io
import json
import os
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import main as main_program
from settings import load_config
from tests.bad_inputs import tables
from tests.bad_inputs.harness import PROGRAMS, refused
from tests.bad_inputs.harness import settings as command_line

property_test = settings(max_examples=100, deadline=None, database=None, derandomize=True)


def below(folder, *skipped):
    names = (path.name for path in sorted(Path(folder).iterdir()))
    return [name for name in names if name not in skipped]


def language_model_names():
    return [name for name in below("models", "good") if "vocabulary" not in name]


def vocabulary_names():
    return [name for name in below("models", "good") if "vocabulary" in name or "config" in name]


GROUPS = {
    "main": ("main", tables.main_cases),
    "settings": ("main", tables.settings_cases),
    "contradictions": ("main", tables.contradiction_cases),
    "models": (
        "main",
        lambda: tables.model_cases(language_model_names(), below("embeddings")),
    ),
    "environments": ("main", tables.environment_cases),
    "eval": ("eval", lambda: tables.eval_cases(below("checkpoints"))),
    "prepare": ("prepare", lambda: tables.prepare_cases(vocabulary_names())),
    "plot": ("plot", lambda: tables.plot_cases(below("runs", "good"))),
    "sweep": ("sweep", tables.sweep_cases),
    "analysis": ("analysis", lambda: tables.analysis_cases(below("checkpoints"))),
}


def failures(capsys, program, cases):
    """Return which of the cases are not refused as they should be, and how."""
    found = {}
    for name, command in cases.items():
        try:
            refused(capsys, program, command)
        except BaseException as error:
            found[name] = f"{type(error).__name__}: {str(error)[:300]}"
    return found


@pytest.mark.parametrize("group", GROUPS)
def test_every_bad_input_is_refused(group, workshop, capsys):
    program, cases = GROUPS[group]
    assert len(cases()) >= 30
    assert failures(capsys, program, cases()) == {}


def test_an_episode_that_the_ring_cannot_hold_ends_the_run_in_one_line(in_empty_folder, capsys):
    command = command_line(**tables.FROM_REPLAY, replay_capacity=3)
    assert main_program.main(command) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("replay_capacity: an episode of 5 steps takes 6 rows")


def test_the_inputs_are_bad_for_the_one_thing_they_name(workshop, capsys):
    good = {
        "main": ["--config", "good.json", "--print-config"],
        "eval": ["--ckpt-path", "experiments/CNN-PPO/RandomMaze-v0/good", "--n-episodes=1"],
        "plot": ["runs/good", "--output=good.png"],
    }
    maze = ["--ckpt-path", "experiments/CNN/TMazePassive-v0/maze", "--n-episodes=1"]
    assert PROGRAMS["eval"].main([*maze, "--var=length=3"]) == 0, capsys.readouterr().err
    Path("good.json").write_text('{"gamma": 0.5}')
    for program, command in good.items():
        assert PROGRAMS[program].main(command) == 0, capsys.readouterr().err


def test_mistakes_in_different_places_are_all_shown(workshop, capsys):
    command = command_line(gamma=2, n_envs="many", learnin_rate=1, env="x\ny")
    assert len(refused(capsys, "main", command[:3], n_lines=3)) == 3
    lines = refused(capsys, "main", [*command_line(env="x\ny", model="GTP"), "--run-id=.."], 3)
    assert [line.split(":")[0] for line in lines] == ["env", "model", "--run-id '..'"]


def run(program, command):
    """Run a program outside of pytest's own capture; return status, stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = PROGRAMS[program].main(command)
    return status, out.getvalue(), err.getvalue()


def assert_taken_or_refused(program, command):
    """Return whether the input was taken; if not, demand one line or more and nothing else."""
    status, out, err = run(program, command)
    assert status in (0, 2)
    if status == 2:
        assert out == ""
        assert err.removesuffix("\n")
        assert all(line.isprintable() for line in err.removesuffix("\n").split("\n"))
    return status == 0


numbers = st.integers() | st.floats() | st.sampled_from([10**30, -(10**400), 2**31, 2**63])
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@property_test
@given(name=st.sampled_from(sorted(tables.SETTINGS)), value=values)
def test_any_value_of_a_setting_is_taken_as_its_type_or_refused(name, value, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps({name: value}))
    if assert_taken_or_refused("main", ["--config", str(path), "--print-config"]):
        taken = getattr(load_config(path), name)
        assert taken == value
        bounds = tables.SETTINGS[name].metadata
        if isinstance(taken, int | float) and not isinstance(taken, bool):
            assert bounds["low"] <= taken <= bounds["high"]


@property_test
@given(name=st.sampled_from(sorted(tables.SETTINGS)) | st.text(), text=st.text())
def test_any_text_of_a_setting_is_taken_or_refused(name, text):
    taken = assert_taken_or_refused("main", [f"--var={name}={text}", "--print-config"])
    assert not taken or name.partition("=")[0] in tables.SETTINGS


@property_test
@given(content=st.binary(max_size=200))
def test_any_bytes_as_settings_are_refused(content, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "bytes.json"
    path.write_bytes(content)
    taken = assert_taken_or_refused("main", ["--config", str(path), "--print-config"])
    assert not taken or json.loads(content) == {}


@property_test
@given(name=st.text(max_size=200))
def test_any_run_id_is_one_plain_name_or_refused(name):
    status, out, err = run("main", [f"--run-id={name}", "--var=env=Pong"])
    assert (status, out) == (2, "")
    is_refused = err.count("\n") == 2
    is_plain = Path(name).name == name and name.isascii() and name.isprintable()
    assert is_refused or (is_plain and name[0] not in ".-")


@property_test
@given(content=st.binary(max_size=200))
def test_any_bytes_as_a_checkpoint_are_refused(content, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "any.pt"
    path.write_bytes(content)
    assert not assert_taken_or_refused("eval", ["--ckpt-path", str(path)])


def test_every_number_has_bounds():
    for each in tables.SETTINGS.values():
        if {int, float} & set(each.kinds):
            assert each.metadata["low"] is not None
            assert each.metadata["high"] is not None


@pytest.fixture
def unprivileged():
    """Take root's rights away where the tests run as root; packages may then be out of reach."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    yield
    os.seteuid(0)


LOCKED = {
    "settings": ("main", ["--config", "locked/file"]),
    "settings in a locked folder": ("main", ["--config", "locked/folder/file"]),
    "checkpoint": ("eval", ["--ckpt-path", "locked/file"]),
    "checkpoint in a locked folder": ("eval", ["--ckpt-path", "locked/folder/file"]),
    "checkpoint to write beside": ("eval", ["--ckpt-path", "locked/checkpoint.pt"]),
    "page to write beside": ("eval", ["--ckpt-path", "locked/checkpoint.pt", "--report"]),
    "pictures": (
        "main",
        command_line(model="CNN", env="ContinuousRecognition-v0", stimuli="locked/folder"),
    ),
    "language model": (
        "main",
        command_line(env="RandomMaze-v0", language_model="locked/folder/file"),
    ),
    "data folder": ("prepare", ["--device=cpu", "--data-folder=locked/folder/more"]),
    "data folder to write in": ("prepare", ["--device=cpu", "--data-folder=locked"]),
    "run": ("plot", ["locked/folder"]),
    "output": ("plot", ["locked", "--output=locked/x.png"]),
    "experiments": ("main", command_line(**tables.TINY_RUN)),
}


@pytest.mark.parametrize("name", LOCKED)
def test_missing_permissions_are_refused(name, workshop, capsys, request):
    """The working directory itself cannot be written into either."""
    locked = workshop / "locked"
    if not locked.exists():
        (locked / "folder").mkdir(parents=True)
        (locked / "file").write_text("{}")
        good = workshop / "experiments/CNN-PPO/RandomMaze-v0/good/ckpt_last.pt"
        (locked / "checkpoint.pt").write_bytes(good.read_bytes())
        (locked / "file").chmod(0)
        (locked / "folder").chmod(0)
        locked.chmod(0o555)
    mode = workshop.stat().st_mode
    workshop.chmod(0o555)
    experiments = workshop / "experiments"
    experiments.rename(workshop / "hidden") if name == "experiments" else None
    request.getfixturevalue("unprivileged")
    program, command = LOCKED[name]
    try:
        (line,) = refused(capsys, program, command)
    finally:
        os.seteuid(os.getuid())
        workshop.chmod(mode)
        if name == "experiments":
            (workshop / "hidden").rename(experiments)
    # What lies in a folder that may not be entered cannot be told from what is not there.
    told = ("Permission denied", "no permission", "locked/folder/file")
    assert any(words in line for words in told), line


def test_a_setting_beyond_the_interpreters_depth_is_refused():
    assert main_program.main(["--var", "n_envs=" + "[" * 10**6]) == 2
