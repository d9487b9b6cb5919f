"""Is it in memory? A linear read-out of cues from hidden states, k steps after they were shown.

An agent that fails where something must be remembered may have forgotten it, or never learned to
use it. The read-out tells these apart: each agent plays its own episodes, and from the output
of its memory (HELM's last hidden state, an LSTM's h, a GPT's output; the encoder's features where
there is no memory) the cue is read that was shown k steps before. A fresh agent of the same
settings reads the same episodes: what its memory holds as well was not learned.

The read-out is logistic regression, one for each k, learned from half of the episodes and tried on
the other half, then the other way round: every accuracy is of states of unseen episodes.
Features are standardised over all steps of all episodes, not for each k. A difference is thus
measured by how much the state varies in an episode, as it must for a head; and
noise of 1 % is added, so that none counts that drowns in there.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from gymnasium.spaces import flatdim
from tqdm import tqdm

from analysis.figures import COLOURS, DASHED, QUIET, AnalysisResult, new_figure, style
from analysis.lengths import TASKS
from analysis.run_data import run_folders
from analysis.scoreboard import TASKS as LADDER
from analysis.source import AgentSource
from analysis.statistics import PROBED
from models import agent_class, build_agent
from models.agent import Agent, Memory, Step
from models.observations import AgentInput, Observations
from trainers.build import open_env
from trainers.evaluation import evaluate
from utils.environments import NOT_SHOWN, Environments
from utils.errors import UserError, escape
from utils.seeding import evaluation_seed, seed_everything

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCORED = 100  # episodes of a score
NOISE = 0.01  # standard deviations of a feature
CONSTANT = 1e-6  # spread below which a feature is none
FIRST_POINTS = 10  # values of k up to which none is left out
MOST_POINTS = 40  # values of k, or some more with the first
MOST_ROWS = 4000  # states of one k
LEAST_SHARE = 1 / 8  # of the episodes, from which on a k is read
LEAST_EPISODES = 8
PENALTY_INVERSE = 10.0  # C of the regression, on standardised features
MOST_ITERATIONS = 200
UNTRAINED, DASHES = ", untrained", (0, (2, 1.5))
WIDTH, ROW_HEIGHT = 9.6, 3.1  # inches
THIN, STEP = 1.2, 0.9  # points; lines below others are thicker at the left, so that all are seen
NOTE = "each line is a run, with its 95 % interval over episodes; at the right where it can be read"

CHANCES = {task.env: task.chance for task in LADDER}
CHANCES |= {env: task.chance for env, task in TASKS.items()}
# Where nothing but the cue decides the score. In Key-to-Door nothing has to be remembered.
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


class Reading(NamedTuple):
    """How well the cue can be read k steps later.

    Attributes:
        k: Steps since it was shown last.
        n_episodes: That have states so long after.
        accuracy: Share of states read rightly.
        low, high: Its 95 % interval (Wilson), each episode counted once.
        chance: Share of the most frequent answer.
        shuffled: Accuracy where answers were dealt to episodes at random.
        signal: Variance between the mean states of the answers, as a share of that of all states.
    """

    k: int
    n_episodes: int
    accuracy: float
    low: float
    high: float
    chance: float
    shuffled: float
    signal: float

    @property
    def is_read(self) -> bool:
        """Whether it is at least half of the way from chance to 1, beyond its error."""
        return self.accuracy >= (1 + self.chance) / 2 and self.low > self.chance


class States(NamedTuple):
    """States of one k: their features [R, D], the answers [R], and the episodes' numbers [R]."""

    features: np.ndarray
    answers: np.ndarray
    episodes: np.ndarray


