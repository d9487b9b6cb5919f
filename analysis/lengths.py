"""Score against length: how far agents remember, and how far back they give credit.

After Ni et al. (2023, arXiv:2307.03864, figures 3 to 6), from run folders; and the table of lengths
trained at and played at, from evaluations of eval.py in them. How far back an agent sees stands
beside how far back a task makes it look, as Cherepanov et al. (2024, arXiv:2412.06531) ask for:
only where the context is shorter than the horizon is a memory tested that is more than a window.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from analysis import figures, run_data
from analysis.statistics import Estimate, estimate
from utils.errors import UserError, escape
from utils.loggers import FILE
from utils.run_folder import SETTINGS
from utils.settings import Values, as_json
from utils.user_modules import is_named

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

N_POINTS, N_LAST = 300, 15  # of an interpolated curve, and those at its end that are the score
N_SMOOTHED = 10  # evaluations of a rolling mean
LEAST_SHARE = 0.9  # of its steps, from which on a run counts
ROW_HEIGHT, LINES_WIDTH, GRID_WIDTH = 3.2, 5.2, 3.1  # inches
MARKERS = "osD^vP*"
EVALUATION = {"env": str, "n_episodes": int, "env_steps": int, "random": bool, "greedy": bool}


class LengthTask(NamedTuple):
    """A task that has a length.

    Attributes:
        metric: Of a score, without "eval/" and "rollout/".
        chance: The score of the best agent without a memory, or without credit assignment.
        more: Steps of the horizon beyond the length. The horizon is the number of steps from the
            last sight of the cue to the first decision that needs it; in Key-to-Door, from the last
            step at which the key can be taken to the first at which it can pay.
    """

    metric: str
    chance: float
    more: int


TASKS = {
    "TMazePassive-v0": LengthTask("return_mean", 0.5, more=0),
    "TMazeActive-v0": LengthTask("return_mean", 0.5, more=1),
    "VisualMatch-v0": LengthTask("success_mean", 1 / 3, more=1),
    "KeyToDoor-v0": LengthTask("success_mean", 0.0, more=2),
}


class LengthScore(NamedTuple):
    """The score of a run at one length, the mean over episodes.

    `trained` and `tested` are lengths; `source` is an evaluation's file, None for the run's curve.
    """

    environment: str
    agent: str
    trained: int
    tested: int
    seed: int
    score: float
    source: str | None
    context: str
    run: str

    @property
    def horizon(self) -> int:
        return self.tested + TASKS[self.environment].more


class LengthCell(NamedTuple):
    environment: str
    agent: str
    trained: int
    tested: int
    mean: Estimate
    played: list[LengthScore]

    @property
    def context(self) -> str:
        """Steps that its runs look back, which may not be the same for all of them."""
        return " or ".join(dict.fromkeys(one.context for one in self.played))


def analyse(paths: Iterable[Path], keys: Sequence[str]) -> figures.AnalysisResult:
    """Print which runs are left out, and compare scores by length; `keys` tell agents apart.

    Raises:
        UserError: a folder is not a run's, or has no length; no run counts; runs that should be
            averaged differ in more than their seed.
    """
    left_out: list[str] = []
    runs = [run for folder in run_data.run_folders(*paths) for run in _finished(folder, left_out)]
    if not runs:
        raise UserError(f"{'; '.join(left_out)}. No run is left to show")
    played = [
        one
        for group in run_data.group_runs(runs, [*keys, "length"], left_out)
        for run in group.runs
        for one in _of_run(run, run_data.agent_name(run, keys))
    ]
    if left_out:
        print("\n".join([*left_out, ""]))
    lines = cells_of(one for one in played if one.source is None)
    by_agent = run_data.grouped(cells_of(played), lambda cell: (cell.environment, cell.agent))
    grids = {  # of agents played at other lengths
        place: cells
        for place, cells in by_agent.items()
        if any(cell.trained != cell.tested for cell in cells)
    }
    tables = {f"{agent} on {env}": _crossed(cells) for (env, agent), cells in grids.items()}
    return figures.AnalysisResult(_draw(lines, grids), summary(lines), _numbers(played), tables)


def cells_of(played: Iterable[LengthScore]) -> list[LengthCell]:
    # The last score of a run wins: an evaluation has many episodes of the final agent.
    ordered = sorted(played, key=lambda one: one.source is not None)
    cells = []
    for place, found in sorted(run_data.grouped(ordered, lambda one: one[:4]).items()):
        by_run = {one.run: one for one in found}
        scores = np.array([one.score for one in by_run.values()])
        cells.append(LengthCell(*place, estimate(scores, "mean"), [*by_run.values()]))
    return cells


def rolling_mean(values: np.ndarray, n_rows: int) -> np.ndarray:
    """Return the mean of each value and those before it, `n_rows` where there are so many."""
    sums = np.concatenate(([0.0], np.cumsum(values)))
    ends = np.arange(1, len(values) + 1)
    begins = (ends - n_rows).clip(min=0)
    return (sums[ends] - sums[begins]) / (ends - begins)


def final_score(x: np.ndarray, y: np.ndarray) -> float:
    points = np.linspace(x[0], x[-1], N_POINTS)
    return float(np.interp(points, x, y)[-N_LAST:].mean())


def curve(folder: Path, metric: str) -> run_data.RunRecord:
    """Return a run's greedy evaluations, smoothed; its training episodes where there are none."""
    if f"eval/{metric}" in run_data.read_rows(folder / FILE)[0]:
        run = run_data.read_run(folder, f"eval/{metric}", "steps")
        if len(run.x):
            return run._replace(y=rolling_mean(run.y, N_SMOOTHED))
    return run_data.read_run(folder, f"rollout/{metric}", "steps")


