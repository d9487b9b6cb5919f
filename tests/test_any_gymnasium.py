"""Environments of Gymnasium: converted where they enter, tried first, in processes or not."""

import functools
import io
import json
import math
import random
import re
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

import envs
import eval as eval_program
from envs import make_vector_env
from envs.any_gymnasium import check_first_steps, checked_vector, vector_of, why_not_drawn
from envs.spaces import LONGEST_SIDE, Converted, adapt_action_space, adapt_observation_space
from envs.t_maze import TMaze
from envs.vector import EpisodeStatistics
from models.observations import ObservationPreprocessor
from tests import runs
from tests.any_envs import SPACES, Masked, Sampled, Steered
from utils.errors import EnvFault, UserError
from utils.files import folder_name
from utils.given_settings import load_config
from utils.settings import read_settings

HERE = "tests.any_envs"


def config(env, *more):
    return load_config(None, [f"env={env}", "model=CNN", "n_envs=3", *more])


def sampled(kind="vector", **more):
    return functools.partial(Sampled, kind, **more)


IMAGES = {
    "image, channels last": (3, 6, 7),
    "image, channels first": (3, 6, 7),
    "grey image": (1, 5, 6),
    "grey image of one channel": (1, 5, 6),
    "image of fractions": (3, 6, 7),
    "stack of images": (12, 6, 7),
    "stack of grey fractions": (4, 6, 7),
    "two images": (4, 8, 8),
    "nested": (3, 8, 8),
}


@pytest.mark.parametrize("kind", SPACES)
def test_a_kind_of_observation_reaches_an_agent(kind):
    env, image = vector_of(sampled(kind), 3, seed=0), IMAGES.get(kind)
    n_numbers = spaces.utils.flatdim(SPACES[kind]) - (math.prod(image) if image else 0)
    reader = ObservationPreprocessor(env.single_observation_space)
    assert (reader.image_shape, reader.n_numbers) == (image, n_numbers)
    shown, _ = env.reset(seed=1)
    assert env.observation_space.contains(shown)
    read = reader(shown)
    if image:
        assert (read.images.shape, read.images.dtype) == ((3, *image), torch.uint8)
    if n_numbers:
        assert read.vectors.shape == (3, n_numbers)


def test_pixels_stay_where_they_are():
    colour = np.arange(6 * 7 * 3, dtype=np.uint8).reshape(6, 7, 3)
    first = adapt_observation_space(SPACES["image, channels last"]).convert(colour)
    assert (first[2, 5, 1], first.flags.c_contiguous) == (colour[5, 1, 2], True)
    assert adapt_observation_space(SPACES["grey image"]).convert(colour[..., 0]).shape == (1, 6, 7)
    for shape in ((3, 6, 7), (5, 9, 5)):  # where both may be channels, the first are
        space = spaces.Box(0, 255, shape, np.uint8)
        adapted = adapt_observation_space(space)
        assert adapted.space is space
        assert adapted.convert(colour) is colour


def test_fractions_are_scaled_once_and_stacks_lie_on_channels():
    convert = adapt_observation_space(SPACES["image of fractions"]).convert
    assert convert(np.full((6, 7, 3), 0.2, np.float32)).tolist() == np.full((3, 6, 7), 51).tolist()
    for beyond in (1.1, -0.1, np.nan):
        with pytest.raises(
            UserError, match="has values outside its space of fractions from 0 to 1"
        ):
            convert(np.full((6, 7, 3), beyond, np.float32))
    stack = SPACES["stack of images"].sample()
    seen = adapt_observation_space(SPACES["stack of images"]).convert(stack)
    np.testing.assert_array_equal(seen[5], stack[1, :, :, 2])


def test_one_hot_numbers_stand_side_by_side():
    reader = ObservationPreprocessor(spaces.MultiDiscrete([2, 3], start=[0, 1]))
    read = reader(np.array([[1, 1], [0, 3]])).vectors
    assert read.tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]
    with pytest.raises(ValueError, match="numbers below"):
        reader(np.array([[2, 1]]))


def test_a_joint_action_is_one_number_and_every_action_counts_from_its_start():
    single = adapt_action_space(spaces.MultiDiscrete([[2], [3]], start=[[0], [5]]))
    assert single.space == spaces.Discrete(6)
    found = [single.convert(action).ravel().tolist() for action in range(6)]
    assert found == [[0, 5], [0, 6], [0, 7], [1, 5], [1, 6], [1, 7]]
    env = Converted(Sampled(actions=spaces.Discrete(2, start=-1)))
    env.reset(seed=0)
    for action in range(2):
        env.step(action)
    assert env.action_space == spaces.Discrete(2)
    assert env.unwrapped.taken == [-1, 0]


def test_numbers_of_a_box_are_rescaled_from_minus_one_to_one():
    env = vector_of(Steered, 2, seed=0)
    assert env.single_action_space == spaces.Box(-1, 1, (2,), np.float32)
    env.reset()
    env.step(np.array([[-1, 1], [0.5, -0.5]], np.float32))
    first, second = (one.unwrapped.taken[0].tolist() for one in env.unwrapped.envs)
    assert (first, second) == ([[-1, 0.5]], [[2, 0.125]])