class Line(NamedTuple):
    """How long one memory holds the cue.

    Attributes:
        task: The environment, its length where it has one, and the algorithm.
        agent: The model, and whether it is untrained.
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
        return max((each.k for each in self.readings if each.is_read), default=None)

    @property
    def verdict(self) -> str:
        is_used = None
        if self.score is not None and self.chance is not None:
            is_used = self.score >= (1 + self.chance) / 2
        return VERDICTS[self.decisive.is_read, is_used]


class RecordingAgent(Agent):
    """Several agents that read the same episodes, and the first of them acts.

    Each step is recorded with the cues and, as `states0`, `states1` and so on, the input of each
    agent's heads. `random_share` is the probability of replacing an action by a random one.
    """

    def __init__(
        self, agents: Sequence[Agent], env: Environments, random_share: float, seed: int
    ) -> None:
        super().__init__()
        self.agents, self.env, self.reader = agents, env, agents[0].reader
        self.random_share, self.rng = random_share, np.random.default_rng(seed)

    def initial_memory(self, n_envs: int) -> Any:
        return [agent.initial_memory(n_envs) for agent in self.agents]

    def read(self, observations: Any) -> Observations:
        self.shown = observations
        return self.agents[0].read(observations)

    def act(
        self, percept: AgentInput, memory: Any, deterministic: bool = False, advance: bool = True
    ) -> Step:
        steps = []
        for agent, own in zip(self.agents, cast(list[Memory], memory), strict=True):
            told = percept.showing(agent.read(self.shown))
            steps.append(agent.act(told, own))
            if steps[-1].remembered is None:
                name = type(agent).__name__
                raise UserError(f"{name}: the Step of `act` lacks the memory's output `remembered`")
        self.states = [cast(torch.Tensor, step.remembered) for step in steps]
        is_random = self.rng.random(percept.n_envs) < self.random_share
        if self.reader.action_shape:
            is_random = is_random[:, None]
            shape = percept.n_envs, *self.reader.action_shape
            drawn: np.ndarray = self.rng.uniform(-1, 1, shape).astype(np.float32)
        else:
            n_actions = flatdim(self.env.single_action_space)
            drawn = self.rng.integers(n_actions, size=percept.n_envs)
        if (masks := percept.observations.action_masks) is not None:
            is_random &= masks.cpu().numpy()[np.arange(len(drawn)), drawn]
        actions = np.where(is_random, drawn, steps[0].actions.cpu().numpy())
        return steps[0]._replace(actions=torch.as_tensor(actions, device=percept.is_first.device))

    def explain(self, step: Step) -> dict[str, np.ndarray]:
        """Return the cues [N] and each agent's states [N, D]."""
        states = {f"states{n}": own.cpu().numpy() for n, own in enumerate(self.states)}
        return {"cues": cast(np.ndarray, self.env.cues()), **states}


def analyse(
    paths: Iterable[Path],
    n_episodes: int = PROBED,
    random_share: float = 0.0,
    seed: int = 0,
    trust: bool = False,
) -> AnalysisResult:
    """Let the agents of runs play, and read cues from their memories.

    Args:
        paths: Run folders, folders of them, or checkpoints.
        n_episodes: Of each run.
        random_share: Probability of replacing an action by a random one.
        seed: Of all random draws.
        trust: Whether runs begun elsewhere are trusted.
    """
    places = [own for path in paths for own in ([path] if path.is_file() else run_folders(path))]

    def source_of(place: Path) -> AgentSource:
        return AgentSource([place], n_episodes=n_episodes, seed=seed, trust=trust)

    for place in places:
        source = source_of(place)
        if source.checkpoint is None:
            raise UserError(f"{place}: episodes have no memory to read. Name a run or a checkpoint")
        agent_class(source.config.model).check(source.config)
        with _telling(source):
            pass
    with tqdm(total=len(places) * n_episodes, unit=" episodes", disable=None) as progress:
        lines = [
            line
            for place in places
            for line in lines_of(source_of(place), place, random_share, progress)
        ]
    return AnalysisResult(_draw(lines), list(_summary(lines)), list(_numbers(lines)))


