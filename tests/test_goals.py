"""Goals as a reward: suggested, paid, shown, counted, saved; on a small described world."""

import numpy as np
import pytest

from envs.vector import EpisodeStatistics
from rewards import episode_goals
from rewards.episode_goals import TASKS, Quality, RewardRule, Similarity, SingleTask, SuggestedGoals
from rewards.goals import GoalRewards, sentence, with_goals
from rewards.settings import GoalSettings, as_played
from rewards.suggesters import SUGGESTERS
from rewards.suggesters.rules import Oracle, TextState
from tests.described import (
    ACTION_NAMES,
    LENGTH,
    DescribedVectorEnv,
    ShoutingSettings,
    ToldVectorEnv,
)
from trainers.evaluation import task_settings
from utils.errors import UserError
from utils.given_settings import load_config

TREE = TextState("you see tree.", "", "", {})
DONE = {"action_success": True, "eval_success": True}
FAILED = {"action_success": False, "eval_success": False}
WITHOUT_EFFECT = {"action_success": True, "eval_success": False}
SAID = {"scene": "you see tree.", "inventory": "", "status": "", "items": {}, "items_after": {}}


class Always:
    """Suggests the same goals everywhere, and keeps the situations."""

    def __init__(self, *goals):
        self.goals, self.told = goals, []

    def suggest(self, situations):
        self.told += situations
        return [list(self.goals) for _ in situations]

    def metrics(self):
        return {}


def layer(goals, phrases, flags=DONE, ends=(), **changes):
    """Return a goal layer around an environment that says given words."""
    steps = [SAID | flags | {"phrase": phrase} for phrase in phrases]
    payment = RewardRule(Similarity("same-text"), quality=Quality(ACTION_NAMES))._replace(**changes)
    env = ToldVectorEnv(SAID, steps, ACTION_NAMES, ends)
    return GoalRewards(env, [SuggestedGoals(payment)], Always(*goals), payment=payment)


def rewards_of(env, n_steps):
    env.reset()
    return [env.step(np.zeros(1, int))[1].item() for _ in range(n_steps)]


def settings(**changes):
    return load_config(None, [f"{name}={value}" for name, value in changes.items()])


def described(n_envs=2, seed=0):
    return EpisodeStatistics(DescribedVectorEnv(n_envs, seed), "Described")


CHOP = ["chop tree"]
PAID = {
    "once an episode and anew in the next": (
        (["chop tree", "sleep"], CHOP * 5, DONE, [2]), {}, [1, 0, 0, 1, 0]
    ),
    "whenever it is reached": ((CHOP, CHOP * 3), {"once": False}, [1, 1, 1]),
    "for success alone": ((CHOP, CHOP, FAILED), {}, [0]),
    "for an effect alone": (
        (CHOP, CHOP * 2, WITHOUT_EFFECT), {"checks_success": "effect"}, [0, 0]
    ),
    "for an effect": ((CHOP, CHOP), {"checks_success": "effect"}, [1]),
    "for success without one": ((CHOP, CHOP, WITHOUT_EFFECT), {}, [1]),
    "for failure too": ((CHOP, CHOP, FAILED), {"checks_success": False}, [1]),
    **{
        f"{one} for its twin": (([one, other], [one, other]), {}, [1, 0])
        for one, other in episode_goals.SYNONYMS.items()
    },
}  # fmt: skip


@pytest.mark.parametrize("case", PAID)
def test_a_goal_is_paid(case):
    given, changes, expected = PAID[case]
    assert rewards_of(layer(*given, **changes), len(expected)) == expected


def test_without_an_answer_the_last_goals_stay_until_the_episode_ends():
    env = layer(CHOP, ["sleep", "sleep", "chop tree"], ends=[2])
    env.reset()
    env.suggester.suggest = lambda situations: [None]
    steps = [env.step(np.zeros(1, int))[-1]["suggestions"].item() for _ in range(3)]
    assert steps == [("chop tree",), ("chop tree",), ()]


def test_goals_are_asked_for_with_what_really_changed_the_world_last():
    phrases = ["move left", "chop tree", "attack tree"] + CHOP * 4
    env = layer(["sleep", "attack tree"], phrases, ends=[5])
    env.env.steps[2] |= WITHOUT_EFFECT
    env.reset()
    *_, step = (env.step(np.zeros(1, int)) for _ in range(3))
    assert (step[1].item(), step[-1]["matched"].item()) == (1, "attack tree")
    assert not step[-1]["goal_success"].item()  # it is paid, but no success
    for _ in range(4):
        env.step(np.zeros(1, int))
    actions = [situation.actions for situation in env.suggester.told]
    assert actions[:4] == [(), ("move left",), ("move left", "chop tree"), actions[2]]
    assert len(actions[5]) == 4
    assert actions[6:] == [(), ("chop tree",)]  # another episode


