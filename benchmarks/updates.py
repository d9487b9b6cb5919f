"""Updates: HELM by PPO beside the straightforward one, DQN and SAC beside PyTorch's own products.

Plain PPO is written as the equations read: every sample goes through all networks as floats, in
PyTorch's default layout. Plain DQN and SAC are ours without oneDNN's linear layers. Both begin with
the same weights and learn from the same steps. The difference is that of the parameters after the
first update. EllmDQN is alone.

HELM's language model has a single layer, since the update never runs it. DQN and SAC have the sizes
of Ni et al. 2023 (arXiv:2307.03864) and 64 sequences of uniformly random actions; ELLM those of Du
et al. 2023 (arXiv:2302.06692) and steps of noise.
"""

import copy
import math
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, Text
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.language_models import TINY, TransformerSize, write_transformer_xl
from benchmarks.measuring import Pair, Work
from benchmarks.training import opened_run
from models.agent import SequenceBatch
from models.ellm import Ellm
from models.language import layers
from models.observations import Observations, SentenceTable
from trainers.ellm_dqn import EllmDQN
from trainers.frame_replay import FrameSteps
from trainers.off_policy import OffPolicyLearner
from trainers.ppo import PPO, clipped_policy_loss, value_loss
from trainers.settings import NStepDqnSettings
from utils.given_settings import load_config
from utils.seeding import seed_everything

WIDE = TransformerSize(n_layer=1)
N_ENVS = 16
ROLLOUTS_BEFORE = 2  # so that episodes no longer begin together
ROWS = ("stored_state", "actions", "log_probs", "values", "advantages", "returns")  # of a rollout
TMAZE, MATCH, PENDULUM = "TMazePassive-v0", "VisualMatch-v0", "PendulumP-v0"
# Widths of an embedded observation, an embedded action and the memory, as published.
WIDTHS = {
    ("LSTM", TMAZE): (32, 16, 128),
    ("GPT", TMAZE): (64, 64, 128),
    ("LSTM", MATCH): (100, 0, 128),
    ("GPT", MATCH): (100, 0, 100),
    ("LSTM", PENDULUM): (32, 16, 128),
    ("GPT", PENDULUM): (64, 64, 128),
}
N_TEXT = 384


def flat(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for _, p in sorted(module.named_parameters())])


def copied(network: nn.Module) -> Any:
    return copy.deepcopy(network).to(memory_format=torch.contiguous_format)


def ppo(quick: bool) -> Iterator[Pair]:
    size, n_steps = (TINY, 8) if quick else (WIDE, 128)
    yield Pair(
        "HELM update, KeyCorridor",
        partial(plain_ppo, size, n_steps),
        partial(our_ppo, size, n_steps),
        compared=1,
        note=f"{n_steps * N_ENVS:,} samples, D={size.width}",
    )


def full_ppo(size: TransformerSize, n_steps: int) -> tuple[PPO, Any, Tensor]:
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
    rollout.estimate(learner.config.gamma, learner.config.gae_lambda)
    orders = [torch.randperm(rollout.n_samples) for _ in range(learner.config.n_epochs)]
    return learner, rollout, torch.stack(orders)


def our_ppo(size: TransformerSize, n_steps: int) -> Iterator[Work]:
    first, rollout, orders = full_ppo(size, n_steps)
    before = copy.deepcopy(first.agent.state_dict())

    def update(learner: PPO) -> Tensor:
        learner.update(progress=0.0, permutations=orders)
        return flat(learner.agent)

    while True:
        first.agent.load_state_dict(before)
        learner = PPO(first.config, first.agent)
        learner.rollout = copy.copy(rollout)  # so that nothing is left of the update before
        yield partial(update, learner)


def plain_ppo(size: TransformerSize, n_steps: int) -> Iterator[Work]:
    learner, rollout, orders = full_ppo(size, n_steps)
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
            features = torch.cat((batch["stored_state"], queries), dim=-1)
            found = networks["heads"].evaluate(features, batch["actions"])
            weights = batch["advantages"]
            weights = (weights - weights.mean()) / (weights.std() + 1e-8)
            ratios = found.log_probs, batch["log_probs"]
            policy = clipped_policy_loss(*ratios, weights, config.clip_range)
            values = found.values, batch["values"], batch["returns"]
            critic = value_loss(*values, config.clip_range_vf)
            entropy = found.entropy.mean()
            loss = policy.loss + config.vf_coef * critic - config.ent_coef * entropy
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)
            optimizer.step()
            loss.item()  # each minibatch is waited for
        return flat(networks)

    networks = nn.ModuleDict({"query_encoder": agent.query_encoder, "heads": agent.heads})
    while True:
        yield partial(update, copied(networks))


