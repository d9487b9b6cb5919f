"""Heads on an agent's features: actor and critic, or values of all actions."""

import math
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.agent import Evaluation, Step, allowed, sample_actions
from utils.starting import one_thread

HIDDEN_BIAS = 0.1
Masks = Tensor | None  # whether an action is allowed; None: every one  [B, A] bool
AnyModule = TypeVar("AnyModule", bound=nn.Module)


def mlp(*widths: int) -> nn.Sequential:
    """Return linear layers of these widths, the input's first, with ReLUs between them."""
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise(widths):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def perceptron(n_in: int, n_hidden: int, n_out: int) -> nn.Sequential:
    """Return linear, LayerNorm without affine, ReLU, linear; orthogonal with gain sqrt(2)."""
    layers = initialise_orthogonal(mlp(n_in, n_hidden, n_out), gain=math.sqrt(2))
    layers.insert(1, nn.LayerNorm(n_hidden, elementwise_affine=False))
    return layers


class ActorCritic(nn.Module):
    """Action logits and the value."""

    def __init__(self, n_features: int, n_actions: int) -> None:
        super().__init__()
        self.actor = perceptron(n_features, 128, n_actions)
        self.critic = perceptron(n_features, 512, 1)

    def values(self, features: Tensor) -> Tensor:
        """Map features [B, n_features] to values [B]."""
        return self.critic(features).squeeze(-1)

    def step(
        self, features: Tensor, context: Tensor, deterministic: bool = False, masks: Masks = None
    ) -> Step:
        """Choose an action for every row of features; RunError if no probability is finite."""
        all_log_probs = F.log_softmax(allowed(self.actor(features), masks), dim=-1)  # [N, A]
        actions = all_log_probs.argmax(-1) if deterministic else sample_actions(all_log_probs.exp())
        log_probs = all_log_probs.gather(-1, actions[:, None]).squeeze(-1)
        return Step(actions, context, log_probs, self.values(features), all_log_probs)

    def evaluate(self, features: Tensor, actions: Tensor, masks: Masks = None) -> Evaluation:
        """Return log-probabilities, values and entropy [B] of actions [B] taken before."""
        all_log_probs = F.log_softmax(allowed(self.actor(features), masks), dim=-1)
        entropy = -(all_log_probs.exp() * all_log_probs).sum(-1)
        log_probs = all_log_probs.gather(-1, actions[:, None]).squeeze(-1)
        return Evaluation(log_probs, self.values(features), entropy)


class DuelingQ(nn.Module):
    """Two streams of three layers (Wang et al. 2016, arXiv:1511.06581, eq. 9).

        Q(s, a) = V(s) + A(s, a) - mean_a' A(s, a')

    All layers but the last are `n_features` wide. Weights are orthogonal, biases 0.
    """

    def __init__(self, n_features: int, n_actions: int) -> None:
        super().__init__()
        hidden = (n_features,) * 3
        self.value = initialise_orthogonal(mlp(*hidden, 1))
        self.advantage = initialise_orthogonal(mlp(*hidden, n_actions))

    def forward(self, features: Tensor) -> Tensor:
        """Map features [B, n_features] to the values of all actions [B, A]."""
        advantage = self.advantage(features)
        return self.value(features) + (advantage - advantage.mean(-1, keepdim=True))

    def last_layers(self) -> list[nn.Parameter]:
        """Return the parameters of the last layer of both streams."""
        return [p for stream in (self.value, self.advantage) for p in stream[-1].parameters()]


def initialise_orthogonal(module: AnyModule, gain: float = 1.0) -> AnyModule:
    """Return the module with orthogonal weights, convolutions' with gain sqrt(2), and biases 0."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            own = math.sqrt(2) if isinstance(layer, nn.Conv2d) else gain
            with one_thread():  # the same seed gives the same weights with any number of threads
                weight = nn.init.orthogonal_(torch.empty(layer.weight.shape), gain=own)
            layer.weight.data.copy_(weight)  # whatever its layout
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return module


def uniform_mlp(n_in: int, hidden: tuple[int, int], n_out: int, last: float) -> nn.Sequential:
    """Return two hidden layers with ReLUs, then a linear one with weights and biases from U(±last).

    Hidden weights are drawn from U(±1/sqrt(outputs)) and their biases are 0.1; the original means
    the number of inputs and takes that of the outputs.
    """
    layers = mlp(n_in, *hidden, n_out)
    for index, width in zip((0, 2), hidden, strict=True):
        weight, bias = layers[index].parameters()
        limit = 1 / math.sqrt(width)
        nn.init.uniform_(weight, -limit, limit)
        nn.init.constant_(bias, HIDDEN_BIAS)
    for parameter in layers[-1].parameters():
        nn.init.uniform_(parameter, -last, last)
    return layers
