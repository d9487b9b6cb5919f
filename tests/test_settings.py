import dataclasses
import json
import os
import pickle
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

import models
from models import agent_class, build_agent
from tests.agents import spaces
from tests.echo import EchoSettings
from trainers.build import LEARNERS
from trainers.ppo import PPO, PpoSettings
from utils.errors import UserError
from utils.given_settings import config_from_dict, default_settings, describe_settings, load_config
from utils.settings import Part, all_settings, composed_class, declared, setting


def settings_file(folder, **values):
    path = folder / "settings.json"
    path.write_text(json.dumps(values))
    return path


ROOT = Path(__file__).parent.parent


def test_config_json_shows_the_defaults():
    """Where it does not: python main.py --print-config > config.json."""
    shown = json.loads((ROOT / "config.json").read_text())
    assert shown == default_settings() == dataclasses.asdict(load_config())


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
        ("n_steps=1.5", "n_steps: 1.5 is not a whole number"),
        ("n_steps=-1", "n_steps: -1 is out of range (1 to 1000000000000)"),
        ("mem_len=0", "mem_len: 0 is out of range (1 to 16384)"),
        ("n_layer=two", 'n_layer: "two" is not a whole number or null'),
        ("gamma=1.5", "gamma: 1.5 is out of range (0 to 1)"),
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
    assert f"{path}: unknown key 'gama'. Did you mean 'gamma'?" in lines


def test_stored_settings_come_back_and_are_those_of_a_run():
    config = load_config(overrides=["gamma=0.5"])
    stored = dataclasses.asdict(config)
    assert config_from_dict(stored, "checkpoint") == config
    del stored["seed"]
    with pytest.raises(UserError, match="checkpoint: setting 'seed' is missing"):
        config_from_dict(stored, "checkpoint")


def test_the_help_lists_every_setting_once_under_the_part_that_reads_it():
    text = describe_settings("all")
    for name, each in all_settings().items():
        assert text.count(f"\n  {name} (") == 1
        assert each.metadata["help"] in text
    assert "default 0.0001" in text
    assert "\nthe run:\n  algorithm (" in text
    assert "\nHELM:\n  beta (" in text
    assert "\ntrained memory (read by LSTM, GRU, " in text
    assert "trained memory" in describe_settings().replace("\n", " ")
    assert "beta (" not in describe_settings("PPO")
    assert "\n  n_epochs (" in describe_settings("PPO")
    with pytest.raises(UserError, match=r"no such part\. Did you mean 'PPO'\?"):
        describe_settings("PPOO")


def test_a_run_from_before_a_setting_with_a_default_has_that():
    values = dataclasses.asdict(load_config(overrides=["model=Impala-PPO"]))
    for name in ("algorithm", "memory_width", "memory_layers", "memory_positions"):
        del values[name]
    config = config_from_dict(values, "old.pt")
    assert (config.algorithm, config.memory_width, config.memory_layers) == ("PPO", 256, 1)


@pytest.mark.parametrize(
    ("texts", "line"),
    [
        ("model=CNN-PPO topk=7", "--var topk=7: topk is read by SHELM, and this is CNN-PPO"),
        (
            "model=Impala-PPO mem_len=7",
            "mem_len is read by GPT, GTrXL, HELM, HELMv2 and SHELM, and this is Impala-PPO",
        ),
        ("model=CNN algorithm=DQN clip_range=0.1", "clip_range is read by PPO, and this is DQN"),
        (
            "model=Impala-PPO algorithm=DQN",
            "model: Impala-PPO is LSTM trained by PPO, and algorithm is DQN. Choose model=LSTM",
        ),
        (
            "env=RandomMaze-v0 recognition_stimuli=here",
            "recognition_stimuli is read by ContinuousRecognition-v0, and",
        ),
        ("model=CNN beta=100", "beta is read by HELM, and this is CNN"),  # its value anyway
    ],
)
def test_a_setting_that_nothing_chosen_reads_is_refused_with_who_reads_it(texts, line):
    with pytest.raises(UserError) as error:
        load_config(overrides=texts.split())
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_with_what_its_own_model_does_not_read_is_refused(tmp_path):
    path = settings_file(tmp_path, model="CNN-PPO", topk=2, n_envs=4, clip_encoder="RN50")
    with pytest.raises(UserError) as error:
        load_config(path)
    assert str(error.value).splitlines() == [
        f"{path}: topk is read by SHELM, and this is CNN-PPO",
        f"{path}: clip_encoder is read by HELMv2 and SHELM, and this is CNN-PPO",
    ]
    assert load_config(path, ["model=SHELM"]).topk == 2


def test_another_model_leaves_out_what_the_files_own_reads_and_says_so(tmp_path, caplog):
    path = settings_file(tmp_path, model="SHELM", topk=2, n_envs=4, clip_encoder="RN50")
    config = load_config(path, ["model=CNN-PPO"])
    assert (config.model, config.n_envs) == ("CNN-PPO", 4)
    assert caplog.messages == ["CNN-PPO does not read topk, clip_encoder of the file"]
    with pytest.raises(UserError, match="topk is read by SHELM, and this is CNN-PPO"):
        load_config(path, ["model=CNN-PPO", "topk=3"])


