"""The best agent of a run, and the report of its returns."""

import csv
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from models import build_agent
from tests.agents import small_config, spaces
from tests.counting import CountingEnv
from trainers.checkpoint import BEST, LAST, load_checkpoint
from trainers.collector import Collector
from trainers.evaluation import FinishedEpisode
from trainers.ppo import PPO
from trainers.train import Run

N_ENVS, LENGTH = 4, 2
STEPS = 50  # of a rollout, in which 100 episodes end
ROLLOUT = N_ENVS * STEPS


class ScoredEnv(CountingEnv):
    """Episodes of one length; all of a rollout have the same return, the next of `scores`."""

    def __init__(self, scores, length=LENGTH):
        super().__init__([length] * N_ENVS)
        self.scores, self.n_steps = scores, 0

    def step(self, actions):
        *what, info = super().step(actions)
        score = self.scores[self.n_steps // STEPS]
        self.n_steps += 1
        info["episode"] |= {"r": np.full(N_ENVS, float(score))}
        return (*what, info)


def run_of(scores, length=LENGTH, n_rollouts=None, showcase=None):
    rounds = {"n_rollout_steps": STEPS, "n_steps": ROLLOUT * (n_rollouts or len(scores))}
    rounds |= {"n_envs": N_ENVS, "n_batches": 1, "n_epochs": 1, "checkpoint_minutes": 0}
    config = small_config(model="CNN-PPO", **rounds)
    learner = PPO(config, build_agent(config, *spaces()))
    return Run(config, learner, Collector(ScoredEnv(scores, length), learner), showcase)


def train(folder, scores, **how):
    """Train with these returns; return the rollout of the best agent, and the run."""
    run = run_of(scores, **how)
    run.train(folder)
    return load_checkpoint(folder / BEST)["env_steps"] / ROLLOUT, run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scores", "length", "best", "best_return"),
    [
        *(([1, 3, 2], 2, 2, 3), ([3, 3, 2], 2, 2, 3), ([3, 2, 3], 2, 3, 3), ([2, 1, 0], 2, 1, 2)),
        ([-50, -27, -30], 2, 2, -27),
        # 32, 32 and 36 episodes end in the first three rollouts.
        ([5, -10, -20, -20, -30], 6, 3, (32 * 5 + 32 * -10 + 36 * -20) / 100),
        ([5, 1], 6, 2, -math.inf),  # fewer than 100 episodes: the newest agent
        ([5, 1], 10_000, 2, -math.inf),
    ],
)
def test_the_best_agent_is_the_newest_with_the_highest_mean_of_100_episodes(
    scores, length, best, best_return, tmp_path
):
    rollout, run = train(tmp_path, scores, length=length)
    assert rollout == best
    assert run.best_return == pytest.approx(best_return)


def test_the_best_agent_is_kept_as_it_collected_the_episodes(tmp_path, monkeypatch):
    acted = []

    def update(self, progress):
        acted.append({name: value.clone() for name, value in self.agent.state_dict().items()})
        return original(self, progress)

    original = PPO.update
    monkeypatch.setattr(PPO, "update", update)
    train(tmp_path, [1, 3, 2])
    kept = load_checkpoint(tmp_path / BEST)["agent"]
    assert all(torch.equal(kept[name], acted[1][name]) for name in kept)
    assert not all(torch.equal(kept[name], acted[2][name]) for name in kept)


def test_a_resumed_run_knows_what_was_best(tmp_path):
    first = run_of([3, 2], n_rollouts=1)
    first.train(tmp_path)
    second = run_of([2], n_rollouts=2)
    second.load_state_dict(load_checkpoint(tmp_path / LAST))
    second.train(tmp_path)
    assert load_checkpoint(tmp_path / BEST)["env_steps"] / ROLLOUT == 1


def rows(folder):
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_before_an_episode_has_ended_there_is_no_mean_return(tmp_path):
    train(tmp_path, [0, 7, 7], length=60)  # all end in the second rollout
    columns = ("rollout/return_mean", "rollout/length_mean")
    found = [[row[name] for name in columns] for row in rows(tmp_path)]
    assert found == [["", ""], ["7.0", "60.0"], ["7.0", "60.0"]]


def test_the_published_mean_return_is_padded_with_zeros(tmp_path):
    class Staggered(ScoredEnv):
        def __init__(self):
            super().__init__([8, 8])
            self.lengths = np.array([40, 60, 60, 60])

    run = run_of([8, 8])
    run.collector.env = Staggered()
    run.train(tmp_path)
    columns = ("rollout/return_mean", "rollout/return_mean_padded", "rollout/n_episodes")
    found = [[row[name] for name in columns] for row in rows(tmp_path)]
    assert found == [["8.0", "2.0", "1"], ["8.0", "8.0", "5"]]


@pytest.mark.parametrize(
    ("n_episodes", "mean", "best", "line"),
    [
        (250, 0.5, 0.75, "0.500 (best 0.750) over the last 100 episodes"),
        (37, 0.5, -math.inf, "0.500 over all 37 episodes"),
        (0, math.nan, -math.inf, "none, no episode has ended"),
    ],
)
def test_a_report_says_over_which_episodes_it_averages(n_episodes, mean, best, line):
    run = run_of([1])
    run.seconds, run.best_return, run.collector.n_episodes = 2.0, best, n_episodes
    run.collector.episodes.append(FinishedEpisode(mean, 5))
    assert run.report(Path("folder")).splitlines()[1].strip() == f"mean return       {line}"
    run.evaluation = SimpleNamespace(latest=1.0)
    greedy, exploring = run.report(Path("folder")).splitlines()[1:3]
    assert greedy.split() == ["greedy", "evaluation", "1.000"]
    assert exploring.endswith(", exploring")
    assert "play it           python eval.py" in run.report(Path("folder"))
    run.config = run.config.replace(save_ckpt=False)
    assert "play it           not possible: save_ckpt=false keeps" in run.report(Path("folder"))
