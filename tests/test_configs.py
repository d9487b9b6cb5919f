"""Every file under configs/ loads, holds only differences and has the published settings."""

import csv
import dataclasses
import json

import pytest

import main
from envs import check_env_name
from models import agent_class
from models.agent import Agent
from tests.golden_data import GOLDEN
from trainers.build import LEARNERS
from utils.settings import CONFIGS, default_settings, load_config, read_settings

with (GOLDEN / "hyperparameters.csv").open() as file:
    PUBLISHED = {row.pop("path"): row for row in csv.DictReader(file)}
with (GOLDEN / "memory_rl" / "published_budgets.csv").open() as file:
    BUDGETS = list(csv.DictReader(file))
with (GOLDEN / "ellm" / "commands.csv").open() as file:
    COMMANDS = list(csv.DictReader(file))
PATHS = sorted(CONFIGS.rglob("config.json"))
NAMES = [str(path.relative_to(CONFIGS.parent)) for path in PATHS]
MEMORY_TASKS = [name for name in NAMES if "/MemoryRL/" in name]
CURIOUS = [name for name in NAMES if "/KeyCorridorS3R3/" in name]
POPGYM = [name for name in NAMES if "/POPGym/" in name]
CRAFTER = [name for name in NAMES if "/Crafter/" in name and "/ELLM-" not in name]
ELLM = [name for name in NAMES if "/ELLM-" in name]
AS_RUN = [name for name in NAMES if "-as-run/" in name]
# An agent of Ni et al. 2023 has these beside its budget: T-Mazes, then tasks of images.
NETWORKS = {
    ("DQN", "LSTM"): {"memory_width": 128, "observation_embedding": 32, "action_embedding": 16},
    ("DQN", "GPT"): {"memory_width": 128, "observation_embedding": 64, "action_embedding": 64},
    ("SAC", "LSTM"): {"memory_width": 128, "observation_embedding": 100, "action_embedding": 0},
    ("SAC", "GPT"): {"memory_width": 100, "observation_embedding": 100, "action_embedding": 0},
}
OF_EVERY_RUN = {
    "n_envs": 1,
    "learning_rate": 3e-4,
    "gamma": 0.99,
    "tau": 0.005,
    "batch_size": 64,
    "context_length": -1,
    "warmup_episodes": 10,
    "replay_ratio": 0.25,
    "head_width": 256,
    "memory_layers": 1,
}
OF_SAC = {
    "shared_encoder": True,
    "freeze_critic": True,
    "temperature": 0.1,
    "learn_temperature": False,
}
OF_GPT = {"memory_heads": 1, "memory_dropout": 0.1, "memory_positions": "sinusoidal"}
AGENTS = ("LSTM", "GPT")
ENCODERS = {"HELMv2": "RN50", "SHELM": "ViT-B-16"}


@pytest.mark.parametrize("name", NAMES)
def test_a_settings_file_loads_and_names_what_exists_and_what_differs(name):
    default, values = default_settings(), json.loads((CONFIGS.parent / name).read_text())
    assert {key for key, value in values.items() if default[key] == value} == set()
    config = load_config(CONFIGS.parent / name)
    assert issubclass(agent_class(config.model), Agent)
    assert config.algorithm in LEARNERS.places
    assert check_env_name(config.env) is None


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_settings_are_those_published(name):
    loaded = load_config(CONFIGS.parent / name)
    config, read = dataclasses.asdict(loaded), read_settings(loaded)
    for key, text in PUBLISHED[name].items():
        if key in read and text:
            assert config[key] == type(config[key])(text), key
    if "HELM" in config["model"]:
        assert config["language_model"] == "transfo-xl-wt103"
    if "clip_encoder" in read:
        assert config["clip_encoder"] == ENCODERS[config["model"]]


def test_what_the_released_code_ran_differs_from_its_files_in_mem_len_alone():
    agents = {name.split("/")[-2] for name in AS_RUN}
    assert agents == {"HELM-as-run", "HELMv2-as-run"}
    for name in AS_RUN:
        ran = dataclasses.asdict(load_config(CONFIGS.parent / name))
        said = dataclasses.asdict(load_config(CONFIGS.parent / name.replace("-as-run", "")))
        assert {key for key in ran if ran[key] != said[key]} == {"mem_len"}
        assert (said["mem_len"], ran["mem_len"]) == (15, 511)