BOXES = {
    "has no bounds": spaces.Box(-np.inf, 1, (2,)),
    "one that cannot vary": spaces.Box(np.array([0, 1]), np.array([1, 1]), dtype=np.float32),
    "holds whole numbers": spaces.Box(0, 5, (2,), np.int64),
    "finite bounds": spaces.Dict(move=spaces.Box(-1, 1, (2,)), jump=spaces.Discrete(2)),
}


@pytest.mark.parametrize("line", BOXES)
def test_other_boxes_cannot_be_acted_in(line):
    with pytest.raises(UserError, match=f"actions: .*{line}"):
        adapt_action_space(BOXES[line])


@pytest.mark.parametrize("told", ["observation", "info"])
@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ("allows nothing", r"action_mask of step\(\) allows no action, and the episode goes on"),
        ("of another length", r"action_mask of step\(\) shows \[1 1 1 1 1\]"),
        ("of other numbers", r"action_mask.* \[1 2 0 0\]"),
        ("missing", r"action_mask of step\(\) shows None"),
    ],
)
def test_a_wrong_mask_of_actions_is_named_with_its_step(wrong, line, told):
    make_one = functools.partial(Masked, told, wrong)
    with pytest.raises(UserError, match=f"env: 'X': {line}"):
        check_first_steps(make_one, "X")
    env = vector_of(make_one, 2, seed=0, has_mask=told == "info")
    env.reset(seed=0)

    def step():
        env.step(np.array([each.unwrapped.mask.argmax() for each in env.unwrapped.envs]))

    step(), step()
    with pytest.raises(EnvFault, match=rf"environment 0: {line}.*, in step 3 after reset\(seed="):
        step()


@pytest.mark.parametrize("n_entries", [3, 5])
def test_a_mask_of_another_length_is_refused(n_entries):
    with pytest.raises(UserError, match=f"has {n_entries} entries, and there are 4 actions"):
        vector_of(functools.partial(Masked, n_entries=n_entries), 1, 0)


def test_a_mask_travels_with_observations_but_is_none_of_their_numbers():
    make_one = functools.partial(Masked, "info")
    assert check_first_steps(make_one, "X").has_mask
    env = vector_of(make_one, 2, seed=0, has_mask=True)
    reader, (shown, _) = ObservationPreprocessor(env.single_observation_space), env.reset(seed=0)
    assert reader.n_numbers == 2
    for _ in range(7):
        masks = reader(shown).action_masks.numpy()
        assert masks.tolist() == [(each.unwrapped.mask > 0).tolist() for each in env.unwrapped.envs]
        shown, _, ended, _, info = env.step(masks.argmax(1))
    assert ended.all()
    assert all(last["action_mask"].all() for last in info["final_obs"])  # nothing follows


def test_a_vector_environment_has_its_mask_in_observations_alone():
    vectors = [SyncVectorEnv([functools.partial(Masked, told)]) for told in ("observation", "info")]
    assert "action_mask" in checked_vector(vectors[0], "X").single_observation_space.spaces
    with pytest.raises(UserError, match="Put it there, or give a function"):
        checked_vector(vectors[1], "X")


def test_joint_actions_have_names_and_so_have_numbers_that_the_environment_names():
    env = vector_of(sampled(actions=spaces.MultiDiscrete([1, 2])), 1, seed=0)
    assert EpisodeStatistics(env, "").legend() == (["0, 0", "0, 1"], ["left"], "")
    bare = vector_of(lambda: gymnasium.make("CartPole-v1"), 1, seed=0)
    assert EpisodeStatistics(bare, "").legend() == (["0", "1"], [], "")
    maze = make_vector_env(config("TMazePassive-v0"), 0).legend()
    assert (maze.actions[0], maze.numbers[0]) == (TMaze.action_names[0], TMaze.number_names[0])
    assert maze.picture == TMaze.picture_legend


@pytest.mark.slow
@pytest.mark.parametrize("in_processes", [False, True])
def test_saved_episodes_go_on_to_the_bit(in_processes):
    name = f"{HERE}:Sampled-v0"
    processes = f"env_processes={json.dumps(in_processes)}"
    env, other = (make_vector_env(config(name, "n_envs=2", processes), n) for n in (0, 5))
    twin = make_vector_env(config(name, "n_envs=2"), 0)  # in this process: the same numbers
    assert isinstance(env.unwrapped, AsyncVectorEnv if in_processes else SyncVectorEnv)
    for each in (env, other, twin):
        each.reset()
    for actions in ([0, 1], [1, 1], [1, 0]):  # one step before the time limit
        env.step(np.array(actions))
        twin.step(np.array(actions))
    file = io.BytesIO()
    torch.save(env.state_dict(), file)
    file.seek(0)
    assert other.load_state_dict(torch.load(file, weights_only=True))
    for _ in range(6):
        expected, *found = (each.step(np.zeros(2, int)) for each in (env, other, twin))
        for values in zip(expected[:4], *(each[:4] for each in found), strict=True):
            np.testing.assert_array_equal(values[1], values[0])
            np.testing.assert_array_equal(values[2], values[0])
    for each in (env, other):
        each.close()


