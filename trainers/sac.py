"""Soft actor-critic for discrete actions (Christodoulou 2019, arXiv:1910.07207), and for others.

Two critics learn soft values from sequences of past episodes, the policy follows the values, target
critics follow slowly. With the settings of Ni et al. 2023, arXiv:2307.03864.
"""

import copy
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from models.agent import Agent, PolicyAndCriticsAgent, SequenceBatch, allowed
from trainers.losses import Policy, follow, gather_q, masked_mean, soft_targets
from trainers.off_policy import OffPolicyLearner
from trainers.settings import SacSettings
from trainers.td3 import (
    CRITICS,
    GRADIENTS,
    ActorCriticLearner,
    Pair,
    TwinCriticLearner,
)
from utils.errors import UserError

LEAST_TEMPERATURE = 1e-8  # whose logarithm is learned


class Critic(nn.Module):
    """Both critics, on the policy's features or on those of a body of their own."""

    def __init__(self, critics: nn.Module, body: Any) -> None:
        super().__init__()
        self.critics, self.body = critics, body

    def forward(self, sequences: SequenceBatch, features: Tensor) -> Pair:
        """Return the values of all actions, given the policy's features.  [T+1, B, A] each"""
        return self.critics(features if self.body is None else self.body.unroll(sequences))


class Tempered(OffPolicyLearner):
    """Weighs the entropy by a temperature, which is learned if the settings say so."""

    reads = (SacSettings,)
    networks = "SAC"
    config: SacSettings

    def begin_temperature(self, log_first: Tensor) -> None:
        self.log_temperature = log_first.requires_grad_()
        self.beside = {"log_temperature": self.log_temperature}
        if self.config.learn_temperature:
            rate = self.config.temperature_learning_rate
            self.add_optimizer("temperature", [self.log_temperature], rate, fused=False)

    @property
    def temperature(self) -> Tensor | float:
        """alpha, the weight of the entropy."""
        if self.config.learn_temperature:
            return self.log_temperature.detach().exp()
        return self.config.temperature

    def temperature_step(self, wanted: Tensor | float, entropy: Tensor) -> None:
        # L = -alpha (target - H): the temperature rises where the entropy is below its target.
        self.gradient_step("temperature", -self.log_temperature.exp() * (wanted - entropy), {})


