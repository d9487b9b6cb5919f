"""Goals that are suggested as the episode goes: reaching one is paid, and it is not asked again."""

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from rewards.quality import REWARDED, SUGGESTED, Quality
from rewards.similarity import Similarity
from rewards.suggestions.suggester import Situation, Suggester
from rewards.tasks import NOTHING, TWINS, Deed, Reached

LAST_ACTIONS = 5  # that a suggester is told
UNGRADED = ""


class Payment(NamedTuple):
    """What is paid.

    Attributes:
        threshold: Similarity above which an action reaches a goal.
        once: Whether a goal is paid, and suggested, once an episode.
        checks_success: Whether an action must succeed.
    """

    threshold: float
    once: bool
    checks_success: bool


class Episode:
    """What is known of one environment's episode.

    Attributes:
        achieved: Goals that were paid, and their twins.
        done: Actions that succeeded, paid or not, and their twins: what an oracle remembers.
        actions: The last ones that really changed the world.
        goals: What is suggested now, and how good each is.
    """

    def __init__(self) -> None:
        self.goals: dict[str, str] = {}
        self.begin()

    def begin(self) -> None:
        """Forget all of it but what is suggested: another episode begins."""
        self.achieved: set[str] = set()
        self.done: set[str] = set()
        self.actions: deque[str] = deque(maxlen=LAST_ACTIONS)

    def note(self, deed: Deed, counts: bool, matched: str | None) -> None:
        """Take in a step: whether it counts as done, and what it was paid for."""
        if deed.changed:
            self.actions.append(deed.phrase)
        if counts:
            self.done |= _both_names(deed.phrase)
        if matched is not None:
            self.achieved |= _both_names(matched)

    def state_dict(self) -> dict[str, Any]:
        """Return all of it."""
        return {
            "achieved": sorted(self.achieved),
            "done": sorted(self.done),
            "actions": list(self.actions),
            "goals": dict(self.goals),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.achieved, self.done = set(state["achieved"]), set(state["done"])
        self.actions = deque(state["actions"], LAST_ACTIONS)
        self.goals = dict(state["goals"])


class SuggestedGoals:
    """Goals in N environments, suggested for each situation, reached by the likeness of words.

        s_g = similarity(phrase, g),    reward = max_g s_g if that is above the threshold, else 0

    where the phrase is what the action is called and g runs over what was suggested before it (Du
    et al. 2023, arXiv:2302.06692, section 3). The goal of the greatest similarity is achieved, and
    its twin with it.

    Args:
        suggester: Suggests them.
        similarity: Compares phrases with them.
        payment: What is paid.
        quality: Counts how good they are, where somebody can judge.
        n_envs: N.
    """

    has_success = False

    def __init__(
        self,
        suggester: Suggester,
        similarity: Similarity,
        payment: Payment,
        quality: Quality | None,
        n_envs: int,
    ) -> None:
        self.suggester, self.similarity, self.payment = suggester, similarity, payment
        self.quality = quality
        self.episodes = [Episode() for _ in range(n_envs)]

    @property
    def shown(self) -> list[tuple[str, ...]]:
        """What is suggested now in each environment."""
        return [tuple(episode.goals) for episode in self.episodes]

    def begin(self, rows: Sequence[int]) -> None:
        """Note that other episodes begin in some environments."""
        for row in rows:
            self.episodes[row].begin()

    def reached(self, deeds: Sequence[Deed]) -> list[Reached]:
        """Take in a step of each environment and return what it is paid for."""
        return [self._reached(*each) for each in zip(self.episodes, deeds, strict=True)]

    def look(self, situations: Sequence[Situation]) -> None:
        """Take in what is seen in each environment, and have goals suggested for it."""
        told = [
            situation._replace(actions=tuple(episode.actions))
            for episode, situation in zip(self.episodes, situations, strict=True)
        ]
        suggested = self.suggester.suggest(told)
        for episode, situation, goals in zip(self.episodes, told, suggested, strict=True):
            episode.goals = self._graded(self._new(episode, goals), situation, episode)

    def foreseen(self, row: int, situation: Situation) -> tuple[str, ...]:
        """Return what would be suggested next if the episode of an environment went on."""
        episode = self.episodes[row]
        told = situation._replace(actions=tuple(episode.actions))
        (goals,) = self.suggester.suggest([told])
        return tuple(self._new(episode, goals))

    def fingerprints(self) -> dict[str, str]:
        """Return the sha256 of the weights that texts are compared with."""
        return {"goal_encoder": self.similarity.fingerprint}

    def metrics(self) -> dict[str, float]:
        """Return what there is to log of suggestions, and what they cost."""
        judged = {} if self.quality is None else self.quality.metrics()
        return judged | self.suggester.metrics()

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""
        return {
            "episodes": [episode.state_dict() for episode in self.episodes],
            "quality": None if self.quality is None else self.quality.state_dict(),
            "suggester": self.suggester.state_dict(),
            "similarity": self.similarity.fingerprint,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state.

        Raises:
            ValueError: goals were compared by another encoder.
        """
        if state["similarity"] != self.similarity.fingerprint:
            raise ValueError("goal_encoder: it has other weights than when the run was saved")
        for episode, saved in zip(self.episodes, state["episodes"], strict=True):
            episode.load_state_dict(saved)
        if self.quality is not None:
            self.quality.load_state_dict(state["quality"])
        self.suggester.load_state_dict(state["suggester"])

    def _reached(self, episode: Episode, deed: Deed) -> Reached:
        counts = deed.succeeded or not self.payment.checks_success
        reached = NOTHING
        if counts:
            goal, likeness = self.similarity.best(deed.phrase, episode.goals)
            if goal is not None and likeness > self.payment.threshold:
                reached = Reached(goal, likeness)
                if self.quality is not None:
                    self.quality.count(REWARDED, [episode.goals[goal]])
        episode.note(deed, counts, reached.goal)
        return reached

    def _new(self, episode: Episode, goals: Sequence[str]) -> list[str]:
        """Return the goals that can still be paid."""
        if not self.payment.once:
            return list(goals)
        return [goal for goal in goals if goal not in episode.achieved]

    def _graded(
        self, goals: Sequence[str], situation: Situation, episode: Episode
    ) -> dict[str, str]:
        """Return goals, none twice, with how good each is, and count them."""
        if self.quality is None:
            return dict.fromkeys(goals, UNGRADED)
        grades = self.quality.grades(goals, situation, episode.done)
        self.quality.count(SUGGESTED, grades.values())
        return grades


def _both_names(deed: str) -> set[str]:
    """Return what a deed is called, and its other name if it has one."""
    return {deed, TWINS.get(deed, deed)}
