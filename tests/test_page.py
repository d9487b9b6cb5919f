import json
import re

import numpy as np
import pytest

from report.page import EpisodePage
from tests.recordings import (
    ACTIONS,
    VOCABULARY,
    of_goals,
    of_many_actions,
    of_vectors,
    of_words,
    recording,
)
from tests.test_packing import drawn, unpacked

FACTS = {"return": "0.5"}


def page_of(*recordings):
    page = EpisodePage("SHELM on a task", ACTIONS)
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


def test_a_page_shows_the_pictures_of_every_step():
    page, one = page_of(recording(3, seed=1)), recording(6)
    page.add(one)
    episode = page.data(FACTS)["episodes"][1]
    views = drawn(page._pictures["views"])[unpacked(episode["views"])]
    np.testing.assert_array_equal(views, one.steps["observations"].transpose(0, 2, 3, 1))
    wholes = drawn(page._pictures["wholes"])[unpacked(episode["wholes"])]
    np.testing.assert_array_equal(wholes, one.details["overviews"])


def test_a_page_holds_every_head_of_every_layer():
    one = recording(6)
    data = page_of(one).data(FACTS)
    looks = unpacked(data["episodes"][0]["attention"])
    assert looks.shape == (2, 3, 6 * 7 / 2)
    last = (looks[:, :, -6:] / 255.0) ** 2
    assert last == pytest.approx(one.details["attention"][-1], abs=0.004)
    assert data["leastAttention"] == 0


def test_an_agent_without_language_has_a_page_without_memory():
    data = page_of(recording(4, n_words=0, n_layers=0)).data(FACTS)
    assert not {"words", "similarities", "attention", "entropy"} & set(data["episodes"][0])
    assert data["words"] == []


def test_vectors_and_what_actions_are_worth_are_in_the_page_as_numbers():
    one = of_vectors(5)
    page = EpisodePage("GPT on a maze", ACTIONS, ["x", "y"], "blue: the agent")
    page.add(one)
    data = page.data(FACTS)
    (episode,) = data["episodes"]
    np.testing.assert_array_equal(unpacked(episode["numbers"]), one.steps["observations"])
    values = one.details["action_values"]
    assert unpacked(episode["actionValues"]) == pytest.approx(values, abs=1e-6)
    assert (data["numbers"], data["legend"]) == (["x", "y"], "blue: the agent")
    assert set(data["pictures"]) == {"wholes"}
    assert not {"views", "probabilities"} & set(episode)


def test_texts_and_numbers_stand_in_the_page_beside_the_pictures():
    one = of_words(6)
    data = page_of(one).data(FACTS)
    (episode,) = data["episodes"]
    texts = np.array(data["sentences"])[unpacked(episode["text"])]
    np.testing.assert_array_equal(texts, one.steps["text"])
    np.testing.assert_array_equal(unpacked(episode["numbers"]), one.steps["vectors"])
    assert len(data["sentences"]) == 3
    assert "views" in episode


def test_goals_and_achievements_stand_in_the_page_step_by_step():
    one = of_goals(12)
    data = page_of(of_words(3), one).data(FACTS)
    without, episode = data["episodes"]
    names = {"phrases": "phrase"} | {
        n: n for n in ("suggestions", "matched", "unlocked", "caption")
    }
    for name, kept in names.items():
        texts = np.array(data["sentences"])[unpacked(episode[name])]
        np.testing.assert_array_equal(texts, one.steps[kept])
    assert unpacked(episode["goalRewards"]).tolist() == one.steps["goal_rewards"].tolist()
    assert unpacked(episode["changed"]).tolist() == one.steps["goal_success"].tolist()
    assert not {*names, "goalRewards", "changed"} & set(without)


def test_more_different_texts_than_two_bytes_can_number_fit_in_a_page():
    one = of_words(2)
    one.steps["text"] = np.arange(2 * 33_000).reshape(2, -1).astype(str)
    data = page_of(one).data(FACTS)
    numbers = unpacked(data["episodes"][0]["text"])
    np.testing.assert_array_equal(np.array(data["sentences"])[numbers], one.steps["text"])


def test_of_many_actions_the_best_are_in_the_page_and_the_one_taken():
    one = of_many_actions(5)
    page = EpisodePage("CNN on many actions", [f"action {n}" for n in range(30)])
    page.add(one)
    (episode,) = page.data(FACTS)["episodes"]
    ranked, shares = unpacked(episode["ranked"]), unpacked(episode["probabilities"])
    assert ranked.shape == shares.shape == (5, 12)
    judged = one.details["probabilities"]
    best = np.argsort(-judged, axis=1)[:, :12]
    best[1, -1] = one.steps["actions"][1]
    np.testing.assert_array_equal(ranked, best)
    expected = np.take_along_axis(judged, best, 1)
    assert (shares / 255) ** 2 == pytest.approx(expected, abs=0.004)


def test_an_agent_that_is_told_words_alone_has_a_page_too():
    one = of_words(4)
    del one.steps["observations"], one.steps["vectors"]
    (episode,) = page_of(one).data(FACTS)["episodes"]
    assert "text" in episode
    assert not {"views", "numbers"} & set(episode)


def test_an_agent_without_values_or_pictures_has_a_page_too():
    data = page_of(of_vectors(5, has_overviews=False)).data(FACTS)
    assert data["pictures"] == {}
    assert "values" not in data["episodes"][0]


def test_the_file_needs_nothing_else_and_no_word_can_end_its_script(tmp_path):
    page_of(recording(4)).write(tmp_path / "page.html", FACTS)
    text = (tmp_path / "page.html").read_text()
    assert "{{" not in text
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:)|https?:|@import|url\(""", text)
    (data,) = re.findall(r'type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert "<wall>" in json.loads(data)["words"]
    assert "<" not in data
