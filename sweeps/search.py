"""A search of settings: its ranges, its trials in Optuna's journal, and its results.

{"model": "LSTM", "learning_rate": {"low": 1e-5, "high": 1e-3, "log": true},
 "memory_layers": {"low": 1, "high": 3}, "lr_decay": {"choices": ["none", "linear"]}}

Each trial is an ordinary run, which is ended early if others do better. The ranges, and the values,
reports and score of each trial, are written into searches/<name>/ before anything depends on them:
so a search that died goes on from there.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from analysis.figures import METRIC_LABELS, Point, draw_search, save_figure
from analysis.run_data import Table, aligned, read_progress, read_run, write_csv
from sweeps.grid import Run, check_runs
from sweeps.jobs import Job, Jobs, State
from utils.errors import UserError, did_you_mean, escape, raise_all, raise_any
from utils.given_settings import Override, given_by_file, load_config
from utils.run_folder import EXPERIMENTS, SETTINGS, write_json
from utils.settings import (
    Config,
    all_settings,
    checked,
    installed,
    settings_without_effect,
    shortened,
    shown,
)

SEARCHES = Path("searches")
JOURNAL, CSV, PICTURE = "journal.log", "trials.csv", "search.png"
FORM = '{"low": 1, "high": 2}, "log": true besides, or {"choices": [1, 2]}'
NOT_SEARCHED = {
    "env": "scores of several environments cannot be compared",
    "seed": "a seed is no better than another",
}
NAME = "search"  # of the one study in a journal
SEARCHED = "searched"  # its attribute with the description of the search
SAMPLERS = ("tpe", "random")
PRUNERS = ("median", "asha", "none")
STARTUP = 5  # complete trials before the median ends any early
WARMUP = 25  # percent of a run before the median may end it
FIRST_RUNG, REDUCTION = 10, 3  # ASHA looks at 10, 30 and 90 percent, and a third goes on
LEAST_FINISHED = 5  # trials for an estimate of importances
STEP = 5  # percent of a run between two reports to the pruner
SCORED = 0.1  # share of a run, at its end; the mean over it is the score


class Range(NamedTuple):
    """Numbers from low to high, both included; with `log` they are drawn by their logarithm."""

    low: float
    high: float
    log: bool = False

    def __str__(self) -> str:
        return f"{self.low} to {self.high}" + ", logarithmic" * self.log


class Choices(NamedTuple):
    values: tuple[Any, ...]

    def __str__(self) -> str:
        return ", ".join(json.dumps(value) for value in self.values)


class Space(NamedTuple):
    """The searched and the fixed settings of a search.

    Attributes:
        dimensions: The range of each searched setting.
        sources: The file or option that gave each range, for messages.
        fixed: Other settings from the file.
        overrides: Other settings as KEY=VALUE.
    """

    dimensions: dict[str, Range | Choices]
    sources: dict[str, str]
    fixed: list[Override]
    overrides: list[str]

    def config(self, values: Mapping[str, Any]) -> Config:
        """Return all settings of a point, or raise UserError where they cannot be together."""
        drawn = [Override(self.sources[name], name, value) for name, value in values.items()]
        return load_config([*self.fixed, *drawn], self.overrides)

    def corners(self) -> list[Config]:
        values = {
            name: [each.low] if isinstance(each, Range) else each.values
            for name, each in self.dimensions.items()
        }
        tried = [
            each if name in installed().registries else each[:1] for name, each in values.items()
        ]
        points = (dict(zip(values, each, strict=True)) for each in itertools.product(*tried))
        return raise_all(*(partial(self.config, point) for point in points))

    def settings(self, config: Config) -> dict[str, Any]:
        texts = (text.partition("=")[0] for text in self.overrides)
        named = {*(each.name for each in self.fixed), *texts, *self.dimensions}
        return {name: getattr(config, name) for name in all_settings() if name in named}


def read_space(file: Path | None, texts: Iterable[str]) -> Space:
    given = {each.name: each for each in given_by_file(file)}
    space, problems = Space({}, {}, [], []), list[str]()
    for text in texts:
        name, _, value = text.partition("=")
        source = f"--var {shortened(text)}"
        given.pop(name, None)
        if _is_range(name, value.startswith("{")):
            try:
                one = Override(source, name, json.loads(value))
                given[one.name] = one
            except (ValueError, RecursionError):
                problems.append(f"{source}: not readable as JSON. Write {FORM}")
            continue
        space.overrides.append(text)
        if "," in value and not value.startswith(("{", "[")):
            problems.append(f"{source}: a search takes one value of {name}, or a range: {FORM}")
    for each in given.values():
        if not _is_range(each.name, isinstance(each.value, dict)):
            space.fixed.append(each)
            continue
        try:
            space.dimensions[each.name] = _dimension(each.name, each.value)
            space.sources[each.name] = each.source
        except ValueError as error:
            problems.append(f"{each.source}: {error}")
    if not (problems or space.dimensions):
        problems.append(f"--search: nothing to search. Give a setting a range, such as {FORM}")
    raise_any(problems)
    return space


def _is_range(name: str, looks_like_one: bool) -> bool:
    declaration = all_settings().get(name)
    return looks_like_one and (declaration is None or dict not in declaration.kinds)


def _dimension(name: str, value: dict[str, Any]) -> Range | Choices:
    declaration = all_settings().get(name)
    if declaration is None:
        raise ValueError(f"unknown key '{shortened(name)}'.{did_you_mean(name, all_settings())}")
    if name in NOT_SEARCHED:
        raise ValueError(f"{name}: is not searched, {NOT_SEARCHED[name]}")
    if value.keys() == {"choices"}:
        values = value["choices"]
        if not isinstance(values, list) or not values:
            raise ValueError(
                f"{name}: choices are a list with one value or more, not {shown(values)}"
            )
        found = tuple(checked(declaration, each) for each in values)
        if twice := [each for each in found if found.count(each) > 1]:
            raise ValueError(f"{name}: {shown(twice[0])} stands twice among the choices")
        return Choices(found)
    if not {"low", "high"} <= value.keys() <= {"low", "high", "log"}:
        raise ValueError(f"{name}: {shown(value)} is no range. Write {FORM}")
    if not {int, float} & set(declaration.kinds):
        raise ValueError(f'{name}: is no number and has no range. Write {{"choices": [...]}}')
    log = value.get("log", False)
    if not isinstance(log, bool):
        raise ValueError(f"{name}: log is {shown(log)}, and may be true or false")
    if value["low"] is None or value["high"] is None:
        raise ValueError(f"{name}: the ends of a range are numbers, not null")
    low, high = (checked(declaration, value[end]) for end in ("low", "high"))
    if low > high:
        raise ValueError(f"{name}: low {low} is above high {high}. Exchange them")
    if log and low <= 0:
        raise ValueError(f"{name}: low is {low}, and a logarithmic range begins above 0")
    return Range(low, high, log)


class Plan(NamedTuple):
    """The options of a search.

    Attributes:
        name: Of its folder, and the beginning of its runs' names.
        n_trials: Trials in all, with those of earlier calls.
        metric: The column of metrics.csv to maximise.
    """

    name: str
    n_trials: int
    sampler: str
    pruner: str
    metric: str
    seed: int

    @property
    def folder(self) -> Path:
        return SEARCHES / self.name


class Study:
    """The trials of a search, kept in a journal in its folder, or in memory without a folder.

    The values of a trial depend on the seed, its number and the reports until then, so that an
    interrupted study goes on as an uninterrupted one.

    Raises:
        UserError: the journal in the folder cannot be read.
    """

    def __init__(
        self, plan: Plan, dimensions: Mapping[str, Range | Choices], folder: Path | None = None
    ) -> None:
        import optuna
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._dimensions, self._plan = dimensions, plan
        pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
        if plan.pruner == "median":
            pruner = optuna.pruners.MedianPruner(n_startup_trials=STARTUP, n_warmup_steps=WARMUP)
        elif plan.pruner == "asha":
            pruner = optuna.pruners.SuccessiveHalvingPruner(FIRST_RUNG, REDUCTION)
        storage: Any = optuna.storages.InMemoryStorage()
        try:
            if folder:  # this lock holds on disks that machines share, too
                path = str(folder / JOURNAL)
                backend = JournalFileBackend(path, lock_obj=JournalFileOpenLock(path))
                storage = optuna.storages.JournalStorage(backend)
            if not storage.get_all_studies():
                optuna.create_study(study_name=NAME, storage=storage, direction="maximize")
            self.optuna = optuna.load_study(study_name=NAME, storage=storage, pruner=pruner)
        except Exception as error:  # Optuna documents no set of exceptions for a bad file
            reason = escape(f"{type(error).__name__}: {error}")
            raise UserError(f"{folder}/{JOURNAL}: not readable as a search: {reason}") from None
        self._storage = storage

    @property
    def trials(self) -> list[Any]:
        return self.optuna.get_trials(deepcopy=False)

    def ask(self) -> Any:
        self._seed_sampler(len(self.trials), 0)
        return self._with_all_values(self.optuna.ask())

    def taken_up(self, number: int) -> Any:
        """Return an unfinished trial of an earlier call, which may have been killed as it drew."""
        from optuna.trial import Trial

        study = self._storage.get_study_id_from_name(NAME)
        trial = self._storage.get_trial_id_from_study_id_trial_number(study, number)
        return self._with_all_values(Trial(self.optuna, trial))

    def report(self, trial: Any, percent: int, value: float) -> bool:
        """Record a trial's value at some percent of its run; return whether to end the run."""
        if percent not in self.trials[trial.number].intermediate_values:
            trial.report(value, percent)
        return trial.should_prune()

    def tell(self, trial: Any, score: float | None = None, failure: str = "") -> None:
        from optuna.trial import TrialState

        if score is not None:
            self.optuna.tell(trial, score)
        elif not failure:
            self.optuna.tell(trial, state=TrialState.PRUNED)
        elif not self.trials[trial.number].state.is_finished():
            trial.set_user_attr("reason", failure)
            self.optuna.tell(trial, state=TrialState.FAIL)

    def importances(self) -> dict[str, float]:
        """Return the importance of each setting (fANOVA, Hutter et al. 2014); empty if unknown."""
        from optuna import importance

        finished = [trial for trial in self.trials if trial.state.name == "COMPLETE"]
        if len(finished) < LEAST_FINISHED or len({trial.value for trial in finished}) == 1:
            return {}
        evaluator = importance.FanovaImportanceEvaluator(seed=self._plan.seed)
        return importance.get_param_importances(self.optuna, evaluator=evaluator)

    def _seed_sampler(self, number: int, place: int) -> None:
        from optuna import samplers

        # Seeded for each value, so that it does not depend on the draws before an interruption.
        kinds = {"tpe": samplers.TPESampler, "random": samplers.RandomSampler}
        words = np.random.SeedSequence((self._plan.seed, number, place)).generate_state(1)
        self.optuna.sampler = kinds[self._plan.sampler](seed=int(words[0]))

    def _with_all_values(self, trial: Any) -> Any:
        self._seed_sampler(trial.number, 0)
        together = trial.relative_params
        for place, (name, each) in enumerate(self._dimensions.items(), 1):
            if name not in together:
                self._seed_sampler(trial.number, place)
            if not isinstance(each, Range):
                trial.suggest_categorical(name, each.values)
            elif isinstance(each.low, int):
                trial.suggest_int(name, each.low, int(each.high), log=each.log)
            else:
                trial.suggest_float(name, each.low, each.high, log=each.log)
        return trial