def off_policy(quick: bool, device: str = "cpu") -> Iterator[Pair]:
    n = 6 if quick else 64
    lengths = ((TMAZE, 5), (MATCH, 3)) if quick else ((TMAZE, 50), (TMAZE, 250), (MATCH, 60))
    for env, length in (*lengths, (PENDULUM, 200)):
        algorithm = "DQN" if env == TMAZE else "SAC"
        n_steps = length + {TMAZE: 1, MATCH: 30, PENDULUM: 0}[env]
        for model, dropout in (("LSTM", 0.0), ("GPT", 0.0), ("GPT", 0.1)):
            observation, action, memory = WIDTHS[model, env]
            settings = f"algorithm={algorithm} model={model} env={env} n_envs={n} "
            settings += "" if env == PENDULUM else f"length={length} "
            settings += f"batch_size={n} warmup_episodes={2 * n} memory_width={memory} "
            settings += f"observation_embedding={observation} action_embedding={action} "
            settings += "learning_rate=3e-4 context_length=-1 n_steps=1000000"
            settings += " head_width=16" if quick else ""
            if model == "GPT":
                settings += f" memory_heads=1 memory_dropout={dropout} mem_len={n_steps + 1}"
            yield Pair(
                f"{algorithm}-{model}, {env[:-3]}, T={n_steps}{', dropout' if dropout else ''}",
                partial(plain_off_policy, settings, device) if device == "cpu" else None,
                partial(our_off_policy, settings, device),
                compared=1 if device == "cpu" else 0,
                note=f"{n} sequences",
            )


def filled(settings: str, device: str) -> tuple[OffPolicyLearner, Callable[[], SequenceBatch]]:
    with opened_run([*settings.split(), f"device={device}"]) as run:
        learner, collector = run.learner, run.collector
        assert isinstance(learner, OffPolicyLearner), "DQN and SAC are"
        collector.begin(run.config.seed)
        while collector.n_episodes < run.config.n_envs:
            collector.step()
    assert learner.replay is not None, "episodes have ended"
    return learner, partial(learner.replay.sequences, learner.replay.start_rows)


def our_off_policy(settings: str, device: str) -> Iterator[Work]:
    learner, draw = filled(settings, device)

    def update() -> Tensor:
        learner.learn_quickly(draw())
        return flat(learner.agent)

    return repeat(update)


def plain_off_policy(settings: str, device: str) -> Iterator[Work]:
    with patch.object(layers, "LARGE_PRODUCT", math.inf):
        yield from our_off_policy(settings, device)


class FrameSize(NamedTuple):
    n_samples: int = 64
    side: int = 84
    width: int = 512
    n_actions: int = 139


TINY_FRAMES = FrameSize(4, 36, 16, 5)


class KnownSentences:
    """Vectors [B, K, D] drawn once, in the place of a sentence encoder."""

    width = N_TEXT

    def __init__(self, device: str) -> None:
        self.sentences, self._vectors = SentenceTable(), torch.randn(64, N_TEXT).to(device)

    def __call__(self, numbers: Tensor) -> Tensor:
        return self._vectors[numbers]


def n_step(quick: bool, device: str = "cpu") -> Iterator[Pair]:
    """Measure one update of ELLM; the floor is its products at the speed of a large one."""
    size = TINY_FRAMES if quick else FrameSize()
    with FlopCounterMode(display=False) as counter:
        next(our_n_step(size))()
    floor = f"floor {counter.get_total_flops() / 1e9:.1f} GFLOP"
    yield Pair(
        f"EllmDQN-ELLM, batch {size.n_samples}",
        None,
        partial(our_n_step, size, device),
        compared=0,
        note=f"{size.side} x {size.side} x 4, {floor}",
    )


def our_n_step(size: FrameSize, device: str = "cpu") -> Iterator[Work]:
    seed_everything(0)
    frozen: Any = KnownSentences(device)
    image = Box(0, 255, (1, size.side, size.side), np.uint8)
    space = Dict(image=image, caption=Text(9), goal=Text(9))
    settings = ["model=ELLM", "algorithm=EllmDQN", f"hidden_dim={size.width}"]
    config: Any = load_config(None, [*settings, f"device={device}", "learning_rate=6.25e-5"])
    agent = Ellm(config, space, Discrete(size.n_actions), frozen).to(device)
    seen: list[Any] = []
    for _ in range(2):
        images = torch.randint(0, 256, (size.n_samples, 4, size.side, size.side))
        text = torch.randint(0, 64, (size.n_samples, 2))
        seen.append(Observations(images.to(torch.uint8).to(device), text=text.to(device)))
    actions = torch.randint(size.n_actions, (size.n_samples,))
    not_done = torch.rand(size.n_samples, 3) < 0.99
    rewards = torch.rand(size.n_samples, 3)
    steps = FrameSteps(*seen, *(each.to(device) for each in (actions, rewards, not_done)))
    learner = EllmDQN(config.part(NStepDqnSettings), agent)

    def update() -> None:
        learner.learn(steps)

    return repeat(update)