def context_of(settings: Values) -> str:
    """Return how many steps back an agent was trained to see: a number, or "any".

    A GPT sees `mem_len` steps, a language model `mem_len` tokens, and stacked layers reach further
    back. An LSTM's state may keep anything. No trained memory learns of more steps than the
    sequences from replay have.
    """
    model = settings["model"]
    if model in ("CNN", "CNN-PPO"):
        return "0"
    if "HELM" in model:
        return str(settings["mem_len"] // (settings["topk"] if model == "SHELM" else 1))
    if is_named(settings["algorithm"]):  # whose file need not be here, either
        return "not known"
    from_replay = settings["algorithm"] != "PPO" and settings["context_length"] > 0
    limits = [settings["context_length"]] if from_replay else []
    limits += [settings["mem_len"]] if model in ("GPT", "GTrXL") else []
    return str(min(limits)) if limits else "any"


def summary(lines: Iterable[LengthCell]) -> run_data.Table:
    heading = ("agent", "task", "length", "runs", "score", "low", "high")
    rows: list[Sequence[object]] = [(*heading, "chance", "context", "horizon")]
    for cell in lines:
        chance, horizon = f"{TASKS[cell.environment].chance:.3f}", cell.played[0].horizon
        place = (cell.agent, cell.environment, cell.trained, len(cell.played))
        rows.append((*place, *cell.mean.texts("{:.3f}".format), chance, cell.context, horizon))
    return rows


def _crossed(cells: Iterable[LengthCell]) -> run_data.Table:
    scores = {(cell.trained, cell.tested): f"{cell.mean.value:.3f}" for cell in cells}
    contexts = {cell.trained: cell.context for cell in cells}
    horizons = {cell.tested: cell.played[0].horizon for cell in cells}
    played_at = [f"at {length} (horizon {horizons[length]})" for length in sorted(horizons)]
    rows = [
        (length, contexts[length], *(scores.get((length, at), "") for at in sorted(horizons)))
        for length in sorted(contexts)
    ]
    return [("trained at", "context", *played_at), *rows]


def _numbers(played: Iterable[LengthScore]) -> run_data.Table:
    heading = ("task", "agent", "trained_at", "played_at", "seed", "score", "source", "context")
    rows: list[Sequence[object]] = [(*heading, "horizon", "run")]
    for one in played:
        rows.append((*one[:6], one.source or "training", one.context, one.horizon, one.run))
    return rows


def _finished(folder: Path, left_out: list[str]) -> Iterator[run_data.RunRecord]:
    settings = run_data.read_settings_of(folder)
    place, environment = escape(str(folder)), settings.get("env")
    if environment not in TASKS:
        allowed = ", ".join(TASKS)
        raise UserError(f"{place}: env is {as_json(environment)}. Name runs in {allowed}")
    run_data.checked_settings(settings, str(folder / SETTINGS), n_steps=int, length=int)
    wanted = settings["n_steps"]
    run = curve(folder, TASKS[environment].metric)
    last = run.x[-1] if len(run.x) else 0
    if last >= LEAST_SHARE * wanted:
        yield run
    else:
        left_out.append(f"left out, at {last:,.0f} of its {wanted:,} steps: {place}")


def _of_run(run: run_data.RunRecord, agent: str) -> Iterator[LengthScore]:
    settings, task = run.settings, TASKS[run.settings["env"]]
    length, context, place = settings["length"], context_of(settings), escape(str(run.folder))
    scores = {None: (length, final_score(run.x, run.y))} | _evaluations(run, task.metric)
    for source, (tested, score) in scores.items():
        lengths = length, tested, settings["seed"]
        yield LengthScore(settings["env"], agent, *lengths, score, source, context, place)


def _evaluations(run: run_data.RunRecord, metric: str) -> dict[str | None, tuple[int, float]]:
    best: dict[int, tuple[tuple, str, float]] = {}
    for path in sorted(run.folder.glob("*eval_*.json")):
        result = run_data.read_evaluation(path, EVALUATION | {metric: int | float})
        if result["random"] or set(result["var"]) > {"length"}:
            continue
        length = result["var"].get("length", run.settings["length"])
        rank = result["greedy"], result["n_episodes"], result["env_steps"]
        if length not in best or rank > best[length][0]:
            best[length] = rank, path.name, float(result[metric])
    return {name: (length, score) for length, (_, name, score) in best.items()}


def _draw(
    lines: Sequence[LengthCell], grids: Mapping[tuple[str, str], Sequence[LengthCell]]
) -> "Figure":
    environments = list(dict.fromkeys(cell.environment for cell in lines))
    agents = list(dict.fromkeys(cell.agent for cell in lines))
    n_grids = max(sum(env == own for own, _ in grids) for env in environments)
    width, height = LINES_WIDTH + GRID_WIDTH * n_grids, ROW_HEIGHT * len(environments) + 0.3
    with figures.style():
        figure = figures.new_figure(width, height)
        widths = [LINES_WIDTH, *[GRID_WIDTH] * n_grids]
        panels = figure.subplots(len(environments), 1 + n_grids, squeeze=False, width_ratios=widths)
        for (left, *others), env in zip(panels, environments, strict=True):
            _draw_lines(left, [cell for cell in lines if cell.environment == env], agents)
            own = {agent: cells for (name, agent), cells in grids.items() if name == env}
            for axes in others[len(own) :]:
                axes.set_visible(False)
            for axes, (agent, cells) in zip(others, own.items(), strict=False):
                _draw_grid(axes, agent, cells)
        note = "mean over runs, 95 % bootstrap intervals; a dot is a run"
        figure.supxlabel(note, x=0.01, ha="left", size=8, color=figures.QUIET)
    return figure


def _draw_lines(axes: "Axes", cells: Sequence[LengthCell], agents: Sequence[str]) -> None:
    for n, agent in enumerate(agents):
        own = [cell for cell in cells if cell.agent == agent]
        if not own:
            continue
        colour, marker = figures.COLOURS[n % len(figures.COLOURS)], MARKERS[n % len(MARKERS)]
        x = [cell.trained for cell in own]
        # A single run has no interval: its ends are the mean.
        ends = [[cell.mean.value if end is None else end for end in cell.mean] for cell in own]
        mean, low, high = np.transpose(ends)
        axes.plot(x, mean, color=colour, label=agent, zorder=3, marker=marker, markersize=5)
        axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.vlines(x, low, high, color=colour, linewidth=1.2)
        for cell in own:
            scores = [one.score for one in cell.played]
            axes.scatter([cell.trained] * len(scores), scores, s=8, color=colour, alpha=0.5)
    axes.axhline(TASKS[cells[0].environment].chance, **figures.DASHED, label="chance")
    lengths = sorted({cell.trained for cell in cells})
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.margins(x=0.06)
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, -0.03), max(high, 1.04))
    axes.set_title(cells[0].environment)
    axes.set_xlabel("length of the task, trained and played at")
    axes.set_ylabel("success" if "success" in TASKS[cells[0].environment].metric else "return")
    axes.grid(axis="y")
    axes.legend(loc="best", handlelength=1.6, fontsize=9)


def _draw_grid(axes: "Axes", agent: str, cells: Sequence[LengthCell]) -> None:
    trained = sorted({cell.trained for cell in cells})
    tested = sorted({cell.tested for cell in cells})
    scores = np.full((len(trained), len(tested)), np.nan)
    for cell in cells:
        scores[trained.index(cell.trained), tested.index(cell.tested)] = cell.mean.value
    figures.draw_matrix(axes, scores, [*map(str, trained)], [*map(str, tested)])
    axes.set_aspect("auto")
    axes.set_title(agent)
    axes.set_xlabel("length played at")
    axes.set_ylabel("length trained at")
