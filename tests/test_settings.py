import dataclasses
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from envs import crafter
from models import AGENTS, agent_class
from models.language.files import EMBEDDED, HUB_NAMES
from models.memories.gpt import POSITIONS
from rewards import CURIOSITIES
from rewards.suggesters import SUGGESTERS
from tests.bad_inputs.harness import in_one_line
from tests.echo import EchoSettings
from trainers import ellm_dqn
from trainers.parts import LEARNERS
from trainers.settings import PpoSettings
from utils import settings
from utils.errors import UserError
from utils.given_settings import (
    ELSEWHERE,
    config_from_dict,
    default_settings,
    describe_settings,
    load_config,
    options_as_settings,
    with_env_settings,
)


def settings_file(folder, **values):
    path = folder / "settings.json"
    path.write_text(json.dumps(values))
    return path


ROOT = Path(__file__).parent.parent


def test_config_json_shows_the_defaults():
    """Where it does not: python main.py --print-config > config.json."""
    shown = json.loads((ROOT / "config.json").read_text())
    assert shown == default_settings() == load_config().as_dict()


def test_the_command_line_wins_over_the_file_and_the_file_over_the_default(tmp_path):
    path = settings_file(tmp_path, learning_rate=0.5, ent_coef=0.25)
    config = load_config(path, ["learning_rate=0.125"])
    assert (config.learning_rate, config.ent_coef, config.gamma) == (0.125, 0.25, 0.99)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("adv_norm=false", False), ("clip_range_vf=null", None), ("n_steps=2e6", 2_000_000)),
        *(("language_model=123", "123"), ("language_model=null", "null"), ("env=a=b", "a=b")),
    ],
)
def test_texts_are_read_by_the_fields_type(text, value):
    found = getattr(load_config(overrides=[text]), text.split("=")[0])
    assert (found, type(found)) == (value, type(value))


plain_text = st.text(max_size=30).filter(lambda text: not re.search(r"/|\.\.|~|\0", text))
ODD = ("", "x" * 300, "a\nb", "\ud800", "1e999", "nan", "null", "9" * 5000, "[" * 9999, "{}", "１")
odd_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | plain_text | st.sampled_from(ODD),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain_text, inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(settings.all_settings())), odd_values)
@examples(max_examples=60)
def test_a_value_is_taken_as_its_settings_type_or_refused_by_its_name(name, value):
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(json.dumps({name: value}))
        file.flush()
        for given in ({"file": file.name}, {"overrides": [f"{name}={value}"]}):
            told = []
            try:
                found = getattr(load_config(**given), name)
            except UserError as error:
                told = error.lines
            # A file with a number of hundreds of digits is refused before its names are read.
            assert all(name in line or "digits" in line for line in told)
            if told:
                continue
            declaration = settings.all_settings()[name]
            assert type(found) in declaration.kinds
            if type(found) in (int, float):
                assert declaration.metadata["low"] <= found <= declaration.metadata["high"]


def test_numbers_beyond_the_bounds_of_a_setting_are_refused():
    for name, each in settings.all_settings().items():
        if {int, float} & set(each.kinds):
            for beyond in (each.metadata["low"] - 1, 2 * each.metadata["high"] + 1):
                with pytest.raises(UserError, match=f"{name}: .*out of range"):
                    load_config(overrides=[f"{name}={beyond}"])


def test_stored_settings_come_back_as_those_of_a_run_also_where_later_ones_are_missing():
    config = load_config(overrides=["gamma=0.5"])
    assert config.part(PpoSettings).gamma == 0.5
    assert config.part(PpoSettings).n_epochs == PpoSettings().n_epochs
    with pytest.raises(AttributeError):
        config.gamma = 0.25  # a setting stays as it is
    assert pickle.loads(pickle.dumps(config)) == config  # in another process
    stored = config.as_dict()
    assert config_from_dict(stored, "checkpoint") == config
    for later in ("algorithm", "memory_width", "memory_positions"):
        del stored[later]
    assert config_from_dict(stored, "checkpoint") == config
    del stored["seed"]
    with pytest.raises(UserError, match="checkpoint: setting 'seed' is missing"):
        config_from_dict(stored, "checkpoint")
    with pytest.raises(TypeError, match="no settings of EchoSettings: echoes"):
        config.part(EchoSettings)


