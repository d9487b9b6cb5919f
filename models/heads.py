"""What stands on an agent's features: actor and critic, or values of all actions."""

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.agent import Evaluation, Step
from models.images import Features
from utils.errors import RunError
from utils.threads import one_thread


def perceptron(n_in: int, n_hidden: int, n_out: int) -> nn.Sequential:
    """Return linear, LayerNorm without affine, ReLU, linear; orthogonal with gain sqrt(2)."""
    first, last = nn.Linear(n_in, n_hidden), nn.Linear(n_hidden, n_out)
    for layer in (first, last):
        with one_thread():  # the same seed gives the same weights with any number of threads
            nn.init.orthogonal_(layer.weight, gain=math.sqrt(2))
        layer.bias.data.zero_()
    norm = nn.LayerNorm(n_hidden, elementwise_affine=False)
    return nn.Sequential(first, norm, nn.ReLU(), last)


class ActorCritic(nn.Module):
    """The two heads on an agent's features: action logits and the value."""

    def __init__(self, n_features: int, n_actions: int) -> None:
        super().__init__()
        self.actor = perceptron(n_features, 128, n_actions)
        self.critic = perceptron(n_features, 512, 1)

    def values(self, features: Tensor) -> Tensor:
        """Map features [B, n_features] to values [B]."""
        return self.critic(features).squeeze(-1)

    def step(self, features: Tensor, context: Tensor, deterministic: bool = False) -> Step:
        """Choose an action for every row of features [N, n_features].

        Raises:
            RunError: on a CPU, where the probabilities are not finite.
        """
        all_log_probs = F.log_softmax(self.actor(features), dim=-1)  # [N, A]
        actions = all_log_probs.argmax(-1) if deterministic else drawn(all_log_probs.exp())
        log_probs = all_log_probs.gather(-1, actions[:, None]).squeeze(-1)
        return Step(actions, context, log_probs, self.values(features), all_log_probs)

    def evaluate(self, features: Features, actions: Tensor) -> Evaluation:
        """Return log-probabilities, values and entropy [B] of actions [B] taken before.

        The heads are applied once to features that are equal.
        """
        logits, values = features.map(self.actor).each(), self.values(features.distinct)
        if features.row_of is not None:
            values = values[features.row_of]
        return _evaluation(logits, values, actions)

    def evaluate_beside(self, context: Tensor, features: Features, actions: Tensor) -> Evaluation:
        """Return the same where the features of B rows stand beside a context [B, n_context]."""
        logits, values = (
            _applied_beside(head, context, features) for head in (self.actor, self.critic)
        )
        return _evaluation(logits, values.squeeze(-1), actions)


class DuelingQ(nn.Module):
    """Two streams of three layers (Wang et al. 2016, arXiv:1511.06581, eq. 9).

        Q(s, a) = V(s) + A(s, a) - mean_a' A(s, a')

    Weights are orthogonal, biases 0.

    Args:
        n_features: Width of the input and of both hidden layers.
        n_actions: A.
    """

    def __init__(self, n_features: int, n_actions: int) -> None:
        super().__init__()
        self.n_actions = n_actions
        self.value = _three_layers(n_features, 1)
        self.advantage = _three_layers(n_features, n_actions)

    def forward(self, features: Tensor) -> Tensor:
        """Map features [B, n_features] to the values of all actions [B, A]."""
        advantage = self.advantage(features)
        return self.value(features) + (advantage - advantage.mean(-1, keepdim=True))

    def last_layers(self) -> list[nn.Parameter]:
        """Return the parameters of the last layer of both streams."""
        return [p for stream in (self.value, self.advantage) for p in stream[-1].parameters()]


def _three_layers(n_features: int, n_out: int) -> nn.Sequential:
    layers = nn.Sequential(
        nn.Linear(n_features, n_features),
        nn.ReLU(),
        nn.Linear(n_features, n_features),
        nn.ReLU(),
        nn.Linear(n_features, n_out),
    )
    initialise_orthogonal(layers)
    return layers


def initialise_orthogonal(module: nn.Module) -> None:
    """Make weights orthogonal, those of convolutions with gain sqrt(2), and biases 0."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            gain = math.sqrt(2) if isinstance(layer, nn.Conv2d) else 1.0
            with one_thread():  # the same seed gives the same weights with any number of threads
                weight = nn.init.orthogonal_(torch.empty(layer.weight.shape), gain=gain)
            layer.weight.data.copy_(weight)  # whatever its layout
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def _applied_beside(head: nn.Sequential, context: Tensor, features: Features) -> Tensor:
    """Apply a head to (context, features), multiplying what is equal of the features once."""
    first = cast(nn.Linear, head[0])
    widths = context.shape[1], features.distinct.shape[1]
    of_context, of_features = first.weight.split(widths, dim=1)
    part = features.map(lambda rows: F.linear(rows, of_features, first.bias)).each()
    return head[1:](torch.addmm(part, context, of_context.T))


def drawn(probabilities: Tensor) -> Tensor:
    """Return an action for each row of probabilities [N, A].  [N]"""
    try:
        return torch.multinomial(probabilities, 1).squeeze(-1)
    except RuntimeError:
        if probabilities.isfinite().all():
            raise
        raise RunError(
            "no action can be drawn: the agent's probabilities are not finite numbers, "
            "its weights have grown too large"
        ) from None


def _evaluation(logits: Tensor, values: Tensor, actions: Tensor) -> Evaluation:
    """Return the evaluation of actions [B] by logits [B, A] and values [B]."""
    all_log_probs = F.log_softmax(logits, dim=-1)
    entropy = -(all_log_probs.exp() * all_log_probs).sum(-1)
    log_probs = all_log_probs.gather(-1, actions[:, None]).squeeze(-1)
    return Evaluation(log_probs, values, entropy)
