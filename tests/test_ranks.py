"""Two ranks: equal parameters, one run folder, stopping together and going on exactly."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import main as main_program
from main import build_run
from models.language.load import local_main_process_first
from models.observations import Moments
from tests import runs
from tests.ranks import errors, on_ranks
from tests.runs import ELLM, LSTM, NORMALISED, READS, REPLAY, folder_of, outcome, same, signal_at
from tests.test_threads import ROOT
from trainers.checkpoint import LAST, load_checkpoint
from trainers.ppo import PPO
from trainers.ranks import joined_ranks
from trainers.rollout import Rollout
from trainers.settings import RunSettings
from utils.errors import UserError
from utils.given_settings import load_config

N_ENVS = 4
ROLLOUTS = runs.PPO | {"normalize_reward": "true", "n_steps": 256}
SEQUENCES = REPLAY | {"env": "VisualMatch-v0", "length": 2, "n_steps": 1024, "batch_size": 6}
SEQUENCES |= {"warmup_episodes": 2, "replay_ratio": 0.1}
FRAMES = ELLM | READS | {"n_steps": 480, "replay_capacity": 90, "log_steps": 60}
RUNS = {
    "single steps": ROLLOUTS | {"model": "CNN-PPO", "adv_norm": "true"},
    "numbers": ROLLOUTS | LSTM | NORMALISED | {"env": "CartPole-v1"},
    "sequences": ROLLOUTS
    | runs.CURIOUS
    | {"model": "Impala-PPO", "sequences_per_batch": 3, "curiosity": "E3B"},
    "statistics": ROLLOUTS | {"model": "HELMv2", "curiosity": "RND", "curiosity_batches": 2},
    "DQN": SEQUENCES | LSTM | {"algorithm": "DQN", "curiosity": "NovelD"},
    "SAC": SEQUENCES | {"model": "CNN", "algorithm": "SAC", "learn_temperature": "true"},
    "ELLM": FRAMES,
}


def words_of(name, **changes):
    """Return the command line of a tiny run."""
    return runs.words_of(RUNS[name] | {"n_envs": N_ENVS} | changes)


def config_of(words):
    overrides = [word.removeprefix("--var=") for word in words]
    return load_config(None, overrides).part(RunSettings)


def trained(size, folder, config):
    """Return the states of every rank after a run: agent, learner, observations."""

    def on_rank(rank):
        with joined_ranks() as ranks, build_run(config, ranks) as run:
            (folder / "run").mkdir(exist_ok=True)
            run.train(folder / "run")
            state = run.state_dict()
            collected = run.collector.percept.observations.any()
            return {"agent": state["agent"], "learner": state["learner"], "seen": collected}

    return on_ranks(size, on_rank, folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_ranks_that_see_different_things_end_with_the_same_agent(name, in_empty_folder):
    one, two = trained(2, in_empty_folder, config_of(words_of(name, save_ckpt="false")))
    assert not torch.equal(one["seen"], two["seen"])
    assert same(one["agent"], two["agent"])
    for part in ("optimizer", "optimizers", "networks", "target"):
        assert same(one["learner"].get(part), two["learner"].get(part)), part
    if name == "numbers":
        assert one["agent"]["encoder.normalizer.count"] == RUNS[name]["n_steps"]
    if name == "single steps":
        assert not same(one["learner"]["advantages"], two["learner"]["advantages"])
    assert one["learner"].get("counts", {"n_updates": 1})["n_updates"] > 0
    if "curiosity" in RUNS[name]:
        curious = [rank["learner"]["reward"] for rank in (one, two)]
        assert same(*(each["optimizer"] for each in curious))
        networks = [each["networks"] for each in curious]
        own = [key for key in networks[0] if not torch.equal(networks[0][key], networks[1][key])]
        assert all("standardise" in key for key in own)  # statistics of each one's observations


def test_moments_are_those_of_all_ranks_rows(tmp_path):
    rows = 1e5 + torch.randn(30, 4)
    shares = rows[:7], rows[7:]

    def on_rank(rank):
        with joined_ranks() as ranks:
            return tuple(ranks.joined(Moments.of(shares[rank])))

    one, two = on_ranks(2, on_rank, tmp_path)
    assert same(one, two)
    for found, expected in zip(one, Moments.of(rows), strict=True):
        torch.testing.assert_close(found, torch.as_tensor(expected, dtype=torch.float64))


def three_steps(step, ranks):
    """Take steps by the gradients of some ranks' batches; return parameters and norms."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 2))
    parameters = list(network.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=0.1)
    norms = []
    for number in range(3):
        optimizer.zero_grad()
        for rank in ranks:
            torch.manual_seed(10 * number + rank)
            loss = network(torch.randn(4, 5)).square().mean() / len(ranks)
            # In the second step the first layer's bias has no gradient on the second rank.
            bias = network[0].bias
            known = None if bias.grad is None else bias.grad.clone()
            loss.backward()
            if rank == number == 1:
                bias.grad = known
        norms.append(step(optimizer, parameters, 0.1 if number else 1e6))
    return [tensor.detach().clone() for tensor in (*parameters, torch.stack(norms))]


