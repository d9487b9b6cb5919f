"""Whole runs by the command line, at tiny sizes: one a row, and their outcomes."""

import csv
import functools
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

import main as main_program
from tests.described import NAME as DESCRIBED
from tests.published_models import tiny_sentence_encoder, write_decoder
from tests.tiny_clip import tiny_settings
from trainers.checkpoint import LAST, load_checkpoint
from trainers.collector import Collector
from utils.files import load_saved

UNEVEN = ("time/", "suggester/")  # beginnings of metrics that a resumed run may have otherwise
COMMON = {"device": "cpu", "n_envs": 2, "showcase_minutes": "null", "checkpoint_minutes": 60}
PPO = COMMON | {"algorithm": "PPO", "env": "RandomMaze-v0", "n_steps": 96}
PPO |= {"n_rollout_steps": 16, "n_batches": 2, "n_epochs": 1}
REPLAY = COMMON | {"env": "TMazeActive-v0", "n_steps": 200, "learning_rate": 1e-3}
REPLAY |= {"batch_size": 3, "warmup_episodes": 1, "replay_ratio": 0.1, "head_width": 8}
DQN, SAC, TD3 = (REPLAY | {"algorithm": algorithm} for algorithm in ("DQN", "SAC", "TD3"))
ELLM = COMMON | {"algorithm": "EllmDQN", "model": "ELLM", "env": "tests.told_in_words:Told-v0"}
ELLM |= {"n_steps": 160, "hidden_dim": 8, "learning_rate": 1e-3, "batch_size": 4, "n_step": 2}
ELLM |= {"learning_starts": 30, "target_update_steps": 40, "epsilon_steps": 200, "log_steps": 40}
ELLM |= {"replay_capacity": 60}

CNN, HELM, HELMV2, SHELM = ({"model": name} for name in ("CNN", "HELM", "HELMv2", "SHELM"))
SAMPLED = {"model": "tests.sampled_words:SHELM"}
LSTM = {"model": "LSTM", "memory_width": 8}
ECHO = {"model": "tests.echo:MyAgent", "memory_width": 8, "echoes": 2}
GPT = {"model": "GPT", "memory_width": 8, "memory_heads": 2, "mem_len": 8}
GTRXL = GPT | {"model": "GTrXL"}
GRU, MIN_GRU, LRU, FFM = (LSTM | {"model": name} for name in ("GRU", "MinGRU", "LRU", "FFM"))
MLSTM = LSTM | {"model": "mLSTM", "memory_heads": 2}
MAZE = {"env": "RandomMaze-v0", "replay_ratio": 0.05, "n_steps": 400, "replay_capacity": 250}
BY_ENVPOOL = {"env": "MiniGrid-GoToDoor-5x5-v0"}  # short episodes
BY_GYMNASIUM = {"env": "MiniGrid-Dynamic-Obstacles-5x5-v0", "minigrid_missions": "true"}
READS = {"sentence_encoder": "tiny"}
MISSIONS = {"env": "BabyAI-GoToObjS4-v0"}
HOUSE = {"env": "HousekeepText-v0", "house_rooms": 2, "house_things": 3, "house_misplaced": 2}
HOUSE |= {"house_steps": 12}
GOALS = READS | {"env": DESCRIBED, "goal_conditioned": "true"}
SUGGESTED = GOALS | {"goal_encoder": "tiny", "novelty_filter": "false"}
TOLD_OF_CRAFTER = {"env": "CrafterText-v0", "crafter_length": 20, "suggester": "language-model"}
TOLD_OF_CRAFTER |= {"suggester_model": "decoder", "suggester_cache": "answers.sqlite"}
MASKED = {"env": "tests.any_envs:Masked-v0"}
MASKED_IN_INFO = MASKED | {"env_args": '{"told": "info"}'}
OPTIONS = {"env": "tests.any_envs:Showing-v0", "env_args": '{"needs": {"length": 3}}'}
OPTIONS |= {"reset_options": '{"length": 3}'}
STEERED = {"env": "tests.any_envs:Steered-v0"}
STEERED_BY_SIGHT = STEERED | {"env_args": '{"kind": "image, channels last"}'}
TWIN = {"observability": "full"}
SCALED = {"normalize_reward": "true"}
LONG = SCALED | {"env": "tests.any_envs:Long-v0", "reward_clip": "null"}
IN_PARTS = ", in parts"  # rows whose episodes are stored in parts of PART steps
PART = 5
LAST_STEP = {"last_action_input": "true", "last_reward_input": "true"}
SUBGOALS = {"single_task": "make wood pickaxe", "single_task_goals": "subgoals"}
NORMALISED = {"normalize_observations": "true"}
CURIOUS = {"curiosity_width": 8, "curiosity_weight": 0.5}

