"""The PPO update of HELM, beside the straightforward one: 2,048 samples, 3 epochs of 8 minibatches.

The agent is as wide as with Transformer-XL; the language model has a single layer, since the
update never runs it. Plain is every sample's image through the CNN as floats, in PyTorch's default
layout, every minibatch waited for. The difference is that of the parameters after an update.
"""

import copy
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.environments import N_ENVS
from benchmarks.measuring import Pair, Work
from benchmarks.random_models import TINY, Size, write_transformer_xl
from benchmarks.training import opened_run
from models.agent import ActorCriticAgent
from trainers.losses import clipped_policy_loss, value_loss
from trainers.ppo import PPO, PpoSettings
from trainers.rollout import Rollout

WIDE = Size(n_layer=1)
ROLLOUTS_BEFORE = 2  # so that episodes no longer begin together


def pairs(quick: bool) -> Iterator[Pair]:
    """Compare on the images of KeyCorridor, and where no two images are the same."""
    size, n_steps = (TINY, 8) if quick else (WIDE, 128)
    for name, all_differ in (("KeyCorridor", False), ("all images differ", True)):
        yield Pair(
            f"HELM update, {name}",
            partial(plain, size, n_steps, all_differ),
            partial(ours, size, n_steps, all_differ),
            rounds=1 if quick else 3,
            repeats=1 if quick else 2,
            compared=1,
            note=f"{n_steps * N_ENVS:,} samples, D={size.width}",
        )


def prepare(
    size: Size, n_steps: int, all_differ: bool
) -> tuple[PpoSettings, ActorCriticAgent, Rollout, Tensor]:
    """Return settings, an agent, a rollout, and orders of its samples, always the same."""
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
    rollout, config = learner.rollout, learner.config
    assert rollout is not None, "it is full"
    images = rollout.observations.images
    if all_differ:
        assert images is not None, "HELM's environments show images"
        images.random_()
    rollout.estimate(config.gamma, config.gae_lambda)
    orders = [torch.randperm(rollout.n_samples) for _ in range(config.n_epochs)]
    return config, learner.agent, rollout, torch.stack(orders)


def ours(size: Size, n_steps: int, all_differ: bool) -> Iterator[Work]:
    """Update by the learner, each time the same agent from the same rollout."""
    config, agent, rollout, permutations = prepare(size, n_steps, all_differ)
    before = copy.deepcopy(agent.state_dict())

    def update(learner: PPO) -> Tensor:
        learner.update(progress=0.0, permutations=permutations)
        return flat(agent)

    while True:
        agent.load_state_dict(before)
        learner = PPO(config, agent)
        learner.rollout = copy.copy(rollout)  # so that nothing is left of the update before
        yield partial(update, learner)


def plain(size: Size, n_steps: int, all_differ: bool) -> Iterator[Work]:
    """Update the plain networks, each time the same ones from the same rollout."""
    config, agent, rollout, permutations = prepare(size, n_steps, all_differ)
    samples = Samples.of(rollout)

    def update(networks: PlainNetworks) -> Tensor:
        plain_update(networks, samples, permutations, config)
        return flat(networks)

    while True:
        yield partial(update, PlainNetworks(agent))


def flat(module: nn.Module) -> Tensor:
    """Return all trained parameters one after the other."""
    return torch.cat([p.detach().reshape(-1) for _, p in sorted(module.named_parameters())])


class Samples(NamedTuple):
    """A rollout, environment by environment; images [B, C, H, W] are floats, all else [B, ...]."""

    images: Tensor
    context: Tensor
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor

    @classmethod
    def of(cls, rollout: Rollout) -> "Samples":
        """Return copies of a rollout."""
        assert rollout.observations.images is not None, "HELM's environments show images"
        images = rollout.observations.images.transpose(0, 1).flatten(0, 1)
        others = (getattr(rollout, name).transpose(0, 1).flatten(0, 1) for name in cls._fields[1:])
        return cls(images.float() / 255, *others)


class PlainNetworks(nn.Module):
    """HELM's trained parts under the names they have in the agent, with the agent's weights."""

    def __init__(self, agent: ActorCriticAgent) -> None:
        super().__init__()
        weights = {name: tensor.detach() for name, tensor in agent.named_parameters()}
        sizes = {name: tensor.shape for name, tensor in weights.items()}
        encoder, heads = "query_encoder.", "heads."
        first, second = (sizes[f"{encoder}convolutions.{number}.weight"] for number in (0, 2))
        self.query_encoder = nn.ModuleDict(
            {
                "convolutions": nn.Sequential(
                    nn.Conv2d(first[1], first[0], first[2], first[2] // 2),
                    nn.ReLU(),
                    nn.Conv2d(second[1], second[0], second[2], second[2] // 2),
                    nn.ReLU(),
                    nn.Flatten(),
                ),
                "linear": nn.Linear(*sizes[f"{encoder}linear.weight"][::-1]),
            }
        )
        self.heads = nn.ModuleDict(
            {
                name: _perceptron(*(sizes[f"{heads}{name}.{n}.weight"] for n in (0, 3)))
                for name in ("actor", "critic")
            }
        )
        self.load_state_dict(weights)

    def forward(self, images: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of all actions [B, A] and values [B]."""
        flat = self.query_encoder["convolutions"](images)
        queries = functional.relu(self.query_encoder["linear"](flat))
        features = torch.cat((context, queries), dim=-1)
        return self.heads["actor"](features).log_softmax(-1), self.heads["critic"](features)[:, 0]


def plain_update(
    networks: PlainNetworks, samples: Samples, permutations: Tensor, config: PpoSettings
) -> list[float]:
    """Pass over the samples in the orders [n_epochs, B] and return every minibatch's loss."""
    parameters = list(networks.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=config.learning_rate, eps=1e-8, weight_decay=0.01)
    losses = []
    for permutation in permutations:
        for chosen in permutation.chunk(config.n_batches):
            loss = _loss(networks, Samples(*(field[chosen] for field in samples)), config)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)
            optimizer.step()
            losses.append(loss.item())
    return losses


def _loss(networks: PlainNetworks, batch: Samples, config: PpoSettings) -> Tensor:
    all_log_probs, values = networks(batch.images, batch.context)
    log_probs = all_log_probs.gather(-1, batch.actions[:, None])[:, 0]
    entropy = -(all_log_probs.exp() * all_log_probs).sum(-1).mean()
    advantages = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
    policy = clipped_policy_loss(log_probs, batch.log_probs, advantages, config.clip_range)
    critic = value_loss(values, batch.values, batch.returns, config.clip_range_vf)
    return policy.loss + config.vf_coef * critic - config.ent_coef * entropy


def _perceptron(first: torch.Size, last: torch.Size) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(first[1], first[0]),
        nn.LayerNorm(first[0], elementwise_affine=False),
        nn.ReLU(),
        nn.Linear(last[1], last[0]),
    )
