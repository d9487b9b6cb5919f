"""Updates beside the straightforward ones: HELM by PPO, DQN and SAC, ELLM by NStepDQN.

Plain is written as the equations read: every sample and step goes through all networks as floats,
in PyTorch's default layout, and a network is asked again wherever its answer is needed. Both begin
with the same weights and learn from the same steps. The difference is that of the parameters after
an update; with dropout there is none to tell.

HELM is as wide as with Transformer-XL, and learns from 2,048 samples in 3 epochs of 8 minibatches;
its language model has a single layer, since the update never runs it. DQN and SAC have the sizes of
Ni et al. 2023 (arXiv:2307.03864) and 64 sequences of uniformly random actions; ELLM those of Du et
al. 2023 (arXiv:2302.06692) and steps of noise.
"""

import copy
import math
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, Text
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.environments import N_ENVS
from benchmarks.measuring import Pair, Work
from benchmarks.random_models import TINY, Size, write_transformer_xl
from benchmarks.training import opened_run
from models.agent import QAgent, SacAgent, Sequences
from models.ellm import CHANNELS, KERNELS, Ellm
from models.memories.gpt import Gpt
from models.observations import Observations, SentenceTable
from trainers.frame_replay import FrameSteps
from trainers.losses import clipped_policy_loss, n_step_returns, value_loss
from trainers.n_step_dqn import NStepDQN, NStepDqnSettings
from trainers.off_policy import OffPolicyLearner
from trainers.ppo import PPO
from utils.seeding import seed_everything
from utils.settings import load_config

WIDE = Size(n_layer=1)
ROLLOUTS_BEFORE = 2  # so that episodes no longer begin together
ROWS = ("context", "actions", "log_probs", "values", "advantages", "returns")  # of a rollout
TMAZE, MATCH = "TMazePassive-v0", "VisualMatch-v0"
# Widths of an embedded observation, an embedded action and the memory, as published.
WIDTHS = {
    ("LSTM", TMAZE): (32, 16, 128),
    ("GPT", TMAZE): (64, 64, 128),
    ("LSTM", MATCH): (100, 0, 128),
    ("GPT", MATCH): (100, 0, 100),
}
N_TEXT = 384


def flat(module: nn.Module) -> Tensor:
    """Return all trained parameters one after the other."""
    return torch.cat([p.detach().reshape(-1) for _, p in sorted(module.named_parameters())])


def copied(**networks: nn.Module) -> Any:
    """Return copies of networks, in PyTorch's default layout."""
    copies = nn.ModuleDict({name: copy.deepcopy(network) for name, network in networks.items()})
    return copies.to(memory_format=torch.contiguous_format)


def ppo(quick: bool) -> Iterator[Pair]:
    """Compare on the images of KeyCorridor, and where no two images are the same."""
    size, n_steps = (TINY, 8) if quick else (WIDE, 128)
    for name, all_differ in (("KeyCorridor", False), ("all images differ", True)):
        yield Pair(
            f"HELM update, {name}",
            partial(plain_ppo, size, n_steps, all_differ),
            partial(our_ppo, size, n_steps, all_differ),
            rounds=1 if quick else 3,
            repeats=1 if quick else 2,
            compared=1,
            note=f"{n_steps * N_ENVS:,} samples, D={size.width}",
        )


def full_ppo(size: Size, n_steps: int, all_differ: bool) -> tuple[PPO, Any, Tensor]:
    """Return PPO with a full rollout, that rollout, and orders of its samples, always the same."""
    settings = [f"n_rollout_steps={n_steps}", f"n_envs={N_ENVS}", "mem_len=16", "device=cpu"]
    with tempfile.TemporaryDirectory() as folder:
        settings += write_transformer_xl(Path(folder), size)
        with opened_run(settings) as run:
            learner, collector = run.learner, run.collector
            assert isinstance(learner, PPO), "the default"
            collector.begin(run.config.seed)
            for number in range(ROLLOUTS_BEFORE + 1):
                while not learner.update_due:
                    collector.step()
                if number < ROLLOUTS_BEFORE:
                    learner.update(progress=0.0)
    rollout: Any = learner.rollout
    if all_differ:
        rollout.observations.images.random_()
    rollout.estimate(learner.config.gamma, learner.config.gae_lambda)
    orders = [torch.randperm(rollout.n_samples) for _ in range(learner.config.n_epochs)]
    return learner, rollout, torch.stack(orders)


def our_ppo(size: Size, n_steps: int, all_differ: bool) -> Iterator[Work]:
    """Update by the learner, each time the same agent from the same rollout."""
    first, rollout, orders = full_ppo(size, n_steps, all_differ)
    before = copy.deepcopy(first.agent.state_dict())

    def update(learner: PPO) -> Tensor:
        learner.update(progress=0.0, permutations=orders)
        return flat(learner.agent)

    while True:
        first.agent.load_state_dict(before)
        learner = PPO(first.config, first.agent)
        learner.rollout = copy.copy(rollout)  # so that nothing is left of the update before
        yield partial(update, learner)