def test_words_that_mean_the_same_are_paid_by_their_likeness(encoder):
    similarity = Similarity(encoder)
    likeness = similarity.cosine("chop tree", "go to the red ball")
    assert -1 <= likeness < 1
    for threshold, paid in ((likeness - 1e-9, likeness), (likeness, 0.0)):
        given = {"similarity": similarity, "threshold": threshold}
        assert rewards_of(layer(["go to the red ball"], CHOP, **given), 1) == [paid]
    for text in (*TASKS, "make a wood pickaxe", "é"):  # exactly, read or not
        assert similarity.cosine(text, text) == 1.0
        assert similarity.best(text, ["sleep now", text]) == (text, 1.0)
    assert similarity.best("sleep", []) == (None, 0.0)


def test_each_text_is_read_once_and_only_if_it_must_be(encoder, monkeypatch):
    encode, read = episode_goals.load_sentence_encoder(encoder), []
    reading = lambda texts: read.extend(texts) or encode(texts)  # noqa: E731
    monkeypatch.setattr(episode_goals, "load_sentence_encoder", lambda *_: reading)
    similarity = Similarity(encoder)
    for _ in range(3):
        assert similarity.best("sleep", ["sleep", "chop tree"])[1] == 1.0
        similarity.best("sleep", ["chop tree", "drink water"])
    assert sorted(read) == ["chop tree", "drink water", "sleep"]


def test_the_default_encoder_tells_actions_apart_but_no_capitals():
    similarity = Similarity("all-MiniLM-L6-v2")
    for goals in (["Chop tree", "chop Tree"], ["chop Tree", "Chop tree"]):
        assert similarity.best("chop tree", goals) == (goals[0], 1.0)
    pairs = [
        ("eat iron pickaxe", "drink iron pickaxe"),  # of all 139 actions the two most alike
        ("make wood pickaxe", "place wood pickaxe"),
        ("make crafting table", "place crafting table"),
    ]
    assert all(similarity.cosine(*pair) < 0.96 for pair in pairs)


GRADES = {
    "good": "chop tree",  # a tree is in view
    "context_insensitive": "mine stone",
    "common_sense_insensitive": "attack tree",
    "impossible": "be happy",
}


def test_every_suggestion_and_every_rewarded_goal_is_graded():
    env = layer(GRADES.values(), ["chop tree", "attack tree"])
    rewards_of(env, 2)
    metrics = env.metrics()
    # Asked three times; paid goals are not suggested again.
    for occasion, counts in {"suggested": [1, 3, 2, 3], "rewarded": [1, 0, 1, 0]}.items():
        assert [metrics[f"goals/{occasion}_{grade}"] for grade in GRADES] == counts
    # The oracle would not suggest done goals again, paid or not.
    done = [(), env.episodes[0].done]
    grades = [env.payment.quality.grades(CHOP, TREE, each)["chop tree"] for each in done]
    assert grades == ["good", "context_insensitive"]


def test_the_agent_is_shown_its_goals_the_last_of_an_episode_included():
    config = settings(suggester="oracle", goal_conditioned="true", goal_encoder="same-text")
    env = with_goals(described(), config)
    observations, info = env.reset(seed=0)
    assert observations["goal"] == tuple(map(sentence, info["suggestions"]))
    achieved = [set(), set()]
    for _ in range(LENGTH):
        observations, _, _, truncated, info = env.step(np.array([1, 5]))
        assert observations["goal"] == tuple(map(sentence, info["suggestions"]))
        assert observations["observation"].shape == (2, 3, 9, 9)
        for each, goal in zip(achieved, info["matched"], strict=True):
            each.add(goal)
    assert truncated.all()
    assert achieved[0] >= {"chop tree"}
    for row, last in enumerate(info["final_obs"]):
        words = [info[f"last_{name}"][row] for name in ("scene", "inventory", "status")]
        (goals,) = Oracle().suggest([TextState(*words, info["items_after"][row])])
        assert last["goal"] == sentence([goal for goal in goals if goal not in achieved[row]])
        assert last["observation"].shape == (3, 9, 9)


