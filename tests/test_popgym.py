"""POPGym's tasks: all by name, in three difficulties, refused where actions are continuous."""

import numpy as np
import pytest

from envs import check_env_name, make_vector_env, popgym
from models.observations import ObservationReader
from settings import load_config
from utils.errors import UserError

NAMES = popgym.names()
CONTINUOUS = [name for name in NAMES if "Pendulum" in name]


def config(env):
    return load_config(None, [f"env={env}", "model=CNN", "n_envs=2"])


def test_fourteen_tasks_in_three_difficulties_are_there():
    tasks = {
        name.removeprefix("popgym-").replace(level, "").removesuffix("-v0")
        for name in NAMES
        for level in ("Easy", "Medium", "Hard")
        if level in name
    }
    assert len(tasks) == 14
    assert len(NAMES) == 42
    assert len(CONTINUOUS) == 6


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(CONTINUOUS)))
def test_a_task_is_seen_and_played(name):
    check_env_name(name)
    env = make_vector_env(config(name), 0)
    reader = ObservationReader(env.single_observation_space)
    shown, _ = env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(3):
        assert reader(shown).vectors.shape == (2, reader.n_numbers)
        shown, rewards, *_ = env.step(env.action_space.sample())
        assert np.abs(rewards).max() <= 1


@pytest.mark.parametrize("name", CONTINUOUS)
def test_a_task_with_continuous_actions_is_refused_by_its_space(name):
    with pytest.raises(UserError, match=r"actions: Box\(-2\.0, 2\.0, \(1,\), float32\) cannot"):
        make_vector_env(config(name), 0)


def test_the_suit_of_four_cards_ago_is_what_pays():
    env = make_vector_env(config("popgym-RepeatPreviousEasy-v0"), 0)
    cards = [env.reset(seed=0)[0]]
    paid = np.zeros(2)
    for t in range(48):
        actions = cards[t - 3] if t >= 3 else np.zeros(2, int)
        shown, rewards, terminated, _, _ = env.step(actions)
        cards.append(shown)
        paid += rewards
        assert not terminated.any()
    np.testing.assert_allclose(paid, 45 / 48)