def test_the_help_lists_every_setting_once_under_the_part_that_reads_it():
    text = describe_settings("all")
    for name, each in settings.all_settings().items():
        assert text.count(f"\n  {name} (") == 1
        assert each.metadata["help"] in text
    assert "\ntrained memory (read by LSTM, GRU, " in text
    assert "trained memory" in describe_settings().replace("\n", " ")
    of_ppo = describe_settings("PPO")
    assert ("beta (" in of_ppo, "\n  n_epochs (" in of_ppo) == (False, True)
    assert re.findall(r"\n  (\w+) \(", describe_settings("n_epochs")) == ["n_epochs"]
    with in_one_line("--help PPOO: .*'PPO'"):
        describe_settings("PPOO")


def test_what_a_class_says_it_reads_is_what_is_known_before_it_is_imported():
    for registry in (AGENTS, LEARNERS, CURIOSITIES):
        for name in registry.places:
            assert registry.find(name).reads == registry.reads[name]


def test_names_that_are_allowed_are_those_that_there_are():
    allowed = {name: each.metadata for name, each in settings.all_settings().items()}
    assert allowed["language_model"]["safe"] == (*EMBEDDED, *HUB_NAMES)
    there_are = {"suggester": SUGGESTERS.places, "memory_positions": POSITIONS}
    there_are |= {"crafter_actions": crafter.ACTIONS, "return_dtype": ellm_dqn.FLOATS}
    for name, choices in there_are.items():
        assert allowed[name]["choices"] == tuple(choices)
    for registry in (AGENTS, LEARNERS, CURIOSITIES):  # which know classes of the user's own, too
        words = re.findall(r"[\w-]+", allowed[registry.setting]["help"])
        assert {*registry.places, *registry.aliases} <= {*words}, registry.setting


AT_ONCE = """
import contextlib, sys
import eval, helm, main, plot, sweep
from analysis.__main__ import main as analysis
for program in (main.main, eval.main, plot.main, sweep.main, analysis):
    with contextlib.suppress(SystemExit):
        program(["--help"])
for program in (main.main, sweep.main):
    for wrong in ("nonsense=1", "gamma=2", "n_steps=many", "beta=3"):
        assert program(["--var", "model=CNN", "--var", wrong]) == 2
assert "torch" not in sys.modules
from helm import *
assert Player.__name__ == "Player" and not hasattr(helm, "play")
"""


def test_help_a_wrong_setting_and_the_import_wait_for_no_pytorch():
    subprocess.run([sys.executable, "-c", AT_ONCE], cwd=ROOT, check=True, capture_output=True)


UNREAD = {
    "model=CNN-PPO topk=7": "--var topk=7: topk is read by SHELM, and this is CNN-PPO",
    "model=Impala-PPO mem_len=7": "mem_len is read by GPT, GTrXL, HELM, HELMv2 and SHELM, and",
    "model=CNN algorithm=DQN clip_range=0.1": "clip_range is read by PPO, and this is DQN",
    "model=Impala-PPO algorithm=DQN": "algorithm is DQN. Choose model=LSTM",
    "model=CNN beta=100": "beta is read by HELM, and this is CNN",  # its value anyway
}


@pytest.mark.parametrize("texts", UNREAD)
def test_a_setting_that_nothing_chosen_reads_is_refused_with_its_readers(texts):
    with pytest.raises(UserError) as error:
        load_config(overrides=texts.split())
    (line,) = error.value.lines
    assert UNREAD[texts] in line


