from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from envs import continuous_recognition
from envs.continuous_recognition import EPISODE_PICTURES, NEW, OLD, draw_stream, read_pictures
from utils.errors import UserError


def make(n_envs, seed=0, stimuli=None):
    config = SimpleNamespace(env=continuous_recognition.NAME, n_envs=n_envs, stimuli=stimuli)
    return continuous_recognition.make(config, seed)


def write_pictures(folder, n_pictures):
    for i in range(n_pictures):
        Image.new("RGB", (40, 20), (i, 2 * i, 255 - i)).save(folder / f"{i:03}.png")


def play(env, answer, n_steps):
    """Return the mean reward of the answers that answer(images) gives."""
    images, _ = env.reset(seed=0)
    rewards = []
    for _ in range(n_steps):
        images, reward, terminated, _, _ = env.step(answer(images))
        rewards.append(reward)
        if terminated.any():
            answer.forget()
    return np.mean(rewards)


class PerfectMemory:
    def __init__(self):
        self.seen = set()

    def __call__(self, images):
        shown = [(i, image.tobytes()) for i, image in enumerate(images)]
        answers = np.array([OLD if picture in self.seen else NEW for picture in shown])
        self.seen.update(shown)
        return answers

    def forget(self):
        self.seen.clear()


class Guessing:
    def __init__(self):
        self.generator = np.random.default_rng(0)

    def __call__(self, images):
        return self.generator.integers(0, 2, len(images))

    def forget(self):
        pass


def test_a_perfect_memory_is_always_right():
    assert play(make(4), PerfectMemory(), 3 * EPISODE_PICTURES) == 1


def test_guessing_is_right_half_of_the_time():
    assert play(make(16), Guessing(), 5 * EPISODE_PICTURES) == pytest.approx(0.5, abs=0.03)


def test_half_of_the_pictures_are_old_and_the_first_is_new():
    streams = [draw_stream(400, np.random.default_rng(seed)) for seed in range(100)]
    answers = np.stack([answers for _, answers in streams])
    assert (answers[:, 0] == NEW).all()
    assert (answers[:, 1:] == OLD).mean() == pytest.approx(0.5, abs=0.03)
    for shown, answers in streams:
        seen = [number in shown[:t] for t, number in enumerate(shown)]
        np.testing.assert_array_equal(seen, answers == OLD)


def test_lags_vary_up_to_nearly_the_whole_episode():
    lags = []
    for seed in range(100):
        shown, answers = draw_stream(400, np.random.default_rng(seed))
        for t in np.flatnonzero(answers == OLD):
            lags.append(t - np.flatnonzero(shown[:t] == shown[t])[-1])
    assert min(lags) == 1
    assert max(lags) > 40
    assert len(set(lags)) > 30


def test_an_episode_is_fifty_pictures_and_then_a_blank_one():
    env = make(3)
    images, _ = env.reset(seed=0)
    assert images.shape == (3, 3, 80, 80)
    assert images.dtype == np.uint8
    for _ in range(EPISODE_PICTURES - 1):
        _, _, terminated, _, info = env.step(np.zeros(3, int))
        assert not terminated.any()
        assert not info
    images, _, terminated, truncated, info = env.step(np.zeros(3, int))
    assert terminated.all()
    assert not truncated.any()
    assert all((last == 255).all() for last in info["final_obs"])
    assert not any((image == 255).all() for image in images)


def test_a_folder_of_images_is_shown_on_white_squares_in_order_of_the_names(tmp_path):
    write_pictures(tmp_path, EPISODE_PICTURES)
    pictures = read_pictures(tmp_path)
    assert pictures.shape == (EPISODE_PICTURES, 3, 80, 80)
    assert pictures.dtype == np.uint8
    np.testing.assert_array_equal(pictures[7, :, 40, 40], [7, 14, 248])
    assert (pictures[:, :, :20] == 255).all()
    images, _ = make(2, stimuli=str(tmp_path)).reset(seed=0)
    assert all((image == pictures).all((1, 2, 3)).any() for image in images)


def test_a_missing_folder_is_a_users_error(tmp_path):
    with pytest.raises(UserError, match="is not a folder"):
        make(2, stimuli=str(tmp_path / "nowhere"))


def test_a_folder_with_too_few_images_is_a_users_error(tmp_path):
    write_pictures(tmp_path, 3)
    with pytest.raises(UserError, match=r"has 3 images .* needs 50"):
        make(2, stimuli=str(tmp_path))


def test_an_unreadable_image_is_a_users_error_that_names_it(tmp_path):
    write_pictures(tmp_path, EPISODE_PICTURES)
    (tmp_path / "020.png").write_text("not an image")
    with pytest.raises(UserError, match=r"020\.png cannot be read"):
        make(2, stimuli=str(tmp_path))