def test_a_step_of_ranks_is_that_of_one_process_with_the_mean_of_their_gradients(tmp_path):
    def on_rank(rank):
        with joined_ranks() as ranks:
            return three_steps(ranks.step, [rank])

    def plain(optimizer, parameters, max_norm):
        norm = nn.utils.clip_grad_norm_(parameters, max_norm)
        optimizer.step()
        return norm

    expected = three_steps(plain, [0, 1])
    for found in on_ranks(2, on_rank, tmp_path):
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["statistics", "DQN", "ELLM"])
def test_all_ranks_stop_together_and_go_on_exactly(name, in_empty_folder, monkeypatch, capsys):
    def run(arguments, rank, number=None):
        if number is not None and rank == 1:
            signal_at(monkeypatch, number, at=23)
        return main_program.main(arguments)

    def ranks_run(arguments, size=2, **how):
        return on_ranks(size, partial(run, arguments, **how), in_empty_folder)

    assert ranks_run([*words_of(name), "--run-id=whole"]) == [0, 0]
    assert (in_empty_folder / "1.out").read_text() == errors(in_empty_folder, 1) == ""
    assert ranks_run([*words_of(name), "--run-id=cut"], number=signal.SIGTERM) == [143, 143]
    again = "torchrun --nproc-per-node=2 main.py --resume"
    assert again in errors(in_empty_folder, 0)
    folder = folder_of("cut")
    checkpoint, end = (load_checkpoint(each / LAST) for each in (folder, folder_of("whole")))
    assert 23 * N_ENVS <= checkpoint["env_steps"] < end["env_steps"]
    assert len(checkpoint["other_ranks"]) == 1

    capsys.readouterr()  # a model that the fixtures wrote
    assert main_program.main(["--resume", str(folder)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert f"its checkpoint was made by 2 ranks, not by 1. Go on with: {again} {folder}" in line
    assert ranks_run(["--resume", str(folder)]) == [0, 0]
    assert same(outcome(folder), outcome(folder_of("whole")))


@pytest.mark.slow
def test_the_first_rank_counts_the_episodes_of_all(in_empty_folder):
    settings = {"env": "TMazePassive-v0", "length": 1, "normalize_reward": "false"}
    arguments = [*words_of("single steps", **settings), "--run-id=run"]
    statuses = on_ranks(2, lambda rank: main_program.main(arguments), in_empty_folder)
    assert statuses == [0, 0]
    found = outcome(folder_of("run"))
    lengths = {length for _, length, _ in found["episodes"]}
    assert len(lengths) == 1
    assert int(found["metrics"][-1]["rollout/n_episodes"]) == 256 // lengths.pop()
    assert {success for _, _, success in found["episodes"]} == {False, True}


def bad_batch(monkeypatch):
    batch = Rollout.batch
    nan = {"returns": torch.full((N_ENVS // 2 * 16 // 2,), float("nan"))}
    monkeypatch.setattr(Rollout, "batch", lambda *given: batch(*given)._replace(**nan))


def bad_news(monkeypatch):
    def observe(self, transition):
        raise UserError("env: not as it was")

    monkeypatch.setattr(PPO, "observe", observe)


ALONE = "the ranks have lost each other"
FAULTS = {  # of the second rank: the status of both, the last lines of the first and the second
    "numbers that are not finite": ({}, bad_batch, 1, "not finite in epoch 0, minibatch 0", ""),
    "another environment": ({}, bad_news, 1, ALONE, "rank 1: env: not as it was"),
    "a mistake, said once": ({"n_envs": 3}, None, 2, "3 environments cannot be shared by 2", ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_all_ranks_end_by_what_goes_wrong_in_one(name, in_empty_folder, monkeypatch):
    changes, fault, status, first, second = FAULTS[name]

    def on_rank(rank):
        if rank == 1 and fault:
            fault(monkeypatch)
        return main_program.main([*words_of("single steps", **changes), "--run-id=run"])

    assert on_ranks(2, on_rank, in_empty_folder) == [status] * 2
    assert first in errors(in_empty_folder, 0)
    assert second in errors(in_empty_folder, 1)
    assert status == 1 or not errors(in_empty_folder, 1)
    assert Path("experiments").exists() == (status == 1)


@pytest.mark.slow
def test_torchrun_trains_and_writes_one_run_folder(in_empty_folder):
    arguments = [*words_of("DQN"), "--run-id=run"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    finished = subprocess.run(
        [*torchrun, ROOT / "main.py", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("mean return") == 1
    (folder,) = Path("experiments").glob("*/*/*")
    assert float(outcome(folder)["metrics"][-1]["train/n_gradient_steps"]) > 0


@pytest.mark.parametrize("changes", [{}, {"RANK": "2"}, {"RANK": "x"}, {"MASTER_ADDR": ""}])
def test_a_world_size_without_torchrun_gets_one_line(changes, monkeypatch, capsys):
    complete = {"RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "1"}
    complete |= {"MASTER_ADDR": "127.0.0.1"} if changes else {}
    for name, value in ({"WORLD_SIZE": "2"} | (complete | changes if changes else {})).items():
        monkeypatch.setenv(name, value)
    assert main_program.main([]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "Start with torchrun, or unset WORLD_SIZE" in line
    assert all(name in line for name in changes or ("RANK", "MASTER_PORT"))


def test_the_first_process_loads_before_the_others(tmp_path):
    def load(rank):
        if rank == 0:
            (tmp_path / "fetched").write_text("weights")
        return (tmp_path / "fetched").read_text()

    def function(rank):
        with joined_ranks():
            return local_main_process_first(lambda: load(rank))

    assert on_ranks(3, function, tmp_path) == ["weights"] * 3


def test_an_error_in_loading_is_said_once(tmp_path):
    def load():
        raise UserError("no such weights")

    def function(rank):
        with joined_ranks(), pytest.raises(UserError if rank == 0 else SystemExit):
            local_main_process_first(load)
        return True

    assert on_ranks(2, function, tmp_path) == [True, True]
    assert errors(tmp_path, 1) == ""
