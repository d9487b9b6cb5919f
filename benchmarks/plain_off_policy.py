"""The straightforward updates of DQN and SAC: the yardstick of `benchmarks.off_policy`.

Written as the equations of Ni et al. 2023 (arXiv:2307.03864) read: every step of every sequence
goes through all networks as floats, and a network is asked again wherever its answer is needed.
"""

import copy
import math
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.agent import Agent, Sequences


class PlainSequences(NamedTuple):
    """Sequences as floats, time first.

    Attributes:
        observations: [T+1, B, F] or [T+1, B, C, H, W]
        last_actions: One-hot, zeros at first.  [T+1, B, A]
        context: A frozen memory's hidden state.  [T+1, B, ...]
        actions: [T, B] int64
        rewards, terminated, mask: [T, B]
    """

    observations: Tensor
    last_actions: Tensor
    context: Tensor
    actions: Tensor
    rewards: Tensor
    terminated: Tensor
    mask: Tensor

    @classmethod
    def of(cls, sequences: Sequences, n_actions: int) -> "PlainSequences":
        """Return copies of what was drawn from replay."""
        (seen,) = sequences.observations.tensors().values()
        one_hot = F.one_hot(sequences.last_actions, n_actions).float()
        return cls(
            (seen / 255 if seen.dtype == torch.uint8 else seen).unflatten(
                0, sequences.starts.shape
            ),
            one_hot.masked_fill(sequences.starts[..., None], 0),
            *sequences[3:],
        )


