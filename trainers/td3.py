"""Learners of continuous actions by two critics; TD3 (Fujimoto et al. 2018, arXiv:1802.09477).

Two critics learn the values of actions from sequences of past episodes, a policy follows the first
of them, and a copy of all networks follows slowly. TD3's policy draws nothing: noise explores.
"""

import copy
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import functional_call

from models.agent import Agent, SequenceBatch, Step
from models.observations import AgentInput
from trainers.losses import follow, masked_mean
from trainers.off_policy import OffPolicyLearner
from trainers.settings import Td3Settings

Pair = tuple[Tensor, Tensor]  # of both critics
# Metrics.
CRITICS = ("critic_loss", "q1_mean", "q2_mean")
GRADIENTS = ("critic_grad_norm", "actor_grad_norm", "memory_grad_norm")


class ActorCriticLearner(OffPolicyLearner):
    """Has one optimiser where policy and critics share an encoder, else one for each."""

    agent: Any  # with `policy`, `critics` and `critic_body`

    def add_optimizers(self, critic: Iterable[Tensor]) -> None:
        """Add those of the agent, given the parameters of its critics and their body."""
        config, agent = self.config, self.agent
        if agent.critic_body is None:
            # One body learns from all losses, so one optimiser moves it.
            self.add_optimizer("all", agent.parameters(), config.learning_rate)
            return
        actor = [*agent.body.parameters(), *agent.policy.parameters()]
        of_both = config.critic_learning_rate, config.actor_learning_rate
        rates = (config.learning_rate if own is None else own for own in of_both)
        for name, group, rate in zip(("critic", "actor"), (critic, actor), rates, strict=True):
            self.add_optimizer(name, group, rate)

    @staticmethod
    def validate_config(config: Any, agent: type[Agent]) -> list[str]:
        rates = {"actor": config.actor_learning_rate, "critic": config.critic_learning_rate}
        return OffPolicyLearner.validate_config(config, agent) + [
            f"{name}_learning_rate: shared_encoder has one optimiser, of learning_rate. Add "
            "shared_encoder=false"
            for name, rate in rates.items()
            if config.shared_encoder and rate is not None
        ]


