"""Every file under configs/ loads, holds only differences and is what was published."""

import csv
import dataclasses
import json

import pytest

import main
from envs import check_env_name
from models import agent_class
from models.agent import Agent
from tests.golden_data import GOLDEN
from utils.config import DEFAULT_FILE, load_config
from utils.published import CONFIGS, published_configs

with (GOLDEN / "hyperparameters.csv").open() as file:
    PUBLISHED = {row.pop("path"): row for row in csv.DictReader(file)}
NAMES = [str(path.relative_to(CONFIGS.parent)) for path in published_configs()]
ENCODERS = {"HELMv2": "RN50", "SHELM": "ViT-B-16"}


@pytest.mark.parametrize("name", NAMES)
def test_a_settings_file_loads_and_names_what_exists(name):
    config = load_config(CONFIGS.parent / name)
    assert issubclass(agent_class(config.model), Agent)
    assert check_env_name(config.env) is None


@pytest.mark.parametrize("name", NAMES)
def test_a_settings_file_holds_only_what_differs(name):
    default = json.loads(DEFAULT_FILE.read_text())
    values = json.loads((CONFIGS.parent / name).read_text())
    assert {key for key, value in values.items() if default[key] == value} == set()


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_settings_are_those_published(name):
    config = dataclasses.asdict(load_config(CONFIGS.parent / name))
    for key, text in PUBLISHED[name].items():
        if key in config and text:
            assert config[key] == type(config[key])(text), key
    if "HELM" in config["model"]:
        assert config["language_model"] == "transfo-xl-wt103"
    assert config["clip_encoder"] == ENCODERS.get(config["model"], "grid-clip")


def test_the_mazes_and_the_procgen_games_stand_beside_them():
    others = sorted(set(NAMES) - set(PUBLISHED))
    assert len(others) == 3 * 7
    steps = {load_config(CONFIGS.parent / name).n_steps for name in others}
    assert steps == {2_000_000, 25_000_000}


def test_an_lstm_learns_from_sixteen_sequences_at_a_time_unless_its_file_says_otherwise():
    named = {name: row["sequences_per_batch"] for name, row in PUBLISHED.items()}
    sizes = [
        (load_config(CONFIGS.parent / name).sequences_per_batch, named.get(name, "16"))
        for name in NAMES
        if name.split("/")[-2] == "LSTM"
    ]
    assert len(sizes) == 15 + 7
    assert all(size == int(text) for size, text in sizes)
    assert load_config().sequences_per_batch == 16


def test_the_list_shows_every_file(capsys):
    assert main.main(["--list-configs"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in NAMES)
    assert "25,000,000" in printed


def test_the_list_marks_the_mem_len_that_the_released_code_ignored(capsys):
    main.main(["--list-configs"])
    *rows, _, note, more = capsys.readouterr().out.splitlines()
    marked = {row.split()[0] for row in rows if row.endswith("*")}
    helm = [row for row in PUBLISHED.values() if row["model"] in ("HELM", "HELMv2")]
    ignored = {
        name
        for name, row in PUBLISHED.items()
        if row["model"] in ("HELM", "HELMv2") and row["mem_len"] != "511"
    }
    assert (len(marked), len(helm)) == (28, 32)
    assert marked == ignored
    assert "ignored mem_len for HELM and HELMv2 and ran 511" in note
    assert "--var mem_len=511" in more
