import numpy as np
import pytest
from PIL import Image

from envs import continuous_recognition
from envs.continuous_recognition import COLOURS, EPISODE_PICTURES, NAME, NEW, OLD
from tests.agents import small_config
from utils.errors import UserError


def make(n_envs, seed=0, recognition_stimuli=None):
    config = small_config(env=NAME, n_envs=n_envs, recognition_stimuli=recognition_stimuli)
    return continuous_recognition.ContinuousRecognition().make(config, seed)


def write_pictures(folder, n_pictures):
    for i in range(n_pictures):
        Image.new("RGB", (40, 20), (i, 2 * i, 255 - i)).save(folder / f"{i:03}.png")


def test_half_of_the_pictures_are_old_and_lags_vary_up_to_nearly_the_whole_episode():
    dice = [np.random.default_rng(seed) for seed in range(100)]
    streams = [continuous_recognition.draw_stream(400, each) for each in dice]
    answers = np.stack([answers for _, answers in streams])
    assert (answers[:, 0] == NEW).all()
    assert (answers[:, 1:] == OLD).mean() == pytest.approx(0.5, abs=0.03)
    lags = []
    for shown, answers in streams:
        for t, answer in enumerate(answers):
            before = np.flatnonzero(shown[:t] == shown[t])
            assert (answer == OLD) == (len(before) > 0)
            lags += [t - last for last in before[-1:]]
    assert min(lags) == 1
    assert max(lags) > 40
    assert len(set(lags)) > 30


def test_an_episode_ends_with_a_blank_picture():
    env = make(3)
    env.reset(seed=0)
    for _ in range(EPISODE_PICTURES):
        images, _, terminated, _, info = env.step(np.zeros(3, int))
    assert terminated.all()
    assert all((last == 255).all() for last in info["final_obs"])
    assert not any((image == 255).all() for image in images)


def test_a_folder_of_images_is_shown_on_white_squares_in_order_of_the_names(tmp_path):
    write_pictures(tmp_path, EPISODE_PICTURES)
    pictures = continuous_recognition.read_pictures(tmp_path)
    assert pictures.shape == (EPISODE_PICTURES, 3, 80, 80)
    assert pictures.dtype == np.uint8
    np.testing.assert_array_equal(pictures[7, :, 40, 40], [7, 14, 248])
    assert (pictures[:, :, :20] == 255).all()
    images, _ = make(2, recognition_stimuli=str(tmp_path)).reset(seed=0)
    assert all((image == pictures).all((1, 2, 3)).any() for image in images)


@pytest.mark.parametrize("folder", ["few", "nowhere", "unreadable"])
def test_a_folder_that_cannot_be_shown_is_a_users_error(folder, tmp_path):
    (tmp_path / "few").mkdir()
    (tmp_path / "unreadable").mkdir()
    write_pictures(tmp_path / "few", 3)
    write_pictures(tmp_path / "unreadable", EPISODE_PICTURES)
    (tmp_path / "unreadable" / "020.png").write_text("not an image")
    said = {"few": r"has 3 images .* needs 50", "nowhere": "is not a folder"}
    with pytest.raises(UserError, match=said.get(folder, r"020\.png cannot be read")):
        make(2, recognition_stimuli=str(tmp_path / folder))


def test_a_perfect_memory_is_always_right():
    env = make(4)
    images, _ = env.reset(seed=0)
    seen = set()
    for _ in range(3 * EPISODE_PICTURES):
        shown = [(n, image.tobytes()) for n, image in enumerate(images)]
        answers = np.array([OLD if picture in seen else NEW for picture in shown])
        images, rewards, terminated, _, _ = env.step(answers)
        assert (rewards == 1).all()
        seen = set() if terminated.any() else seen | set(shown)


def test_there_are_hundreds_of_pictures_each_unlike_the_others_and_like_its_name():
    names, pictures = continuous_recognition.drawn_objects(80)
    assert pictures.shape == (len(names), 3, 80, 80)
    assert pictures.dtype == np.uint8
    assert len(set(names)) == len({picture.tobytes() for picture in pictures}) >= 200
    of = dict(zip(names, pictures, strict=True))
    np.testing.assert_array_equal(of["red ring"][:, 40, 40], 255)
    np.testing.assert_array_equal(of["red ring"][:, 40, 15], COLOURS["red"])
    blue = np.array(COLOURS["blue"])[:, None, None]
    striped, solid = ((of[n] == blue).all(0).sum() for n in ("striped blue star", "blue star"))
    assert 0 < striped < solid
