"""Diagnostics of agents: where a trained GPT looks, values, words of vectors, saliency."""

import itertools
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from envs import make_vector_env
from helm import Player
from models import build_agent
from models.language.load import load_language_model
from models.memories import NoMemory
from models.observations import AgentInput, Observations
from tests.agents import BY_PPO, small_config
from tests.tiny_clip import tiny_settings
from trainers.evaluation import recorded_input, saliency

N_ENVS, N_STEPS = 2, 6
GPT = {"model": "GPT", "mem_len": 4, "memory_width": 8, "memory_heads": 2, "memory_layers": 3}
READ_IMAGES = ("HELMv2", "SHELM")
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
        before = memory.copy()
        step = agent.act(percept, memory, deterministic=True)
        found.append(agent.inspect(percept, before, step) if look else {})
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


@pytest.mark.quick("LSTM-PPO", "HELM-DQN", "ELLM-EllmDQN")
@pytest.mark.parametrize(
    ("model", "algorithm"),
    [*itertools.product(BY_PPO, ("PPO", "DQN", "SAC")), ("ELLM", "EllmDQN")],
)
def test_every_agent_shows_from_python_what_it_is_going_to_act_by(model, algorithm, monkeypatch):
    settings = GPT | {"model": model} | tiny_settings(model)
    config = small_config(algorithm=algorithm, env="RandomMaze-v0", n_envs=1, **settings)
    env, steps = make_vector_env(config, seed=0), []
    spaces = env.single_observation_space, env.single_action_space
    agent = build_agent(config, *spaces).eval()
    act = agent.act

    def noting(*given, **options):
        steps.append(act(*given, **options))
        return steps[-1]

    monkeypatch.setattr(agent, "act", noting)
    with Player(config, agent, env, ExitStack()) as player:
        shown = player.reset(seed=0)
        for _ in range(3):
            shown = player.reset() if player.ended else shown
            hidden = player.inspect(shown)["hidden"]
            shown, *_ = player.step(player.act(shown))
            np.testing.assert_array_equal(hidden, steps[-1].remembered[0])
            assert hidden.ndim == 1
            assert hidden.any()


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
    vocabulary = set(agent.frozen_memory.language_model.vocabulary)
    for one in play(agent)[0]:
        assert one["words"].shape == one["similarities"].shape == (N_ENVS, 1)
        assert set(one["words"].flat) <= vocabulary
        assert (one["entropy"] >= 0).all()


class Leaky(NoMemory):
    """h_t = h_{t-1} / 2 + x_t."""

    def unroll(self, x, is_first, context):
        outputs = [x[0]]
        for now in x[1:]:
            outputs.append(outputs[-1] / 2 + now)
        return torch.stack(outputs)


def recorded(agent, n_steps=N_STEPS):
    """Return an episode that an agent plays, and the values of its steps."""
    memory, values, generator = agent.initial_memory(1), [], torch.Generator().manual_seed(0)
    vectors = torch.rand(n_steps, 1, 3, generator=generator)
    steps = {"observations": vectors[:, 0].numpy(), "actions": np.zeros(n_steps, np.int64)}
    steps["rewards"] = np.random.default_rng(0).normal(size=n_steps)
    for t in range(n_steps):
        last = steps["actions"][t - 1 : t] if t else np.zeros(1, np.int64)
        seen = Observations(vectors=vectors[t])
        if agent.reader.n_last:
            seen = seen._replace(last_step=torch.zeros(1, agent.reader.n_last))
        reward = steps["rewards"][t - 1 : t] if t else np.zeros(1)
        percept = AgentInput.after(seen, torch.from_numpy(last), reward, np.array([t == 0]))
        step = agent.act(percept, memory, deterministic=True)
        steps["actions"][t] = step.actions
        values.append(step.values)
    return steps, values


def test_the_saliency_of_a_linear_recurrence_is_its_decay_to_the_power_of_the_steps_back():
    agent = build(model="LSTM", memory_width=8)
    agent.memory, weights = Leaky(8), torch.randn(8)
    agent.heads.values = lambda features: features @ weights
    steps, _ = recorded(build(model="CNN"))
    back = np.subtract.outer(np.arange(N_STEPS), np.arange(N_STEPS))
    expected = np.where(back >= 0, 0.5 ** np.abs(back), 0)
    expected /= expected.sum(1, keepdims=True)
    np.testing.assert_allclose(saliency(agent, steps), expected, rtol=1e-5)


READ_OUT = "HELM, read out"


@pytest.mark.quick("CNN-PPO", "LSTM-DQN", "GPT-PPO", "HELM-PPO")
@pytest.mark.parametrize("algorithm", ["PPO", "DQN", "SAC"])
@pytest.mark.parametrize("model", [READ_OUT, *(name for name in BY_PPO if name not in READ_IMAGES)])
def test_the_value_depends_on_earlier_observations_where_there_is_a_memory(algorithm, model):
    settings = GPT if model == "GPT" else {"model": model, **tiny_settings(model)}
    if model == READ_OUT:
        settings = tiny_settings("HELM") | {"model": "HELM", "readout_steps": 3}
    separate = {"shared_encoder": False} if algorithm == "SAC" else {"last_reward_input": True}
    agent = build(algorithm=algorithm, **settings, **separate)
    steps, values = recorded(agent)
    shares = saliency(agent, steps)
    assert (shares[np.triu_indices(N_STEPS, 1)] == 0).all()
    assert shares.sum(1) == pytest.approx(1, abs=1e-5)
    has_memory = model not in ("CNN", "CNN-PPO")
    assert ((shares[np.tril_indices(N_STEPS, -1)] > 0) == has_memory).all()
    if algorithm != "SAC":  # of SAC it is the value of the action taken, not that of the policy
        episode, actions = recorded_input(agent, steps), torch.from_numpy(steps["actions"])
        followed, _ = agent.episode_values(episode, actions)
        torch.testing.assert_close(followed.detach(), torch.cat(values), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "transfo-xl", "llama", "gpt2"])
def test_gradients_through_a_frozen_memory_are_those_of_its_steps(decoders, name):
    model = load_language_model(decoders[name], mem_len=7)
    generator = torch.Generator().manual_seed(0)
    tokens, towards = torch.randn(2, 5, model.width, generator=generator)

    def last(change):
        memory, begins = model.initial_memory(1), torch.tensor([True])
        for token in tokens + change * towards:
            hidden = model.step(token[None, None], memory, begins)
            begins = torch.tensor([False])
        return hidden[0]

    followed = tokens.clone().requires_grad_()
    read = model.read_episode(followed)[-1, : model.width]
    torch.testing.assert_close(read.detach(), last(0), rtol=1e-4, atol=1e-4)
    weights = torch.randn(model.width, generator=generator)
    (gradient,) = torch.autograd.grad(read @ weights, followed)
    slope = (last(3e-4) - last(-3e-4)) @ weights / 6e-4  # ReLUs bend further away
    assert (gradient * towards).sum().item() == pytest.approx(slope.item(), rel=0.02, abs=0.05)