class SAC(Tempered, ActorCriticLearner):
    """Trains a policy and two critics.

    Attributes:
        critic: Of the agent.
        target: The target critics; heads alone where the critics share the policy's body.
    """

    logged = (*CRITICS, "actor_loss", "entropy", "temperature", *GRADIENTS)
    recordable = True
    agent: PolicyAndCriticsAgent
    target: Critic

    def __init__(self, config: SacSettings, agent: PolicyAndCriticsAgent, *joined: Any) -> None:
        super().__init__(config, agent, *joined)
        self.critic = Critic(agent.critics, agent.critic_body)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.add_optimizers(self.critic.parameters())
        self.begin_temperature(torch.zeros((), device=agent.device))

    @classmethod
    def of(cls, agent: Agent) -> type[OffPolicyLearner]:
        if not agent.reader.action_shape:
            return cls
        if cls is not SAC:
            raise UserError(
                f"algorithm: {cls.__name__} is for discrete actions. "
                "Derive it from trainers.sac.ContinuousSAC"
            )
        return ContinuousSAC

    def learn(self, sequences: SequenceBatch) -> dict[str, Tensor]:
        config, agent, mask = self.config, self.agent, sequences.mask

        # Every network reads the whole sequences once. Shared features get gradients from both
        # losses; heads alone have targets then, which see the present features.
        features = agent.body.unroll(sequences)
        values = self.critic(sequences, features)
        with torch.no_grad():
            targets = self.target(sequences, features)
        logits = allowed(agent.policy(features), sequences.action_masks)
        critic_loss, logged = self._critic_loss(sequences, logits, values, targets)
        memory = agent.body.memory_parameters()
        parts: dict[str, Iterable[Tensor]]
        if config.shared_encoder:
            # One optimiser for everything: L = (L_1 + L_2) / 2 + L_policy
            actor_loss, entropy = self._actor_loss(logits, values, mask)
            critic, actor = (
                agent.critics.get_submodule("first").parameters(),
                agent.policy.parameters(),
            )
            parts = {"critic": critic, "actor": actor, "memory": memory}
            logged |= self.gradient_step("all", 0.5 * critic_loss + actor_loss, parts)
        else:
            # The critics' step comes first: the policy follows the values after it.
            logged |= self.gradient_step(
                "critic", critic_loss, {"critic": self.critic.parameters()}
            )
            with torch.no_grad():
                values = self.critic(sequences, features)
            actor_loss, entropy = self._actor_loss(logits, values, mask)
            parts = {"actor": self.groups["actor"], "memory": memory}
            logged |= self.gradient_step("actor", actor_loss, parts)

        if config.learn_temperature:
            most: Tensor | float = math.log(agent.n_actions)
            if sequences.action_masks is not None:
                most = masked_mean(sequences.action_masks[:-1].sum(-1).clamp(min=1).log(), mask)
            self.temperature_step(config.target_entropy * most, entropy)

        # target <- (1 - tau) target + tau critics
        follow(self.target, self.critic, config.tau)
        alpha = torch.zeros((), device=agent.device) + self.temperature
        logged |= {"actor_loss": actor_loss, "entropy": entropy, "temperature": alpha}
        return {f"train/{name}": logged[name].detach() for name in self.logged}

    def _critic_loss(
        self, sequences: SequenceBatch, logits: Tensor, values: Pair, targets: Pair
    ) -> tuple[Tensor, dict[str, Tensor]]:
        policy, gamma = Policy.of(logits[1:].detach()), self.config.gamma
        following = policy, targets[0][1:], targets[1][1:]
        y = soft_targets(
            sequences.rewards, sequences.terminated, following, self.temperature, gamma
        )
        losses, logged = [], {}
        for number, each in enumerate(values, start=1):
            chosen = gather_q(sequences.actions, each)
            losses.append(masked_mean((chosen - y) ** 2, sequences.mask))
            logged[f"q{number}_mean"] = masked_mean(chosen.detach(), sequences.mask)
        loss = losses[0] + losses[1]
        return loss, logged | {"critic_loss": loss}

    def _actor_loss(self, logits: Tensor, values: Pair, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the policy's loss and its entropy, means over the steps that count.

        sum_a pi(a|s) (alpha log pi(a|s) - min_i Q_i(s, a))
        """
        policy = Policy.of(logits[:-1])
        least = torch.minimum(*values)[:-1]
        # Without gradients the policy cannot lower its loss by raising the values it is judged by.
        if not self.config.shared_encoder or self.config.freeze_critic:
            least = least.detach()
        soft = (policy.probs * (self.temperature * policy.log_probs - least)).sum(-1)
        entropy = -(policy.probs * policy.log_probs).sum(-1).detach()
        return masked_mean(soft, mask), masked_mean(entropy, mask)


class ContinuousSAC(Tempered, TwinCriticLearner):
    """Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905)."""

    logged = (*TwinCriticLearner.logged, "entropy", "temperature")

    def __init__(self, config: SacSettings, agent: Any, *joined: Any) -> None:
        super().__init__(config, agent, *joined)
        first = torch.full((), max(config.temperature, LEAST_TEMPERATURE), device=agent.device)
        self.begin_temperature(first.log())

    @classmethod
    def of(cls, agent: Agent) -> type[OffPolicyLearner]:
        if agent.reader.action_shape:
            return cls
        raise UserError(
            f"algorithm: {cls.__name__} is for continuous actions. Derive it from trainers.sac.SAC"
        )

    def next_actions(
        self, sequences: SequenceBatch, features: Tensor, seen: Tensor
    ) -> tuple[Tensor, Any]:
        actions, log_probs = self.agent.draw(features[1:])
        return actions, -self.temperature * log_probs

    def actor_loss(self, features: Tensor, view: Tensor) -> tuple[Tensor, Tensor]:
        # alpha log pi(a|s) - min_i Q_i(s, a) of a drawn action
        actions, log_probs = self.agent.draw(features)
        least = torch.minimum(*self.judged(view, actions))
        return self.temperature * log_probs - least, log_probs

    def after_policy(self, log_probs: Tensor, mask: Tensor) -> dict[str, Tensor]:
        entropy = -masked_mean(log_probs.detach(), mask)
        alpha = torch.zeros((), device=self.agent.device) + self.temperature
        if self.config.learn_temperature:
            self.temperature_step(-float(self.agent.n_actions), entropy)
        return {"entropy": entropy, "temperature": alpha}
