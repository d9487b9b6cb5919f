"""The memory contract, for every agent: nothing of an episode leaks into the next."""

import pytest
import torch

from envs import make_vector_env
from models import baselines, build_agent
from models.agent import sample_actions
from models.baselines import LstmAgent
from models.caching import to_float01
from models.helm import attention_by_step
from models.observations import ObservationBatch
from tests import agents
from tests.agents import BY_PPO, collect_rollout, collecting, percept, random_images, spaces
from tests.counting import CountingEnv
from tests.tiny_clip import tiny_settings
from utils.errors import UserError

LENGTHS = [3, 5, 7, 4]  # staggered, all ending several times in a rollout


def build(name, n_numbers=0, **changes):
    config = agents.small_config(model=name, **tiny_settings(name), **changes)
    return config, build_agent(config, *spaces(n_numbers=n_numbers))


def collect(name, lengths):
    """Return the learner and its full rollout."""
    config, agent = build(name, n_envs=len(lengths), n_rollout_steps=16, n_batches=1)
    collector = collecting(config, agent, CountingEnv(lengths))
    return collector.learner, collect_rollout(collector)


@pytest.mark.quick("LSTM-True", "GPT-True", "HELM-True")
@pytest.mark.parametrize("bootstrap_truncated", [False, True])
@pytest.mark.parametrize("name", BY_PPO)
def test_a_new_episode_knows_nothing_of_the_last(name, bootstrap_truncated, monkeypatch):
    sizes = {"n_envs": 4, "n_rollout_steps": 16}
    config, agent = build(name, bootstrap_truncated=bootstrap_truncated, **sizes)
    agent.eval()  # statistics are fixed
    act, seen = agent.act, []

    def recorded(percept, *more, **how):
        seen.append(percept)
        return act(percept, *more, **how)

    monkeypatch.setattr(agent, "act", recorded)
    rollout = collect_rollout(collecting(config, agent, CountingEnv(LENGTHS, ends="truncated")))
    counts = rollout.observations.images[:, :, 0, 0, 0].long()
    assert torch.equal(rollout.is_first, counts == 0)
    for found in (rollout.values, rollout.stored_state):
        for count in range(max(LENGTHS)):
            same = found[counts == count]
            torch.testing.assert_close(same, same[:1].expand_as(same), atol=1e-5, rtol=0)
    for each in seen:  # the reward of a step is the count after it
        assert torch.equal(each.last_rewards, each.observations.images[:, 0, 0, 0].float())


@pytest.mark.quick("LSTM", "GPT", "HELM", "MinGRU")
@pytest.mark.parametrize("name", BY_PPO)
def test_looking_ahead_leaves_the_memory_and_agrees_with_acting(name):
    _, agent = build(name)
    agent.eval()
    memory = agent.initial_memory(3)
    for t in range(4):
        images, is_first = random_images(3), torch.tensor([t == 0, t == 0, t == 2 or t == 0])
        before = {key: value.clone() for key, value in memory.state_dict().items()}
        seen = percept(images, is_first)
        ahead = agent.act(seen, memory, deterministic=True, advance=False)
        after = memory.state_dict()
        remembered = before.keys() - {"position", "n_slots"}  # not where it lies
        assert all(torch.equal(before[key], after[key]) for key in remembered)
        acted = agent.act(seen, memory, deterministic=True)
        assert torch.equal(ahead.values, acted.values)
        assert torch.equal(ahead.stored_state, acted.stored_state)
        assert torch.equal(ahead.actions, acted.actions)
        assert acted.all_log_probs.exp().sum(-1).tolist() == pytest.approx([1, 1, 1])
        chosen = acted.all_log_probs.gather(1, acted.actions[:, None])[:, 0]
        assert torch.equal(chosen, acted.log_probs)


@pytest.mark.quick("LSTM-0-False", "GPT-0-False", "HELM-0-False", "LSTM-2-True")
@pytest.mark.parametrize(("n_numbers", "depends"), [(0, False), (2, False), (2, True)])
@pytest.mark.parametrize("name", BY_PPO)
def test_the_first_minibatch_meets_the_policy_that_acted(name, n_numbers, depends):
    # Episodes within rollouts, across two, and longer than a memory is.
    small = {"mem_len": 6, "memory_layers": 2} if name in ("LSTM", "GPT") else {}
    small |= {"state_dependent_std": depends}
    config, agent = build(name, n_numbers, n_envs=4, n_rollout_steps=8, **small)
    collector = collecting(config, agent, CountingEnv([3, 50, 17, 9]))
    for _ in range(4 if "mem_len" in small else 1):
        rollout = collect_rollout(collector)
        agents.assert_learned_as_acted(agent, rollout)
        collector.learner.update(progress=0.0)
    if name == "GPT":
        assert rollout.sequences.context_len.max() == 6