class PlainNetworks(nn.Module):
    """An agent's trained parts under the names they have there, with its weights.

    Args:
        agent: Of DQN, or of SAC with a shared encoder.
        config: Its settings.
    """

    def __init__(self, agent: Agent, config: Any) -> None:
        super().__init__()
        weights = {name: tensor.detach() for name, tensor in agent.named_parameters()}
        sizes = {name: tensor.shape for name, tensor in weights.items()}
        self.body = PlainBody(sizes, config)
        if config.algorithm == "DQN":
            self.head = _perceptron(sizes, "head.")
        else:
            self.policy = _perceptron(sizes, "policy.")
            names = ("first", "second")
            self.critics = nn.ModuleDict({n: _perceptron(sizes, f"critics.{n}.") for n in names})
        self.load_state_dict(weights)

    def twins(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return what both critics say."""
        return self.critics["first"](hidden), self.critics["second"](hidden)


class PlainBody(nn.Module):
    """Embedders, and an LSTM, a GPT, or a frozen memory's hidden state beside them."""

    def __init__(self, sizes: dict[str, torch.Size], config: Any) -> None:
        super().__init__()
        self.embedder = nn.ModuleDict()
        for name in ("vectors", "actions"):
            if f"body.embedder.{name}.weight" in sizes:
                self.embedder[name] = _linear(sizes, f"body.embedder.{name}.weight")
        if "body.embedder.images.linear.weight" in sizes:
            convolutions = nn.Sequential(
                nn.Conv2d(3, 8, 2), nn.ReLU(), nn.Conv2d(8, 16, 2), nn.ReLU(), nn.Flatten()
            )
            linear = _linear(sizes, "body.embedder.images.linear.weight")
            self.embedder["images"] = nn.ModuleDict(
                {"convolutions": convolutions, "linear": linear}
            )
        width, n_layers = config.memory_width, config.memory_layers
        self.memory = nn.ModuleDict()
        if config.model == "LSTM":
            n_in = sizes["body.memory.lstm.weight_ih_l0"][1]
            self.memory["lstm"] = nn.LSTM(n_in, width, n_layers)
        elif config.model == "GPT":
            heads, dropout = config.memory_heads, config.memory_dropout
            blocks = [PlainBlock(width, heads, dropout) for _ in range(n_layers)]
            self.memory["blocks"] = nn.ModuleList(blocks)
            self.memory["norm"] = nn.LayerNorm(width)
            self.dropout = nn.Dropout(dropout)

    def forward(self, batch: PlainSequences) -> Tensor:
        """Return the features of every step.  [T+1, B, D]"""
        parts = []
        if "actions" in self.embedder:
            parts.append(F.relu(self.embedder["actions"](batch.last_actions)))
        if "images" in self.embedder:
            images = cast(nn.ModuleDict, self.embedder["images"])
            flat = images["convolutions"](batch.observations.flatten(0, 1))
            parts.append(images["linear"](flat).unflatten(0, batch.observations.shape[:2]))
        else:
            parts.append(F.relu(self.embedder["vectors"](batch.observations)))
        x = torch.cat(parts, dim=-1)
        if "lstm" in self.memory:
            return self.memory["lstm"](x)[0]
        if "blocks" in self.memory:
            return self._attend(x)
        return torch.cat((batch.context, x), dim=-1)

    def _attend(self, x: Tensor) -> Tensor:
        x = self.dropout(x.transpose(0, 1) + _positions(len(x), x.shape[-1]))  # [B, T+1, D]
        for block in cast(nn.ModuleList, self.memory["blocks"]):
            x = block(x)
        return self.memory["norm"](x).transpose(0, 1)


class PlainBlock(nn.Module):
    """A block of GPT-2."""

    def __init__(self, width: int, n_head: int, dropout: float) -> None:
        super().__init__()
        self.n_head = n_head
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map sequences [B, T, D] to the same shape."""
        x = x + self.dropout(self.out(self._attention(self.attention_norm(x))))
        inner = F.gelu(self.inner(self.feed_forward_norm(x)), approximate="tanh")
        return x + self.dropout(self.outer(inner))

    def _attention(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for part in parts)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])  # [B, H, T, T]
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = self.dropout(scores.masked_fill(future, -1e4).softmax(dim=-1))
        return (weights @ v).transpose(1, 2).flatten(2)


class PlainLearner:
    """One update of DQN, or of SAC with a shared encoder and a frozen critic.

    Attributes:
        networks: What is trained.
        target: What follows.
    """

    def __init__(self, agent: Agent, config: Any) -> None:
        self.config, self.networks = config, PlainNetworks(agent, config)
        self.target = copy.deepcopy(self.networks).requires_grad_(False)
        self.optimizer = torch.optim.Adam(
            self.networks.parameters(), lr=config.learning_rate, foreach=False
        )

    def learn(self, batch: PlainSequences) -> None:
        """Take one gradient step and let the target follow."""
        loss = self._q_loss(batch) if self.config.algorithm == "DQN" else self._soft_loss(batch)
        self.optimizer.zero_grad()
        loss.backward()
        gradients = [p.grad for p in self.networks.parameters() if p.grad is not None]
        torch.stack([gradient.norm() for gradient in gradients]).mean()  # logged
        self.optimizer.step()
        online, target = self._followed(self.networks), self._followed(self.target)
        tau = self.config.tau
        for new, old in zip(online.parameters(), target.parameters(), strict=True):
            old.data.copy_((1 - tau) * old.data + tau * new.data)

    def _followed(self, networks: PlainNetworks) -> nn.Module:
        """Return what has a target: everything, or SAC's critics."""
        return networks if self.config.algorithm == "DQN" else networks.critics

    def _q_loss(self, batch: PlainSequences) -> Tensor:
        networks, target = self.networks, self.target
        with torch.no_grad():
            best = networks.head(networks.body(batch))[1:].argmax(-1, keepdim=True)
            following = target.head(target.body(batch))[1:].gather(-1, best).squeeze(-1)
            targets = self._targets(batch, following)
        values = networks.head(networks.body(batch))
        return _error(values, targets, batch)

    def _soft_loss(self, batch: PlainSequences) -> Tensor:
        networks, alpha = self.networks, self.config.temperature
        hidden = networks.body(batch)
        with torch.no_grad():
            probs, log_probs = _policy(networks.policy(hidden))
            values = torch.minimum(*self.target.twins(hidden))
            following = (probs * (values - alpha * log_probs)).sum(-1)[1:]
            targets = self._targets(batch, following)
        critic_loss = sum(_error(values, targets, batch) for values in networks.twins(hidden))
        probs, log_probs = _policy(networks.policy(hidden))
        with torch.no_grad():
            values = torch.minimum(*networks.twins(hidden))
        soft = (probs * (alpha * log_probs - values)).sum(-1)[:-1]
        return 0.5 * critic_loss + (soft * batch.mask).sum() / batch.mask.sum()

    def _targets(self, batch: PlainSequences, following: Tensor) -> Tensor:
        return batch.rewards + self.config.gamma * (1 - batch.terminated) * following


def _error(values: Tensor, targets: Tensor, batch: PlainSequences) -> Tensor:
    chosen = values[:-1].gather(-1, batch.actions[..., None]).squeeze(-1)
    return ((chosen - targets) ** 2 * batch.mask).sum() / batch.mask.sum()


def _policy(logits: Tensor) -> tuple[Tensor, Tensor]:
    probs = logits.softmax(-1)
    return probs, probs.clamp(min=1e-8).log()


def _positions(n_steps: int, width: int) -> Tensor:
    exponents = torch.arange(0, width, 2) / width
    angles = torch.arange(n_steps)[:, None] * 10_000**-exponents
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


def _linear(sizes: dict[str, torch.Size], name: str) -> nn.Linear:
    n_out, n_in = sizes[name]
    return nn.Linear(n_in, n_out)


def _perceptron(sizes: dict[str, torch.Size], prefix: str) -> nn.Sequential:
    first, second, last = (_linear(sizes, f"{prefix}{n}.weight") for n in (0, 2, 4))
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)
