"""Goals as a reward: an environment that pays for what somebody suggests, or for one task.

The environment says in words what is seen and what was done (`info`, docs/goals.md); what it pays
itself goes into the statistics of episodes and nowhere else.
"""

import math
from collections import deque
from collections.abc import Sequence
from string import printable
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from gymnasium.spaces import Dict, Space, Text
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from rewards.goal_settings import GoalSettings
from rewards.quality import Quality
from rewards.similarity import similarity
from rewards.suggested_goals import Payment, SuggestedGoals
from rewards.suggestions import SUGGESTERS, oracle
from rewards.suggestions.household import HouseholdSuggester, by_rule
from rewards.suggestions.suggester import Situation, Suggester
from rewards.tasks import TWINS, Deed, Reached, TaskGoals, actions_of
from rewards.tidying import TidyingGoals
from settings import Config
from utils.errors import UserError
from utils.files import objects
from utils.household import SUITABLE

GOAL = "goal"  # the key of the sentence in an observation
LONGEST_GOAL = 100_000  # signs
EPISODES_AVERAGED = 100
SITUATION = ("scene", "inventory", "status", "items")  # of info, before an action
AFTERWARDS = ("last_scene", "last_inventory", "last_status", "items_after")
DESCRIBED = "CrafterText-v0"

AnyEnv = TypeVar("AnyEnv", bound=VectorEnv)