def plain_ppo(size: Size, n_steps: int, all_differ: bool) -> Iterator[Work]:
    """Update the plain networks, each time the same ones from the same rollout."""
    learner, rollout, orders = full_ppo(size, n_steps, all_differ)
    agent: Any = learner.agent
    config, rows = learner.config, {name: getattr(rollout, name) for name in ROWS}
    rows["images"] = rollout.observations.images.float() / 255
    samples = {name: values.transpose(0, 1).flatten(0, 1) for name, values in rows.items()}

    def update(networks: Any) -> Tensor:
        parameters = list(networks.parameters())
        optimizer = torch.optim.AdamW(parameters, config.learning_rate, weight_decay=0.01)
        for chosen in (part for order in orders for part in order.chunk(config.n_batches)):
            batch = {name: values[chosen] for name, values in samples.items()}
            queries = networks["query_encoder"].of_pixels(batch["images"])
            features = torch.cat((batch["context"], queries), dim=-1)
            found = networks["heads"].evaluate(features, batch["actions"])
            advantages = batch["advantages"]
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            policy = clipped_policy_loss(
                found.log_probs, batch["log_probs"], advantages, config.clip_range
            )
            critic = value_loss(
                found.values, batch["values"], batch["returns"], config.clip_range_vf
            )
            entropy = found.entropy.mean()
            loss = policy.loss + config.vf_coef * critic - config.ent_coef * entropy
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)
            optimizer.step()
            loss.item()  # each minibatch is waited for
        return flat(networks)

    while True:
        yield partial(update, copied(query_encoder=agent.query_encoder, heads=agent.heads))


class Case(NamedTuple):
    """An agent of DQN or SAC: B whole episodes of T steps; `quick`: all is tiny."""

    model: str
    env: str
    length: int
    dropout: float = 0.0
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
        """T."""
        return self.length + (1 if self.env == TMAZE else 30)

    @property
    def name(self) -> str:
        """The row's name."""
        dropout = ", dropout" if self.dropout else ""
        return f"{self.algorithm}-{self.model}, T={self.n_steps}{dropout}"

    def settings(self) -> list[str]:
        """Return the settings that differ from the defaults."""
        observation, action, memory = WIDTHS[self.model, self.env]
        n = self.n_sequences
        settings = f"algorithm={self.algorithm} model={self.model} env={self.env} "
        settings += f"length={self.length} n_envs={n} batch_size={n} warmup_episodes={2 * n} "
        settings += f"observation_embedding={observation} action_embedding={action} "
        settings += f"memory_width={memory} learning_rate=3e-4 context_length=-1 n_steps=1000000"
        if self.quick:
            settings += " head_width=16"
        if self.model == "GPT":
            settings += f" memory_heads=1 memory_dropout={self.dropout} mem_len={self.n_steps + 1}"
        return settings.split()


def cases(quick: bool) -> Iterator[Case]:
    """Yield all agents of DQN and SAC that are compared."""
    lengths = ((TMAZE, 5), (MATCH, 3)) if quick else ((TMAZE, 50), (TMAZE, 250), (MATCH, 60))
    for env, length in lengths:
        for model, dropout in (("LSTM", 0.0), ("GPT", 0.0), ("GPT", 0.1)):
            yield Case(model, env, length, dropout, quick)


def off_policy(quick: bool) -> Iterator[Pair]:
    for case in cases(quick):
        yield Pair(
            case.name,
            partial(plain_off_policy, case),
            partial(our_off_policy, case),
            rounds=1 if quick else 5,
            repeats=1 if quick else 3,
            compared=0 if case.dropout else 1,
            note=f"{case.env}, {case.n_sequences} sequences",
        )


def filled(case: Case, device: str = "cpu") -> tuple[OffPolicyLearner, Any, Tensor]:
    """Return a learner that has seen an episode of each environment, its replay, and rows of it."""
    with opened_run([*case.settings(), f"device={device}"]) as run:
        learner, collector = run.learner, run.collector
        assert isinstance(learner, OffPolicyLearner), "DQN and SAC are"
        collector.begin(run.config.seed)
        while collector.n_episodes < case.n_sequences:
            collector.step()
    assert learner.replay is not None, "episodes have ended"
    return learner, learner.replay, learner.replay.starts


def our_off_policy(case: Case, device: str = "cpu") -> Iterator[Work]:
    """Update by the learner, drawing from replay included."""
    learner, replay, starts = filled(case, device)

    def update() -> Tensor:
        learner.learn(replay.sequences(starts))
        return flat(learner.agent)

    while True:
        yield update


