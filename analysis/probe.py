"""Is it in memory? What can be read from hidden states that was shown k steps before.

An agent that fails where something must be remembered may have forgotten it, or never learned to
use it. A linear read-out tells these apart: each agent plays its own episodes, and of what its
memory gives to its heads (HELM's last hidden state, an LSTM's h, a GPT's output; the encoder's
features where there is no memory) it is read what was shown, see `analysis/read_out.py`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium.vector import VectorEnv
from tqdm import tqdm

from analysis.findings import Findings
from analysis.lengths import TASKS
from analysis.read_out import Reading, read_out
from analysis.remembered import Remembered, remembered
from analysis.scoreboard_tasks import TASKS as LADDER
from analysis.source import Choice, Source
from envs.cues import cues_of
from models import agent_class, build_agent
from models.agent import Agent
from plots.style import COLOURS, QUIET, new_figure, style
from runs.run_data import run_folders
from trainers.evaluation import evaluate
from utils.errors import UserError, printable
from utils.seeding import derived_seed, seed_everything

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEWEST, EPISODES, MOST = 32, 400, 10_000
SCORED = 100  # episodes of a score
SUCCESS = "success_mean"
UNTRAINED, DASHES = ", untrained", (0, (2, 1.5))
WIDTH, ROW_HEIGHT = 9.6, 3.1  # inches
THIN, STEP = 1.2, 0.9  # points; lines below others are thicker at the left, so that all are seen
NOTE = "each line is a run, with its 95 % interval over episodes; at the right where it can be read"

Looks = Mapping[str, Mapping[str, Any]]
# Where nothing but what was shown decides the score. In Key-to-Door nothing has to be remembered.
DECIDED = (
    "TMazePassive-v0",
    "TMazeActive-v0",
    "VisualMatch-v0",
    "MiniGrid-MemoryS11-v0",
    "popgym-RepeatPreviousEasy-v0",
)
# Cards to look back: the suit of card -k is asked for, the last being -1 (popgym 1.0.7, its `k`).
LOOKED_BACK = {
    "popgym-RepeatPreviousEasy-v0": 3,
    "popgym-RepeatPreviousMedium-v0": 31,
    "popgym-RepeatPreviousHard-v0": 63,
}
VERDICTS = {
    (True, True): "in memory, used",
    (True, False): "in memory, not used",
    (True, None): "in memory",
    (False, True): "not read, and yet used",
    (False, False): "not in memory",
    (False, None): "not in memory",
}


class Play(NamedTuple):
    """How episodes are played.

    Attributes:
        n_episodes: Of each run.
        random_share: Probability of an action drawn at random in the place of the agent's.
        seed: Of all that is drawn.
        untrained: Whether a fresh agent of the same settings reads the same episodes besides.
        trust: Whether the runs are trusted, whoever has begun them.
    """

    n_episodes: int = EPISODES
    random_share: float = 0.0
    seed: int = 0
    untrained: bool = False
    trust: bool = False


class Line(NamedTuple):
    """What one memory holds k steps later.

    Attributes:
        task: The environment, its length where it has one, and the algorithm.
        agent: The model, and whether it is untrained.
        run: The folder or checkpoint.
        score: The mean return or success of its own episodes; None for one that did not play.
        chance: The score of the best agent without a memory; None where that is not known.
        horizon: Steps that the task makes it look back; None where that is not known.
        readings: By k, ascending.
    """

    task: str
    agent: str
    run: str
    score: float | None
    chance: float | None
    horizon: int | None
    readings: list[Reading]

    @property
    def decisive(self) -> Reading:
        """The reading nearest to the horizon; the last where no horizon is known."""
        horizon = self.readings[-1].k if self.horizon is None else self.horizon
        return min(self.readings, key=lambda reading: abs(reading.k - horizon))

    @property
    def reach(self) -> int | None:
        """The longest k at which it is in memory, None where it never is."""
        return max((each.k for each in self.readings if is_read(each)), default=None)

    @property
    def verdict(self) -> str:
        """Whether it is in memory when it is due, and used."""
        is_used = None
        if self.score is not None and self.chance is not None:
            is_used = self.score >= (1 + self.chance) / 2
        return VERDICTS[is_read(self.decisive), is_used]


def is_read(reading: Reading) -> bool:
    """Return whether a reading is at least half of the way from chance to 1, beyond its error."""
    halfway = (1 + reading.chance) / 2
    return reading.accuracy >= halfway and reading.low > reading.chance


def analyse(paths: Iterable[Path], play: Play) -> Findings:
    """Let the agents of runs play, and return what can be read from their memories.

    Raises:
        UserError: a run cannot be read; told before the first plays where that can be seen.
    """
    places = [place for path in paths for place in _places(path)]
    for place in places:
        _telling(_source(place, play)).close()
    with tqdm(total=len(places) * play.n_episodes, unit=" episodes", disable=None) as progress:
        lines = [line for place in places for line in lines_of(place, play, progress)]
    return Findings(_draw(lines), list(_summary(lines)), list(_numbers(lines)))


def lines_of(place: Path, play: Play, progress: tqdm) -> list[Line]:
    """Return what the memory of a run holds, and what that of its untrained twin does.

    Raises:
        UserError: as `_source` and `_telling`; too few episodes show anything.
    """
    source = _source(place, play)
    env = _telling(source)
    try:
        agents = [source.agent, *_twins(source, env, play)]
        seed_everything(play.seed)
        by_agent = _read_by(agents, env, play, progress)
        score = _score(source, env, play)
    finally:
        env.close()
    lines = []
    for name, own, episodes in zip(("", UNTRAINED), (score, None), by_agent, strict=False):
        readings = read_out(episodes, play.seed)
        if not readings:
            raise UserError(
                f"{place}: the same was shown in all episodes, or too few show anything. Play more "
                "by --n-episodes"
            )
        lines.append(_line(source.config, name, place, own, readings))
    return lines


def _line(
    config: Any, suffix: str, place: Path, score: float | None, readings: list[Reading]
) -> Line:
    """Return the line of a run, or of its twin, with what is known of the task."""
    task = TASKS.get(config.env)
    length = "" if task is None else f" {config.length}"
    name, agent = f"{config.env}{length}, {config.algorithm}", f"{config.model}{suffix}"
    horizon = LOOKED_BACK.get(config.env) if task is None else config.length + task.more
    chance = _chance(config.env) if config.env in DECIDED else None
    return Line(
        printable(name), printable(agent), printable(str(place)), score, chance, horizon, readings
    )


def _chance(env: str) -> float:
    """Return the score of the best agent without a memory."""
    chances = {task.env: task.chance for task in LADDER}
    return TASKS[env].chance if env in TASKS else chances[env]


def _places(path: Path) -> Sequence[Path]:
    """Return the run folders that a path stands for, or the checkpoint that it is."""
    return [path] if path.is_file() else run_folders(path)


def _source(place: Path, play: Play) -> Source:
    """Return who plays: the agent of a run.

    Raises:
        UserError: it is no run, or what its agent is made of is missing.
    """
    source = Source(Choice([place], n_episodes=play.n_episodes, seed=play.seed, trust=play.trust))
    if source.checkpoint is None:
        raise UserError(f"{place}: episodes have no memory to read. Name a run or a checkpoint")
    agent_class(source.config.model).check(source.config)
    return source


def _telling(source: Source) -> VectorEnv:
    """Return the run's environments, slower ones where only those tell what is to be remembered.

    Raises:
        UserError: neither do.
    """
    for drawn in (False, True):
        env = source.opened(drawn)
        env.reset(seed=source.choice.seed)
        if cues_of(env) is not None:
            return env
        env.close()
    raise UserError(
        f"{source.config.env}: it does not tell what is to be remembered. Choose a run in T-Maze, "
        "Visual Match, Key-to-Door, MiniGrid-Memory, RepeatFirst or RepeatPrevious, or give your "
        "environment a method cue() (docs/extending.md)"
    )


def _twins(source: Source, env: VectorEnv, play: Play) -> list[Agent]:
    """Return the untrained twin of a run's agent, if it is asked for."""
    if not play.untrained:
        return []
    seed_everything(play.seed)
    spaces = env.single_observation_space, env.single_action_space
    return [build_agent(source.config, *spaces).eval()]


