"""The episode page: its data, and how arrays and pictures are packed."""

import base64
import io
import json
import re
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from analysis import page as packing
from tests import recordings
from tests.recordings import ACTIONS, recording

FACTS = {"return": "0.5"}


def unpacked(entry):
    blob = zlib.decompress(base64.b64decode(entry["data"]))
    return np.frombuffer(blob, entry["type"]).reshape(entry["shape"])


def drawn(entry):
    """Put packed pictures together as the page does.  [n, H, W, 3]"""
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


def page_of(*recordings, actions=ACTIONS, explained=()):
    page = packing.EpisodePage("SHELM on a task", actions, *explained)
    for one in recordings:
        page.add(one)
    return page


EPISODES = {
    "SHELM": recording(6),
    "neither words nor a language model": recording(4, n_words=0, n_layers=0),
    "vectors and the worth of actions": recordings.of_vectors(5),
    "vectors alone": recordings.of_vectors(5, has_overviews=False),
    "continuous actions": recordings.of_vectors(5, n_numbers_given=3),
    "texts and numbers": recordings.of_words(6),
    "goals and achievements": recordings.of_goals(12),
}


def read_back(data, episode):
    """Return the arrays of an episode by the names they were recorded under."""
    words, sentences = np.array(data["words"]), np.array(data["sentences"])
    numbers = {name: unpacked(entry) for name, entry in episode.items() if isinstance(entry, dict)}
    found = {kept: numbers[name] for name, (kept, _) in packing.NUMBERS.items() if name in numbers}
    texts = {kept: numbers[name] for name, kept in packing.TEXTS.items() if name in numbers}
    found |= {kept: sentences[rows] for kept, rows in texts.items()}
    if "words" in numbers:
        found |= {"words": words[numbers["words"]], "similarities": numbers["similarities"] / 1e4}
    if "probabilities" in numbers:
        found["probabilities"] = (numbers["probabilities"] / 255) ** 2
    if "attention" in numbers:
        found["attention"] = numbers["attention"]
    for own, kept in (("actionValues", "action_values"), ("numbers", "vectors")):
        if own in numbers:
            found[kept] = numbers[own]
    for own, kept in (("views", "observations"), ("wholes", "overviews")):
        if own in numbers:
            found[kept] = drawn(data["pictures"][own])[numbers[own]]
    return found


@pytest.mark.parametrize("name", EPISODES)
def test_every_array_of_an_episode_is_in_the_page_and_no_other(name):
    one = EPISODES[name]
    page = page_of(recording(3, seed=1), one, explained=(["x", "y"], "blue: the agent"))
    data = page.data(FACTS)
    assert (data["numbers"], data["legend"]) == (["x", "y"], "blue: the agent")
    assert data["leastAttention"] == 0
    expected = one.steps | one.details
    if expected["observations"].ndim == 4:
        expected["observations"] = expected["observations"].transpose(0, 2, 3, 1)
    else:
        expected["vectors"] = expected.pop("observations")
    if "attention" in expected:
        expected["attention"] = packing.looking_back(expected["attention"])
    found = read_back(data, data["episodes"][1])
    assert found.keys() == expected.keys()
    for kept, array in expected.items():
        if array.dtype.kind == "f":
            np.testing.assert_allclose(found[kept], array, atol=0.004)
        else:
            np.testing.assert_array_equal(found[kept], array)


def test_more_different_texts_than_two_bytes_can_number_fit_in_a_page():
    one = recordings.of_words(2)
    one.steps["text"] = np.arange(2 * 33_000).reshape(2, -1).astype(str)
    data = page_of(one).data(FACTS)
    numbers = unpacked(data["episodes"][0]["text"])
    np.testing.assert_array_equal(np.array(data["sentences"])[numbers], one.steps["text"])


def test_of_many_actions_the_best_are_in_the_page_and_the_one_taken():
    one = recordings.of_many_actions(5)
    page = page_of(one, actions=[f"action {n}" for n in range(30)])
    (episode,) = page.data(FACTS)["episodes"]
    judged = one.details["probabilities"]
    best = np.argsort(-judged, axis=1)[:, :12]
    best[1, -1] = one.steps["actions"][1]
    np.testing.assert_array_equal(unpacked(episode["ranked"]), best)
    expected = np.take_along_axis(judged, best, 1)
    shares = unpacked(episode["probabilities"])
    assert (shares / 255) ** 2 == pytest.approx(expected, abs=0.004)


