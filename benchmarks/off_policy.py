"""Updates of DQN and SAC beside the straightforward ones: 64 sequences, sizes as published.

Plain is written as the equations of Ni et al. 2023 (arXiv:2307.03864) read: every step of every
sequence goes through all networks as floats, and a network is asked again wherever its answer is
needed. Episodes are those of uniformly random actions. The difference is that of the parameters
after an update; with dropout there is none to tell.
"""

import copy
import math
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.measuring import Pair, Work
from benchmarks.ppo_update import flat
from benchmarks.random_models import TINY, write_transformer_xl
from benchmarks.training import opened_run
from models.agent import Agent, Sequences
from trainers.off_policy import OffPolicyLearner

TMAZE, MATCH = "TMazePassive-v0", "VisualMatch-v0"
# Widths of an embedded observation, an embedded action and the memory, as published.
WIDTHS = {
    ("LSTM", TMAZE): (32, 16, 128),
    ("GPT", TMAZE): (64, 64, 128),
    ("HELM", TMAZE): (64, 64, 128),
    ("LSTM", MATCH): (100, 0, 128),
    ("GPT", MATCH): (100, 0, 100),
}


class Case(NamedTuple):
    """An agent and the sequences it learns from.

    Attributes:
        context_length: Steps of a sequence; -1: the whole episode.
        quick: Whether networks and batches are tiny.
    """

    model: str
    env: str
    length: int
    dropout: float = 0.0
    context_length: int = -1
    quick: bool = False

    @property
    def algorithm(self) -> str:
        """The algorithm of the published experiments there."""
        return "DQN" if self.env == TMAZE else "SAC"

    @property
    def n_sequences(self) -> int:
        """B."""
        return 6 if self.quick else 64

    @property
    def n_steps(self) -> int:
        """T of whole episodes."""
        return self.length + (1 if self.env == TMAZE else 30)

    @property
    def name(self) -> str:
        """The row's name."""
        n_steps = self.n_steps if self.context_length == -1 else self.context_length
        dropout = ", dropout" if self.dropout else ""
        return f"{self.algorithm}-{self.model}, T={n_steps}{dropout}"

    def settings(self, folder: Path) -> list[str]:
        """Return the settings that differ from the defaults."""
        observation, action, memory = WIDTHS[self.model, self.env]
        given = {
            "algorithm": self.algorithm,
            "model": self.model,
            "env": self.env,
            "length": self.length,
            "n_envs": self.n_sequences,
            "observation_embedding": observation,
            "action_embedding": action,
            "learning_rate": 3e-4,
            "batch_size": self.n_sequences,
            "context_length": self.context_length,
            "warmup_episodes": 2 * self.n_sequences,  # of random actions
            "n_steps": 10**6,
            **({"head_width": 16} if self.quick else {}),
        }
        if self.model != "LSTM":
            given["mem_len"] = self.n_steps + 1
        if self.model != "HELM":
            given["memory_width"] = memory
        if self.model == "GPT":
            given |= {"memory_heads": 1, "memory_dropout": self.dropout}
        tiny = write_transformer_xl(folder, TINY) if self.model == "HELM" and self.quick else []
        return [f"{name}={value}" for name, value in given.items()] + tiny


def cases(quick: bool) -> Iterator[Case]:
    """Yield all agents that are compared."""
    for length in (5,) if quick else (50, 250):
        yield Case("LSTM", TMAZE, length, quick=quick)
        for dropout in (0.0, 0.1):
            yield Case("GPT", TMAZE, length, dropout, quick=quick)
    for context_length in (-1, 1):
        yield Case("HELM", TMAZE, 5 if quick else 50, 0.0, context_length, quick)
    for model, dropout in (("LSTM", 0.0), ("GPT", 0.0), ("GPT", 0.1)):
        yield Case(model, MATCH, 3 if quick else 60, dropout, quick=quick)


def pairs(quick: bool) -> Iterator[Pair]:
    """Compare all of them."""
    for case in cases(quick):
        yield Pair(
            case.name,
            partial(plain, case),
            partial(ours, case),
            rounds=1 if quick else 5,
            repeats=1 if quick else 3,
            compared=0 if case.dropout else 1,
            note=f"{case.env}, {case.n_sequences} sequences",
        )


def prepare(case: Case, device: str = "cpu") -> tuple[OffPolicyLearner, Tensor]:
    """Return a learner that has seen an episode of each environment, and rows of its replay."""
    with (
        tempfile.TemporaryDirectory() as folder,
        opened_run([*case.settings(Path(folder)), f"device={device}"]) as run,
    ):
        learner, collector = run.learner, run.collector
        assert isinstance(learner, OffPolicyLearner), "DQN and SAC are"
        collector.begin(run.config.seed)
        while collector.n_episodes < case.n_sequences:
            collector.step()
    assert learner.replay is not None, "episodes have ended"
    starts = learner.replay.starts
    if len(starts) != case.n_sequences:
        starts = starts[torch.randint(len(starts), (case.n_sequences,))]
    return learner, starts


def ours(case: Case, device: str = "cpu") -> Iterator[Work]:
    """Update by the learner, drawing from replay included."""
    learner, starts = prepare(case, device)
    assert learner.replay is not None, "episodes have ended"
    replay = learner.replay

    def update() -> Tensor:
        learner.learn(replay.sequences(starts))
        return flat(learner.agent)

    while True:
        yield update


def plain(case: Case) -> Iterator[Work]:
    """Update the plain networks, from the same start by the same sequences."""
    learner, starts = prepare(case)
    assert learner.replay is not None, "episodes have ended"
    sequences, n_actions = learner.replay.sequences(starts), learner.agent.n_actions
    yardstick = PlainLearner(learner.agent, learner.config)

    def update() -> Tensor:
        yardstick.learn(PlainSequences.of(sequences, n_actions))
        return flat(yardstick.networks)

    while True:
        yield update


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
        seen = sequences.observations.shown.any()
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
