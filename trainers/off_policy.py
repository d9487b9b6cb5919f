"""What DQN and SAC share: whole episodes into replay, then gradient steps on sequences of it.

The story (Ni et al. 2023, arXiv:2307.03864): a few episodes of random actions; then, whenever an
episode has ended, as many gradient steps as are owed for the steps since the last ones.
"""

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from models.agent import (
    Agent,
    Memory,
    OffPolicyAgent,
    OffPolicyNetworkSettings,
    Sequences,
    Step,
    Transitions,
)
from models.observations import Percept
from trainers.learner import LoggedMeans, NotFiniteError, Reward, Transition
from trainers.ranks import Ranks
from trainers.sequence_replay import (
    EPISODES_KEPT,
    LEAST_CAPACITY,
    EpisodeSteps,
    Replay,
    ReplayFiles,
    ReplaySettings,
    RunningEpisodes,
    example_episode,
    step_tensors,
)
from utils.saved_state import load_moments, moments
from utils.settings import Config, Part, setting

SUMMED_AT_ONCE = 64  # gradient steps whose metrics wait on the device
STEPS_APART = 64  # of each environment from one update to the next, where there are several ranks
COUNTS = (
    *("n_explored", "n_updates", "n_owed", "n_warmup_steps", "longest"),
    *("_n_episodes", "_n_unpaid", "_is_stale"),
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EpsilonSettings(Config):
    """What learners that explore by epsilon read."""

    title = "exploration"

    epsilon_final: float | None = setting(
        "share of random actions in the end; null: of DQN one in the longest episode of the "
        "warm-up, of NStepDQN 0.01",
        low=0,
        high=1,
        default=None,
    )


@dataclass(frozen=True)
class OffPolicySettings(ReplaySettings, OffPolicyNetworkSettings):
    """What DQN and SAC both read."""

    title = "DQN and SAC"

    tau: float = setting(
        "share of the online network that its target takes over at each gradient step",
        low=0,
        high=1,
        default=0.005,
    )
    warmup_episodes: int = setting(
        "episodes of random actions to begin with", low=1, high=1_000_000, default=10
    )
    updates_per_step: float = setting(
        "gradient steps for each environment step", low=0, high=1000, default=0.25
    )


class OffPolicyLearner(ABC):
    """Collects whole episodes, and learns from sequences of them when some have ended.

    Args:
        config: The settings of the run.
        agent: What is trained.
        ranks: The processes that train together, each from its own replay; None for this one alone.
        reward: What steps of the replay pay, if not what the environment did.

    Attributes:
        logged: What a gradient step has to log.
        target: What follows the agent slowly.
        optimizers: By name.
        beside: What is trained and belongs to no network.
        replay: The episodes so far; None before the first has ended.
        n_explored: Environment steps since the warm-up, those of all environments.
        n_updates: Gradient steps so far.
        n_warmup_steps: Environment steps of the warm-up.
        longest: Steps of the longest episode of the warm-up.
    """

    reads: ClassVar[tuple[type[Part], ...]]
    logged: ClassVar[tuple[str, ...]]
    target: nn.Module
    optimizers: Mapping[str, Optimizer]

    def __init__(
        self,
        config: OffPolicySettings,
        agent: OffPolicyAgent,
        ranks: Ranks | None = None,
        reward: Reward | None = None,
    ) -> None:
        self.config, self.agent, self.ranks = config, agent, ranks or Ranks()
        self.reward = reward
        self.beside: dict[str, Tensor] = {}
        self.replay: Replay | None = None
        self.n_explored = self.n_updates = self.n_owed = 0
        self.n_warmup_steps = self.longest = self._n_episodes = 0
        self._n_unpaid = 0  # environment steps that no gradient steps are owed for yet
        self.running = RunningEpisodes()
        self._has_ended = False  # an episode, since the last update
        self._is_stale = False
        self._files: ReplayFiles | None = None
        self._n_observed = 0  # steps of each environment since the last update

    @abstractmethod
    def learn(self, sequences: Sequences) -> dict[str, Tensor]:
        """Take one gradient step and return what to log of it."""

    def explore(self, step: Step) -> Step:
        """Return what is done in the place of what the agent chose."""
        return step

    @property
    def is_warming_up(self) -> bool:
        """Whether actions are still random and nothing is learned."""
        return self._n_episodes < self.ranks.part_of(self.config.warmup_episodes)

    @property
    def update_due(self) -> bool:
        """Whether an episode has ended, or the run is over.

        Ranks see episodes end at different steps. They learn together after as many steps of each.
        """
        enough = self._has_ended if self.ranks.size == 1 else self._n_observed >= STEPS_APART
        return enough or self._is_over

    @property
    def _is_over(self) -> bool:
        """Whether the run has had all its steps, be it within an episode."""
        return self.n_warmup_steps + self.n_explored >= self.config.n_steps

    def act(self, percept: Percept, memory: Memory) -> Step:
        """Choose actions: random ones in the warm-up; the memory is advanced in any case."""
        if self._is_stale:
            self._refresh(memory)
        step = self.agent.act(percept, memory)
        if self.is_warming_up:
            return step._replace(actions=self.random_actions(percept.n_envs))
        return self.explore(step)

    def random_actions(self, n_envs: int) -> Tensor:
        """Return uniform actions.  [N] int64"""
        return torch.randint(self.agent.n_actions, (n_envs,), device=self.agent.device)

    def observe(self, transition: Transition) -> None:
        """Keep the step; what has ended becomes part of the replay."""
        percept, step = transition.percept, transition.step
        n_envs = percept.n_envs * self.ranks.size  # the other ranks take as many steps
        self._n_observed += 1
        was_warming_up = self.is_warming_up
        paid = transition.rewards.float()
        self.running.add(
            step_tensors(percept, step.context, step.actions, paid, transition.terminated)
        )
        self._n_unpaid += n_envs
        if was_warming_up:
            self.n_warmup_steps += n_envs
        else:
            self.n_explored += n_envs
        ended = transition.ended.nonzero().flatten().tolist()
        if not ended:
            return
        self._store(ended, transition)
        self._n_episodes += len(ended)
        self._has_ended = True
        if not self.is_warming_up:
            owed = self._n_unpaid * self.config.updates_per_step
            self.n_owed += math.floor(owed) if was_warming_up else math.ceil(owed)
            self._n_unpaid = 0

    def update(self, progress: float) -> dict[str, float]:
        """Take the gradient steps that are owed; return means over them."""
        self._has_ended, self._n_observed = False, 0
        n_steps = self.ranks.least(self.n_owed)  # 0 where one rank is still warming up
        n_sequences = self.ranks.part_of(self.config.batch_size)
        means, logged = LoggedMeans(), []
        for number in range(1, n_steps + 1):
            assert self.replay is not None, "gradient steps are owed for what replay holds"
            sequences, rewarded = self._rewarded(self.replay.sample(n_sequences))
            logged.append(self.learn(sequences) | rewarded)
            if number % SUMMED_AT_ONCE == 0 or number == n_steps:
                self._sum_up(logged, means)
                logged = []
        self.n_updates += n_steps
        self.n_owed -= n_steps
        if n_steps and self.agent.n_context and any(self.running.lengths):
            self._is_stale = True
        if self._is_over and not self.n_updates:
            log.warning(
                f"nothing was learned: the {self.config.n_steps:,} steps were over before the "
                f"warm-up's {self.config.warmup_episodes:,} episodes. Choose a larger n_steps or "
                "a smaller warmup_episodes"
            )
        rest = {"train/n_updates": float(self.n_updates), "train/replay_steps": float(self._filled)}
        return self.nothing_learned() | means.means() | rest

    def nothing_learned(self) -> dict[str, float]:
        """Return what to log where there was no gradient step: NaN under every name."""
        rewarded = () if self.reward is None else self.reward.metrics
        return dict.fromkeys((*(f"train/{name}" for name in self.logged), *rewarded), math.nan)

    def keep_in(self, folder: Path) -> None:
        """Say where the replay is kept for checkpoints."""
        self._files = ReplayFiles(folder / self.ranks.own_name("replay"))

    @staticmethod
    def contradictions(config: Any, agent: type[Agent]) -> list[str]:
        """Return one line for every pair of settings that cannot both hold."""
        if config.context_length == 0:
            return ["context_length: 0 steps cannot be learned from; choose 1 or more, or -1"]
        if config.replay_capacity is not None and config.replay_capacity <= config.context_length:
            return [
                f"replay_capacity: {config.replay_capacity:,} rows do not hold a sequence of "
                f"context_length={config.context_length:,} and what follows it"
            ]
        return []

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to go on; new rows of the replay are written into files."""
        reward = {} if self.reward is None else {"reward": self.reward.state_dict()}
        return reward | {
            "optimizers": {name: moments(each) for name, each in self.optimizers.items()},
            "target": dict(self.target.state_dict()),
            "beside": {name: each.detach().clone() for name, each in self.beside.items()},
            "counts": {name: getattr(self, name) for name in COUNTS},
            "replay": None if self.replay is None else self._replay_files.save(self.replay),
            "running": self.running.state_dict(),
        }

    def load_state_dict(
        self, state: dict[str, Any], percept: Percept, memory: Memory | None
    ) -> None:
        """Go on from what `state_dict` returned; trainers/learner.py says how."""
        for name, optimizer in self.optimizers.items():
            load_moments(optimizer, state["optimizers"][name])
        self.target.load_state_dict(state["target"])
        for name, parameter in self.beside.items():
            parameter.data.copy_(state["beside"][name])
        if self.reward is not None:
            self.reward.load_state_dict(state["reward"])
        for name in COUNTS:
            setattr(self, name, state["counts"][name])
        forgotten = self.agent.initial_memory(percept.n_envs)
        context = self.agent.act(percept, forgotten, deterministic=True, advance=False).context
        if state["replay"] is not None:
            self._load_replay(state["replay"], example_episode(percept, context))
        self.running.begin(percept.n_envs)
        if memory is None:
            self._is_stale = False
        elif state["running"] is not None:
            nothing = torch.zeros(percept.n_envs, device=context.device)
            like = step_tensors(percept, context, nothing.long(), nothing, nothing.bool())
            self.running.load_state_dict(state["running"], like)

    def _rewarded(self, sequences: Sequences) -> tuple[Sequences, dict[str, Tensor]]:
        """Return sequences with the rewards of the steps that count, and what to log of them."""
        if self.reward is None:
            return sequences, {}
        counted = sequences.mask.flatten().nonzero().squeeze(-1)
        both = torch.cat((counted, counted + sequences.mask.shape[1]))  # a row of B steps later
        paid = sequences.rewards.flatten().clone()
        rewards, logged = self.reward(
            Transitions(
                sequences.observations.select(both),
                sequences.context.flatten(0, 1)[both],
                sequences.actions.flatten()[counted],
                paid[counted],
            )
        )
        paid[counted] = rewards
        return sequences._replace(rewards=paid.view_as(sequences.rewards)), logged

    @property
    def _filled(self) -> int:
        return 0 if self.replay is None else len(self.replay)

    def _sum_up(self, logged: list[dict[str, Tensor]], means: LoggedMeans) -> None:
        """Add up what gradient steps have to log; only now is the device waited for."""
        names = list(logged[0])
        device = self.agent.device  # where a gradient that there is not has no place
        table = torch.stack([torch.stack([row[n].to(device) for n in names]) for row in logged])
        sums = table.double().sum(0).tolist()
        means.add(dict(zip(names, sums, strict=True)), len(logged))
        if not means.are_finite:
            finite = table.isfinite().all(1)
            number = int((~finite).nonzero()[0])
            raise NotFiniteError({"epoch": 0, "number": number, "logged": logged[number]})

    def _store(self, ended: list[int], transition: Transition) -> None:
        """Put the episodes that have just ended into the replay."""
        following = transition.following
        context = transition.step.context
        if context.shape[1] and bool(transition.truncated.any()):
            ahead = self.agent.act(following, transition.memory, deterministic=True, advance=False)
            context = ahead.context
        for env in ended:
            episode = self.running.end(env, following.observations, context)
            if self.replay is None:
                many = max(LEAST_CAPACITY, EPISODES_KEPT * episode.length)
                capacity = self.config.replay_capacity or many
                self.replay = Replay(
                    capacity, self.config.context_length, episode, self.agent.device
                )
            self.replay.add(episode)
            if self.is_warming_up:
                self.longest = max(self.longest, episode.length)

    def _refresh(self, memory: Memory) -> None:
        """Let the memory read the running episodes again: the weights have changed."""
        self._is_stale = False
        if any(self.running.lengths):
            past, running = self.running.past(self.agent.n_context)
            self.agent.body.refresh(past, running, memory)

    @property
    def _replay_files(self) -> ReplayFiles:
        assert self._files is not None, "a run says where the replay is kept"
        return self._files

    def _load_replay(self, state: dict[str, Any], example: EpisodeSteps) -> None:
        if self.config.replay_capacity not in (None, state["capacity"]):
            raise ValueError(f"replay: {state['capacity']} rows, not {self.config.replay_capacity}")
        settings = state["capacity"], self.config.context_length
        replay = Replay(*settings, example, self.agent.device)
        self._replay_files.load(replay, state)
        actions = replay.rows["actions"]
        if actions.min() < 0 or actions.max() >= self.agent.n_actions:
            raise ValueError(f"replay: actions that are none of {self.agent.n_actions}")
        if "text" in replay.rows:
            self.agent.reader.sentences.check(replay.rows["text"][: len(replay)])
        self.replay = replay


def epsilon_after(n_steps: int, n_falling: float, start: float, final: float) -> float:
    """Return epsilon after so many steps: it falls linearly over n_falling, then is constant."""
    fraction = min(n_steps / n_falling, 1.0) if n_falling > 0 else 1.0
    return start + fraction * (final - start)


def explored(chosen: Tensor, others: Tensor, epsilons: Sequence[float]) -> Tensor:
    """Replace actions [N] by others [N], each with a probability of its own."""
    is_other = torch.rand(len(chosen), dtype=torch.float64) < torch.tensor(epsilons).double()
    return torch.where(is_other.to(chosen.device), others, chosen)
