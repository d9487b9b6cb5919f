"""The common part of DQN and SAC: whole episodes into replay, gradient steps on sequences of it.

As in Ni et al. 2023, arXiv:2307.03864: a few episodes of random actions; then, whenever an episode
has ended, `replay_ratio` gradient steps per environment step since the last update.
"""

import logging
import math
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from statistics import median
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from models.agent import Agent, Memory, OffPolicyAgent, SequenceBatch, Step, Transitions
from models.observations import AgentInput, ObservationBatch
from trainers.learner import Learner, MeanMetrics, Transition
from trainers.losses import mean_grad_norm
from trainers.sequence_replay import (
    EPISODES_KEPT,
    LEAST_CAPACITY,
    CutOff,
    EpisodeBuffer,
    EpisodeSteps,
    Replay,
    ReplayFiles,
    example_episode,
    step_tensors,
)
from trainers.settings import OffPolicySettings
from utils.cuda_graphs import CheckedGraph
from utils.environments import State
from utils.errors import NotFiniteError
from utils.saved_state import check_like, load_moments, moments, moments_of

SUMMED_AT_ONCE = 64  # gradient steps whose metrics wait on the device
TIMED = 5  # gradient steps: what they take tells what a run will take
WORTH_TELLING = 300  # seconds
STEPS_APART = 64  # of each environment from one update to the next, where there are several ranks

log = logging.getLogger(__name__)


