"""The scoreboard: agents beside tasks that isolate memory, from finished run folders.

All agents of a task are compared at the same number of steps: the one most agents have there (the
larger where two are equal). Of an agent's runs there, those with the settings of most seeds count,
one of each seed. The table, scoreboard.csv, has a line for each run that counted, with the settings
that it read: so runs of several machines stand together, and a score outlives its run folder. Tasks
and agents stand in scoreboard.json; configs/Scoreboard trains them. A task whose runs have too few
steps to tell anything stands in the appendix, without its scores.
"""

import itertools
import json
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from analysis import run_data
from analysis.figures import DARK, INK, MAP, QUIET, AnalysisResult, new_figure, style
from analysis.statistics import Estimate, difference, difference_over_tasks, estimate, verdict
from models import AGENTS as MODELS
from trainers.checkpoint import LAST, load_checkpoint
from utils.errors import UserError, escape
from utils.loggers import FILE
from utils.run_folder import init_checkpoint, is_finished
from utils.settings import Values, settings_index, settings_without_effect

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NOTE = (
    "Normalised score: 0 is chance, 1 the best there is, of each task as told below; in brackets "
    "the 95 % bootstrap interval over seeds, behind × their number. A run's score is the mean of "
    "its last five greedy evaluations, or of its last 100 training episodes where it was not "
    "evaluated. Minutes are the quickest and the slowest agent's, on whatever machine their runs "
    "had; parameters are those that the optimiser moves, least to most over tasks."
)
NOTE_OF_TWINS = (
    "A twin shows at every step what is to be remembered (observability=full). Gap: twin minus "
    "task, of the same agent; lost for want of memory. Bias: an agent minus the one without "
    "memory, both on the twin; the price of a memory where none is needed."
)
KINDS = {"model": str, "env": str, "algorithm": str, "seed": int, "n_steps": int}
COLUMNS = ("run", "settings", "score", "steps_per_second", "n_trained")  # read back from a table
N_LAST = 5  # evaluations at the end of a run; their mean is its score
MOST_NAMED = 4  # run folders in a line
# Of the picture, which can be read at half a page's width: inches, and scores.
LABELS, CELL, LINE, ENDS = 1.75, 0.47, 0.42, 1.35
LETTERS = 15  # of the note, an inch
BESIDE, COUNTS = "LSTM", 0.05  # in the summary; the difference was declared before the runs
SOLVED = 0.9  # from which on a dot is full
FOOTNOTE = (
    "mean over seeds: 0 is chance, 1 the best there is; white: not run; a dot is a seed, full "
    "from 0.9 on"
)
NOTE_OF_SUMMARY = (
    "Means over the tasks that an agent and the LSTM were both trained in, with two seeds each at "
    "least. The interval draws tasks and seeds anew. A difference counts from 0.05 on: *ahead* and "
    "*behind* if the whole interval is beyond it, *comparable* if within it, else *inconclusive*."
)
NOTE_OF_APPENDIX = (
    "Not trained to the end: these runs have fewer steps than their task takes, so that their "
    "scores tell nothing about a memory. Hours are those of the steps to take at the run's speed."
)


class PublishedScores(NamedTuple):
    """Published scores of a task: those of agents, in its metric."""

    scores: Mapping[str, float]
    n_steps: int
    source: str


@dataclass(frozen=True, eq=False)
class LadderTask:
    """A task of the ladder.

    Attributes:
        settings: Those that make a run one of this task.
        metric: Of a score, without "eval/" and "rollout/".
        chance, best: Values of that metric, the normalised scores 0 and 1.
        memory: The things to be remembered, and for how long.
        source: The policies of chance and best, and the origin of the numbers.
        least: Environment steps; runs of fewer stand in the appendix.
    """

    name: str
    settings: Mapping[str, object]
    metric: str
    chance: float
    best: float
    memory: str
    source: str
    least: int = 0
    published: Sequence[PublishedScores] = ()

    @property
    def env(self) -> str:
        return str(self.settings["env"])

    @property
    def twin(self) -> "LadderTask":
        full = {**self.settings, "observability": "full"}
        return replace(self, name=f"{self.name}, twin", settings=full)

    def plays(self, settings: Values) -> bool:
        return all(settings.get(key) == value for key, value in self.settings.items())

    def normalised(self, scores: np.ndarray) -> np.ndarray:
        return (scores - self.chance) / (self.best - self.chance)