def test_a_settings_name_elsewhere_and_an_algorithm_as_a_model_are_hinted_at():
    known = settings.all_settings().keys()
    assert set(ELSEWHERE.values()) <= known
    assert not ELSEWHERE.keys() & known
    for text, hint in {"lr=1": "'learning_rate'", "total_timesteps=9": "'n_steps'"}.items():
        with in_one_line(f"Did you mean {hint}"):
            load_config(overrides=[text])
    with in_one_line("Did you mean algorithm=DQN"):
        agent_class("DQN")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--model LSTM --env X", "--var model=LSTM --var env=X"),
        ("--learning-rate=3e-4 --lr 1", "--var learning_rate=3e-4 --var learning_rate=1"),
        ("--seeds 3", "python sweep.py --seeds"),
        ("LSTM", "--var KEY=VALUE"),
        ("--wandb", "--var wandb=VALUE"),
    ],
)
def test_options_are_turned_into_settings(words, told):
    assert told in options_as_settings(words.split())


def test_an_evaluations_arguments_of_the_environment_are_merged_with_the_runs():
    stored = load_config(overrides=["env=CartPole-v1", "model=CNN", 'env_args={"a": 1, "b": 2}'])
    merged = with_env_settings(stored, ['env_args={"b": 3, "c": 4}'])
    assert merged.env_args == {"a": 1, "b": 3, "c": 4}


def test_another_model_leaves_out_what_the_files_own_reads_and_says_so(tmp_path, caplog):
    path = settings_file(tmp_path, model="SHELM", topk=2, n_envs=4)
    config = load_config(path, ["model=CNN-PPO"])
    assert (config.model, config.n_envs) == ("CNN-PPO", 4)
    assert caplog.messages == ["CNN-PPO does not read topk of the file"]
    caplog.clear()
    load_config(settings_file(tmp_path, env="TMazePassive-v0", length=9), ["env=CartPole-v1"])
    assert caplog.messages == ["CartPole-v1 does not read length of the file"]
    path = settings_file(tmp_path, model="SHELM", topk=2, n_envs=4)
    mixed = settings_file(tmp_path, model="CNN-PPO", topk=2)
    for file, words in ((path, ["model=CNN-PPO", "topk=3"]), (mixed, [])):
        with pytest.raises(UserError, match="topk is read by SHELM, and this is CNN-PPO"):
            load_config(file, words)
    assert load_config(mixed, ["model=SHELM"]).topk == 2


def test_a_file_with_every_setting_is_taken_for_any_model(tmp_path):
    whole = load_config(overrides=["beta=7"]).as_dict() | {"n_batches": 7}
    path = settings_file(tmp_path, **whole)
    config = load_config(path, ["model=CNN", "algorithm=DQN"])  # n_batches is for PPO to check
    assert (config.model, config.beta, config.n_batches) == ("CNN", 7, 7)
    with pytest.raises(UserError, match="beta is read by HELM"):
        load_config(path, ["model=CNN", "algorithm=DQN", "beta=8"])


def test_sequences_need_no_equal_minibatches():
    for model in ("Impala-PPO", "LSTM", "GPT"):
        assert load_config(overrides=[f"model={model}", "n_batches=7"]).n_batches == 7


@dataclasses.dataclass(frozen=True)
class Otherwise(settings.Part):
    gamma: float = settings.setting("discount per step", low=0, high=2, default=0.99)


def test_a_setting_of_two_parts_must_be_declared_alike():
    with pytest.raises(TypeError, match=r"'gamma' is declared by utils.settings"):
        settings.declared([PpoSettings, Otherwise])


def test_settings_of_another_version_are_told_in_one_line():
    stored = load_config().as_dict() | {"warmup_steps": 9, "dying": True}
    with in_one_line("a run: unknown settings warmup_steps, dying"):
        config_from_dict(stored, "a run")


@pytest.mark.parametrize(
    ("name", "reader"),
    [("recognition_stimuli", "env=ContinuousRecognition-v0"), ("embeddings", "model=SHELM")],
)
def test_null_on_the_command_line_is_no_text_where_a_text_may_be_missing(name, reader):
    for text, value in (("null", None), ("./null", "./null")):
        assert getattr(load_config(overrides=[reader, f"{name}={text}"]), name) == value


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