def _read_by(
    agents: Sequence[Agent], env: VectorEnv, play: Play, progress: tqdm
) -> list[list[Remembered]]:
    """Return the episodes of the first agent as each has read them."""
    episodes = []
    for episode in remembered(env, agents, play.n_episodes, play.random_share, play.seed):
        episodes.append(episode)
        progress.update()
    return [list(own) for own in zip(*episodes, strict=True)]


def _score(source: Source, env: VectorEnv, play: Play) -> float:
    """Return the agent's score in episodes of its own actions alone."""
    seed = derived_seed(play.seed, 1)
    played = evaluate(source.agent, env, min(SCORED, play.n_episodes), seed=seed)
    episodes = [recording.episode for recording in played]
    task = TASKS.get(source.config.env)
    if task is not None and task.metric == SUCCESS:
        return float(np.mean([bool(episode.success) for episode in episodes]))
    return float(np.mean([episode.episode_return for episode in episodes]))


def _summary(lines: Iterable[Line]) -> Iterator[Sequence[object]]:
    yield (
        *("task", "agent", "run", "k", "accuracy", "low", "high", "chance", "signal"),
        *("in memory up to", "score", "verdict"),
    )
    for line in lines:
        reading = line.decisive
        read = (f"{value:.3f}" for value in reading[2:6])
        score = "" if line.score is None else f"{line.score:.2f}"
        reach = "" if line.reach is None else line.reach
        yield (
            *(line.task, line.agent, line.run, reading.k, *read, f"{reading.signal:.2g}"),
            *(reach, score, line.verdict),
        )