class AgentKind(NamedTuple):
    """A column of the table.

    Attributes:
        settings: Those that make a run this agent's; the model by the name agents are listed under.
        sees: The beginning of the environments that it can see.
    """

    name: str
    settings: Mapping[str, object]
    sees: str = ""

    @property
    def model(self) -> str:
        return str(self.settings["model"])

    def blind(self, task: LadderTask) -> str:
        return "" if task.env.startswith(self.sees) else f"{self.sees.strip('-')} only"

    def is_of(self, settings: Values) -> bool:
        name = settings.get("model")
        if not isinstance(name, str):
            return False
        own = {**settings, "model": MODELS.known_as(name)}
        return all(own.get(key) == value for key, value in self.settings.items())


def _ladder(file: Path) -> tuple[list[LadderTask], list[AgentKind]]:
    read = json.loads(file.read_text(encoding="utf-8"))
    tasks: dict[str, LadderTask] = {}
    for row in read["tasks"]:
        settings, like = row.pop("settings"), row.pop("like", None)
        row["published"] = [PublishedScores(**each) for each in row.get("published", [])]
        if like is None:
            task = LadderTask(settings={"observability": "partial", **settings}, **row)
        else:  # another task's chance, best and memory, under other settings
            task = replace(tasks[like], settings={**tasks[like].settings, **settings}, **row)
        tasks[task.name] = task
    return [*tasks.values()], [AgentKind(**row) for row in read["agents"]]


TASKS, AGENTS = _ladder(Path(__file__).with_suffix(".json"))
TWINS = {task: task.twin for task in TASKS}


def task_of(settings: Values) -> LadderTask | None:
    """Return the task that a run plays, the most closely described of several."""
    played = [task for task in (*TASKS, *TWINS.values()) if task.plays(settings)]
    return max(played, key=lambda task: len(task.settings), default=None)


class RunScore(NamedTuple):
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
    """A finished run of the ladder; its result is from a table, or None: to be measured."""

    folder: Path
    task: LadderTask
    agent: AgentKind
    settings: Values
    result: RunScore | None = None

    @property
    def n_steps(self) -> int:
        return self.settings["n_steps"]

    @property
    def place(self) -> tuple[str, str]:
        return self.task.name, self.agent.name

    @property
    def kind(self) -> dict[str, Any]:
        """The settings that it read and shares with runs of other seeds and machines."""
        # A published name and its agent are one, and settings without a reader change nothing.
        told = {**self.settings, "model": self.agent.model}
        read = settings_index(told).read_by(told) - settings_without_effect() - {"seed", "device"}
        return {name: told.get(name) for name in sorted(read)}


class ScoreCell(NamedTuple):
    """An agent in a task.

    Attributes:
        empty: The reason for an empty cell, or "".
        runs, results: Those that count.
        mean: Of the normalised scores; None in an empty cell.
    """

    task: LadderTask
    agent: AgentKind
    empty: str = ""
    runs: Sequence[Entry] = ()
    results: Sequence[RunScore] = ()
    mean: Estimate | None = None

    @property
    def scores(self) -> np.ndarray:
        return np.array([result.score for result in self.results])

    @property
    def speed(self) -> float | None:
        known = _known(result.steps_per_second for result in self.results)
        return float(np.median(known)) if known else None


class LadderRow(NamedTuple):
    """A task that was run, with its steps and a cell of each agent."""

    task: LadderTask
    n_steps: int
    cells: Sequence[ScoreCell]


class LeftOut(NamedTuple):
    """A run that does not count.

    `why` may end in a detail in brackets, which an empty cell leaves out. `place` is None where the
    run belongs to no cell.
    """

    why: str
    folder: Path
    place: tuple[str, str] | None = None


def told_of(left_out: Iterable[LeftOut]) -> str:
    """Return one line: how many runs are left out, why, and the first of them."""
    parts = []
    for why, runs in run_data.grouped(left_out, lambda run: run.why).items():
        named = ", ".join(escape(str(run.folder)) for run in runs[:MOST_NAMED])
        more = ", ..." if len(runs) > MOST_NAMED else ""
        parts.append(f"{why}: {len(runs)} ({named}{more})")
    return f"left out: {'; '.join(parts)}"