ROWS: dict[str, dict[str, Any]] = {
    "PPO CNN": PPO | CNN | {"normalize_reward": "true", "adv_norm": "true"},
    "PPO CNN, MiniGrid by Gymnasium": PPO | CNN | BY_GYMNASIUM | READS,
    "PPO CNN, Procgen": PPO | CNN | {"env": "miner", "n_steps": 384},
    "PPO HELM, MiniGrid by EnvPool": PPO | HELM | BY_ENVPOOL,
    "DQN LSTM, MiniGrid by EnvPool": DQN | LSTM | BY_ENVPOOL,
    "PPO CNN, RND": PPO | CNN | CURIOUS | {"curiosity": "RND", "curiosity_features": "observation"},
    "PPO CNN, suggested goals": PPO | CNN | SUGGESTED | {"suggester": "novelty"},
    "PPO CNN, a task's subgoals": PPO | CNN | GOALS | SUBGOALS,
    "PPO CNN, told of a house": PPO | CNN | HOUSE | READS,
    "PPO CNN, a number is seen": PPO | CNN | {"env": "FrozenLake-v1"},
    "PPO LSTM": PPO | LSTM | {"normalize_reward": "true", "sequences_per_batch": 3},
    "PPO LSTM, a user's environment": PPO
    | LSTM
    | NORMALISED
    | {"env": "tests.any_envs:Sampled-v0", "env_args": '{"kind": "nested"}'},
    "PPO LSTM of two layers, CartPole": PPO | LSTM | {"env": "CartPole-v1", "memory_layers": 2},
    "PPO LSTM, APT": PPO
    | LSTM
    | CURIOUS
    | {"curiosity": "APT", "apt_group": 16, "curiosity_icm": "paper"},
    "PPO GRU, E3B": PPO | GRU | CURIOUS | {"memory_layers": 2, "curiosity": "E3B"},
    "PPO MinGRU, RMSprop": PPO | MIN_GRU | {"optimizer": "RMSprop"},
    "PPO LRU": PPO | LRU | {"memory_layers": 2},
    "PPO FFM": PPO | FFM | {"ffm_periods": "inf,8,4"},
    "PPO mLSTM": PPO | MLSTM | {"env": "CartPole-v1"},
    "PPO Mamba2": PPO | MLSTM | {"model": "Mamba2", "target_kl": 0.01, "n_epochs": 2},
    "DQN GatedDeltaNet": DQN | MLSTM | {"model": "GatedDeltaNet", "optimizer": "AdamW"},
    "PPO GTrXL": PPO | GTRXL | {"memory_layers": 2},
    "PPO GPT, a twin of POPGym": PPO | GPT | TWIN | {"env": "popgym-RepeatPreviousEasy-v0"},
    "PPO GPT of learned positions": PPO
    | GPT
    | MISSIONS
    | READS
    | {"memory_positions": "learned", "memory_feature_scale": "true"},
    "PPO CNN, options at every reset": PPO | CNN | OPTIONS,
    "PPO CNN, forbidden actions": PPO | CNN | MASKED,
    "PPO GPT, forbidden actions, its last step": PPO | GPT | MASKED_IN_INFO | LAST_STEP,
    "PPO HELM, its last step": PPO | HELM | LAST_STEP,
    "PPO LSTM, continuous, its last step": PPO
    | LSTM
    | STEERED
    | LAST_STEP
    | {"state_dependent_std": "true"},
    "PPO GPT, continuous, APT": PPO
    | GPT
    | STEERED
    | NORMALISED
    | CURIOUS
    | {"curiosity": "APT", "apt_group": 16, "curiosity_icm": "paper"},
    "PPO HELM, continuous": PPO | HELM | STEERED_BY_SIGHT,
    "PPO HELM": PPO | HELM | {"adv_norm": "true", "lr_decay": "linear"},
    "PPO HELM of numbers": PPO | HELM | NORMALISED | {"env": "CartPole-v1"},
    "PPO HELM, NovelD": PPO | HELM | CURIOUS | {"curiosity": "NovelD"},
    "PPO HELM reads, and reads out": PPO
    | HELM
    | MISSIONS
    | READS
    | {"text_reader": "both", "text_tokens": 2, "mem_len": 8, "readout_steps": 2},
    "PPO HELM of a decoder, read out": PPO
    | HELM
    | {"language_model": "decoder", "mem_len": 8, "readout_steps": 5},
    "PPO HELMv2": PPO | HELMV2,
    "PPO SHELM": PPO | SHELM,
    "PPO SHELM draws its words": PPO | SAMPLED | {"topk": 3},
    "PPO SHELM reads": PPO | SHELM | MISSIONS | {"text_reader": "memory", "mem_len": 8},
    "PPO, a user's memory": PPO | ECHO,
    "DQN, a user's memory": DQN | ECHO,
    "DQN CNN, suggested goals": DQN | CNN | SUGGESTED | {"suggester": "oracle"},
    "DQN LSTM": DQN | LSTM | SCALED | {"replay_capacity": 60},
    f"DQN LSTM{IN_PARTS}": DQN | LSTM | LONG,
    f"DQN GPT{IN_PARTS}": DQN | GPT | LONG,
    "DQN LSTM of windows, a task": DQN | LSTM | GOALS | SUBGOALS | {"context_length": 5},
    "DQN LSTM, a house without words": DQN | LSTM | HOUSE | {"use_text": "false"},
    "DQN LSTM, forbidden actions": DQN | LSTM | MASKED_IN_INFO,
    "DQN GPT, its last reward": DQN | GPT | NORMALISED | {"last_reward_input": "true"},
    "DQN GPT": DQN | GPT | MAZE,
    "DQN GRU": DQN | GRU,
    "DQN LRU of windows": DQN | LRU | {"context_length": 5},
    "DQN HELM, RND": DQN | HELM | CURIOUS | {"curiosity": "RND", "curiosity_features": "memory"},
    "DQN HELM, read out": DQN | HELM | {"readout_steps": 5, "whiten_memory": "true"},
    "DQN HELMv2": DQN | HELMV2 | MAZE,
    "DQN SHELM": DQN | SHELM | MAZE,
    "DQN SHELM draws its words": DQN | SAMPLED | MAZE | {"topk": 3},
    "DQN CNN reads, NovelD": DQN | CNN | MISSIONS | READS | CURIOUS | {"curiosity": "NovelD"},
    "SAC CNN of two encoders": SAC | CNN | {"shared_encoder": "false"},
    "SAC CNN, NovelD": SAC | CNN | CURIOUS | {"curiosity": "NovelD", "task_reward_weight": 0},
    "SAC LSTM": SAC | LSTM | SCALED | {"learn_temperature": "true"},
    "SAC LSTM, forbidden actions": SAC | LSTM | MASKED | {"learn_temperature": "true"},
    "SAC mLSTM, a twin": SAC | MLSTM | TWIN,
    "SAC GPT": SAC | GPT | {"freeze_critic": "false"},
    "SAC HELM, a house": SAC | HELM | HOUSE | READS | {"text_reader": "memory", "mem_len": 8},
    "SAC HELMv2": SAC | HELMV2 | MAZE,
    "SAC SHELM reads, and reads out": SAC
    | SHELM
    | MISSIONS
    | {"text_reader": "memory", "mem_len": 8, "readout_steps": 2},
    "SAC LSTM, continuous": SAC | LSTM | STEERED | {"learn_temperature": "true"},
    "SAC GPT, continuous, of two encoders": SAC
    | GPT
    | STEERED
    | NORMALISED
    | {"shared_encoder": "false", "replay_capacity": 60},
    "SAC HELM, continuous": SAC | HELM | STEERED_BY_SIGHT | {"freeze_critic": "false"},
    "TD3 LSTM, RND": TD3 | LSTM | STEERED | NORMALISED | CURIOUS | {"curiosity": "RND"},
    "TD3 GPT of two encoders": TD3
    | GPT
    | STEERED
    | {
        "shared_encoder": "false",
        "policy_delay": 3,
        "actor_value": "least",
        "last_reward_input": "true",
    },
    "ELLM": ELLM | SCALED | {"wait_for_reward": "true"},
    f"ELLM{IN_PARTS}": ELLM | LONG,
    "ELLM, any step, several colours": ELLM
    | {"replay_sampling": "step", "optimizer": "RMSprop"}
    | {"env_args": '{"n_colours": 3, "side": 40}'},
    "ELLM reads, APT": ELLM | MISSIONS | READS | {"curiosity": "APT", "curiosity_width": 8},
    "ELLM, goals of a language model": ELLM | SUGGESTED | TOLD_OF_CRAFTER,
    "ELLM, vectors": ELLM | NORMALISED | {"env": "CartPole-v1", "replay_capacity": 1000},
}