class OffPolicyLearner(Learner):
    """Collects whole episodes, and learns from sequences of them when some have ended.

    Attributes:
        logged: The names of the metrics of a gradient step, without "train/".
        target: The target network.
        groups: The parameters of each optimiser, by its name.
        beside: Trained tensors that belong to no network.
        replay: None before the first episode has ended.
        n_explored: Environment steps since the warm-up, those of all environments.
        n_updates: Gradient steps so far.
        n_owed: Gradient steps that are outstanding, those of an update under way among them.
        n_due: Gradient steps of the update that is under way, else 0.
        n_taken: Those of them that have been taken.
        n_warmup_steps: Environment steps of the warm-up.
        longest: Steps of the longest episode of the warm-up.
    """

    logged: ClassVar[tuple[str, ...]]
    takes_reward = True
    agent: OffPolicyAgent
    target: nn.Module

    def __init__(self, config: OffPolicySettings, agent: OffPolicyAgent, *joined: Any) -> None:
        super().__init__(config, agent, *joined)
        self.groups: dict[str, list[Tensor]] = {}
        self.optimizers: dict[str, Optimizer] = {}
        self.beside: dict[str, Tensor] = {}
        self.replay: Replay | None = None
        self.n_explored = self.n_updates = self.n_owed = self.n_due = self.n_taken = 0
        self.n_warmup_steps = self.longest = self._n_episodes = 0
        self._n_unpaid = 0  # environment steps that no gradient steps are owed for yet
        self.running = EpisodeBuffer(agent.n_context)
        self._cut_off = CutOff(config.env)
        self._has_ended = False  # an episode, since the last update
        self._is_stale = False  # the memory of running episodes: the weights have changed
        self._n_observed = 0  # steps of each environment since the last update
        self._means = MeanMetrics()  # of the update under way
        self._waiting: list[Tensor] = []  # metrics [M] of its last steps, still on the device
        self._graph = CheckedGraph(
            "updates",
            lambda stored, others: self.learn(SequenceBatch(ObservationBatch(stored), *others)),
            self._changing,
        )
        self._timed: list[float] = []  # seconds of the run's first gradient steps

    @abstractmethod
    def learn(self, sequences: SequenceBatch) -> dict[str, Tensor]:
        """Take one gradient step and return its metrics."""

    def learn_quickly(self, sequences: SequenceBatch) -> dict[str, Tensor]:
        """Take one gradient step, where it can be as a CUDA graph."""
        if not self.may_record:
            return self.learn(sequences)
        return self._graph(sequences.observations.stored, sequences[1:])

    def explore(self, step: Step, percept: AgentInput) -> Step:
        return step

    def add_optimizer(
        self,
        name: str,
        parameters: Iterable[Tensor],
        learning_rate: float,
        fused: bool = True,
    ) -> None:
        self.groups[name] = group = [p for p in parameters if p.requires_grad]
        self.optimizers[name] = self.new_optimizer(group, learning_rate, fused)

    def gradient_step(
        self, name: str, loss: Tensor, parts: Mapping[str, Iterable[Tensor]]
    ) -> dict[str, Tensor]:
        """Take one step of an optimiser; return the mean gradient norm of some parts."""
        self.optimizers[name].zero_grad()
        loss.backward()
        self.ranks.average_gradients(self.groups[name])
        # Norms of the averaged gradients: all ranks log one number.
        norms = {
            f"{part}_grad_norm": mean_grad_norm(parameters, self.agent.device)
            for part, parameters in parts.items()
        }
        self.optimizers[name].step()
        return norms

    @property
    def is_warming_up(self) -> bool:
        return self._n_episodes < self.ranks.part_of(self.config.warmup_episodes)

    @property
    def update_due(self) -> bool:
        # Episodes of the ranks end at different steps; they learn together after as many of each.
        enough = self._has_ended if self.ranks.size == 1 else self._n_observed >= STEPS_APART
        return enough or self._is_over

    @property
    def may_stop(self) -> bool:
        return self.ranks.size == 1  # several write one checkpoint together, after an update

    @property
    def _is_over(self) -> bool:
        return self.n_warmup_steps + self.n_explored >= self.config.n_steps

    def act(self, percept: AgentInput, memory: Memory) -> Step:
        if self._is_stale:
            self._is_stale = False
            if any(self.running.ages):
                # At the first step after an update, once: the weights stay until the next.
                past, running = self.running.past()
                self.agent.body.refresh(past, running, memory)
        # In the warm-up, too, the agent acts: its memory has to read every step.
        step = self.agent.act(percept, memory)
        if self.is_warming_up:
            return step._replace(actions=self.random_actions(percept))
        return self.explore(step, percept)

    def random_actions(self, percept: AgentInput) -> Tensor:
        """Return uniform actions among those that are allowed.  [N] int64, or [N, A]"""
        if percept.last_actions.is_floating_point():
            return torch.empty_like(percept.last_actions).uniform_(-1, 1)
        masks = percept.observations.action_masks
        if masks is not None:
            return torch.multinomial(masks.float(), 1).squeeze(-1)
        return torch.randint(self.agent.n_actions, (percept.n_envs,), device=self.agent.device)

    def observe(self, transition: Transition) -> None:
        percept, step = transition.percept, transition.step
        n_envs = percept.n_envs * self.ranks.size  # the other ranks take as many steps
        self._n_observed += 1
        was_warming_up = self.is_warming_up
        # The environments' own: scaling and intrinsic rewards apply when they are drawn.
        rewards = transition.rewards.float()
        self.running.add(
            step_tensors(percept, step.stored_state, step.actions, rewards, transition.terminated)
        )
        self._n_unpaid += n_envs
        if was_warming_up:
            # Taken at random, also where it ends the warm-up.
            self.n_warmup_steps += n_envs
        else:
            self.n_explored += n_envs
        ended = transition.ended.nonzero().flatten().tolist()
        # An episode without an end would never be learned from: it is stored in parts.
        ended += self._cut_off(self.running.lengths, ended)
        if not ended:
            return
        # Episodes become part of the replay as a whole, with their final observation.
        self._store(ended, transition)
        self._n_episodes += len(ended)
        self._has_ended = True
        if not self.is_warming_up:
            owed = self._n_unpaid * self.config.replay_ratio
            # Rounded as published: down for the warm-up, up for what follows.
            self.n_owed += math.floor(owed) if was_warming_up else math.ceil(owed)
            self._n_unpaid = 0

    @property
    def under_way(self) -> tuple[int, int] | None:
        return (self.n_taken, self.n_due) if self.n_due else None

    def take_step(self) -> bool:
        begun = time.perf_counter()
        if not self.n_due:
            self.n_due = self.ranks.least(self.n_owed)  # 0 where one rank is still warming up
        if self.n_taken == self.n_due:
            return False
        assert self.replay is not None, "gradient steps are owed for episodes in replay"
        n_sequences = self.ranks.part_of(self.config.batch_size)
        sequences, rewarded = self._rewarded(self.replay.sample(n_sequences))
        logged = self.learn_quickly(sequences) | rewarded
        row = torch.stack([logged[name] for name in self._names])
        self._waiting.append(row)
        self.n_taken += 1
        if self.n_updates + self.n_taken <= TIMED:
            row.tolist()  # the device has done it
            self._timed.append(time.perf_counter() - begun)
            if self.n_updates + self.n_taken == TIMED:
                self._tell_pace()
        if len(self._waiting) == SUMMED_AT_ONCE or self.n_taken == self.n_due:
            # Only now does the program wait for the device.
            sums = self._table().double().sum(0).tolist()
            self._means.add(dict(zip(self._names, sums, strict=True)), len(self._waiting))
            self._waiting.clear()
        return True

    def update(self, progress: float) -> dict[str, float]:
        while self.take_step():
            pass
        n_steps, means = self.n_due, self._means.means()
        self.n_updates += n_steps
        # Ranks owe different numbers; the rest is taken with the next update.
        self.n_owed -= n_steps
        self.n_due = self.n_taken = self._n_observed = 0
        self._has_ended, self._means = False, MeanMetrics()
        # A transformer's keys and values of the running episodes come from the old weights, or of
        # observations normalised by old moments.
        has_changed = n_steps > 0 or self.agent.reader.normalizer is not None
        if has_changed and self.agent.n_context and any(self.running.ages):
            self._is_stale = True
        if self._is_over and not self.n_updates:
            log.warning(
                f"nothing was learned: the {self.config.n_steps:,} steps were over before the "
                f"warm-up's {self.config.warmup_episodes:,} episodes. Choose a larger n_steps or "
                "a smaller warmup_episodes"
            )
        metrics = self.empty_metrics() | means
        metrics["train/n_gradient_steps"] = float(self.n_updates)
        metrics["train/replay_steps"] = 0.0 if self.replay is None else float(len(self.replay))
        return metrics

    def empty_metrics(self) -> dict[str, float]:
        return dict.fromkeys(self._names, math.nan)

    @staticmethod
    def validate_config(config: Any, agent: type[Agent]) -> list[str]:
        if config.context_length == 0:
            return ["context_length: 0 steps cannot be learned from; choose 1 or more, or -1"]
        if config.replay_capacity is not None and config.replay_capacity <= config.context_length:
            return [
                f"replay_capacity: {config.replay_capacity:,} rows do not hold a sequence of "
                f"context_length={config.context_length:,} and one step more"
            ]
        return []

    def state_dict(self) -> State:
        reward = {} if self.reward is None else {"reward": self.reward.state_dict()}
        return reward | {
            "optimizers": {name: moments(each) for name, each in self.optimizers.items()},
            "target": dict(self.target.state_dict()),
            "beside": {name: each.detach().clone() for name, each in self.beside.items()},
            "counts": self.counts(),
            "replay": None if self.replay is None else self._files.save(self.replay),
            "running": self.running.state_dict(),
            "update": self._means.state_dict() | {"waiting": self._table().cpu()},
        }

    def load_state_dict(self, state: State, percept: AgentInput, memory: Memory | None) -> None:
        for name, optimizer in self.optimizers.items():
            load_moments(optimizer, state["optimizers"][name])
        self.target.load_state_dict(state["target"])
        for name, parameter in self.beside.items():
            parameter.data.copy_(state["beside"][name])
        if self.reward is not None:
            self.reward.load_state_dict(state["reward"])
        self.load_counts(state["counts"])
        self._load_update(state["update"])
        # A step shows the shapes that the saved ones must have. It draws nothing.
        forgotten = self.agent.initial_memory(percept.n_envs)
        stored_state = self.agent.act(
            percept, forgotten, deterministic=True, advance=False
        ).stored_state
        if state["replay"] is not None:
            self._load_replay(state["replay"], example_episode(percept, stored_state))
        # Where new episodes begin, the steps of the old ones are nobody's past.
        self.running.begin(percept.n_envs)
        if memory is None:
            self._is_stale = False
        elif state["running"] is not None:
            nothing = torch.zeros(percept.n_envs, device=stored_state.device)
            actions = torch.zeros_like(percept.last_actions)
            like = step_tensors(percept, stored_state, actions, nothing, nothing.bool())
            self.running.load_state_dict(state["running"], like)

    def counts(self) -> dict[str, int]:
        """Return all counts, for `load_counts`; a subclass adds its own to both."""
        return {
            "n_explored": self.n_explored,
            "n_updates": self.n_updates,
            "n_owed": self.n_owed,
            "n_due": self.n_due,
            "n_taken": self.n_taken,
            "n_warmup_steps": self.n_warmup_steps,
            "longest": self.longest,
            "_n_episodes": self._n_episodes,
            "_n_unpaid": self._n_unpaid,
            "_is_stale": self._is_stale,
            "_has_ended": self._has_ended,
            "_n_observed": self._n_observed,
        }

    def load_counts(self, counts: dict[str, int]) -> None:
        self.n_explored, self.n_warmup_steps = counts["n_explored"], counts["n_warmup_steps"]
        self.n_updates, self.n_owed = counts["n_updates"], counts["n_owed"]
        self.n_due, self.n_taken = counts["n_due"], counts["n_taken"]
        self.longest, self._n_episodes = counts["longest"], counts["_n_episodes"]
        self._n_unpaid, self._n_observed = counts["_n_unpaid"], counts["_n_observed"]
        self._is_stale, self._has_ended = bool(counts["_is_stale"]), bool(counts["_has_ended"])

    def check_counts(self, n_steps: int) -> None:
        counts = self.counts().values()
        # What is owed for an episode is rounded up.
        most = n_steps * (self.config.replay_ratio + 1)
        is_so = self.n_explored + self.n_warmup_steps == n_steps
        if not is_so or min(counts) < 0 or max(counts) > most:
            raise ValueError(f"counts: not those of {n_steps:,} steps")

    def _changing(self) -> list[list[Tensor]]:
        own = [*self.agent.parameters(), *self.target.parameters(), *self.beside.values()]
        return [own, *moments_of(self.optimizers.values())]

    def _rewarded(self, sequences: SequenceBatch) -> tuple[SequenceBatch, dict[str, Tensor]]:
        # Replay holds the environments' own: all of a batch are scaled by the same statistics.
        if self.scaling is not None:
            scaled = self.scaling.scaled(sequences.rewards).float()
            sequences = sequences._replace(rewards=scaled)
        if self.reward is None:
            return sequences, {}
        # A reward learns from its batch: steps behind an episode's end are kept from it.
        counted = sequences.mask.flatten().nonzero().squeeze(-1)
        both = torch.cat((counted, counted + sequences.mask.shape[1]))  # a row of B steps later
        paid = sequences.rewards.flatten().clone()
        stored_state = paid.new_empty(len(both), 0)
        if self.reward.reads_stored_state:
            stored_state = sequences.stored_state.flatten(0, 1)[both]
        rewards, logged = self.reward(
            Transitions(
                sequences.observations.select(both),
                stored_state,
                sequences.actions.flatten(0, 1)[counted],
                paid[counted],
            )
        )
        paid[counted] = rewards
        return sequences._replace(rewards=paid.view_as(sequences.rewards)), logged

    @property
    def _names(self) -> tuple[str, ...]:
        rewarded = () if self.reward is None else self.reward.metrics
        return *(f"train/{name}" for name in self.logged), *rewarded

    def _table(self) -> Tensor:
        """Return the metrics of gradient steps that are not summed up yet.  [n, M]"""
        if not self._waiting:
            return torch.zeros(0, len(self._names))
        table = torch.stack(self._waiting)
        wrong = (~table.isfinite().all(1)).nonzero()
        if len(wrong):  # before anything is saved
            number = int(wrong[0])
            logged = dict(zip(self._names, table[number], strict=True))
            raise NotFiniteError({"epoch": 0, "number": number, "logged": logged})
        return table

    def _load_update(self, state: State) -> None:
        names, n_summed, waiting = self._names, state["n_steps"], state["waiting"]
        check_like(state["sums"], dict.fromkeys(names if n_summed else (), 0.0), "update.sums")
        check_like(waiting, torch.zeros(len(waiting), len(names)), "update.waiting")
        if not self.n_taken == n_summed + len(waiting) <= self.n_due <= self.n_owed:
            raise ValueError("update: not as many gradient steps as are outstanding")
        self._means.load_state_dict(state)
        self._waiting = list(waiting.to(self.agent.device))

    def _tell_pace(self) -> None:
        # The median, since the first of them allocate memory.
        config, seconds = self.config, median(self._timed)
        n_left = config.n_steps - self.n_warmup_steps - self.n_explored
        whole = seconds * (self.n_owed - self.n_taken + config.replay_ratio * n_left)
        if whole >= WORTH_TELLING:
            length, unit = (whole / 3600, "hours") if whole > 7200 else (whole / 60, "minutes")
            self.ranks.print(
                f"{seconds:.2g} s a gradient step, {config.replay_ratio:g} of them for each "
                f"environment step: about {length:,.0f} {unit} in all. Fewer steps (n_steps), "
                "shorter sequences (context_length) or a smaller batch_size take less"
            )

    def _store(self, ended: list[int], transition: Transition) -> None:
        following = transition.following
        stored_state = transition.step.stored_state
        # After a time limit the target bootstraps from the last observation, whose stored state is
        # needed, then. A memory that is given steps again reads the first step's alone.
        reads_last = stored_state.numel() and not self.agent.n_context
        if reads_last and not transition.terminated[ended].all():
            ahead = self.agent.act(following, transition.memory, deterministic=True, advance=False)
            stored_state = ahead.stored_state
        goes_on = (~transition.ended).tolist()
        for env in ended:
            episode = self.running.take(env, following.observations, stored_state, goes_on[env])
            if self.replay is None:
                # The first episode's length stands for all, that of a part for none.
                many = max(LEAST_CAPACITY, EPISODES_KEPT * episode.length * (not goes_on[env]))
                capacity = self.config.replay_capacity or many
                self.replay = Replay(
                    capacity, self.config.context_length, episode, self.agent.device
                )
            self.replay.add(episode)
            if self.is_warming_up:
                self.longest = max(self.longest, episode.length)

    @cached_property
    def _files(self) -> ReplayFiles:
        assert self.folder is not None, "a run sets its folder before the first step"
        folder = self.folder / self.ranks.own_name("replay")
        return ReplayFiles(folder, self.config.keep_checkpoints)

    def _load_replay(self, state: State, example: EpisodeSteps) -> None:
        if self.config.replay_capacity not in (None, state["capacity"]):
            raise ValueError(f"replay: {state['capacity']} rows, not {self.config.replay_capacity}")
        device = self.agent.device
        replay = Replay(state["capacity"], self.config.context_length, example, device)
        self._files.load(replay, state)
        actions = replay.rows["actions"]
        # On a GPU an index out of range ends the process without a name.
        bounds = (-1, 1) if actions.is_floating_point() else (0, self.agent.n_actions - 1)
        if not ((actions >= bounds[0]) & (actions <= bounds[1])).all():
            raise ValueError(f"replay: actions beyond those from {bounds[0]} to {bounds[1]}")
        if "text" in replay.rows:
            # Texts are numbers of the agent's table, which must know each of them.
            self.agent.reader.sentences.check(replay.rows["text"][: len(replay)])
        self.replay = replay


def epsilon_after(n_steps: int, n_falling: float, start: float, final: float) -> float:
    """Return epsilon after n_steps: it falls linearly over n_falling steps, then is constant."""
    fraction = min(n_steps / n_falling, 1.0) if n_falling > 0 else 1.0
    return start + fraction * (final - start)


def epsilon_greedy(chosen: Tensor, others: Tensor, epsilons: Sequence[float]) -> Tensor:
    """Replace actions [N] by others [N], each with a probability of its own."""
    # Drawn on the CPU: which steps explore does not depend on the device.
    is_other = torch.rand(len(chosen), dtype=torch.float64) < torch.tensor(epsilons).double()
    return torch.where(is_other.to(chosen.device), others, chosen)