def test_episodes_count_the_environments_own_rewards_and_goals_are_logged_beside():
    env = with_goals(described(1), settings(suggester="novelty", goal_encoder="same-text"))
    env.reset(seed=0)
    paid = 0.0
    for step in range(LENGTH):
        _, rewards, _, _, info = env.step(np.array([step % len(ACTION_NAMES)]))
        paid += rewards.item()
    assert paid == LENGTH == len(ACTION_NAMES)  # each action for the first time, failures too
    assert info["episode"]["r"].item() == 0
    assert env.metrics()["goals/return_mean"] == paid


def test_a_state_of_another_encoder_or_task_and_a_house_where_there_is_none_are_refused(encoder):
    configs = [settings(suggester="oracle", goal_encoder=name) for name in (encoder, "same-text")]
    env, other = (with_goals(described(1), config) for config in configs)
    env.reset()
    other.reset()
    with pytest.raises(ValueError, match="goal_encoder"):
        other.load_state_dict(env.state_dict())
    with pytest.raises(ValueError, match="no subgoal 5"):
        SingleTask("eat plant", "subgoals").load_state_dict({"place": 5, "done": {}})
    with pytest.raises(UserError, match="yes-no judges where things belong"):
        with_goals(described(1), settings(suggester="yes-no"))


def test_counts_of_a_run_outlive_episodes_that_cannot_go_on():
    def given_goals():
        env = with_goals(described(1), settings(suggester="oracle", goal_encoder="same-text"))
        env.reset(seed=0)
        return env

    env, other = given_goals(), given_goals()
    for _ in range(LENGTH + 1):
        env.step(np.array([1]))
    assert not other.load_state_dict(env.state_dict() | {"resumable": False})
    assert other.metrics() == env.metrics() != given_goals().metrics()


def test_a_task_succeeds_if_it_was_completed_once_in_the_episode():
    env = with_goals(described(2), settings(single_task="chop tree"))
    assert env.has_success
    env.reset(seed=3)
    for _ in range(LENGTH):
        _, _, _, truncated, info = env.step(np.array([1, 0]))
    assert truncated.all()
    assert info["episode"]["success"].tolist() == [True, False]
    assert info["success"].tolist() == [True, False]
    assert not with_goals(described(2), settings(single_task="survival")).has_success


def test_played_tasks_are_wanted_whole_where_they_can_be():
    config = settings(suggester="oracle", goal_conditioned="true")
    played = task_settings(config, "all")
    assert set(played) == set(TASKS) - {"survival"}
    assert all(each.suggester is None and each.goal_conditioned for each in played.values())
    kinds = {name for name, each in played.items() if each.single_task_goals == "reward-last"}
    assert kinds == {"work and sleep", "gardening", "wilderness survival"}
    assert list(task_settings(config, "sleep,eat plant")) == ["sleep", "eat plant"]
    assert episode_goals.actions_of("plant row") == {"chop grass", "place plant"}
    assert all(episode_goals.actions_of(task) <= set(TASKS) for task in TASKS)


def test_what_is_given_for_playing_takes_the_place_of_the_runs_goals():
    config = settings(suggester="oracle", goal_threshold=0.5, goal_conditioned="true")
    assert as_played(config, {}) == config
    task = as_played(config.replace(single_task="sleep"), {"single_task"})
    assert (task.suggester, task.single_task, task.goal_threshold) == (None, "sleep", 0.99)
    assert task.goal_conditioned
    back = task.replace(suggester="novelty", single_task_goals="subgoals")
    back = as_played(back, {"suggester"})
    assert (back.suggester, back.single_task, back.single_task_goals) == ("novelty", None, "task")


def test_what_one_suggester_reads_is_refused_beside_the_others(monkeypatch):
    monkeypatch.setitem(SUGGESTERS.places, "shouting", "tests.described:Shouting")
    monkeypatch.setitem(SUGGESTERS.reads, "shouting", (ShoutingSettings,))
    field = GoalSettings.__dataclass_fields__["suggester"]
    choices = {"choices": ("oracle", "shouting")}
    monkeypatch.setattr(field, "metadata", dict(field.metadata) | choices)
    env = with_goals(described(1), settings(suggester="shouting", loudness=2))
    _, info = env.reset()
    assert info["suggestions"][0] == ("chop tree!chop tree!",)
    for other, reason in (("oracle", "this is oracle"), ("null", "suggester is null")):
        with pytest.raises(UserError, match=f"loudness is read by shouting, and {reason}"):
            settings(suggester=other, loudness=2)
