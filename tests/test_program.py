"""The programs through their command lines, with tiny settings."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch

import eval as eval_program
import main as main_program
from tests import runs
from tests.full_disk import largest_file
from tests.runs import PPO, words_of
from tests.tiny_clip import tiny_settings
from tests.tiny_decoders import tiny_decoder_folder
from trainers.checkpoint import BEST, LAST

TASK = "MiniGrid-Empty-5x5-v0"
TINY = PPO | {"env": TASK, "n_steps": 64}


def train(name, run_id, **changes):
    return runs.train(run_id, TINY | {"model": name} | changes)


def metrics(folder):
    return runs.outcome(folder)["metrics"]


def test_an_agent_is_trained_then_evaluated(in_empty_folder, capsys):
    folder = train(name := "HELM", "first")
    assert str(folder) == f"experiments/{name}/{TASK}/first"
    assert {path.name for path in folder.iterdir()} >= {
        *("config.json", "run.json", "metrics.csv", BEST, LAST)
    }
    assert [row["env_steps"] for row in metrics(folder)] == ["32", "64"]
    assert "mean return" in capsys.readouterr().out

    assert eval_program.main(["--ckpt-path", str(folder), "--n-episodes", "3"]) == 0
    (result,) = folder.glob("ckpt_best_eval_*.json")
    result = json.loads(result.read_text())
    assert len(result["returns"]) == len(result["lengths"]) == 3
    assert result["return_mean"] == pytest.approx(sum(result["returns"]) / 3)
    assert "spread" in capsys.readouterr().out
    recordings = sorted(Path("episodes", TASK, name).glob("*.npz"))
    for path, length, episode_return in zip(
        recordings, result["lengths"], result["returns"], strict=True
    ):
        with np.load(path, allow_pickle=False) as arrays:
            assert arrays["observations"].shape == (length, 3, 56, 56)
            assert arrays["rewards"].sum() == pytest.approx(episode_return)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen3"])
def test_any_decoder_serves_as_memory(kind, in_empty_folder):
    settings = {"language_model": str(tiny_decoder_folder(in_empty_folder / "model", kind))}
    first, second = (train("HELM", name, mem_len=9, **settings) for name in ("first", "second"))
    assert [row["env_steps"] for row in metrics(first)] == ["32", "64"]
    assert metrics(first) == metrics(second)
    assert eval_program.main(["--ckpt-path", str(first), "--n-episodes", "1"]) == 0


def test_an_evaluation_is_repeatable_and_restores_the_agent(in_empty_folder):
    folder = train("HELM", "first")
    results = []
    for policy in ([], [], ["--greedy"], ["--random"]):
        command = ["--ckpt-path", str(folder / LAST), "--n-episodes", "4", "--seed", "5", *policy]
        assert eval_program.main(command) == 0
        name = "".join(policy).removeprefix("--") or "sampled"
        path = folder / f"ckpt_last_eval_{name}_4_episodes_seed_5.json"
        results.append(json.loads(path.read_text()))
    assert results[0] == results[1]
    assert results[0]["returns"] != results[3]["returns"]
    assert results[2]["greedy"]
    chosen = [result["actions"] for result in results]
    assert chosen == ["sampled", "sampled", "most probable", "random"]


def test_an_evaluation_says_who_plays_and_keeps_chance_apart(in_empty_folder, capsys):
    folder = train("CNN-PPO", "first")

    def first_line(path, policy):
        capsys.readouterr()
        assert eval_program.main(["--ckpt-path", str(path), "--n-episodes", "2", policy]) == 0
        return capsys.readouterr().out.splitlines()[0]

    played = f"CNN-PPO on {TASK}, from {folder / BEST} of step 64"
    assert first_line(folder, "--greedy") == played
    at_random = f"random actions on {TASK}, the environment of {folder / LAST} of step 64"
    assert first_line(folder / LAST, "--random") == at_random
    kept = sorted(path.parent.name for path in Path("episodes", TASK).rglob("*.npz"))
    assert kept == ["CNN-PPO", "CNN-PPO", "random", "random"]


def test_the_settings_of_a_run_are_printed_and_nothing_else(in_empty_folder, capfd):
    folder = train("CNN-PPO", "first", gamma=0.5)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    capfd.readouterr()
    assert main_program.main(["--print-config", "--resume", str(folder)]) == 0
    printed = capfd.readouterr()
    assert json.loads(printed.out) == json.loads((folder / "config.json").read_text())
    assert not printed.err
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_help_prints_every_setting(capsys):
    with pytest.raises(SystemExit) as exit_:
        main_program.main(["--help"])
    assert exit_.value.code == 0
    assert "  gae_lambda (a number, default 0.99)" in capsys.readouterr().out


TRAINING_MISTAKES = {
    "algorithm=PPPO": "known: PPO, DQN, SAC, NStepDQN. Did you mean 'PPO'?",
    "model=HELLM": "Did you mean 'HELM'?",
    "env=Pong": "unknown environment 'Pong'",
    "n_layer=9 language_model=all-MiniLM-L6-v2": "n_layer: 9 is more than the 6 layers",
    "model=HELMv2 clip_encoder=ViT-B16": "Did you mean 'ViT-B-16'?",
    "model=HELMv2": "Run: python prepare_embeddings.py",
    "model=SHELM clip_encoder=ViT-B-16": "is missing. Run: python prepare_embeddings.py --suite "
    "minigrid --clip-encoder ViT-B-16",
    "model=SHELM env=caveflyer": "grid-clip knows the images of MiniGrid-* and BabyAI-* only, and "
    "env is 'caveflyer'",
    "model=HELMv2 env=RandomMaze-v0": "grid-clip knows the images of MiniGrid-* and BabyAI-* only",
    "device=cpu:7": "device: 'cpu:7' is not on this",
    f"env={'x' * 100_000}": "xxx ... xxx",
}


@pytest.mark.parametrize("mistake", TRAINING_MISTAKES, ids=lambda text: text[:40])
def test_a_mistake_gets_one_line_and_leaves_nothing(mistake, in_empty_folder, capsys):
    assert main_program.main([f"--var={text}" for text in mistake.split()]) == 2
    assert_one_line(capsys, TRAINING_MISTAKES[mistake])
    assert list(in_empty_folder.iterdir()) == []


def test_less_memory_than_a_step_of_shelm_gets_one_line(in_empty_folder, capsys):
    settings = {"model": "SHELM", **tiny_settings("SHELM"), "mem_len": 1}
    capsys.readouterr()  # what making the embeddings printed
    assert main_program.main([f"--var={key}={value}" for key, value in settings.items()]) == 2
    assert_one_line(capsys, "mem_len: 1 is below the 2 tokens of a step (topk)")
    assert list(in_empty_folder.iterdir()) == []


def assert_one_line(capsys, text):
    captured = capsys.readouterr()
    assert text in captured.err
    assert len(captured.err.strip().splitlines()) == 1, captured.err
    assert captured.out == ""


@pytest.mark.parametrize("name", ["transfo-xl-wt103", "someone/some-bert"])
def test_a_hub_out_of_reach_names_the_offline_choices(name, in_empty_folder, monkeypatch, capsys):
    def unreachable(*arguments, **options):
        raise huggingface_hub.errors.LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", unreachable)
    assert main_program.main(["--var", f"language_model={name}"]) == 2
    assert_one_line(capsys, "all-MiniLM-L6-v2")
    assert list(in_empty_folder.iterdir()) == []


def test_a_run_id_in_use_is_refused(in_empty_folder, capsys):
    train("CNN-PPO", "first")
    capsys.readouterr()
    assert main_program.main([*words_of(TINY | {"model": "CNN-PPO"}), "--run-id=first"]) == 2
    assert_one_line(capsys, "exists already")


EVALUATION_MISTAKES = {
    "nothing given": ([], "--ckpt-path"),
    "missing": (["--ckpt-path", "nowhere"], "no such file or folder"),
    "empty folder": (["--ckpt-path", "empty"], "holds neither"),
    "text file": (["--ckpt-path", "text.pt"], "not a checkpoint"),
    "another torch file": (["--ckpt-path", "other.pt"], "not a checkpoint of this program"),
    "an option of main.py": (["--ckpt-path", "text.pt", "--deterministic"], "--greedy"),
    "two policies": (["--ckpt-path", "text.pt", "--greedy", "--random"], "not allowed with"),
}


@pytest.mark.parametrize("mistake", EVALUATION_MISTAKES)
def test_a_mistake_in_an_evaluation_gets_one_line(mistake, in_empty_folder, capsys):
    (in_empty_folder / "empty").mkdir()
    (in_empty_folder / "text.pt").write_text("hello")
    torch.save({"weights": torch.zeros(3)}, "other.pt")
    before = sorted(in_empty_folder.rglob("*"))
    command, line = EVALUATION_MISTAKES[mistake]
    assert eval_program.main(command) == 2
    assert_one_line(capsys, line)
    assert sorted(in_empty_folder.rglob("*")) == before


RESULT = "ckpt_best_eval_sampled_1_episodes_seed_0"
TAKEN_PLACES = {
    "the result": ("{run}/{result}.json", []),
    "what becomes the result": ("{run}/{result}.json.partial", []),
    "the page": ("{run}/{result}.html", ["--report"]),
    "an episode": ("episodes/{task}/CNN-PPO/first_{result}_001.npz", []),
    "a movie": ("episodes/{task}/CNN-PPO/first_{result}_001.mp4", ["--video"]),
}


def test_an_evaluation_whose_files_cannot_be_written_is_not_played(in_empty_folder, capsys):
    run = train("CNN-PPO", "first")

    def refused(line, *options, checkpoint=run):
        capsys.readouterr()
        before = sorted(in_empty_folder.rglob("*"))
        command = ["--ckpt-path", str(checkpoint), "--n-episodes", "1", *options]
        assert eval_program.main(command) == 2
        shown = capsys.readouterr()
        assert line in shown.err
        assert len(shown.err.splitlines()) == 1
        assert not shown.out
        assert sorted(in_empty_folder.rglob("*")) == before

    for place, options in TAKEN_PLACES.values():
        taken = Path(place.format(run=run, result=RESULT, task=TASK))
        taken.mkdir(parents=True)
        refused(f"{taken}: a folder, where a file is to be written", *options)
        taken.rmdir()
    shutil.rmtree("episodes")
    Path("episodes").touch()
    refused("is not a folder", "--report")
    Path("episodes").unlink()
    long = run / f"{'c' * 210}.pt"
    shutil.copy(run / BEST, long)
    refused("no room", checkpoint=long)


def test_an_evaluation_leaves_movies(in_empty_folder):
    folder = train("SHELM", "first")
    command = ["--ckpt-path", str(folder), "--n-episodes", "1", "--video"]
    assert eval_program.main(command) == 0
    kept = Path("episodes", TASK, "SHELM").iterdir()
    assert {path.suffix for path in kept} == {".npz", ".gif", ".mp4"}
    assert not list(folder.glob("*.html"))


@pytest.mark.parametrize(
    ("n_bytes", "option", "named"),
    [
        (100, [], ".npz: "),
        (1_000, [], ".npz: "),
        (3_000, ["--video"], ".mp4 and .gif cannot be written"),
        (9_000, ["--report"], ".html: "),
    ],
)
def test_an_evaluation_that_does_not_fit_on_the_disk_leaves_nothing_half_written(
    n_bytes, option, named, in_empty_folder, capsys
):
    folder = train("CNN-PPO", "first", env="RandomMaze-v0")
    capsys.readouterr()
    before = set(in_empty_folder.rglob("*"))
    with largest_file(n_bytes):
        command = ["--ckpt-path", str(folder), "--n-episodes", "1", *option]
        assert eval_program.main(command) == 1
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert named in error.splitlines()[-1]
    new = {path for path in in_empty_folder.rglob("*") if path.is_file()} - before
    assert not [path for path in new if "partial" in path.name]
    for path in new:
        if path.suffix == ".npz":
            with np.load(path) as arrays:
                assert len(arrays["actions"]) == len(arrays["observations"])


def test_a_reader_who_has_had_enough_gets_no_traceback():
    listing = [sys.executable, main_program.__file__, "--list-configs"]
    with subprocess.Popen(listing, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.wait(60) == 128 + signal.SIGPIPE
        assert process.stderr.read() == b""
