"""Goals, oracle and tasks against the numbers of the original, on texts and flags alone."""

import itertools
import json

import numpy as np
import pytest

from rewards import episode_goals
from rewards.episode_goals import Quality, RewardRule, Similarity, SingleTask, SuggestedGoals
from rewards.goals import GoalRewards
from rewards.settings import KINDS
from rewards.suggesters.rules import EFFECTIVE, RULES, Novelty, Oracle, Silent, TextState
from tests.described import ToldVectorEnv
from tests.golden_data import GOLDEN

FOLDER = GOLDEN / "ellm"
TABLES = json.loads((FOLDER / "crafter_tables.json").read_text())
STEPS = json.loads((FOLDER / "crafter_steps.json").read_text())
PLAYED = json.loads((FOLDER / "crafter_tasks.json").read_text())
NAMES = [action["string"] for action in TABLES["actions_139"]]
KIND_OF = {False: "task", True: "subgoals", "reward_last": "reward-last"}
NOWHERE = {"scene": "you see .", "inventory": "", "status": "", "items": {}}


@pytest.fixture(scope="module")
def arrays():
    with np.load(FOLDER / "crafter_steps.npz") as file:
        return {name: file[name] for name in file.files}


def held(counts):
    return {name: int(n) for name, n in zip(TABLES["items"], counts, strict=True) if n}


def seen(row, counts, after=""):
    texts = (row[f"{name}{after}"] for name in ("scene", "inventory_text", "status_text"))
    return dict(zip(("scene", "inventory", "status"), texts, strict=True)) | {"items": held(counts)}


def told(row, number, arrays):
    """Return the environment's info of the step of a golden row."""
    flags = {name: bool(arrays[name][number]) for name in ("action_success", "eval_success")}
    after = seen(row, arrays["inventory_after"][number], "_after")
    return {"phrase": row["action"], "items_after": after["items"]} | flags | after


class Listed:
    """Suggests a list once, then the oracle's goals."""

    def __init__(self, goals):
        self.waiting = [list(goals)]

    def suggest(self, situations):
        return [self.waiting.pop()] if self.waiting else Oracle().suggest(situations)


def test_every_step_is_paid_and_remembered_as_the_original_does(arrays):
    assert len(STEPS) == len(arrays["text_reward"]) > 0
    similarity, quality = Similarity("same-text"), Quality(NAMES)
    for number, row in enumerate(STEPS):
        first = seen(row, arrays["inventory"][number])
        env = ToldVectorEnv(first, [told(row, number, arrays)], NAMES)
        checks = bool(arrays["check_success"][number])
        payment = RewardRule(similarity, checks_success=checks, quality=quality)
        episode = SuggestedGoals(payment)
        layer = GoalRewards(env, [episode], Listed(row["suggestions"]), payment=payment)
        layer.reset()
        episode.achieved = set(row["achieved_before"])
        episode.done = set(row["oracle_achieved_before"])
        _, rewards, _, _, info = layer.step(np.array([NAMES.index(row["action"])]))
        assert rewards.item() == arrays["text_reward"][number] == info["goal_rewards"].item()
        assert info["matched"].item() == row["matched"]
        assert info["goal_success"].item() == arrays["goal_success"][number]
        assert sorted(episode.achieved) == row["achieved_after"]
        assert sorted(episode.done) == row["oracle_achieved_after"]
        assert list(info["suggestions"][0]) == row["next_suggestions"]


def test_the_oracle_suggests_what_the_original_does_in_its_order(arrays):
    situations = [TextState(**seen(row, arrays["inventory"][n])) for n, row in enumerate(STEPS)]
    assert Oracle().suggest(situations) == [row["oracle"] for row in STEPS]


def test_the_rules_are_those_of_the_original():
    for rule, expected in zip(RULES, TABLES["oracle_preconditions"], strict=True):
        needs = {"inventory": dict(rule.needs), "in_scene_sentence": list(rule.seen)}
        assert needs | {"goal": rule.goal} == expected
    assert sorted(TABLES["good_actions"]) == sorted(EFFECTIVE)


def test_the_novel_goals_are_all_actions_that_were_not_done():
    suggested = Novelty(NAMES).suggest([None])[0]
    rows = [row for row in STEPS if row["suggestion_source"] == "novel"]
    assert rows
    for row in rows:
        new = [goal for goal in suggested if goal not in row["achieved_before"]]
        assert new == row["suggestions"]


def task_step(step):
    return {
        **NOWHERE,
        **{name: step[name] for name in ("action_success", "eval_success", "around_target")},
        "phrase": step["action"],
        "items_after": {"wood_pickaxe": step["wood_pickaxes"]},
    }


@pytest.mark.parametrize(
    "entry", PLAYED, ids=lambda each: f"{each['task']}-{KIND_OF[each['hierarchical']]}"
)
def test_every_step_of_a_task_is_paid_as_the_original_does(entry):
    steps = entry["steps"]
    task = SingleTask(entry["task"], KIND_OF[entry["hierarchical"]])
    env = ToldVectorEnv(NOWHERE, map(task_step, steps), NAMES)
    layer = GoalRewards(env, [task], Silent(), shows_goals=True)
    observation, info = layer.reset()
    n_completed = 0
    for step in steps:
        assert info["suggestions"][0] == (step["goal_before"],)
        assert observation["goal"] == (f"Your goal is: {step['goal_before']}.",)
        assert task.place == step["subgoal_before"]
        observation, rewards, _, _, info = layer.step(np.array([NAMES.index(step["action"])]))
        completed = info["completed"].item()
        n_completed += completed
        assert (completed and entry["end_on_success"]) == step["done"]
        assert rewards.item() == step["reward"]
        assert info["goal_success"].item() == bool(step["goal_success"])
        assert task.place == step["subgoal_after"]
        assert info["suggestions"][0] == (step["goal_after"],)
        assert n_completed == step["successes"]


def test_the_golden_tasks_are_all_tasks_in_every_kind():
    listed = {each["task"]: tuple(each["subgoals"]) for each in TABLES["tasks"]}
    assert listed == episode_goals.TASKS
    cases = {(entry["task"], KIND_OF[entry["hierarchical"]]) for entry in PLAYED}
    assert cases == set(itertools.product(episode_goals.TASKS, KINDS))
