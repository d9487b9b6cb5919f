"""Goals as a reward: an environment that pays for suggested goals, or for one task.

`info` describes view and deeds in words (docs/reference/goals.md). The environment's own rewards go
into the statistics of episodes and nowhere else.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from string import printable

import numpy as np
from gymnasium.spaces import Dict, Space, Text
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from rewards.episode_goals import (
    SYNONYMS,
    EpisodeGoals,
    Quality,
    RewardRule,
    Similarity,
    SingleTask,
    StepOutcome,
    SuggestedGoals,
    Tidying,
    actions_of,
)
from rewards.settings import GoalSettings
from rewards.suggesters import SUGGESTERS, rules
from utils.environments import Environments, Info, Observation, State, Wrapped
from utils.errors import UserError
from utils.files import object_array
from utils.household import SUITABLE
from utils.settings import Config

GOAL = "goal"  # the key of the sentence in an observation
LONGEST_GOAL = 100_000  # signs
EPISODES_AVERAGED = 100
SITUATION = ("scene", "inventory", "status", "items")  # of info, before an action
AFTERWARDS = ("last_scene", "last_inventory", "last_status", "items_after")
DESCRIBED = "CrafterText-v0"


def with_goals(env: Environments, config: Config) -> Environments:
    """Return environments that pay for the goals of the settings, or unchanged without goals.

    Raises:
        UserError: the environment does not describe in words the things that goals are about.
    """
    goals, n_envs = config.part(GoalSettings), env.num_envs
    task, name, shows_goals = goals.single_task, goals.suggester, goals.goal_conditioned
    names = [str(name) for name in env.metadata.get("action_names", ())]
    if task is not None:
        _check_described(env, config.env, "single_task", names)
        _check_task(task, names)
        tasks = [SingleTask(task, goals.single_task_goals) for _ in range(n_envs)]
        return GoalRewards(env, tasks, rules.Silent(), shows_goals)
    if name is None:
        return env
    _check_described(env, config.env, "suggester", names)
    kind = SUGGESTERS.find(name)
    if SUITABLE in env.metadata:
        # These two ask no model: the household itself knows, or every goal is suggested.
        by_rule = {
            "oracle": lambda: rules.HouseholdOracle(env.metadata[SUITABLE]),
            "novelty": rules.HouseholdSuggester,
        }
        suggester = by_rule[name]() if name in by_rule else kind.configured(config, names)
        return GoalRewards(env, [Tidying() for _ in range(n_envs)], suggester, shows_goals)
    if issubclass(kind, rules.HouseholdSuggester):
        raise UserError(
            f"suggester: {name} judges where things belong, and {config.env} is no household. "
            "Choose env=HousekeepText-v0, or another suggester"
        )
    checks = kind.checks_success if goals.require_success is None else goals.require_success
    suggester = kind.configured(config, names)
    similarity = Similarity(goals.goal_encoder)
    quality = Quality(names) if rules.knows(names) else None
    payment = RewardRule(similarity, goals.goal_threshold, goals.novelty_filter, checks, quality)
    episodes = [SuggestedGoals(payment) for _ in range(n_envs)]
    return GoalRewards(env, episodes, suggester, shows_goals, payment)


class GoalRewards(Wrapped):
    """Pays for goals in place of the environment's rewards, and shows them to the agent.

    `info` has more: "suggestions" [N] tuples, the goals for the next action; in `step` also
    "matched" [N] str or None, the goal that was reached, "goal_success" [N] bool, whether reaching
    it really changed the world, "completed" [N] bool, whether it completed a single task, and
    "goal_rewards" [N]. Statistics of episodes stay those of the environment's own rewards; an
    episode succeeds if a single task was completed in it.

    Args:
        env: With episode statistics, in SAME_STEP autoreset mode, and described in `info`.
        episodes: Of each of N environments.
        payment: The rule that the episodes share, if their goals are suggested.
    """

    def __init__(
        self,
        env: Environments,
        episodes: Sequence[EpisodeGoals],
        suggester: rules.Suggester,
        shows_goals: bool = False,
        payment: RewardRule | None = None,
    ) -> None:
        super().__init__(env)
        self.episodes, self.suggester, self.payment = episodes, suggester, payment
        self.shows_goals, self._tells_success = shows_goals, episodes[0].has_success
        self.has_success = self._tells_success or self.has_success
        self._returns = np.zeros(env.num_envs)
        self._completed = np.zeros(env.num_envs, dtype=bool)
        self._recent: deque[float] = deque(maxlen=EPISODES_AVERAGED)
        if shows_goals:
            self.single_observation_space = _with_goal(env.single_observation_space)
            self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def reset(
        self, *, seed: int | None = None, options: Info | None = None
    ) -> tuple[Observation, Info]:
        observations, info = self.env.reset(seed=seed, options=options)
        self._begin(range(self.num_envs))
        return self._shown(observations, info), info

    def step(
        self, actions: np.ndarray
    ) -> tuple[Observation, np.ndarray, np.ndarray, np.ndarray, Info]:
        # The environment's own rewards are dropped: its statistics have counted them already.
        observations, _, terminated, truncated, info = self.env.step(actions)
        deeds = [_deed(info, row) for row in range(self.num_envs)]
        reached = [each.reached(deed) for each, deed in zip(self.episodes, deeds, strict=True)]
        rewards = np.array([each.reward for each in reached])
        # Of the step alone; `_completed` is of the episode.
        completed = np.array([each.completed for each in reached])
        self._returns += rewards
        # Once is enough: later steps of the episode do not undo it.
        self._completed |= completed
        successes = zip(deeds, reached, strict=True)
        info |= {
            "completed": completed,
            "matched": object_array([each.goal for each in reached]),
            "goal_success": np.array([d.changed and r.goal is not None for d, r in successes]),
            "goal_rewards": rewards,
        }
        ended = terminated | truncated
        if ended.any():
            # Before goals are shown: the next episodes have begun in these observations already.
            self._end(ended, info)
        return self._shown(observations, info), rewards, terminated, truncated, info

    def fingerprints(self) -> dict[str, str]:
        """Return the sha256 of the goal encoder's weights, and the environment's own."""
        return super().fingerprints() | self._compared_by()

    def metrics(self) -> dict[str, float]:
        mean = float(np.mean(self._recent)) if self._recent else math.nan
        graded = self._quality.metrics() if self._quality else {}
        return super().metrics() | {"goals/return_mean": mean} | graded | self.suggester.metrics()

    def state_dict(self) -> State:
        return super().state_dict() | {
            "goals": [episode.state_dict() for episode in self.episodes],
            "suggester": self.suggester.state_dict(),
            "compared_by": self._compared_by(),
            "quality": self._quality.state_dict() if self._quality else None,
            "goal_returns": self._returns.tolist(),
            "completed": self._completed.tolist(),
            "recent_goal_returns": list(self._recent),
        }

    def load_state_dict(self, state: State) -> bool:
        """Continue the saved episodes; False if the environment cannot, and new ones are to begin.

        Raises:
            ValueError: goals were compared by another encoder.
        """
        is_same = super().load_state_dict(state)
        if state["compared_by"] != self._compared_by():
            raise ValueError("goal_encoder: it has other weights than when the run was saved")
        # Counts of the run, the suggester's budget among them, outlive the running episodes.
        self.suggester.load_state_dict(state["suggester"])
        if self._quality:
            self._quality.load_state_dict(state["quality"])
        self._recent = deque(map(float, state["recent_goal_returns"]), EPISODES_AVERAGED)
        # New episodes begin: saved goals belong to others.
        if not is_same:
            return False
        for episode, saved in zip(self.episodes, state["goals"], strict=True):
            episode.load_state_dict(saved)
        self._returns[:] = state["goal_returns"]
        self._completed[:] = state["completed"]
        return True

    @property
    def _quality(self) -> Quality | None:
        return self.payment.quality if self.payment else None

    def _compared_by(self) -> dict[str, str]:
        return {"goal_encoder": self.payment.similarity.fingerprint} if self.payment else {}

    def _begin(self, rows: Iterable[int]) -> None:
        for row in rows:
            self.episodes[row].begin()
            self._returns[row], self._completed[row] = 0.0, False

    def _end(self, ended: np.ndarray, info: Info) -> None:
        rows = np.flatnonzero(ended).tolist()
        if self.shows_goals:
            # Goals of the final observation, for the value estimate of a cut episode.
            for row in rows:
                episode = self.episodes[row]
                told = episode.with_history(_situation(info, row, AFTERWARDS))
                (suggested,) = self.suggester.suggest([told])
                shown = sentence(episode.goals if suggested is None else episode.wanted(suggested))
                info["final_obs"][row] = _joined(info["final_obs"][row], shown)
        if self._tells_success:  # a task completed once makes the episode a success
            info["episode"]["success"] = self._completed & ended
            info |= {"success": self._completed & ended, "_success": ended}
        # Before `_begin` sets them to 0.
        self._recent.extend(self._returns[rows].tolist())
        # Before goals are suggested again: the next ones are the new episodes'.
        self._begin(rows)

    def _shown(self, observations: Observation, info: Info) -> Observation:
        told = [each.with_history(_situation(info, row)) for row, each in enumerate(self.episodes)]
        # All environments at once: a language model reads their new scenes together.
        suggested = self.suggester.suggest(told)
        for episode, situation, goals in zip(self.episodes, told, suggested, strict=True):
            episode.look(situation, list(episode.goals) if goals is None else goals)
        wanted = [tuple(episode.goals) for episode in self.episodes]
        info["suggestions"] = object_array(wanted)
        if not self.shows_goals:
            return observations
        return _joined(observations, tuple(map(sentence, wanted)))


def sentence(goals: Iterable[str]) -> str:
    return f"Your goal is: {' '.join(goals)}."


def _check_described(env: VectorEnv, env_name: str, name: str, action_names: Sequence[str]) -> None:
    # A wrapper may add words, so only `info` shows them; the first step resets again.
    _, info = env.reset()
    if action_names and all(key in info for key in SITUATION):
        return
    raise UserError(
        f"{name}: goals need an environment that describes itself in words, and {env_name} says "
        f"nothing. Choose env={DESCRIBED}, or leave {name} out"
    )


def _check_task(task: str, action_names: Sequence[str]) -> None:
    known = {*action_names, *(SYNONYMS.get(name, name) for name in action_names)}
    missing = sorted(actions_of(task) - known)
    if missing:
        raise UserError(
            f"single_task: '{task}' needs the action '{missing[0]}', which is not there. Choose "
            f"env={DESCRIBED}, or another task"
        )


def _with_goal(space: Space) -> Dict:
    parts = dict(space.spaces) if isinstance(space, Dict) else {"observation": space}
    if GOAL in parts:
        raise UserError(
            f"goal_conditioned: observations of the environment have a '{GOAL}' of their own. "
            "Rename that"
        )
    return Dict(parts | {GOAL: Text(LONGEST_GOAL, charset=printable)})


def _joined(observations: Observation, goals: Observation) -> dict[str, Observation]:
    parts = observations if isinstance(observations, dict) else {"observation": observations}
    return {**parts, GOAL: goals}


def _situation(info: Info, row: int, names: Sequence[str] = SITUATION) -> rules.TextState:
    scene, inventory, status, items = (info[name][row] for name in names)
    return rules.TextState(str(scene), str(inventory), str(status), items)


def _deed(info: Info, row: int) -> StepOutcome:
    return StepOutcome(
        str(info["phrase"][row]),
        bool(info["action_success"][row]),
        bool(info["eval_success"][row]),
        info["items_after"][row],
        info["around_target"][row] if "around_target" in info else (),
    )
