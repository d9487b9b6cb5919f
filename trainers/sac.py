"""Soft actor-critic for discrete actions (Christodoulou 2019, arXiv:1910.07207).

The story: two critics learn the soft value of whole episodes of the past, the policy turns to what
they value, target critics follow slowly. With the settings of Ni et al. 2023, arXiv:2307.03864.
"""

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from models.agent import SacAgent, Sequences
from trainers.learner import Reward
from trainers.losses import Policy, follow, masked_mean, mean_norm, soft_targets, values_of
from trainers.off_policy import OffPolicyLearner, OffPolicySettings
from trainers.ranks import Ranks
from utils.saved_state import with_moments
from utils.settings import Part, setting


@dataclass(frozen=True)
class SacSettings(OffPolicySettings):
    """What SAC reads."""

    title = "SAC"

    shared_encoder: bool = setting(
        "policy and critics see through one encoder and memory, trained by both", default=True
    )
    freeze_critic: bool = setting(
        "with shared_encoder: the policy's loss leaves critics and their view alone", default=True
    )
    temperature: float = setting(
        "weight of the entropy; where it is learned it begins with 1", low=0, high=1e6, default=0.1
    )
    learn_temperature: bool = setting("adapt the temperature to target_entropy", default=False)
    target_entropy: float = setting(
        "entropy to keep, as a share of that of uniform actions", low=0, high=1, default=0.7
    )
    temperature_learning_rate: float = setting(
        "learning rate of the temperature", low=0, high=10, default=3e-4
    )


class _View(NamedTuple):
    """What networks say of every step of a batch.  [T+1, B, A] each

    Attributes:
        logits: Of the policy.
        values: Of both critics.
        targets: Of both target critics, without gradients.
    """

    logits: Tensor
    values: tuple[Tensor, Tensor]
    targets: tuple[Tensor, Tensor]