def analyse(paths: Iterable[Path]) -> AnalysisResult:
    """Return the scoreboard of all finished runs in folders and tables.

    Raises:
        UserError: a folder is not a run's, a table not the scoreboard's, or no run counts.
    """
    left_out: list[LeftOut] = []
    cells = read_cells(paths, left_out)
    table = scores_table(cells)
    run = dict.fromkeys(cell.task for cell in cells if cell.runs)
    tasks = [f"- **{task.name}**: {task.memory}. {task.source}." for task in run if task in TASKS]
    notes = [NOTE, *([NOTE_OF_TWINS] if any(task not in TASKS for task in run) else [])]
    parts = [run_data.markdown(table), *(f"{note}\n" for note in notes), "\n".join(tasks) + "\n"]
    if len(summary := summary_table(cells)) > 1:
        parts[1:1] = [run_data.markdown(summary), f"{NOTE_OF_SUMMARY}\n"]
    if len(short := appendix_table(cells)) > 1:
        parts[1:1] = [run_data.markdown(short), f"{NOTE_OF_APPENDIX}\n"]
    if left_out:
        parts.append(f"{told_of(left_out)}\n")
    return AnalysisResult(_draw(cells), table, _numbers(cells), page="\n".join(parts))


def read_cells(paths: Iterable[Path], left_out: list[LeftOut]) -> list[ScoreCell]:
    """Return every agent in every task, task by task, and in every twin that was trained in.

    Args:
        paths: Run folders, folders of them, or tables of runs (.csv).
        left_out: Gets the runs that do not count.
    """
    # First one number of steps for a whole task, then one kind of settings in each cell.
    entries = _at_equal_steps(_entries(paths, left_out), left_out)
    places = run_data.grouped(entries, lambda entry: entry.place)
    runs = {place: _of_one_kind(own, left_out) for place, own in places.items()}
    if not any(runs.values()):
        told = told_of(left_out)
        raise UserError(f"{told}. No run is left to show; configs/Scoreboard trains some")
    reasons = {run.place: run.why.partition(" (")[0] for run in left_out}
    cells = []
    twins = {run.task for own in runs.values() for run in own}.difference(TASKS)
    for task in (*TASKS, *(twin for twin in TWINS.values() if twin in twins)):
        for agent in AGENTS:
            place = task.name, agent.name
            if own := runs.get(place):
                results = [run.result or _measured(run.folder, task.metric) for run in own]
                scores = np.array([result.score for result in results])
                mean = estimate(task.normalised(scores), "mean")
                cells.append(ScoreCell(task, agent, "", own, results, mean))
            else:
                reason = agent.blind(task) or reasons.get(place, "not run")
                cells.append(ScoreCell(task, agent, reason))
    return cells


def scores_table(cells: Sequence[ScoreCell]) -> run_data.Table:
    """Return the tasks that were trained to the end, by agents that were, each above its twin."""
    heading = ("task, steps", *(agent.name for agent in AGENTS), "minutes a run", "published")
    rows: list[Sequence[object]] = [heading]
    board = [row for row in _rows(cells) if row.n_steps >= row.task.least]
    for task, n_steps, own in board:
        minutes = _range([n_steps / speed / 60 for speed in _known(cell.speed for cell in own)])
        scores = map(_score_text, own)
        rows.append((f"{task.name}, {n_steps:,}", *scores, minutes, _published_text(task)))
        on_twin = [cell for cell in cells if cell.task is TWINS[task]]
        if on_twin:
            gaps = itertools.starmap(_difference, zip(on_twin, own, strict=True))
            biases = (_difference(cell, on_twin[0]) for cell in on_twin[1:])
            steps = next(run.n_steps for cell in on_twin for run in cell.runs)
            name = f"{on_twin[0].task.name}, {steps:,}"
            rows.append((name, *map(_score_text, on_twin), "", ""))
            rows.append((f"{task.name}, gap", *gaps, "", ""))
            rows.append((f"{task.name}, bias", "", *biases, "", ""))
    trained = []
    for agent in AGENTS:
        own = [cell for cell in cells if cell.agent is agent and cell.task in TASKS]
        results = [result for cell in own for result in cell.results]
        trained.append(_range(_known(result.n_trained for result in results)))
    rows.append(("parameters trained", *trained, "", ""))
    tasks = {task for row in board for task in (row.task, TWINS[row.task])}
    shown = {cell.agent.name for cell in cells if cell.runs and cell.task in tasks}
    told = (any(row[column] for row in rows[1:]) for column in (-2, -1))
    columns = [True, *(agent.name in shown for agent in AGENTS), *told]
    return [tuple(itertools.compress(row, columns)) for row in rows]


