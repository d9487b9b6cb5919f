"""What is shown of a frozen memory is what it read, also where it draws its words."""

import copy
from contextlib import ExitStack
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import main as main_program
from analysis import while_training
from analysis.memory import episode_attention
from envs import make_vector_env
from helm import Player
from models import build_agent
from tests.agents import small_config
from tests.runs import ROWS, SAMPLED, words_of
from tests.test_page import page_of, unpacked
from tests.tiny_clip import tiny_settings
from trainers.evaluation import evaluate, recorded_input, saliency

K = 4  # words of a step


@pytest.fixture(params=["PPO", "DQN", "SAC"])
def played(request, monkeypatch):
    """Return settings, environment, agent, and the list of the tokens that it is given."""
    changes = tiny_settings("SHELM") | SAMPLED | {"topk": K, "n_envs": 1}
    config = small_config(algorithm=request.param, env="RandomMaze-v0", **changes)
    env = make_vector_env(config, seed=0)
    agent = build_agent(config, env.single_observation_space, env.single_action_space).eval()
    given, language_model = [], agent.frozen_memory.language_model
    step = language_model.step

    def noting(tokens, *others, **options):
        given.append(tokens[0].clone())
        return step(tokens, *others, **options)

    monkeypatch.setattr(language_model, "step", noting)
    return config, env, agent, given


def tokens_of(agent, words):
    """Return the tokens [T, K, D] of words [T, K]."""
    retrieval = agent.frozen_memory.to_language
    numbers = [[retrieval.words.index(word) for word in row] for row in words]
    return retrieval.token_vectors[torch.tensor(numbers)]


@pytest.mark.slow
def test_page_recording_and_saliency_have_the_words_that_were_read(played):
    _, env, agent, given = played
    (recording,) = evaluate(agent, env, 1, seed=0, in_detail=True)
    read = torch.stack(given)
    assert len({tuple(row) for row in recording.steps["words"]}) > 1
    assert torch.equal(tokens_of(agent, recording.steps["words"]), read)
    page = page_of(recording, actions=["a", "b", "c"])
    data = page.data({})
    shown = np.array(data["words"])[unpacked(data["episodes"][0]["words"])]
    assert shown.tolist() == recording.steps["words"].tolist()
    # Looked at from what was read: nothing is drawn for it.
    steps, state = recording.steps | recording.details, torch.get_rng_state()
    _, inputs = agent.episode_values(
        recorded_input(agent, steps), torch.from_numpy(steps["actions"])
    )
    assert torch.equal(inputs[0][:, 0], read[: len(inputs[0])])
    assert saliency(agent, steps) is not None
    maps = episode_attention(agent.frozen_memory.language_model, read).numpy()
    for t, attention in enumerate(steps["attention"]):
        n_seen = min(t + 1, attention.shape[-1])
        expected = maps[:, t, t + 1 - n_seen : t + 1]
        np.testing.assert_allclose(attention.mean(1)[:, -n_seen:], expected, atol=2e-3)
    assert torch.equal(torch.get_rng_state(), state)


def test_from_python_the_words_of_inspect_are_those_that_are_then_read(played):
    config, env, agent, given = played
    with Player(config, agent, env, ExitStack()) as player:
        shown = player.reset(seed=0)
        for _ in range(5):
            looked = player.inspect(shown)
            action = player.act(shown)
            assert torch.equal(tokens_of(agent, [looked["words"]])[0], given[-1])
            assert np.array_equal(looked["tokens"], given[-1])
            shown = player.reset() if player.ended else player.step(action)[0]


@pytest.mark.slow
def test_while_training_the_words_shown_are_those_read(played, monkeypatch):
    _, env, agent, given = played
    found, percepts = [], []
    monkeypatch.setattr(while_training, "media", lambda _, seen, read: found.append(read))
    show, act = while_training.Showcase(agent, minutes=0), agent.act

    def following(percept, *others, **options):
        step = act(percept, *others, **options)
        percepts.append(percept)
        show.follow(SimpleNamespace(percept=percept, step=copy.deepcopy(step)))
        return step

    monkeypatch.setattr(agent, "act", following)
    list(evaluate(agent, env, 2, seed=0))
    show.media(is_last=True)
    ((read,), begins) = found, [t for t, each in enumerate(percepts) if each.is_first[0]]
    first, last = begins[0], begins[1]
    assert torch.equal(read.tokens, torch.stack(given)[first:last])


@pytest.mark.parametrize("name", ["PPO SHELM", "DQN SHELM"])
def test_a_draw_that_would_be_kept_with_its_image_is_refused(name, in_empty_folder, capsys):
    drawn = {
        "model": "tests.sampled_words:SHELMOfCachedDraws",
        "topk": 3,
        "observation_cache_mb": 8,
    }
    words = words_of(ROWS[name] | tiny_settings("SHELM") | drawn)
    assert main_program.main(words) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert "CachedDraw.forward" in line
    assert "Draw in `read`" in line
