"""A search of settings by Optuna; each trial is a run of a sweep.

{"model": "LSTM", "learning_rate": {"low": 1e-5, "high": 1e-3, "log": true},
 "memory_layers": {"low": 1, "high": 3}, "lr_decay": {"choices": ["none", "linear"]}}

Optuna draws the values, keeps the trials in searches/<name>/journal.log, says which runs end early,
and draws the pictures. A range takes the arguments of Optuna's distributions.
"""

import argparse
import json
import shutil
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import RandomSampler, TPESampler
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import TrialState
from optuna.visualization import matplotlib as pictures

from analysis.figures import save_figure
from analysis.run_data import aligned, read_progress, read_run, write_csv
from sweeps.grid import SweepRun, check_runs
from sweeps.jobs import Job, Jobs, State
from utils.errors import UserError, escape
from utils.given_settings import Override, given_by_file, load_config
from utils.run_folder import SETTINGS
from utils.seeding import derived_seed
from utils.settings import Config, Values, all_settings, checked, installed

SEARCHES, JOURNAL = Path("searches"), "journal.log"
FORM = '{"low": 1, "high": 2}, "log": true besides, or {"choices": [1, 2]}'
STEP = 5  # percent of a run between two reports to the pruner
SCORED = 0.1  # share of a run, at its end; the mean over it is the score
Distribution = CategoricalDistribution | FloatDistribution | IntDistribution
SAMPLERS = {"tpe": TPESampler, "random": RandomSampler}
PRUNERS = {
    "median": optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=25),
    "asha": optuna.pruners.SuccessiveHalvingPruner(min_resource=10, reduction_factor=3),
    "none": optuna.pruners.NopPruner(),
}
PICTURES: dict[str, Callable[[optuna.Study], Any]] = {
    "history": pictures.plot_optimization_history,
    "importances": pictures.plot_param_importances,
    "settings": pictures.plot_slice,
}


class Space(NamedTuple):
    ranges: dict[str, Distribution]
    fixed: list[Override]  # other settings, of the file
    overrides: list[str]  # and of the command line, as KEY=VALUE

    def config(self, values: Values) -> Config:
        """Return all settings of a point, or raise UserError where they cannot be together."""
        drawn = [Override("--search", name, value) for name, value in values.items()]
        return load_config([*self.fixed, *drawn], self.overrides)

    def corners(self) -> list[Config]:
        """Return a point for each agent, algorithm and so on: these may read other settings."""
        first: dict[str, Any] = {}
        kinds: list[tuple[str, Any]] = []
        for name, each in self.ranges.items():
            choices = each.choices if isinstance(each, CategoricalDistribution) else [each.low]
            first[name] = choices[0]
            if name in installed().registries:
                kinds += [(name, choice) for choice in choices]
        return [self.config({**first, name: kind}) for name, kind in kinds or [*first.items()][:1]]

    def described(self, metric: str) -> str:
        """Return all that a score depends on: one study cannot hold the trials of two searches."""
        given = sorted([*(f"{each.name}={each.value}" for each in self.fixed), *self.overrides])
        return f"{metric} of {self.ranges} with {given}"


def read_space(file: Path | None, texts: Iterable[str]) -> Space:
    given = {each.name: each for each in given_by_file(file)}
    space = Space({}, [], [])
    for text in texts:
        name, _, value = text.partition("=")
        given.pop(name, None)
        try:
            read = json.loads(value)
        except (ValueError, RecursionError):  # a word such as LSTM
            read = None
        if is_range(read):
            given[name] = Override(f"--var {text[:80]}", name, read)
        else:
            space.overrides.append(text)
    for each in given.values():
        if is_range(each.value):
            space.ranges[each.name] = distribution(each)
        else:
            space.fixed.append(each)
    if not space.ranges:
        raise UserError(f"--search: nothing to search. Give a setting a range, such as {FORM}")
    return space


def is_range(value: object) -> bool:
    return isinstance(value, dict) and not value.keys().isdisjoint({"low", "high", "choices"})


def distribution(given: Override) -> Distribution:
    name, value = given.name, given.value
    try:
        if name not in all_settings() or name in ("env", "seed"):
            raise ValueError("no setting that can be searched")
        declaration = all_settings()[name]
        if "choices" in value:
            choices = [checked(declaration, each) for each in value["choices"]]
            return CategoricalDistribution(**{**value, "choices": choices})
        ends = {end: checked(declaration, value[end]) for end in ("low", "high")}
        kind = IntDistribution if isinstance(ends["low"], int) else FloatDistribution
        return kind(**{**value, **ends})
    except (KeyError, TypeError, ValueError) as error:  # the latter two are Optuna's as well
        raise UserError(f"{given.source}: {name}: {error}. Write {FORM}") from None


