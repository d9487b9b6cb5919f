"""Bad inputs through the command lines: one line, status 2, nothing written, nothing run."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

import main as main_program
from runs.folder import check_run_id
from settings import all_settings, load_config
from tests.bad_inputs import tables
from tests.bad_inputs.harness import refused, settings
from tests.bad_inputs.spoiling import BYTES, Change, Trial, places_in, read
from trainers.checkpoint import load_checkpoint
from utils.errors import UserError

property_test = examples(max_examples=100, deadline=None, database=None, derandomize=True)
SETTINGS = all_settings()


def not_refused(capsys, cases):
    """Return which of the cases are not refused as they should be, and how."""
    found = {}
    for program, command in cases:
        try:
            refused(capsys, program, command)
        except BaseException as error:
            found[f"{program} {str(command[-3:])[:200]}"] = f"{type(error).__name__}: {error}"[:300]
    return found


@pytest.mark.parametrize("program", dict.fromkeys(row[0] for row in tables.COMMAND_LINES))
def test_every_bad_word_is_refused(program, in_gallery, capsys):
    cases = [
        (program, [*good, f"{option}{value}"])
        for name, good, option, values in tables.COMMAND_LINES
        for value in values
        if name == program
    ]
    assert not_refused(capsys, cases) == {}


def test_settings_that_contradict_one_another_are_refused(in_gallery, capsys):
    cases = [
        ("main", settings(**(base | dict(word.split("=", 1) for word in change.split()))))
        for base, *changes in tables.CONTRADICTIONS
        for change in changes
    ]
    assert not_refused(capsys, cases) == {}


def wrong_values(declaration):
    """Return texts that are no value of a setting."""
    kinds, facts = declaration.kinds, declaration.metadata
    is_optional = type(None) in kinds
    more = ("nul", "None", "NULL") if is_optional else ("null",)
    if int in kinds or float in kinds:
        fractions = () if float in kinds else ("1.5", "0.999999")
        beyond = str(facts["low"] - 1), str(2 * facts["high"] + 1)
        return (*tables.NO_NUMBERS, *more, *beyond, *fractions)
    if bool in kinds:
        return (*tables.NOT_TRUE_OR_FALSE, *more)
    if not facts["choices"]:
        return ("",)
    return [text for text in tables.NO_CHOICES if not (is_optional and text == "null")]


@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_no_value_of_a_setting_is_refused_in_one_line(name):
    for text in wrong_values(SETTINGS[name]):
        with pytest.raises(UserError) as refusal:
            load_config(overrides=[f"{name}={text}"])
        assert len(refusal.value.lines) == 1, text


ROWS: list = [
    (command, path, how, tuple(int(key) if key.isdigit() else key for key in keys.split()))
    for command, path, keys, *hows in tables.VALUES
    for how in hows
]
ROWS += [
    (command, path, how, 500 if how in BYTES else None)
    for command, path, *hows in tables.WHOLES
    for how in hows
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0][0]} {row[1]} {row[3]} {row[2]}")
def test_every_spoiled_file_is_refused(row, gallery):
    command, path, how, where = row
    if isinstance(where, tuple):
        assert where in set(places_in(read(gallery / path))), "there is nothing to spoil"
    outcome = Trial(command, [Change(path, how, where)]).run(gallery)
    assert outcome.complaints() == [], outcome.err
    assert outcome.status in (1, 2), outcome.out
    if how in ("locked", "read-only", "/proc/self/mem"):
        # What lies in a folder that may not be entered cannot be told from what is not there.
        told = ("Permission denied", "no permission", "Input/output error", path)
        assert any(words in outcome.err for words in told), outcome.err


def test_an_episode_that_the_ring_cannot_hold_ends_the_run_in_one_line(in_empty_folder, capsys):
    assert main_program.main(settings(**tables.FROM_REPLAY, replay_capacity=3)) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("replay_capacity: an episode of 5 steps takes 6 rows")


def test_mistakes_in_different_places_are_all_shown(in_empty_folder, capsys):
    command = settings(gamma=2, n_envs="many", learnin_rate=1)
    assert len(refused(capsys, "main", command, n_lines=3)) == 3
    lines = refused(capsys, "main", [*settings(env="x\ny", model="GTP"), "--run-id=.."], 3)
    assert [line.split(":")[0] for line in lines] == ["env", "model", "--run-id '..'"]


numbers = st.integers() | st.floats() | st.sampled_from([10**30, -(10**400), 2**31, 2**63])
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@property_test
@given(name=st.sampled_from(sorted(SETTINGS)), value=values)
def test_any_value_of_a_setting_is_taken_as_its_type_or_refused(name, value, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps({name: value}))
    try:
        taken = getattr(load_config(path), name)
    except UserError:
        return
    assert taken == value
    bounds = SETTINGS[name].metadata
    if isinstance(taken, int | float) and not isinstance(taken, bool):
        assert bounds["low"] <= taken <= bounds["high"]


@property_test
@given(content=st.binary(max_size=200))
def test_any_bytes_as_settings_or_a_checkpoint_are_refused(content, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "any.pt"
    path.write_bytes(content)
    with pytest.raises(UserError):
        load_checkpoint(path)
    try:
        load_config(path)
    except UserError:
        return
    assert json.loads(content) == {}


@property_test
@given(name=st.text(max_size=200))
def test_any_run_id_is_one_plain_name_or_refused(name):
    try:
        check_run_id(load_config(), name)
    except UserError:
        return
    assert Path(name).name == name
    assert name.isascii()
    assert name.isprintable()
    assert name[0] not in ".-"


def test_every_number_has_bounds():
    for each in SETTINGS.values():
        if {int, float} & set(each.kinds):
            assert each.metadata["low"] is not None
            assert each.metadata["high"] is not None


def test_a_setting_beyond_the_interpreters_depth_is_refused():
    assert main_program.main(["--var", "n_envs=" + "[" * 10**6]) == 2
