"""Agents that are told something in words: its readers, and that acting and learning agree."""

import signal

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Text
from torch.nn import functional as F

import main as main_program
from analysis import while_training as showcase
from envs import make_vector_env
from models import build_agent
from models.agent import Batch
from models.language.load import SentenceEncoder
from models.observations import AgentInput, ObservationBatch, Observations
from tests import runs
from tests.agents import assert_learned_as_acted, collect_rollout, collecting, small_config
from tests.bad_inputs.harness import in_one_line
from tests.tiny_clip import tiny_settings
from trainers.checkpoint import LAST, load_checkpoint, save_checkpoint

pytest.importorskip("minigrid")
LEVEL = "BabyAI-GoToObjS4-v0"  # episodes of up to sixteen steps, missions of many words
N_ENVS = 3
TINY = {"memory_width": 8, "memory_heads": 2, "memory_layers": 1, "mem_len": 8}
READERS = {
    "CNN": ("CNN", {}),
    "LSTM": ("LSTM", {}),
    "GPT": ("GPT", {}),
    "HELM": ("HELM", {}),
    "HELM, memory": ("HELM", {"text_reader": "memory", "text_tokens": 3}),
    "HELM, both": ("HELM", {"text_reader": "both"}),
    "SHELM, memory": ("SHELM", {"text_reader": "memory"}),
}


def config_of(model, encoder, **changes):
    settings = {"env": LEVEL, "sentence_encoder": encoder, "model": model}
    return small_config(**(TINY | settings | tiny_settings(model) | changes))


def build(name, encoder, **changes):
    """Return settings, environments and an agent that tells sentences well apart."""
    model, settings = READERS[name]
    config = config_of(model, encoder, **(settings | changes))
    env = make_vector_env(config, 0)
    agent = build_agent(config, env.single_observation_space, env.single_action_space)
    with torch.no_grad():
        for parameter in agent.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn_like(parameter))
    return config, env, agent


def begun(name, encoder, **changes):
    """Return an agent and its first inputs."""
    _, env, agent = build(name, encoder, **changes)
    return agent, AgentInput.first(agent.read(env.reset(seed=0)[0]))


def told(agent, text, images):
    """Return the input of an agent that sees images [N, ...] under one mission."""
    numbers = torch.tensor(agent.reader.sentences.numbers([text] * len(images)))[:, None]
    return AgentInput.first(Observations(images, text=numbers))


@pytest.mark.quick("LSTM", "HELM, both")
@pytest.mark.parametrize("name", READERS)
def test_learning_sees_what_acting_saw(name, encoder):
    config, env, agent = build(name, encoder, n_rollout_steps=20, n_batches=1, n_epochs=1)
    collector = collecting(config, agent, env)
    rollout = collect_rollout(collector)
    assert len(rollout.observations.text.unique()) > 1
    assert rollout.is_first[1:].any()
    collector.learner.update(0.0)
    assert_learned_as_acted(agent, collect_rollout(collector))


@pytest.mark.parametrize("algorithm", ["PPO", "DQN", "SAC"])
def test_the_sentence_encoder_is_neither_trained_nor_saved_but_named(algorithm, encoder):
    _, _, agent = build("CNN", encoder, algorithm=algorithm)
    assert agent.fingerprints().keys() == {"sentence_encoder"}
    assert not any(isinstance(module, SentenceEncoder) for module in agent.modules())
    assert not any(name.endswith("positions") for name in agent.state_dict())


@pytest.mark.parametrize("name", ["HELM", "HELM, memory", "HELM, both", "SHELM, memory"])
def test_text_to_says_who_reads_a_mission(name, encoder):
    _, env, agent = build(name, encoder)
    images = torch.from_numpy(env.reset(seed=0)[0]["image"])
    first, second = (told(agent, text, images) for text in ("go to the key", "go to the ball"))
    agent.eval()
    hidden = [
        agent.frozen_memory.step(each, agent.initial_memory(N_ENVS))[0] for each in (first, second)
    ]
    present = [agent.query_encoder(each.observations) for each in (first, second)]
    assert torch.equal(*hidden) == (name == "HELM")
    assert torch.equal(*present) == ("memory" in name)


