"""Continuous actions: the squashed Gaussian, and what cannot be acted with."""

import math
import re

import numpy as np
import pytest
import torch

import helm
import main as main_program
from models.heads import LARGEST, SquashedGaussian
from tests.runs import PPO, STEERED, words_of
from utils.errors import RunError

STEERED_PPO = PPO | STEERED | {"model": "LSTM", "memory_width": 8}


@pytest.mark.parametrize("log_std", [-2.0, 0.0, 1.0])
def test_log_probabilities_and_entropy_are_those_of_the_density(log_std):
    mean = torch.tensor([[0.3, -1.1]], dtype=torch.float64)
    policy = SquashedGaussian(mean, torch.full((2,), log_std, dtype=torch.float64))
    # p(a) = N(atanh a) / (1 - a^2) for each number, summed up over a fine grid.
    edges = torch.linspace(-12, 12, 200_001, dtype=torch.float64).tanh()
    a, width = (edges[1:] + edges[:-1]) / 2, edges.diff()
    z = (a.atanh()[:, None] - mean) / math.exp(log_std)
    log_p = -0.5 * z**2 - log_std - 0.5 * math.log(2 * math.pi) - torch.log1p(-(a**2))[:, None]
    assert (log_p.exp() * width[:, None]).sum(0).tolist() == pytest.approx([1, 1], abs=1e-4)
    found = policy.log_prob(a[:, None].expand(-1, 2))
    torch.testing.assert_close(found, log_p.sum(1), atol=1e-6, rtol=1e-6)
    entropy = -(log_p.exp() * log_p * width[:, None]).nan_to_num(0).sum()
    assert policy.entropy().item() == pytest.approx(entropy.item(), abs=2e-2)


def test_actions_stay_where_their_density_is_finite():
    policy = SquashedGaussian(torch.tensor([[50.0, -50.0]]), torch.zeros(2))
    for deterministic in (False, True):
        actions = policy.choose(deterministic)
        assert actions.abs().max() <= LARGEST
        assert policy.log_prob(actions).isfinite().all()


def test_a_policy_that_has_diverged_is_told():
    with pytest.raises(RunError, match=r"no action can be drawn: .*weights have grown too large"):
        SquashedGaussian(torch.full((1, 2), torch.nan), torch.zeros(2)).choose()


REFUSED = {
    "DQN": ({"algorithm": "DQN"}, "algorithm: DQN is for discrete actions, and .*Box"),
    "ELLM": (
        {"algorithm": "EllmDQN", "model": "ELLM"},
        "algorithm: EllmDQN is for discrete actions, and .*Choose algorithm=PPO",
    ),
    "APT": ({"curiosity": "APT"}, "curiosity_icm: ellm supports discrete actions only"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_needs_discrete_actions_is_refused(case, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changes, line = REFUSED[case]
    given = {"env": "Pendulum-v1", "model": "CNN", "showcase_minutes": "null"} | changes
    assert main_program.main(words_of(given)) == 2
    (told,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert re.search(line, told), told
    assert not list(tmp_path.iterdir())


def test_a_program_plays_with_numbers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = {k: v for k, v in STEERED_PPO.items() if k != "showcase_minutes"}
    run = helm.train(settings | {"n_steps": 64, "showcase_minutes": None})
    with helm.load(run) as player:
        observation, rewards = player.reset(seed=0), []
        while not player.ended:
            action = player.act(observation)
            assert action.shape == (2,)
            assert np.abs(action).max() <= 1
            observation, reward, *_ = player.step(action)
            rewards.append(reward)
    assert len(rewards) == 4
