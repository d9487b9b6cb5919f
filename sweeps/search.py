"""The trials of a search: begun as there is room, watched, cut where others do better.

Each trial is an ordinary run. What is searched, the values of each trial, its reports and its score
stand in searches/<name>/, in Optuna's journal, before anything follows from them: so a search that
died goes on where it was.
"""

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from analysis.run_data import read_progress, read_run
from runs.folder import EXPERIMENTS
from settings import Config, settings_without_effect
from sweeps.grid import Run, check_runs
from sweeps.jobs import Job, Jobs, State
from sweeps.space import Range, Space
from sweeps.study import JOURNAL, Study, unlock
from utils.errors import UserError

SEARCHES = Path("searches")
EARLIER = "search.json"  # stood in the folder of a search before there were journals
LAST_WITH_IT = "56e76aa"
STEP = 5  # percent of a run between two reports to the pruner
SCORED = 0.1  # the share of a run, at its end, whose mean is the score


class Plan(NamedTuple):
    """How a search goes about.

    Attributes:
        name: Of its folder, and what the names of its runs begin with.
        n_trials: How many, with those of earlier calls.
        sampler, pruner: See `sweeps.study`.
        metric: The column of metrics.csv that is to become high.
        seed: Of all that is drawn.
    """

    name: str
    n_trials: int
    sampler: str
    pruner: str
    metric: str
    seed: int

    @property
    def folder(self) -> Path:
        """Where everything about it is."""
        return SEARCHES / self.name


@dataclass(eq=False)
class Trial:
    """One point of the space and what has become of it.

    Attributes:
        asked: Its trial of Optuna.
        values: Of the searched settings.
        job: Its run; None where the values cannot be together.
        note: Why it has no score.
        score: Its score, or what was reported last where it was pruned; None without.
        percent: Of the run, up to which it has been reported.
    """

    asked: Any
    values: dict[str, Any]
    job: Job | None = None
    note: str = ""
    score: float | None = None
    percent: int = 0

    @property
    def number(self) -> int:
        """Return which it is, from 0."""
        return self.asked.number

    @property
    def state(self) -> State:
        """Return where it stands."""
        return State.FAILED if self.job is None else self.job.state


class Search(Jobs):
    """The work of a search.

    Args:
        plan: How it goes about.
        space: What is varied.
        check: Raises UserError where settings cannot work.
        study: Its trials.

    Attributes:
        trials: All that have begun, by their number.
    """

    def __init__(
        self, plan: Plan, space: Space, check: Callable[[Config], None], study: Study
    ) -> None:
        self.plan, self.space, self._check, self.study = plan, space, check, study
        self.trials: list[Trial] = []
        self._unfinished: list[Trial] = []  # of earlier calls
        self._open: list[Trial] = []
        for known in study.trials:
            self._take_up(known)

    @property
    def jobs(self) -> list[Job]:
        """Return the runs of all trials."""
        return [trial.job for trial in self.trials if trial.job is not None]

    @property
    def is_over(self) -> bool:
        """Return whether nothing is left to do."""
        ended = (State.DONE, State.PRUNED, State.FAILED)
        return not self._has_next and all(trial.state in ended for trial in self.trials)

    def next_job(self, n_open: int, n_places: int) -> Job | None:
        """Return the run of a trial that went on before, or of a new one, where there is room."""
        while n_open < n_places and self._has_next:
            trial = self._unfinished.pop(0) if self._unfinished else self._begun(self.study.ask())
            if trial.job is not None:
                self._open.append(trial)
                return trial.job
        return None

    def follow(self) -> None:
        """Report how the runs do, cut those that others do better than, score those that ended."""
        for trial in list(self._open):
            if trial.state is State.RUNNING:
                self._report(trial)
            elif trial.state is State.DONE:
                self._conclude(trial)
            is_over = trial.state not in (State.WAITING, State.RUNNING)
            if is_over or (trial.job is not None and trial.job.is_cut):
                self._open.remove(trial)

    def best(self) -> Trial | None:
        """Return the finished trial of the highest score, the first of equal ones."""
        done = [trial for trial in self.trials if trial.state is State.DONE]
        scored = [(trial.score, -trial.number) for trial in done if trial.score is not None]
        return self.trials[-max(scored)[1]] if scored else None

    @property
    def n_to_come(self) -> int:
        """Return how many trials have not begun."""
        return max(self.plan.n_trials - len(self.trials), 0)

    @property
    def _has_next(self) -> bool:
        """Whether a trial is to begin or to go on."""
        return bool(self._unfinished or self.n_to_come)

    def _begun(self, asked: Any) -> Trial:
        """Return a trial with its run, without one where its values cannot be together."""
        trial = Trial(asked, dict(asked.params))
        self.trials.append(trial)
        try:
            config = self.space.config(trial.values)
            self._check(config)
        except UserError as error:
            trial.note = error.lines[0]
            self.study.tell_failed(asked, trial.note)
            return trial
        run = Run(config, f"{self.plan.name}_trial={trial.number:03d}")
        check_runs([run], self._check)  # now of its folder: no other run may be there
        trial.job = Job(run)
        return trial

    def _take_up(self, known: Any) -> None:
        """Take up a trial of an earlier call, as the study knows it."""
        if known.state.name == "FAIL":
            reason = known.user_attrs.get("reason", "")
            self.trials.append(Trial(known, dict(known.params), note=reason))
            return
        is_over = known.state.is_finished()
        trial = self._begun(known if is_over else self.study.taken_up(known.number))
        if trial.job is None:
            return
        if reported := known.intermediate_values:
            # The last one again: it may not have been known yet whether to cut there.
            trial.percent, trial.score = max(reported) - STEP, reported[max(reported)]
        if known.state.name == "PRUNED":
            trial.job.is_cut, trial.job.state = True, State.PRUNED
        elif known.state.name == "COMPLETE":
            trial.score, trial.job.state = known.value, State.DONE
        elif trial.state is State.DONE:
            self._open.append(trial)
        else:
            self._unfinished.append(trial)

    def _report(self, trial: Trial) -> None:
        """Report the metric at each twentieth of a run, as far as it is; cut it where it is bad."""
        job, x, y = self._curve(trial)
        for percent in range(trial.percent + STEP, 100, STEP):
            place = job.run.config.n_steps * percent / 100
            if not len(x) or x[-1] < place:
                return
            trial.percent = percent
            before = y[x <= place]
            if not len(before):
                continue
            trial.score = float(before[-1])
            if self.study.report(trial.asked, percent, trial.score):
                self.study.tell_pruned(trial.asked)  # first, so that it is known whatever happens
                job.cut()
                return

    def _conclude(self, trial: Trial) -> None:
        """Score a run that has had all its steps, unless it turns out that it was to be cut."""
        self._report(trial)
        if trial.state is State.PRUNED:
            return
        job, x, y = self._curve(trial)
        trial.score = score(x, y, job.run.config.n_steps)
        if trial.score is None:
            job.state, job.note = State.FAILED, f"{self.plan.metric} has no value"
        else:
            self.study.tell(trial.asked, trial.score)

    def _curve(self, trial: Trial) -> tuple[Job, np.ndarray, np.ndarray]:
        """Return a trial's run and its metric: steps and values, both [rows].

        Raises:
            UserError: the run has no such metric.
        """
        assert trial.job is not None, "only trials with a run have a curve"
        folder = trial.job.run.folder
        if not read_progress(folder).env_steps:
            return trial.job, np.empty(0), np.empty(0)
        run = read_run(folder, self.plan.metric, "steps")
        return trial.job, run.x, run.y