def summary_table(cells: Sequence[ScoreCell]) -> run_data.Table:
    """Return each agent beside the LSTM, over all tasks that both were trained in."""
    rows: list[Sequence[object]] = [
        ("agent", "tasks", "mean", f"{BESIDE} there", "difference", "verdict")
    ]
    board = [row for row in _rows(cells) if row.n_steps >= row.task.least]
    beside = [agent.name for agent in AGENTS].index(BESIDE)
    for n, agent in enumerate(AGENTS):
        pairs = [
            tuple(row.task.normalised(row.cells[k].scores) for k in (n, beside))
            for row in board
            if min(len(row.cells[k].runs) for k in (n, beside)) > 1
        ]
        if agent.name != BESIDE and len(pairs) > 1:
            ours, theirs = zip(*pairs, strict=True)
            found = difference_over_tasks(ours, theirs)
            means = (f"{np.mean([runs.mean() for runs in each]):.2f}" for each in (ours, theirs))
            told = _estimate_text(found), verdict(found, COUNTS)
            rows.append((agent.name, len(pairs), *means, *told))
    return rows


def appendix_table(cells: Sequence[ScoreCell]) -> run_data.Table:
    """Return the tasks with too short runs to tell anything, and the hours of whole ones."""
    heading = "task", "steps", "steps to take", "hours a run", "published"
    rows: list[Sequence[object]] = [heading]
    for task, n_steps, own in _rows(cells):
        if n_steps < task.least:
            speeds = {cell.agent.name: cell.speed for cell in own}
            hours = [f"{name} {task.least / n / 3600:.1f}" for name, n in speeds.items() if n]
            told = "; ".join(hours), _published_text(task)
            rows.append((task.name, f"{n_steps:,}", f"{task.least:,}", *told))
    return rows


def score_of(columns: Mapping[str, np.ndarray], metric: str) -> float | None:
    """Return the mean of a run's last five greedy evaluations, else of its last 100 episodes.

    `columns` are all that the run has logged, NaN where a value was unknown [rows]; `metric` is the
    last part of a column's name.
    """
    for name, n_last in (f"eval/{metric}", N_LAST), (f"rollout/{metric}", 1):
        values = columns.get(name, np.array([]))
        known = values[~np.isnan(values)]
        if len(known):
            return float(known[-n_last:].mean())
    return None


def trained_parameters(folder: Path) -> int | None:
    """Return how many numbers optimisers move, None without a checkpoint."""
    path = folder / LAST
    return _n_moments(load_checkpoint(path).get("learner")) if path.is_file() else None


def _rows(cells: Sequence[ScoreCell]) -> list[LadderRow]:
    rows = []
    for task, own in run_data.grouped(cells, lambda cell: cell.task).items():
        steps = [run.n_steps for cell in own for run in cell.runs]
        if task in TWINS and steps:
            rows.append(LadderRow(task, steps[0], own))
    return rows


def _published_text(task: LadderTask) -> str:
    told = []
    for scores, n_steps, source in task.published:
        own = (f"{name} {task.normalised(np.array(x)):.2f}" for name, x in scores.items())
        told.append(f"{', '.join(own)} at {n_steps:,} ({source})")
    return "; ".join(told)


def _score_text(cell: ScoreCell) -> str:
    if cell.mean is None:
        return cell.empty
    return f"{_estimate_text(cell.mean)} ×{len(cell.scores)}"


def _difference(cell: ScoreCell, other: ScoreCell) -> str:
    if cell.mean is None or other.mean is None:
        return ""
    kinds = [each.runs[0].kind | {"observability": None} for each in (cell, other)]
    if cell.agent is other.agent and kinds[0] != kinds[1]:
        return f"{', '.join(run_data.differing_names(*kinds))} differ"
    scores = [each.task.normalised(each.scores) for each in (cell, other)]
    return _estimate_text(difference(*scores))


