import math

import pytest
import torch

from tests import golden_data
from trainers.losses import (
    clipped_policy_loss,
    explained_variance,
    generalized_advantages,
    value_loss,
)


def column(*values):
    return torch.tensor(values)[:, None]


def test_advantages_agree_with_the_original():
    gae = golden_data.load("gae")
    ends = torch.cat((gae["episode_starts"][1:], gae["last_dones"][None]))
    advantages = generalized_advantages(
        gae["rewards"],
        gae["values"],
        gae["last_values"],
        1 - ends,
        float(gae["gamma"]),
        float(gae["gae_lambda"]),
    )
    torch.testing.assert_close(advantages, gae["advantages"], atol=1e-5, rtol=0)
    torch.testing.assert_close(advantages + gae["values"], gae["returns"], atol=1e-5, rtol=0)


def test_advantages_by_hand():
    advantages = generalized_advantages(
        rewards=column(1.0, 2.0),
        values=column(0.5, 1.0),
        bootstrap=torch.tensor([4.0]),
        continues=column(1.0, 1.0),
        gamma=0.5,
        gae_lambda=0.5,
    )
    # delta_1 = 2 + 0.5 * 4 - 1 = 3; delta_0 = 1 + 0.5 * 1 - 0.5 = 1; A_0 = 1 + 0.25 * 3
    assert advantages.flatten().tolist() == [1.75, 3.0]


def test_lambda_zero_is_the_one_step_difference():
    rewards, values = torch.randn(5, 2), torch.randn(5, 2)
    bootstrap, continues = torch.randn(2), torch.ones(5, 2)
    advantages = generalized_advantages(rewards, values, bootstrap, continues, 0.9, 0.0)
    following = torch.cat((values[1:], bootstrap[None]))
    torch.testing.assert_close(advantages, rewards + 0.9 * following - values)


def test_lambda_one_is_the_discounted_return_minus_the_value():
    rewards, values = torch.randn(4, 1), torch.randn(4, 1)
    advantages = generalized_advantages(
        rewards, values, torch.tensor([2.0]), torch.ones(4, 1), 0.9, 1.0
    )
    target = torch.tensor([2.0])
    for reward in reversed(rewards):
        target = reward + 0.9 * target
    torch.testing.assert_close(advantages[0] + values[0], target)


def test_nothing_leaks_over_the_end_of_an_episode():
    rewards, values, bootstrap = torch.zeros(3, 1), torch.zeros(3, 1), torch.tensor([100.0])
    continues = column(1.0, 0.0, 1.0)
    advantages = generalized_advantages(rewards, values, bootstrap, continues, 0.99, 0.99)
    assert advantages[:2].abs().max() == 0
    assert advantages[2] == 99


def test_the_policy_loss_by_hand():
    old = torch.zeros(3)
    new = torch.tensor([0.5, 1.1, 1.5]).log()
    result = clipped_policy_loss(new, old, torch.tensor([1.0, -1.0, 2.0]), 0.2)
    # ratios 0.5, 1.1, 1.5: min(0.5, 0.8), min(-1.1, -1.1), min(3, 2.4)
    assert result.loss.item() == pytest.approx(-(0.5 - 1.1 + 2.4) / 3)
    assert result.clip_fraction.item() == pytest.approx(2 / 3)
    assert result.approx_kl.item() == pytest.approx(-math.log(0.5 * 1.1 * 1.5) / 3)


def test_an_unchanged_policy_has_ratio_one():
    log_probs = torch.randn(8)
    result = clipped_policy_loss(log_probs, log_probs, torch.ones(8), 0.2)
    assert (result.loss, result.approx_kl, result.clip_fraction) == (-1, 0, 0)


def test_a_clipped_value_moves_no_further_than_the_range():
    values, old = torch.tensor([3.0, 0.1]), torch.tensor([0.0, 0.0])
    returns = torch.tensor([1.0, 1.0])
    clipped = value_loss(values, old, returns, 0.5)
    assert clipped.item() == pytest.approx((0.5**2 + 0.9**2) / 2)
    assert value_loss(values, old, returns, None).item() == pytest.approx((2**2 + 0.9**2) / 2)


def test_explained_variance_of_a_perfect_a_mean_and_a_constant_target():
    returns = torch.tensor([1.0, 2.0, 3.0])
    assert explained_variance(returns, returns) == 1
    assert explained_variance(torch.full((3,), 2.0), returns) == 0
    assert explained_variance(returns, torch.ones(3)).isnan()
