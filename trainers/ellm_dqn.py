"""Double DQN with n-step targets, from single frames (van Hasselt et al. 2016; Du et al. 2023).

Explore with probability epsilon, optionally by the actions of a pretrained guide; take a gradient
step every few environment steps; copy the heads into the target network now and then. With the
settings of ELLM (arXiv:2302.06692), where online and target network share the encoder.
"""

import copy
import logging
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from models.agent import Agent, Memory, Step, Transitions
from models.observations import AgentInput, ObservationBatch
from trainers.frame_replay import FrameReplay, FrameSteps
from trainers.learner import Guide, Learner, MeanMetrics, Transition
from trainers.losses import double_q_targets, follow, n_step_returns, reduced_precision
from trainers.off_policy import epsilon_after, epsilon_greedy
from trainers.sequence_replay import CutOff
from trainers.settings import (
    GUIDE_SHARE,
    NStepDqnSettings,
)
from utils.environments import State
from utils.errors import NotFiniteError
from utils.saved_state import check_like, load_moments, moments

FLOATS = {"float16": torch.float16, "float32": torch.float32}
EPSILON_FINAL = 0.01  # as published
NOT_YET = -1

log = logging.getLogger(__name__)


class EllmDQN(Learner):
    """Trains the Q-values of an agent that sees the last frames.

    Gradient steps are taken along the way, in `observe`; `update` returns their metrics. The agent
    is ELLM, or another with `features` of stacked frames and a `head` on them.

    Attributes:
        target: The target heads; the encoder is the agent's own.
        replay: None before the first step.
        guide: For some of the exploring actions.
        n_seen: Environment steps so far, those of all environments.
        n_updates: Gradient steps so far.
        paid: Sum of the rewards so far, of all environments.
        first_reward_step: The environment step at which it reached 1; -1 before.
    """

    reads = (NStepDqnSettings,)
    networks = "EllmDQN"
    takes_reward = True
    agent: Any
    logged = ("critic_loss", "q_mean", "n_step_return_mean", "grad_norm")

    def __init__(
        self, config: NStepDqnSettings, agent: Any, *joined: Any, guide: Guide | None = None
    ) -> None:
        super().__init__(config, agent, *joined)
        self.target = copy.deepcopy(agent.head).requires_grad_(False)
        self.parameters = agent.trainable_parameters(config.finetune)
        # The rest gets no gradients, which would be computed for nothing.
        agent.requires_grad_(False)
        for parameter in self.parameters:
            parameter.requires_grad_(True)
        self.optimizer = self.new_optimizer(self.parameters, config.learning_rate)
        self.replay: FrameReplay | None = None
        self.guide = guide
        self.n_seen = self.n_updates = 0
        self.paid, self.first_reward_step = 0.0, NOT_YET
        self._guide_memory: Memory | None = None
        self._logged = MeanMetrics()
        self._n_since_row = 0
        self._has_begun = False
        self._cut_off = CutOff(config.env)

    @property
    def update_due(self) -> bool:
        return self._n_since_row >= self.config.log_steps or self.n_seen >= self.config.n_steps

    @property
    def may_stop(self) -> bool:
        return self.ranks.size == 1  # several write one checkpoint together, after an update

    def epsilon_at(self, n_seen: int) -> float:
        config = self.config
        began = self.first_reward_step if config.wait_for_reward else 0
        final = EPSILON_FINAL if config.epsilon_final is None else config.epsilon_final
        if began == NOT_YET:
            return config.epsilon_start
        return epsilon_after(n_seen - began, config.epsilon_steps, config.epsilon_start, final)

    def act(self, percept: AgentInput, memory: Memory) -> Step:
        # The agent acts in any case: its memory has to read every step, and so has the guide's.
        step = self.agent.act(percept, memory)
        n_envs = percept.n_envs
        # Drawn whether used or not: the random stream depends on no value.
        drawn = torch.randint(self.agent.n_actions, (n_envs,), device=self.agent.device)
        if self.guide is not None:
            shares = [self.config.guide_share] * n_envs
            drawn = epsilon_greedy(drawn, self._guided(self.guide.agent, percept), shares)
        epsilons = [self.epsilon_at(self.n_seen + n) for n in range(n_envs)]
        return step._replace(actions=epsilon_greedy(step.actions, drawn, epsilons))

    def observe(self, transition: Transition) -> None:
        config, percept, ended = self.config, transition.percept, transition.ended
        if self.replay is None:
            self.replay = self._empty_replay(percept)
        actions, rewards = transition.step.actions, transition.rewards
        self.replay.add(percept.observations, actions, rewards, ended)
        over = ended.nonzero().flatten().tolist()
        for env in over + self._cut_off(self.replay.lengths, over):
            self.replay.end(env, transition.following.observations)
        before, n_envs = self.n_seen, percept.n_envs * self.ranks.size
        self.n_seen += n_envs  # the other ranks take as many steps
        self._n_since_row += n_envs
        self.paid += float(rewards.sum())
        if self.paid >= 1 and self.first_reward_step == NOT_YET:
            self.first_reward_step = self.n_seen

        # Ranks ask one another until all have something to learn from, and know from then on.
        if not self._has_begun and self.n_seen >= config.learning_starts:
            is_paid = self.first_reward_step != NOT_YET or not config.wait_for_reward
            self._has_begun = bool(self.ranks.least(is_paid and self.replay.n_rows > 0))
        if not (self._has_begun and self.replay.n_rows):  # a long episode may take all the room
            return
        for _ in range(_n_passed(before, self.n_seen, config.train_frequency)):
            logged = self.learn(self.replay.sample(self.ranks.part_of(config.batch_size)))
            self._logged.add({name: float(value) for name, value in logged.items()})
            if not self._logged.are_finite:
                raise NotFiniteError({"epoch": 0, "number": self.n_updates, "logged": logged})
        if _n_passed(before, self.n_seen, config.target_update_steps):
            # tau = 1 is a copy.
            follow(self.target, self.agent.head, 1.0)

    def update(self, progress: float) -> dict[str, float]:
        if self.n_seen >= self.config.n_steps and not self.n_updates:
            log.warning(
                f"nothing was learned: the {self.config.n_steps:,} steps were over before "
                f"learning_starts={self.config.learning_starts:,}, a first episode or, with "
                "wait_for_reward, a reward. Choose a larger n_steps"
            )
        # Names without a value would make metrics.csv a table of another width: NaN stands there.
        metrics = dict.fromkeys(self._names, math.nan) | self._logged.means()
        self._logged, self._n_since_row = MeanMetrics(), 0
        return metrics | {
            "train/epsilon": self.epsilon_at(self.n_seen),
            "train/n_gradient_steps": float(self.n_updates),
            "train/replay_steps": 0.0 if self.replay is None else float(self.replay.n_rows),
        }

    def learn(self, steps: FrameSteps) -> dict[str, Tensor]:
        config, agent = self.config, self.agent

        # R = sum_{k<n} gamma^k r_{t+k}; an intrinsic reward sees the n steps as one.
        rewards = steps.rewards
        if self.scaling is not None:  # by the same statistics, whenever they were paid
            rewards = self.scaling.scaled(rewards).float()
        rewards = rewards.clamp(-1, 1) if config.clip_reward else rewards
        dtype = FLOATS[config.return_dtype]
        returns, discounts = n_step_returns(rewards, steps.not_done, config.gamma, dtype)
        rewarded: dict[str, Tensor] = {}
        if self.reward is not None:
            both = steps.observations.map(lambda *kinds: torch.cat(kinds), steps.following)
            batch, nothing = ObservationBatch(both), returns.new_zeros(2 * len(returns), 0)
            as_one = Transitions(batch, nothing, steps.actions, returns.float())
            returns, rewarded = self.reward(as_one)

        # y = R + gamma^n Q_target(s', argmax_a Q(s', a)), of features that both networks share.
        with torch.no_grad():
            with reduced_precision(config.update_dtype, agent.device):
                following = agent.features(steps.following)
                online, target = agent.head(following), self.target(following)
            targets = double_q_targets(returns, discounts, online.float(), target.float())

        # L = huber(Q(s, a) - y)
        with reduced_precision(config.update_dtype, agent.device):
            values = agent.head(agent.features(steps.observations)).float()
        chosen = values.gather(-1, steps.actions[:, None]).squeeze(-1)
        loss = F.smooth_l1_loss(chosen, targets)
        self.optimizer.zero_grad()
        loss.backward()
        self.ranks.average_gradients(self.parameters)
        norms = torch._foreach_norm([p.grad for p in self.parameters if p.grad is not None])
        self.optimizer.step()
        self.n_updates += 1
        return rewarded | {
            "train/critic_loss": loss.detach(),
            "train/q_mean": chosen.detach().mean(),
            "train/n_step_return_mean": returns.float().mean(),
            "train/grad_norm": torch.stack(norms).norm(),
        }

    @classmethod
    def guide_of(cls, config: NStepDqnSettings) -> str | None:
        return config.guide

    @staticmethod
    def validate_config(config: Any, agent: type[Agent]) -> list[str]:
        problems = []
        if "EllmDQN" not in agent.algorithms:
            problems.append(
                f"algorithm: EllmDQN trains values of the last frames, which {config.model} has "
                "not. Choose model=ELLM, or another algorithm"
            )
        if config.guide is None and config.guide_share != GUIDE_SHARE:
            problems.append("guide_share: no effect without a guide. Name one, or leave it out")
        return problems

    def state_dict(self) -> State:
        memory = self._guide_memory
        return {
            "optimizer": moments(self.optimizer),
            "target": dict(self.target.state_dict()),
            "counts": {
                "n_seen": self.n_seen,
                "n_updates": self.n_updates,
                "paid": self.paid,
                "first_reward_step": self.first_reward_step,
                "_n_since_row": self._n_since_row,
                "_has_begun": self._has_begun,
            },
            "logged": self._logged.state_dict(),
            "replay": None if self.replay is None else self.replay.state_dict(),
            "reward": None if self.reward is None else self.reward.state_dict(),
            "guide": self.guide.sha256 if self.guide else None,
            "guide_memory": None if memory is None else memory.state_dict(),
        }

    def load_state_dict(self, state: State, percept: AgentInput, memory: Memory | None) -> None:
        if state["guide"] != (self.guide.sha256 if self.guide else None):
            raise ValueError("guide: not the one that the run has begun with")
        load_moments(self.optimizer, state["optimizer"])
        self.target.load_state_dict(state["target"])
        counts = state["counts"]
        self.n_seen, self.n_updates = counts["n_seen"], counts["n_updates"]
        self.paid, self.first_reward_step = counts["paid"], counts["first_reward_step"]
        self._n_since_row, self._has_begun = counts["_n_since_row"], counts["_has_begun"]
        names = self._names if state["logged"]["n_steps"] else ()  # none before the first step
        check_like(state["logged"]["sums"], dict.fromkeys(names, 0.0), "logged")
        self._logged.load_state_dict(state["logged"])
        if self.reward is not None:
            self.reward.load_state_dict(state["reward"])
        if state["replay"] is not None:
            self.replay = self._empty_replay(percept)
            self.replay.load_state_dict(state["replay"])
            if memory is None:
                # The episodes that were running are lost, and their rows are no episodes.
                self.replay.begin()
        if self.guide is not None and memory is not None and state["guide_memory"]:
            self._guide_memory = self.guide.agent.initial_memory(percept.n_envs)
            self._guide_memory.load_state_dict(state["guide_memory"])

    def check_counts(self, n_steps: int) -> None:
        is_so = self.n_seen == n_steps and NOT_YET <= self.first_reward_step <= n_steps
        if not (is_so and 0 <= self.n_updates <= n_steps and math.isfinite(self.paid)):
            raise ValueError(f"counts: not those of {n_steps:,} steps")

    @property
    def _names(self) -> tuple[str, ...]:
        rewarded = () if self.reward is None else self.reward.metrics
        return *(f"train/{name}" for name in self.logged), *rewarded

    def _guided(self, guide: Agent, percept: AgentInput) -> Tensor:
        if self._guide_memory is None:
            self._guide_memory = guide.initial_memory(percept.n_envs)
        text = percept.observations.text
        if text is not None:  # the guide's table has to know the sentences behind the numbers
            guide.reader.sentences.numbers(self.agent.reader.sentences.texts(text).flatten())
        # Deterministic, so that a guide moves no random stream.
        return guide.act(percept, self._guide_memory, deterministic=True).actions

    def _empty_replay(self, percept: AgentInput) -> FrameReplay:
        assert self.folder is not None, "a run sets its folder before the first step"
        folder, agent = self.folder / self.ranks.own_name("replay"), self.agent
        seen = percept.observations
        return FrameReplay(self.config, agent.frame_stack, folder, seen, agent.device)


def _n_passed(before: int, now: int, every: int) -> int:
    return now // every - before // every
