"""Every file under configs/ loads, holds only differences and has the published settings."""

import csv
import itertools
import json

import pytest

import main
from envs import check_env_name
from models import AGENTS as MODELS
from models import agent_class
from models.agent import Agent
from tests.golden_data import GOLDEN
from trainers.parts import LEARNERS
from utils.given_settings import CONFIGS, default_settings, load_config
from utils.settings import read_settings

with (GOLDEN / "hyperparameters.csv").open() as file:
    PUBLISHED = {row.pop("path"): row for row in csv.DictReader(file)}
with (GOLDEN / "memory_rl" / "published_budgets.csv").open() as file:
    BUDGETS = list(csv.DictReader(file))
with (GOLDEN / "memory_rl" / "published_settings.csv").open() as file:
    SETTINGS = list(csv.DictReader(file))
with (GOLDEN / "ellm" / "commands.csv").open() as file:
    COMMANDS = list(csv.DictReader(file))
PATHS = sorted(CONFIGS.rglob("config.json"))
NAMES = [str(path.relative_to(CONFIGS.parent)) for path in PATHS]
CONTINUOUS = "/MemoryRL/Continuous/"
MEMORY_TASKS = [name for name in NAMES if "/MemoryRL/" in name and CONTINUOUS not in name]
CURIOUS = [name for name in NAMES if "/KeyCorridorS3R3/" in name]
AS_RUN = [name for name in NAMES if "-as-run/" in name]
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
    config, read = loaded.as_dict(), read_settings(loaded)
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
        ran = load_config(CONFIGS.parent / name).as_dict()
        said = load_config(CONFIGS.parent / name.replace("-as-run", "")).as_dict()
        assert {key for key in ran if ran[key] != said[key]} == {"mem_len"}
        assert (said["mem_len"], ran["mem_len"]) == (15, 511)


def test_curious_experiments_differ_in_nothing_but_their_curiosity():
    default = default_settings()
    given = [json.loads((CONFIGS.parent / name).read_text()) for name in CURIOUS]
    plain, *others = [default | values for values in given]
    assert plain["curiosity"] is None
    assert {each["curiosity"] for each in others} == {"RND", "NovelD"}
    for each in others:
        own = {"noveld_first_visit"} if each["curiosity"] == "NovelD" else set()
        assert {k for k in each if each[k] != plain[k]} == {"curiosity", "curiosity_features"} | own


TRAINED = {name for name in MODELS.places if agent_class(name).memory_class is not None}


@pytest.mark.parametrize(
    ("place", "models", "env", "n_steps"),
    [
        ("POPGym", TRAINED | {"HELM"}, "popgym-RepeatPreviousEasy-v0", 15_000_000),
        ("Crafter/Crafter", {"CNN", "HELM", "LSTM"}, "Crafter-v1", 1_000_000),
        ("Crafter/CrafterText", {"CNN", "HELM", "LSTM"}, "CrafterText-v0", 200_000),
    ],
)
def test_agents_that_are_compared_learn_alike(place, models, env, n_steps):
    paths = [path for path in (CONFIGS / place).glob("*/config.json") if "ELLM" not in str(path)]
    configs = [load_config(path) for path in paths]
    assert sorted(config.model for config in configs) == sorted(models)
    assert {(config.env, config.n_steps) for config in configs} == {(env, n_steps)}
    names = "n_envs", "learning_rate", "ent_coef", "last_action_input", "last_reward_input"
    assert len({tuple(getattr(each, name) for name in names) for each in configs}) == 1


@pytest.mark.parametrize("name", [name for name in NAMES if "/ELLM-" in name])
def test_ellm_has_the_settings_of_the_originals_commands(name):
    mode = name.split("ELLM-")[1].split("/")[0]
    commanded = {row["setting"]: row[mode] for row in COMMANDS}
    assert_published(load_config(CONFIGS.parent / name), commanded)


def assert_published(config, texts):
    texts = {key: text for key, text in texts.items() if text}
    assert {key: json.dumps(getattr(config, key)).strip('"') for key in texts} == texts


def test_every_published_cell_of_the_memory_tasks_has_both_agents():
    tasks = [f"{row['env'].removesuffix('-v0')}-{row['length']}" for row in BUDGETS]
    cells = set(itertools.product(tasks, AGENTS))
    assert {tuple(name.split("/")[2:4]) for name in MEMORY_TASKS} == cells
    assert len(MEMORY_TASKS) == 46


@pytest.mark.parametrize("model", AGENTS)
@pytest.mark.parametrize("row", BUDGETS, ids=lambda row: f"{row['env']}-{row['length']}")
def test_a_memory_task_has_its_published_budget_and_networks(row, model):
    length, n_steps = int(row["length"]), int(row["episode_length"])
    task = row["env"].removesuffix("-v0")
    config = load_config(CONFIGS / "MemoryRL" / f"{task}-{length}" / model / "config.json")
    is_maze = "TMaze" in task
    every, n_episodes = (10, 10) if is_maze else (50, 20)
    expected = {"env": row["env"], "model": model, "length": length}
    expected |= {"n_steps": (config.warmup_episodes + int(row["train_episodes"])) * n_steps}
    expected |= {"eval_steps": every * n_steps, "eval_episodes": n_episodes}
    algorithm = expected["algorithm"] = "DQN" if is_maze else "SAC"
    if model == "GPT":  # the first step is seen from the last
        expected |= {"mem_len": n_steps}
    if "VisualMatch" in task:
        expected |= {"door_order": "environment"}
    assert {key: getattr(config, key) for key in expected} == expected
    own = {row["setting"]: row[f"{algorithm} {model}"] for row in SETTINGS}
    assert_published(config, own)


@pytest.mark.parametrize("name", [name for name in NAMES if CONTINUOUS in name])
def test_continuous_tasks_have_the_settings_of_the_originals_branch(name):
    config = load_config(CONFIGS.parent / name)
    assert (config.algorithm, config.policy_delay, config.learning_rate) == ("TD3", 1, 3e-4)
    assert (config.gamma, config.tau, config.warmup_episodes) == (0.99, 0.005, 10)
    assert (config.batch_size, config.context_length, config.replay_ratio) == (256, 64, 1)
    assert (config.exploration_noise, config.target_noise, config.target_noise_clip) == (
        0.1,
        0.2,
        0.5,
    )
    assert (config.memory_width, config.memory_layers, config.n_steps) == (128, 1, 1500 * 1000)
    assert config.shared_encoder
    assert config.freeze_critic


@pytest.mark.slow
def test_the_list_shows_every_file_and_marks_the_mem_len_that_the_released_code_ignored(capsys):
    assert main.main(["--list-configs"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in (*NAMES, "25,000,000", "  GPT, DQN "))
    *rows, _, note, more, _ = printed.splitlines()
    helm = {name: row for name, row in PUBLISHED.items() if row["model"] in ("HELM", "HELMv2")}
    ignored = {name for name, row in helm.items() if row["mem_len"] != "511"}
    assert {row.split()[0] for row in rows if row.endswith("*")} == ignored
    assert 0 < len(ignored) < len(helm)
    assert "ignored mem_len for HELM and HELMv2 and ran 511" in note
    assert "--var mem_len=511 or a file named -as-run" in more