@functools.cache
def _models() -> tuple[tempfile.TemporaryDirectory, dict[str, str]]:
    """Return a folder that lives as long as the process, and the tiny models in it."""
    folder = tempfile.TemporaryDirectory()
    encoder, decoder = Path(folder.name, "encoder"), Path(folder.name, "decoder")
    decoder.mkdir()
    made = {"tiny": str(tiny_sentence_encoder(encoder)), "decoder": str(write_decoder(decoder))}
    return folder, made


def words_of(settings: dict[str, Any]) -> list[str]:
    """Return the command line of a row."""
    settings = tiny_settings(settings["model"]) | settings
    made = _models()[1]
    return [f"--var={key}={made.get(str(value), value)}" for key, value in settings.items()]


def train(model, run_id, **changes):
    """Train by the command line, by PPO at tiny sizes unless changed; return the run's folder."""
    return train_row(run_id, PPO | {"model": model} | changes)


def folder_of(run_id):
    (folder,) = Path("experiments").glob(f"*/*/{run_id}")
    return folder


def train_row(run_id, settings, *more):
    """Train by the command line and return the run folder."""
    assert main_program.main([*words_of(settings), *more, f"--run-id={run_id}"]) == 0
    return folder_of(run_id)


def resume(run_id):
    return main_program.main(["--resume", str(folder_of(run_id))])


