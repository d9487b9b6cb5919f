"""The scoreboard: agents beside tasks that isolate memory, from finished run folders.

Of a task those runs count that were to have the number of steps most agents have there (the larger
number where two are equal), so that all agents of a task are compared at the same. Of an agent's
runs there, those count whose settings most seeds share, one of each seed.

The table, scoreboard.csv, has a line for each run that counted, with the settings that it read: so
runs of several machines stand together, and a score outlives its run folder.
"""

import json
import math
import textwrap
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from analysis.findings import Findings
from analysis.scoreboard_tasks import AGENTS, TASKS, AgentKind, Task
from plots.statistics import Estimate, estimate
from plots.style import COLOURS, INK, QUIET, RULE, new_figure, style
from plots.table import Table, markdown
from runs.folder import begun_with, is_finished
from runs.loggers import FILE
from runs.run_data import (
    AXES,
    checked_settings,
    read_columns,
    read_rows,
    read_settings_of,
    run_folders,
)
from settings import reading, settings_without_effect
from trainers.checkpoint import LAST, load_checkpoint
from utils.errors import UserError, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NOTE = (
    "Normalised score: 0 is chance, 1 the best there is, of each task as told below; in brackets "
    "the 95 % bootstrap interval over seeds, behind × their number. A run's score is the mean of "
    "its last five greedy evaluations, or of its last 100 training episodes where it was not "
    "evaluated. Steps/s are environment steps over the seconds of the run on whatever machine it "
    "had, least to most over tasks; so are the parameters that the optimiser moves."
)
KINDS = {"model": str, "env": str, "algorithm": str, "seed": int, "n_steps": int}
COLUMNS = ("run", "settings", "score", "steps_per_second", "n_trained")  # read back from a table
N_LAST = 5  # evaluations at the end of a run whose mean is its score
MOST_NAMED = 4  # run folders in a line
# Of the picture: inches, letters of a line, points between a panel and its title.
N_COLUMNS, WIDTH, ROW_HEIGHT = 5, 14.5, 3.3
LINE, PAD = 39, 36
LEFT, RIGHT = -0.3, 1.5  # of its axis; a worse score stands at the edge
FOOTNOTE = (
    "normalised score: 0 (dashed) is chance, 1 the best there is; mean over seeds, 95 % bootstrap "
    "intervals, a small dot is a run, × how many there are; a triangle: below the axis"
)

T = TypeVar("T")


class Result(NamedTuple):
    """A run's result.

    Attributes:
        score: In the metric of its task.
        steps_per_second: Environment steps over the seconds of the run; None where unknown.
        n_trained: Parameters that an optimiser moves; None where no checkpoint is left.
    """

    score: float
    steps_per_second: float | None
    n_trained: int | None


class Entry(NamedTuple):
    """A finished run of the ladder.

    Attributes:
        folder: Where it lies, or lay where it was written into a table.
        task, agent: Its row and column.
        settings: By name.
        result: From a table; None: it is to be measured.
    """

    folder: Path
    task: Task
    agent: AgentKind
    settings: Mapping[str, Any]
    result: Result | None = None

    @property
    def n_steps(self) -> int:
        """Environment steps that it was to have."""
        return self.settings["n_steps"]

    @property
    def place(self) -> tuple[str, str]:
        """Task and agent by name."""
        return self.task.name, self.agent.name

    @property
    def kind(self) -> dict[str, Any]:
        """The settings that it read and shares with runs of other seeds and machines."""
        told = {**self.settings, "model": self.agent.model}
        read = reading(told).read_by(told) - settings_without_effect() - {"seed", "device"}
        return {name: told.get(name) for name in sorted(read)}