def test_the_file_needs_nothing_else_and_no_word_can_end_its_script(tmp_path):
    page_of(recording(4)).write(tmp_path / "page.html", FACTS)
    text = (tmp_path / "page.html").read_text()
    assert "{{" not in text
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:)|https?:|@import|url\(""", text)
    (data,) = re.findall(r'type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert "<wall>" in json.loads(data)["words"]
    assert "<" not in data


def grid_frames(n_frames, generator):
    """Return pictures of 3 x 4 tiles of 8 pixels, of five different kinds."""
    kinds = generator.integers(256, size=(5, 8, 8, 3), dtype=np.uint8)
    chosen = kinds[generator.integers(5, size=(n_frames, 3, 4))]
    return chosen.transpose(0, 1, 3, 2, 4, 5).reshape(n_frames, 24, 32, 3)


@given(st.sampled_from(["u1", "u2", "i2", "f4"]), st.integers(1, 3000), st.integers(3000, 20_000))
def test_arrays_come_back_as_they_were_and_lose_detail_only_where_there_is_no_room(kind, n, room):
    assert packing.packed_within([], room) == ([], 1)
    arrays = [np.random.default_rng(n).integers(256, size=size, dtype="u1") for size in (n, 7 * n)]
    for array in (each.astype(kind) for each in arrays):
        np.testing.assert_array_equal(unpacked(packing.packed(array)), array)
    entries, step = packing.packed_within(arrays, room)
    for entry, array in zip(entries, arrays, strict=True):
        np.testing.assert_array_equal(unpacked(entry), packing.rounded(array, step))
    n_bytes = sum(len(base64.b64decode(entry["data"])) for entry in entries)
    assert n_bytes <= room or step == packing.COARSENESS[-1]
    assert step == 1 or 8 * n > 0.9 * room


def test_attention_of_a_step_ends_with_itself_and_begins_with_the_episode():
    attention = np.zeros((4, 2, 3, 3))  # four steps, two layers, three heads, three steps seen
    for t in range(4):
        attention[t, 1, 2] = [(t - 2) / 10, (t - 1) / 10, t / 10]
    looks = packing.looking_back(attention)
    assert looks.shape == (2, 3, 1 + 2 + 3 + 3)
    seen = [0, 0, 1, 0, 1, 2, 1, 2, 3]  # the step of each share, in tenths
    assert looks[1, 2].tolist() == packing.quantized(np.array(seen) / 10).tolist()
    assert not looks[0].any()


def test_the_saliency_of_a_step_goes_back_to_the_first_where_it_was_computed():
    page = page_of(recording(5))
    page.add(recording(6, n_layers=0), recordings.saliency(4))  # of the first four steps
    first, second = page.data(FACTS)["episodes"]
    assert unpacked(first["attention"]).shape == (2, 3, 15)
    assert "saliency" not in first
    shares = unpacked(second["saliency"]) / 255
    assert shares.tolist() == [[[1, *(0, 1), *(0, 0, 1), *(0, 0, 1, 0)]]]


def test_every_different_picture_and_tile_is_kept_once_and_comes_back_exactly():
    generator = np.random.default_rng(0)
    frames, pictures = grid_frames(6, generator), packing.Pictures()
    assert pictures.add(frames[:4]).tolist() == [0, 1, 2, 3]
    assert pictures.add(frames[[2, 4, 0, 5]]).tolist() == [2, 4, 0, 5]
    np.testing.assert_array_equal(drawn(pictures.packed(1e6)), frames)
    with pytest.raises(ValueError, match=r"\(24, 32\) pixels, then of \(8, 9\)"):
        pictures.add(np.zeros((1, 8, 9, 3), np.uint8))
    assert packing.best_tile(grid_frames(20, generator)) == (8, 8)
    noise = generator.integers(256, size=(3, 60, 80, 3), dtype=np.uint8)
    assert packing.best_tile(noise) == (60, 80), "nothing repeats: a whole picture is the tile"
    tiles = np.arange(5, dtype=np.uint8)[:, None, None, None].repeat(3, axis=-1)
    assert packing.atlas(tiles, 3)[..., 0].tolist() == [[0, 1, 2], [3, 4, 0]]
    np.testing.assert_array_equal(packing.tiled(packing.atlas(tiles, 3)[None], (1, 1))[:5], tiles)


def test_images_of_other_than_three_channels_are_shown_by_their_last_in_grey():
    images = np.arange(2 * 4 * 1 * 5, dtype=np.uint8).reshape(2, 4, 1, 5)
    for n_channels, shown in ((4, [3, 3, 3]), (3, [0, 1, 2]), (1, [0, 0, 0])):
        expected = images[:, shown].transpose(0, 2, 3, 1)
        np.testing.assert_array_equal(packing.coloured(images[:, :n_channels]), expected)


def test_pictures_too_rich_for_their_room_lose_quality_only():
    noise = np.random.default_rng(0).integers(256, size=(64, 64, 3), dtype=np.uint8)
    exact, poor = (io.BytesIO(packing.encoded(noise, room)) for room in (1e6, 6000))
    np.testing.assert_array_equal(np.asarray(Image.open(exact)), noise)
    assert (len(poor.getvalue()) <= 6000, Image.open(poor).size) == (True, (64, 64))


def test_every_array_of_an_episode_is_unpacked_and_shown_by_its_name():
    """A name that stands in page.py alone is a panel that is never drawn."""
    unpacks, shows = ((packing.HERE / file).read_text() for file in ("decode.js", "page.js"))
    for name in (*packing.NUMBERS, *packing.TEXTS):
        assert f'"{name}"' in unpacks, name
        assert re.search(rf"\b{name}\b", unpacks.replace(f'"{name}"', "") + shows), name