def _numbers(lines: Iterable[Line]) -> Iterator[Sequence[object]]:
    yield ("task", "agent", "run", "score", *Reading._fields)
    for line in lines:
        for reading in line.readings:
            values = (f"{value:.6g}" for value in reading[2:])
            score = "" if line.score is None else f"{line.score:.4f}"
            yield (line.task, line.agent, line.run, score, *reading[:2], *values)


def _draw(lines: Sequence[Line]) -> "Figure":
    """Return a row for each task of lines: accuracy, and signal beside it."""
    tasks = list(dict.fromkeys(line.task for line in lines))
    families = list(dict.fromkeys(line.agent.removesuffix(UNTRAINED) for line in lines))
    looks: Looks = {
        name: {"color": COLOURS[n % len(COLOURS)], "zorder": 3 + n}
        for n, name in enumerate(families)
    }
    with style():
        figure = new_figure(WIDTH, ROW_HEIGHT * len(tasks) + 0.4)
        panels = figure.subplots(len(tasks), 2, squeeze=False)
        for (left, right), task in zip(panels, tasks, strict=True):
            own = [line for line in lines if line.task == task]
            _draw_accuracy(left, own, looks)
            _draw_signal(right, own, looks)
            left.set_title(task)
        handles, labels = _labels(panels[:, 0])
        figure.legend(handles, labels, loc="outside upper left", ncols=6, fontsize=9)
        figure.supxlabel(NOTE, x=0.01, ha="left", size=8, color=QUIET)
    return figure


def _draw_accuracy(axes: "Axes", lines: Sequence[Line], looks: Looks) -> None:
    for line in lines:
        k, accuracy, low, high = _columns(line, "k", "accuracy", "low", "high")
        look = _look(line, looks)
        width = THIN + STEP * (len(looks) + 2 - look["zorder"])
        axes.plot(k, accuracy, label=line.agent, linewidth=width, **look)
        axes.fill_between(k, low, high, color=look["color"], alpha=0.1, linewidth=0)
    k, chance = _columns(max(lines, key=lambda line: len(line.readings)), "k", "chance")
    axes.plot(k, chance, color=QUIET, linewidth=0.9, linestyle=(0, (4, 3)), label="chance")
    axes.set_ylim(min(chance) - 0.08, 1.03)
    axes.set_xlabel("steps since it was shown")
    axes.set_ylabel("read rightly")
    axes.grid(axis="y")


def _draw_signal(axes: "Axes", lines: Sequence[Line], looks: Looks) -> None:
    for line in lines:
        k, signal, low, chance = _columns(line, "k", "signal", "low", "chance")
        is_read = (low > chance) & (signal > 0)
        axes.plot(k, np.where(is_read, signal, np.nan), linewidth=THIN, **_look(line, looks))
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
    axes.set_xlabel("steps since it was shown")
    axes.set_ylabel("of the variance of all states")
    axes.set_title("how much of the state it is", weight="normal", size=9.5, color=QUIET)
    axes.minorticks_off()
    axes.grid(axis="y")


def _look(line: Line, looks: Looks) -> dict[str, Any]:
    """Return how a line is drawn: in the colour of its agent, dashed where untrained."""
    is_untrained = line.agent.endswith(UNTRAINED)
    look = looks[line.agent.removesuffix(UNTRAINED)]
    return {**look, "linestyle": DASHES if is_untrained else "-"}


def _columns(line: Line, *names: str) -> list[np.ndarray]:
    return [np.array([getattr(reading, name) for reading in line.readings]) for name in names]


def _labels(panels: Iterable["Axes"]) -> tuple[list[Any], list[str]]:
    """Return a handle for each agent of any panel, chance last."""
    found: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    chance = found.pop("chance")
    return [*found.values(), chance], [*found, "chance"]
