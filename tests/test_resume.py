"""Runs that are interrupted and go on, through the command line."""

import json
import os
import shutil
import signal

import pytest
import torch
from safetensors.torch import save_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import eval as eval_program
import main as main_program
from envs.episodes import SingleEnvs
from envs.vector import NumpyVectorEnv
from tests import runs
from tests.bad_inputs.harness import refused
from tests.runs import ROWS, folder_of, outcome, resume, same, signal_at, words_of
from tests.tiny_clip import tiny_settings
from trainers import checkpoint, off_policy, sequence_replay
from trainers.checkpoint import (
    BEST,
    LAST,
    PREVIOUS,
    kept_names,
    last_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from trainers.off_policy import OffPolicyLearner
from trainers.rollout import Rollout
from trainers.train import Run
from utils import run_folder as run_description
from utils.run_folder import locked

TINY = runs.PPO | {"n_steps": 128, "checkpoint_minutes": 0, "normalize_reward": "true"}
FROM_REPLAY = runs.DQN | runs.LSTM | {"length": 4, "n_steps": 300, "batch_size": 4}
FROM_REPLAY |= {"warmup_episodes": 3, "replay_capacity": 60, "replay_ratio": 0.25}
FROM_REPLAY |= {"checkpoint_minutes": 0}


def command(model, run_id, base=TINY, **changes):
    return [*words_of(base | {"model": model} | changes), "--run-id", run_id]


@pytest.fixture
def cut(in_empty_folder, monkeypatch, capsys):
    """Return a function that interrupts a run before a vector step and returns its folder."""

    def interrupted(model="CNN", at=39, base=TINY, **changes):
        signal_at(monkeypatch, signal.SIGINT, at)
        assert main_program.main(command(model, "cut", base, **changes)) == 130
        return folder_of("cut")

    return interrupted


@pytest.fixture
def whole(in_empty_folder):
    """Return a function that trains a run and returns its outcome."""

    def trained(model="CNN", base=TINY, **changes):
        assert main_program.main(command(model, "whole", base, **changes)) == 0
        return outcome(folder_of("whole"))

    return trained


@pytest.mark.slow
def test_where_something_else_decides_that_is_said_and_new_episodes_begin(cut, capsys, caplog):
    task = {"env": "tests.any_envs:Unseeded-v0", "env_args": '{"kind": "image, channels last"}'}
    cut(**task)
    assert resume("cut") == 0
    assert "the same seeds and actions lead elsewhere" in caplog.text
    assert "not exactly: in new episodes" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("row", ["PPO HELM", "DQN LSTM", "ELLM"])
def test_where_episodes_cannot_be_saved_new_ones_begin_and_the_folder_says_so(
    row, cut, monkeypatch, capsys
):
    for env in (NumpyVectorEnv, SingleEnvs):
        monkeypatch.delattr(env, "replay")
    n_steps = ROWS[row]["n_steps"]
    folder = cut(ROWS[row]["model"], n_steps // 4 + 1, ROWS[row])
    begun = load_checkpoint(folder / LAST)["env_steps"]
    assert resume("cut") == 0
    assert "in new episodes" in capsys.readouterr().out
    (resumed,) = json.loads((folder / "run.json").read_text())["resumed"]
    assert (resumed["env_steps"], resumed["exact"]) == (begun, False)
    steps = [int(each["env_steps"]) for each in outcome(folder)["metrics"]]
    assert (begun in steps) == (row == "PPO HELM")  # others stop between two updates, too
    assert steps[-1] == n_steps


@pytest.fixture
def saved(monkeypatch):
    """Return a list that is filled with the environment steps of every ckpt_last.pt."""
    steps, save = [], checkpoint.save_checkpoint

    def noting(path, state, previous=None):
        if path.name == LAST:
            steps.append(state["env_steps"])
        save(path, state, previous)

    monkeypatch.setattr(checkpoint, "save_checkpoint", noting)
    return steps


def test_sigusr1_saves_and_goes_on(whole, saved, monkeypatch):
    expected = whole(checkpoint_minutes=60)
    signal_at(monkeypatch, signal.SIGUSR1, at=39)
    assert main_program.main(command("CNN", "asked", checkpoint_minutes=60)) == 0
    assert saved == [32, 128, 32, 96, 128]
    assert not (folder_of("asked") / PREVIOUS).exists()  # nothing of a finished run is written
    assert same(outcome(folder_of("asked")), expected)


def test_rows_behind_the_checkpoint_are_taken_back(whole, cut):
    expected, folder = whole(), cut()
    (folder / PREVIOUS).replace(folder / LAST)  # as if the last save had never been
    with (folder / "metrics.csv").open("a") as file:
        file.write((folder_of("whole") / "metrics.csv").read_text().splitlines()[3] + "\r\n96,0.")
    assert resume("cut") == 0
    assert same(outcome(folder), expected)
    events = EventAccumulator(str(folder)).Reload().Scalars("train/loss")
    assert [event.step for event in events] == [32, 64, 96, 128]


def test_a_run_killed_before_its_first_checkpoint_begins_anew_with_its_own_settings(
    whole, cut, capsys
):
    expected, folder = whole(), cut(at=3)
    (folder / LAST).unlink()
    settings = json.loads((folder / "config.json").read_text())
    edited = settings | {"model": "HELM", "gamma": 0.5, "checkpoint_minutes": 3}
    (folder / "config.json").write_text(json.dumps(edited))
    assert resume("cut") == 2
    assert "config.json differs from run.json in model, gamma." in capsys.readouterr().err
    (folder / "config.json").write_text(json.dumps(settings | {"checkpoint_minutes": 3}))
    assert resume("cut") == 0
    assert same(outcome(folder), expected)


def test_a_run_says_how_to_go_on_and_that_it_is_exact_with_the_same_source_alone(
    cut, monkeypatch, capsys
):
    cut(at=20)
    said = "interrupted after 64 steps. Go on with: python main.py --resume"
    assert said in capsys.readouterr().err
    signal_at(monkeypatch, signal.SIGTERM, at=3)
    assert resume("cut") == 143
    assert "going on after 64 steps, exactly" in capsys.readouterr().out
    monkeypatch.setattr(run_description, "source_sha256", lambda: "edited")
    assert resume("cut") == 0
    assert "not exactly: the source has changed" in capsys.readouterr().out


def test_a_flipped_digit_of_the_history_is_not_exactly(cut, capsys):
    folder = cut()
    path = folder / "metrics.csv"
    content = path.read_bytes().decode()
    digit = content.rindex("64,") - 5
    flipped = f"{content[:digit]}{9 - int(content[digit])}{content[digit + 1 :]}"
    path.write_bytes(flipped.encode())
    assert resume("cut") == 0
    assert "not exactly: metrics.csv has changed since the last" in capsys.readouterr().out
    (resumed,) = json.loads((folder / "run.json").read_text())["resumed"]
    assert not resumed["exact"]
    assert (folder / "metrics.csv.damaged-1").read_bytes() == flipped.encode()


@pytest.mark.slow
@pytest.mark.parametrize("row", ["DQN LSTM", "DQN GPT", "SAC LSTM", "ELLM"])
def test_where_no_episode_ends_a_run_stops_at_any_step_and_goes_on_to_the_bit(
    row, whole, cut, monkeypatch, capsys
):
    monkeypatch.setattr(sequence_replay, "LONGEST_EPISODE", 13)
    settings = ROWS[row] | {"env": "tests.any_envs:Unending-v0", "n_steps": 80}
    settings |= {"normalize_reward": "true", "replay_capacity": 100}
    expected = whole(settings["model"], settings)
    folder = cut(settings["model"], 3, settings)  # no update yet
    assert load_checkpoint(folder / LAST)["env_steps"] == 6
    assert outcome(folder)["metrics"] == []
    for steps in (10, 1, 12):  # before, at and after the first part is stored; in the last
        begun = load_checkpoint(folder / LAST)["env_steps"]
        with monkeypatch.context() as patch:
            signal_at(patch, signal.SIGTERM, at=steps)
            assert resume("cut") == 143
        assert load_checkpoint(folder / LAST)["env_steps"] == begun + 2 * steps
    assert resume("cut") == 0
    assert capsys.readouterr().out.count("steps, exactly") == 4
    assert same(outcome(folder), expected)
    assert float(expected["metrics"][-1]["train/n_gradient_steps"]) > 0


@pytest.mark.parametrize("asked", ["the clock", signal.SIGUSR1])
def test_between_two_updates_a_run_is_saved_when_it_is_time_or_asked_for(
    asked, in_empty_folder, saved, monkeypatch
):
    settings = ROWS["DQN LSTM"] | {"env": "tests.any_envs:Unending-v0", "n_steps": 40}
    if asked == "the clock":
        monkeypatch.setattr(checkpoint, "LEAST_APART", 0)
        settings |= {"checkpoint_minutes": 0}
    else:
        signal_at(monkeypatch, asked, at=8)
    assert main_program.main([*words_of(settings), "--run-id=run"]) == 0
    n_saved = {"the clock": 38, signal.SIGUSR1: 16}[asked]
    assert saved[-2:] == [n_saved, 40]
    assert len(outcome(folder_of("run"))["metrics"]) == 1


def contents(folder):
    """Return every file of a run folder but the lock."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]
    return {str(path): path.read_bytes() for path in paths}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["PPO", "DQN"])
def test_a_refused_resumption_changes_nothing(algorithm, cut, capsys):
    folder = cut() if algorithm == "PPO" else cut("LSTM", 67, FROM_REPLAY)
    state = load_checkpoint(folder / LAST)
    save_checkpoint(folder / LAST, state | {"agent": {}})
    for path in (*folder.glob("replay/*"), folder / "metrics.csv"):
        path.write_bytes(path.read_bytes() + b"of a killed process")
    (folder / PREVIOUS).write_bytes(b"damaged")
    before = contents(folder)
    assert resume("cut") == 2
    assert "does not hold a state of this run" in capsys.readouterr().err
    assert contents(folder) == before
    save_checkpoint(folder / LAST, state)
    assert resume("cut") == 0
    assert "going on after" in capsys.readouterr().out


@pytest.mark.quick("PPO CNN")
@pytest.mark.parametrize("row", ["PPO CNN", "DQN LSTM", "ELLM"])
def test_as_many_checkpoints_as_asked_for_are_kept_each_with_its_replay(
    row, in_empty_folder, monkeypatch
):
    often = {"keep_checkpoints": 4, "checkpoint_minutes": 0}
    often |= {"DQN LSTM": {"n_steps": 400}, "ELLM": {"log_steps": 8}}.get(row, {"n_steps": 400})
    begin = [*words_of(ROWS[row] | often), "--run-id=cut"]
    for go_on, at in (
        (lambda: main_program.main(begin), 90 if row != "ELLM" else 35),
        (lambda: resume("cut"), 20),
    ):
        with monkeypatch.context() as patch:
            signal_at(patch, signal.SIGINT, at)
            assert go_on() == 130
        folder, found = folder_of("cut"), []
        kept = {name: (folder / name).read_bytes() for name in kept_names(4)}
        for name in kept_names(4):  # each is valid where those after it are not
            found.append(last_checkpoint(folder, 10**9))
            assert found[-1]["file"] == name
            (folder / name).unlink()
        steps = [each["env_steps"] for each in found]
        assert steps == sorted(set(steps), reverse=True)
        for name, content in kept.items():
            (folder / name).write_bytes(content)
    assert resume("cut") == 0
    assert [path.name for path in folder.glob("ckpt_last*")] == [LAST]


@pytest.mark.slow
def test_a_copied_best_checkpoint_is_no_run_to_go_on_with(cut, capsys):
    folder = cut()
    previous = (folder / PREVIOUS).read_bytes()
    for path in (folder / LAST, folder / PREVIOUS):
        shutil.copy(folder / BEST, path)
    refused(capsys, "main", ["--resume", str(folder)], f"{folder / LAST}: ", "to play")
    (folder / PREVIOUS).write_bytes(previous)  # with it the run goes on from there
    assert resume("cut") == 0


def test_what_cannot_go_on_gets_one_line(cut, capsys):
    folder = cut(at=3)

    def is_refused(line, *arguments):
        assert line in refused(capsys, "main", arguments)[0]

    is_refused(f"go on with it: python main.py --resume {folder}", *command("CNN", "cut"))
    for words in (["gamma=0.5"], ["n_steps=500", "--var=gamma=1"], ["n_steps=500", "--run-id=x"]):
        is_refused("all settings from the run folder", "--resume", str(folder), "--var", *words)
    for n_steps, line in (("32", "has taken 32 steps. Choose more"), ("x", "n_steps=x")):
        is_refused(line, "--resume", str(folder), "--var", f"n_steps={n_steps}")
    is_refused("not a run folder", "--resume", "nowhere")
    with locked(folder):
        is_refused("another run is writing here", "--resume", str(folder))
    n_bytes = os.path.getsize(folder / "metrics.csv")
    os.truncate(folder / "metrics.csv", 10**12)  # sparse
    for program, words in ("main", ["--resume"]), ("publish", ["--folder", "out"]):
        refused(capsys, program, [*words, str(folder)], "metrics.csv: not a table of main.py")
    os.truncate(folder / "metrics.csv", n_bytes)
    assert resume("cut") == 0
    is_refused("this run is finished", "--resume", str(folder))
    assert "--resume" not in refused(capsys, "main", command("CNN", "cut"))[0]


EVALUATED = {"eval_steps": 48, "eval_episodes": 2}
LONGER = {  # a model, and settings whose schedules do not depend on the number of steps
    "PPO": ("CNN", TINY | EVALUATED),
    "PPO LSTM": ("LSTM", TINY | {"adv_norm": "true"}),
    "ELLM": ("ELLM", runs.ELLM | {"checkpoint_minutes": 0}),
}


def go_on(folder, n_steps):
    return main_program.main(["--resume", str(folder), f"--var=n_steps={n_steps}"])


@pytest.mark.quick("PPO")
@pytest.mark.parametrize("row", LONGER)
def test_a_finished_run_that_goes_on_is_the_longer_run_to_the_bit(row, whole, capsys):
    model, settings = LONGER[row]
    expected, n_steps = whole(model, settings), settings["n_steps"]
    assert main_program.main(command(model, "short", settings, n_steps=n_steps // 2)) == 0
    folder = folder_of("short")
    assert go_on(folder, n_steps) == 0
    assert f"n_steps {n_steps} instead of {n_steps // 2}" in capsys.readouterr().out
    assert same(outcome(folder), expected)
    assert json.loads((folder / "config.json").read_text())["n_steps"] == n_steps
    description = json.loads((folder / "run.json").read_text())
    (entry,) = description["resumed"]
    assert entry["n_steps"] == {"before": n_steps // 2, "after": n_steps}
    assert description["finished"] >= entry["time"]
    refused(capsys, "main", ["--resume", str(folder)], "this run is finished", "--var n_steps=N")


@pytest.mark.slow
@pytest.mark.parametrize("at", [None, 1, 10])
def test_a_run_killed_after_it_was_given_more_steps_goes_on_to_them(at, whole, monkeypatch):
    expected = whole(checkpoint_minutes=60)
    assert main_program.main(command("CNN", "cut", n_steps=64, checkpoint_minutes=60)) == 0
    folder = folder_of("cut")
    with monkeypatch.context() as killed:  # before its first step, or within

        def die(*_):
            raise KeyboardInterrupt

        killed.setattr(*((Run, "train", die) if at is None else (Rollout, "store", die)))
        assert go_on(folder, 128) == 130
    assert "finished" not in json.loads((folder / "run.json").read_text())
    if at == 10:  # between the writing of run.json and of config.json
        settings = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(settings | {"n_steps": 64}))
        assert resume("cut") == 2
        assert go_on(folder, 128) == 0
    else:
        assert resume("cut") == 0
    assert same(outcome(folder), expected)


@pytest.mark.slow
def test_schedules_go_by_the_new_number_of_steps(in_empty_folder):
    settings = FROM_REPLAY | {"exploration_fraction": 1, "epsilon_final": 0}
    assert main_program.main(command("LSTM", "short", settings)) == 0
    folder = folder_of("short")
    assert float(outcome(folder)["metrics"][-1]["train/epsilon"]) == 0
    assert go_on(folder, 600) == 0
    rows = outcome(folder)["metrics"]
    epsilons = [float(row["train/epsilon"]) for row in rows if int(row["env_steps"]) > 300]
    assert 0.4 < epsilons[0] < 0.6
    assert epsilons[-1] == 0
    linear = {"lr_decay": "linear", "min_lr": 0}
    assert main_program.main(command("CNN", "falling", n_steps=64, **linear)) == 0
    folder = folder_of("falling")
    assert go_on(folder, 128) == 0
    rates = [float(row["train/learning_rate"]) for row in outcome(folder)["metrics"]]
    assert rates == pytest.approx([rates[0], 0, rates[0] / 2, 0])


@pytest.mark.slow
def test_other_weights_are_refused_when_resuming_and_when_playing(cut, tmp_path, capsys):
    model = tmp_path / "model"
    shutil.copytree(tiny_settings("HELM")["language_model"], model)
    folder = str(cut("HELM", at=20, language_model=model))
    tensors = torch.load(model / "pytorch_model.bin", weights_only=True)
    save_file(tensors, model / "model.safetensors")  # the same numbers in another file
    (model / "pytorch_model.bin").unlink()
    capsys.readouterr()
    for program, flag in ((main_program, "--resume"), (eval_program, "--ckpt-path")):
        assert program.main([flag, folder]) == 2
        assert "made with another language_model" in capsys.readouterr().err


def test_numbers_that_are_not_finite_stop_the_run(in_empty_folder, monkeypatch, capsys):
    batches, batch = [], Rollout.batch

    def bad_batch(self, samples):
        batches.append(batch(self, samples))
        if len(batches) == 6:
            batches[-1] = batches[-1]._replace(returns=batches[-1].returns * float("nan"))
        return batches[-1]

    monkeypatch.setattr(Rollout, "batch", bad_batch)
    assert main_program.main(command("CNN", "run")) == 1
    folder = folder_of("run")
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert "not finite in epoch 0, minibatch 1, at step 96" in line
    good = load_checkpoint(folder / LAST)
    assert good["env_steps"] == 64
    assert all(value.isfinite().all() for value in good["agent"].values())
    monkeypatch.setattr(Rollout, "batch", batch)
    assert resume("run") == 0


@pytest.mark.slow
def test_a_resumed_run_keeps_its_number_of_threads_and_is_as_deterministic(cut):
    folder = cut("HELM", deterministic="true", threads=2)
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(1)
    assert resume("cut") == 0
    assert torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    run = json.loads((folder / "run.json").read_text())
    assert run["settings"]["threads"] == run["resumed"][0]["hardware"]["threads"] == 2
    assert run["resumed"][0]["exact"]


@pytest.mark.slow
def test_without_checkpoints_nothing_of_the_replay_is_written(cut, capsys):
    folder = cut("LSTM", 90, FROM_REPLAY, save_ckpt="false")
    assert "Nothing is saved (save_ckpt is false)" in capsys.readouterr().err
    assert list(folder.rglob("*.pt")) == []
    assert not (folder / "replay").exists()


@pytest.mark.slow
def test_a_checkpoint_writes_only_what_is_new_of_the_replay(cut):
    run = cut("LSTM", 67, FROM_REPLAY, replay_capacity=100_000)
    folder = run / "replay"
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert len(before) > 1
    assert resume("cut") == 0
    after = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert len(after) > len(before)
    assert {name: after[name] for name in before} == before
    named = load_checkpoint(run / LAST)["learner"]["replay"]["files"]
    assert named.keys() == after.keys()


def damage(path, fault):
    content = path.read_bytes()
    path.unlink() if fault == "missing" else path.write_bytes(b"x" + content[1:])


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "place"), [("missing", 0), ("damaged", -1)])
def test_with_damaged_rows_a_run_goes_on_from_before_them(place, fault, whole, cut, capsys, caplog):
    expected = whole("LSTM", FROM_REPLAY)
    folder = cut("LSTM", 91, FROM_REPLAY)
    last, previous = (load_checkpoint(folder / name) for name in (LAST, PREVIOUS))
    names = [list(each["learner"]["replay"]["files"]) for each in (last, previous)]
    assert names[0][-1] not in names[1]
    damage(folder / "replay" / names[0][place], fault)
    assert resume("cut") == 0
    begun = previous["env_steps"] if place else 0
    assert f"{names[0][place]}: {fault}" in caplog.text
    assert f": {last['env_steps'] - begun:,} steps are lost" in caplog.text
    assert f"going on after {begun} steps, exactly" in capsys.readouterr().out
    assert same(outcome(folder), expected)


HALFWAY = (
    *("DQN LSTM", "DQN GPT, its last reward", "DQN HELM, RND", "SAC LSTM"),
    *("SAC GPT, continuous, of two encoders", "TD3 GPT of two encoders"),
)


@pytest.mark.quick("DQN LSTM")
@pytest.mark.parametrize("row", HALFWAY)
def test_at_every_gradient_step_a_run_stops_and_goes_on_to_the_bit(
    row, in_empty_folder, monkeypatch, capsys
):
    monkeypatch.setattr(off_policy, "SUMMED_AT_ONCE", 4)  # runs stop before, at and after sums
    settings = ROWS[row] | {"n_steps": 104, "replay_ratio": 0.2}  # the last one ends an episode
    assert main_program.main([*words_of(settings), "--run-id=whole"]) == 0
    whole = folder_of("whole")
    n_steps = int(float(outcome(whole)["metrics"][-1]["train/n_gradient_steps"]))
    assert n_steps > 5
    take_step = OffPolicyLearner.take_step

    def stopping(learner):
        taken = take_step(learner)
        if taken:
            os.kill(os.getpid(), signal.SIGTERM)
        return taken

    monkeypatch.setattr(OffPolicyLearner, "take_step", stopping)
    assert main_program.main([*words_of(settings), "--run-id=cut"]) == 143
    folder, n_stops = folder_of("cut"), 1
    while (status := resume("cut")) == 143:
        n_stops += 1
        ended_in_update = load_checkpoint(folder / LAST)["env_steps"] == settings["n_steps"]
    assert (status, n_stops, ended_in_update) == (0, n_steps, True)
    assert capsys.readouterr().out.count("steps, exactly") == n_steps
    assert same(outcome(folder), outcome(whole))
    assert same(*(load_checkpoint(each / BEST)["agent"] for each in (folder, whole)))
