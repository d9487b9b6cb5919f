"""Whole runs, one a row: repeatable, resumed to the bit, and restored by eval.py."""

import json
import math
import signal

import pytest

import eval as eval_program
import main as main_program
from envs import SUITES, Suite, minigrid
from tests.described import NAME as DESCRIBED
from tests.published_models import tiny_sentence_encoder
from tests.robustness.faults import outcome, same
from tests.test_resume import folder_of, signal_at
from tests.tiny_clip import tiny_settings
from trainers.checkpoint import LAST, load_checkpoint

COMMON = {"device": "cpu", "n_envs": 2, "media_minutes": "null", "checkpoint_minutes": 60}
PPO = COMMON | {"algorithm": "PPO", "env": "RandomMaze-v0", "n_steps": 96}
PPO |= {"n_rollout_steps": 16, "n_batches": 2, "n_epochs": 1}
REPLAY = COMMON | {"env": "TMazeActive-v0", "n_steps": 200, "learning_rate": 1e-3}
REPLAY |= {"batch_size": 3, "warmup_episodes": 1, "updates_per_step": 0.1, "head_width": 8}
DQN, SAC = (REPLAY | {"algorithm": algorithm} for algorithm in ("DQN", "SAC"))
ELLM = COMMON | {"algorithm": "NStepDQN", "model": "ELLM", "env": "tests.told_in_words:Told-v0"}
ELLM |= {"n_steps": 160, "hidden_dim": 8, "learning_rate": 1e-3, "batch_size": 4, "n_step": 2}
ELLM |= {"warmup_steps": 30, "target_update_steps": 40, "epsilon_steps": 200, "log_steps": 40}
ELLM |= {"replay_capacity": 60}

CNN, HELM, HELMV2, SHELM = ({"model": name} for name in ("CNN", "HELM", "HELMv2", "SHELM"))
LSTM = {"model": "LSTM", "memory_width": 8}
GPT = {"model": "GPT", "memory_width": 8, "memory_heads": 2, "mem_len": 8}
MAZE = {"env": "RandomMaze-v0", "updates_per_step": 0.05, "n_steps": 400, "replay_capacity": 250}
READS = {"sentence_encoder": "tiny"}
MISSIONS = {"env": "BabyAI-GoToObjS4-v0"}
HOUSE = {"env": "HousekeepText-v0", "house_rooms": 2, "house_things": 3, "house_misplaced": 2}
HOUSE |= {"house_steps": 12}
GOALS = READS | {"env": DESCRIBED, "goal_conditioned": "true"}
SUGGESTED = GOALS | {"goal_encoder": "tiny", "novelty_filter": "false"}
SUBGOALS = {"single_task": "make wood pickaxe", "single_task_goals": "subgoals"}
CURIOUS = {"curiosity_width": 8, "curiosity_weight": 0.5}