@pytest.mark.parametrize(("name", "n_image_tokens", "n_text_tokens"), [
    ("HELM", 1, 0), ("HELM, memory", 1, 3), ("HELM, both", 1, 1), ("SHELM, memory", 2, 1),
])  # fmt: skip
def test_tokens_of_a_mission_stand_before_the_images(name, n_image_tokens, n_text_tokens, encoder):
    agent, percept = begun(name, encoder)
    tokens = agent.frozen_memory.read(percept).tokens
    assert tokens.shape[1] == agent.frozen_memory.n_tokens == n_image_tokens + n_text_tokens
    if n_text_tokens:
        (text,) = agent.reader.sentences.texts(percept.observations.text[0])
        own = agent.frozen_memory.language_model.read_text(text)
        expected = F.adaptive_avg_pool1d(own.T, n_text_tokens).T
        torch.testing.assert_close(tokens[0, :n_text_tokens], expected)
    image = agent.frozen_memory.cache(percept.observations.images)
    assert torch.equal(
        tokens[:, n_text_tokens:], agent.frozen_memory.to_language.read(image).tokens
    )


@pytest.mark.slow
def test_an_episode_is_read_again_with_its_missions(encoder):
    agent, percept = begun("HELM, both", encoder)
    step = agent.act(percept, agent.initial_memory(percept.n_envs))
    assert torch.equal(step.read.tokens, agent.frozen_memory.read(percept).tokens)
    media = showcase.media(agent, percept.observations, step.read)
    assert media.keys() == {"episode/movie", "episode/attention"}


WORDS = Text(20), Discrete(3)


@pytest.mark.quick("LSTM-PPO", "HELM, memory-DQN")
@pytest.mark.parametrize("algorithm", ["PPO", "DQN"])
@pytest.mark.parametrize("name", ["CNN", "LSTM", "GPT", "HELM, memory", "HELM, both"])
def test_an_environment_of_words_alone_can_be_played(name, algorithm, encoder):
    model, settings = READERS[name]
    agent = build_agent(config_of(model, encoder, algorithm=algorithm, **settings), *WORDS)
    percept = AgentInput.first(agent.read(("go", "go", "to the key")))
    memory = agent.initial_memory(3)
    step = agent.act(percept, memory, deterministic=True)
    agent.inspect(percept, agent.initial_memory(3), step)
    assert step.actions[0] == step.actions[1]
    assert not torch.equal(step.values[0], step.values[2])
    if algorithm == "PPO" and not agent.sequential:
        rest = [torch.zeros(3)] * 4
        batch = Batch(
            ObservationBatch(percept.observations), step.actions, *rest, step.stored_state
        )
        torch.testing.assert_close(agent.evaluate(batch).values, step.values)


MAZE = Dict({"image": Box(0, 255, (3, 56, 56), np.uint8)}), Discrete(3)
BY_MEMORY = {"text_reader": "memory"}
REFUSED = [
    ("HELM", {}, WORDS, "text_reader: the environment shows text alone"),
    ("SHELM", {}, WORDS, "SHELM reads images"),
    ("HELM", BY_MEMORY, MAZE, "text_reader: memory has the language model read texts"),
    ("HELM", BY_MEMORY | {"text_tokens": 9}, WORDS, "has 9 tokens, and 8 can be seen"),
    ("HELM", BY_MEMORY | {"readout_steps": 9}, WORDS, "9 steps have 9 tokens, and 8 can be seen"),
]


@pytest.mark.parametrize(("model", "changes", "spaces", "reason"), REFUSED)
def test_texts_that_a_memory_cannot_read_are_refused(model, changes, spaces, reason, encoder):
    with in_one_line(reason):
        build_agent(config_of(model, encoder, **changes), *spaces)


def test_a_row_behind_the_end_of_what_replay_holds_has_no_sentence_and_hurts_nobody(encoder):
    agent = build_agent(config_of("CNN", encoder, algorithm="DQN"), *WORDS)
    agent.read(("go", "to"))
    unwritten = ObservationBatch(Observations(text=torch.zeros(4, 1, dtype=torch.int64)))
    assert agent.body.embedder(unwritten, torch.zeros(4, dtype=torch.int64)).isfinite().all()


def command(run_id, settings):
    return [*runs.words_of(runs.PPO | runs.READS | settings), f"--run-id={run_id}"]


def test_unknown_sentences_in_a_checkpoint_are_refused(in_empty_folder, monkeypatch, capsys):
    runs.signal_at(monkeypatch, signal.SIGINT, at=21)
    assert main_program.main(command("cut", runs.CNN | runs.MISSIONS)) == 130
    path = runs.folder_of("cut") / LAST
    state = load_checkpoint(path)
    state["collector"]["percept"]["observations"]["text"][0] = 7
    save_checkpoint(path, state)
    capsys.readouterr()
    assert runs.resume("cut") == 2
    assert "a number of a sentence that is not in the table" in capsys.readouterr().err
