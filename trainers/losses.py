"""The equations of DQN, SAC and TD3: targets, means over sequences, and Polyak averaging.

Sequences are time-major: T steps of B sequences, A actions. A value
with a prime belongs to the step after.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn


def double_q_targets(rewards: Tensor, discounts: Tensor, online: Tensor, target: Tensor) -> Tensor:
    """Return the targets of double Q-learning (van Hasselt et al. 2016, arXiv:1509.06461, eq. 4).

        y = r + discount Q_target(s', argmax_a Q(s', a))

    Args:
        rewards: [...]
        discounts: gamma where something follows, else 0; of n steps, their product.  [...]
        online: Q of the next steps.  [..., A]
        target: The target network's.  [..., A]
    """
    # Chosen by one network and valued by the other: a maximum of one is biased upwards.
    best = online.argmax(-1, keepdim=True)
    return rewards + discounts * target.gather(-1, best).squeeze(-1)


def n_step_returns(
    rewards: Tensor, not_done: Tensor, gamma: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return n-step returns, and the discount of the value after them (Sutton 1988).

        R = sum_{k<n} D_k r_k,    D_k = prod_{j<k} gamma goes_on_j

    Args:
        rewards: [B, n]
        not_done: 0 where the episode ended with a step, else 1.  [B, n]
        dtype: R is rounded to it with every step: the published code stores rewards in float16
            and adds them up in it.

    Returns:
        R in that type, and D_n in float32.  [B] each
    """
    returns = rewards.new_zeros(len(rewards), dtype=dtype)
    discounts = torch.ones_like(returns, dtype=torch.float32)
    for reward, on in zip(rewards.to(dtype).T, not_done.double().T, strict=True):
        returns = (returns.float() + discounts * reward.float()).to(dtype)
        discounts = (discounts * (on * gamma)).float()
    return returns, discounts


LEAST_PROBABILITY = 1e-8


class Policy(NamedTuple):
    """Probabilities of all actions and their logarithms, these of 1e-8 at least.  [..., A] each"""

    probs: Tensor
    log_probs: Tensor

    @classmethod
    def of(cls, logits: Tensor) -> "Policy":
        """Of logits [..., A]."""
        # Clamped, since 0 * log 0 would be NaN in the entropy.
        probs = logits.softmax(-1)
        return cls(probs, probs.clamp(min=LEAST_PROBABILITY).log())


def soft_targets(
    rewards: Tensor,
    terminated: Tensor,
    following: tuple[Policy, Tensor, Tensor],
    temperature: Tensor | float,
    gamma: float,
) -> Tensor:
    """Return the targets of discrete soft actor-critic (Christodoulou 2019, arXiv:1910.07207).

        y = r + gamma (1 - terminated) sum_a pi(a|s') (min_i Q_i,target(s', a) - alpha log pi(a|s'))

    Args:
        rewards: [T, B]
        terminated: 1 where nothing follows.  [T, B]
        following: The present policy and both target critics at the next steps.  [T, B, A] each
        temperature: alpha.
    """
    policy, first, second = following
    soft = torch.minimum(first, second) - temperature * policy.log_probs
    return rewards + gamma * (1 - terminated) * (policy.probs * soft).sum(-1)


def gather_q(actions: Tensor, values: Tensor) -> Tensor:
    """Gather the values [T, B] of the actions taken [T, B] from those of all [T+1, B, A]."""
    return values[:-1].gather(-1, actions[..., None]).squeeze(-1)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of values [T, B] over the steps that count."""
    return (values * mask).sum() / mask.sum()


def mean_grad_norm(parameters: Iterable[Tensor], device: torch.device) -> Tensor:
    """Return the mean over parameter tensors of the norm of each one's gradient; of none, 0."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros((), device=device)
    return torch.stack(torch._foreach_norm(gradients)).mean()


@torch.no_grad()
def follow(target: nn.Module, online: nn.Module, tau: float) -> None:
    """Polyak averaging of all parameters: target <- (1-tau) target + tau online."""
    torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), tau)


def reduced_precision(dtype: str, device: torch.device) -> torch.autocast:
    # Without a cache: a cast made where there are no gradients would be used where there are.
    is_reduced = dtype == "bfloat16"
    return torch.autocast(device.type, torch.bfloat16, is_reduced, cache_enabled=False)
