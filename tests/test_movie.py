import imageio.v3 as iio
import numpy as np
import pytest

from analysis.page import frames, write_movies
from tests.recordings import ACTIONS, of_vectors, recording
from utils.errors import RunError


@pytest.mark.slow
def test_a_movie_has_a_frame_a_step_in_both_formats(tmp_path):
    one = recording(5)
    write_movies(tmp_path / "episode.npz", one, ACTIONS)
    expected = np.stack(list(frames(one, ACTIONS)))
    assert {path.name for path in tmp_path.iterdir()} == {"episode.gif", "episode.mp4"}
    for ending in ("gif", "mp4"):
        shown = iio.imread(tmp_path / f"episode.{ending}")
        assert shown.shape == expected.shape
        assert np.abs(shown.astype(float) - expected).mean() < 12


def test_a_frame_shows_the_view_and_the_world_side_by_side():
    one = recording(3)
    frame = list(frames(one, ACTIONS))[1]
    view = one.steps["observations"][1].transpose(1, 2, 0)
    assert np.array_equal(frame[16 + 4 : 16 + 4 + 280 : 5, 16 : 16 + 280 : 5], view)
    assert (frame[16 + 144, 16 + 280 + 16 + 144] == one.details["overviews"][1, 0, 0]).all()


def test_the_numbers_beside_the_pictures_follow_the_episode():
    def changed(name, change, **kind):
        one = recording(2, **kind)
        before = next(frames(one, ACTIONS))
        arrays = one.steps if name in one.steps else one.details
        arrays[name] = change(arrays[name])
        return (next(frames(one, ACTIONS)) != before).any()

    assert changed("words", lambda words: words[::-1])
    assert changed("similarities", lambda similarities: similarities / 2)
    assert changed("values", lambda values: values + 1)
    assert changed("actions", lambda actions: (actions + 1) % len(ACTIONS))
    assert changed("probabilities", np.zeros_like, n_words=0, n_layers=0)


def test_vectors_are_shown_by_the_world_alone():
    frame = next(frames(of_vectors(2), ACTIONS))
    assert (frame[16 + 144, 16 + 144] == of_vectors(2).details["overviews"][0, 0, 0]).all()
    blind = next(frames(of_vectors(2, has_overviews=False), ACTIONS))
    assert blind.shape[1] < frame.shape[1]
    assert not any(side % 16 for side in blind.shape[:2])


def test_movies_that_were_cut_are_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("imageio_ffmpeg.count_frames_and_secs", lambda path: (1, 0.25))
    with pytest.raises(RunError, match=r"mp4 and \.gif cannot be written: the file is not whole"):
        write_movies(tmp_path / "a.npz", recording(2), ACTIONS)
    assert list(tmp_path.iterdir()) == []
