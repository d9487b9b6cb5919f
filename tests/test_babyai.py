from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch

import envs
from envs import babyai, minigrid
from envs.episodes import episode_seed
from envs.wrappers import EpisodeStatistics
from utils.errors import UserError

pytest.importorskip("minigrid")
from minigrid.wrappers import RGBImgPartialObsWrapper

LEVEL = "BabyAI-GoToObjS4-v0"
KINDS = (  # of instructions: one, two that must both be done, one after another, next to, open
    *("BabyAI-GoToRedBall-v0", "BabyAI-MoveTwoAcrossS5N2-v0", "BabyAI-OpenDoorsOrderN4-v0"),
    *("BabyAI-PutNextS4N1-v0", "BabyAI-UnlockLocalDist-v0", "BabyAI-SynthS5R2-v0"),
)


def settings(env=LEVEL, n_envs=3, missions=None):
    return SimpleNamespace(env=env, n_envs=n_envs, missions=missions)


def by_hand(name):
    return RGBImgPartialObsWrapper(gymnasium.make(name, disable_env_checker=True), tile_size=8)


def test_it_shows_minigrids_own_pixels_and_missions_of_every_episode():
    env = babyai.make(settings(), seed=0)
    shown, _ = env.reset(seed=11)
    others = [by_hand(LEVEL) for _ in range(3)]
    episodes = [0, 0, 0]
    expected = [other.reset(seed=episode_seed(11, n, 0))[0] for n, other in enumerate(others)]
    generator, missions = np.random.default_rng(0), set()
    for _ in range(60):
        assert shown["mission"] == tuple(each["mission"] for each in expected)
        pixels = np.stack([each["image"] for each in expected]).transpose(0, 3, 1, 2)
        np.testing.assert_array_equal(shown["image"], pixels)
        missions |= set(shown["mission"])
        actions = generator.integers(0, 7, 3)
        shown, _, terminated, truncated, info = env.step(actions)
        for n, other in enumerate(others):
            expected[n] = other.step(actions[n])[0]
            if terminated[n] or truncated[n]:
                assert info["final_obs"][n]["mission"] == expected[n]["mission"]
                episodes[n] += 1
                expected[n] = other.reset(seed=episode_seed(11, n, episodes[n]))[0]
    assert sum(episodes) > 6
    assert len(missions) > 3


def play(env, actions):
    seen = []
    for row in actions:
        shown, *outcome, _ = env.step(row)
        seen.append((shown["image"].tobytes(), shown["mission"], *map(tuple, outcome)))
    return seen


@pytest.mark.parametrize("name", KINDS)
def test_a_level_goes_on_exactly_where_it_was_saved(name, tmp_path):
    first, second = (
        EpisodeStatistics(babyai.make(settings(name, 2), seed=seed), name) for seed in (3, 4)
    )
    generator = np.random.default_rng(0)
    first.reset()
    play(first, generator.integers(0, 7, (12, 2)))
    torch.save(first.state_dict(), tmp_path / "state.pt")
    assert second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    actions = generator.integers(0, 7, (40, 2))
    assert play(first, actions) == play(second, actions)


def test_every_level_is_known_to_its_own_suite():
    assert len(babyai.names()) > 90
    assert all(name.startswith("BabyAI-") for name in babyai.names())
    assert not any(name.startswith("BabyAI-") for name in minigrid.names())


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("BabyAI-GoToRedBal-v0", "BabyAI-GoToRedBall-v0"),
        ("babyai-bosslevel", "BabyAI-BossLevel-v0"),
    ],
)
def test_a_misspelt_level_is_answered_with_what_was_meant(typed, meant):
    with pytest.raises(UserError, match=f"Did you mean .*'{meant}'"):
        envs.check_env_name(typed)


@pytest.mark.parametrize(
    ("name", "missions", "is_told"),
    [
        (LEVEL, None, True),
        (LEVEL, False, False),
        ("MiniGrid-Empty-5x5-v0", None, False),
        ("MiniGrid-Empty-5x5-v0", True, True),
    ],
)
def test_missions_says_who_is_told(name, missions, is_told):
    make = babyai.make if name == LEVEL else minigrid.make
    env = make(settings(name, 1, missions), seed=0)
    shown, _ = env.reset()
    assert isinstance(shown, dict) == is_told
    assert env.single_observation_space.contains(
        {key: values[0] for key, values in shown.items()} if is_told else shown[0]
    )
    images = shown["image"] if is_told else shown
    assert images.shape == (1, 3, 56, 56)


def test_nothing_is_printed_of_layouts_that_are_drawn_again(capsys):
    name, seeds = "BabyAI-GoToObjDoor-v0", range(6)
    for seed in seeds:
        gymnasium.make(name, disable_env_checker=True).reset(seed=seed)
    assert "Sampling rejected" in capsys.readouterr().out
    babyai.make(settings(name, len(seeds)), seed=0).reset()
    assert capsys.readouterr().out == ""


def test_levels_can_be_drawn_whole():
    env = envs.make_vector_env(settings(n_envs=2), 0, drawn=True)
    env.reset()
    assert [picture.shape for picture in env.render()] == [(64, 64, 3)] * 2
    assert envs.action_names(LEVEL, 7)[2] == "forward"