@pytest.mark.quick("CNN", "LSTM", "HELM")
@pytest.mark.parametrize("name", BY_PPO)
def test_an_update_changes_what_is_trained_and_nothing_else(name):
    learner, _ = collect(name, LENGTHS)
    agent = learner.agent
    tensors = {**dict(agent.named_parameters()), **dict(agent.named_buffers())}
    if agent.frozen_memory is not None:
        language_model = agent.frozen_memory.language_model
        assert not any(p.requires_grad for p in language_model.parameters())
        tensors |= dict(language_model.named_parameters()) | dict(language_model.named_buffers())
    before = {key: tensor.detach().clone() for key, tensor in tensors.items()}
    learner.update(progress=0.0)
    for key, tensor in tensors.items():
        assert torch.equal(before[key], tensor) != tensor.requires_grad, key


def test_a_checkpoint_does_not_contain_the_language_model():
    names = build("HELM")[1].state_dict().keys()
    assert not any("language_model" in name or "embeddings" in name for name in names)
    assert "language.to_language.projection" in names


@pytest.mark.parametrize("ends", ["truncated", "terminated and truncated", "terminated"])
def test_the_value_at_a_time_limit_alone_is_added_to_the_reward_that_led_there(ends):
    config, agent = build("CNN-PPO", n_envs=2, n_rollout_steps=4, bootstrap_truncated=True)
    collector = collecting(config, agent, CountingEnv([2, 9], ends))
    rollout = collect_rollout(collector)
    last = torch.full((1, 3, 9, 9), 2, dtype=torch.uint8)
    seen, memory = percept(last, torch.tensor([False])), agent.initial_memory(1)
    value = agent.act(seen, memory, deterministic=True, advance=False).values
    rollout.estimate(gamma=0.0, gae_lambda=0.0)  # a return is the reward alone
    beyond = config.gamma * value.item() if ends == "truncated" else 0.0
    assert rollout.returns[1, 0].item() == pytest.approx(2 + beyond, abs=1e-5)
    torch.testing.assert_close(rollout.returns[[0, 2], 0], torch.ones(2))
    torch.testing.assert_close(rollout.returns[:, 1], torch.arange(1.0, 5))


@pytest.mark.parametrize(("retrieval_channels", "are_seen"), [("mean", False), ("each", True)])
def test_retrieval_channels_says_whether_helms_memory_sees_colours(retrieval_channels, are_seen):
    config, agent = build("HELM", retrieval_channels=retrieval_channels)
    images = 255 * torch.eye(3, dtype=torch.uint8)[:, :, None, None].expand(3, 3, 9, 9)
    tokens = agent.frozen_memory.read(percept(images, torch.ones(3, dtype=torch.bool))).tokens
    apart = (tokens[1:] - tokens[0]).abs().flatten(1).amax(1)
    assert ((apart > 1e-3) == are_seen).all()
    if are_seen:
        with pytest.raises(UserError, match="Choose retrieval_channels=mean"):
            build_agent(config, *spaces((1, 9, 9)))


@pytest.mark.parametrize("name", [name for name in BY_PPO if "HELM" in name])
def test_attention_goes_to_steps_of_the_running_episode(name):
    _, agent = build(name, mem_len=8)
    memory = agent.initial_memory(2)
    n_head, _ = agent.frozen_memory.language_model.heads
    for t in range(6):
        is_first = torch.tensor([t == 0, t in (0, 4)])
        seen, before = percept(random_images(2), is_first), memory.copy()
        attention = agent.inspect(seen, before, agent.act(seen, memory))["attention"]
    n_tokens = 2 if name == "SHELM" else 1
    n_steps = (8 + n_tokens) // n_tokens
    assert attention.shape == (2, agent.frozen_memory.language_model.n_layer, n_head, n_steps)
    assert attention.sum(-1) == pytest.approx(1, abs=2e-3)


def test_attention_to_the_tokens_of_a_step_is_added_up():
    shares = torch.arange(14.0).view(1, 1, 1, 2, 7)  # two new tokens, five slots
    by_step = attention_by_step(shares)
    # Columns are averaged over the new tokens: 3.5, 4.5, ... 9.5; the oldest step lost a token.
    assert by_step.tolist() == [[[[3.5, 10.0, 14.0, 18.0]]]]