class Cell(NamedTuple):
    """An agent in a task.

    Attributes:
        task, agent: Its row and column.
        empty: Why there is nothing, or "".
        runs: That count.
        results: Theirs.
        mean: Of the normalised scores; None where there is nothing.
    """

    task: Task
    agent: AgentKind
    empty: str = ""
    runs: Sequence[Entry] = ()
    results: Sequence[Result] = ()
    mean: Estimate | None = None

    @property
    def scores(self) -> np.ndarray:
        """Of its runs, in the metric of the task.  [n]"""
        return np.array([result.score for result in self.results])

    @property
    def steps_per_second(self) -> float | None:
        """Median over the runs of which it is known."""
        known = [r.steps_per_second for r in self.results if r.steps_per_second is not None]
        return float(np.median(known)) if known else None

    @property
    def n_trained(self) -> int | None:
        """Parameters that an optimiser moves, which are as many in all its runs."""
        return next((r.n_trained for r in self.results if r.n_trained is not None), None)


class LeftOut:
    """Why runs do not count: in lines, and in a word or two by task and agent."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.reasons: dict[tuple[str, str], str] = {}

    def add(self, why: str, folders: Sequence[Path]) -> None:
        """Note runs, if there are any."""
        if folders:
            names = [printable(str(folder)) for folder in folders[:MOST_NAMED]]
            more = len(folders) - len(names)
            named = ", ".join(names) + (f" and {more} more" if more else "")
            self.lines.append(f"left out, {why}: {named}")


def analyse(paths: Iterable[Path]) -> Findings:
    """Return the scoreboard of all finished runs in folders and tables.

    Raises:
        UserError: a folder is not a run's, a table not the scoreboard's, or no run counts.
    """
    left_out = LeftOut()
    cells = read_cells(paths, left_out)
    table = scores_table(cells)
    return Findings(_draw(cells), table, _numbers(cells), page=_page(table, left_out))


def read_cells(paths: Iterable[Path], left_out: LeftOut) -> list[Cell]:
    """Return every agent in every task, task by task.

    Args:
        paths: Run folders, folders of them, or tables of runs (.csv).
        left_out: Gets the runs that do not count.
    """
    runs = _counting_runs(paths, left_out)
    cells = []
    for task in TASKS:
        for agent in AGENTS:
            place = task.name, agent.name
            if own := runs.get(place):
                results = [run.result or _measured(run.folder, task.metric) for run in own]
                scores = np.array([result.score for result in results])
                mean = estimate(task.normalised(scores), "mean")
                cells.append(Cell(task, agent, "", own, results, mean))
            else:
                reason = agent.blind(task) or left_out.reasons.get(place, "not run")
                cells.append(Cell(task, agent, reason))
    return cells


def scores_table(cells: Sequence[Cell]) -> Table:
    """Return a line a task and a column an agent, then how fast agents were and what they train."""
    rows: list[Sequence[object]] = [("task, steps", *(agent.name for agent in AGENTS))]
    for task in TASKS:
        own = [cell for cell in cells if cell.task is task]
        steps = [f", {run.n_steps:,}" for cell in own for run in cell.runs]
        rows.append((task.name + "".join(steps[:1]), *map(_score_text, own)))
    columns = [[cell for cell in cells if cell.agent is agent] for agent in AGENTS]
    rows.append(("steps/s", *(_range([c.steps_per_second for c in own]) for own in columns)))
    trained = (_range([c.n_trained for c in own]) for own in columns)
    rows.append(("parameters trained", *trained))
    return rows


def score_of(columns: Mapping[str, np.ndarray], metric: str) -> float | None:
    """Return the mean of a run's last five greedy evaluations, else of its last 100 episodes.

    Args:
        columns: What the run has logged, by name; NaN where there was nothing to say.  [rows]
        metric: The last part of a column's name.
    """
    for name, n_last in (f"eval/{metric}", N_LAST), (f"rollout/{metric}", 1):
        values = columns.get(name, np.array([]))
        known = values[~np.isnan(values)]
        if len(known):
            return float(known[-n_last:].mean())
    return None


def trained_parameters(folder: Path) -> int | None:
    """Return how many numbers a run's optimisers move; None where it kept no checkpoint.

    Adam keeps moments of each of them, and of nothing that is frozen or a copy.
    """
    path = folder / LAST
    return _n_moments(load_checkpoint(path).get("learner")) if path.is_file() else None


def _score_text(cell: Cell) -> str:
    if cell.mean is None:
        return cell.empty
    value, low, high = cell.mean
    interval = "" if low is None else f" [{low:.2f}, {high:.2f}]"
    return f"{value:.2f}{interval} ×{len(cell.scores)}"


def _range(values: Iterable[float | None]) -> str:
    known = [f"{value:,.0f}" for value in sorted(v for v in values if v is not None)]
    return " to ".join(dict.fromkeys([known[0], known[-1]])) if known else ""


def _page(table: Table, left_out: LeftOut) -> str:
    """Return the table, what it means, and what it leaves out, as Markdown."""
    tasks = [f"- **{task.name}**: {task.memory}. {task.source}." for task in TASKS]
    parts = [markdown(table), NOTE + "\n", "\n".join(tasks) + "\n"]
    if left_out.lines:
        parts.append("\n".join(f"- {line}" for line in left_out.lines) + "\n")
    return "\n".join(parts)


def _numbers(cells: Iterable[Cell]) -> Table:
    """Return a line for each run that counts; `_kept` reads them back."""
    lines = [
        _line(cell.task, cell.agent, run, result)
        for cell in cells
        for run, result in zip(cell.runs, cell.results, strict=True)
    ]
    return [list(lines[0]), *(list(line.values()) for line in lines)]


def _line(task: Task, agent: AgentKind, run: Entry, result: Result) -> dict[str, object]:
    speed, n_trained = result.steps_per_second, result.n_trained
    return {
        "task": task.name,
        "agent": agent.name,
        "seed": run.settings["seed"],
        "n_steps": run.n_steps,
        "score": repr(float(result.score)),  # in full, so that a table read again says the same
        "normalised": f"{task.normalised(np.array(result.score)):.4g}",
        "metric": task.metric,
        "chance": task.chance,
        "best": task.best,
        "steps_per_second": "" if speed is None else f"{speed:.1f}",
        "n_trained": "" if n_trained is None else n_trained,
        "run": printable(str(run.folder)),
        "settings": json.dumps({"seed": run.settings["seed"], **run.kind}),
    }


def _counting_runs(paths: Iterable[Path], left_out: LeftOut) -> dict[tuple[str, str], list[Entry]]:
    """Return the runs that count by task and agent."""
    entries = _at_equal_steps(_entries(paths, left_out), left_out)
    places = _grouped(entries, lambda entry: entry.place)
    chosen = {place: _of_one_kind(own, left_out) for place, own in places.items()}
    if not any(chosen.values()):
        told = "; ".join(left_out.lines)
        raise UserError(f"{told}. No run is left to show; configs/Scoreboard trains some")
    return chosen


def _entries(paths: Iterable[Path], left_out: LeftOut) -> list[Entry]:
    """Return the finished runs of the ladder."""
    entries: list[Entry] = []
    unfinished: list[Path] = []
    pretrained: list[Path] = []
    foreign: list[Path] = []
    for folder, settings, result in _found(paths):
        task = next((task for task in TASKS if task.plays(settings)), None)
        agent = next((agent for agent in AGENTS if agent.is_of(settings)), None)
        if task is None or agent is None or agent.blind(task):
            foreign.append(folder)
        elif result is None and not is_finished(folder):
            unfinished.append(folder)
            left_out.reasons[task.name, agent.name] = "not finished"
        elif result is None and begun_with(folder) is not None:
            pretrained.append(folder)
        else:
            entries.append(Entry(folder, task, agent, settings, result))
    left_out.add("not finished", unfinished)
    left_out.add("begun with another run's parameters", pretrained)
    left_out.add("of no task and agent of the ladder", foreign)
    return entries


def _found(paths: Iterable[Path]) -> Iterator[tuple[Path, dict[str, Any], Result | None]]:
    """Yield folder, settings and known result of every run: of folders, and then of tables."""
    paths = list(paths)
    tables = [path for path in paths if path.suffix == ".csv" and path.is_file()]
    for folder in run_folders(*(path for path in paths if path not in tables)):
        yield folder, read_settings_of(folder, **KINDS), None
    for table in tables:
        yield from _kept(table)


def _kept(table: Path) -> Iterator[tuple[Path, dict[str, Any], Result]]:
    """Yield folder, settings and result of the runs in a scoreboard.csv."""
    for number, row in enumerate(read_rows(table, "the scoreboard"), 2):
        where = f"{table}, line {number}"
        missing = [name for name in COLUMNS if name not in row]
        if missing:
            raise UserError(f"{table}: not a table of the scoreboard (no column {missing[0]})")
        try:
            settings = json.loads(row["settings"])
            speed, n_trained = row["steps_per_second"], row["n_trained"]
            result = Result(
                float(row["score"]),
                float(speed) if speed else None,
                int(n_trained) if n_trained else None,
            )
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where}: not a run of the scoreboard ({error})") from None
        if not isinstance(settings, dict) or not math.isfinite(result.score):
            raise UserError(f"{where}: settings must be an object and score a number")
        yield Path(row["run"]), checked_settings(settings, where, **KINDS), result


def _at_equal_steps(entries: Sequence[Entry], left_out: LeftOut) -> list[Entry]:
    """Return the entries with as many steps as most agents of their task have."""
    kept: list[Entry] = []
    for task, own in _grouped(entries, lambda entry: entry.task.name).items():
        by_steps = _grouped(own, lambda entry: entry.n_steps)
        n_agents = {n: len({entry.agent.name for entry in by_steps[n]}) for n in by_steps}
        n_steps = max(by_steps, key=lambda n: (n_agents[n], n))
        kept += by_steps.pop(n_steps)
        others = [entry for others in by_steps.values() for entry in others]
        left_out.reasons |= {entry.place: "other number of steps" for entry in others}
        why = f"{task} is compared at {n_steps:,} steps"
        left_out.add(why, [entry.folder for entry in others])
    return kept


def _of_one_kind(entries: Sequence[Entry], left_out: LeftOut) -> list[Entry]:
    """Return the runs whose settings most seeds share, one of each seed; none where two tie."""
    kinds = _grouped(entries, lambda entry: json.dumps(entry.kind))
    seeds = {kind: _one_a_seed(own) for kind, own in kinds.items()}
    most = max(map(len, seeds.values()))
    largest = [own for own in seeds.values() if len(own) == most]
    place = " by ".join(entries[0].place)
    if len(largest) > 1:
        left_out.reasons[entries[0].place] = "settings differ"
        names = _differing([own[0].kind for own in largest])
        why = f"{place}: these differ in more than the seed ({names}), name those of one kind"
        left_out.add(why, [entry.folder for entry in entries])
        return []
    chosen = {entry.folder for entry in largest[0]}
    kind = kinds[json.dumps(largest[0][0].kind)]
    others = [entry for entry in entries if entry.folder not in chosen]
    repeated = [entry.folder for entry in others if entry in kind]
    left_out.add(f"{place}: others have the same settings and seed", repeated)
    different = [entry for entry in others if entry not in kind]
    names = _differing([largest[0][0].kind, *(entry.kind for entry in different)])
    why = f"{place}: more seeds were run with other settings ({names})"
    left_out.add(why, [entry.folder for entry in different])
    return largest[0]


def _one_a_seed(entries: Sequence[Entry]) -> list[Entry]:
    """Return one run of each seed: of folders before tables, the first by its folder's name."""
    ordered = sorted(entries, key=_order)
    return [own[0] for own in _grouped(ordered, lambda entry: entry.settings["seed"]).values()]


