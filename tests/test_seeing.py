"""Diagnostics of agents: where a trained GPT looks, values, words of vectors."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from models import build_agent
from models.observations import AgentInput, Observations
from tests.agents import small_config
from tests.tiny_clip import tiny_settings

N_ENVS, N_STEPS = 2, 6
GPT = {"model": "GPT", "mem_len": 4, "memory_width": 8, "memory_heads": 2, "memory_layers": 3}
LOOKING = [("PPO", {}), ("DQN", {}), ("SAC", {}), ("SAC", {"shared_encoder": False})]


def told(generator, t):
    """Return three random numbers; the episode of the second environment begins anew at step 3."""
    vectors = torch.rand(N_ENVS, 3, generator=generator)
    is_first = torch.tensor([t == 0, t in (0, 3)])
    actions = torch.randint(4, (N_ENVS,), generator=generator)
    return AgentInput(Observations(vectors=vectors), is_first, actions, torch.zeros(N_ENVS))


def build(**changes):
    config = small_config(**changes)
    return build_agent(config, Box(-1, 1, (3,), np.float32), Discrete(4)).eval()


def play(agent, look=True):
    """Return the diagnostics of every step, and the values of the actions chosen."""
    memory, found, values = agent.initial_memory(N_ENVS), [], []
    generator = torch.Generator().manual_seed(0)
    for t in range(N_STEPS):
        percept = told(generator, t)
        found.append(agent.inspect(percept, memory) if look else {})
        step = agent.act(percept, memory, deterministic=True)
        values.append((step.actions, step.values))
    return found, values


@pytest.mark.parametrize(("algorithm", "changes"), LOOKING)
def test_a_gpt_tells_where_every_head_of_every_layer_looks(algorithm, changes):
    found, _ = play(build(algorithm=algorithm, **GPT, **changes))
    ages = np.array([[0, 1, 2, 3, 4, 5], [0, 1, 2, 0, 1, 2]])  # steps of the episode before
    for t, one in enumerate(found):
        attention = one["attention"]
        assert attention.shape == (N_ENVS, 3, 2, 5)
        assert attention.sum(-1) == pytest.approx(1, abs=2e-3)
        for env in range(N_ENVS):
            n_seen = min(ages[env, t], 4) + 1
            assert (attention[env, :, :, 5 - n_seen :] > 0).all()
            assert (attention[env, :, :, : 5 - n_seen] == 0).all()


@pytest.mark.parametrize("model", ["CNN", "LSTM", "GPT", "HELM"])
def test_an_agent_of_dqn_tells_the_values_it_chooses_by(model):
    settings = GPT if model == "GPT" else {"model": model, **tiny_settings(model)}
    found, steps = play(build(algorithm="DQN", **settings))
    for one, (actions, values) in zip(found, steps, strict=True):
        assert one["action_values"].shape == (N_ENVS, 4)
        assert one["action_values"].argmax(1).tolist() == actions.tolist()
        assert one["action_values"].max(1) == pytest.approx(values.numpy(), abs=1e-6)


@pytest.mark.parametrize("algorithm", ["PPO", "DQN", "SAC"])
@pytest.mark.parametrize("model", ["LSTM", "GPT", "HELM"])
def test_telling_changes_nothing(algorithm, model):
    settings = GPT if model == "GPT" else {"model": model, **tiny_settings(model)}
    agent = build(algorithm=algorithm, **settings)
    for looked, unseen in zip(play(agent)[1], play(agent, look=False)[1], strict=True):
        assert all(torch.equal(*pair) for pair in zip(looked, unseen, strict=True))


@pytest.mark.parametrize("algorithm", ["PPO", "DQN", "SAC"])
def test_helm_tells_words_of_vectors(algorithm):
    agent = build(algorithm=algorithm, model="HELM", **tiny_settings("HELM"))
    vocabulary = set(agent.language.language_model.vocabulary)
    for one in play(agent)[0]:
        assert one["words"].shape == one["similarities"].shape == (N_ENVS, 1)
        assert set(one["words"].flat) <= vocabulary
        assert (one["entropy"] >= 0).all()
