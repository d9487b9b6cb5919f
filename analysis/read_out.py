"""A linear read-out of something from hidden states, k steps after it was shown.

Logistic regression, one for each k, learned from half of the episodes and tried on the other half,
then the other way round: every accuracy is of states whose episode the read-out has not seen.

Features are standardised over all steps of all episodes, not for each k. A difference is thus
measured by how much the state varies in an episode, which is what a head has to tell it from; and
noise of 1 % is added, so that none counts that drowns in there.
"""

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from analysis.remembered import Remembered, recalled
from envs.cues import NOT_SHOWN

NOISE = 0.01  # standard deviations of a feature
CONSTANT = 1e-6  # spread below which a feature is none
FIRST_POINTS = 10  # values of k up to which none is left out
MOST_POINTS = 40  # values of k, or some more with the first
MOST_ROWS = 4000  # states of one k
LEAST_SHARE = 1 / 8  # of the episodes, from which on a k is read
LEAST_EPISODES = 8
PENALTY_INVERSE = 10.0  # C of the regression, on standardised features
MOST_ITERATIONS = 200


class Reading(NamedTuple):
    """What can be read k steps later.

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


class States(NamedTuple):
    """States of one k: the features [R, D], what is to be read [R], and of which episode [R]."""

    features: np.ndarray
    answers: np.ndarray
    episodes: np.ndarray


def read_out(episodes: Sequence[Remembered], seed: int) -> list[Reading]:
    """Return what can be read for several k, from 0 to the longest that enough episodes have.

    Where something is shown at every step each is read k steps later, whatever came after it; else
    the last that was shown.

    Args:
        episodes: As one memory has read them.
        seed: Of noise, shuffling, and what is drawn of very many states.
    """
    rng = np.random.default_rng(seed)
    episodes = dealt_alike(episodes, rng)
    features = standardised([episode.states for episode in episodes], rng)
    is_stream = all((episode.cues != NOT_SHOWN).all() for episode in episodes)
    cues = [episode.cues for episode in episodes]
    readings = []
    steps = tqdm(points(cues, is_stream), "reading", unit="k", leave=False, delay=2, disable=None)
    for k in steps:
        states = states_at(features, cues, k, is_stream, rng)
        if len(np.unique(states.answers)) > 1:
            readings.append(read(states, k, rng))
    return readings


def dealt_alike(episodes: Sequence[Remembered], rng: np.random.Generator) -> list[Remembered]:
    """Return episodes in random order, but so that every second of them has the same answers.

    Halves of unlike answers would make the read-out guess wrong where there is nothing to read.
    """
    order = rng.permutation(len(episodes))
    first = [next(iter(own.cues[own.cues != NOT_SHOWN]), NOT_SHOWN) for own in episodes]
    by_answer = np.argsort(np.array(first)[order], kind="stable")
    return [episodes[n] for n in order[by_answer]]


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
    """Return about 40 values of k, from 0 to the longest that enough episodes have."""
    longest = sorted(_longest(own, is_stream) for own in cues)[::-1]
    enough = max(LEAST_EPISODES, int(np.ceil(LEAST_SHARE * len(cues))))
    last = longest[enough - 1] if enough <= len(longest) else NOT_SHOWN
    spaced = np.linspace(0, last, min(last, MOST_POINTS) + 1).round()
    return sorted({*range(min(last, FIRST_POINTS) + 1), *map(int, spaced)})


def states_at(
    features: Sequence[np.ndarray],
    cues: Sequence[np.ndarray],
    k: int,
    is_stream: bool,
    rng: np.random.Generator,
) -> States:
    """Return the states of all episodes k steps after something was shown, 4,000 at most."""
    found = [recalled(own, k, is_stream) for own in cues]
    chosen = [own[steps] for own, (steps, _) in zip(features, found, strict=True)]
    numbers = np.repeat(np.arange(len(found)), [len(steps) for steps, _ in found])
    states = States(np.concatenate(chosen), np.concatenate([shown for _, shown in found]), numbers)
    if len(numbers) <= MOST_ROWS:
        return states
    rows = np.sort(rng.choice(len(numbers), MOST_ROWS, replace=False))
    return States(*(part[rows] for part in states))


def read(states: States, k: int, rng: np.random.Generator) -> Reading:
    """Return how well the answers can be read from states of one k, several answers among them."""
    from scipy.stats import binomtest

    n_episodes = len(np.unique(states.episodes))
    accuracy = crossed_accuracy(states)
    # Answers within an episode may depend on each other: an interval of episodes is the wider one.
    interval = binomtest(round(accuracy * n_episodes), n_episodes).proportion_ci(method="wilson")
    counts = np.unique(states.answers, return_counts=True)[1]
    return Reading(
        k,
        n_episodes,
        accuracy,
        float(interval.low),
        float(interval.high),
        float(counts.max() / counts.sum()),
        crossed_accuracy(states._replace(answers=shuffled(states, rng))),
        signal(states),
    )


def crossed_accuracy(states: States) -> float:
    """Return the share of states read rightly by what has learned from the other half."""
    is_even = states.episodes % 2 == 0
    right = 0
    for is_learned in (is_even, ~is_even):
        right += int(_right(states, is_learned))
    return right / len(states.answers)


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


def _longest(cues: np.ndarray, is_stream: bool) -> int:
    """Return the longest k of an episode, NOT_SHOWN where nothing was ever shown."""
    shown = np.flatnonzero(cues != NOT_SHOWN)
    if not len(shown):
        return NOT_SHOWN
    if is_stream:
        return len(cues) - 1
    return int(np.diff(np.append(shown, len(cues))).max()) - 1


def _right(states: States, is_learned: np.ndarray) -> int:
    """Return how many states outside a half are read rightly by what has learned from it."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    x, answers = states.features[is_learned], states.answers[is_learned]
    others = states.answers[~is_learned]
    if len(np.unique(answers)) < 2:  # of one answer there is nothing to learn
        return int((others == answers[:1]).sum())
    regression = LogisticRegression(C=PENALTY_INVERSE, max_iter=MOST_ITERATIONS)
    with warnings.catch_warnings():  # of answers dealt at random there is no end of learning
        warnings.simplefilter("ignore", ConvergenceWarning)
        regression.fit(x, answers)
    return int((regression.predict(states.features[~is_learned]) == others).sum())
