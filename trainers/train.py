"""The loop of every run, for any `Learner`: step the environments, learn, log, save."""

import io
import math
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from tqdm import tqdm

from rewards.settings import FOR_ANSWERS
from trainers.callbacks import Callbacks
from trainers.checkpoint import Checkpoints, Interruption, check_weights, give_way
from trainers.collector import EPISODES_AVERAGED, Collector
from trainers.evaluation import GreedyEvaluation
from trainers.learner import Learner, Transition
from trainers.settings import CheckpointSettings, RunSettings
from utils.environments import State
from utils.errors import (
    ENDINGS,
    EnvFault,
    Interrupted,
    NotFiniteError,
    RunError,
    UserError,
    cli_command,
    error_text,
)
from utils.loggers import CHANGED, FILE, NOTHING, Media, MetricsWriter, are_as_saved
from utils.run_folder import NO_FACTS, mark_finished, record_resume, resume_command, trusting
from utils.saved_state import called, check_like
from utils.seeding import derived_seed, random_state, set_random_state
from utils.settings import own_choices
from utils.user_modules import GIVEN

EPISODES_TO_KNOW = 10  # their length: the first to end are the short ones
# Parts of a checkpoint that have another size in every run; their own loaders check them.
RAGGED = {
    "run.config",
    "run.weights",
    "run.collector.episodes",
    "run.collector.env",
    "run.collector.memory",
    "run.collector.uncounted",
    "run.collector.sentences",
    "run.learner.replay",
    "run.learner.logged.sums",
    "run.learner.reward.inverses",
    "run.learner.reward.visited",
    "run.learner.guide_memory",
    "run.learner.past",
    "run.learner.running",
    "run.learner.update.sums",
    "run.learner.update.waiting",
}


class MediaMaker(Protocol):
    def follow(self, transition: Transition) -> None: ...

    def media(self, is_last: bool) -> Media:
        """Return the media after an update, mostly none."""


