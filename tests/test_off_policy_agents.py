"""Agents that learn from replay: acting and learning see the same, and frozen parts stay."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from envs.vector import EpisodeStatistics, NumpyVectorEnv
from models import AGENTS, agent_class, build_agent
from models.agent import SequenceBatch
from models.observations import AgentInput, ObservationBatch, Observations
from models.q_networks import FrozenLMTorso
from tests.agents import small_config
from tests.tiny_clip import tiny_settings
from trainers import dqn, sequence_replay
from trainers.collector import Collector
from trainers.learner import RewardScaling
from trainers.parts import LEARNERS

N_ENVS, MEM_LEN = 3, 16
SMALL = {"memory_width": 8, "memory_heads": 2, "memory_layers": 2, "mem_len": MEM_LEN}


class Staggered(NumpyVectorEnv):
    """Shows numbers; environment n ends after 3, 4, 5, ... steps, and odd ones by truncation."""

    def __init__(self, shown):
        space = Box(-1, 1, (4,), np.float32) if shown == "vectors" else None
        shape = (3, 9, 9) if shown == "images" else None
        super().__init__(N_ENVS, 0, shape, n_actions=3, observation_space=space)
        self.length = np.zeros(N_ENVS, np.int64)
        self.age = np.zeros(N_ENVS, np.int64)
        self.number = np.zeros(N_ENVS, np.int64)

    def begin(self, row, generator):
        self.length[row] = 3 + (self.number[row] + row) % 6
        self.age[row] = 0
        self.number[row] += 1

    def advance(self, actions):
        self.age += 1
        ended = self.age >= self.length
        is_odd = np.arange(N_ENVS) % 2 == 1
        return actions / 8, ended & ~is_odd, ended & is_odd

    def observe(self, rows):
        space = self.single_observation_space
        dice = np.random.default_rng([int(self.age.sum()), int(self.number.sum())])
        shown = dice.integers(0, 255, (N_ENVS, *space.shape))[rows]
        return shown.astype(np.uint8) if space.dtype == np.uint8 else (shown / 255).astype("f4")

    def arrays(self):
        return {"length": self.length, "age": self.age, "number": self.number}


def collecting(model, algorithm="DQN", shown="vectors", **changes):
    """Return a collector with a learner that explores a little, its episodes begun."""
    explores = {"epsilon_final": 0.5, "exploration_fraction": 0.0} if algorithm == "DQN" else {}
    settings = SMALL | {"algorithm": algorithm, "model": model, "batch_size": 4, "n_steps": 10_000}
    settings |= tiny_settings(model) | {"learning_rate": 0.01, "warmup_episodes": 2} | explores
    config = small_config(**(settings | changes))
    env = EpisodeStatistics(Staggered(shown), "Staggered")
    agent = build_agent(config, env.single_observation_space, env.single_action_space)
    with torch.no_grad():
        for parameter in agent.parameters():  # so large that every part makes a difference
            if parameter.requires_grad:
                parameter.add_(0.2 * torch.randn_like(parameter))
    collector = Collector(env, LEARNERS.find(algorithm)(config, agent))
    collector.begin(0)
    return collector


def learn(collector):
    """Act for a while and update where updates are due."""
    for _ in range(20):
        collector.step()
        if collector.learner.update_due:
            collector.learner.update(0.0)


def features_while_acting(collector, monkeypatch):
    """Return a list that is filled with the features of every step from now on."""
    body, seen = collector.learner.agent.body, []
    step = body.step

    def noted(percept, memory, advance=True):
        stepped = step(percept, memory, advance)
        if advance:
            seen.append((percept, stepped.features))
        return stepped

    monkeypatch.setattr(body, "step", noted)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("model", ["CNN", "LSTM", "GPT", "HELM", "HELM, read out"])
@pytest.mark.parametrize("shown", ["vectors", "images"])
def test_what_replay_unrolls_is_what_acting_saw(model, shown, monkeypatch):
    model, read_out = model.split(",")[0], {"readout_steps": 3} if "," in model else {}
    collector = collecting(model, shown=shown, **read_out)
    learner, n_stored = collector.learner, 0
    seen = features_while_acting(collector, monkeypatch)
    running = [[] for _ in range(N_ENVS)]
    for _ in range(40):
        transition = collector.step()
        for env, features in enumerate(seen[-1][1]):
            running[env].append(features)
        for env in transition.ended.nonzero().flatten().tolist():
            start = learner.replay.start_rows[n_stored : n_stored + 1]
            sequence = learner.replay.sequences(start)
            unrolled = learner.agent.body.unroll(sequence)[:, 0]
            acted = torch.stack(running[env])
            assert len(sequence.mask) == len(acted)
            torch.testing.assert_close(unrolled[: len(acted)], acted, atol=1e-5, rtol=1e-4)
            running[env], n_stored = [], n_stored + 1
    assert n_stored > 3 * N_ENVS


TRAINED = [name for name in AGENTS.places if agent_class(name).memory_class is not None]


@pytest.mark.quick("GPT-2-DQN", "LSTM-2-DQN")
@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["DQN", "SAC"])
@pytest.mark.parametrize("context_length", [2, 3])
@pytest.mark.parametrize("model", TRAINED)
def test_acting_equals_learning_in_episodes_longer_than_a_sequence(
    model, context_length, algorithm, monkeypatch
):
    changes = {"context_length": context_length, "memory_layers": 1, "action_embedding": 0}
    collector = collecting(model, algorithm, **changes)
    learner, body, n_starts, n_compared = collector.learner, collector.learner.agent.body, 0, 0
    seen = features_while_acting(collector, monkeypatch)
    running = [[] for _ in range(N_ENVS)]
    for _ in range(60):
        transition = collector.step()
        for env, features in enumerate(seen[-1][1]):
            running[env].append((of_env(seen[-1][0], env), features))
        for env in transition.ended.nonzero().flatten().tolist():
            inputs, acted = zip(*running[env], strict=True)
            if not body.n_context:  # it reads an episode from its beginning
                unrolled = body.unroll(one_sequence(inputs))[:, 0]
                torch.testing.assert_close(unrolled, torch.stack(acted), atol=1e-5, rtol=1e-4)
            # A memory that is given steps again reads those alone, where they were.
            starts = learner.replay.start_rows[n_starts:]
            for row in range(len(acted) - context_length if body.n_context else 0):
                unrolled = body.unroll(learner.replay.sequences(starts[row : row + 1]))[-1, 0]
                expected = acted[row + context_length]
                torch.testing.assert_close(unrolled, expected, atol=1e-5, rtol=1e-4)
            n_starts += max(1, len(acted) - context_length + 1)
            n_compared += len(acted) > 2 * context_length
            running[env] = []
    assert n_compared > 3
    assert n_starts == len(learner.replay.start_rows)


def one_sequence(steps):
    """Return the inputs of one environment since its episode began, as a sequence."""
    n_steps = len(steps) - 1
    shown = Observations(vectors=torch.stack([step.observations.vectors for step in steps]))
    is_first = torch.arange(n_steps + 1)[:, None] == 0
    actions = torch.stack([step.last_actions for step in steps])[:, None]
    context, nothing = torch.arange(n_steps + 1)[:, None], torch.zeros(n_steps, 1)
    rest = nothing, nothing, nothing + 1
    return SequenceBatch(ObservationBatch(shown), is_first, actions, context, actions[1:], *rest)


def of_env(percept, env):
    """Return the inputs of one environment."""
    rows = (part[env] for part in percept[1:4])
    return AgentInput(percept.observations.map(lambda kind: kind[env]), *rows)


@pytest.mark.slow
@pytest.mark.parametrize("changes", ["weights", "moments"])
@pytest.mark.parametrize("longest", [10_000, 3])  # more than the episodes have; less
@pytest.mark.parametrize("algorithm", ["DQN", "SAC"])
def test_a_gpt_changed_in_the_middle_of_an_episode_acts_as_if_it_had_always_been(
    algorithm, longest, changes, monkeypatch
):
    monkeypatch.setattr(sequence_replay, "LONGEST_EPISODE", longest)
    normalizes = changes == "moments"
    given = {"replay_ratio": 0.0, "normalize_observations": True} if normalizes else {}
    collector = collecting("GPT", algorithm, **({"replay_ratio": 0.25} | given))
    learner = collector.learner
    seen = features_while_acting(collector, monkeypatch)
    running = [[] for _ in range(N_ENVS)]
    n_in_the_middle = 0
    for _ in range(30):
        if learner.update_due:
            before = learner.n_updates
            learner.update(0.0)
            collector.count_observations()
            n_in_the_middle += (normalizes or learner.n_updates > before) and any(running)
        transition = collector.step()
        percept, features = seen[-1]
        for env in range(N_ENVS):
            running[env].append(of_env(percept, env))
            unrolled = learner.agent.body.unroll(one_sequence(running[env]))[:, 0]
            torch.testing.assert_close(features[env], unrolled[-1], atol=1e-5, rtol=1e-4)
            if transition.ended[env]:
                running[env] = []
    assert n_in_the_middle > 3


@pytest.mark.parametrize("model", ["LSTM", "GPT"])
def test_what_does_not_end_is_stored_in_parts_that_are_no_ends_and_that_is_said_once(
    model, monkeypatch, caplog
):
    longest, begun, n_rows, n_parts = 3, [0] * N_ENVS, 0, 0
    monkeypatch.setattr(sequence_replay, "LONGEST_EPISODE", longest)
    collector = collecting(model)
    replay_of, steps = collector.learner, []
    for t in range(30):
        steps.append(collector.step())
        goes_on = (~steps[t].ended).tolist()
        parts = [n for n in range(N_ENVS) if goes_on[n] and t + 1 - begun[n] == longest]
        for env in [n for n in range(N_ENVS) if not goes_on[n]] + parts:
            own = steps[begun[env] :]
            shown = [each.percept.observations.vectors[env] for each in own]
            shown.append(steps[t].following.observations.vectors[env])
            rows = slice(n_rows, n_rows + len(shown))
            stored = {name: row[rows] for name, row in replay_of.replay.rows.items()}
            assert torch.equal(stored["vectors"], torch.stack(shown))
            ends = [bool(each.terminated[env]) for each in own]
            assert stored["terminated"].tolist() == [*ends, False]
            assert stored["rewards"].tolist() == [*(float(x.rewards[env]) for x in own), 0]
            begun[env], n_rows = t + 1, rows.stop
        n_parts += len(parts)
        assert len(replay_of.running._steps) <= longest + MEM_LEN
    assert n_parts > N_ENVS
    (line,) = [each for each in caplog.messages if "has not ended after 3 steps" in each]
    assert "TimeLimit" in line


ALGORITHMS = {
    "DQN": {"algorithm": "DQN"},
    "SAC": {"algorithm": "SAC"},
    "SAC, critic not frozen": {"algorithm": "SAC", "freeze_critic": False},
    "SAC, encoders apart": {"algorithm": "SAC", "shared_encoder": False},
    "SAC, learned temperature": {"algorithm": "SAC", "learn_temperature": True},
}


def language_bytes(language):
    """Return every weight of a frozen memory, the language model's included."""
    parts = torch.nn.ModuleList([language.to_language, language.language_model])
    return {key: value.clone() for key, value in parts.state_dict().items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("model", ["CNN", "LSTM", "HELM"])
def test_what_is_trained_learns_targets_follow_and_what_is_frozen_is_shared_and_stays(name, model):
    collector = collecting(model, replay_ratio=1.0, **ALGORITHMS[name])
    learner, agent, target = collector.learner, collector.learner.agent, collector.learner.target
    trained = {k: p.detach().clone() for k, p in agent.named_parameters() if p.requires_grad}
    targets = {k: p.clone() for k, p in target.named_parameters()}
    before = language_bytes(agent.frozen_memory) if model == "HELM" else {}
    bodies = [m for m in [*agent.modules(), *target.modules()] if isinstance(m, FrozenLMTorso)]
    assert all(body.language is agent.frozen_memory for body in bodies)
    if model == "HELM":
        assert len(before) > 5
        assert len(bodies) == {"SAC, encoders apart": 3, "DQN": 2}.get(name, 1)
    learn(collector)
    assert learner.n_updates > 10
    now, followed = dict(agent.named_parameters()), dict(target.named_parameters())
    assert [key for key in trained if torch.equal(trained[key], now[key])] == []
    assert [key for key in targets if torch.equal(targets[key], followed[key])] == []
    after = language_bytes(agent.frozen_memory) if model == "HELM" else {}
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_epsilon_falls_by_one_step_from_each_environment_to_the_next(monkeypatch):
    falling = {
        "epsilon_final": 0.1,
        "exploration_fraction": 0.5,
        "n_steps": 100,
        "warmup_episodes": 1,
    }
    collector, given = collecting("CNN", **falling), []

    def noted(greedy, drawn, epsilons):
        given.append(epsilons)
        return greedy

    monkeypatch.setattr(dqn, "epsilon_greedy", noted)
    while len(given) < 4:
        collector.step()
    learner = collector.learner
    n_falling = 0.5 * (100 - learner.n_warmup_steps)
    expected = [1 - 0.9 * n / n_falling for n in range(4 * N_ENVS)]
    assert np.concatenate(given) == pytest.approx(expected)


def test_the_last_reward_is_shown_as_it_was_paid_though_others_are_learned_from():
    collector = collecting("CNN", last_reward_input=True, warmup_episodes=50)
    collector.scaling = collector.learner.scaling = RewardScaling(N_ENVS, 0.9)
    collector.begin(0)
    for _ in range(12):
        made = collector.step()
        paid = made.step.actions / 8
        shown = paid.masked_fill(made.after.is_first, 0.0)
        assert torch.equal(made.after.last_rewards, shown)
        assert torch.equal(made.after.observations.last_step[:, -1], shown)
    assert collector.scaling.scaled(torch.full((1,), 1e-3)) > 2e-3, "it does scale"
