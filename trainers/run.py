"""The loop of every run: step the environments, learn, log, keep.

It knows who learns by the interface in trainers/learner.py alone.
"""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tqdm import tqdm

from runs.folder import note_end, note_resumption
from runs.loggers import LoggerSettings, Media
from runs.metrics import CHANGED, FILE, NOTHING, MetricsWriter, are_as_saved
from trainers.checkpoint import (
    Checkpoints,
    CheckpointSettings,
    agent_state,
    check_weights,
    give_way,
)
from trainers.collector import EPISODES_AVERAGED, Collector
from trainers.greedy_evaluation import EvaluationSettings, GreedyEvaluation
from trainers.guards import NotFiniteError, guarded
from trainers.interruption import Interruption
from trainers.learner import Learner, Transition
from trainers.saved_state import check_like
from trainers.summary import Summary
from utils.errors import RunError, UserError
from utils.seeding import random_state, set_random_state


@dataclass(frozen=True)
class RunSettings(CheckpointSettings, EvaluationSettings, LoggerSettings):
    """What a run reads, whoever learns in it."""


class Showcase(Protocol):
    """What shows a run while it trains."""

    def follow(self, transition: Transition) -> None:
        """Take in one step."""

    def media(self, is_last: bool) -> Media:
        """Return what there is to show after an update, mostly nothing."""