def _order(entry: Entry) -> tuple[int, bool, str]:
    return entry.settings["seed"], entry.result is not None, str(entry.folder)


def _differing(kinds: Sequence[Mapping[str, Any]]) -> str:
    names = dict.fromkeys(name for kind in kinds for name in kind)
    return ", ".join(n for n in names if any(kind.get(n) != kinds[0].get(n) for kind in kinds))


def _grouped(values: Iterable[T], key: Callable[[T], Hashable]) -> dict[Any, list[T]]:
    found: dict[Any, list[T]] = {}
    for value in values:
        found.setdefault(key(value), []).append(value)
    return found


def _measured(folder: Path, metric: str) -> Result:
    """Return the result of a finished run."""
    columns = read_columns(folder)
    missing = [name for name in AXES.values() if name not in columns]
    if missing:
        raise UserError(f"{folder / FILE}: no column '{missing[0]}'. Name other runs")
    score = score_of(columns, metric)
    if score is None:
        raise UserError(f"{folder}: finished, and rollout/{metric} has no value. Name other runs")
    n_steps, seconds = (columns[name][-1] for name in AXES.values())
    return Result(score, n_steps / seconds, trained_parameters(folder))


def _n_moments(state: Any) -> int:
    if not isinstance(state, Mapping):
        return 0
    own = state["exp_avg"].numel() if "exp_avg" in state else 0
    return own + sum(map(_n_moments, state.values()))