def test_a_file_with_every_setting_is_taken_for_any_model(tmp_path):
    path = settings_file(tmp_path, **dataclasses.asdict(load_config(overrides=["beta=7"])))
    config = load_config(path, ["model=CNN-PPO"])
    assert (config.model, config.beta) == ("CNN-PPO", 7)
    with pytest.raises(UserError, match="beta is read by HELM"):
        load_config(path, ["model=CNN-PPO", "beta=8"])


def test_sequences_need_no_equal_minibatches():
    for model in ("Impala-PPO", "LSTM", "GPT"):
        assert load_config(overrides=[f"model={model}", "n_batches=7"]).n_batches == 7


def test_the_checks_of_one_algorithm_do_not_run_for_another(tmp_path):
    path = settings_file(tmp_path, **dataclasses.asdict(load_config()) | {"n_batches": 7})
    assert load_config(path, ["model=CNN", "algorithm=DQN"]).n_batches == 7


def test_a_published_name_is_a_model_and_an_algorithm():
    for name, (model, algorithm) in models.PUBLISHED.items():
        assert agent_class(name) is agent_class(model)
        assert LEARNERS.find(algorithm) is PPO
        assert load_config(overrides=[f"model={name}"]).model == name


def test_a_memory_of_ones_own_brings_its_settings_along(monkeypatch):
    monkeypatch.setitem(models.AGENTS.places, "Echo", "tests.echo:MyAgent")
    config = load_config(overrides=["model=Echo", "echoes=4", "memory_width=8", "device=cpu"])
    assert build_agent(config, *spaces()).memory.echoes == 4
    assert load_config().echoes == 3
    assert "\nEcho:\n  echoes (a whole number, default 3)" in describe_settings("Echo")
    with pytest.raises(UserError, match="echoes is read by Echo, and this is HELM"):
        load_config(overrides=["echoes=4"])


@dataclasses.dataclass(frozen=True)
class Otherwise(Part):
    gamma: float = setting("discount per step", low=0, high=2, default=0.99)


def test_a_setting_of_two_parts_must_be_declared_alike():
    with pytest.raises(TypeError, match=r"'gamma' is declared by utils.settings"):
        declared([PpoSettings, Otherwise])


def test_settings_are_those_of_every_part_and_come_back_in_another_process():
    config = load_config(overrides=["gamma=0.5"])
    assert config.part(PpoSettings).gamma == 0.5
    assert pickle.loads(pickle.dumps(config)) == config
    assert {field.name for field in dataclasses.fields(composed_class())} == set(all_settings())
    with pytest.raises(TypeError, match="has no settings of EchoSettings"):
        config.part(EchoSettings)


def test_earlier_names_are_understood_and_told(tmp_path, caplog):
    path = settings_file(tmp_path, algorithm="NStepDQN", model="ELLM", missions=True)
    config = dataclasses.asdict(load_config(path, ["env=BabyAI-GoToRedBall-v0", "warmup_steps=7"]))
    assert (config["algorithm"], config["minigrid_missions"]) == ("EllmDQN", True)
    assert config["learning_starts"] == 7
    assert "--var warmup_steps=7: warmup_steps=7 is learning_starts=7 now" in caplog.messages
    del config["learning_starts"]
    stored = config_from_dict(config | {"warmup_steps": 9}, "a run")
    assert dataclasses.asdict(stored)["learning_starts"] == 9


@pytest.mark.parametrize("name", ["recognition_stimuli", "embeddings"])
def test_null_on_the_command_line_is_no_text_where_a_text_may_be_missing(name):
    reader = {"recognition_stimuli": "env=ContinuousRecognition-v0", "embeddings": "model=SHELM"}[
        name
    ]
    assert getattr(load_config(overrides=[reader, f"{name}=null"]), name) is None
    assert getattr(load_config(overrides=[reader, f"{name}=./null"]), name) == "./null"
    assert load_config(overrides=["wandb_project=null"]).wandb_project == "null"


def test_a_pipe_gives_settings_and_keeps_nobody_waiting(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="a pipe without a writer"):
        load_config(pipe)
    with subprocess.Popen(["sh", "-c", f"exec > {pipe}; sleep 0.3; echo '{{\"gamma\": 0.5}}'"]):
        while True:  # until the other end is open
            with suppress(UserError):
                assert load_config(pipe).gamma == 0.5
                break


def test_settings_without_end_are_refused(tmp_path):
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(2**40)  # nothing of it is on the disk
    with pytest.raises(UserError, match="more than 16,777,216 bytes"):
        load_config(tmp_path / "large.json")


@pytest.mark.slow
def test_of_a_hundred_thousand_unknown_keys_a_few_are_told(tmp_path):
    path = settings_file(tmp_path, **{f"learning_rat{n}": 1 for n in range(100_000)}, n_envs="many")
    with pytest.raises(UserError) as caught:
        load_config(path)
    assert caught.value.lines[0] == f'{path}: n_envs: "many" is not a whole number'
    assert "Did you mean 'learning_rate'?" in caught.value.lines[1]
    assert caught.value.lines[-1] == f"{path}: 99,990 more unknown keys"
    path.write_text(path.read_text()[:-1] + ', "learning_rat0": 2}')
    with pytest.raises(UserError, match="'learning_rat0' is given twice"):
        load_config(path)
