"""What a search varies: ranges and choices, and what is wrong with them."""

import dataclasses
import json

import pytest

from settings import load_config
from sweeps.search import Choices, Range, read_space
from utils.errors import UserError

RATE = 'learning_rate={"low": 1e-5, "high": 1e-3, "log": true}'


def test_ranges_stand_next_to_what_is_fixed(in_empty_folder):
    path = in_empty_folder / "mine.json"
    values = {"model": {"choices": ["LSTM", "GPT"]}, "memory_layers": {"low": 1, "high": 4}}
    path.write_text(json.dumps({**values, "gamma": 0.9, "n_envs": {"low": 1, "high": 2}}))
    space = read_space(path, [RATE, "n_envs=4"])
    assert space.dimensions == {
        "model": Choices(("LSTM", "GPT")),
        "memory_layers": Range(1, 4),
        "learning_rate": Range(1e-5, 1e-3, log=True),
    }
    config = space.config({"model": "GPT", "memory_layers": 2, "learning_rate": 3e-5})
    assert (config.model, config.gamma, config.n_envs) == ("GPT", 0.9, 4)
    assert (config.memory_layers, config.learning_rate) == (2, 3e-5)
    assert [corner.model for corner in space.corners()] == ["LSTM", "GPT"]
    assert space.settings(config) == {
        **{"model": "GPT", "n_envs": 4, "memory_layers": 2, "learning_rate": 3e-5, "gamma": 0.9}
    }


def test_a_whole_settings_file_may_have_a_range(in_empty_folder):
    whole = dataclasses.asdict(load_config()) | {"gamma": {"low": 0.9, "high": 0.99}}
    (in_empty_folder / "whole.json").write_text(json.dumps(whole))
    space = read_space(in_empty_folder / "whole.json", [])
    assert space.config({"gamma": 0.95}).gamma == 0.95


def test_ends_are_of_the_setting_s_type():
    space = read_space(None, ['n_envs={"low": 1.0, "high": 8}', 'gamma={"low": 0, "high": 1}'])
    assert [type(each.low) for each in space.dimensions.values()] == [int, float]


MISTAKES = {
    'learning_rate={"low": 1e-3, "high": 1e-5}': "low 0.001 is above high 1e-05",
    'gamma={"low": 0, "high": 1, "log": true}': "a logarithmic range begins above 0",
    'gamma={"low": 0.5, "high": 2}': "gamma: 2.0 is out of range (0 to 1)",
    'gamma={"low": 0.5}': "is no range. Write",
    'gamma={"low": 0.5, "high": 0.9, "step": 0.1}': "is no range. Write",
    'gamma={"low": 0.5, "high": 0.9, "log": 1}': "log is 1, and may be true or false",
    'gamma={"low": "a", "high": 0.9}': 'gamma: "a" is not a number',
    'clip_range_vf={"low": null, "high": 0.9}': "the ends of a range are numbers, not null",
    'n_envs={"low": 1.5, "high": 3}': "n_envs: 1.5 is not a whole number",
    'model={"low": 1, "high": 3}': "model: is no number and has no range",
    'adv_norm={"low": 0, "high": 1}': "adv_norm: is no number and has no range",
    'model={"choices": []}': "choices are a list with one value or more, not []",
    'model={"choices": "LSTM"}': 'choices are a list with one value or more, not "LSTM"',
    'gamma={"choices": [0.9, 0.9]}': "0.9 stands twice among the choices",
    'gamma={"choices": [0.9, 7]}': "gamma: 7.0 is out of range",
    'gama={"low": 0, "high": 1}': "unknown key 'gama'. Did you mean 'gamma'?",
    'seed={"low": 0, "high": 9}': "a seed is no better than another",
    'env={"choices": ["RandomMaze-v0"]}': "scores of several environments cannot be compared",
    'gamma={"low": 0.5,': "not readable as JSON",
    "gamma=0.9,0.99": "a search takes one value of gamma, or a range",
    "gamma=0.9": "nothing to search",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_what_is_no_range_gets_one_line(text):
    with pytest.raises(UserError) as caught:
        read_space(None, [text])
    (line,) = caught.value.lines
    assert MISTAKES[text] in line


def test_a_mistake_in_a_file_names_the_file(in_empty_folder):
    path = in_empty_folder / "mine.json"
    path.write_text('{"gamma": {"low": 1, "high": 0}}')
    with pytest.raises(UserError, match=r"mine\.json: gamma: low 1.0 is above high 0.0"):
        read_space(path, [])


@pytest.mark.parametrize(
    ("texts", "line"),
    [
        (["model=CNN", 'topk={"low": 1, "high": 3}'], "topk is read by SHELM, and this is CNN"),
        (
            ['model={"choices": ["LSTM", "CNN"]}', 'memory_layers={"low": 1, "high": 3}'],
            "memory_layers is read by",
        ),
        (["gama=0.9", RATE], "unknown key 'gama'"),
    ],
)
def test_what_one_of_the_agents_does_not_read_gets_one_line(texts, line):
    with pytest.raises(UserError) as caught:
        read_space(None, texts).corners()
    assert len(caught.value.lines) == 1
    assert line in str(caught.value)