def lines_of(source: AgentSource, place: Path, random_share: float, progress: tqdm) -> list[Line]:
    """Return the line of a run, and that of its untrained twin."""
    config: Any = source.config
    seed = source.seed
    with _telling(source) as env:
        seed_everything(seed)
        fresh = build_agent(config, env.single_observation_space, env.single_action_space)
        agents = [source.agent, fresh.eval()]
        seed_everything(seed)
        episodes = []
        watched = RecordingAgent(agents, env, random_share, seed)
        for recording in evaluate(watched, env, source.n_episodes, seed=source.env_seed):
            episodes.append(recording.steps)
            progress.update()
        n_scored = min(SCORED, source.n_episodes)  # of its own actions alone
        played = evaluate(agents[0], env, n_scored, seed=evaluation_seed(seed + source.n_episodes))
        scored = [recording.episode for recording in played]

    task = TASKS.get(config.env)
    by_success = task is not None and task.metric == "success_mean"
    scores = [bool(each.success) if by_success else each.episode_return for each in scored]
    length = "" if task is None else f" {config.length}"
    name = escape(f"{config.env}{length}, {config.algorithm}")
    chance = CHANCES[config.env] if config.env in DECIDED else None
    horizon = LOOKED_BACK.get(config.env) if task is None else config.length + task.more
    cues = [steps["cues"] for steps in episodes]
    lines = []
    for n, suffix in enumerate(("", UNTRAINED)):
        readings = read_out([steps[f"states{n}"] for steps in episodes], cues, seed)
        if not readings:
            raise UserError(f"{place}: too few cues, or all the same. Play more by --n-episodes")
        score = None if suffix else float(np.mean(scores))
        agent, run = escape(f"{config.model}{suffix}"), escape(str(place))
        lines.append(Line(name, agent, run, score, chance, horizon, readings))
    return lines


@contextmanager
def _telling(source: AgentSource) -> Iterator[Environments]:
    for drawn in (False, True):
        with open_env(source.config, source.env_seed, drawn=drawn) as env:
            env.reset(seed=source.env_seed)
            if env.cues() is not None:
                yield env
                return
    raise UserError(
        f"{source.config.env}: it does not tell its cues. Choose a run in T-Maze, "
        "Visual Match, Key-to-Door, MiniGrid-Memory, RepeatFirst or RepeatPrevious, or give your "
        "environment a method cue() (docs/tutorials/your_environment.md)"
    )


def read_out(states: Sequence[np.ndarray], cues: Sequence[np.ndarray], seed: int) -> list[Reading]:
    """Return how well cues can be read for several k, from 0 to the longest of enough episodes.

    Where something is shown at every step each is read k steps later, later ones regardless; else
    the last that was shown.

    Args:
        states: Of each episode as one memory has read it.  each [T, D] float32
        cues: Numbers of the things to be remembered, or NOT_SHOWN.  each [T] int64
        seed: Of noise, shuffling, and the choice among very many states.
    """
    rng = np.random.default_rng(seed)
    # In random order, but so that every second episode has the same answers: halves of unlike ones
    # would make the read-out guess wrong where there is nothing to read.
    order = rng.permutation(len(cues))
    first = [next(iter(own[own != NOT_SHOWN]), NOT_SHOWN) for own in cues]
    order = order[np.argsort(np.array(first)[order], kind="stable")]
    features, cues = standardised([states[n] for n in order], rng), [cues[n] for n in order]
    is_stream = all((own != NOT_SHOWN).all() for own in cues)
    readings = []
    steps = tqdm(points(cues, is_stream), "reading", unit="k", leave=False, delay=2, disable=None)
    for k in steps:
        shown = states_at(features, cues, k, is_stream, rng)
        if len(np.unique(shown.answers)) > 1:
            readings.append(read(shown, k, rng))
    return readings