def _estimate_text(found: Estimate) -> str:
    value, low, high = found
    text = f"{value:.2f}"
    if low is None or {f"{low:.2f}", f"{high:.2f}"} == {text}:
        return text
    return f"{text} [{low:.2f}, {high:.2f}]"


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _range(values: Sequence[float]) -> str:
    known = [f"{value:,.0f}" for value in sorted(values)]
    return " to ".join(dict.fromkeys([known[0], known[-1]])) if known else ""


def _numbers(cells: Iterable[ScoreCell]) -> run_data.Table:
    lines = [
        {
            "task": cell.task.name,
            "agent": cell.agent.name,
            "seed": run.settings["seed"],
            "n_steps": run.n_steps,
            "score": repr(float(result.score)),  # in full, to be read again
            "normalised": f"{cell.task.normalised(np.array(result.score)):.4g}",
            "metric": cell.task.metric,
            "chance": cell.task.chance,
            "best": cell.task.best,
            "steps_per_second": _text(result.steps_per_second, ".1f"),
            "n_trained": _text(result.n_trained, "d"),
            "run": escape(str(run.folder)),
            "settings": json.dumps({"seed": run.settings["seed"], **run.kind}),
        }
        for cell in cells
        for run, result in zip(cell.runs, cell.results, strict=True)
    ]
    return [list(lines[0]), *(list(line.values()) for line in lines)]


def _text(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _entries(paths: Iterable[Path], left_out: list[LeftOut]) -> list[Entry]:
    paths, entries = list(paths), []
    tables = [path for path in paths if path.suffix == ".csv" and path.is_file()]
    found: list[tuple[Path, dict[str, Any], RunScore | None]] = [
        (folder, run_data.read_settings_of(folder, **KINDS), None)
        for folder in run_data.run_folders(*(path for path in paths if path not in tables))
    ]
    for table in tables:
        found += _kept(table)
    for folder, settings, result in found:
        task = task_of(settings)
        agent = next((agent for agent in AGENTS if agent.is_of(settings)), None)
        if task is None or agent is None or agent.blind(task):
            left_out.append(LeftOut("of no task and agent of the ladder", folder))
            continue
        entry = Entry(folder, task, agent, settings, result)
        if why := _why_not(entry):
            left_out.append(LeftOut(why, folder, entry.place))
        else:
            entries.append(entry)
    return entries


def _why_not(entry: Entry) -> str:
    """Return why a run does not count, "" where it does."""
    if entry.result is not None:
        return ""
    if not is_finished(entry.folder):
        return "not finished"
    if init_checkpoint(entry.folder) is not None:
        return "begun with another run's parameters"
    columns = run_data.read_columns(entry.folder)
    return "no episode ended" if score_of(columns, entry.task.metric) is None else ""


def _kept(table: Path) -> Iterator[tuple[Path, dict[str, Any], RunScore]]:
    for number, row in enumerate(run_data.read_rows(table, "the scoreboard"), 2):
        where = f"{table}, line {number}"
        missing = [name for name in COLUMNS if name not in row]
        if missing:
            raise UserError(f"{table}: not a table of the scoreboard (no column {missing[0]})")
        try:
            settings = json.loads(row["settings"])
            speed, n_trained = row["steps_per_second"], row["n_trained"]
            known = float(speed) if speed else None, int(n_trained) if n_trained else None
            result = RunScore(float(row["score"]), *known)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where}: not a run of the scoreboard ({error})") from None
        if not isinstance(settings, dict) or not math.isfinite(result.score):
            raise UserError(f"{where}: settings must be an object and score a number")
        yield Path(row["run"]), run_data.checked_settings(settings, where, **KINDS), result


def _at_equal_steps(entries: Sequence[Entry], left_out: list[LeftOut]) -> list[Entry]:
    kept: list[Entry] = []
    for own in run_data.grouped(entries, lambda entry: entry.task.name).values():
        by_steps = run_data.grouped(own, lambda entry: entry.n_steps)
        # Agents are counted, not runs: many seeds of one agent are no majority.
        n_agents = {n: len({entry.agent.name for entry in by_steps[n]}) for n in by_steps}
        least = own[0].task.least
        n_steps = max(by_steps, key=lambda n: (n >= least, n_agents[n], n))
        kept += by_steps.pop(n_steps)
        others = itertools.chain.from_iterable(by_steps.values())
        left_out += (LeftOut("other number of steps", each.folder, each.place) for each in others)
    return kept


