import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.agent import allowed
from tests import golden_data
from trainers import losses
from trainers.ppo import explained_variance
from trainers.rollout import generalized_advantages


def test_advantages_agree_with_the_original():
    gae = golden_data.load("gae")
    ends = torch.cat((gae["episode_starts"][1:], gae["last_dones"][None]))
    steps = gae["rewards"], gae["values"], gae["last_values"], 1 - ends
    advantages = generalized_advantages(*steps, float(gae["gamma"]), float(gae["gae_lambda"]))
    torch.testing.assert_close(advantages, gae["advantages"], atol=1e-5, rtol=0)
    torch.testing.assert_close(advantages + gae["values"], gae["returns"], atol=1e-5, rtol=0)


@given(st.integers(0, 2**31), st.floats(0, 1), st.floats(0, 1))
def test_advantages_are_the_discounted_differences_of_their_own_episode(seed, gamma, lamda):
    torch.manual_seed(seed)
    rewards, values = torch.randn(2, 6, 3, dtype=torch.float64)
    bootstrap, continues = torch.randn(3, dtype=torch.float64), (torch.rand(6, 3) > 0.3).double()
    found = generalized_advantages(rewards, values, bootstrap, continues, gamma, lamda)
    next_values = torch.cat((values[1:], bootstrap[None]))
    for n in range(3):
        for t in range(6):
            expected, weight = 0.0, 1.0
            for k in range(t, 6):
                delta = rewards[k, n] + gamma * continues[k, n] * next_values[k, n] - values[k, n]
                expected, weight = expected + weight * delta, weight * gamma * lamda
                weight *= continues[k, n]
            torch.testing.assert_close(found[t, n], expected)


@given(st.integers(0, 2**31), st.integers(1, 5), st.floats(0, 1))
def test_n_step_returns_are_sums_up_to_the_end_of_the_episode(seed, n_step, gamma):
    torch.manual_seed(seed)
    rewards, not_done = torch.rand(8, n_step), torch.rand(8, n_step) > 0.3
    found, discounts = losses.n_step_returns(rewards, not_done, gamma, torch.float32)
    for n in range(8):
        expected, weight = 0.0, 1.0
        for reward, goes_on in zip(rewards[n].tolist(), not_done[n].tolist(), strict=True):
            expected, weight = expected + weight * reward, weight * gamma * goes_on
        assert found[n].item() == pytest.approx(expected, rel=1e-5)
        assert discounts[n].item() == pytest.approx(weight, rel=2e-3, abs=1e-7)  # of float16
    coarse, same = losses.n_step_returns(rewards, not_done, gamma, torch.float16)
    assert torch.equal(discounts, same)
    torch.testing.assert_close(found, coarse.float(), atol=n_step * 2**-11, rtol=2**-9)


def test_returns_that_do_not_vary_have_no_explained_variance():
    assert explained_variance(torch.tensor([1.0, 2.0, 3.0]), torch.ones(3)).isnan()


@given(st.integers(0, 2**31), st.integers(1, 6))
def test_forbidden_actions_have_no_part_in_a_policy_or_in_its_gradient(seed, n_allowed):
    torch.manual_seed(seed)
    logits = (100 * torch.randn(6)).requires_grad_()
    mask = torch.randperm(6) < n_allowed
    log_probs = allowed(logits, mask).log_softmax(-1)
    torch.testing.assert_close(log_probs[mask], logits[mask].log_softmax(-1))
    assert (log_probs.exp()[~mask] == 0).all()
    entropy = -(log_probs.exp() * log_probs).sum()
    expected = -(log_probs[mask].exp() * log_probs[mask]).sum()
    torch.testing.assert_close(entropy, expected)
    entropy.backward()
    assert logits.grad.isfinite().all()
    assert (logits.grad[~mask] == 0).all()
    assert mask[allowed(logits - 200, mask).argmax()]
