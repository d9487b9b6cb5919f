"""A few hostile inputs of every kind, the same in every run; `--examples 1000` for other ones."""

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings

from tests.bad_inputs import forked, spoiling
from tests.bad_inputs.forked import run_forked
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
    "pretrained parts": 10,
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
PARAMETER = ("learner", "optimizer", 4, "exp_avg")
WEIGHT = ("agent", "heads.actor.0.weight")
FOUND = {
    "an optimiser that would write beyond a parameter": (*RESUMED, PARAMETER, "without a row"),
    "steps of an optimiser": (*RESUMED, ("learner", "optimizer", 0, "step"), "a megabyte"),
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


def _says(text, status=2):
    def program(words):
        os.write(2, text.encode())
        Path("new").touch() if status == 2 and "written" in text else None
        return status

    return program


@pytest.mark.parametrize(
    ("program", "complaint"),
    [
        (lambda words: 3, "ended with status 3"),
        (lambda words: int("nine"), "traceback: ValueError: invalid literal"),
        (lambda words: os.abort(), "ended with status -6"),
        (lambda words: Path(TRACE).write_text(""), "ran code of a file"),
        (lambda words: Path("locked").read_text(), "traceback: PermissionError"),
        (_says(""), "refused in 1 lines, or in empty ones"),
        (_says("one\n\ntwo\n"), "refused in 3 lines, or in empty ones"),
        (_says("a\x1b[31m\n"), "refused in signs that do not print"),
        (_says("x" * 20_000), "refused in a line of 20000 signs"),
        (_says("a.py:1: UserWarning: old\n"), "refused with a warning"),
        (_says("written\n"), "refused, but changed ['new']"),
        (_says("gamma: 2 is out of range\n"), ""),
    ],
)
def test_what_no_program_may_do_is_complained_of(program, complaint, as_program, tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    (place / "locked").touch()
    (place / "locked").chmod(0)
    as_program(program)
    complaints = run_forked("function", [], place).complaints()
    assert complaint in " ".join(complaints)
    assert complaint or not complaints


def test_a_program_that_hangs_is_killed_with_what_it_has_started(as_program, tmp_path, monkeypatch):
    (tmp_path / "place").mkdir()
    monkeypatch.setattr(forked, "SECONDS", 0.2)
    as_program(lambda words: [os.fork(), time.sleep(600)])
    outcome = run_forked("function", [], tmp_path / "place")
    assert outcome.status is None
    assert len(outcome.complaints()) == 1


def test_every_change_changes_something(tmp_path):
    content = bytes(range(1, 201))
    same = [how for how in BYTES if BYTES[how](content, 50) == content]
    assert set(same) <= {"LF", "CR", "CRLF"}
    for number, how in enumerate(PLACES):
        place = tmp_path / str(number)
        place.mkdir()
        (place / "file").write_text("good")
        before = forked.tree(place)
        OtherPlace("file", how).apply(place)
        assert forked.tree(place) != before, how


@pytest.mark.parametrize("how", sorted(set(CHANGES) - {"objects"}))
def test_every_change_of_a_value_changes_tensors(how):
    tensor = torch.arange(6.0).view(2, 3)
    state = {"agent": {"bias": tensor}, "counts": [1, 2]}
    assert list(places_in(state))[1:3] == [("agent",), ("agent", "bias")]
    new = replaced(state, ("agent", "bias"), how)["agent"].get("bias")
    assert state["agent"]["bias"] is tensor
    kinds = [
        (type(x), getattr(x, "layout", 0), getattr(x, "device", 0), getattr(x, "dtype", 0))
        for x in (tensor, new)
    ]
    assert kinds[0] != kinds[1] or not torch.equal(new, tensor)


def test_changes_of_what_an_earlier_change_has_taken_away_do_nothing(tmp_path):
    later = (
        OtherBytes(GOOD, "cut", 500),
        OtherFile("other", GOOD),
        OtherFile("nowhere/x", GOOD),
        spoiling.OtherValue(GOOD, (), "None"),
    )
    for how in ("a pipe", "/dev/zero", "a folder", "a link to itself", "removed"):
        place = tmp_path / how.replace("/", " ")
        place.mkdir()
        (place / GOOD).write_text("{}")
        OtherPlace(GOOD, how).apply(place)
        before = forked.tree(place)
        for change in later:
            change.apply(place)
        assert forked.tree(place) == before
