"""Whole runs, one a row: repeatable, resumed to the bit, and restored by eval.py."""

import json
import math
import re
import signal
from pathlib import Path

import numpy as np
import pytest

import eval as eval_program
import main as main_program
from envs import SUITES
from tests.runs import (
    DESCRIBED,
    IN_PARTS,
    PART,
    ROWS,
    folder_of,
    outcome,
    resume,
    same,
    signal_at,
    words_of,
)
from trainers import sequence_replay
from trainers.checkpoint import LAST, load_checkpoint
from utils.given_settings import load_config
from utils.settings import Settings, all_settings, read_settings

QUICK = ("PPO CNN", "PPO HELM", "DQN LSTM", "SAC LSTM", "TD3 LSTM, RND", "ELLM")  # every algorithm
TABLE = [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in ROWS]


def settings_asked(patch):
    """Return the set that takes in each setting whose value is asked for, as an attribute."""
    asked, plain = set(), Settings.__getattribute__

    def asking(self, name):
        asked.add(name)
        return plain(self, name)

    patch.setattr(Settings, "__getattribute__", asking)
    return asked


# Settings that a run accepts, and that some runs have no use for.
NOT_ALWAYS_ASKED = {
    "sentence_encoder": "where the environment shows texts",
    "text_encoder_init": "where the environment shows texts",
    "text_tokens": "where the environment shows texts",
    "observation_cache_mb": "where the environment shows images",
    "state_dependent_std": "where actions are numbers",
    "temperature": "of discrete actions, where it is not learned",
    "target_entropy": "of discrete actions",
    "suggester_max_tokens": "where a language model writes",
    "suggester_temperature": "where a language model writes",
    "wait_for_reward": "until the first reward",
}


@pytest.fixture(scope="module", params=TABLE)
def runs(request, tmp_path_factory):
    """Return a whole run's folder, a resumed one's, its metrics before it was cut, and settings.

    These are the names of those that the code of the whole run has asked for.
    """
    settings = ROWS[request.param]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("runs"))
        patch.setitem(SUITES, DESCRIBED, "tests.described:Described")
        if request.param.endswith(IN_PARTS):
            patch.setattr(sequence_replay, "LONGEST_EPISODE", PART)
        words = words_of(settings)
        with patch.context() as for_a_while:
            asked = settings_asked(for_a_while)
            assert main_program.main([*words, "--run-id=whole"]) == 0
        asked = frozenset(asked)
        with patch.context() as for_a_while:
            signal_at(for_a_while, signal.SIGINT, at=settings["n_steps"] // settings["n_envs"] // 3)
            assert main_program.main([*words, "--run-id=cut"]) == 130
        cut = outcome(folder_of("cut"))["metrics"]
        assert resume("cut") == 0
        yield folder_of("whole"), folder_of("cut"), cut, asked


def test_the_same_seed_gives_the_same_metrics(runs):
    whole, _, cut, _ = runs
    rows = outcome(whole)["metrics"]
    assert len(cut) < len(rows)  # none where the first episode had not ended yet
    assert cut == rows[: len(cut)]


def test_a_setting_that_is_accepted_is_read(runs):
    whole, *_, asked = runs
    config = load_config(whole / "config.json")
    values, declarations = config.as_dict(), all_settings(config.as_dict())
    needs = {name: each.metadata["needs"] for name, each in declarations.items()}
    idle = {name for name, needed in needs.items() if needed and not values[needed]}
    assert read_settings(config) - asked - idle <= NOT_ALWAYS_ASKED.keys()


def test_a_resumed_run_is_the_whole_run_to_the_bit(runs):
    whole, resumed, *_ = runs
    assert same(outcome(resumed), outcome(whole))
    ends = [load_checkpoint(folder / LAST)["collector"] for folder in (resumed, whole)]
    for collector in ends:  # which count how often a language model was asked
        collector["env"].get("suggester", {}).pop("counts", None)
    assert same(*ends)
    (facts,) = json.loads((resumed / "run.json").read_text())["resumed"]
    assert facts["exact"]


def test_something_was_learned_and_every_number_is_finite(runs):
    row = outcome(runs[0])["metrics"][-1]
    assert float(row.get("train/n_epochs") or row["train/n_gradient_steps"]) > 0
    assert all(math.isfinite(float(v)) for k, v in row.items() if v and k.startswith("train/"))


def test_every_metric_is_explained(runs):
    reference = Path(__file__).parents[1] / "docs" / "reference"
    pages = ("metrics.md", "suggesters.md", "goals.md", "environments.md")
    names = re.findall(r"`([\w/]+)", "".join((reference / page).read_text() for page in pages))
    ends = tuple(name for name in names if name.startswith("_"))  # `goals/a_good`, `_impossible`
    logged = (runs[0] / "metrics.csv").read_text().partition("\n")[0].split(",")
    unknown = {*logged} - {"env_steps", *names}
    assert not {n for n in unknown if not (n.endswith(ends) or n.startswith("achievements/"))}


def test_an_evaluation_restores_the_agent_and_leaves_a_page_to_look_at(runs, capsys):
    whole, *_ = runs
    command = ["--ckpt-path", str(whole), "--n-episodes", "2", "--report"]
    assert eval_program.main(command) == 0
    (path,) = whole.glob("ckpt_best_eval_*.json")
    result = json.loads(path.read_text())
    config = json.loads((whole / "config.json").read_text())
    assert len(result["returns"]) == 2
    assert result["actions"] == ACTIONS[config["algorithm"]]
    assert ("_sampled_" in path.name) == (result["actions"] == "sampled")
    (page,) = whole.glob("ckpt_best_eval_*.html")
    assert str(page) in capsys.readouterr().out
    (data,) = re.findall(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    data, model = json.loads(data), config["model"]
    assert data["title"] == f"{model} on {config['env']}"
    for episode in data["episodes"]:
        assert ("attention" in episode) == ("HELM" in model or model in ("GPT", "GTrXL"))
        assert ("words" in episode) == model.endswith(("HELM", "SHELM"))
        assert ("entropy" in episode) == (model == "HELM")
    for path in Path("episodes").rglob("whole_*.npz"):
        with np.load(path) as arrays:
            n_steps = len(arrays["actions"])
            assert all(len(steps) == n_steps for name, steps in arrays.items() if name in SEEN)
            assert {*arrays.get("text", np.array([])).flat} <= {*data["sentences"]}


ACTIONS = {"PPO": "sampled", "SAC": "sampled", "DQN": "of the highest value"}
ACTIONS |= {"EllmDQN": ACTIONS["DQN"], "TD3": "without noise"}


SEEN = ("observations", "text", "words", "attention", "values")