class TwinCriticLearner(ActorCriticLearner):
    """Trains a policy and two critics of features and actions; `target` is a copy that follows."""

    logged: ClassVar[tuple[str, ...]] = (
        *CRITICS,
        "actor_loss",
        *GRADIENTS,
    )
    delay = 1  # gradient steps of the critics for each of the policy
    config: Any
    agent: Any  # q_networks.ContinuousAgent
    target: Any

    def __init__(self, config: Any, agent: Any, *joined: Any) -> None:
        super().__init__(config, agent, *joined)
        self.target = copy.deepcopy(agent).requires_grad_(False)
        own = [] if agent.critic_body is None else agent.critic_body.parameters()
        self.add_optimizers([*own, *agent.critics.parameters()])
        self.n_critic_steps = 0

    def counts(self) -> dict[str, int]:
        return super().counts() | {"n_critic_steps": self.n_critic_steps}

    def load_counts(self, counts: dict[str, int]) -> None:
        super().load_counts(counts)
        self.n_critic_steps = counts["n_critic_steps"]

    @abstractmethod
    def next_actions(
        self, sequences: SequenceBatch, features: Tensor, seen: Tensor
    ) -> tuple[Tensor, Any]:
        """Return the actions at the steps after each, and the worth of their being random.

        `features` are the present policy's, `seen` those of the copy's critics.
        [T+1, B, D] -> [T, B, A], and [T, B] or 0
        """

    @abstractmethod
    def actor_loss(self, features: Tensor, view: Tensor) -> tuple[Tensor, Tensor]:
        """Return the policy's loss at each step, and the log-probabilities of its actions there.

        `features` are the policy's, `view` the critics'.  [T, B, D] -> [T, B] each
        """

    def learn(self, sequences: SequenceBatch) -> dict[str, Tensor]:
        config, agent, mask = self.config, self.agent, sequences.mask

        # Policy and critics read the whole sequences once, through one body or each its own.
        features = agent.body.unroll(sequences)
        is_shared = agent.critic_body is None
        view = features if is_shared else agent.critic_body.unroll(sequences)

        # y = r + gamma (1 - terminated) (min_i Q_i,target(s', a') + worth of chance)
        with torch.no_grad():
            seen = (self.target.body if is_shared else self.target.critic_body).unroll(sequences)
            # The least of two critics, since a maximum over actions makes one too high.
            following, worth = self.next_actions(sequences, features, seen)
            least = torch.minimum(*self.target.judge(seen[1:], following))
            y = sequences.rewards + config.gamma * (1 - sequences.terminated) * (least + worth)

        # L = sum_i mean (Q_i(s, a) - y)^2 over the steps that count
        values = agent.judge(view[:-1], sequences.actions)
        first, second = (masked_mean((each - y) ** 2, mask) for each in values)
        critic_loss = first + second
        logged = {"critic_loss": critic_loss}
        logged |= {
            f"q{n}_mean": masked_mean(each.detach(), mask) for n, each in enumerate(values, 1)
        }

        # The policy takes its step with every `delay`-th of the critics, and the copy follows then.
        self.n_critic_steps += 1
        is_due = self.n_critic_steps % self.delay == 0
        own: dict[str, Tensor] = {}
        memory = agent.body.memory_parameters()
        parts: dict[str, Iterable[Tensor]]
        if is_shared:
            # One optimiser for everything: L = (L_1 + L_2) / 2 + L_policy
            loss = 0.5 * critic_loss
            if is_due:
                policy_loss, own = self._policy_loss(features, features, mask)
                loss = loss + policy_loss
            parts = {"critic": agent.critics.first.parameters(), "memory": memory}
            parts["actor"] = agent.policy.parameters()
            logged |= self.gradient_step("all", loss, parts)
        else:
            # The critics' step comes first: the policy follows the values after it.
            parts = {"critic": self.groups["critic"]}
            logged |= self.gradient_step("critic", critic_loss, parts)
            if is_due:
                with torch.no_grad():
                    view = agent.critic_body.unroll(sequences)
                parts = {"actor": self.groups["actor"], "memory": memory}
                loss, own = self._policy_loss(features, view, mask)
                own |= self.gradient_step("actor", loss, parts)
        if is_due:
            # target <- (1 - tau) target + tau online
            follow(self.target, agent, config.tau)
            # Its metrics are means of its own steps: at the others they are 0.
            own = {name: self.delay * each for name, each in own.items()}
        nothing = torch.zeros((), device=agent.device)
        logged = dict.fromkeys(self.logged, nothing) | own | logged
        return {f"train/{name}": logged[name].detach() for name in self.logged}

    def _policy_loss(
        self, features: Tensor, view: Tensor, mask: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        # A policy that could move its features would move the values it is judged by.
        if self.config.freeze_critic and self.agent.critic_body is None:
            features = view = features.detach()
        losses, log_probs = self.actor_loss(features[:-1], view[:-1])
        loss = masked_mean(losses, mask)
        return loss, {"actor_loss": loss} | self.after_policy(log_probs, mask)

    def after_policy(self, log_probs: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Learn from the log-probabilities [T, B] of the policy's actions; return metrics."""
        return {}

    def judged(self, view: Tensor, actions: Tensor) -> Pair:
        """Return both critics' values of a policy's actions, with gradients of these.  [T, B] each

        The critics get gradients where `freeze_critic` is false and one body serves both.
        """
        if self.agent.critic_body is None and not self.config.freeze_critic:
            return self.agent.judge(view, actions)
        # Without gradients of their own the critics do not learn to please the policy.
        fixed = {name: each.detach() for name, each in self.agent.critics.named_parameters()}
        joined = torch.cat((view, actions), dim=-1)
        first, second = functional_call(self.agent.critics, fixed, (joined,))
        return first.squeeze(-1), second.squeeze(-1)


class TD3(TwinCriticLearner):
    """Twin delayed deep deterministic policy gradients."""

    reads = (Td3Settings,)
    networks = "TD3"
    config: Td3Settings

    def __init__(self, config: Td3Settings, agent: Any, *joined: Any) -> None:
        super().__init__(config, agent, *joined)
        self.delay = config.policy_delay

    def explore(self, step: Step, percept: AgentInput) -> Step:
        noise = self.config.exploration_noise * torch.randn_like(step.actions)
        return step._replace(actions=(step.actions + noise).clamp(-1, 1))

    def next_actions(
        self, sequences: SequenceBatch, features: Tensor, seen: Tensor
    ) -> tuple[Tensor, Any]:
        # a' = clip(policy_target(s') + clip(noise, -c, c), -1, 1)
        config, limit, target = self.config, self.config.target_noise_clip, self.target
        view = seen if target.critic_body is None else target.body.unroll(sequences)
        actions, _ = target.draw(view[1:])
        # Noise smooths the target: a sharp peak of a critic is not followed (section 5.3).
        noise = (config.target_noise * torch.randn_like(actions)).clamp(-limit, limit)
        return (actions + noise).clamp(-1, 1), 0

    def actor_loss(self, features: Tensor, view: Tensor) -> tuple[Tensor, Tensor]:
        actions, log_probs = self.agent.draw(features)
        first, second = self.judged(view, actions)
        is_least = self.config.actor_value == "least"
        return -(torch.minimum(first, second) if is_least else first), log_probs