ROWS = {
    "PPO CNN": PPO | CNN | {"normalize_reward": "true", "adv_norm": "true"},
    "PPO CNN, MiniGrid by Gymnasium": PPO | CNN | {"env": "MiniGrid-Dynamic-Obstacles-5x5-v0"},
    "PPO CNN, RND": PPO | CNN | CURIOUS | {"curiosity": "RND", "curiosity_features": "observation"},
    "PPO CNN, suggested goals": PPO | CNN | SUGGESTED | {"suggester": "novelty"},
    "PPO CNN, a task's subgoals": PPO | CNN | GOALS | SUBGOALS,
    "PPO CNN, told of a house": PPO | CNN | HOUSE | READS,
    "PPO CNN, a number is seen": PPO | CNN | {"env": "FrozenLake-v1"},
    "PPO LSTM": PPO | LSTM | {"normalize_reward": "true", "sequences_per_batch": 3},
    "PPO LSTM, a user's environment": PPO | LSTM | {"env": "tests.any_envs:Sampled-v0"},
    "PPO LSTM of two layers, CartPole": PPO | LSTM | {"env": "CartPole-v1", "memory_layers": 2},
    "PPO LSTM, APT": PPO | LSTM | CURIOUS | {"curiosity": "APT", "apt_group": 16, "icm": "paper"},
    "PPO GPT, POPGym": PPO | GPT | {"env": "popgym-RepeatPreviousEasy-v0"},
    "PPO GPT of learned positions": PPO | GPT | MISSIONS | READS | {"memory_positions": "learned"},
    "PPO HELM": PPO | HELM | {"adv_norm": "true", "lr_decay": "linear"},
    "PPO HELM, NovelD": PPO | HELM | CURIOUS | {"curiosity": "NovelD"},
    "PPO HELM reads": PPO
    | HELM
    | MISSIONS
    | READS
    | {"text_to": "both", "text_tokens": 2, "mem_len": 8},
    "PPO HELMv2": PPO | HELMV2,
    "PPO SHELM": PPO | SHELM,
    "PPO SHELM reads": PPO | SHELM | MISSIONS | {"text_to": "memory", "mem_len": 8},
    "DQN CNN, suggested goals": DQN | CNN | SUGGESTED | {"suggester": "oracle"},
    "DQN LSTM": DQN | LSTM | {"replay_capacity": 60},
    "DQN LSTM of windows, a task": DQN | LSTM | GOALS | SUBGOALS | {"context_length": 5},
    "DQN LSTM, a house without words": DQN | LSTM | HOUSE | {"use_text": "false"},
    "DQN GPT": DQN | GPT | MAZE,
    "DQN HELM, RND": DQN | HELM | CURIOUS | {"curiosity": "RND", "curiosity_features": "memory"},
    "DQN HELMv2": DQN | HELMV2 | MAZE,
    "DQN SHELM": DQN | SHELM | MAZE,
    "DQN CNN reads, NovelD": DQN | CNN | MISSIONS | READS | CURIOUS | {"curiosity": "NovelD"},
    "SAC CNN of two encoders": SAC | CNN | {"shared_encoder": "false"},
    "SAC CNN, NovelD": SAC | CNN | CURIOUS | {"curiosity": "NovelD", "task_reward_weight": 0},
    "SAC LSTM": SAC | LSTM | {"learn_temperature": "true"},
    "SAC GPT": SAC | GPT | {"freeze_critic": "false"},
    "SAC HELM, a house": SAC | HELM | HOUSE | READS | {"text_to": "memory", "mem_len": 8},
    "SAC HELMv2": SAC | HELMV2 | MAZE,
    "SAC SHELM reads": SAC | SHELM | MISSIONS | {"text_to": "memory", "mem_len": 8},
    "ELLM": ELLM | {"decay_after_reward": "true"},
    "ELLM, any step, several colours": ELLM
    | {"replay_sampling": "step", "env_args": '{"n_colours": 3, "side": 40}'},
    "ELLM reads, APT": ELLM | MISSIONS | READS | {"curiosity": "APT", "curiosity_width": 8},
    "ELLM, vectors": ELLM | {"env": "CartPole-v1", "replay_capacity": 1000},
}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return str(tiny_sentence_encoder(tmp_path_factory.mktemp("encoder")))


def words_of(settings, encoder):
    """Return the command line of a row."""
    settings = settings | tiny_settings(settings["model"])
    values = {key: encoder if value == "tiny" else value for key, value in settings.items()}
    return [f"--var={key}={value}" for key, value in values.items()]


@pytest.fixture(scope="module", params=ROWS)
def runs(request, encoder, tmp_path_factory):
    """Return a whole run's folder, a resumed one's, and the metrics of that before it was cut."""
    settings = ROWS[request.param]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("runs"))
        patch.setitem(SUITES, DESCRIBED, Suite("tests.described", scale_rewards=False))
        patch.setattr(minigrid, "pool_tasks", list)  # MiniGrid's own: EnvPool's cannot be saved
        words = words_of(settings, encoder)
        assert main_program.main([*words, "--run-id=whole"]) == 0
        with patch.context() as for_a_while:
            signal_at(for_a_while, signal.SIGINT, at=settings["n_steps"] // settings["n_envs"] // 3)
            assert main_program.main([*words, "--run-id=cut"]) == 130
        cut = outcome(folder_of("cut"))["metrics"]
        assert main_program.main(["--resume", str(folder_of("cut"))]) == 0
        yield folder_of("whole"), folder_of("cut"), cut


def test_the_same_seed_gives_the_same_metrics(runs):
    whole, _, cut = runs
    rows = outcome(whole)["metrics"]
    assert 0 < len(cut) < len(rows)
    assert cut == rows[: len(cut)]


def test_a_resumed_run_is_the_whole_run_to_the_bit(runs):
    whole, resumed, _ = runs
    assert same(outcome(resumed), outcome(whole))
    assert same(*(load_checkpoint(folder / LAST)["collector"] for folder in (resumed, whole)))
    (facts,) = json.loads((resumed / "run.json").read_text())["resumed"]
    assert facts["exact"]


def test_something_was_learned_and_every_number_is_finite(runs):
    row = outcome(runs[0])["metrics"][-1]
    assert float(row["train/n_updates"]) > 0
    assert all(math.isfinite(float(v)) for k, v in row.items() if v and k.startswith("train/"))


def test_an_evaluation_restores_the_agent(runs):
    whole, _, _ = runs
    assert eval_program.main(["--ckpt-path", str(whole), "--n-episodes", "2"]) == 0
    (path,) = whole.glob("ckpt_best_eval_*.json")
    result = json.loads(path.read_text())
    assert len(result["returns"]) == 2
    assert (
        result["actions"] == ACTIONS[json.loads((whole / "config.json").read_text())["algorithm"]]
    )


ACTIONS = {"PPO": "sampled", "SAC": "sampled", "DQN": "of the highest value"}
ACTIONS["NStepDQN"] = ACTIONS["DQN"]