def standardised(states: Sequence[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    """Return states [T, D] of each episode with mean 0 and spread 1 over all, and noise added."""
    together = np.concatenate(states).astype(np.float64)
    mean, spread = together.mean(0), together.std(0)
    is_constant = spread < CONSTANT
    together -= mean
    together /= np.where(is_constant, 1.0, spread)
    together[:, is_constant] = 0.0
    together += NOISE * rng.standard_normal(together.shape)
    return np.split(together, np.cumsum([len(own) for own in states])[:-1])


def points(cues: Sequence[np.ndarray], is_stream: bool) -> list[int]:
    longest = []
    for own in cues:
        shown = np.flatnonzero(own != NOT_SHOWN)
        if not len(shown):
            longest.append(NOT_SHOWN)
        elif is_stream:
            longest.append(len(own) - 1)
        else:
            longest.append(int(np.diff(np.append(shown, len(own))).max()) - 1)
    enough = max(LEAST_EPISODES, int(np.ceil(LEAST_SHARE * len(cues))))
    last = sorted(longest)[-enough] if enough <= len(longest) else NOT_SHOWN
    spaced = np.linspace(0, last, min(last, MOST_POINTS) + 1).round()
    return sorted({*range(min(last, FIRST_POINTS) + 1), *map(int, spaced)})


def recalled(cues: np.ndarray, k: int, is_stream: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps of an episode to read at, and the cues k steps before each.  [R], [R]

    Args:
        cues: Of each step.  [T]
        k: Steps since then.
        is_stream: Whether each cue is read in spite of later ones; else only the last.
    """
    steps = np.arange(k, len(cues))
    shown = cues[steps - k]
    is_due = shown != NOT_SHOWN
    if not is_stream:
        numbers = np.where(cues != NOT_SHOWN, np.arange(len(cues)), -1)
        is_due &= np.maximum.accumulate(numbers)[steps] == steps - k
    return steps[is_due], shown[is_due]


def states_at(
    features: Sequence[np.ndarray],
    cues: Sequence[np.ndarray],
    k: int,
    is_stream: bool,
    rng: np.random.Generator,
) -> States:
    found = [recalled(own, k, is_stream) for own in cues]
    chosen = [own[steps] for own, (steps, _) in zip(features, found, strict=True)]
    numbers = np.repeat(np.arange(len(found)), [len(steps) for steps, _ in found])
    states = States(np.concatenate(chosen), np.concatenate([shown for _, shown in found]), numbers)
    if len(numbers) <= MOST_ROWS:
        return states
    rows = np.sort(rng.choice(len(numbers), MOST_ROWS, replace=False))
    return States(*(part[rows] for part in states))


def read(states: States, k: int, rng: np.random.Generator) -> Reading:
    from scipy.stats import binomtest

    n_episodes = len(np.unique(states.episodes))
    accuracy = cross_validated_accuracy(states)
    # Answers within an episode may depend on each other: an interval of episodes is the wider one.
    interval = binomtest(round(accuracy * n_episodes), n_episodes).proportion_ci(method="wilson")
    counts = np.unique(states.answers, return_counts=True)[1]
    chance = float(counts.max() / counts.sum())
    dealt = cross_validated_accuracy(states._replace(answers=shuffled(states, rng)))
    ends = float(interval.low), float(interval.high)
    return Reading(k, n_episodes, accuracy, *ends, chance, dealt, signal(states))


def cross_validated_accuracy(states: States) -> float:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    is_even, n_right = states.episodes % 2 == 0, 0
    for is_learned in (is_even, ~is_even):
        learned, others = states.answers[is_learned], states.answers[~is_learned]
        if len(np.unique(learned)) < 2:  # of one answer there is nothing to learn
            n_right += int((others == learned[:1]).sum())
            continue
        regression = LogisticRegression(C=PENALTY_INVERSE, max_iter=MOST_ITERATIONS)
        with warnings.catch_warnings():  # of answers dealt at random there is no end of learning
            warnings.simplefilter("ignore", ConvergenceWarning)
            regression.fit(states.features[is_learned], learned)
        n_right += int((regression.predict(states.features[~is_learned]) == others).sum())
    return n_right / len(states.answers)


def shuffled(states: States, rng: np.random.Generator) -> np.ndarray:
    """Return the answers after those of each episode were dealt to another.  [R]"""
    own, first, number_of = np.unique(states.episodes, return_index=True, return_inverse=True)
    dealt = rng.permutation(len(own))
    counts = np.bincount(number_of)
    place = np.arange(len(number_of)) - first[number_of]
    source = dealt[number_of]
    return states.answers[first[source] + place % counts[source]]


def signal(states: States) -> float:
    """Return the variance between the means of answers, in that of all states; unbiased.

        (sum_c n_c |m_c - m|^2 - (C - 1) s^2) / (n D),   s^2 = sum |x - m_c|^2 / (n - C)

    Features were standardised, so that all states together have variance D.
    """
    x, n = states.features, len(states.answers)
    between = within = 0.0
    answers = np.unique(states.answers)
    for answer in answers:
        own = x[states.answers == answer]
        between += len(own) * float(((own.mean(0) - x.mean(0)) ** 2).sum())
        within += float(((own - own.mean(0)) ** 2).sum())
    noise = (len(answers) - 1) * within / max(n - len(answers), 1)
    return (between - noise) / (n * x.shape[1])


def _summary(lines: Iterable[Line]) -> Iterator[Sequence[object]]:
    heading = ("task", "agent", "run", "k", "accuracy", "low", "high", "chance", "signal")
    yield (*heading, "in memory up to", "score", "verdict")
    for line in lines:
        reading = line.decisive
        values = (f"{value:.3f}" for value in reading[2:6])
        score = "" if line.score is None else f"{line.score:.2f}"
        reach = "" if line.reach is None else line.reach
        place = (line.task, line.agent, line.run, reading.k)
        yield (*place, *values, f"{reading.signal:.2g}", reach, score, line.verdict)


def _numbers(lines: Iterable[Line]) -> Iterator[Sequence[object]]:
    yield ("task", "agent", "run", "score", *Reading._fields)
    for line in lines:
        score = "" if line.score is None else f"{line.score:.4f}"
        for reading in line.readings:
            values = (f"{value:.6g}" for value in reading[2:])
            yield (line.task, line.agent, line.run, score, *reading[:2], *values)


def _draw(lines: Sequence[Line]) -> "Figure":
    tasks = list(dict.fromkeys(line.task for line in lines))
    families = dict.fromkeys(line.agent.removesuffix(UNTRAINED) for line in lines)
    looks = {
        name: {"color": COLOURS[n % len(COLOURS)], "zorder": 3 + n}
        for n, name in enumerate(families)
    }
    with style():
        figure = new_figure(WIDTH, ROW_HEIGHT * len(tasks) + 0.4)
        panels = figure.subplots(len(tasks), 2, squeeze=False)
        for (left, right), task in zip(panels, tasks, strict=True):
            left.set_title(task)
            _draw_task(left, right, [line for line in lines if line.task == task], looks)
        drawn = [axes.get_legend_handles_labels() for axes in panels[:, 0]]
        found = {label: handle for own in drawn for handle, label in zip(*own, strict=True)}
        labels = sorted(found, key=lambda label: label == "chance")  # it comes last
        handles = [found[label] for label in labels]
        figure.legend(handles, labels, loc="outside upper left", ncols=6, fontsize=9)
        figure.supxlabel(NOTE, x=0.01, ha="left", size=8, color=QUIET)
    return figure


def _draw_task(
    left: "Axes", right: "Axes", lines: Sequence[Line], looks: Mapping[str, dict[str, Any]]
) -> None:
    for line in lines:
        look = looks[line.agent.removesuffix(UNTRAINED)]
        look = {**look, "linestyle": DASHES if line.agent.endswith(UNTRAINED) else "-"}
        width = THIN + STEP * (len(looks) + 2 - look["zorder"])
        k, _, accuracy, low, high, chance, _, signal = np.transpose(line.readings)
        left.plot(k, accuracy, label=line.agent, linewidth=width, **look)
        left.fill_between(k, low, high, color=look["color"], alpha=0.1, linewidth=0)
        is_read = (low > chance) & (signal > 0)
        right.plot(k, np.where(is_read, signal, np.nan), linewidth=THIN, **look)
    longest = max((line.readings for line in lines), key=len)
    k, *_, chance, _, _ = np.transpose(longest)
    left.plot(k, chance, label="chance", **DASHED)
    left.set_ylim(min(chance) - 0.08, 1.03)
    left.set_ylabel("read rightly")
    right.set_yscale("log")
    right.yaxis.set_major_formatter(
        lambda share, _: f"{100 * share:.5f}".rstrip("0").rstrip(".") + " %"
    )
    right.minorticks_off()
    right.set_ylabel("of the variance of all states")
    right.set_title("how much of the state it is", weight="normal", size=9.5, color=QUIET)
    for axes in (left, right):
        axes.set_xlabel("steps since it was shown")
        axes.grid(axis="y")
