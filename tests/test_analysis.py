"""The analyses, through their command line and by function."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from analysis import memory
from analysis.__main__ import EPISODES, main
from models.language.layers import DenseEmbeddings
from models.language.load import load_language_model
from models.observation_to_language import FrozenHopfield
from tests.test_program import TASK, TINY_MODEL, train
from tests.tiny_clip import tiny_settings
from tests.token_streams import play


def variables(model):
    settings = {"model": model, "env": TASK, "device": "cpu", **tiny_settings(model)}
    return [f"--var={key}={value}" for key, value in settings.items()]


def rows(name, folder="analysis_output"):
    with Path(folder, name).open(newline="") as file:
        return list(csv.DictReader(file))


def refusal(capsys, command, program=main):
    """Return the one line of a mistake, nothing being written."""
    capsys.readouterr()
    assert program(command) == 2
    (line,) = (each for each in capsys.readouterr().err.splitlines() if "episodes/s" not in each)
    assert not Path("analysis_output").exists()
    return line


def write_run_folder(name, settings, columns):
    folder = Path(name)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(settings))
    table = [columns, *zip(*columns.values(), strict=True)]
    (folder / "metrics.csv").write_text("".join(f"{','.join(map(str, row))}\n" for row in table))
    return folder


@pytest.fixture
def episode(in_empty_folder):
    rng = np.random.default_rng(0)
    path = in_empty_folder / "episode.npz"
    np.savez(
        path,
        observations=rng.integers(0, 256, (7, 3, 9, 9), np.uint8),
        actions=rng.integers(0, 4, 7),
        words=np.array([["door", "key"], ["door", "ball"], *[["wall", "wall"]] * 5]),
    )
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", EPISODES)
def test_an_analysis_writes_a_picture_and_its_numbers(name, in_empty_folder, capsys):
    model = "SHELM" if name == "words" else "HELM"
    assert main([name, *variables(model), "--n-episodes=1"]) == 0
    assert (in_empty_folder / f"analysis_output/{name}.png").read_bytes().startswith(b"\x89PNG")
    assert len(rows(f"{name}.csv")) > 1
    assert len(rows(f"{name}_summary.csv")) > 1
    assert f"written to analysis_output/{name}.png" in capsys.readouterr().out


@pytest.mark.slow
def test_a_trained_agent_plays_or_looks_at_an_episode(in_empty_folder, capsys):
    folder = train("HELM", "first", language_model=TINY_MODEL)
    assert main(["attention", str(folder)]) == 0
    observations = np.zeros((4, 3, 56, 56), np.uint8)
    np.savez("other.npz", observations=observations, actions=np.zeros(4, int))
    assert main(["attention", str(folder), "other.npz", "--output", "recorded"]) == 0
    steps = {row["step"] for row in rows("attention.csv", "recorded")}
    assert steps <= {"0", "1", "2", "3"}


def test_recorded_words_are_counted_without_any_model(episode, capsys, caplog):
    observations = np.zeros((4, 3, 9, 9), np.uint8)
    np.savez("random.npz", observations=observations, actions=np.zeros(4, int))
    assert main(["words", str(episode.parent), "--most", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()[:3]
    expected = ["word count share", "wall 10 0.7143", "door 2 0.1429"]
    assert [line.split() for line in lines] == [line.split() for line in expected]
    assert "left out: episodes without words, such as random ones: 1" in caplog.text


def test_a_named_agent_reads_recorded_episodes_itself(episode):
    assert main(["words", str(episode), *variables("SHELM"), "--var=topk=3"]) == 0
    assert sum(int(row["count"]) for row in rows("words.csv")) == 7 * 3


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (["word"], "invalid choice: 'word'"),
        (["words", "nowhere"], "SOURCE nowhere: no such file or folder"),
        (["layers", "--var", "model=CNN-PPO", "--var", f"env={TASK}"], "no language model"),
        (["attention", "episode.npz", "--var", "beta=x"], 'beta: "x" is not a number'),
        (["words", "bad.npz"], "bad.npz: not readable as an episode"),
        (["words", "episode.npz", "--var", "model=CNN-PPO"], "CNN-PPO retrieves none"),
        (["words", "episode.npz", "small.npz"], "small.npz: images of 3x9x8, and episode.npz has"),
    ],
)
def test_a_mistake_gets_one_line(episode, capsys, command, line):
    Path("bad.npz").write_text("hello")
    with np.load(episode) as arrays:
        smaller = {**arrays, "observations": arrays["observations"][..., 1:]}
    np.savez("small.npz", **smaller)
    assert line in refusal(capsys, command)


def test_distances_of_the_projection_are_those_of_the_images_on_average():
    images = torch.rand(40, 3, 9, 9)
    projection = torch.randn(4000, 81) / 4000**0.5
    retrieval = FrozenHopfield(projection, DenseEmbeddings(torch.randn(50, 4000)), 1.0)
    observed, found = memory.token_distances(retrieval, images, [0.0, 50.0])
    assert observed.shape == (40 * 39 / 2,)
    np.testing.assert_allclose(found[memory.PROJECTION], observed, rtol=0.1)
    np.testing.assert_allclose(found["beta 0"], 0, atol=1e-4)  # the mean of all tokens, always
    assert found["beta 50"].max() > 1


@pytest.fixture(params=["transfo-xl", "bert"])
def language_model(request, decoders):
    return load_language_model(decoders[request.param], mem_len=6)


@pytest.mark.parametrize("n_new", [1, 2])
def test_attention_goes_to_remembered_steps_and_hidden_states_are_the_same(language_model, n_new):
    tokens = torch.randn(9, n_new, language_model.width)
    attention = memory.episode_attention(language_model, tokens)
    assert attention.shape == (language_model.n_layer, 9, 9)
    back = torch.arange(9)[:, None] - torch.arange(9)
    assert (attention[:, (back >= 0) & (back * n_new < 5)] > 0).all()
    assert (attention[:, (back < 0) | (back * n_new > 7)] == 0).all()
    assert (attention.sum(-1) <= 1 + 1e-5).all()
    hidden = memory.episode_hidden_states(language_model, tokens)
    assert hidden.shape == (language_model.n_layer, 9, language_model.width)
    state, no_start = language_model.initial_memory(1, n_new), torch.zeros(9, 1, dtype=torch.bool)
    expected = play(language_model, state, tokens[:, None], no_start)
    torch.testing.assert_close(hidden[-1], expected[:, 0])


def test_layers_that_differ_by_a_rotation_are_alike_and_steps_by_their_direction():
    states = torch.randn(1, 200, 4, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64)).Q
    stranger = torch.randn_like(states)
    layers = memory.between_layers(torch.cat((states, 3 * states @ rotation + 1, stranger)))
    torch.testing.assert_close(layers.diagonal(), torch.ones(3, dtype=torch.float64))
    assert layers[0, 1] == pytest.approx(1)
    assert layers[0, 2] < 0.2
    steps = torch.tensor([[[1.0, 0], [2, 0], [0, 3], [-1, 0]]])
    assert memory.between_steps(steps)[0, 0].tolist() == [1, 1, 0, -1]