def score(x: np.ndarray, y: np.ndarray, n_steps: int) -> float | None:
    """Return the mean of a metric over the last tenth of a run, or its last value before that.

    Args:
        x: Environment steps.  [rows]
        y: The metric.  [rows]
        n_steps: Of the whole run.
    """
    if not len(y):
        return None
    last = y[x > (1 - SCORED) * n_steps]
    return float(last.mean() if len(last) else y[-1])


def open_study(plan: Plan, space: Space, is_kept: bool = True) -> Study:
    """Return the study of a search, which goes on if it has begun.

    Args:
        plan: How the search goes about.
        space: What is varied.
        is_kept: Whether a new one is written into its folder, of which this process has the lock.
    """
    folder = plan.folder if is_kept or (plan.folder / JOURNAL).is_file() else None
    if is_kept:
        unlock(plan.folder)
    study = Study(space.dimensions, plan.sampler, plan.pruner, plan.seed, folder)
    if is_kept and not study.searched:
        study.note_searched(described(plan, space))
    return study


def check_search(plan: Plan, space: Space) -> None:
    """Raise UserError where the name of a search is none, or that of another one."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9=.+-]{0,79}", plan.name):
        raise UserError(
            f"--name {plan.name}: the name of a search is one folder name of up to 80 letters, "
            "digits and = . + -, beginning with a letter or digit"
        )
    if (plan.folder / EARLIER).exists():
        raise UserError(
            f"{plan.folder}: a search of an earlier version, which commit {LAST_WITH_IT} can go on "
            "with. Give this one a --name of its own"
        )
    study = open_study(plan, space, is_kept=False)
    wanted = described(plan, space)
    known = study.searched or wanted
    differing = [name for name in wanted if known.get(name) != wanted[name]]
    if differing:
        raise UserError(
            f"{plan.folder}: holds a search that differs in {', '.join(differing)}. "
            "Give this one a --name of its own"
        )
    for run in sorted(EXPERIMENTS.glob(f"*/*/{plan.name}_trial=*")):
        number = run.name.rpartition("=")[2]
        if not (number.isdigit() and int(number) < len(study.trials)):
            raise UserError(f"{run}: of another search. Give this one a --name of its own")


def described(plan: Plan, space: Space) -> dict[str, Any]:
    """Return what makes two searches the same: all that decides what a trial comes to."""
    ranges = {
        name: each._asdict() if isinstance(each, Range) else {"choices": list(each.values)}
        for name, each in space.dimensions.items()
    }
    without = {*space.dimensions, *settings_without_effect(), "device"}
    fixed = dataclasses.asdict(space.corners()[0])
    how = {"sampler": plan.sampler, "pruner": plan.pruner, "metric": plan.metric}
    return {**how, **ranges, **{name: fixed[name] for name in fixed if name not in without}}
