"""The trained read-out of a frozen first layer's keys and values."""

import math

import pytest
import torch

from models import build_agent
from models.observations import ObservationBatch
from rewards.curiosity import FeatureReader
from tests import agents, test_off_policy_agents
from tests.agents import random_images, small_config, spaces
from tests.counting import CountingEnv
from tests.tiny_clip import tiny_settings

N_ENVS, N_READ = 4, 3


def built(model="HELM", **changes):
    settings = tiny_settings(model) | {"n_envs": N_ENVS, "n_rollout_steps": 8} | changes
    config = small_config(model=model, **{"readout_steps": N_READ} | settings)
    return config, build_agent(config, *spaces())


def played(agent, n_steps=20):
    """Return percepts, steps and the values of looks ahead, of episodes that end at random."""
    memory, seen, steps, ahead = agent.initial_memory(N_ENVS), [], [], []
    for t in range(n_steps):
        is_first = torch.rand(N_ENVS) < (0.15 if t else 1)
        seen.append(agents.percept(random_images(N_ENVS), is_first))
        ahead.append(agent.act(seen[-1], memory, deterministic=True, advance=False).values)
        steps.append(agent.act(seen[-1], memory, deterministic=True))
    return seen, steps, ahead


@pytest.mark.parametrize(
    ("model", "changes"), [("HELM", {}), ("HELM", {"n_layer": 1}), ("SHELM", {"topk": 2})]
)
def test_the_last_steps_of_each_episode_are_read_by_plain_attention(model, changes):
    _, agent = built(model, **changes)
    language, readout = agent.frozen_memory, agent.readout
    (n_head, width), n_tokens = language.language_model.heads, language.n_tokens
    n_keys = n_head * width
    seen, steps, ahead = played(agent)
    running = [[] for _ in range(N_ENVS)]
    for percept, step, value in zip(seen, steps, ahead, strict=True):
        torch.testing.assert_close(value, step.values)
        for env in range(N_ENVS):
            state = step.stored_state[env]
            pairs = state[language.width :].view(-1, 2 * n_keys)
            if percept.is_first[env]:
                running[env] = []
            running[env].extend(pairs[-n_tokens:])
            known = torch.stack(running[env][-N_READ * n_tokens :])
            assert torch.equal(pairs[-len(known) :], known)
            assert not pairs[: -len(known)].any()
            query = readout.query(torch.cat((state[: language.width], known[-1])))
            found = []
            for head in range(n_head):
                part = slice(head * width, (head + 1) * width)
                keys, values = known[:, :n_keys][:, part], known[:, n_keys:][:, part]
                weights = (keys @ query[part] / math.sqrt(width)).softmax(0)
                found.append(weights @ values)
            expected = torch.cat((state[: language.width], *found))
            torch.testing.assert_close(step.remembered[env], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("is_whitened", [False, True])
def test_ppo_learns_from_what_the_query_found_and_trains_it(is_whitened):
    config, agent = built(whiten_memory=is_whitened)
    collector = agents.collecting(config, agent, CountingEnv([3, 50, 17, 9]))
    for _ in range(3):
        agents.assert_learned_as_acted(agent, agents.collect_rollout(collector))
        before = agent.readout.query.weight.detach().clone()
        collector.learner.update(0.0)
        assert not torch.equal(agent.readout.query.weight, before)


def test_a_target_network_has_a_query_of_its_own_and_replay_no_window():
    collector = test_off_policy_agents.collecting("HELM", readout_steps=N_READ)
    learner = collector.learner
    for _ in range(40):
        collector.step()
    body, target = learner.agent.body, learner.target.body
    assert target.readout.query.weight is not body.readout.query.weight
    assert target.language is body.language
    n_head, width = body.language.language_model.heads
    sequences = learner.replay.sequences(learner.replay.start_rows[:3])
    assert sequences.stored_state.shape[-1] == body.language.width + 2 * n_head * width


def test_curiosity_reads_the_hidden_state_alone():
    config, agent = built(curiosity="RND", curiosity_features="memory")
    seen, steps, _ = played(agent, n_steps=1)
    found = FeatureReader(config, agent)(
        ObservationBatch(seen[0].observations), steps[0].stored_state
    )
    assert torch.equal(found["memory"], steps[0].stored_state[:, : agent.frozen_memory.width])