def _of_one_kind(entries: Sequence[Entry], left_out: list[LeftOut]) -> list[Entry]:
    """Return the runs of the settings that most seeds share, one of each seed; none at a tie."""
    # Of one seed's runs that of a folder counts before that of a table, the first by its name.
    ordered = sorted(
        entries, key=lambda e: (e.settings["seed"], e.result is not None, str(e.folder))
    )
    by_kind = run_data.grouped(ordered, lambda entry: json.dumps(entry.kind)).values()
    by_seed = [run_data.grouped(own, lambda entry: entry.settings["seed"]) for own in by_kind]
    most = max(map(len, by_seed))
    chosen, *equal = [[own[0] for own in seeds.values()] for seeds in by_seed if len(seeds) == most]
    if equal:
        chosen = []
    # Everything left out is told with its reason, so that no run vanishes unseen.
    folders = {entry.folder for entry in chosen}
    names = ", ".join(run_data.differing_names(*(entry.kind for entry in entries)))
    for entry in entries:
        if entry.folder not in folders:
            is_repeated = chosen and entry.kind == chosen[0].kind
            why = "same settings and seed" if is_repeated else f"settings differ ({names})"
            left_out.append(LeftOut(why, entry.folder, entry.place))
    return chosen


def _measured(folder: Path, metric: str) -> RunScore:
    columns = run_data.read_columns(folder)
    missing = [name for name in run_data.AXES.values() if name not in columns]
    if missing:
        raise UserError(f"{folder / FILE}: no column '{missing[0]}'. Name other runs")
    score = score_of(columns, metric)
    if score is None or not math.isfinite(score):
        raise UserError(f"{folder}: rollout/{metric} is {score}. Name other runs")
    n_steps, seconds = (columns[name][-1] for name in run_data.AXES.values())
    return RunScore(score, n_steps / seconds, trained_parameters(folder))


def _n_moments(state: Any) -> int:
    if not isinstance(state, Mapping):
        return 0
    own = 0
    if "step" in state:  # what an optimiser keeps of a parameter: moments have as many numbers
        own = max(each.numel() for each in state.values())
    return own + sum(map(_n_moments, state.values()))


def _draw(cells: Sequence[ScoreCell]) -> "Figure":
    rows = [row for row in _rows(cells) if row.n_steps >= row.task.least]
    agents = [agent for n, agent in enumerate(AGENTS) if any(row.cells[n].runs for row in rows)]
    with style():
        figure = new_figure(LABELS + CELL * len(agents), ENDS + LINE * len(rows))
        axes = figure.subplots()
        means = np.full((len(rows), len(agents)), np.nan)
        for y, row in enumerate(rows):
            for x, cell in enumerate(cell for cell in row.cells if cell.agent in agents):
                if cell.mean is not None:
                    means[y, x] = cell.mean.value
                    _write_score(axes, x, y, cell, float(means[y, x]))
        if means.size:
            axes.imshow(means, cmap=MAP, vmin=0, vmax=1, aspect="auto")
        names = [agent.name for agent in agents]
        axes.set_xticks(range(len(names)), names, rotation=40, ha="left", color=INK)
        axes.set_yticks(
            range(len(rows)), [f"{task.name}\n{n:,} steps" for task, n, _ in rows], color=INK
        )
        axes.tick_params(top=False, labeltop=True, bottom=False, labelbottom=False)
        axes.spines[:].set_visible(False)
        note = textwrap.fill(FOOTNOTE, int(LETTERS * figure.get_figwidth()))
        figure.supxlabel(note, x=0.01, ha="left", size=8, color=QUIET)
    return figure


def _write_score(axes: "Axes", x: int, y: int, cell: ScoreCell, mean: float) -> None:
    colour = "white" if mean < DARK else "black"
    axes.text(x, y - 0.12, f"{mean:.2f}", ha="center", va="center", color=colour, size=10)
    scores = sorted(cell.task.normalised(cell.scores), reverse=True)
    for n, score in enumerate(scores):
        at = x + 0.16 * (n - (len(scores) - 1) / 2)
        face = colour if score >= SOLVED else "none"
        axes.scatter(at, y + 0.29, s=9, facecolors=face, edgecolors=colour, linewidths=0.7)
