"""The straightforward PPO update of HELM: the yardstick of `benchmarks.update`.

Every sample's image goes through the CNN as floats, in PyTorch's default layout, and every
minibatch is waited for.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.agent import Agent
from trainers.losses import clipped_policy_loss, value_loss
from trainers.ppo import PpoSettings
from trainers.rollout import Rollout


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
        """Return copies of what a rollout holds."""
        assert rollout.observations.images is not None, "HELM's environments show images"
        images = rollout.observations.images.transpose(0, 1).flatten(0, 1)
        others = (getattr(rollout, name).transpose(0, 1).flatten(0, 1) for name in cls._fields[1:])
        return cls(images.float() / 255, *others)


class PlainNetworks(nn.Module):
    """HELM's trained parts under the names they have in the agent, with the agent's weights."""

    def __init__(self, agent: Agent) -> None:
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
