"""What DQN and SAC share: whole episodes into replay, then gradient steps on sequences of it.

The story (Ni et al. 2023, arXiv:2307.03864): a few episodes of random actions; then, whenever an
episode has ended, as many gradient steps as are owed for the steps since the last ones.
"""

import logging
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from models.agent import Agent, Memory, Moves, Sequences, Step
from models.observations import ObservationBatch, Percept
from models.off_policy_agent import OffPolicyAgent, OffPolicyNetworkSettings
from settings import Part, setting
from trainers.guards import NotFiniteError
from trainers.learner import BatchReward, Transition
from trainers.logged_means import LoggedMeans
from trainers.ranks import Ranks
from trainers.replay import (
    EpisodeSteps,
    Replay,
    ReplayFiles,
    ReplaySettings,
    example_episode,
    n_rows_wanted,
)
from trainers.running_episodes import RunningEpisodes, step_tensors
from trainers.trial import fill_with_noise, left_alone, seconds_of
from utils.errors import UserError

SUMMED_AT_ONCE = 64  # gradient steps whose metrics wait on the device
TRIED_STEPS, TRIED_SEQUENCES = 32, 16
COUNTS = (
    *("n_explored", "n_updates", "n_warmup_steps", "longest"),
    *("_n_episodes", "_n_unpaid", "_is_stale"),
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OffPolicySettings(ReplaySettings, OffPolicyNetworkSettings):
    """What DQN and SAC both read."""

    title = "DQN and SAC"

    learning_rate: float = setting("the optimiser's learning rate at the start", low=0, high=10)
    gamma: float = setting("discount per step", low=0, high=1)
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
        ranks: The processes that train together: this one alone.
        curiosity: An intrinsic reward beside the task's, if there is one.

    Attributes:
        logged: What a gradient step has to log.
        replay: The episodes so far; None before the first has ended.
        n_explored: Environment steps since the warm-up, those of all environments.
        n_updates: Gradient steps so far.
        n_warmup_steps: Environment steps of the warm-up.
        longest: Steps of the longest episode of the warm-up.

    Raises:
        UserError: there is more than one process.
    """

    reads: ClassVar[tuple[type[Part], ...]]
    logged: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        config: OffPolicySettings,
        agent: OffPolicyAgent,
        ranks: Ranks | None = None,
        curiosity: BatchReward | None = None,
    ) -> None:
        if ranks is not None:
            ranks.run_on_first(lambda: check_alone(config.algorithm, ranks.size))
        self.config, self.agent, self.curiosity = config, agent, curiosity
        self.replay: Replay | None = None
        self.n_explored = self.n_updates = 0
        self.n_warmup_steps = self.longest = self._n_episodes = 0
        self._n_unpaid = 0  # environment steps that no gradient steps are owed for yet
        self.running = RunningEpisodes()
        self._has_ended = False  # an episode, since the last update
        self._is_stale = False
        self._files: ReplayFiles | None = None

    @abstractmethod
    def learn(self, sequences: Sequences) -> dict[str, Tensor]:
        """Take one gradient step and return what to log of it."""

    @abstractmethod
    def networks_state(self) -> dict[str, Any]:
        """Return optimisers, target networks and whatever else learning changes."""

    @abstractmethod
    def load_networks_state(self, state: dict[str, Any]) -> None:
        """Go on from what `networks_state` returned."""

    def explore(self, step: Step) -> Step:
        """Return what is done in the place of what the agent chose."""
        return step

    @property
    def is_warming_up(self) -> bool:
        """Whether actions are still random and nothing is learned."""
        return self._n_episodes < self.config.warmup_episodes

    @property
    def update_due(self) -> bool:
        """Whether an episode has ended, or the run is over."""
        return self._has_ended or self._is_over

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
        percept, step, n_envs = transition.percept, transition.step, transition.percept.n_envs
        paid = transition.rewards.float()
        self.running.add(
            step_tensors(percept, step.context, step.actions, paid, transition.terminated)
        )
        self._n_unpaid += n_envs
        if self.is_warming_up:
            self.n_warmup_steps += n_envs
        else:
            self.n_explored += n_envs
        ended = transition.ended.nonzero().flatten().tolist()
        if ended:
            self._store(ended, transition)
            self._n_episodes += len(ended)
            self._has_ended = True

    def update(self, progress: float) -> dict[str, float]:
        """Take the gradient steps that are owed for the steps so far; return means over them."""
        n_steps = self._n_owed() if self._has_ended else 0
        self._has_ended = False
        means, logged = LoggedMeans(), []
        for number in range(n_steps):
            assert self.replay is not None, "gradient steps are owed for what replay holds"
            sequences, curious = self._with_curiosity(self.replay.sample(self.config.batch_size))
            logged.append(self.learn(sequences) | curious)
            self.n_updates += 1
            if len(logged) == SUMMED_AT_ONCE or number == n_steps - 1:
                self._sum_up(logged, means)
                logged = []
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

    def _n_owed(self) -> int:
        """Return how many gradient steps the steps since the last ones are worth."""
        if self.is_warming_up:
            return 0
        owed = self._n_unpaid * self.config.updates_per_step
        self._n_unpaid = 0
        # Those of the warm-up are rounded down, as in the published code.
        return math.ceil(owed) if self.n_explored else math.floor(owed)

    def nothing_learned(self) -> dict[str, float]:
        """Return what to log where there was no gradient step: NaN under every name."""
        curious = () if self.curiosity is None else self.curiosity.names
        return dict.fromkeys((*(f"train/{name}" for name in self.logged), *curious), math.nan)

    def keep_in(self, folder: Path) -> None:
        """Say where the replay is kept for checkpoints."""
        if self._files is None or self._files.folder != folder / "replay":
            self._files = ReplayFiles(folder / "replay")

    def seconds_of_update(self, percept: Percept) -> float:
        """Return what a step and its share of gradient steps would take now, by trying."""
        with left_alone(self.agent):
            memory = self.agent.initial_memory(percept.n_envs)
            acting = seconds_of(lambda: self.agent.act(percept, memory))
            sequences = self._noise(percept, self.agent.peek_context(percept, memory))
            learning = seconds_of(lambda: self.losses_of(sequences))
        parts = self.config.batch_size / TRIED_SEQUENCES
        return acting + learning * parts * self.config.updates_per_step * percept.n_envs

    @abstractmethod
    def losses_of(self, sequences: Sequences) -> None:
        """Compute gradients that no parameter gets to know."""

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
        curious = {} if self.curiosity is None else {"curiosity": self.curiosity.state_dict()}
        return curious | {
            "networks": self.networks_state(),
            "counts": {name: getattr(self, name) for name in COUNTS},
            "replay": None if self.replay is None else self._replay_files.save(self.replay),
            "own": {"running": self.running.state_dict()},
        }

    def load_state_dict(
        self, state: dict[str, Any], percept: Percept, memory: Memory | None
    ) -> None:
        """Go on from what `state_dict` returned; trainers/learner.py says how."""
        self.load_networks_state(state["networks"])
        if self.curiosity is not None:
            self.curiosity.load_state_dict(state["curiosity"])
        for name in COUNTS:
            setattr(self, name, state["counts"][name])
        context = self.agent.peek_context(percept, self.agent.initial_memory(percept.n_envs))
        if state["replay"] is not None:
            self._load_replay(state["replay"], example_episode(percept, context))
        self.running.begin(percept.n_envs)
        if memory is None:
            self._is_stale = False
        elif state["own"]["running"] is not None:
            nothing = torch.zeros(percept.n_envs, device=context.device)
            like = step_tensors(percept, context, nothing.long(), nothing, nothing.bool())
            self.running.load_state_dict(state["own"]["running"], like)

    def _with_curiosity(self, sequences: Sequences) -> tuple[Sequences, dict[str, Tensor]]:
        """Return sequences whose rewards have the intrinsic one added, and what to log of it."""
        if self.curiosity is None:
            return sequences, {}
        counted = sequences.mask.flatten().nonzero().squeeze(-1)
        rewards, logged = self.curiosity(_moves(sequences, counted))
        paid = self.curiosity.weighted_task(sequences.rewards).flatten()
        paid[counted] += rewards
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
            context = self.agent.peek_context(following, transition.memory)
        for env in ended:
            episode = self.running.end(env, following.observations, context)
            if self.replay is None:
                capacity = n_rows_wanted(self.config, episode.length)
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
            self.agent.refresh(past, running, memory)

    def _noise(self, percept: Percept, context: Tensor) -> Sequences:
        """Return sequences of noise to try gradient steps on."""
        n_steps, n_sequences = TRIED_STEPS, TRIED_SEQUENCES
        n_seen, device = (n_steps + 1) * n_sequences, self.agent.device
        shown = percept.observations.map(
            lambda kind: fill_with_noise(kind.new_empty(n_seen, *kind.shape[1:]), kind)
        )
        starts = torch.zeros(n_steps + 1, n_sequences, dtype=torch.bool, device=device)
        zeros = torch.zeros(n_steps, n_sequences, device=device)
        return Sequences(
            ObservationBatch.of(shown),
            starts,
            starts.long(),
            torch.zeros(*starts.shape, *context.shape[1:], device=device),
            zeros.long(),
            zeros,
            zeros,
            zeros + 1,
        )

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


def _moves(sequences: Sequences, counted: Tensor) -> Moves:
    """Return the steps of sequences that count, by their numbers among T*B.  [b] int64"""
    after = counted + sequences.mask.shape[1]
    actions = sequences.actions.flatten()[counted]
    context = sequences.context.flatten(0, 1)
    return Moves(sequences.observations, counted, after, actions, context)


def check_alone(algorithm: str, n_ranks: int) -> None:
    """Raise UserError where a learner from replay is to learn in several processes."""
    if n_ranks > 1:
        raise UserError(
            f"algorithm: {algorithm} learns in one process, and torchrun began {n_ranks}. "
            "Start it with python, or choose algorithm=PPO"
        )