def test_curious_experiments_differ_in_nothing_but_their_curiosity():
    default = default_settings()
    given = [json.loads((CONFIGS.parent / name).read_text()) for name in CURIOUS]
    plain, *others = [default | values for values in given]
    assert plain["curiosity"] is None
    assert {each["curiosity"] for each in others} == {"RND", "NovelD"}
    for each in others:
        assert {k for k in each if each[k] != plain[k]} == {"curiosity", "curiosity_features"}


def test_popgym_has_a_memoryless_twin_beside_every_memory_and_all_learn_alike():
    configs = [dataclasses.asdict(load_config(CONFIGS.parent / name)) for name in POPGYM]
    assert [config["model"] for config in configs] == ["CNN", "GPT", "HELM", "LSTM"]
    shared = {"env", "n_steps", "n_envs", "learning_rate", "ent_coef"}
    assert len({tuple(config[key] for key in sorted(shared)) for config in configs}) == 1


def test_crafter_has_the_same_agents_in_both_games():
    games = {"Crafter-v1": 1_000_000, "CrafterText-v0": 200_000}
    configs = [load_config(CONFIGS.parent / name) for name in CRAFTER]
    found = {(config.env, config.model): config.n_steps for config in configs}
    agents = ("CNN", "HELM", "LSTM")
    assert found == {(game, agent): n for game, n in games.items() for agent in agents}


@pytest.mark.parametrize("name", ELLM)
def test_ellm_has_the_settings_of_the_originals_commands(name):
    config = dataclasses.asdict(load_config(CONFIGS.parent / name))
    mode = name.split("ELLM-")[1].split("/")[0]
    commanded = {row["setting"]: row[mode] for row in COMMANDS if row[mode]}
    assert {key: json.dumps(config[key]).strip('"') for key in commanded} == commanded


def test_every_published_cell_of_the_memory_tasks_has_both_agents():
    cells = {
        (f"{row['env'].removesuffix('-v0')}-{row['length']}", m) for row in BUDGETS for m in AGENTS
    }
    assert {tuple(name.split("/")[2:4]) for name in MEMORY_TASKS} == cells
    assert len(MEMORY_TASKS) == 46


@pytest.mark.parametrize("model", AGENTS)
@pytest.mark.parametrize("row", BUDGETS, ids=lambda row: f"{row['env']}-{row['length']}")
def test_a_memory_task_has_its_published_budget(row, model):
    length, n_steps = int(row["length"]), int(row["episode_length"])
    task = row["env"].removesuffix("-v0")
    config = load_config(CONFIGS / "MemoryRL" / f"{task}-{length}" / model / "config.json")
    assert (config.env, config.model, config.length) == (row["env"], model, length)
    assert config.n_steps == (config.warmup_episodes + int(row["train_episodes"])) * n_steps
    every, n_episodes = (10, 10) if "TMaze" in task else (50, 20)
    assert (config.eval_steps, config.eval_episodes) == (every * n_steps, n_episodes)
    if model == "GPT":  # the first step is seen from the last
        assert config.mem_len == n_steps


@pytest.mark.parametrize("name", MEMORY_TASKS)
def test_an_agent_of_a_memory_task_has_its_published_networks(name):
    config = dataclasses.asdict(load_config(CONFIGS.parent / name))
    algorithm, model = config["algorithm"], config["model"]
    assert algorithm == ("DQN" if "TMaze" in name else "SAC")
    expected = OF_EVERY_RUN | NETWORKS[algorithm, model]
    expected |= (
        OF_SAC if algorithm == "SAC" else {"epsilon_final": None, "exploration_fraction": 0.1}
    )
    expected |= OF_GPT if model == "GPT" else {}
    expected |= {"door_order": "environment"} if "VisualMatch" in name else {}
    assert {key: config[key] for key in expected} == expected


def test_the_list_shows_every_file(capsys):
    assert main.main(["--list-configs"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in NAMES)
    assert "25,000,000" in printed
    assert "  GPT, DQN " in printed


def test_the_list_marks_the_mem_len_that_the_released_code_ignored(capsys):
    main.main(["--list-configs"])
    *rows, _, note, more, _ = capsys.readouterr().out.splitlines()
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
    assert "--var mem_len=511 or a file named -as-run" in more
