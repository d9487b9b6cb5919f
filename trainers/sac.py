"""Soft actor-critic for discrete actions (Christodoulou 2019, arXiv:1910.07207).

The story: two critics learn the soft value of whole episodes of the past, the policy turns to what
they value, target critics follow slowly. With the settings of Ni et al. 2023, arXiv:2307.03864.
"""

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn

from models.agent import Policy, SacAgent, Sequences
from settings import Part, setting
from trainers.learner import Reward
from trainers.losses import follow, masked_mean, mean_norm, soft_targets, values_of
from trainers.off_policy import OffPolicyLearner, OffPolicySettings
from trainers.ranks import Ranks
from utils.saved_state import with_moments


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
        rate, groups = config.learning_rate, self._parameters()
        self.optimizers = {
            name: with_moments(torch.optim.Adam(group, lr=rate, fused=True))
            for name, group in groups.items()
        }
        if config.learn_temperature:
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
        step = self._learn_together if self.config.shared_encoder else self._learn_apart
        logged, entropy = step(sequences)
        if self.config.learn_temperature:
            self._learn_temperature(entropy)
        follow(self.target, self._critic, self.config.tau)
        alpha = torch.as_tensor(self.temperature, device=self.agent.device)
        logged |= {"entropy": entropy, "temperature": alpha}
        return {f"train/{name}": logged[name].detach() for name in self.logged}

    def _learn_together(self, sequences: Sequences) -> tuple[dict[str, Tensor], Tensor]:
        """One step of everything: half the critics' loss and the policy's, one optimiser."""
        view = self._view(sequences)
        losses, values = self._critic_losses(sequences, view)
        actor_loss, entropy = self._actor_loss(sequences, view)
        optimizer = self.optimizers["all"]
        optimizer.zero_grad()
        (0.5 * sum(losses) + actor_loss).backward()
        agent = self.agent
        self.ranks.average_gradients(self._parameters()["all"])
        logged = {
            "critic_grad_norm": mean_norm(agent.critics.first.parameters()),
            "actor_grad_norm": mean_norm(agent.policy.parameters()),
            "memory_grad_norm": mean_norm(agent.body.memory_parameters()),
        }
        optimizer.step()
        return logged | values | {"actor_loss": actor_loss}, entropy

    def _learn_apart(self, sequences: Sequences) -> tuple[dict[str, Tensor], Tensor]:
        """The critics' step first; the policy then turns to what they say after it."""
        view = self._view(sequences)
        losses, logged = self._critic_losses(sequences, view)
        self.optimizers["critic"].zero_grad()
        cast(Tensor, sum(losses)).backward()
        groups = self._parameters()
        self.ranks.average_gradients(groups["critic"])
        logged["critic_grad_norm"] = mean_norm(self._critic.parameters())
        self.optimizers["critic"].step()

        with torch.no_grad():
            view = view._replace(values=self._critics_say(sequences))
        actor_loss, entropy = self._actor_loss(sequences, view)
        self.optimizers["actor"].zero_grad()
        actor_loss.backward()
        self.ranks.average_gradients(groups["actor"])
        logged["actor_grad_norm"] = mean_norm(groups["actor"])
        logged["memory_grad_norm"] = mean_norm(self.agent.body.memory_parameters())
        self.optimizers["actor"].step()
        return logged | {"actor_loss": actor_loss}, entropy

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
            values = self._critics_say(sequences)
            with torch.no_grad():
                targets = self.target.critics(self.target.body.unroll(sequences))
        return _View(agent.policy(features), values, targets)

    def _critics_say(self, sequences: Sequences) -> tuple[Tensor, Tensor]:
        """Return the values of critics with a body of their own."""
        body = self.agent.critic_body
        assert body is not None, "these critics do not share the policy's body"
        return self.agent.critics(body.unroll(sequences))

    def _critic_losses(
        self, sequences: Sequences, view: _View
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Return both critics' losses, and what to log of them."""
        policy = Policy.of(view.logits[1:].detach())
        following = (policy, view.targets[0][1:], view.targets[1][1:])
        terminated, gamma = sequences.terminated, self.config.gamma
        targets = soft_targets(sequences.rewards, terminated, following, self.temperature, gamma)
        losses, logged = [], {}
        for number, values in enumerate(view.values, start=1):
            chosen = values_of(sequences.actions, values)
            losses.append(masked_mean((chosen - targets) ** 2, sequences.mask))
            logged[f"q{number}_mean"] = masked_mean(chosen.detach(), sequences.mask)
        return losses, logged | {"critic_loss": cast(Tensor, sum(losses))}

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

    def _learn_temperature(self, entropy: Tensor) -> None:
        """Raise the temperature where the entropy is below its target, and the other way round."""
        wanted = self.config.target_entropy * math.log(self.agent.n_actions)
        loss = -self.log_temperature.exp() * (wanted - entropy)
        optimizer = self.optimizers["temperature"]
        optimizer.zero_grad()
        loss.backward()
        self.ranks.average_gradients([self.log_temperature])
        optimizer.step()

    @property
    def _critic(self) -> "Critic":
        return Critic(self.agent.critics, self.agent.critic_body)

    def _parameters(self) -> dict[str, list[nn.Parameter]]:
        """Return what each optimiser trains."""
        agent = self.agent
        if agent.critic_body is None:
            return {"all": _trained(agent.parameters())}
        actor = [*agent.body.parameters(), *agent.policy.parameters()]
        return {"critic": _trained(self._critic.parameters()), "actor": _trained(actor)}


class Critic(nn.Module):
    """Both critics and the body that is theirs alone, if there is one."""

    def __init__(self, critics: nn.Module, body: Any) -> None:
        super().__init__()
        self.critics, self.body = critics, body


def _trained(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    return [parameter for parameter in parameters if parameter.requires_grad]
