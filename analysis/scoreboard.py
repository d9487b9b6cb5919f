"""The scoreboard: which memory, where. Agents x tasks, from finished run folders."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from analysis.findings import Findings
from analysis.scoreboard_figure import draw
from analysis.scoreboard_runs import Entry, LeftOut, counting_runs
from analysis.scoreboard_tasks import AGENTS, TASKS, AgentKind, Task
from plots.runs import columns_of, read_columns, read_run
from plots.statistics import Estimate, estimate
from plots.table import Table, markdown
from trainers.checkpoint import LAST, load_checkpoint
from utils.errors import UserError, printable

N_LAST = 5  # evaluations at the end of a run whose mean is its score
NOTE = (
    "Normalised score: 0 is chance, 1 the best there is, of each task as told below; in brackets "
    "the 95 % bootstrap interval over seeds, behind × their number. A run's score is the mean of "
    "its last five greedy evaluations, or of its last 100 training episodes where it was not "
    "evaluated. Steps/s are environment steps over the seconds of the run on whatever machine it "
    "had, least to most over tasks; so are the parameters that the optimiser moves."
)


class Cell(NamedTuple):
    """An agent in a task.

    Attributes:
        task, agent: Where, and who.
        empty: Why there is nothing, or "".
        runs: That count.
        scores: Of each, in the task's metric.
        mean: Of the normalised scores; None where there is nothing.
        steps_per_second: Median over the runs.
        n_trained: Parameters that an optimiser moves; None where no checkpoint is left.
    """

    task: Task
    agent: AgentKind
    empty: str = ""
    runs: Sequence[Entry] = ()
    scores: Sequence[float] = ()
    mean: Estimate | None = None
    steps_per_second: float | None = None
    n_trained: int | None = None


def analyse(paths: Iterable[Path]) -> Findings:
    """Return the scoreboard of all finished runs in folders.

    Raises:
        UserError: a folder is not a run's, or no run counts.
    """
    left_out = LeftOut()
    cells = read_cells(paths, left_out)
    table = scores_table(cells)
    return Findings(draw(cells), table, _numbers(cells), page=_page(table, left_out))


def read_cells(paths: Iterable[Path], left_out: LeftOut) -> list[Cell]:
    """Return every agent in every task, task by task.

    Args:
        paths: Run folders, or folders of them.
        left_out: Gets the runs that do not count.
    """
    runs = counting_runs(paths, left_out)
    cells = []
    for task in TASKS:
        for agent in AGENTS:
            place = task.name, agent.name
            reason = agent.blind(task) or left_out.reasons.get(place, "not run")
            own = runs.get(place)
            cells.append(_cell(task, agent, own) if own else Cell(task, agent, reason))
    return cells


def score_of(folder: Path, metric: str) -> float:
    """Return the mean of a run's last five greedy evaluations, else of its last 100 episodes."""
    if f"eval/{metric}" in columns_of(folder):
        evaluated = read_run(folder, f"eval/{metric}", "steps").y
        if len(evaluated):
            return float(evaluated[-N_LAST:].mean())
    played = read_run(folder, f"rollout/{metric}", "steps").y
    if not len(played):
        raise UserError(f"{folder}: finished, and rollout/{metric} has no value. Name other runs")
    return float(played[-1])


def trained_parameters(folder: Path) -> int | None:
    """Return how many numbers a run's optimisers move; None where it kept no checkpoint.

    Adam keeps moments of each of them, and of nothing that is frozen or a copy.
    """
    path = folder / LAST
    return _n_moments(load_checkpoint(path).get("learner")) if path.is_file() else None


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


def _cell(task: Task, agent: AgentKind, runs: Sequence[Entry]) -> Cell:
    scores = [score_of(run.folder, task.metric) for run in runs]
    mean = estimate(task.normalised(np.array(scores)), "mean")
    speed = float(np.median([_steps_per_second(run.folder) for run in runs]))
    return Cell(task, agent, "", runs, scores, mean, speed, trained_parameters(runs[0].folder))


def _steps_per_second(folder: Path) -> float:
    columns = read_columns(folder)
    return columns["env_steps"][-1] / columns["time/seconds"][-1]


def _n_moments(state: Any) -> int:
    if not isinstance(state, dict):
        return 0
    own = state["exp_avg"].numel() if "exp_avg" in state else 0
    return own + sum(map(_n_moments, state.values()))


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
    heading = ("task", "env", "length", "algorithm", "agent", "empty", "seeds", "n_steps")
    scores = ("score", "low", "high", "metric", "chance", "best", "raw_scores")
    rows: list[Sequence[object]] = [(*heading, *scores, "steps_per_second", "n_trained", "runs")]
    for cell in cells:
        task = cell.task
        place = task.name, task.env, task.length, task.algorithm, cell.agent.name, cell.empty
        steps = cell.runs[0].n_steps if cell.runs else None
        raw = " ".join(f"{score:.6g}" for score in cell.scores)
        folders = " ".join(printable(str(run.folder)) for run in cell.runs)
        mean = cell.mean or (None, None, None)
        limits = task.metric, task.chance, task.best
        rest = raw, cell.steps_per_second, cell.n_trained, folders
        values = (*place, len(cell.runs), steps, *mean, *limits, *rest)
        rows.append(["" if value is None else value for value in values])
    return rows