@dataclass(eq=False)
class Trial:
    """One point of the space and its run.

    Attributes:
        asked: Its trial of Optuna.
        job: Its run; None where the values cannot be together.
        note: The reason for a missing score.
        score: Its score, or its last report if it was pruned.
        percent: Of the run, up to which it has been reported.
    """

    asked: Any
    job: Job | None = None
    note: str = ""
    score: float | None = None
    percent: int = 0

    @property
    def state(self) -> State:
        return State.FAILED if self.job is None else self.job.state


class Search(Jobs):
    def __init__(
        self,
        plan: Plan,
        space: Space,
        check: Callable[[Config], None],
        study: Study,
        trust: bool = False,
    ) -> None:
        self.plan, self.space, self._check, self.study = plan, space, check, study
        self._trust = trust
        self.trials: list[Trial] = []
        self._unfinished: list[Trial] = []  # of earlier calls
        self._open: list[Trial] = []
        for known in study.trials:
            self._take_up(known)

    @property
    def jobs(self) -> list[Job]:
        return [trial.job for trial in self.trials if trial.job is not None]

    @property
    def n_to_come(self) -> int:
        return max(self.plan.n_trials - len(self.trials), 0)

    @property
    def is_over(self) -> bool:
        ended = (State.DONE, State.PRUNED, State.FAILED)
        is_done = all(trial.state in ended for trial in self.trials)
        return is_done and not (self._unfinished or self.n_to_come)

    def next_job(self, n_open: int, n_places: int) -> Job | None:
        while n_open < n_places and (self._unfinished or self.n_to_come):
            trial = self._unfinished.pop(0) if self._unfinished else self._begun(self.study.ask())
            if trial.job is not None:
                self._open.append(trial)
                return trial.job
        return None

    def follow(self) -> None:
        for trial in list(self._open):
            if trial.state is State.RUNNING:
                self._report(trial)
            elif trial.state is State.DONE:
                self._conclude(trial)
            is_over = trial.state not in (State.WAITING, State.RUNNING)
            if is_over or (trial.job is not None and trial.job.is_cut):
                self._open.remove(trial)

    def best(self) -> Trial | None:
        done = [trial for trial in self.trials if trial.state is State.DONE]
        scored = [trial for trial in done if trial.score is not None]
        return max(scored, key=lambda trial: trial.score or 0.0, default=None)

    def _begun(self, asked: Any) -> Trial:
        trial = Trial(asked)
        self.trials.append(trial)
        try:
            config = self.space.config(asked.params)
            self._check(config)
        except UserError as error:
            trial.note = error.lines[0]
            self.study.tell(asked, failure=trial.note)
            return trial
        run = Run(config, f"{self.plan.name}_trial={asked.number:03d}")
        check_runs(
            [run], self._check, trust=self._trust
        )  # now of its folder: no other run may be there
        trial.job = Job(run)
        return trial

    def _take_up(self, known: Any) -> None:
        if known.state.name == "FAIL":
            self.trials.append(Trial(known, note=known.user_attrs.get("reason", "")))
            return
        is_over = known.state.is_finished()
        trial = self._begun(known if is_over else self.study.taken_up(known.number))
        if trial.job is None:
            return
        if reported := known.intermediate_values:
            # The last one is reported again: a kill may have come before its decision.
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
                self.study.tell(trial.asked)  # first, so that a kill cannot lose it
                job.cut()
                return

    def _conclude(self, trial: Trial) -> None:
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
        assert trial.job is not None, "only trials with a run have a curve"
        folder = trial.job.run.folder
        if not read_progress(folder).env_steps:
            return trial.job, np.empty(0), np.empty(0)
        run = read_run(folder, self.plan.metric, "steps")
        return trial.job, run.x, run.y