def plain_off_policy(case: Case) -> Iterator[Work]:
    """Update the plain networks, from the same start by the same sequences."""
    learner, replay, starts = filled(case)
    sequences, config = replay.sequences(starts), cast(Any, learner.config)
    online = copy.deepcopy(learner.agent)
    target = copy.deepcopy(online).requires_grad_(False)
    optimizer = torch.optim.Adam(online.parameters(), lr=config.learning_rate, foreach=False)
    # The part with a target: everything, or SAC's critics.
    online_part, target_part = (
        agent.critics if isinstance(agent, SacAgent) else agent for agent in (online, target)
    )

    def update() -> Tensor:
        loss_of = q_loss if isinstance(online, QAgent) else soft_loss
        loss = loss_of(cast(Any, online), cast(Any, target), sequences, config)
        optimizer.zero_grad()
        loss.backward()
        gradients = [p.grad for p in online.parameters() if p.grad is not None]
        torch.stack([gradient.norm() for gradient in gradients]).mean()  # logged
        optimizer.step()
        for new, old in zip(online_part.parameters(), target_part.parameters(), strict=True):
            old.data.copy_((1 - config.tau) * old.data + config.tau * new.data)
        return flat(online)

    while True:
        yield update


def q_loss(online: QAgent, target: QAgent, batch: Sequences, config: Any) -> Tensor:
    """Return the loss of double Q-learning."""
    with torch.no_grad():
        best = online.head(features_of(online, batch))[1:].argmax(-1, keepdim=True)
        following = target.head(features_of(target, batch))[1:].gather(-1, best).squeeze(-1)
        targets = batch.rewards + config.gamma * (1 - batch.terminated) * following
    return error_of(online.head(features_of(online, batch)), targets, batch)


def soft_loss(online: SacAgent, target: SacAgent, batch: Sequences, config: Any) -> Tensor:
    """Return the losses of SAC's critics and policy, which share their features."""
    hidden, alpha = features_of(online, batch), config.temperature
    with torch.no_grad():
        probs = online.policy(hidden).softmax(-1)
        values = torch.minimum(*target.critics(hidden))
        following = (probs * (values - alpha * probs.clamp(min=1e-8).log())).sum(-1)[1:]
        targets = batch.rewards + config.gamma * (1 - batch.terminated) * following
    critic_loss = sum(error_of(values, targets, batch) for values in online.critics(hidden))
    probs = online.policy(hidden).softmax(-1)
    with torch.no_grad():
        values = torch.minimum(*online.critics(hidden))
    soft = (probs * (alpha * probs.clamp(min=1e-8).log() - values)).sum(-1)[:-1]
    return 0.5 * critic_loss + (soft * batch.mask).sum() / batch.mask.sum()


def error_of(values: Tensor, targets: Tensor, batch: Sequences) -> Tensor:
    """Return the mean squared error of the values of the actions taken."""
    chosen = values[:-1].gather(-1, batch.actions[..., None]).squeeze(-1)
    return ((chosen - targets) ** 2 * batch.mask).sum() / batch.mask.sum()


def features_of(agent: Any, batch: Sequences) -> Tensor:
    """Return the features of an agent at every step.  [T+1, B, D]"""
    embedder, shape = agent.body.embedder, batch.starts.shape
    shown: Any = batch.observations.shown
    parts = []
    if embedder.actions is not None:
        actions = F.one_hot(batch.last_actions, agent.n_actions).float()
        parts.append(F.relu(embedder.actions(actions.masked_fill(batch.starts[..., None], 0))))
    if embedder.images is None:
        parts.append(F.relu(embedder.vectors(shown.vectors)).unflatten(0, shape))
    else:
        parts.append(embedder.images.of_pixels(shown.images / 255).unflatten(0, shape))
    embedded = torch.cat(parts, dim=-1)
    memory = agent.body.memory
    return attended(memory, embedded) if isinstance(memory, Gpt) else memory.lstm(embedded)[0]


def attended(gpt: Gpt, x: Tensor) -> Tensor:
    """Return the hidden states of a GPT on whole episodes [T+1, B, F].  [T+1, B, D]"""
    future = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)

    def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        scores = queries @ keys.transpose(-1, -2) / math.sqrt(queries.shape[-1])
        return gpt.dropout(scores.masked_fill(future, -1e4).softmax(dim=-1)) @ values

    hidden = gpt.dropout(gpt.enter(x.transpose(0, 1)) + gpt.positions(torch.arange(len(x))))
    for block in gpt.blocks:
        hidden = block(hidden, attend)
    return gpt.norm(hidden).transpose(0, 1)


class FrameSize(NamedTuple):
    """Of ELLM: the batch, frames and widths."""

    n_samples: int = 64
    side: int = 84
    width: int = 512
    n_actions: int = 139


TINY_FRAMES = FrameSize(4, 36, 16, 5)