def test_arguments_reach_the_constructor_and_tell_settings_apart():
    values = config(f"{HERE}:Sampled-v0", 'env_args={"kind": "grey image"}')
    assert make_vector_env(values, 0).single_observation_space.shape == (1, 5, 6)
    assert {"env_args", "env_processes"} <= read_settings(values)
    assert not {"env_args", "env_processes"} & read_settings(config("popgym-RepeatFirstEasy-v0"))
    assert len({config("CartPole-v1", f'env_args={{"a": {n}}}') for n in (1, 2, 1)}) == 2


def test_checking_first_steps_takes_a_moment_and_moves_no_random_stream():
    taken = []

    class Slow(Sampled):
        def step(self, action):
            taken.append(action)
            time.sleep(0.02)
            random.random(), np.random.random(), torch.rand(1)
            return super().step(action)

    def streams():
        numpys = np.random.get_state()[1].tolist()
        return random.getstate(), numpys, torch.get_rng_state().tolist()

    before = streams()
    check_first_steps(Slow, "Slow-v0")
    assert 1 < len(taken) < 20
    assert streams() == before


def test_what_can_be_drawn_is_drawn_no_larger_than_a_page_needs():
    env = make_vector_env(config(f"{HERE}:Sampled-v0"), 0, drawn=True)
    env.reset(seed=0)
    env.step(np.zeros(3, int))
    (picture, *_), height = env.render(), 401
    assert env.render_mode == "rgb_array"
    assert picture.shape == (134, 100, 3)
    assert max(picture.shape) <= LONGEST_SIDE < height
    assert (picture == 1).all()
    assert make_vector_env(config(f"{HERE}:Sampled-v0"), 0).render_mode is None


def test_what_cannot_be_drawn_says_why():
    plain = gymnasium.make
    assert why_not_drawn(lambda: plain("Taxi-v4"), lambda: plain("no-such-v0")).startswith("NameNo")
    blind = functools.partial(plain, "popgym-RepeatFirstEasy-v0")
    envs.check_env_name("popgym-RepeatFirstEasy-v0")
    assert why_not_drawn(blind, blind) == "it has no render mode rgb_array"


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("CartPole-v1", envs.TITLE),
        ("my_envs:MiniGrid-v0", envs.OWN_GRIDS),
        ("miner:X-v0", envs.TITLE),
        ("maze", "maze"),
        ("mazes", "maze"),
        ("mazeworld-v0", envs.TITLE),  # it is registered
        ("minigrid-x", "MiniGrid-"),
        ("popgym-RepeatFirstEasy-v0", "popgym-"),
        ("Nothing", None),
    ],
)
def test_the_fallback_comes_last(name, part, monkeypatch):
    monkeypatch.setitem(gymnasium.registry, "mazeworld-v0", gymnasium.spec("CartPole-v1"))
    assert envs.ENVIRONMENTS.known_as(name) == part


REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
PAGE = (REFERENCE / "environments.md").read_text(encoding="utf-8")
(MINE,) = re.findall(r"`my_envs.py`[^\n]*:\n\n```python\n(.*?)```", PAGE, re.S)


@pytest.fixture
def mine(in_empty_folder, monkeypatch):
    Path("my_envs.py").write_text(MINE)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "my_envs:Mine-v0"
    sys.modules.pop("my_envs")
    gymnasium.registry.pop("Mine-v0")


@pytest.mark.slow
def test_the_pages_environment_is_trained_in_and_played_from_the_current_folder(mine):
    settings = runs.PPO | runs.CNN | {"env": mine, "env_args": '{"length": 3}', "n_steps": 32}
    folder = runs.train_row("a", settings)
    assert folder == Path("experiments/CNN/Mine-v0/a")
    recorded = json.loads((folder / "config.json").read_text())
    assert (recorded["env"], recorded["env_args"]) == (mine, {"length": 3})
    played = ["--ckpt-path", str(folder), "--n-episodes=1", "--report"]
    assert eval_program.main([*played, '--var=env_args={"length": 6}']) == 0
    (recording,), (page,) = Path("episodes").rglob("*.npz"), folder.glob("*.html")
    with np.load(recording) as arrays:
        assert arrays["observations"].shape == (7, 3, 12, 16)
    assert '"actions":["left","right"]' in page.read_text()


@pytest.mark.parametrize(
    ("name", "folder"),
    [("CartPole-v1", "CartPole-v1"), ("a.b:Mine-v0", "Mine-v0"), ("ale:ALE/X-v5", "ALE-X-v5")],
)
def test_a_folder_is_called_by_the_id_alone(name, folder):
    assert folder_name(name) == folder


def test_importing_fails_in_one_line_each_time(in_empty_folder, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("raising_envs.py").write_text("1 / 0\n")
    for _ in range(2):
        with pytest.raises(UserError, match=r"ZeroDivisionError: .* \(raising_envs.py, line 1\)"):
            envs.check_env_name("raising_envs:Mine-v0")