def score(x: np.ndarray, y: np.ndarray, n_steps: int) -> float | None:
    """Return the mean of a metric over the last tenth of a run, or its last value before that."""
    if not len(y):
        return None
    last = y[x > (1 - SCORED) * n_steps]
    return float(last.mean() if len(last) else y[-1])


def open_study(plan: Plan, space: Space, is_kept: bool = True) -> Study:
    """Return the study of a search, which goes on if it has begun; `is_kept` writes a new one."""
    folder = plan.folder if is_kept or (plan.folder / JOURNAL).is_file() else None
    if is_kept:  # a killed search leaves its lock on the journal behind
        (plan.folder / f"{JOURNAL}.lock").unlink(missing_ok=True)
    study = Study(plan, space.dimensions, folder)
    if is_kept and not study.optuna.user_attrs.get(SEARCHED):
        study.optuna.set_user_attr(SEARCHED, described(plan, space))
    return study


def check_search(plan: Plan, space: Space) -> None:
    """Raise UserError where the name of a search is invalid, or that of another one."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9=.+-]{0,79}", plan.name):
        raise UserError(
            f"--name {plan.name}: the name of a search is one folder name of up to 80 letters, "
            "digits and = . + -, beginning with a letter or digit"
        )
    study, wanted = open_study(plan, space, is_kept=False), described(plan, space)
    known = study.optuna.user_attrs.get(SEARCHED) or wanted
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
    """Return all that a trial's result depends on: two searches are the same if it is equal."""
    ranges = {
        name: each._asdict() if isinstance(each, Range) else {"choices": list(each.values)}
        for name, each in space.dimensions.items()
    }
    without = {*space.dimensions, *settings_without_effect(), "device"}
    fixed = space.corners()[0].as_dict()
    how = {"sampler": plan.sampler, "pruner": plan.pruner, "metric": plan.metric}
    return {**how, **ranges, **{name: fixed[name] for name in fixed if name not in without}}


