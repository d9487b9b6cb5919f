"""The episode page: what is in the file, and how arrays and pictures are packed into it."""

import base64
import io
import json
import re
import zlib

import numpy as np
import pytest
from PIL import Image

from report.page import (
    COARSENESS,
    EpisodePage,
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
from tests.recordings import (
    ACTIONS,
    VOCABULARY,
    of_goals,
    of_many_actions,
    of_vectors,
    of_words,
    recording,
)

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
    page = EpisodePage("SHELM on a task", actions, *explained)
    for one in recordings:
        page.add(one)
    return page


def test_an_episode_is_in_the_page_step_by_step():
    one = recording(6)
    data = page_of(recording(3, seed=1), one).data(FACTS)
    episode = data["episodes"][1]
    assert episode["return"] == 0.5
    for name in ("actions", "rewards", "values"):
        assert unpacked(episode[name]) == pytest.approx(one.steps[name])
    shares = (unpacked(episode["probabilities"]) / 255) ** 2
    assert shares == pytest.approx(one.details["probabilities"], abs=0.004)
    words = np.array(data["words"])[unpacked(episode["words"])]
    np.testing.assert_array_equal(words, one.steps["words"])
    assert unpacked(episode["similarities"]) / 1e4 == pytest.approx(one.steps["similarities"])
    assert set(data["words"]) == set(VOCABULARY)
    views = drawn(data["pictures"]["views"])[unpacked(episode["views"])]
    np.testing.assert_array_equal(views, one.steps["observations"].transpose(0, 2, 3, 1))
    wholes = drawn(data["pictures"]["wholes"])[unpacked(episode["wholes"])]
    np.testing.assert_array_equal(wholes, one.details["overviews"])
    looks = unpacked(episode["attention"])
    assert looks.shape == (2, 3, 6 * 7 / 2)
    last = (looks[:, :, -6:] / 255.0) ** 2
    assert last == pytest.approx(one.details["attention"][-1], abs=0.004)
    assert data["leastAttention"] == 0


def test_parts_that_an_agent_or_its_world_lacks_are_not_in_the_page():
    silent = page_of(recording(4, n_words=0, n_layers=0)).data(FACTS)
    assert not {"words", "similarities", "attention", "entropy"} & set(silent["episodes"][0])
    assert silent["words"] == []
    blind = page_of(of_vectors(5, has_overviews=False)).data(FACTS)
    assert blind["pictures"] == {}
    assert "values" not in blind["episodes"][0]
    told = of_words(4)
    del told.steps["observations"], told.steps["vectors"]
    (episode,) = page_of(told).data(FACTS)["episodes"]
    assert "text" in episode
    assert not {"views", "numbers", "phrases", "goalRewards", "changed"} & set(episode)


def test_vectors_and_what_actions_are_worth_are_in_the_page_as_numbers():
    one = of_vectors(5)
    data = page_of(one, explained=(["x", "y"], "blue: the agent")).data(FACTS)
    (episode,) = data["episodes"]
    np.testing.assert_array_equal(unpacked(episode["numbers"]), one.steps["observations"])
    values = one.details["action_values"]
    assert unpacked(episode["actionValues"]) == pytest.approx(values, abs=1e-6)
    assert (data["numbers"], data["legend"]) == (["x", "y"], "blue: the agent")
    assert set(data["pictures"]) == {"wholes"}
    assert not {"views", "probabilities"} & set(episode)


def test_texts_numbers_goals_and_achievements_stand_beside_the_pictures():
    told, wanted = of_words(6), of_goals(12)
    data = page_of(told, wanted).data(FACTS)
    sentences, (first, second) = np.array(data["sentences"]), data["episodes"]
    np.testing.assert_array_equal(sentences[unpacked(first["text"])], told.steps["text"])
    np.testing.assert_array_equal(unpacked(first["numbers"]), told.steps["vectors"])
    assert "views" in first
    for name in ("suggestions", "phrases", "matched", "unlocked", "caption"):
        kept = wanted.steps["phrase" if name == "phrases" else name]
        np.testing.assert_array_equal(sentences[unpacked(second[name])], kept)
    assert unpacked(second["goalRewards"]).tolist() == wanted.steps["goal_rewards"].tolist()
    assert unpacked(second["changed"]).tolist() == wanted.steps["goal_success"].tolist()


def test_more_different_texts_than_two_bytes_can_number_fit_in_a_page():
    one = of_words(2)
    one.steps["text"] = np.arange(2 * 33_000).reshape(2, -1).astype(str)
    data = page_of(one).data(FACTS)
    numbers = unpacked(data["episodes"][0]["text"])
    np.testing.assert_array_equal(np.array(data["sentences"])[numbers], one.steps["text"])


def test_of_many_actions_the_best_are_in_the_page_and_the_one_taken():
    one = of_many_actions(5)
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


def test_arrays_come_back_as_they_were_and_lose_detail_only_where_there_is_no_room():
    for kind in (np.uint8, np.uint16, np.int16, np.float32):
        array = np.arange(-6, 6).astype(kind).reshape(3, 4)
        np.testing.assert_array_equal(unpacked(packed(array)), array)
    assert packed_within([], 10) == ([], 1)
    arrays = [np.arange(200, dtype=np.uint8), np.arange(7, dtype=np.uint8)]
    entries, step = packed_within(arrays, 1e6)
    assert step == 1
    for entry, array in zip(entries, arrays, strict=True):
        np.testing.assert_array_equal(unpacked(entry), array)
    array = np.random.default_rng(0).integers(256, size=20_000, dtype=np.uint8)
    (entry,), step = packed_within([array], 10_000)
    assert 1 < step < COARSENESS[-1]
    assert len(base64.b64decode(entry["data"])) <= 10_000
    np.testing.assert_array_equal(unpacked(entry), rounded(array, step))


def test_numbers_are_rounded_and_small_shares_kept_apart():
    numbers = np.array([0, 7, 8, 23, 24, 247, 255], np.uint8)
    assert rounded(numbers, 16).tolist() == [0, 0, 16, 16, 32, 240, 255]
    assert rounded(numbers, 1).tolist() == numbers.tolist()
    shares = np.array([0, 1 / 512, 2 / 512, 0.5, 1])
    found = quantized(shares)
    assert len(set(found.tolist())) == 5
    assert (found / 255) ** 2 == pytest.approx(shares, abs=0.004)


def test_attention_of_a_step_ends_with_itself_and_begins_with_the_episode():
    attention = np.zeros((4, 2, 3, 3))  # four steps, two layers, three heads, three steps seen
    for t in range(4):
        attention[t, 1, 2] = [(t - 2) / 10, (t - 1) / 10, t / 10]
    looks = looking_back(attention)
    assert looks.shape == (2, 3, 1 + 2 + 3 + 3)
    seen = [0, 0, 1, 0, 1, 2, 1, 2, 3]  # the step of each share, in tenths
    assert looks[1, 2].tolist() == quantized(np.array(seen) / 10).tolist()
    assert not looks[0].any()


def test_every_different_picture_and_tile_is_kept_once_and_comes_back_exactly():
    generator = np.random.default_rng(0)
    frames, pictures = grid_frames(6, generator), Pictures()
    assert pictures.add(frames[:4]).tolist() == [0, 1, 2, 3]
    assert pictures.add(frames[[2, 4, 0, 5]]).tolist() == [2, 4, 0, 5]
    np.testing.assert_array_equal(drawn(pictures.packed(1e6)), frames)
    with pytest.raises(ValueError, match=r"\(24, 32\) pixels, then of \(8, 9\)"):
        pictures.add(np.zeros((1, 8, 9, 3), np.uint8))
    assert best_tile(grid_frames(20, generator)) == (8, 8)
    noise = generator.integers(256, size=(3, 60, 80, 3), dtype=np.uint8)
    assert best_tile(noise) == (60, 80), "nothing repeats: a whole picture is the tile"
    tiles = np.arange(5, dtype=np.uint8)[:, None, None, None].repeat(3, axis=-1)
    assert atlas(tiles, 3)[..., 0].tolist() == [[0, 1, 2], [3, 4, 0]]
    np.testing.assert_array_equal(tiled(atlas(tiles, 3)[None], (1, 1))[:5], tiles)


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
