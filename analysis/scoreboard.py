"""The scoreboard: which memory, where. Agents x tasks, from finished run folders."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from analysis.findings import Findings
from analysis.scoreboard_figure import draw
from analysis.scoreboard_runs import Entry, LeftOut, counting_runs
from analysis.scoreboard_scores import Result, measured
from analysis.scoreboard_tasks import AGENTS, TASKS, AgentKind, Task
from plots.statistics import Estimate, estimate
from plots.table import Table, markdown
from utils.errors import printable

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
        results: What each came to.
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


def analyse(paths: Iterable[Path]) -> Findings:
    """Return the scoreboard of all finished runs in folders and tables.

    Raises:
        UserError: a folder is not a run's, a table not the scoreboard's, or no run counts.
    """
    left_out = LeftOut()
    cells = read_cells(paths, left_out)
    table = scores_table(cells)
    return Findings(draw(cells), table, _numbers(cells), page=_page(table, left_out))


def read_cells(paths: Iterable[Path], left_out: LeftOut) -> list[Cell]:
    """Return every agent in every task, task by task.

    Args:
        paths: Run folders, folders of them, or tables of runs (.csv).
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
    results = [run.result or measured(run.folder, task.metric) for run in runs]
    cell = Cell(task, agent, "", runs, results)
    return cell._replace(mean=estimate(task.normalised(cell.scores), "mean"))


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
    """Return a line for each run that counts; `kept` reads them back."""
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
