"""What a search has come to: its table, the best settings, what mattered, and a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from analysis.figures import METRIC_LABELS, Point, draw_search, save_figure
from analysis.run_data import Table, aligned, write_csv
from runs.folder import SETTINGS, write_json
from settings.values import shown
from sweeps.jobs import State
from sweeps.search import Search, Trial
from sweeps.space import Range
from sweeps.study import LEAST_FINISHED

CSV, PICTURE = "trials.csv", "search.png"


def write_results(search: Search, importances: Mapping[str, float]) -> list[Path]:
    """Write table, best settings and picture into the search's folder; return the files."""
    folder = search.plan.folder
    write_csv(folder / CSV, trials_table(search, precise=True))
    written = [folder / CSV]
    best = search.best()
    if best is None or best.job is None:
        return written
    write_json(folder / SETTINGS, search.space.settings(best.job.run.config))
    points = [
        Point(trial.number, trial.score, trial.state is State.PRUNED, trial.values)
        for trial in search.trials
        if trial.score is not None and trial.state in (State.DONE, State.PRUNED)
    ]
    is_log = {
        name: isinstance(each, Range) and each.log for name, each in search.space.dimensions.items()
    }
    metric = METRIC_LABELS.get(search.plan.metric, search.plan.metric)
    picture = draw_search(points, importances, is_log, metric)
    save_figure(picture, folder / PICTURE)
    return [*written, folder / SETTINGS, folder / PICTURE]


def told(search: Search, importances: Mapping[str, float]) -> str:
    """Return what a person is told in the end: all trials, what mattered, and the best."""
    parts = [aligned(trials_table(search))]
    if importances:
        rows = [[name, f"{share:.2f}"] for name, share in importances.items()]
        parts.append(aligned([["setting", "importance"], *rows]))
    else:
        parts.append(f"importance of settings: not known before {LEAST_FINISHED} trials finish")
    best = search.best()
    if best is None:
        return "\n\n".join([*parts, "no trial has finished with a score"])
    values = ", ".join(f"{name}={_text(value)}" for name, value in best.values.items())
    parts.append(f"best: trial {best.number}, score {best.score:.3f}, {values}")
    return "\n\n".join(parts)


def trials_table(search: Search, precise: bool = False) -> Table:
    """Return a line for each trial, its heading first.

    Args:
        search: Whose trials.
        precise: All digits and whole folders, for other programs.
    """
    names = list(search.space.dimensions)
    rows = [_row(trial, names, precise) for trial in search.trials]
    return [["trial", "state", "score", "steps", *names, "run"], *rows]


def _row(trial: Trial, names: Sequence[str], precise: bool) -> list[object]:
    number = repr if precise else "{:.3f}".format
    values = [_text(trial.values[name], precise) for name in names]
    run = trial.note if trial.job is None else str(trial.job.run.folder)
    steps = 0 if trial.job is None else trial.job.progress.env_steps
    shown_steps = steps if precise else f"{steps:,}"
    known = "" if trial.score is None else number(trial.score)
    return [trial.number, trial.state.value, known, shown_steps, *values, run]


def _text(value: object, precise: bool = False) -> str:
    if isinstance(value, float) and not precise:
        return f"{value:.4g}"
    return value if isinstance(value, str) else shown(value)
