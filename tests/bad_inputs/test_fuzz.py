"""A few hostile inputs of every kind, the same in every run; `--examples 1000` for other ones."""

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings

from tests.bad_inputs import forked, spoiling
from tests.bad_inputs.forked import Outcome, run_forked
from tests.bad_inputs.gallery import EPISODES, GOOD, HELM, XL, build_gallery, run_folder
from tests.bad_inputs.harness import PROGRAMS
from tests.bad_inputs.harness import settings as command_line
from tests.bad_inputs.spoiling import (
    BYTES,
    CHANGES,
    PLACES,
    OtherBytes,
    OtherFile,
    OtherPlace,
    places_in,
    read,
    replaced,
)
from tests.bad_inputs.trials import KINDS, Trial
from tests.bad_inputs.workshop import TRACE

FEW = {
    "command lines": 12,
    "setting values": 8,
    "settings files": 8,
    "run folders": 5,
    "checkpoints": 10,
    "episodes": 3,
    "language models": 6,
    "embeddings": 6,
    "pictures": 3,
}


@pytest.fixture(scope="session")
def gallery(tmp_path_factory):
    return build_gallery(tmp_path_factory.mktemp("good") / "gallery")


@pytest.fixture
def as_program(monkeypatch):
    """Let a function be the program of the name "function"."""
    return lambda function: monkeypatch.setitem(
        PROGRAMS, "function", SimpleNamespace(main=function)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_no_program_fails_on_what_is_generated(kind, gallery, request):
    """Collect what programs did wrong, each with the shortest trial that shows it."""
    n_examples, found = request.config.getoption("--examples"), {}

    @settings(
        max_examples=n_examples or FEW[kind],
        deadline=None,
        database=None,
        derandomize=n_examples is None,
        phases=[Phase.generate],  # to shrink what hangs would take very long
        suppress_health_check=list(HealthCheck),
    )
    @given(trial=KINDS[kind](gallery))
    def one(trial):
        outcome = trial.run(gallery)
        for complaint in outcome.complaints():
            shown = f"{trial}\n{outcome.err}"
            found[complaint] = min(shown, found.get(complaint, shown), key=len)

    one()
    assert not found, "\n\n".join(f"{complaint}\n{shown}" for complaint, shown in found.items())


HELM_LAST = f"{run_folder('HELM', 'unfinished')}/ckpt_last.pt"
HELM_BEST = f"{run_folder('HELM', 'good')}/ckpt_best.pt"
RESUMED = ("main", ["--resume", run_folder("HELM", "unfinished")])
PLAYED = ("eval", ["--ckpt-path", HELM_BEST, "--n-episodes=1"])
ANALYSED = ("analysis", ["layers", HELM_BEST, "--n-episodes=1"])
PARAMETER = ("learner", "optimizer", "param_groups", 0, "params", 4)
WEIGHT = ("agent", "heads.actor.0.weight")
FOUND = {
    "an optimiser that would write beyond a parameter": (*RESUMED, PARAMETER, "0"),
    "steps of an optimiser": (*RESUMED, ("learner", "optimizer", "state", 0, "step"), "a megabyte"),
    "a rollout of other steps": (
        *RESUMED,
        ("learner", "collected", "rollout", "n_steps"),
        "10**30",
    ),
    "a rollout of text": (
        *RESUMED,
        ("learner", "collected", "rollout", "n_steps"),
        "text with signs",
    ),
    "vast values": (*RESUMED, ("learner", "collected", "rollout", "values"), "vast"),
    "another context": (*RESUMED, ("learner", "collected", "rollout", "context"), "without a row"),
    "a stream of random numbers": (*RESUMED, ("own", "random", "torch"), "-1"),
    "a stream's position": (*RESUMED, ("own", "random", "numpy", 2), "-1"),
    "an episode's seed": (*RESUMED, ("collector", "env", "running", "seed"), "-1"),
    "actions beyond all": (*RESUMED, ("collector", "env", "actions"), "very large"),
    "steps of an episode": (*RESUMED, ("collector", "env", "lengths"), "very large"),
    "rewards": (*RESUMED, ("collector", "scaling", "discounted"), "true"),
    "episodes": (*RESUMED, ("collector", "episodes"), "text"),
    "a memory": (*RESUMED, ("collector", "memory", "keys"), "its first"),
    "a count of episodes": (*RESUMED, ("collector", "n_episodes"), "in a list"),
    "seconds": (*RESUMED, ("run", "seconds"), "text"),
    "no agent": (*RESUMED, ("agent",), "in a list"),
    "weights too large to act with": (*PLAYED, WEIGHT, "very large"),
    "weights too large to look at": (*ANALYSED, WEIGHT, "very large"),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_once_stays_mended(name, gallery):
    program, command, where, how = FOUND[name]
    path = HELM_LAST if program == "main" else HELM_BEST
    places = set(places_in(read(gallery / path)))
    assert where in places, "there is nothing to spoil"
    trial = Trial(program, command, [spoiling.OtherValue(path, where, how)])
    outcome = trial.run(gallery)
    assert outcome.complaints() == [], outcome.err
    assert outcome.status in (1, 2), outcome.out


def test_a_file_that_cannot_be_read_as_a_models_settings_is_named(gallery):
    change = OtherPlace(f"{XL}/config.json", "/proc/self/mem")
    outcome = Trial("main", command_line(**HELM), [change]).run(gallery)
    assert (outcome.complaints(), outcome.status) == ([], 2), outcome.err
    assert f"{XL}/config.json: cannot be read: Input/output error" in outcome.err


@pytest.mark.parametrize("word", ["[" * 20_000, "--" + "x" * 20_000])
def test_a_very_long_word_is_not_shown_whole(word, gallery):
    outcome = Trial("analysis", ["words", EPISODES, word, "--no", word], []).run(gallery)
    assert (outcome.complaints(), outcome.status) == ([], 2)


def _fail(text):
    raise ValueError(text)


def _says(text, status=2):
    def program(words):
        os.write(2, text.encode())
        return status

    return program


def _writes(name, status=2):
    def program(words):
        Path(name).touch()
        return _says("no\n", status)(words)

    return program


@pytest.mark.parametrize(
    ("program", "complaint"),
    [
        (lambda words: 3, "ended with status 3"),
        (lambda words: _fail("nine"), "traceback: ValueError: nine"),
        (lambda words: os.abort(), "ended with status -6"),
        (_says(""), "refused in 1 lines, or in empty ones"),
        (_says("one\n\ntwo\n"), "refused in 3 lines, or in empty ones"),
        (_says("a\x1b[31m\n"), "refused in signs that do not print"),
        (_says("x" * 20_000), "refused in a line of 20000 signs"),
        (_says("a.py:1: UserWarning: old\n"), "refused with a warning"),
        (_writes("new"), "refused, but changed ['new']"),
        (_writes(TRACE, status=0), "ran code of a file"),
    ],
)
def test_what_no_program_may_do_is_complained_of(program, complaint, as_program, tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    as_program(program)
    assert complaint in " ".join(run_forked("function", [], place).complaints())


def test_a_program_that_hangs_is_killed_with_what_it_has_started(as_program, tmp_path, monkeypatch):
    (tmp_path / "place").mkdir()
    monkeypatch.setattr(forked, "SECONDS", 0.2)
    as_program(lambda words: [os.fork(), time.sleep(600)])
    outcome = run_forked("function", [], tmp_path / "place")
    assert outcome.status is None
    assert len(outcome.complaints()) == 1


def test_a_refusal_in_one_line_is_no_reason_to_complain(as_program, tmp_path):
    (tmp_path / "place").mkdir()
    as_program(_says("gamma: 2 is out of range\n"))
    assert run_forked("function", [], tmp_path / "place") == Outcome(
        2, "", "gamma: 2 is out of range\n", []
    )


def test_permissions_hold_for_root_as_well(as_program, tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    (place / "file").write_text("secret")
    (place / "file").chmod(0)
    as_program(lambda words: print(Path("file").read_text()))
    outcome = run_forked("function", [], place)
    assert "PermissionError" in outcome.err
    assert "secret" not in outcome.out


@pytest.mark.parametrize("how", sorted(set(BYTES) - {"LF", "CR", "CRLF"}))
def test_every_change_of_bytes_changes_them(how):
    content = bytes(range(1, 201))
    assert BYTES[how](content, 50) != content


@pytest.mark.parametrize("how", PLACES)
def test_every_change_of_a_place_changes_it(how, tmp_path):
    file = tmp_path / "file"
    file.write_text("good")
    before = forked.tree(tmp_path)
    OtherPlace("file", how).apply(tmp_path)
    assert forked.tree(tmp_path) != before


@pytest.mark.parametrize("how", sorted(CHANGES))
def test_every_change_of_a_value_changes_tensors_or_numbers(how):
    tensor = torch.arange(6.0).view(2, 3)
    state = {"agent": {"bias": tensor}, "counts": [1, 2]}
    places = [place for place in places_in(state) if place]
    assert places == [("agent",), ("agent", "bias"), ("counts",), ("counts", 0), ("counts", 1)]
    if how == "objects":
        assert replaced(state, ("counts",), how)["counts"].dtype == object
        return
    changed = replaced(state, ("agent", "bias"), how)
    assert state["agent"]["bias"] is tensor
    new = changed["agent"].get("bias")
    same_kind = isinstance(new, torch.Tensor) and type(new) is type(tensor)
    same_kind = same_kind and new.layout == tensor.layout and new.device == tensor.device
    same_kind = same_kind and new.dtype == tensor.dtype and new.shape == tensor.shape
    assert not same_kind or not torch.equal(new, tensor)


def test_a_changed_value_is_what_a_program_reads(gallery, tmp_path):
    path = f"{run_folder('HELM', 'good')}/ckpt_best.pt"
    target = tmp_path / path
    target.parent.mkdir(parents=True)
    target.write_bytes((gallery / path).read_bytes())
    spoiling.OtherValue(path, ("config", "gamma"), "text").apply(tmp_path)
    assert read(target)["config"]["gamma"] == "text"


@pytest.mark.parametrize("how", ["a pipe", "/dev/zero", "a folder", "a link to itself"])
def test_what_an_earlier_change_has_put_in_a_files_place_is_not_read(how, tmp_path):
    (tmp_path / GOOD).write_text("{}")
    OtherPlace(GOOD, how).apply(tmp_path)
    before = forked.tree(tmp_path)
    OtherBytes(GOOD, "cut", 500).apply(tmp_path)
    OtherFile("other", GOOD).apply(tmp_path)
    spoiling.OtherValue(GOOD, (), "None").apply(tmp_path)
    assert forked.tree(tmp_path) == before


def test_changes_of_what_an_earlier_change_has_taken_away_do_nothing(tmp_path):
    (tmp_path / GOOD).write_text("{}")
    for change in (
        OtherPlace(GOOD, "removed"),
        OtherPlace(GOOD, "a pipe"),
        OtherBytes(GOOD, "cut", 500),
        OtherFile("nowhere/x", GOOD),
        spoiling.OtherValue(GOOD, (), "None"),
    ):
        change.apply(tmp_path)
    assert list(tmp_path.iterdir()) == []
