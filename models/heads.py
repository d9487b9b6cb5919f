"""Heads on features: a policy of discrete or of continuous actions, and the values."""

import math

import numpy as np
import torch
from gymnasium.spaces import Box, Space, flatdim
from torch import Tensor, nn
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution
from torch.nn import functional as F

from models.agent import NO_ACTION, Evaluation, Step, allowed, sample_actions
from models.encoders import initialise_orthogonal, mlp
from models.settings import EncoderSettings
from utils.cuda_graphs import is_recorded
from utils.errors import RunError

# Of continuous actions: the range of log deviations; the largest number, as the density of 1 is
# infinite; the first gain of their means, so that learning begins from all actions alike.
LOG_STD, LARGEST, SMALL_GAIN = (-20.0, 2.0), 1 - 1e-6, 0.01
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(32)
QUADRATURE = _NODES, _WEIGHTS / _WEIGHTS.sum()
Masks = Tensor | None  # whether an action is allowed; None: every one  [B, A] bool


def perceptron(n_in: int, n_hidden: int, n_out: int) -> nn.Sequential:
    """Return linear, LayerNorm without affine, ReLU, linear; orthogonal with gain sqrt(2)."""
    layers = initialise_orthogonal(mlp(n_in, n_hidden, n_out), gain=math.sqrt(2))
    layers.insert(1, nn.LayerNorm(n_hidden, elementwise_affine=False))
    return layers


class ActorCritic(nn.Module):
    def __init__(self, n_features: int, n_actions: int) -> None:
        super().__init__()
        self.actor = perceptron(n_features, 128, n_actions)
        self.critic = perceptron(n_features, 512, 1)

    def values(self, features: Tensor) -> Tensor:
        """Map features [B, n_features] to values [B]."""
        return self.critic(features).squeeze(-1)

    def step(
        self,
        features: Tensor,
        stored_state: Tensor,
        deterministic: bool = False,
        masks: Masks = None,
    ) -> Step:
        """Choose an action for every row of features; RunError if no probability is finite."""
        all_log_probs = F.log_softmax(allowed(self.actor(features), masks), dim=-1)  # [N, A]
        actions = all_log_probs.argmax(-1) if deterministic else sample_actions(all_log_probs.exp())
        log_probs = all_log_probs.gather(-1, actions[:, None]).squeeze(-1)
        return Step(actions, stored_state, log_probs, self.values(features), all_log_probs)

    def evaluate(self, features: Tensor, actions: Tensor, masks: Masks = None) -> Evaluation:
        """Return log-probabilities, values and entropy [B] of actions [B] taken before."""
        all_log_probs = F.log_softmax(allowed(self.actor(features), masks), dim=-1)
        # -1e9 for what is not allowed: its probability is 0, and 0 times a number is 0.
        entropy = -(all_log_probs.exp() * all_log_probs).sum(-1)
        log_probs = all_log_probs.gather(-1, actions[:, None]).squeeze(-1)
        return Evaluation(log_probs, self.values(features), entropy)


def checked_actions(actions: Tensor) -> Tensor:
    if not is_recorded(actions) and not actions.isfinite().all():
        raise RunError(NO_ACTION)
    return actions


class SquashedGaussian(TransformedDistribution):
    """tanh(u) of u ~ N(mean, exp(log_std)^2), A independent numbers: actions [..., A] of a Box."""

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        # Without validation, which would make a GPU's host wait at every step.
        self.normal = Normal(mean, log_std.clamp(*LOG_STD).exp(), validate_args=False)
        apart = Independent(self.normal, 1, validate_args=False)
        super().__init__(apart, TanhTransform(cache_size=1), validate_args=False)

    def choose(self, deterministic: bool = False) -> Tensor:
        """Draw actions, or take those of the mean; RunError if one is not finite.  [..., A]"""
        actions = self.normal.mean.tanh() if deterministic else self.sample()
        return checked_actions(actions).clamp(-LARGEST, LARGEST)

    def entropy(self) -> Tensor:
        """Return E[log |da/du|] + H(u), the first by quadrature over each normal number.  [...]"""
        nodes, weights = (self.normal.mean.new_tensor(each)[:, None] for each in QUADRATURE)
        # Its entropy has no closed form: the nodes of a quadrature stand for u.
        u = self.normal.mean[..., None, :] + self.normal.stddev[..., None, :] * nodes
        (squash,) = self.transforms
        narrowed = (weights * squash.log_abs_det_jacobian(u, u.tanh())).sum(-2)
        return (self.normal.entropy() + narrowed).sum(-1)


class GaussianActorCritic(ActorCritic):
    """A squashed Gaussian policy, its deviation one for all states or a second output."""

    def __init__(self, n_features: int, n_numbers: int, state_dependent_std: bool) -> None:
        super().__init__(n_features, n_numbers * (1 + state_dependent_std))
        # Actions begin near the middle of the Box, whatever is seen.
        initialise_orthogonal(self.actor[-1], SMALL_GAIN)
        self.log_std = None if state_dependent_std else nn.Parameter(torch.zeros(n_numbers))

    def policy(self, features: Tensor) -> SquashedGaussian:
        if self.log_std is None:
            return SquashedGaussian(*self.actor(features).chunk(2, dim=-1))
        return SquashedGaussian(self.actor(features), self.log_std)

    def step(
        self,
        features: Tensor,
        stored_state: Tensor,
        deterministic: bool = False,
        masks: Masks = None,
    ) -> Step:
        policy = self.policy(features)
        actions = policy.choose(deterministic)
        return Step(actions, stored_state, policy.log_prob(actions), self.values(features))

    def evaluate(self, features: Tensor, actions: Tensor, masks: Masks = None) -> Evaluation:
        policy = self.policy(features)
        return Evaluation(policy.log_prob(actions), self.values(features), policy.entropy())


def build_heads(n_features: int, action_space: Space, config: EncoderSettings) -> ActorCritic:
    if isinstance(action_space, Box):
        n_numbers = flatdim(action_space)
        return GaussianActorCritic(n_features, n_numbers, config.state_dependent_std)
    return ActorCritic(n_features, flatdim(action_space))