class Goals(Protocol):
    """What is wanted in N environments, and what is paid for it.

    Attributes:
        has_success: Whether an episode succeeds or fails by it.
    """

    has_success: bool

    @property
    def shown(self) -> list[tuple[str, ...]]:
        """What is wanted now in each environment."""

    def begin(self, rows: Sequence[int]) -> None:
        """Note that other episodes begin in some environments."""

    def reached(self, deeds: Sequence[Deed]) -> list[Reached]:
        """Take in a step of each environment and return what it is paid for."""

    def look(self, situations: Sequence[Situation]) -> None:
        """Take in what each environment shows before the next action."""

    def foreseen(self, row: int, situation: Situation) -> tuple[str, ...]:
        """Return what would be wanted next if the episode of an environment went on."""

    def fingerprints(self) -> dict[str, str]:
        """Return the sha256 of frozen weights, by the setting that names them."""

    def metrics(self) -> dict[str, float]:
        """Return what there is to log, always under the same names."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""


def with_goals(env: AnyEnv, config: Config) -> "AnyEnv | GoalRewards":
    """Return environments that pay for the goals of the settings; as they are where there are none.

    Args:
        env: With episode statistics.
        config: The settings.

    Raises:
        UserError: the environment does not say in words what these goals are about.
    """
    goal_settings = config.part(GoalSettings)
    names = [str(name) for name in env.metadata.get("action_names", ())]
    if goal_settings.single_task is not None:
        _check_described(env, "single_task", names)
        _check_task(goal_settings.single_task, names)
        kind = goal_settings.single_task_goals
        goals: Goals = TaskGoals(goal_settings.single_task, kind, env.num_envs)
    elif goal_settings.suggester is not None:
        _check_described(env, "suggester", names)
        if SUITABLE in env.metadata:
            goals = _tidying(goal_settings, config, env, names)
        else:
            goals = _suggested(goal_settings, config, names, env.num_envs)
    else:
        return env
    return GoalRewards(env, goals, goal_settings.goal_conditioned)


class GoalRewards(VectorWrapper):
    """Pays for goals in the place of what the environment pays, and shows them to the agent.

    `info` says more: "suggestions" [N] tuples, what is wanted for the next action; in `step` also
    "matched" [N] str or None, the goal that was reached, "goal_success" [N] bool, whether reaching
    it really changed the world, "completed" [N] bool, whether that was all of a single task, and
    "goal_rewards" [N]. Statistics of episodes stay those of the environment's own rewards; an
    episode succeeds if a single task was completed in it.

    Args:
        env: With episode statistics, in SAME_STEP autoreset mode, and described in `info`.
        goals: What is wanted, and paid.
        shows_goals: Whether observations have them, under the key "goal".
    """

    def __init__(self, env: VectorEnv, goals: Goals, shows_goals: bool) -> None:
        super().__init__(env)
        self.goals, self.shows_goals = goals, shows_goals
        self.has_success = goals.has_success or getattr(env, "has_success", False)
        self._returns = np.zeros(env.num_envs)
        self._completed = np.zeros(env.num_envs, dtype=bool)
        self._recent: deque[float] = deque(maxlen=EPISODES_AVERAGED)
        if shows_goals:
            self.single_observation_space = _with_goal(env.single_observation_space)
            self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode everywhere, with goals for what is seen first."""
        observations, info = self.env.reset(seed=seed, options=options)
        self._begin(range(self.num_envs))
        return self._shown(observations, info), info

    def step(
        self, actions: np.ndarray
    ) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Take one step everywhere and pay for the goals that were reached."""
        observations, _, terminated, truncated, info = self.env.step(actions)
        deeds = [_deed(info, row) for row in range(self.num_envs)]
        reached = self.goals.reached(deeds)
        rewards = np.array([each.reward for each in reached])
        self._returns += rewards
        completed = np.array([each.completed for each in reached])
        self._completed |= completed
        info |= {
            "completed": completed,
            "matched": objects([each.goal for each in reached]),
            "goal_success": np.array(
                [
                    deed.changed and each.goal is not None
                    for deed, each in zip(deeds, reached, strict=True)
                ]
            ),
            "goal_rewards": rewards,
        }
        ended = terminated | truncated
        if ended.any():
            self._end(np.flatnonzero(ended), ended, info)
        return self._shown(observations, info), rewards, terminated, truncated, info

    def fingerprints(self) -> dict[str, str]:
        """Return the sha256 of the weights that goals are compared with, and of the world's own."""
        own: dict[str, str] = getattr(self.env, "fingerprints", dict)()
        return own | self.goals.fingerprints()

    def metrics(self) -> dict[str, float]:
        """Return what the environments and the goals have to log."""
        own: dict[str, float] = getattr(self.env, "metrics", dict)()
        mean = float(np.mean(self._recent)) if self._recent else math.nan
        return own | {"goals/return_mean": mean} | self.goals.metrics()

    def state_dict(self) -> dict[str, Any]:
        """Return where the environments stand, if they can say, and the goals in them."""
        state = cast(Any, self.env).state_dict()
        return state | {
            "goals": self.goals.state_dict(),
            "goal_returns": self._returns.tolist(),
            "completed": self._completed.tolist(),
            "recent_goal_returns": list(self._recent),
        }

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Continue the saved episodes; return False where that cannot be: begin new ones then."""
        if not cast(Any, self.env).load_state_dict(state):
            return False
        self.goals.load_state_dict(state["goals"])
        self._returns[:] = state["goal_returns"]
        self._completed[:] = state["completed"]
        self._recent = deque(map(float, state["recent_goal_returns"]), EPISODES_AVERAGED)
        return True

    def _begin(self, rows: Sequence[int]) -> None:
        self.goals.begin(rows)
        self._returns[rows], self._completed[rows] = 0.0, False

    def _end(self, rows: np.ndarray, ended: np.ndarray, info: dict[str, Any]) -> None:
        """Take in that the episodes of some rows have ended, and that others have begun there."""
        if self.shows_goals:
            for row in rows.tolist():
                foreseen = self.goals.foreseen(row, _situation(info, row, AFTERWARDS))
                info["final_obs"][row] = _joined(info["final_obs"][row], sentence(foreseen))
        if self.goals.has_success:
            info["episode"]["success"] = self._completed & ended
            info |= {"success": self._completed & ended, "_success": ended}
        self._recent.extend(self._returns[rows].tolist())
        self._begin(rows.tolist())

    def _shown(self, observations: Any, info: dict[str, Any]) -> Any:
        """Have goals suggested for what is seen, and return it with them where they are shown."""
        self.goals.look([_situation(info, row) for row in range(self.num_envs)])
        wanted = self.goals.shown
        info["suggestions"] = objects(wanted)
        if not self.shows_goals:
            return observations
        return _joined(observations, tuple(sentence(goals) for goals in wanted))


def sentence(goals: Sequence[str]) -> str:
    """Return goals as the agent reads them."""
    return f"Your goal is: {' '.join(goals)}."


def _suggested(
    goal_settings: GoalSettings, config: Config, names: Sequence[str], n_envs: int
) -> SuggestedGoals:
    """Return goals that the chosen suggester suggests."""
    chosen = cast(str, goal_settings.suggester)
    kind = SUGGESTERS.find(chosen)
    if issubclass(kind, HouseholdSuggester):
        raise UserError(
            f"suggester: {chosen} asks where things belong, and {config.env} is "
            "no household. Choose env=HousekeepText-v0, or another suggester"
        )
    suggester = kind.configured(config, names)
    checks = goal_settings.check_success
    payment = Payment(
        goal_settings.goal_threshold,
        goal_settings.novelty_filter,
        kind.checks_success if checks is None else checks,
    )
    quality = Quality(names) if oracle.knows(names) else None
    return SuggestedGoals(
        suggester, similarity(goal_settings.goal_encoder), payment, quality, n_envs
    )


def _tidying(
    goal_settings: GoalSettings, config: Config, env: VectorEnv, names: Sequence[str]
) -> TidyingGoals:
    """Return goals of a household that the chosen suggester suggests."""
    chosen = cast(str, goal_settings.suggester)
    suggester: Suggester | None = by_rule(chosen, env.metadata[SUITABLE])
    suggester = suggester or SUGGESTERS.find(chosen).configured(config, names)
    return TidyingGoals(suggester, env.num_envs)


def _check_described(env: VectorEnv, name: str, action_names: Sequence[str]) -> None:
    """Raise UserError unless an environment says in words what is seen and how actions are called.

    The episodes that are begun to find out are nobody's: the first step needs a reset.
    """
    _, info = env.reset()
    if action_names and all(key in info for key in SITUATION):
        return
    kind = type(env.unwrapped).__name__
    raise UserError(
        f"{name}: goals are compared with what an environment says in words, and {kind} says "
        f"nothing. Choose env={DESCRIBED}, or leave {name} out"
    )


def _check_task(task: str, action_names: Sequence[str]) -> None:
    """Raise UserError unless the actions that a task needs are there."""
    known = {*action_names, *(TWINS.get(name, name) for name in action_names)}
    missing = sorted(actions_of(task) - known)
    if missing:
        raise UserError(
            f"single_task: '{task}' needs the action '{missing[0]}', which is not there. Choose "
            f"env={DESCRIBED}, or another task"
        )


def _with_goal(space: Space) -> Dict:
    """Return the space of observations with the sentence of the goals beside them."""
    parts = dict(space.spaces) if isinstance(space, Dict) else {"observation": space}
    if GOAL in parts:
        raise UserError(
            f"goal_conditioned: the environment shows something of the name '{GOAL}' itself. "
            "Rename that"
        )
    return Dict(parts | {GOAL: Text(LONGEST_GOAL, charset=printable)})


def _joined(observations: Any, goals: Any) -> dict[str, Any]:
    """Return observations with the sentences of the goals beside them."""
    parts = observations if isinstance(observations, dict) else {"observation": observations}
    return {**parts, GOAL: goals}


def _situation(info: dict[str, Any], row: int, names: Sequence[str] = SITUATION) -> Situation:
    """Return what one environment says of what is seen."""
    scene, inventory, status, items = (info[name][row] for name in names)
    return Situation(str(scene), str(inventory), str(status), items)


def _deed(info: dict[str, Any], row: int) -> Deed:
    """Return what one environment says of what was done."""
    return Deed(
        str(info["phrase"][row]),
        bool(info["action_success"][row]),
        bool(info["eval_success"][row]),
        info["items_after"][row],
        info["around_target"][row] if "around_target" in info else (),
    )
