"""Pure functions of PPO (Schulman et al. 2017, arXiv:1707.06347)."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


def generalized_advantages(
    rewards: Tensor,
    values: Tensor,
    bootstrap: Tensor,
    continues: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Return every step's advantage (Schulman et al. 2016, arXiv:1506.02438, eq. 16).

        A_t = delta_t + gamma * lambda * continues_t * A_{t+1}
        delta_t = r_t + gamma * continues_t * V_{t+1} - V_t

    Args:
        rewards: Normalised reward received after step t.  [T, N]
        values: The critic's V(s_t) when acting.  [T, N]
        bootstrap: The critic's value of the observation after the last step.  [N]
        continues: 0 where the episode ended with step t, else 1.  [T, N]
        gamma: Discount per step.
        gae_lambda: 0 is one-step temporal difference, 1 the discounted return minus the value.

    Returns:
        Advantages, not yet standardised.  [T, N]
    """
    next_values = torch.cat((values[1:], bootstrap[None]))
    deltas = rewards + gamma * continues * next_values - values
    advantages = torch.empty_like(deltas)
    following = torch.zeros_like(bootstrap)
    for t in reversed(range(len(deltas))):
        following = deltas[t] + gamma * gae_lambda * continues[t] * following
        advantages[t] = following
    return advantages


class PolicyLoss(NamedTuple):
    """The clipped surrogate and what it tells about the step; all scalars."""

    loss: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


def clipped_policy_loss(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, clip_range: float
) -> PolicyLoss:
    """Return PPO's clipped surrogate (arXiv:1707.06347, eq. 7), to be minimised; inputs [B].

    approx_kl is the mean of old minus new log-probability, clip_fraction the share of ratios
    outside 1 ± clip_range.
    """
    ratio = (log_probs - old_log_probs).exp()
    clipped = ratio.clamp(1 - clip_range, 1 + clip_range)
    loss = -torch.minimum(advantages * ratio, advantages * clipped).mean()
    with torch.no_grad():
        approx_kl = (old_log_probs - log_probs).mean()
        clip_fraction = ((ratio - 1).abs() > clip_range).float().mean()
    return PolicyLoss(loss, approx_kl, clip_fraction)


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, clip_range: float | None
) -> Tensor:
    """Return the mean squared error of values [B] against returns [B].

    With a clip range the prediction may move at most that far from its old value.
    """
    if clip_range is not None:
        values = old_values + (values - old_values).clamp(-clip_range, clip_range)
    return F.mse_loss(values, returns)


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """Return 1 - Var(returns - values) / Var(returns); NaN where the returns do not vary."""
    variance = returns.var(correction=0)
    explained = 1 - (returns - values).var(correction=0) / variance
    return torch.where(variance > 0, explained, torch.nan)
