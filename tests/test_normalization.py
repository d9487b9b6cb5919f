"""Numbers of observations, normalised by the moments of all steps."""

import copy

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from torch.nn import functional as F

import helm
from main import build_run
from models import build_agent
from models.baselines import CnnAgent
from models.encoders import build_encoder
from models.observations import AgentInput, ObservationPreprocessor, Observations
from tests import runs
from tests.agents import small_config
from tests.bad_inputs.harness import refused
from tests.runs import CNN, DQN, ELLM, GPT, HELM, LSTM, NORMALISED, PPO, outcome, same, train_row
from tests.tiny_clip import tiny_settings
from trainers.checkpoint import LAST, load_checkpoint, save_published
from trainers.collector import Collector
from trainers.ranks import Ranks
from trainers.settings import RunSettings
from utils.given_settings import load_config

CARTPOLE = NORMALISED | {"env": "CartPole-v1"}
MIXED = Dict(a=Box(-np.inf, np.inf, (2,)), b=Discrete(3))


def numbers(offset, size, n=600):
    """Return signs [n] and vectors [n, 5]: one of them around an offset, the offset, one-hot."""
    signs = torch.randint(2, (n,)) * 2.0 - 1
    of_box = torch.stack((offset + size * signs, torch.full((n,), offset)), dim=1)
    return signs, torch.cat((of_box, F.one_hot(torch.randint(3, (n,)), 3)), dim=1)


@pytest.mark.parametrize(
    ("offset", "size"), [(1000.0, 5.0), (1e5, 1.0), (-3e6, 4.0), (0.0, 1e-3), (0.0, 1.0)]
)
def test_a_sign_around_any_offset_is_seen_and_one_hot_numbers_stay(offset, size):
    normalizer = ObservationPreprocessor(MIXED, normalizes=True).normalizer
    signs, vectors = numbers(offset, size)
    assert torch.equal(normalizer(vectors), vectors * torch.tensor([0, 0, 1, 1, 1]))
    for rows in vectors.split(37):
        normalizer.update(rows)
    exact = vectors.double().numpy()
    found = normalizer(vectors)
    expected = (exact - exact.mean(0)) / np.sqrt(exact.var(0) + 1e-8)
    np.testing.assert_allclose(found[:, :2], expected[:, :2].clip(-10, 10), atol=1e-6)
    assert found.dtype == torch.float32
    assert torch.equal(found[:, 0].sign(), signs)
    assert found[:, 0].abs().min() > 0.8
    assert not found[:, 1].any()
    assert torch.equal(found[:, 2:], vectors[:, 2:])
    assert normalizer(vectors + 1e9)[:, :2].unique().tolist() == [10]


def outputs(agent, vectors):
    seen = AgentInput.first(Observations(vectors=vectors), agent.reader.action_shape)
    step = agent.act(seen, agent.initial_memory(len(vectors)), deterministic=True)
    followed = agent.episode_values(seen, step.actions) or ()
    found = (
        step.actions,
        step.values,
        step.log_probs,
        step.remembered,
        step.stored_state,
        *followed[:1],
    )
    return [each.detach() for each in found if each is not None]


NETWORKS = [(model, "PPO") for model in ("CNN", "LSTM", "GPT", "HELM")]
NETWORKS += [(model, learner) for model in ("LSTM", "HELM") for learner in ("DQN", "SAC", "TD3")]


@pytest.mark.parametrize(("model", "algorithm"), [*NETWORKS, ("ELLM", "EllmDQN")])
def test_every_agent_and_its_copies_read_numbers_normalised(model, algorithm):
    sizes = {"memory_width": 8, "hidden_dim": 8, "shared_encoder": False}
    config = tiny_settings(model) | sizes | {"model": model, "algorithm": algorithm}
    actions = Box(-1, 1, (2,)) if algorithm == "TD3" else Discrete(2)
    plain, agent = (
        build_agent(small_config(**config, normalize_observations=each), MIXED, actions).eval()
        for each in (False, True)
    )
    agent.load_state_dict(plain.state_dict(), strict=False)
    target = copy.deepcopy(agent)
    _, vectors = numbers(1e5, 1.0, 12)
    agent.reader.normalizer.update(vectors)
    for each in (agent, target):
        torch.testing.assert_close(
            outputs(each, vectors), outputs(plain, agent.reader.normalizer(vectors))
        )


ROOM = {"replay_capacity": 1000}


