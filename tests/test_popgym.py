"""POPGym's tasks: all by name, in three difficulties."""

import numpy as np
import pytest

from envs import check_env_name, make_vector_env, popgym
from models.observations import ObservationPreprocessor
from utils.given_settings import load_config

NAMES = popgym.names()


def config(env):
    return load_config(None, [f"env={env}", "model=CNN", "n_envs=2"])


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
