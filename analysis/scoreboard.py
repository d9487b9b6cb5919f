"""The scoreboard: agents beside tasks that isolate memory, from finished run folders.

All agents of a task are compared at the same number of steps: the one most agents have there (the
larger where two are equal). Of an agent's runs there, those with the settings of most seeds count,
one of each seed. The table, scoreboard.csv, has a line for each run that counted, with the settings
that it read: so runs of several machines stand together, and a score outlives its run folder. The
same tasks and agents stand in configs/Scoreboard, which trains them.
"""

import itertools
import json
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from analysis import run_data
from analysis.figures import COLOURS, DASHED, INK, QUIET, RULE, AnalysisResult, new_figure, style
from analysis.lengths import TASKS as BY_LENGTH
from analysis.statistics import Estimate, difference, estimate
from models import AGENTS as MODELS
from trainers.checkpoint import LAST, load_checkpoint
from utils.errors import UserError, escape
from utils.loggers import FILE
from utils.run_folder import init_checkpoint, is_finished
from utils.settings import settings_index, settings_without_effect

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RETURN = "return_mean"
NOTE = (
    "Normalised score: 0 is chance, 1 the best there is, of each task as told below; in brackets "
    "the 95 % bootstrap interval over seeds, behind × their number. A run's score is the mean of "
    "its last five greedy evaluations, or of its last 100 training episodes where it was not "
    "evaluated. Steps/s are environment steps over the seconds of the run on whatever machine it "
    "had, least to most over tasks; so are the parameters that the optimiser moves."
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
# Of the picture: inches, letters of a line, points between a panel and its title.
N_COLUMNS, WIDTH, ROW_HEIGHT = 4, 11.6, 3.0
LINE, PAD = 39, 36
LEFT, RIGHT = -0.3, 1.5  # of its axis; a worse score stands at the edge
FOOTNOTE = (
    "normalised score: 0 (dashed) is chance, 1 the best there is; mean over seeds, 95 % bootstrap "
    "intervals, a small dot is a run, × how many there are; a triangle: below the axis"
)


class Task(NamedTuple):
    """A task of the ladder.

    Attributes:
        length: The setting of that name, where the environment reads one.
        algorithm: The learner there.
        metric: Of a score, without "eval/" and "rollout/".
        chance, best: Values of that metric, the normalised scores 0 and 1.
        memory: The things to be remembered, and for how long.
        source: The policies of chance and best, and the origin of the numbers.
        observability: The setting; "full" of a twin.
    """

    name: str
    env: str
    length: int | None
    algorithm: str
    metric: str
    chance: float
    best: float
    memory: str
    source: str
    observability: str = "partial"

    @property
    def twin(self) -> "Task":
        return self._replace(name=f"{self.name}, twin", observability="full")

    def plays(self, settings: Mapping[str, Any]) -> bool:
        named = tuple(settings.get(key) for key in ("env", "algorithm", "observability"))
        is_length = self.length is None or settings.get("length") == self.length
        return named == (self.env, self.algorithm, self.observability) and is_length

    def normalised(self, scores: np.ndarray) -> np.ndarray:
        return (scores - self.chance) / (self.best - self.chance)


class AgentKind(NamedTuple):
    """A column of the table.

    Attributes:
        model: The setting, by the name agents are listed under.
        others: Further settings that make a run this agent's.
        sees: The beginning of the environments that it can see.
    """

    name: str
    model: str
    others: Mapping[str, str] = {}
    sees: str = ""

    def blind(self, task: Task) -> str:
        return "" if task.env.startswith(self.sees) else f"{self.sees.strip('-')} only"

    def is_of(self, settings: Mapping[str, Any]) -> bool:
        name = settings.get("model")
        if not isinstance(name, str) or MODELS.known_as(name) != self.model:
            return False
        return all(settings.get(key) == value for key, value in self.others.items())


def _of_length(name: str, env: str, length: int, algorithm: str, *words: str) -> Task:
    known = BY_LENGTH[env]
    return Task(name, env, length, algorithm, known.metric, known.chance, 1.0, *words)


def _t_maze(length: int) -> Task:
    memory = f"which of two sides, seen in the first step alone, for {length} steps"
    source = "0: walks to the end and turns to either side; 1: to the right one (envs/t_maze.py)"
    return _of_length(f"T-Maze {length}", "TMazePassive-v0", length, "DQN", memory, source)


TASKS = (
    _t_maze(10),
    _t_maze(30),
    _t_maze(100),
    Task(
        *("MemoryS7", "MiniGrid-MemoryS7-v0", None, "PPO", RETURN, 0.4917, 0.9780),
        "key or ball, for 1 to 4 steps; from the junction the cue and both ends are in view at "
        "once, and choosing by chance there gets beyond 0 without a memory",
        "0: goes to either end at once, right half the time; 1: looks at the cue, then goes the "
        "shortest way; both 1 - 0.9 t / 245, mean over where episodes begin",
    ),
    Task(
        *("MemoryS11", "MiniGrid-MemoryS11-v0", None, "PPO", RETURN, 0.4952, 0.9859),
        "key or ball, for 4 steps or more; from no place are the cue and an end seen at once",
        "0: goes to either end at once, right half the time; 1: looks at the cue, then goes the "
        "shortest way; both 1 - 0.9 t / 605, mean over where episodes begin",
    ),
    Task(
        *("RandomMaze", "RandomMaze-v0", None, "PPO", RETURN, -1.0, 0.827),
        "where it has been, up to 100 steps; 9x9 cells of at most 25x25 are in view",
        "0: bumps into nothing and never arrives (100 steps of -0.01); 1: the shortest way, mean "
        "of 20,000 mazes (standard error 0.001), which cannot be known before the maze is seen",
    ),
    _of_length(
        *("Visual Match 20", "VisualMatch-v0", 20, "SAC"),
        "which of three colours, for 21 steps or more",
        "success; 0: enters any door; 1: always the right one (envs/three_phases.py)",
    ),
    _of_length(
        *("Key-to-Door 20", "KeyToDoor-v0", 20, "SAC"),
        "nothing: the task is credit assignment, over the 22 steps or more since the key",
        "success; 0: does not take the key; 1: always opens the door (envs/three_phases.py)",
    ),
    Task(
        *("KeyCorridor", "MiniGrid-KeyCorridorS3R1-v0", None, "PPO", RETURN, 0.0, 0.9511),
        "nothing: the key that is carried is in view; the line to beat is the agent without memory",
        "0: never gets the ball; 1: the shortest way, 1 - 0.9 t / 270 with t of 15, 15 and 14 by "
        "where the agent first looks",
    ),
    Task(
        *("RepeatPrevious", "popgym-RepeatPreviousEasy-v0", None, "PPO", RETURN, -25 / 51, 1.0),
        "the suits of the last three cards, each for 3 steps",
        "0: names another suit than the one in view, right with 13/51, as no card comes twice; "
        "1: always right (popgym 1.0.7, envs/repeat_previous.py)",
    ),
)
TWINS = {task: task.twin for task in TASKS}

AGENTS = (
    AgentKind("none", "CNN"),
    AgentKind("LSTM", "LSTM"),
    AgentKind("GPT", "GPT"),
    AgentKind("HELM, MiniLM", "HELM", {"language_model": "all-MiniLM-L6-v2"}),
    AgentKind("HELM, SmolLM2", "HELM", {"language_model": "SmolLM2-135M-Instruct"}),
    AgentKind("SHELM, grid-clip", "SHELM", {"clip_encoder": "grid-clip"}, sees="MiniGrid-"),
)


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
    """A finished run of the ladder; its result is from a table, or None: to be measured."""

    folder: Path
    task: Task
    agent: AgentKind
    settings: Mapping[str, Any]
    result: Result | None = None

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


class Cell(NamedTuple):
    """An agent in a task.

    Attributes:
        empty: The reason for an empty cell, or "".
        runs, results: Those that count.
        mean: Of the normalised scores; None in an empty cell.
    """

    task: Task
    agent: AgentKind
    empty: str = ""
    runs: Sequence[Entry] = ()
    results: Sequence[Result] = ()
    mean: Estimate | None = None

    @property
    def scores(self) -> np.ndarray:
        return np.array([result.score for result in self.results])


class LeftOut:
    """Why runs do not count: in lines, and in a word or two by task and agent."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.reasons: dict[tuple[str, str], str] = {}

    def add(self, why: str, entries: Sequence[Entry | Path]) -> None:
        folders = [each if isinstance(each, Path) else each.folder for each in entries]
        if folders:
            named = ", ".join(escape(str(folder)) for folder in folders[:MOST_NAMED])
            n_more = len(folders) - MOST_NAMED
            more = f" and {n_more} more" if n_more > 0 else ""
            self.lines.append(f"left out, {why}: {named}{more}")


def analyse(paths: Iterable[Path]) -> AnalysisResult:
    """Return the scoreboard of all finished runs in folders and tables.

    Raises:
        UserError: a folder is not a run's, a table not the scoreboard's, or no run counts.
    """
    left_out = LeftOut()
    cells = read_cells(paths, left_out)
    table = scores_table(cells)
    tasks = [f"- **{task.name}**: {task.memory}. {task.source}." for task in TASKS]
    notes = [NOTE, *([NOTE_OF_TWINS] if any(cell.task not in TASKS for cell in cells) else [])]
    parts = [run_data.markdown(table), *(f"{note}\n" for note in notes), "\n".join(tasks) + "\n"]
    if left_out.lines:
        parts.append("\n".join(f"- {line}" for line in left_out.lines) + "\n")
    drawn = _draw([cell for cell in cells if cell.task in TASKS])
    return AnalysisResult(drawn, table, _numbers(cells), page="\n".join(parts))


def read_cells(paths: Iterable[Path], left_out: LeftOut) -> list[Cell]:
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
        told = "; ".join(left_out.lines)
        raise UserError(f"{told}. No run is left to show; configs/Scoreboard trains some")
    cells = []
    twins = {run.task for own in runs.values() for run in own}.difference(TASKS)
    for task in (*TASKS, *(twin for twin in TWINS.values() if twin in twins)):
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


def scores_table(cells: Sequence[Cell]) -> run_data.Table:
    rows: list[Sequence[object]] = [("task, steps", *(agent.name for agent in AGENTS))]
    for task in TASKS:
        own = [cell for cell in cells if cell.task is task]
        steps = [f", {run.n_steps:,}" for cell in own for run in cell.runs]
        rows.append((task.name + "".join(steps[:1]), *map(_score_text, own)))
        on_twin = [cell for cell in cells if cell.task is TWINS[task]]
        if on_twin:
            steps = [f", {run.n_steps:,}" for cell in on_twin for run in cell.runs]
            gaps = itertools.starmap(_difference, zip(on_twin, own, strict=True))
            biases = (_difference(cell, on_twin[0]) for cell in on_twin[1:])
            rows.append((on_twin[0].task.name + steps[0], *map(_score_text, on_twin)))
            rows += [(f"{task.name}, gap", *gaps), (f"{task.name}, bias", "", *biases)]
    speeds, trained = [], []
    for agent in AGENTS:
        results = [cell.results for cell in cells if cell.agent is agent and cell.task in TASKS]
        known = [_known(each.steps_per_second for each in own) for own in results]
        speeds.append(_range([float(np.median(own)) for own in known if own]))
        trained.append(_range(_known(each.n_trained for own in results for each in own)))
    return [*rows, ("steps/s", *speeds), ("parameters trained", *trained)]


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
    """Return how many numbers Adam keeps moments of: those it moves; None without a checkpoint."""
    path = folder / LAST
    return _n_moments(load_checkpoint(path).get("learner")) if path.is_file() else None


def _score_text(cell: Cell) -> str:
    if cell.mean is None:
        return cell.empty
    return f"{_estimate_text(cell.mean)} ×{len(cell.scores)}"


def _difference(cell: Cell, other: Cell) -> str:
    if cell.mean is None or other.mean is None:
        return ""
    kinds = [each.runs[0].kind | {"observability": None} for each in (cell, other)]
    if cell.agent is other.agent and kinds[0] != kinds[1]:
        return f"{_differing(kinds)} differ"
    scores = [each.task.normalised(each.scores) for each in (cell, other)]
    return _estimate_text(difference(*scores))


def _estimate_text(found: Estimate) -> str:
    value, low, high = found
    return f"{value:.2f}" + ("" if low is None else f" [{low:.2f}, {high:.2f}]")


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _range(values: Sequence[float]) -> str:
    known = [f"{value:,.0f}" for value in sorted(values)]
    return " to ".join(dict.fromkeys([known[0], known[-1]])) if known else ""


def _numbers(cells: Iterable[Cell]) -> run_data.Table:
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


def _entries(paths: Iterable[Path], left_out: LeftOut) -> list[Entry]:
    paths, entries = list(paths), []
    tables = [path for path in paths if path.suffix == ".csv" and path.is_file()]
    found: list[tuple[Path, dict[str, Any], Result | None]] = [
        (folder, run_data.read_settings_of(folder, **KINDS), None)
        for folder in run_data.run_folders(*(path for path in paths if path not in tables))
    ]
    for table in tables:
        found += _kept(table)
    others: dict[str, list[Path]] = {
        "not finished": [],
        "begun with another run's parameters": [],
        "of no task and agent of the ladder": [],
    }
    unfinished, pretrained, foreign = others.values()
    for folder, settings, result in found:
        task = next((task for task in (*TASKS, *TWINS.values()) if task.plays(settings)), None)
        agent = next((agent for agent in AGENTS if agent.is_of(settings)), None)
        if task is None or agent is None or agent.blind(task):
            foreign.append(folder)
        elif result is None and not is_finished(folder):
            unfinished.append(folder)
            left_out.reasons[task.name, agent.name] = "not finished"
        elif result is None and init_checkpoint(folder) is not None:
            pretrained.append(folder)
        else:
            entries.append(Entry(folder, task, agent, settings, result))
    for why, folders in others.items():
        left_out.add(why, folders)
    return entries


def _kept(table: Path) -> Iterator[tuple[Path, dict[str, Any], Result]]:
    for number, row in enumerate(run_data.read_rows(table, "the scoreboard"), 2):
        where = f"{table}, line {number}"
        missing = [name for name in COLUMNS if name not in row]
        if missing:
            raise UserError(f"{table}: not a table of the scoreboard (no column {missing[0]})")
        try:
            settings = json.loads(row["settings"])
            speed, n_trained = row["steps_per_second"], row["n_trained"]
            known = float(speed) if speed else None, int(n_trained) if n_trained else None
            result = Result(float(row["score"]), *known)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where}: not a run of the scoreboard ({error})") from None
        if not isinstance(settings, dict) or not math.isfinite(result.score):
            raise UserError(f"{where}: settings must be an object and score a number")
        yield Path(row["run"]), run_data.checked_settings(settings, where, **KINDS), result


def _at_equal_steps(entries: Sequence[Entry], left_out: LeftOut) -> list[Entry]:
    kept: list[Entry] = []
    for task, own in run_data.grouped(entries, lambda entry: entry.task.name).items():
        by_steps = run_data.grouped(own, lambda entry: entry.n_steps)
        # Agents are counted, not runs: many seeds of one agent are no majority.
        n_agents = {n: len({entry.agent.name for entry in by_steps[n]}) for n in by_steps}
        n_steps = max(by_steps, key=lambda n: (n_agents[n], n))
        kept += by_steps.pop(n_steps)
        others = [entry for others in by_steps.values() for entry in others]
        left_out.reasons |= {entry.place: "other number of steps" for entry in others}
        left_out.add(f"{task} is compared at {n_steps:,} steps", others)
    return kept


def _of_one_kind(entries: Sequence[Entry], left_out: LeftOut) -> list[Entry]:
    """Return the runs of the settings that most seeds share, one of each seed; none at a tie.

    Of one seed's runs that of a folder counts before that of a table, the first by its name.
    """
    place = " by ".join(entries[0].place)
    ordered = sorted(
        entries, key=lambda e: (e.settings["seed"], e.result is not None, str(e.folder))
    )
    by_kind = run_data.grouped(ordered, lambda entry: json.dumps(entry.kind)).values()
    by_seed = [run_data.grouped(own, lambda entry: entry.settings["seed"]) for own in by_kind]
    most = max(map(len, by_seed))
    chosen, *equal = [[own[0] for own in seeds.values()] for seeds in by_seed if len(seeds) == most]
    if equal:
        left_out.reasons[entries[0].place] = "settings differ"
        names = _differing([own[0].kind for own in (chosen, *equal)])
        why = f"{place}: these differ in more than the seed ({names}), name those of one kind"
        left_out.add(why, entries)
        return []
    # Everything left out is named with its reason, so that no run vanishes unseen.
    folders, kind = {entry.folder for entry in chosen}, chosen[0].kind
    others = [entry for entry in entries if entry.folder not in folders]
    alike = [entry for entry in others if entry.kind == kind]
    left_out.add(f"{place}: others have the same settings and seed", alike)
    different = [entry for entry in others if entry.kind != kind]
    names = _differing([kind, *(entry.kind for entry in different)])
    left_out.add(f"{place}: more seeds were run with other settings ({names})", different)
    return chosen


def _differing(kinds: Sequence[Mapping[str, Any]]) -> str:
    names = dict.fromkeys(name for kind in kinds for name in kind)
    return ", ".join(n for n in names if any(kind.get(n) != kinds[0].get(n) for kind in kinds))


def _measured(folder: Path, metric: str) -> Result:
    columns = run_data.read_columns(folder)
    missing = [name for name in run_data.AXES.values() if name not in columns]
    if missing:
        raise UserError(f"{folder / FILE}: no column '{missing[0]}'. Name other runs")
    score = score_of(columns, metric)
    if score is None:
        raise UserError(f"{folder}: finished, and rollout/{metric} has no value. Name other runs")
    n_steps, seconds = (columns[name][-1] for name in run_data.AXES.values())
    return Result(score, n_steps / seconds, trained_parameters(folder))


def _n_moments(state: Any) -> int:
    if not isinstance(state, Mapping):
        return 0
    own = state["exp_avg"].numel() if "exp_avg" in state else 0  # as many as the parameter has
    return own + sum(map(_n_moments, state.values()))


def _draw(cells: Sequence[Cell]) -> "Figure":
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
            _draw_agent(axes, position, cell, cell.mean)
    task = cells[0].task
    axes.axvline(0, **DASHED, zorder=1)
    axes.axvline(1, color=QUIET, linewidth=0.9, zorder=1)
    axes.axvspan(0, 1, color=RULE, alpha=0.4, linewidth=0, zorder=0)
    axes.set_title(task.name, pad=PAD)
    told = textwrap.fill(task.memory.partition(";")[0], LINE)
    above: dict[str, Any] = {"xytext": (0, PAD - 5), "textcoords": "offset points"}
    axes.annotate(told, (0, 1), xycoords="axes fraction", va="top", size=8, color=QUIET, **above)
    axes.set_yticks(range(len(cells)), [cell.agent.name for cell in cells], color=INK)
    axes.set_ylim(len(cells) - 0.5, -0.6)
    axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.set_xlim(LEFT, RIGHT)
    axes.tick_params(labelbottom=True)
    axes.spines["left"].set_visible(False)


def _draw_agent(axes: "Axes", position: int, cell: Cell, mean: Estimate) -> None:
    colour = COLOURS[position % len(COLOURS)]
    value, low, high = mean
    if low is not None:
        ends = np.clip([low, high], LEFT, RIGHT)
        axes.plot(ends, [position] * 2, color=colour, alpha=0.35, linewidth=6, zorder=2)
    scores = np.clip(cell.task.normalised(cell.scores), LEFT, RIGHT)
    axes.scatter(scores, [position] * len(scores), s=9, color=colour, zorder=3)
    marker = "o" if value >= LEFT else "<"
    at = max(float(value), LEFT)
    (dot,) = axes.plot(at, position, marker, color=colour, markersize=7.5, zorder=4)
    dot.set(markeredgecolor="white", clip_on=False)
    axes.text(1.29, position, f"{value:.2f}", ha="right", va="center", size=8.5, color=INK)
    axes.text(RIGHT, position, f"×{len(cell.scores)}", ha="right", va="center", size=7, color=QUIET)