def write_results(search: Search, importances: Mapping[str, float]) -> list[Path]:
    folder, best = search.plan.folder, search.best()
    write_csv(folder / CSV, trials_table(search, precise=True))
    if best is None or best.job is None:
        return [folder / CSV]
    write_json(folder / SETTINGS, search.space.settings(best.job.run.config))
    points = [
        Point(trial.asked.number, trial.score, trial.state is State.PRUNED, trial.asked.params)
        for trial in search.trials
        if trial.score is not None and trial.state in (State.DONE, State.PRUNED)
    ]
    is_log = {
        name: isinstance(each, Range) and each.log for name, each in search.space.dimensions.items()
    }
    metric = METRIC_LABELS.get(search.plan.metric, search.plan.metric)
    save_figure(draw_search(points, importances, is_log, metric), folder / PICTURE)
    return [folder / CSV, folder / SETTINGS, folder / PICTURE]


def results(search: Search, importances: Mapping[str, float]) -> str:
    rows = [["setting", "importance"], *([k, f"{v:.2f}"] for k, v in importances.items())]
    unknown = f"importance of settings: not known before {LEAST_FINISHED} trials finish"
    parts = [aligned(trials_table(search)), aligned(rows) if importances else unknown]
    best, told_best = search.best(), "no trial has finished with a score"
    if best is not None:
        values = ", ".join(f"{name}={_text(value)}" for name, value in best.asked.params.items())
        told_best = f"best: trial {best.asked.number}, score {best.score:.3f}, {values}"
    return "\n\n".join([*parts, told_best])


def trials_table(search: Search, precise: bool = False) -> Table:
    names = list(search.space.dimensions)
    rows: list[list[object]] = [["trial", "state", "score", "steps", *names, "run"]]
    for trial in search.trials:
        steps = 0 if trial.job is None else trial.job.progress.env_steps
        known = repr(trial.score) if precise else f"{trial.score or 0:.3f}"
        rows.append(
            [
                *(trial.asked.number, trial.state.value, "" if trial.score is None else known),
                steps if precise else f"{steps:,}",
                *(_text(trial.asked.params[name], precise) for name in names),
                trial.note if trial.job is None else trial.job.run.folder,
            ]
        )
    return rows


def _text(value: object, precise: bool = False) -> str:
    if isinstance(value, float) and not precise:
        return f"{value:.4g}"
    return value if isinstance(value, str) else shown(value)