class Run:
    """A training run: its learner and environments, and their state where it may stop."""

    def __init__(
        self,
        config: RunSettings,
        learner: Learner,
        collector: Collector,
        showcase: MediaMaker | None = None,
        evaluation: GreedyEvaluation | None = None,
        callbacks: Callbacks | None = None,
    ) -> None:
        self.config, self.learner, self.collector = config, learner, collector
        self.callbacks, self._is_ended = callbacks or Callbacks(), False
        self.showcase, self.evaluation = showcase, evaluation
        self.ranks = collector.ranks
        self.best_return = -math.inf  # the best mean return of EPISODES_AVERAGED episodes
        self.seconds = self._next_shown = 0.0
        self.logged: Mapping[str, Any] = NOTHING  # of metrics.csv, where the run goes on

    def train(self, folder: Path) -> None:
        """Run to the configured number of environment steps, logging into a run folder.

        Raises:
            RunError: the run cannot go on.
            Interrupted: a signal ended it.
        """
        learner, collector = self.learner, self.collector
        self.ranks.print(f"writing to {folder}")
        with (
            Interruption() as interruption,
            self._written(folder) as writer,
            self._progress_bar() as bar,
        ):
            checkpoints = Checkpoints(self.config, folder, self.ranks, writer, interruption)
            # Replay is written into it, maybe with the first step.
            learner.folder = folder
            if collector.percept is None:
                # A resumed run has its episodes already.
                collector.begin(self.config.seed)
            self._begun = time.perf_counter()
            while not (self._is_over or self._is_ended):
                begun, steps_before = time.perf_counter(), collector.env_steps

                # Act until there is enough to learn from: a rollout, an episode, a row of metrics.
                while not learner.update_due:
                    transition = collector.step()
                    if self.showcase is not None:
                        self.showcase.follow(transition)
                    # The last step of several environments may go beyond n_steps.
                    bar.update(min(collector.n_envs, self.config.n_steps - bar.n))
                    # An environment that never ends leads to no update for long.
                    if learner.may_stop and not learner.update_due:
                        checkpoints.between_updates(self.env_steps, self.state_dict)

                if learner.under_way is None:  # else the run goes on within an update
                    collector.tell_first()
                    if len(collector.episodes) >= EPISODES_TO_KNOW:
                        learner.notice(float(np.mean([each.length for each in collector.episodes])))
                    # Save the best agent before updating it: the returns are the old weights'.
                    self._keep_best(checkpoints)

                def after_step() -> None:
                    checkpoints.between_updates(self.env_steps, self.state_dict)
                    self._show_steps(bar)

                metrics = self._update(after_step)
                metrics |= collector.metrics() | learner.agent.metrics()

                seconds = time.perf_counter() - begun
                metrics["time/steps_per_second"] = (collector.env_steps - steps_before) / seconds
                metrics["time/seconds"] = self.seconds
                if writer is not None:
                    if self.evaluation is not None:
                        # On this rank alone: it moves no random stream of the run.
                        metrics |= self.evaluation(learner.agent, self.env_steps)
                    writer.write(self.env_steps, metrics)
                    if self.showcase is not None:
                        writer.show(self.env_steps, self.showcase.media(self._is_over))

                # Nothing is half done now: a run goes on from here, and is interrupted here.
                if self.callbacks.names:
                    ends = self.ranks.first and self.callbacks.after_update(self.env_steps, metrics)
                    self._is_ended = any(self.ranks.all_reduce_max(ends))
                    # A run that a callback ends goes on from here, so it is saved, due or not.
                    checkpoints.interruption.save |= self._is_ended
                checkpoints.after_update(self.env_steps, self._is_over, self.state_dict)
                mean = f"return {collector.mean_return:.3f}"
                bar.set_postfix_str(mean if collector.episodes else "no episode has ended", False)
        self.ranks.print(self.report(folder))
        if self._is_ended and not self._is_over:
            self.ranks.print(f"ended by a callback. Go on with: helm.resume('{folder}')")

    def resume(
        self,
        folder: Path,
        checkpoint: State | None,
        environment: Mapping[str, Any] = NO_FACTS,
    ) -> None:
        """Take up a run; `environment` has the facts of a given one."""
        differences: list[str] = []
        self.learner.folder = folder
        if checkpoint is not None:
            # Pretrained parts are not in it: with others the same numbers mean something else.
            check_weights(checkpoint, self.learner.agent.fingerprints(), str(folder))
            try:
                if not self.load_state_dict(checkpoint):
                    differences.append("in new episodes")
                differences += self.callbacks.restore(checkpoint.get("callbacks"))
            except Exception as error:  # a changed state raises about ten kinds of errors
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
                raise UserError(
                    f"{folder}: the checkpoint does not hold a state of this run ({reason}). "
                    "Restore the run's own"
                ) from error
        wait = getattr(self.config, "suggester_wait", FOR_ANSWERS)
        if wait != FOR_ANSWERS:
            differences.append(f"with suggester_wait={wait} answers come at other steps")
        if self.ranks.first:
            if not are_as_saved(folder, self.logged):
                differences.append(f"{FILE} has {CHANGED}")
            with guarded(folder):
                # Files move only now that nothing can refuse the run any more.
                give_way(folder, checkpoint)
                steps = self.env_steps
                differences = record_resume(folder, self.config, steps, differences, environment)
        how = f"not exactly: {'; '.join(differences)}" if differences else "exactly"
        self.ranks.print(f"going on after {self.env_steps:,} steps, {how}")

    def report(self, folder: Path) -> str:
        words = [f"{shlex.join(cli_command('eval.py'))} --ckpt-path '{folder}'", *trusting(folder)]
        play = " ".join(words)
        if self.config.env.startswith(GIVEN):  # eval.py cannot make it
            play = f"helm.load('{folder}', env=...)"
        if not self.config.part(CheckpointSettings).save_ckpt:
            play = "not possible: save_ckpt=false keeps no agent"
        n_episodes, mean = self.collector.n_episodes, f"{self.collector.mean_return:.3f}"
        if n_episodes == 0:
            returns = "none, no episode has ended"
        elif n_episodes < EPISODES_AVERAGED:
            returns = f"{mean} over all {n_episodes} episodes"
        else:
            best = f"{mean} (best {self.best_return:.3f})"
            returns = f"{best} over the last {EPISODES_AVERAGED} episodes"
        greedy = ""
        if self.evaluation is not None and self.evaluation.latest is not None:
            greedy = f"\n  greedy evaluation {self.evaluation.latest:.3f}"
            returns += ", exploring"  # which may look like failure where the agent has learned
        minutes, seconds = divmod(round(self.seconds), 60)
        return f"""{greedy}
  mean return       {returns}
  episodes          {n_episodes:,}
  environment steps {self.env_steps:,}
  time              {minutes} min {seconds} s, {self.env_steps / self.seconds:,.0f} steps/s
  run folder        {folder}

  play it           {play}
  see the curves    tensorboard --logdir '{folder}'"""

    def fingerprints(self) -> dict[str, str]:
        """Return the sha256 of the pretrained parts of agent and environments."""
        return self.learner.agent.fingerprints() | self.collector.env.fingerprints()

    def agent_state(self) -> State:
        agent = self.learner.agent
        return {
            "config": self.config.as_dict(),
            "agent": agent.state_dict(),
            "weights": agent.fingerprints(),
            "env_steps": self.env_steps,
        }

    def state_dict(self) -> State:
        return self.agent_state() | {
            "collector": self.collector.state_dict(),
            "learner": self.learner.state_dict(),
            "run": {
                "seconds": self.seconds,
                "best_return": self.best_return,
                "n_evaluations": 0 if self.evaluation is None else self.evaluation.n_due,
                "is_updating": self.learner.under_way is not None,
            },
            "own": {"random": random_state()},
            "callbacks": self.callbacks.state_dict(),
        }

    def load_state_dict(self, state: State) -> bool:
        """Restore a state in a new run; return whether its running episodes go on, too."""
        # A fresh state, of new episodes, shows the shapes that the saved one must have.
        # Its seed is not the run's: new episodes must not be the first ones again.
        seed = derived_seed(self.config.seed, state["env_steps"])
        # Before updates could be left in the middle, no checkpoint said that one was over.
        state = state | {"run": {"is_updating": False} | state["run"]}
        self.collector.begin(seed)
        fresh = self.state_dict()
        del fresh["callbacks"]  # whose states have any shape
        check_like({name: state[name] for name in fresh}, fresh, "run", RAGGED)
        check_like(state["metrics"], NOTHING, "metrics")
        self.logged = state["metrics"]
        own = state["run"]
        if state["env_steps"] != state["collector"]["env_steps"]:
            raise ValueError("env_steps: another number than the collector's")
        if not 0 <= own["seconds"] < math.inf or math.isnan(own["best_return"]):
            raise ValueError("run: no time or no return")
        if not 0 <= own["n_evaluations"] <= state["env_steps"] + 1:
            raise ValueError("run.n_evaluations: not as many as can have been")
        self.seconds, self.best_return = own["seconds"], own["best_return"]
        if self.evaluation is not None:
            self.evaluation.n_due = own["n_evaluations"]
        percept, memory = self.collector.load_state_dict(state["collector"], seed)
        for numbers in called(state, "text"):
            self.learner.agent.reader.sentences.check(numbers)
        self.learner.load_state_dict(state["learner"], percept, memory)
        self.learner.check_counts(self.env_steps)
        if own["is_updating"] != (self.learner.under_way is not None):
            raise ValueError("run.is_updating: the learner is not")
        self.learner.agent.load_state_dict(state["agent"])
        # Last of all: what is above has drawn from the streams.
        set_random_state(state["own"]["random"])
        return memory is not None

    @property
    def env_steps(self) -> int:
        return self.collector.env_steps

    @property
    def seconds(self) -> float:
        """Of the run so far, with the earlier parts of a resumed run but not the time between."""
        return self._seconds_before + time.perf_counter() - self._begun

    @seconds.setter
    def seconds(self, value: float) -> None:
        self._seconds_before, self._begun = value, time.perf_counter()

    @property
    def _is_over(self) -> bool:
        return self.env_steps >= self.config.n_steps and self.learner.under_way is None

    def _update(self, after_step: Callable[[], None]) -> dict[str, float]:
        # Moments of observations change where weights do: an update learns by those that its steps
        # were acted by. Only the first update would not know any.
        if self.collector.is_blind:
            self.collector.count_observations()
        try:
            # Hundreds of gradient steps may be outstanding: the run is saved between any two.
            while self.learner.take_step():
                after_step()
            metrics = self.learner.update(self.env_steps / self.config.n_steps)
        except NotFiniteError as error:
            error.env_steps = self.env_steps
            raise
        self.collector.count_observations()
        # Ranks keep statistics of their own observations; those of the first count.
        self.ranks.broadcast(self.learner.agent.buffers())
        return self.ranks.average(metrics)

    def _progress_bar(self) -> tqdm:
        return tqdm(
            disable=not self.ranks.first,
            file=None if sys.stderr.isatty() else Log(),
            mininterval=0.1 if sys.stderr.isatty() else 30,  # seconds
            total=self.config.n_steps,
            initial=self.collector.env_steps,
            unit=" frames",
            unit_scale=True,
            dynamic_ncols=True,
        )

    def _show_steps(self, bar: tqdm) -> None:
        steps = self.learner.under_way
        if steps is None or bar.disable or time.perf_counter() < self._next_shown:
            return
        self._next_shown = time.perf_counter() + bar.mininterval
        # Long updates move no environment: without this the bar would seem to hang.
        bar.set_postfix_str(f"gradient steps {steps[0]:,}/{steps[1]:,}")

    def _keep_best(self, checkpoints: Checkpoints) -> None:
        # While too few episodes have ended for a mean, the newest agent is the best.
        collector = self.collector
        if len(collector.episodes) == EPISODES_AVERAGED:
            if collector.mean_return < self.best_return:
                return
            # Of two that are equal the later counts: it has learned longer.
            self.best_return = collector.mean_return
        checkpoints.keep_best(self.agent_state)

    @contextmanager
    def _written(self, folder: Path) -> Iterator[MetricsWriter | None]:
        own = own_choices(self.config.as_dict())
        if not self.ranks.first:
            try:
                with guarded(folder, own, self.ranks.first):
                    yield None
            except UserError as error:  # of its own environments: no other rank can say it
                raise RunError(f"rank {self.ranks.rank}: {error}") from error
            return
        with guarded(folder, own):
            config, logged = self.config, self.logged
            with MetricsWriter(folder, config, self.env_steps, logged, config.wandb) as writer:
                yield writer
            if self._is_over:
                # Not before metrics.csv is closed: a finished run lacks nothing.
                mark_finished(folder)