def _draw(cells: Sequence[Cell]) -> "Figure":
    """Return a panel for each task, agents below one another."""
    tasks = list(dict.fromkeys(cell.task for cell in cells))
    n_rows = -(-len(tasks) // N_COLUMNS)
    with style():
        figure = new_figure(WIDTH, ROW_HEIGHT * n_rows + 0.3)
        panels = figure.subplots(n_rows, N_COLUMNS, squeeze=False, sharex=True, sharey=True)
        for axes in panels.flat[len(tasks) :]:
            axes.set_visible(False)
        for axes, task in zip(panels.flat, tasks, strict=False):
            _draw_task(axes, [cell for cell in cells if cell.task is task])
        figure.supxlabel(FOOTNOTE, x=0.01, ha="left", size=8, color=QUIET)
    return figure


def _draw_task(axes: "Axes", cells: Sequence[Cell]) -> None:
    for position, cell in enumerate(cells):
        if cell.mean is None:
            axes.text(0.5, position, cell.empty, ha="center", va="center", size=8, color=QUIET)
        else:
            _draw_agent(axes, position, cell)
    task = cells[0].task
    axes.axvline(0, color=QUIET, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    axes.axvline(1, color=QUIET, linewidth=0.9, zorder=1)
    axes.axvspan(0, 1, color=RULE, alpha=0.4, linewidth=0, zorder=0)
    axes.set_title(task.name, pad=PAD)
    told = textwrap.fill(task.memory.partition(";")[0], LINE)
    axes.annotate(
        *(told, (0, 1)),
        xycoords="axes fraction",
        xytext=(0, PAD - 5),
        textcoords="offset points",
        va="top",
        size=8,
        color=QUIET,
    )
    axes.set_yticks(range(len(cells)), [cell.agent.name for cell in cells], color=INK)
    axes.set_ylim(len(cells) - 0.5, -0.6)
    axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.set_xlim(LEFT, RIGHT)
    axes.tick_params(labelbottom=True)
    axes.spines["left"].set_visible(False)


def _draw_agent(axes: "Axes", position: int, cell: Cell) -> None:
    """Draw the mean of a cell, its interval, and every run."""
    assert cell.mean is not None, "an empty cell has nothing to draw"
    colour = COLOURS[position % len(COLOURS)]
    value, low, high = cell.mean
    if low is not None:
        ends = np.clip([low, high], LEFT, RIGHT)
        axes.plot(ends, [position] * 2, color=colour, alpha=0.35, linewidth=6, zorder=2)
    scores = np.clip(cell.task.normalised(np.array(cell.scores)), LEFT, RIGHT)
    axes.scatter(scores, [position] * len(scores), s=9, color=colour, zorder=3)
    marker = "o" if value >= LEFT else "<"
    at = max(float(value), LEFT)
    (mean,) = axes.plot(at, position, marker, color=colour, markersize=7.5, zorder=4)
    mean.set(markeredgecolor="white", clip_on=False)
    axes.text(1.29, position, f"{value:.2f}", ha="right", va="center", size=8.5, color=INK)
    axes.text(RIGHT, position, f"×{len(cell.scores)}", ha="right", va="center", size=7, color=QUIET)