def signal_at(monkeypatch, number, at):
    """Send this process a signal before vector step `at`, counted from here on."""
    step, n_steps = Collector.step, []

    def stepping(self):
        n_steps.append(1)
        if len(n_steps) == at:
            os.kill(os.getpid(), number)
        return step(self)

    monkeypatch.setattr(Collector, "step", stepping)


def outcome(folder: Path) -> dict[str, Any]:
    """Return the trained state of a finished run and its metrics without times."""
    with (folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    checkpoint = load_checkpoint(folder / LAST)
    kept = {name: checkpoint[name] for name in ("agent", "learner", "env_steps")}
    kept["learner"] |= {"replay": replay_rows(folder, checkpoint["learner"].get("replay"))}
    kept["episodes"] = checkpoint["collector"]["episodes"]
    metrics = [{k: v for k, v in row.items() if not k.startswith(UNEVEN)} for row in rows]
    return {"metrics": metrics, **kept}


def replay_rows(folder: Path, saved: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the rows of a replay, however many files they were written into.

    Files of frames are the same ones whatever happens: their checksums stand for their content.
    """
    if saved is None or "logs" in saved:
        return saved and {name: each for name, each in saved.items() if name != "before"}
    parts = [load_saved(folder / "replay" / name) for name in saved["files"]]
    rows = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    kept = {name: row[-saved["capacity"] :] for name, row in rows.items()}
    return kept | {"n_written": saved["n_written"]}


class Same(str):
    """The path of the first difference of two values; true where there is none."""

    def __bool__(self) -> bool:
        return self == ""


def same(one: Any, other: Any, path: str = "") -> Same:
    """Compare two nested values in every bit."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return Same("" if torch.equal(one, other) else f"{path}: tensors")
    first, second = (dict(enumerate(v)) if isinstance(v, list | tuple) else v for v in (one, other))
    if not isinstance(first, dict) or not isinstance(second, dict) or first.keys() != second.keys():
        return Same("" if first == second else f"{path}: {one!r:.60}, {other!r:.60}")
    found = (same(first[key], second[key], f"{path}.{key}") for key in first)
    return next((each for each in found if not each), Same())