class Log(io.TextIOBase):
    """Standard error that is no terminal: every state of a progress bar gets a line of its own."""

    def write(self, text: str) -> int:
        if state := text.strip():
            print(state, file=sys.stderr, flush=True)
        return len(text)


@contextmanager
def guarded(
    folder: Path, own: Mapping[str, str] | None = None, first: bool = True
) -> Iterator[None]:
    """Turn a fatal error of the run in this folder into one line; `own`: the user's classes."""
    kept = f"{folder} keeps the run's last checkpoint. Mend the"
    go_on = f"go on with: {resume_command(folder)}"
    try:
        try:
            yield
        except NotFiniteError as error:
            if not first:  # all ranks meet it, and the first tells it
                raise
            raise RunError(
                f"{folder}: {error}, at step {error.env_steps:,} of the run, whose last good "
                "checkpoint stays. Lower learning_rate in a new run"
            ) from None
    except EnvFault as error:
        raise UserError(f"{error}. {kept} environment, then {go_on}") from error
    except OSError as error:
        if not folder.is_dir():
            raise RunError(f"{folder}: the run folder vanished while the run went on") from None
        place = error.filename or folder
        raise RunError(f"{place}: {error.strerror or error}. Then {go_on}") from None
    except (UserError, RunError, Interrupted, NotFiniteError):
        raise
    except (MemoryError, torch.OutOfMemoryError, *ENDINGS):
        raise
    except BaseException as error:  # whatever its author did
        if not own:
            raise
        names = ", ".join(f"{setting}: {name}" for setting, name in own.items())
        raise UserError(
            f"{names} raised {error_text(error)}. {kept} class, then {go_on}"
        ) from error
