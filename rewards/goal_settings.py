"""What is wanted in a run, who says so, and what is paid: the settings of goals."""

import dataclasses
import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from models.sentence_encoder import DEFAULT_ENCODER
from rewards.similarity import SAME_TEXT
from rewards.suggestions import ASKING, SILENT, SUGGESTERS
from rewards.tasks import KINDS, ONLY_BY_SUBGOALS, REWARD_LAST, SURVIVAL, TASK, TASKS
from settings import Config, Part, setting
from utils.errors import UserError, suggestion

ALL = "all"  # tasks

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GoalSettings(Part):
    """What is wanted, who says so, and what is paid."""

    title = "goals"

    suggester: str | None = setting(
        "who suggests goals, which are then the reward in the place of the environment's; null: "
        "nobody",
        choices=tuple(SUGGESTERS.places),
        default=None,
    )
    single_task: str | None = setting(
        "one task of Crafter, the reward in the place of suggestions",
        choices=tuple(TASKS),
        default=None,
    )
    single_task_goals: str = setting(
        "what of a single task is shown and paid: it alone, its subgoals, or these shown and the "
        "last one paid",
        choices=KINDS,
        default=TASK,
    )
    goal_conditioned: bool = setting("show the agent its goals, as a sentence", default=False)
    goal_threshold: float = setting(
        "likeness of an action and a goal above which it is reached",
        low=0,
        high=0.9999,
        default=0.99,
    )
    goal_encoder: str = setting(
        "frozen BERT that compares actions with goals: all-MiniLM-L6-v2, hub name, folder; "
        f"{SAME_TEXT}: letter by letter",
        default=DEFAULT_ENCODER,
        safe=(DEFAULT_ENCODER, SAME_TEXT),
    )
    novelty_filter: bool = setting("a goal is suggested and paid once an episode", default=True)
    check_success: bool | None = setting(
        "an action must succeed to reach a goal; null: yes, but not where every new action is one",
        default=None,
    )


# What an evaluation may change: the agent stays as it is.
OF_EVALUATION = {field.name for field in dataclasses.fields(GoalSettings)} - {"goal_conditioned"}
_DEFAULTS = {field.name: field.metadata["default"] for field in dataclasses.fields(GoalSettings)}
# Settings that say nothing unless another one is given.
_NEEDS = {
    "goal_threshold": "suggester",
    "goal_encoder": "suggester",
    "novelty_filter": "suggester",
    "check_success": "suggester",
    "single_task_goals": "single_task",
}


def contradictions(config: GoalSettings) -> list[str]:
    """Return one line for every pair of settings of goals that cannot both hold."""
    task = config.single_task
    lines = [
        f"{name}: it is read with {needed} alone, and {needed} is null. Add {needed}=..., or leave "
        f"{name} out"
        for name, needed in _idle(config).items()
        if getattr(config, name) != _DEFAULTS[name]
    ]
    if config.suggester is not None and task is not None:
        lines.append(
            f"single_task: '{task}' is wanted, and suggester={config.suggester} suggests something "
            "else. Give one of them"
        )
    if task in ONLY_BY_SUBGOALS and config.single_task_goals == TASK:
        lines.append(
            f"single_task: '{task}' is paid by its subgoals alone. Add single_task_goals=subgoals, "
            f"or {REWARD_LAST}"
        )
    if config.goal_conditioned and config.suggester is None and task is None:
        lines.append("goal_conditioned: there are no goals. Add suggester=oracle or a single_task")
    return lines


def as_played(config: Config, given: Collection[str]) -> Config:
    """Return the settings of a run that is played, perhaps for other goals than its own.

    A task that is given takes the place of the run's suggester, and a suggester that of its task;
    what then says nothing any more is as if nobody had ever given it. A language model is asked
    for suggestions only where its suggester is given.

    Args:
        config: Of the run, with what is given for playing.
        given: The names of that.

    Raises:
        UserError: a line for every pair of settings that cannot both hold.
    """
    rivals = {"single_task": "suggester", "suggester": "single_task"}
    for name, rival in rivals.items():
        if name in given and rival not in given and getattr(config, name) is not None:
            without: dict[str, Any] = {rival: None}
            config = replace(config, **without)
    if "suggester" not in given:
        config = _unasked(config)
    idle = [name for name in _idle(config.part(GoalSettings)) if name not in given]
    config = replace(config, **{name: _DEFAULTS[name] for name in idle})
    problems = contradictions(config.part(GoalSettings))
    if problems:
        raise UserError(*problems)
    return config


def task_settings(config: Config, names: str) -> dict[str, Config]:
    """Return the settings to play single tasks with, by task.

    They are tasks whole, whatever the run was trained with, but for those that are never done so:
    of these the last subgoal counts, and all are shown.

    Args:
        config: Of a run.
        names: Of tasks, with commas between them, or "all".

    Raises:
        UserError: there is no such task, or it has no end.
    """
    endless = {SURVIVAL}
    tasks = [name for name in TASKS if name not in endless] if names == ALL else names.split(",")
    wrong = [task for task in tasks if task not in TASKS or task in endless]
    if wrong:
        hint = suggestion(wrong[0], TASKS) if wrong[0] not in TASKS else " It is never completed"
        allowed = ", ".join(name for name in TASKS if name not in endless)
        raise UserError(f"--tasks: '{wrong[0]}' is none of {ALL}, {allowed}.{hint}")
    return {task: replace(config, **_of_task(task)) for task in tasks}


def _unasked(config: Config) -> Config:
    """Return settings under which no language model is asked for goals."""
    suggester = config.part(GoalSettings).suggester
    if suggester not in ASKING:
        return config
    log.info(
        f"no goals are suggested: suggester={suggester} asks a language model, and playing asks "
        f"one only with --var suggester={suggester}"
    )
    # An agent that reads its goals reads that there are none.
    reads_goals = config.part(GoalSettings).goal_conditioned
    changed: dict[str, Any] = {"suggester": SILENT if reads_goals else None}
    return replace(config, **changed)


def _idle(config: GoalSettings) -> dict[str, str]:
    """Return the settings that say nothing beside the others, and what they would need."""
    return {name: needed for name, needed in _NEEDS.items() if getattr(config, needed) is None}


def _of_task(task: str) -> dict[str, Any]:
    """Return what a task changes of any settings."""
    kind = REWARD_LAST if task in ONLY_BY_SUBGOALS else TASK
    return {"suggester": None, "single_task": task, "single_task_goals": kind}