class SAC(OffPolicyLearner):
    """Trains a policy and two critics on the episodes they collect.

    Attributes:
        target: The critics that follow; with a body of their own where the critics have one.
        log_temperature: Learned, if the settings say so.
    """

    reads: ClassVar[tuple[type[Part], ...]] = (SacSettings,)
    logged = (
        *("critic_loss", "q1_mean", "q2_mean", "actor_loss", "entropy", "temperature"),
        *("critic_grad_norm", "actor_grad_norm", "memory_grad_norm"),
    )
    config: SacSettings
    agent: SacAgent
    target: "Critic"

    def __init__(
        self,
        config: SacSettings,
        agent: SacAgent,
        ranks: Ranks | None = None,
        reward: Reward | None = None,
    ) -> None:
        super().__init__(config, agent, ranks, reward)
        self.target = copy.deepcopy(self._critic).requires_grad_(False)
        self.log_temperature = torch.zeros((), device=agent.device, requires_grad=True)
        self.beside = {"log_temperature": self.log_temperature}
        if agent.critic_body is None:
            self.groups = {"all": _trained(agent.parameters())}
        else:
            actor = [*agent.body.parameters(), *agent.policy.parameters()]
            critic = self._critic.parameters()
            self.groups = {"critic": _trained(critic), "actor": _trained(actor)}
        self.optimizers = {
            name: with_moments(torch.optim.Adam(group, lr=config.learning_rate, fused=True))
            for name, group in self.groups.items()
        }
        if config.learn_temperature:
            self.groups["temperature"] = [self.log_temperature]
            self.optimizers["temperature"] = with_moments(
                torch.optim.Adam([self.log_temperature], lr=config.temperature_learning_rate)
            )

    @property
    def temperature(self) -> Tensor | float:
        """alpha, the weight of the entropy."""
        if self.config.learn_temperature:
            return self.log_temperature.detach().exp()
        return self.config.temperature

    def learn(self, sequences: Sequences) -> dict[str, Tensor]:
        """Take one gradient step of critics, policy and temperature."""
        config, agent = self.config, self.agent
        view = self._view(sequences)
        critic_loss, logged = self._critic_loss(sequences, view)
        memory = agent.body.memory_parameters()
        if config.shared_encoder:
            # One optimiser for everything: L = (L_1 + L_2) / 2 + L_policy
            actor_loss, entropy = self._actor_loss(sequences, view)
            critic, actor = agent.critics.first.parameters(), agent.policy.parameters()
            norms: dict[str, Iterable[Tensor]]
            norms = {"critic": critic, "actor": actor, "memory": memory}
            logged |= self._step("all", 0.5 * critic_loss + actor_loss, norms)
        else:
            # The critics' step first; the policy then turns to the values after it.
            logged |= self._step("critic", critic_loss, {"critic": self._critic.parameters()})
            with torch.no_grad():
                view = view._replace(values=self._critic_values(sequences))
            actor_loss, entropy = self._actor_loss(sequences, view)
            norms = {"actor": self.groups["actor"], "memory": memory}
            logged |= self._step("actor", actor_loss, norms)

        # L = -alpha (target - H): the temperature rises where the entropy is below its target.
        if config.learn_temperature:
            wanted = config.target_entropy * math.log(agent.n_actions)
            self._step("temperature", -self.log_temperature.exp() * (wanted - entropy), {})

        # target <- (1 - tau) target + tau critics
        follow(self.target, self._critic, config.tau)
        alpha = torch.as_tensor(self.temperature, device=agent.device)
        logged |= {"actor_loss": actor_loss, "entropy": entropy, "temperature": alpha}
        return {f"train/{name}": logged[name].detach() for name in self.logged}

    def _step(
        self, name: str, loss: Tensor, norms: Mapping[str, Iterable[Tensor]]
    ) -> dict[str, Tensor]:
        """Take one step of an optimiser; return mean norms of some parameters' gradients."""
        self.optimizers[name].zero_grad()
        loss.backward()
        self.ranks.average_gradients(self.groups[name])
        found = {f"{part}_grad_norm": mean_norm(group) for part, group in norms.items()}
        self.optimizers[name].step()
        return found

    def _view(self, sequences: Sequences) -> _View:
        """Let all networks read the sequences, each once."""
        agent = self.agent
        features = agent.body.unroll(sequences)
        if agent.critic_body is None:
            # Only the heads have targets: these see the present features.
            values = agent.critics(features)
            with torch.no_grad():
                targets = self.target.critics(features)
        else:
            values = self._critic_values(sequences)
            with torch.no_grad():
                targets = self.target.critics(self.target.body.unroll(sequences))
        return _View(agent.policy(features), values, targets)

    def _critic_values(self, sequences: Sequences) -> tuple[Tensor, Tensor]:
        """Return the values of critics with a body of their own."""
        body = self.agent.critic_body
        assert body is not None, "these critics do not share the policy's body"
        return self.agent.critics(body.unroll(sequences))

    def _critic_loss(self, sequences: Sequences, view: _View) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of both critics' losses, and what to log of them."""
        policy = Policy.of(view.logits[1:].detach())
        following = (policy, view.targets[0][1:], view.targets[1][1:])
        terminated, gamma = sequences.terminated, self.config.gamma
        targets = soft_targets(sequences.rewards, terminated, following, self.temperature, gamma)
        losses, logged = [], {}
        for number, values in enumerate(view.values, start=1):
            chosen = values_of(sequences.actions, values)
            losses.append(masked_mean((chosen - targets) ** 2, sequences.mask))
            logged[f"q{number}_mean"] = masked_mean(chosen.detach(), sequences.mask)
        loss = losses[0] + losses[1]
        return loss, logged | {"critic_loss": loss}

    def _actor_loss(self, sequences: Sequences, view: _View) -> tuple[Tensor, Tensor]:
        """Return the policy's loss and its entropy, means over the steps that count.

        sum_a pi(a|s) (alpha log pi(a|s) - min_i Q_i(s, a))
        """
        policy, mask = Policy.of(view.logits[:-1]), sequences.mask
        values = torch.minimum(*view.values)[:-1]
        if not self.config.shared_encoder or self.config.freeze_critic:
            values = values.detach()
        soft = (policy.probs * (self.temperature * policy.log_probs - values)).sum(-1)
        entropy = -(policy.probs * policy.log_probs).sum(-1).detach()
        return masked_mean(soft, mask), masked_mean(entropy, mask)

    @property
    def _critic(self) -> "Critic":
        return Critic(self.agent.critics, self.agent.critic_body)


class Critic(nn.Module):
    """Both critics and the body that is theirs alone, if there is one."""

    def __init__(self, critics: nn.Module, body: Any) -> None:
        super().__init__()
        self.critics, self.body = critics, body


def _trained(parameters: Iterable[Tensor]) -> list[Tensor]:
    return [parameter for parameter in parameters if parameter.requires_grad]
