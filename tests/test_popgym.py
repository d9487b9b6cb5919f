"""POPGym's tasks: all by name, in three difficulties."""

import gymnasium
import numpy as np
import pytest
from popgym import wrappers

from envs import check_env_name, make_vector_env, popgym
from envs.spaces import adapt_action_space
from models.observations import ObservationPreprocessor
from utils.errors import UserError
from utils.given_settings import config_from_dict, load_config

NAMES = popgym.Popgym().names()
BARE = "popgym_antialias=false", "popgym_previous_action=false"


def config(env, *more):
    return load_config(None, [f"env={env}", "model=CNN", "n_envs=2", *more])


@pytest.mark.parametrize("name", NAMES)
def test_a_task_is_seen_and_played(name):
    check_env_name(name)
    env = make_vector_env(config(name), 0)
    reader = ObservationPreprocessor(env.single_observation_space)
    shown, _ = env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(3):
        assert reader(shown).vectors.shape == (2, reader.n_numbers)
        shown, rewards, *_ = env.step(env.action_space.sample())
        assert np.abs(rewards).max() <= 1


@pytest.mark.parametrize(
    ("name", "observability"),
    [
        ("popgym-RepeatFirstEasy-v0", "full"),
        ("popgym-BattleshipEasy-v0", "partial"),
        ("popgym-AutoencodeEasy-v0", "partial"),
        ("popgym-PositionOnlyPendulumEasy-v0", "partial"),
    ],
)
def test_the_last_action_and_the_first_step_are_shown_as_in_published_results(name, observability):
    words = f"observability={observability}" if observability == "full" else "seed=0"
    env, bare = (make_vector_env(config(name, words, *more), 0) for more in ((), BARE))
    # As wrap() of popgym/baselines/ppo.py.
    wrapped = wrappers.Antialias(wrappers.PreviousAction(gymnasium.make(name).unwrapped))
    assert (*env.single_observation_space.values(),)[-2:] == wrapped.observation_space[-2:]
    convert, null = adapt_action_space(wrapped.action_space).convert, wrapped.env.null_action
    (shown, _), (seen, _) = env.reset(seed=1), bare.reset(seed=1)
    env.action_space.seed(0)
    begun, expected, n_ended = np.ones(2, bool), np.array([null, null]), 0
    for _ in range(220):
        *others, last, flag = shown.values()
        np.testing.assert_array_equal(flag, begun)
        np.testing.assert_array_equal(last, expected)
        own = [*seen.values()] if isinstance(seen, dict) else [seen]
        np.testing.assert_array_equal(others, own)
        taken = env.action_space.sample()
        (shown, *_, info), (seen, *_) = env.step(taken), bare.step(taken)
        begun, expected = info.get("_final_obs", np.zeros(2, bool)), convert(taken)
        expected[begun] = null
        n_ended += begun.sum()
    assert n_ended


def test_the_last_action_is_not_given_twice():
    with pytest.raises(UserError, match="last_action_input: true, and popgym_previous_action"):
        config("popgym-RepeatFirstEasy-v0", "last_action_input=true")
    assert config("popgym-RepeatFirstEasy-v0", "last_action_input=true", BARE[1])
    assert config("CartPole-v1", "last_action_input=true")


def test_a_run_that_is_older_than_the_flag_has_none():
    run = config("popgym-RepeatFirstEasy-v0").as_dict()
    older = {name: value for name, value in run.items() if not name.startswith("popgym_")}
    assert config_from_dict(older, "a run") == config("popgym-RepeatFirstEasy-v0", *BARE)
    assert config_from_dict(run, "a run") == config("popgym-RepeatFirstEasy-v0")