def test_helm_tells_the_single_token_that_a_large_beta_would_retrieve():
    _, agent = build("HELM")
    images, language_model = random_images(3), agent.frozen_memory.language_model
    seen, memory = percept(images, torch.ones(3, dtype=torch.bool)), agent.initial_memory(3)
    step = agent.act(seen, memory, advance=False)
    told = agent.inspect(seen, memory, step)
    agent.frozen_memory.to_language.beta = 1e6
    tokens = agent.frozen_memory.to_language(to_float01(images))
    ids = torch.tensor([language_model.vocabulary.index(word) for (word,) in told["words"]])
    torch.testing.assert_close(tokens[:, 0], language_model.embed(ids), atol=1e-4, rtol=0)
    sharp = agent.inspect(seen, memory, step)["entropy"]
    assert (sharp < told["entropy"]).all()
    assert sharp == pytest.approx(0, abs=1e-3)


@pytest.mark.quick("GPT")
@pytest.mark.parametrize("name", ["LSTM", "MinGRU", "GPT"])
def test_sequences_of_unlike_length_are_read_in_groups(name, monkeypatch):
    monkeypatch.setattr(baselines, "STEP_COST", 0)  # so that any padding is worth a group
    groups = baselines.groups_of_like_length
    assert groups(torch.tensor([8, 1, 5, 4, 3])).tolist() == [0, 2, 0, 1, 1]
    assert groups(torch.tensor([7, 7, 5])).tolist() == [0, 0, 0]
    config, agent = build(name, n_envs=4, n_rollout_steps=16)
    collector = collecting(config, agent, CountingEnv([1, 50, 16, 5]))
    for _ in range(2):
        agents.assert_learned_as_acted(agent, collect_rollout(collector))


@pytest.mark.quick("GPT")
@pytest.mark.parametrize("name", ["CNN", "LSTM", "GPT", "HELM"])
def test_masks_and_last_steps_are_learned_from_as_they_were_acted_on(name):
    tiny = tiny_settings(name) | {"env": "tests.any_envs:Masked-v0", "n_rollout_steps": 8}
    told = {"last_action_input": True, "last_reward_input": True}
    config = agents.small_config(model=name, n_batches=1, mem_len=6, **tiny, **told)
    env = make_vector_env(config, seed=0)
    agent = build_agent(config, env.single_observation_space, env.single_action_space)
    collector = collecting(config, agent, env)
    for _ in range(3):
        rollout = collect_rollout(collector)
        follows = ~rollout.is_first[1:, :, None]
        actions = torch.nn.functional.one_hot(rollout.actions[:-1], 4)
        after = torch.cat((actions, rollout.rewards[:-1, :, None]), dim=-1) * follows
        assert torch.equal(rollout.observations.last_step[1:], after)
        batch, result = agents.assert_learned_as_acted(agent, rollout)
        assert batch.action_masks.gather(1, batch.actions[:, None]).all()
        other = batch.observations.stored._replace(last_step=torch.ones(()).expand(10**4, 5))
        changed = batch._replace(observations=ObservationBatch(other, batch.observations.rows))
        assert not torch.allclose(agent.evaluate(changed).values, result.values)
        collector.learner.update(progress=0.0)


class Polyglot(LstmAgent):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.language = torch.nn.Embedding(3, 2)  # a part of its own by this name


def test_what_an_agent_of_the_users_calls_language_is_no_frozen_memory():
    config = agents.small_config(model="LSTM")
    agent = Polyglot(config, *spaces())
    seen, memory = percept(random_images(2), torch.ones(2).bool()), agent.initial_memory(2)
    assert agent.frozen_memory is None
    step = agent.act(seen, memory, advance=False)
    assert (agent.metrics(), agent.explain(step), agent.inspect(seen, memory, step)) == ({}, {}, {})


def test_actions_are_drawn_as_torch_multinomial_draws_them():
    probabilities = torch.rand(16, 7, generator=torch.Generator().manual_seed(0)).softmax(-1)
    torch.manual_seed(1)
    expected = [torch.multinomial(probabilities, 1).squeeze(-1) for _ in range(20)]
    torch.manual_seed(1)
    assert torch.equal(
        torch.stack([sample_actions(probabilities) for _ in range(20)]), torch.stack(expected)
    )