@pytest.mark.slow
@pytest.mark.parametrize(
    "learner", [PPO | CNN, DQN | LSTM | {"context_length": 5} | ROOM, ELLM | ROOM]
)
def test_moments_are_those_of_every_step_and_the_players(learner, in_empty_folder, monkeypatch):
    step, seen = Collector.step, []

    def noting(self):
        seen.append(self.percept.observations.vectors.clone())
        return step(self)

    monkeypatch.setattr(Collector, "step", noting)
    folder = train_row("run", learner | CARTPOLE)
    rows, checkpoint = torch.cat(seen).double().numpy(), load_checkpoint(folder / LAST)
    save_published(folder / "shared.safetensors", checkpoint)
    assert same(load_checkpoint(folder / "shared.safetensors")["agent"], checkpoint["agent"])
    with helm.load(folder / LAST) as player:
        normalizer = player.agent.reader.normalizer
        assert same(player.agent.state_dict(), checkpoint["agent"])
    assert normalizer.count == len(rows) == checkpoint["env_steps"]
    np.testing.assert_allclose(normalizer.mean, rows.mean(0), rtol=1e-9)
    np.testing.assert_allclose(normalizer.squares / len(rows), rows.var(0), rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("model", [CNN, LSTM, GPT, HELM])
def test_an_update_begins_with_the_probabilities_that_acted(model, in_empty_folder):
    once = {"n_batches": 1, "n_epochs": 1, "learning_rate": 0.01}
    if model in (LSTM, GPT):
        once["sequences_per_batch"] = 1000
    rows = outcome(train_row("run", PPO | model | CARTPOLE | once | {"n_steps": 160}))["metrics"]
    first, *later = (abs(float(row["train/approx_kl"])) for row in rows)
    assert first > 1e-4  # nothing was known when it acted
    assert len(later) == 4
    assert max(later) < 1e-6


def opened(**changes):
    overrides = [word.removeprefix("--var=") for word in runs.words_of(CARTPOLE | changes)]
    return build_run(load_config(None, overrides).part(RunSettings), Ranks())


def test_a_gpt_reads_again_what_it_has_read_by_other_moments(in_empty_folder):
    """Where the moments alone have changed, since no gradient step was due."""
    with opened(**DQN | GPT | {"env": "CartPole-v1", "replay_ratio": 0}) as run:
        learner, collector = run.learner, run.collector
        learner.folder, n_compared = in_empty_folder, 0
        collector.begin(0)
        for _ in range(80):
            fresh, agent = learner.agent.initial_memory(2), learner.agent
            is_due = learner.update_due
            if is_due:
                run._update(lambda: None)
            is_due = is_due and any(learner.running.lengths)
            if is_due:
                agent.body.refresh(*learner.running.past(), fresh)
            step = collector.step()
            if is_due:
                expected = agent.act(step.percept, fresh, deterministic=True)
                torch.testing.assert_close(step.step.values, expected.values)
                n_compared += 1
        assert n_compared > 2


def test_what_no_update_has_counted_yet_is_kept_in_a_checkpoint(in_empty_folder):
    with opened(**PPO | CNN | CARTPOLE) as run, opened(**PPO | CNN | CARTPOLE) as other:
        run.collector.begin(0)
        other.collector.begin(1)
        for _ in range(7):
            run.collector.step()
        other.collector.load_state_dict(run.collector.state_dict(), seed=3)
        for each in (run, other):
            each.collector.count_observations()
        one, two = (each.learner.agent.reader.normalizer for each in (run, other))
        assert one.count == 14
        assert same(one.state_dict(), two.state_dict())


class Aside(CnnAgent):
    """An agent that reads numbers as they are."""

    def __init__(self, config, observation_space, action_space):
        super().__init__(config, observation_space, action_space)
        self.encoder = build_encoder(ObservationPreprocessor(observation_space), config, 8)


REFUSED = {
    "one-hot numbers": {"env": "FrozenLake-v1"},
    "images": {"env": "RandomMaze-v0"},
    "an agent of one's own": {"model": f"{__name__}:Aside"},
}


@pytest.mark.parametrize("case", REFUSED)
def test_where_nothing_is_normalised_the_setting_is_refused(case, in_empty_folder, capsys):
    command = runs.words_of(PPO | CNN | CARTPOLE | REFUSED[case])
    (line,) = refused(capsys, "main", command)
    assert line.startswith("normalize_observations: true")
    assert "false" in line