class Run:
    """Trains to the configured number of environment steps.

    Args:
        config: The settings of the run.
        learner: Who learns.
        collector: Steps the environments with it.
        showcase: Shows what happens, if anything does.
        evaluation: Plays greedily now and then, if asked to.
    """

    def __init__(
        self,
        config: RunSettings,
        learner: Learner,
        collector: Collector,
        showcase: Showcase | None = None,
        evaluation: GreedyEvaluation | None = None,
    ) -> None:
        self.config, self.learner, self.collector = config, learner, collector
        self.showcase, self.evaluation = showcase, evaluation
        self.ranks = collector.ranks
        self.best_return = -math.inf  # the best mean return of EPISODES_AVERAGED episodes
        self.seconds = 0.0
        self.logged: Mapping[str, Any] = NOTHING  # of metrics.csv, where the run goes on

    def train(self, folder: Path) -> Summary:
        """Run to the configured number of environment steps, logging into a run folder.

        Raises:
            RunError: the run cannot go on.
            Interrupted: a signal ended it.
        """
        learner, collector = self.learner, self.collector
        learner.keep_in(folder)
        self.ranks.print(f"writing to {folder}")
        with (
            Interruption() as interruption,
            self._written(folder) as writer,
            self._progress_bar() as bar,
        ):
            checkpoints = Checkpoints(self, folder, writer, interruption)
            if collector.percept is None:
                collector.begin(self.config.seed)
            self._begun = time.perf_counter()
            while not self._is_over:
                begun, steps_before = time.perf_counter(), collector.env_steps

                # Act until the learner has seen enough; signals are heard between two steps.
                while not learner.ready:
                    transition = collector.step()
                    if self.showcase is not None:
                        self.showcase.follow(transition)
                    bar.update(collector.n_envs)
                    checkpoints.after_step()

                collector.tell_first()

                # The best agent is the one that has acted, so it is kept before it changes.
                if not learner.is_updating:
                    self._keep_best(checkpoints)
                metrics = self._update(checkpoints) | collector.metrics() | learner.agent.metrics()

                seconds = time.perf_counter() - begun
                metrics["time/fps"] = (collector.env_steps - steps_before) / seconds
                metrics["time/seconds"] = self.seconds
                if writer is not None:
                    self._log(writer, metrics)
                checkpoints.after_update(self._is_over)
                bar.set_postfix_str(self._standing())
        return self.summary()

    def resume(self, folder: Path, checkpoint: dict[str, Any] | None) -> str:
        """Go on from a run's checkpoint, or from its beginning, and return a line to show.

        Raises:
            UserError: the checkpoint was made with other pretrained parts.
        """
        differences: list[str] = []
        self.learner.keep_in(folder)
        if checkpoint is not None:
            check_weights(checkpoint, self.learner.agent.fingerprints(), str(folder))
            if not self._restore(checkpoint, folder):
                differences.append("in new episodes")
            self.logged = checkpoint["metrics"]
        if self.ranks.first:
            if not are_as_saved(folder, self.logged):
                differences.append(f"{FILE} is {CHANGED}")
            with guarded(folder):
                give_way(folder, checkpoint)
                differences = note_resumption(folder, self.config, self.env_steps, differences)
        how = f"not exactly: {'; '.join(differences)}" if differences else "exactly"
        return f"going on after {self.env_steps:,} steps, {how}"

    def summary(self) -> Summary:
        """Return what the run has come to so far."""
        collector = self.collector
        return Summary(
            collector.env_steps,
            self.seconds,
            collector.mean_return,
            self.best_return,
            collector.n_episodes,
            EPISODES_AVERAGED,
        )

    def agent_state(self) -> dict[str, Any]:
        """Return what it takes to play with the agent."""
        return agent_state(self.config, self.learner.agent, self.collector.env_steps)

    def state_dict(self) -> dict[str, Any]:
        """Return what it takes to go on; to be asked for between two steps.

        Where environments cannot be saved, what is pending is lost with their episodes, and its
        steps are to be taken anew.
        """
        collector = self.collector.state_dict()
        goes_on = collector["resumable"]
        if not goes_on:
            collector["env_steps"] -= self.learner.n_pending * self.collector.n_envs
        return self.agent_state() | {
            "env_steps": collector["env_steps"],
            "n_pending": self.learner.n_pending if goes_on else 0,
            "collector": collector,
            "learner": self.learner.state_dict(pending=goes_on),
            "run": self._own_state(),
            "own": {"random": random_state()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Put a saved state into a new run; return whether its episodes go on, too."""
        own = {"n_evaluations": 0} | state["run"]  # an earlier version had none
        check_like(own, self._own_state(), "run")
        self.seconds, self.best_return = own["seconds"], own["best_return"]
        if self.evaluation is not None:
            self.evaluation.n_due = own["n_evaluations"]
        percept, memory = self.collector.load_state_dict(state["collector"], self.config.seed)
        self.learner.load_state_dict(state["learner"], percept, memory)
        self.learner.agent.load_state_dict(state["agent"])
        set_random_state(state["own"]["random"])
        return memory is not None

    def _own_state(self) -> dict[str, Any]:
        """Return what no part of the run has."""
        n_evaluations = 0 if self.evaluation is None else self.evaluation.n_due
        return {
            "seconds": self.seconds,
            "best_return": self.best_return,
            "n_evaluations": n_evaluations,
        }

    def _restore(self, state: dict[str, Any], source: Path) -> bool:
        """Put a saved state into this run, or raise UserError where it is not one of it."""
        try:
            return self.load_state_dict(state)
        except Exception as error:  # a changed state raises about ten kinds of errors
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise UserError(
                f"{source}: the checkpoint does not hold a state of this run ({reason}). "
                "Restore the run's own"
            ) from error

    @property
    def env_steps(self) -> int:
        """Steps of all environments so far."""
        return self.collector.env_steps

    @property
    def seconds(self) -> float:
        """What the run has taken so far: with all pauses, and earlier parts of a resumed run."""
        return self._seconds_before + time.perf_counter() - self._begun

    @seconds.setter
    def seconds(self, value: float) -> None:
        self._seconds_before, self._begun = value, time.perf_counter()

    @property
    def _is_over(self) -> bool:
        """Whether all steps have been taken and learned from."""
        return self.env_steps >= self.config.n_steps and not self.learner.n_pending

    def _update(self, checkpoints: Checkpoints) -> dict[str, float]:
        """Let the learner learn; a failure is told with the steps behind it."""
        progress = self.collector.env_steps / self.config.n_steps
        try:
            metrics = self.learner.update(progress)
            while self.learner.ready:  # signals are heard between the parts of a long update, too
                checkpoints.after_step()
                metrics = self.learner.update(progress)
            self.ranks.broadcast(self.learner.agent.buffers())  # statistics of what was seen
            return self.ranks.average(metrics)
        except NotFiniteError as error:
            error.minibatch["env_steps"] = self.collector.env_steps
            raise

    def _keep_best(self, checkpoints: Checkpoints) -> None:
        """Keep the agent if none was better; until a mean has enough episodes the newest is."""
        collector = self.collector
        if len(collector.episodes) == EPISODES_AVERAGED:
            if collector.mean_return < self.best_return:
                return
            self.best_return = collector.mean_return
        checkpoints.keep_best()

    def _log(self, writer: MetricsWriter, metrics: dict[str, float]) -> None:
        """Write a row, with an evaluation where one is due, and what there is to show."""
        if self.evaluation is not None:
            metrics |= self.evaluation(self.learner.agent, self.env_steps)
        writer.write(self.env_steps, metrics)
        if self.showcase is not None:
            writer.show(self.env_steps, self.showcase.media(self._is_over))

    def _standing(self) -> str:
        if not self.collector.episodes:
            return "no episode has ended"
        return f"return {self.collector.mean_return:.3f}"

    @contextmanager
    def _written(self, folder: Path) -> Iterator[MetricsWriter | None]:
        """Open the logs, and note a run's end; None on all ranks but the first."""
        if not self.ranks.first:
            try:
                yield None
            except UserError as error:  # of its own environments: no other rank can say it
                raise RunError(f"rank {self.ranks.rank}: {error}") from error
            return
        with guarded(folder):
            with MetricsWriter(folder, self.config, self.env_steps, self.logged) as writer:
                yield writer
            note_end(folder)

    def _progress_bar(self) -> tqdm:
        """Return a bar that ends with the update before which the configured steps are reached."""
        per_update = self.config.n_envs * (self.learner.steps_per_update or 1)
        total = math.ceil(self.config.n_steps / per_update) * per_update
        return tqdm(
            disable=not self.ranks.first,
            total=total,
            initial=self.collector.env_steps,
            unit=" frames",
            unit_scale=True,
            dynamic_ncols=True,
        )
