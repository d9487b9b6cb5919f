import dataclasses
import json
import os
import subprocess
from contextlib import suppress

import pytest

from utils.config import DEFAULT_FILE, Config, config_from_dict, describe_settings, load_config
from utils.errors import UserError


def settings_file(folder, **values):
    path = folder / "settings.json"
    path.write_text(json.dumps(values))
    return path


def test_the_default_is_complete_and_as_published():
    config = load_config()
    assert (config.env, config.model) == ("MiniGrid-KeyCorridorS3R1-v0", "HELM")
    assert (config.learning_rate, config.ent_coef, config.mem_len) == (1e-4, 0.05, 511)
    assert (config.n_envs, config.n_rollout_steps, config.n_batches) == (16, 128, 8)
    assert config.n_steps == 500_000
    assert set(json.loads(DEFAULT_FILE.read_text())) == {f.name for f in dataclasses.fields(Config)}


def test_the_command_line_wins_over_the_file_and_the_file_over_the_default(tmp_path):
    path = settings_file(tmp_path, learning_rate=0.5, ent_coef=0.25)
    config = load_config(path, ["learning_rate=0.125"])
    assert (config.learning_rate, config.ent_coef, config.gamma) == (0.125, 0.25, 0.99)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("adv_norm=false", False),
        ("adv_norm=true", True),
        ("clip_range_vf=null", None),
        ("clip_range_vf=0.2", 0.2),
        ("n_steps=2e6", 2_000_000),
        ("learning_rate=1", 1.0),
        ("normalize_reward=null", None),
        ("language_model=123", "123"),
        ("language_model=null", "null"),
        ("env=a=b", "a=b"),
    ],
)
def test_texts_are_read_by_the_fields_type(text, value):
    found = getattr(load_config(overrides=[text]), text.split("=")[0])
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("learnin_rate=1", "unknown key 'learnin_rate'. Did you mean 'learning_rate'?"),
        ("adv_norm=0", "adv_norm: 0 is not true or false"),
        ("adv_norm=False", 'adv_norm: "False" is not true or false'),
        ("n_steps=1.5", "n_steps: 1.5 is not a whole number"),
        ("n_steps=true", "n_steps: true is not a whole number"),
        ("n_steps=-1", "n_steps: -1 is out of range (1 to 1000000000000)"),
        ("n_steps=", 'n_steps: "" is not a whole number'),
        ("n_steps=[1]", "n_steps: [1] is not a whole number"),
        ("mem_len=0", "mem_len: 0 is out of range (1 to 16384)"),
        ("n_layer=two", 'n_layer: "two" is not a whole number or null'),
        ("gamma=1.5", "gamma: 1.5 is out of range (0 to 1)"),
        ("gamma=NaN", "gamma: NaN is not a number"),
        ("gamma=1e999", "gamma: Infinity is not a number"),
        ("ent_decay=liner", "'liner' is none of none, linear, linear_burn_in, exp."),
        ("model=", 'model: "" is not text'),
        ("gamma", "--var gamma: expected KEY=VALUE"),
    ],
)
def test_a_bad_value_gets_one_clear_line(text, line):
    with pytest.raises(UserError) as error:
        load_config(overrides=[text])
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_all_problems_are_shown_at_once(tmp_path):
    path = settings_file(tmp_path, gama=0.9, n_envs="many")
    with pytest.raises(UserError) as error:
        load_config(path, ["n_epochs=0"])
    lines = str(error.value).splitlines()
    assert len(lines) == 3
    assert lines[0] == f"{path}: unknown key 'gama'. Did you mean 'gamma'?"


def test_contradictions_are_found():
    with pytest.raises(UserError, match="16 x 128 = 2048 samples cannot be cut into 7"):
        load_config(overrides=["n_batches=7"])
    with pytest.raises(UserError, match=r"lr_decay_start: 0\.5 is not below lr_decay_end 0\.5"):
        load_config(overrides=["lr_decay=linear_burn_in", "lr_decay_start=0.5", "lr_decay_end=0.5"])


@pytest.mark.parametrize("text", ["{", "[]", "null", "3", "\x00"])
def test_a_file_that_is_no_json_object_is_refused(tmp_path, text):
    path = tmp_path / "settings.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"settings\.json: ") as error:
        load_config(path)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"nothing\.json: no such settings file"):
        load_config(tmp_path / "nothing.json")


def test_stored_settings_come_back_and_must_be_complete():
    config = load_config(overrides=["gamma=0.5"])
    stored = dataclasses.asdict(config)
    assert config_from_dict(stored, "checkpoint") == config
    del stored["gamma"]
    with pytest.raises(UserError, match="checkpoint: setting 'gamma' is missing"):
        config_from_dict(stored, "checkpoint")


def test_the_description_names_every_setting_with_its_default():
    text = describe_settings()
    for field in dataclasses.fields(Config):
        assert f"  {field.name} (" in text
        assert field.metadata["help"] in text
    assert "default 0.0001" in text


def test_a_run_from_before_a_setting_without_effect_can_still_be_read():
    values = dataclasses.asdict(load_config())
    del values["media_minutes"], values["wandb"]
    config = config_from_dict(values | {"wandb_project": "mine"}, "old.pt")
    assert (config.media_minutes, config.wandb_project) == (load_config().media_minutes, "mine")


@pytest.mark.parametrize("name", ["stimuli", "embeddings"])
def test_null_on_the_command_line_is_no_text_where_a_text_may_be_missing(name):
    assert getattr(load_config(overrides=[f"{name}=null"]), name) is None
    assert getattr(load_config(overrides=[f"{name}=./null"]), name) == "./null"
    assert load_config(overrides=["wandb_project=null"]).wandb_project == "null"


def test_a_pipe_gives_settings_and_keeps_nobody_waiting(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="a pipe that nobody writes to"):
        load_config(pipe)
    with subprocess.Popen(["sh", "-c", f"exec > {pipe}; sleep 0.3; echo '{{\"gamma\": 0.5}}'"]):
        while True:  # until the other end is open
            with suppress(UserError):
                assert load_config(pipe).gamma == 0.5
                break


def test_settings_without_end_are_refused():
    with pytest.raises(UserError, match="more than 16,777,216 bytes"):
        load_config("/dev/zero")


@pytest.mark.parametrize("name", ["stimuli", "language_model", "wandb_project"])
def test_a_name_that_is_no_unicode_is_refused(name, tmp_path):
    with pytest.raises(UserError, match="is not text in UTF-8"):
        load_config(overrides=[f"{name}=mod\udcffel"])
    (tmp_path / "mine.json").write_text(f'{{"{name}": "\\udcff"}}')
    with pytest.raises(UserError, match="is not text in UTF-8"):
        load_config(tmp_path / "mine.json")
    assert getattr(load_config(overrides=[f"{name}=modèl"]), name) == "modèl"
