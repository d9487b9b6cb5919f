"""Two ranks beside one process: the same updates, the same runs, one run folder."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

import main as main_program
from envs import make_vector_env
from models import build_agent
from models.observations import Observations
from tests.agents import collect_rollout, small_config
from tests.ranks import errors, on_ranks
from tests.test_resume import command, folder_of, signal_at
from tests.tiny_clip import tiny_settings
from tools.faults import outcome, same
from trainers.checkpoint import LAST, load_checkpoint
from trainers.collector import Collector
from trainers.ppo import PPO
from trainers.ranks import Ranks, joined_ranks
from trainers.rollout import STORED, Rollout

N_ENVS = 4
MAZE = {"env": "RandomMaze-v0", "n_envs": N_ENVS, "n_rollout_steps": 40, "learning_rate": 0.01}
CASES = {
    "single steps": {"model": "CNN-PPO", "n_batches": 5},
    "a running deviation": {"model": "CNN-PPO", "n_batches": 5, "adv_norm": True},
    "sequences": {"model": "Impala-PPO", "sequences_per_batch": 3},
    "one sequence at a time": {"model": "Impala-PPO", "sequences_per_batch": 1},
    "hidden states": {"model": "HELM", "n_batches": 5, "clip_range_vf": 0.2},
}


def plain_descent(parameters, lr, **unused):
    """Return an optimiser whose step is as exact as the gradient.

    Sums of float32 in another order differ in their last bits. AdamW divides a gradient by its own
    size, and so makes a step of the whole learning rate of one that is nothing but such bits.
    """
    return torch.optim.SGD(parameters, lr)


def collector_of(config, ranks=None):
    """Return a collector with a learner whose agent is the same in every process."""
    torch.manual_seed(0)
    ranks = ranks or Ranks()
    env = make_vector_env(ranks.share(config), config.seed)
    agent = build_agent(config, env.single_observation_space, env.single_action_space)
    ranks.synchronize(agent, config)
    learner = PPO(config, agent, ranks)
    learner.optimizer = plain_descent(learner.parameters, config.learning_rate)
    return Collector(env, learner, ranks=ranks)


def part_of(rollout, ranks):
    """Return the rollout of a rank's environments."""
    n_envs = rollout.n_envs // ranks.size
    rows = slice(ranks.rank * n_envs, (ranks.rank + 1) * n_envs)
    images = rollout.observations.images[:, rows]
    part = Rollout(rollout.n_steps, Observations(images[0]), rollout.context[0, rows])
    part.observations.images.copy_(images)
    part.bootstrap = rollout.bootstrap[rows]
    for name in STORED:
        getattr(part, name).copy_(getattr(rollout, name)[:, rows])
    return part


def updated(learner, rollout, permutations):
    learner.rollout = rollout
    metrics = learner.update(progress=0.0, permutations=permutations)
    return {
        "agent": learner.agent.state_dict(),
        "metrics": metrics,
        "advantages": learner.advantage_statistics.state_dict(),
    }


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_with_halves_of_a_rollout_update_like_one_with_the_whole(case, tmp_path):
    changes = MAZE | tiny_settings("HELM") | CASES[case]
    config = small_config(**changes)
    collector = collector_of(config)
    collector.begin(0)
    learner, rollout = collector.learner, collect_rollout(collector)
    n = len(rollout.sequences.firsts) if learner.agent.sequential else rollout.n_samples
    in_order = torch.arange(n)  # most minibatches hold nothing of one of the ranks
    permutations = torch.stack((torch.randperm(n), in_order))

    def on_rank(rank):
        with joined_ranks() as ranks:
            part = part_of(rollout, ranks)
            return updated(collector_of(config, ranks).learner, part, permutations)

    halves = on_ranks(2, on_rank, tmp_path)
    whole = updated(learner, rollout, permutations)
    assert whole["metrics"]["train/grad_norm"] > 0.1
    for half in halves:
        torch.testing.assert_close(half, whole, atol=1e-5, rtol=1e-5)
    assert same(halves[0], halves[1])


def test_no_rank_leaves_before_all_are_done(tmp_path):
    def on_rank(rank):
        with joined_ranks() as ranks:
            if ranks.first:
                time.sleep(0.5)
                (tmp_path / "done").touch()
        return (tmp_path / "done").exists()

    assert on_ranks(2, on_rank, tmp_path) == [True, True]


def with_noise_of_all(arguments, size, rank):
    """Train with the noise of all environments drawn at once, a rank's rows of it used."""
    noise = torch.Generator().manual_seed(0)

    def multinomial(probabilities, n_samples):
        n_envs = len(probabilities)
        drawn = torch.empty(n_envs * size, probabilities.shape[1]).exponential_(generator=noise)
        own = drawn[rank * n_envs : (rank + 1) * n_envs]
        return (probabilities / own).argmax(-1, keepdim=True)

    torch.multinomial = multinomial
    torch.optim.AdamW = plain_descent
    return main_program.main(arguments)