def open_study(folder: Path, pruner: str, described: str) -> optuna.Study:
    """Return the study in a folder, perhaps begun; UserError if unreadable or another search's."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path = str(folder / JOURNAL)
    try:  # this lock holds on disks that machines share, too
        backend = JournalFileBackend(path, lock_obj=JournalFileOpenLock(path))
        study = optuna.create_study(
            storage=optuna.storages.JournalStorage(backend),
            pruner=PRUNERS[pruner],
            study_name="search",
            direction="maximize",
            load_if_exists=True,
        )
    except Exception as error:  # Optuna documents no set of exceptions for a bad file
        raise UserError(f"{path}: not readable as a search: {escape(str(error))}") from None
    if study.user_attrs.get("searched", described) != described:
        raise UserError(f"{folder}: holds a search of other ranges. Give this one a --name")
    study.set_user_attr("searched", described)
    return study


class Search(Jobs):
    """The trials of a study as runs; those that an earlier call left unfinished come first."""

    def __init__(
        self,
        study: optuna.Study,
        space: Space,
        options: argparse.Namespace,
        check: Callable[[Config], None],
    ) -> None:
        super().__init__([])
        self.study, self.space, self.options, self._check = study, space, options, check
        known = [trial for trial in study.trials if trial.state is TrialState.RUNNING]
        self._unfinished = [optuna.trial.Trial(study, trial._trial_id) for trial in known]
        self._open: dict[Job, optuna.Trial] = {}

    @property
    def n_to_come(self) -> int:
        return max(self.options.search - len(self.study.trials), 0) + len(self._unfinished)

    def next_job(self, n_open: int, n_places: int) -> Job | None:
        while n_open < n_places and self.n_to_come:
            trial = self._unfinished.pop(0) if self._unfinished else self._ask()
            try:
                config = self.space.config(trial.params)
                self._check(config)
            except UserError as error:  # of values that cannot be together
                trial.set_user_attr("reason", error.lines[0])
                self.study.tell(trial, state=TrialState.FAIL)
                continue
            run = SweepRun(config, f"{self.options.name}_trial={trial.number:03d}")
            check_runs([run], self._check, trust=self.options.trust)
            trial.set_user_attr("run", str(run.folder))
            job = Job(run)
            self.jobs.append(job)
            self._open[job] = trial
            return job
        return None

    def _ask(self) -> optuna.Trial:
        # A seed for each trial: a search that goes on would draw its first values again.
        seed = derived_seed(self.options.seed, len(self.study.trials))
        self.study.sampler = SAMPLERS[self.options.sampler](seed=seed)
        return self.study.ask({**self.space.ranges})

    def follow(self) -> None:
        for job, trial in list(self._open.items()):
            if job.state in (State.RUNNING, State.DONE):
                self._report(job, trial)
            if job.is_cut or job.state not in (State.WAITING, State.RUNNING):
                del self._open[job]

    def _report(self, job: Job, trial: optuna.Trial) -> None:
        x, y, n_steps = np.empty(0), np.empty(0), job.run.config.n_steps
        if read_progress(job.run.folder).env_steps:
            record = read_run(job.run.folder, self.options.metric, "steps")
            x, y = record.x, record.y
        reported = self.study.trials[trial.number].intermediate_values
        for percent in range(STEP, 100, STEP):
            before = y[x <= n_steps * percent / 100]
            if percent in reported or not len(before) or x[-1] < n_steps * percent / 100:
                continue
            trial.report(before[-1], percent)
            if trial.should_prune():
                self.study.tell(trial, state=TrialState.PRUNED)  # first: a kill cannot lose it
                job.cut()
                return
        if job.state is State.DONE and len(y):
            last = y[x > (1 - SCORED) * n_steps]
            self.study.tell(trial, float(last.mean() if len(last) else y[-1]))
        elif job.state is State.DONE:
            job.state, job.note = State.FAILED, f"{self.options.metric} has no value"


def write_results(study: optuna.Study, names: Iterable[str], folder: Path) -> str:
    """Write the table, the best settings and the pictures; return the table and the best trial."""
    table: list[list[object]] = [["trial", "state", "score", *names, "run"]]
    for trial in study.trials:
        place = trial.user_attrs.get("run") or trial.user_attrs.get("reason", "")
        values = [trial.params.get(name, "") for name in names]
        table.append([trial.number, trial.state.name.lower(), trial.value, *values, place])
    write_csv(folder / "trials.csv", table)
    if not study.get_trials(states=[TrialState.COMPLETE]):
        return f"{aligned(table)}\n\nno trial has finished with a score"
    best = study.best_trial
    shutil.copy(Path(best.user_attrs["run"]) / SETTINGS, folder)
    for name, draw in PICTURES.items():
        with warnings.catch_warnings(action="ignore", category=ExperimentalWarning):
            save_figure(np.ravel(draw(study))[0].figure, folder / f"{name}.png")
    told = ", ".join(f"{name}={value}" for name, value in best.params.items())
    return f"{aligned(table)}\n\nbest: trial {best.number}, score {best.value:.3f}, {told}"
