import base64
import io
import zlib

import numpy as np
import pytest
from PIL import Image

from report.page import (
    COARSENESS,
    Pictures,
    atlas,
    best_tile,
    coloured,
    encoded,
    looking_back,
    packed,
    packed_within,
    quantized,
    rounded,
    tiled,
)


def unpacked(entry):
    blob = zlib.decompress(base64.b64decode(entry["data"]))
    return np.frombuffer(blob, entry["type"]).reshape(entry["shape"])


def drawn(pictures):
    """Put the pictures together as the page does.  [n, H, W, 3]"""
    entry = pictures.packed(1e6)
    (height, width), (h, w) = entry["size"], entry["tile"]
    image = np.asarray(Image.open(io.BytesIO(base64.b64decode(entry["atlas"]))).convert("RGB"))
    result = []
    for row in unpacked(entry["maps"]):
        frame = np.zeros((height, width, 3), np.uint8)
        for place, tile in enumerate(row):
            down, across = np.array(divmod(tile, entry["columns"])) * (h, w)
            top, left = np.array(divmod(place, width // w)) * (h, w)
            frame[top : top + h, left : left + w] = image[down : down + h, across : across + w]
        result.append(frame)
    return np.stack(result)


def grid_frames(n_frames, generator):
    """Return pictures of 3 x 4 tiles of 8 pixels, of five different kinds."""
    kinds = generator.integers(256, size=(5, 8, 8, 3), dtype=np.uint8)
    chosen = kinds[generator.integers(5, size=(n_frames, 3, 4))]
    return chosen.transpose(0, 1, 3, 2, 4, 5).reshape(n_frames, 24, 32, 3)


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.int16, np.float32])
def test_an_array_comes_back_as_it_was(kind):
    array = np.arange(-6, 6).astype(kind).reshape(3, 4)
    entry = packed(array)
    assert entry["type"] == np.dtype(kind).name
    np.testing.assert_array_equal(unpacked(entry), array)


def test_small_shares_are_kept_apart():
    shares = np.array([0, 1 / 512, 2 / 512, 0.5, 1])
    numbers = quantized(shares)
    assert numbers.dtype == np.uint8
    assert len(set(numbers.tolist())) == 5
    assert (numbers / 255) ** 2 == pytest.approx(shares, abs=0.004)


def test_attention_of_a_step_ends_with_itself_and_begins_with_the_episode():
    attention = np.zeros((4, 2, 3, 3))  # four steps, two layers, three heads, three steps seen
    for t in range(4):
        attention[t, 1, 2] = [(t - 2) / 10, (t - 1) / 10, t / 10]
    looks = looking_back(attention)
    assert looks.shape == (2, 3, 1 + 2 + 3 + 3)
    seen = [0, 0, 1, 0, 1, 2, 1, 2, 3]  # the step of each share, in tenths
    assert looks[1, 2].tolist() == quantized(np.array(seen) / 10).tolist()
    assert not looks[0].any()


def test_arrays_are_packed_exactly_where_there_is_room():
    arrays = [np.arange(200, dtype=np.uint8), np.arange(7, dtype=np.uint8)]
    entries, step = packed_within(arrays, 1e6)
    assert step == 1
    for entry, array in zip(entries, arrays, strict=True):
        np.testing.assert_array_equal(unpacked(entry), array)


def test_arrays_lose_detail_until_they_fit():
    array = np.random.default_rng(0).integers(256, size=20_000, dtype=np.uint8)
    (entry,), step = packed_within([array], 10_000)
    assert 1 < step < COARSENESS[-1]
    assert len(base64.b64decode(entry["data"])) <= 10_000
    np.testing.assert_array_equal(unpacked(entry), rounded(array, step))


def test_rounding_keeps_nothing_and_everything():
    numbers = np.array([0, 7, 8, 23, 24, 247, 255], np.uint8)
    assert rounded(numbers, 16).tolist() == [0, 0, 16, 16, 32, 240, 255]
    assert rounded(numbers, 1).tolist() == numbers.tolist()


def test_nothing_to_pack_is_packed():
    assert packed_within([], 10) == ([], 1)


def test_every_different_picture_is_kept_once_and_comes_back_exactly():
    frames = grid_frames(6, np.random.default_rng(0))
    pictures = Pictures()
    assert pictures.add(frames[:4]).tolist() == [0, 1, 2, 3]
    assert pictures.add(frames[[2, 4, 0, 5]]).tolist() == [2, 4, 0, 5]
    np.testing.assert_array_equal(drawn(pictures), frames)


def test_a_grid_world_is_cut_into_its_tiles_and_another_picture_is_left_whole():
    generator = np.random.default_rng(0)
    assert best_tile(grid_frames(20, generator)) == (8, 8)
    noise = generator.integers(256, size=(3, 60, 80, 3), dtype=np.uint8)
    assert best_tile(noise) == (60, 80)


def test_tiles_are_laid_out_row_by_row():
    tiles = np.arange(5, dtype=np.uint8)[:, None, None, None].repeat(3, axis=-1)
    assert atlas(tiles, 3)[..., 0].tolist() == [[0, 1, 2], [3, 4, 0]]
    np.testing.assert_array_equal(tiled(atlas(tiles, 3)[None], (1, 1))[:5], tiles)


def test_pictures_of_another_size_are_refused():
    pictures = Pictures()
    pictures.add(np.zeros((1, 8, 8, 3), np.uint8))
    with pytest.raises(ValueError, match=r"\(8, 8\) pixels, then of \(8, 9\)"):
        pictures.add(np.zeros((1, 8, 9, 3), np.uint8))


def test_pictures_too_rich_for_their_room_lose_quality_only():
    noise = np.random.default_rng(0).integers(256, size=(64, 64, 3), dtype=np.uint8)
    exact, poor = encoded(noise, 1e6), encoded(noise, 6000)
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(exact))), noise)
    assert len(poor) <= 6000
    assert Image.open(io.BytesIO(poor)).size == (64, 64)


def test_images_of_other_than_three_channels_are_shown_by_their_last_in_grey():
    images = np.arange(2 * 4 * 1 * 5, dtype=np.uint8).reshape(2, 4, 1, 5)
    pictures = coloured(images)
    assert pictures.shape == (2, 1, 5, 3)
    for colour in range(3):
        np.testing.assert_array_equal(pictures[..., colour], images[:, 3])
    np.testing.assert_array_equal(coloured(images[:, :3]), images[:, :3].transpose(0, 2, 3, 1))