class KnownSentences:
    """Vectors drawn once, in the place of a sentence encoder: both versions are given them."""

    width = N_TEXT

    def __init__(self, device: str) -> None:
        self.sentences = SentenceTable()
        self._vectors = torch.randn(64, N_TEXT).to(device)

    def __call__(self, numbers: Tensor) -> Tensor:
        """Return the vectors of sentences.  [B, K, D]"""
        return self._vectors[numbers % len(self._vectors)]


def n_step(quick: bool) -> Iterator[Pair]:
    """Compare one update of ELLM."""
    size = TINY_FRAMES if quick else FrameSize()
    yield Pair(
        f"NStepDQN-ELLM, batch {size.n_samples}",
        partial(plain_n_step, size),
        partial(our_n_step, size),
        rounds=1 if quick else 15,
        repeats=1 if quick else 2,
        note=f"{size.side} x {size.side} x 4, floor {gigaflops(size):.1f} GFLOP",
    )


def fresh_ellm(size: FrameSize, device: str = "cpu") -> tuple[NStepDQN, FrameSteps]:
    """Return a learner and steps of noise on a device, always the same."""
    seed_everything(0)
    frozen: Any = KnownSentences(device)
    image = Box(0, 255, (1, size.side, size.side), np.uint8)
    space = Dict(image=image, caption=Text(9), goal=Text(9))
    settings = ["model=ELLM", "algorithm=NStepDQN", f"hidden_dim={size.width}"]
    config: Any = load_config(None, [*settings, f"device={device}", "learning_rate=6.25e-5"])
    agent = Ellm(config, space, Discrete(size.n_actions), frozen).to(device)
    seen: list[Any] = []
    for _ in range(2):
        images = torch.randint(0, 256, (size.n_samples, 4, size.side, size.side))
        text = torch.randint(0, 64, (size.n_samples, 2))
        seen.append(Observations(images.to(torch.uint8).to(device), text=text.to(device)))
    actions = torch.randint(size.n_actions, (size.n_samples,))
    goes_on = torch.rand(size.n_samples, 3) < 0.99
    rewards = torch.rand(size.n_samples, 3)
    steps = FrameSteps(*seen, *(each.to(device) for each in (actions, rewards, goes_on)))
    return NStepDQN(config.part(NStepDqnSettings), agent), steps


def our_n_step(size: FrameSize, device: str = "cpu") -> Iterator[Work]:
    """Update by the learner, the first time from the same start as the plain version."""
    learner, steps = fresh_ellm(size, device)

    def update() -> Tensor:
        learner.learn(steps)
        return flat(learner.agent)

    while True:
        yield update


def plain_n_step(size: FrameSize) -> Iterator[Work]:
    """Update the plain network by gradient steps on the Huber loss."""
    learner, steps = fresh_ellm(size)
    online, target = (copied(agent=learner.agent) for _ in range(2))
    optimizer = torch.optim.Adam(online.parameters(), lr=6.25e-5)

    def values_of(networks: Any, seen: Observations) -> Tensor:
        agent, images = networks["agent"], cast(Tensor, seen.images)
        maps = agent.image.convolutions(images.float() / 255)
        seen_parts = agent.image.linear(F.normalize(maps, dim=-1)), agent.text(seen.text)
        return agent.head(F.relu(agent.trunk(torch.cat(seen_parts, dim=-1))))

    def update() -> Tensor:
        returns, discounts = n_step_returns(steps.rewards, steps.goes_on, 0.99, torch.float16)
        with torch.no_grad():
            best = values_of(online, steps.following).argmax(-1, keepdim=True)
            ahead = values_of(target, steps.following).gather(-1, best).squeeze(-1)
            targets = returns + discounts * ahead
        values = values_of(online, steps.observations)
        loss = F.smooth_l1_loss(values.gather(-1, steps.actions[:, None]).squeeze(-1), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return flat(online["agent"])

    while True:
        yield update


def gigaflops(size: FrameSize) -> float:
    """Return the least work of an update of ELLM, in 10^9 multiplications and additions.

    Forward both observations, both ways of the gradient but none into the pixels. An update cannot
    take less than that at the speed of a matrix product.
    """
    side, n_in, convolutions = size.side, 4, []
    for n_out, (kernel, stride) in zip(CHANNELS, KERNELS[0][1], strict=True):
        side = (side - kernel) // stride + 1
        convolutions.append(side**2 * n_out * n_in * kernel**2)
        n_in = n_out
    width, n_actions = size.width, size.n_actions
    joined = (n_in * side**2 + N_TEXT + 2 * width) * width
    head = (4 * width + n_actions + 1) * width
    forward = sum(convolutions) + joined + head
    backward = 2 * forward - convolutions[0] - N_TEXT * width
    return 2 * size.n_samples * (2 * forward + head + backward) / 1e9