@pytest.mark.parametrize("model", ["HELMv2", "Impala-PPO"])
def test_with_the_same_noise_a_run_of_two_ranks_is_that_of_one(model, in_empty_folder):
    settings = {"n_envs": N_ENVS, "adv_norm": str(model == "HELMv2").lower(), "n_steps": 384}
    settings["learning_rate"] = 0.01
    for size in (1, 2):
        arguments = command(model, f"by-{size}", n_rollout_steps=32, **settings)
        statuses = on_ranks(size, partial(with_noise_of_all, arguments, size), in_empty_folder)
        assert statuses == [0] * size
    one, two = (outcome(folder_of(f"by-{size}")) for size in (1, 2))
    torch.testing.assert_close(two["agent"], one["agent"], atol=1e-5, rtol=1e-5)
    assert two["episodes"] == one["episodes"]
    for row_of_two, row_of_one in zip(two["metrics"], one["metrics"], strict=True):
        expected = {name: float(value or "nan") for name, value in row_of_one.items()}
        found = {name: float(value or "nan") for name, value in row_of_two.items()}
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5, nan_ok=True)


def test_all_ranks_stop_at_the_same_step_and_go_on_exactly(in_empty_folder, monkeypatch, capsys):
    def run(arguments, rank, number=None):
        if number is not None and rank == 1:
            signal_at(monkeypatch, number, at=23)
        return main_program.main(arguments)

    def ranks_run(arguments, size=2, **how):
        return on_ranks(size, partial(run, arguments, **how), in_empty_folder)

    settings = {"n_envs": N_ENVS, "n_steps": 256}
    assert ranks_run(command("HELM", "whole", **settings)) == [0, 0]
    assert (in_empty_folder / "1.out").read_text() == errors(in_empty_folder, 1) == ""
    cut = command("HELM", "cut", checkpoint_minutes=60, **settings)
    assert ranks_run(cut, number=signal.SIGTERM) == [143, 143]
    again = "torchrun --nproc-per-node=2 main.py --resume"
    assert again in errors(in_empty_folder, 0)
    folder = folder_of("cut")
    checkpoint = load_checkpoint(folder / LAST)
    assert checkpoint["env_steps"] == 23 * N_ENVS
    assert len(checkpoint["other_ranks"]) == 1

    assert main_program.main(["--resume", str(folder)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert f"its checkpoint is one of 2 ranks, this is 1. Go on with: {again} {folder}" in line
    assert ranks_run(["--resume", str(folder)]) == [0, 0]
    assert same(outcome(folder), outcome(folder_of("whole")))


def test_a_mistake_is_said_once(in_empty_folder):
    arguments = command("CNN-PPO", "run", n_envs=3)
    statuses = on_ranks(2, lambda rank: main_program.main(arguments), in_empty_folder)
    assert statuses == [2, 2]
    (line,) = errors(in_empty_folder, 0).strip().splitlines()
    assert "3 environments cannot be shared by 2 ranks. Choose a multiple of 2" in line
    assert errors(in_empty_folder, 1) == ""
    assert not Path("experiments").exists()


def test_numbers_that_are_not_finite_stop_all_ranks(in_empty_folder, monkeypatch):
    evaluate = Ranks.evaluate

    def evaluate_badly(self, agent, batch):
        spoiled = batch.returns * float("nan") if self.rank == 1 else batch.returns
        return evaluate(self, agent, batch._replace(returns=spoiled))

    monkeypatch.setattr(Ranks, "evaluate", evaluate_badly)
    arguments = command("CNN-PPO", "run", n_envs=N_ENVS)
    statuses = on_ranks(2, lambda rank: main_program.main(arguments), in_empty_folder)
    assert statuses == [1, 1]
    assert "not finite in epoch 0, minibatch 0" in errors(in_empty_folder, 0)
    bad = torch.load(folder_of("run") / "bad_minibatch.pt", weights_only=True)
    (other,) = bad["other_ranks"]
    assert len(bad["actions"]) + len(other["actions"]) == N_ENVS * 16 // 2


def test_torchrun_trains_and_writes_one_run_folder(in_empty_folder):
    program = Path(main_program.__file__)
    arguments = command("CNN-PPO", "run", n_envs=N_ENVS)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    finished = subprocess.run(
        [*torchrun, program, *arguments], capture_output=True, text=True, env=environment
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("mean return") == 1
    (folder,) = Path("experiments").glob("*/*/*")
    assert [row["env_steps"] for row in outcome(folder)["metrics"]] == ["64", "128"]


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
