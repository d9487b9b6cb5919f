"""Double DQN of any agent with values (van Hasselt, Guez & Silver 2016, arXiv:1509.06461).

Explore with probability epsilon, learn from sequences of past episodes, let the target network
follow slowly. With the settings of Ni et al. 2023, arXiv:2307.03864.
"""

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from models.agent import SequenceBatch, Step, ValuesAgent
from models.observations import AgentInput
from trainers.losses import double_q_targets, follow, gather_q, masked_mean, reduced_precision
from trainers.off_policy import OffPolicyLearner, epsilon_after, epsilon_greedy
from trainers.settings import DqnSettings


class DQN(OffPolicyLearner):
    """Trains an agent's Q-values; the target network has a memory and embedders of its own."""

    reads = (DqnSettings,)
    networks = "DQN"
    recordable = True
    logged = ("critic_loss", "q_mean", "critic_grad_norm", "critic_memory_grad_norm")
    config: DqnSettings
    agent: ValuesAgent
    target: ValuesAgent

    def __init__(self, config: DqnSettings, agent: ValuesAgent, *joined: Any) -> None:
        super().__init__(config, agent, *joined)
        # A copy of all, with a body of its own: it reads sequences by its own memory.
        self.target = copy.deepcopy(self.agent).requires_grad_(False)
        self.add_optimizer("all", agent.parameters(), config.learning_rate)

    def epsilon_after(self, n_explored: int) -> float:
        """Return epsilon after so many steps since the warm-up: linear from 1, then constant."""
        config = self.config
        # By default one exploring action an episode, in the longest ones on average.
        final = 1 / max(self.longest, 1) if config.epsilon_final is None else config.epsilon_final
        n_falling = config.exploration_fraction * (config.n_steps - self.n_warmup_steps)
        return epsilon_after(n_explored, n_falling, 1.0, final)

    def explore(self, step: Step, percept: AgentInput) -> Step:
        # Environments step together, so epsilon falls by one step from each to the next.
        n_envs = percept.n_envs
        epsilons = [self.epsilon_after(self.n_explored + n) for n in range(n_envs)]
        # Drawn whether used or not: the random stream depends on no value.
        drawn = self.random_actions(percept)
        return step._replace(actions=epsilon_greedy(step.actions, drawn, epsilons))

    def learn(self, sequences: SequenceBatch) -> dict[str, Tensor]:
        agent, config, mask = self.agent, self.config, sequences.mask

        # y = r + gamma (1 - terminated) Q_target(s', argmax_a Q(s', a)). Both networks read the
        # whole sequence [T+1, B, A]; dropout stays on in both, as in the original.
        with reduced_precision(config.update_dtype, agent.device):
            values = agent.values(sequences).float()
            with torch.no_grad():
                following = self.target.values(sequences)[1:].float()
        with torch.no_grad():
            discounts = config.gamma * (1 - sequences.terminated)
            targets = double_q_targets(sequences.rewards, discounts, values[1:], following)

        # L = mean (Q(s, a) - y)^2 over the steps that count; the rest stands behind episodes' ends.
        chosen = gather_q(sequences.actions, values)
        loss = masked_mean((chosen - targets) ** 2, mask)
        memory = agent.body.memory_parameters()
        parts: dict[str, Iterable[Tensor]] = {"critic": self.groups["all"], "critic_memory": memory}
        logged = self.gradient_step("all", loss, parts)

        # target <- (1 - tau) target + tau online
        follow(self.target, agent, config.tau)
        logged |= {"critic_loss": loss, "q_mean": masked_mean(chosen, mask)}
        return {f"train/{name}": logged[name].detach() for name in self.logged}

    def empty_metrics(self) -> dict[str, float]:
        return super().empty_metrics() | {"train/epsilon": self.epsilon_after(self.n_explored)}
