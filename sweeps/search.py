"""The trials of a search: begun as there is room, watched, cut where others do better.

Each trial is an ordinary run. What is known of trials stands in searches/<name>/: search.json says
what is searched, and each trial has a file with its values and how it ended, written before its run
begins. Scores are read from the runs. So a search that died goes on where it was.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from runs.folder import EXPERIMENTS, write_json
from runs.run_data import read_progress, read_run
from settings import Config, read_json_object, settings_without_effect
from sweeps.grid import Run, check_runs
from sweeps.jobs import Job, State
from sweeps.space import Range, Space
from sweeps.study import Study
from utils.errors import UserError

SEARCHES = Path("searches")
DESCRIPTION, TRIALS = "search.json", "trials"
STEP = 5  # percent of a run between two reports to the pruner
SCORED = 0.1  # the share of a run, at its end, whose mean is the score
ENDED = {"done": State.DONE, "pruned": State.PRUNED}


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
        asked: What the study knows it by.
        values: Of the searched settings.
        job: Its run; None where the values cannot be together.
        note: Why it has no score.
        score: Its score, or what was reported last where it was pruned; None without.
        percent: Of the run that has been reported.
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


class Search:
    """The work of a search.

    Args:
        plan: How it goes about.
        space: What is varied.
        check: Raises UserError where settings cannot work.

    Attributes:
        trials: All that have begun, by their number.
    """

    def __init__(self, plan: Plan, space: Space, check: Callable[[Config], None]) -> None:
        self.plan, self.space, self._check = plan, space, check
        self.study = Study(space.dimensions, plan.sampler, plan.pruner, plan.seed)
        self.trials: list[Trial] = []
        self._unfinished: list[Trial] = []  # of earlier calls
        self._open: list[Trial] = []
        self._take_up()

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
            trial = self._unfinished.pop(0) if self._unfinished else self._begun()
            if trial.job is not None:
                self._open.append(trial)
                return trial.job
        return None

    def follow(self) -> None:
        """Report how the runs do, cut those that others do better than, note those that ended."""
        for trial in list(self._open):
            if trial.state is State.RUNNING:
                self._report(trial)
            elif trial.state in (State.DONE, State.FAILED):
                self._conclude(trial)
            if trial.state in (State.DONE, State.FAILED, State.PRUNED, State.STOPPED) or (
                trial.job is not None and trial.job.is_cut
            ):
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

    def _begun(self) -> Trial:
        """Return a new trial, noted before its run can leave a trace."""
        trial = self._asked()
        self._note(trial)
        return trial

    def _asked(self, values: Mapping[str, Any] | None = None) -> Trial:
        """Return the next trial, its values drawn or those it had before."""
        asked = self.study.ask(values)
        trial = Trial(asked, dict(asked.params))
        self.trials.append(trial)
        try:
            config = self.space.config(trial.values)
            self._check(config)
        except UserError as error:
            trial.note = error.lines[0]
            self.study.tell(asked, None)
            return trial
        run = Run(config, f"{self.plan.name}_trial={trial.number:03d}")
        check_runs([run], self._check)  # now of its folder: no other run may be there
        trial.job = Job(run)
        return trial

    def _take_up(self) -> None:
        """Tell the study what earlier calls have found out, and queue what is unfinished."""
        for number, path in enumerate(sorted((self.plan.folder / TRIALS).glob("*.json"))):
            known = self._known(path, number)
            trial = self._asked(known["values"])
            if trial.job is None:
                continue
            ended = ENDED.get(known["state"])
            if ended is State.PRUNED:
                trial.job.cut_before()
                self._report(trial, until=known["percent"])
                self.study.tell(trial.asked, None, pruned=True)
            elif trial.state is State.DONE:
                self._conclude(trial, decided=ended is State.DONE)
            else:
                self._unfinished.append(trial)

    def _known(self, path: Path, number: int) -> dict[str, Any]:
        """Return what a trial's file says.

        Raises:
            UserError: it is not this trial's, or not of this search.
        """
        known = read_json_object(path)
        match known:
            case {"number": int(n), "values": dict(values), "state": str(), "percent": int()}:
                if n == number and values.keys() == self.space.dimensions.keys():
                    return known
        raise UserError(f"{path}: not trial {number} of this search. Restore it")

    def _report(self, trial: Trial, until: int = 100, decided: bool = False) -> None:
        """Report the metric at each twentieth of a run, as far as it is.

        Args:
            trial: Whose.
            until: The percent at which it was cut before.
            decided: Whether it is known that it was not to be cut.
        """
        job, x, y = self._curve(trial)
        for percent in range(trial.percent + STEP, min(until + 1, 100), STEP):
            place = job.run.config.n_steps * percent / 100
            if not len(x) or x[-1] < place:
                return
            trial.percent = percent
            before = y[x <= place]
            if not len(before):
                continue
            trial.score = float(before[-1])
            cut = self.study.report(trial.asked, percent, trial.score)
            if cut and until == 100 and not decided:
                self.study.tell(trial.asked, None, pruned=True)
                self._note(trial, State.PRUNED)  # first, so that it is known whatever happens
                job.cut()
                return

    def _conclude(self, trial: Trial, decided: bool = False) -> None:
        """Score a run that has ended, unless it turns out that it was to be cut."""
        job, x, y = self._curve(trial)
        if trial.state is State.FAILED:
            self.study.tell(trial.asked, None)
            return
        self._report(trial, decided=decided)
        if trial.state is State.PRUNED:
            return
        trial.score = score(x, y, job.run.config.n_steps)
        self.study.tell(trial.asked, trial.score)
        if trial.score is None:
            job.state, job.note = State.FAILED, f"{self.plan.metric} has no value"
            trial.note = job.note
        else:
            self._note(trial, State.DONE)

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

    def _note(self, trial: Trial, ended: State | None = None) -> None:
        """Write what a trial's file says."""
        known = {"number": trial.number, "values": trial.values}
        known |= {"run": None if trial.job is None else str(trial.job.run.folder)}
        known |= {"state": "begun" if ended is None else ended.value, "percent": trial.percent}
        folder = self.plan.folder / TRIALS
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / f"{trial.number:05d}.json", known)


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


def check_search(plan: Plan, space: Space) -> None:
    """Raise UserError where the name of a search is none, or that of another one."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9=.+-]{0,79}", plan.name):
        raise UserError(
            f"--name {plan.name}: the name of a search is one folder name of up to 80 letters, "
            "digits and = . + -, beginning with a letter or digit"
        )
    wanted, path = described(plan, space), plan.folder / DESCRIPTION
    known = read_json_object(path) if path.exists() else wanted
    differing = [name for name in wanted if known.get(name) != wanted[name]]
    if differing:
        raise UserError(
            f"{plan.folder}: holds a search that differs in {', '.join(differing)}. "
            "Give this one a --name of its own"
        )
    for run in sorted(EXPERIMENTS.glob(f"*/*/{plan.name}_trial=*")):
        number = run.name.rpartition("=")[2]
        if not (number.isdigit() and (plan.folder / TRIALS / f"{int(number):05d}.json").exists()):
            raise UserError(f"{run}: of another search. Give this one a --name of its own")


def write_description(plan: Plan, space: Space) -> None:
    """Write what is searched, for later calls to compare."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    write_json(plan.folder / DESCRIPTION, described(plan, space))


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
