"""Answers of language models in one SQLite file."""

import os
import shutil
import sqlite3

import pytest

from rewards.suggestions import cache as cache_module
from rewards.suggestions.cache import Answer, AnswerCache, Question
from tests.ranks import on_ranks
from utils.errors import RunError, UserError

QUESTION = Question("model", "What?", {"by": "writing", "temperature": 0.1})
ANSWER = Answer("- Chop tree", 12, 0.5)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "answers.sqlite"


def test_an_answer_is_found_again_by_another_process(path):
    AnswerCache(path).keep(QUESTION, ANSWER)
    cache = AnswerCache(path)
    assert cache.find([QUESTION, QUESTION._replace(text="Who?")]) == [ANSWER, None]
    assert len(cache) == 1


@pytest.mark.parametrize(
    "change", [{"model": "other"}, {"text": "What"}, {"parameters": {"by": "writing"}}]
)
def test_another_model_prompt_or_parameter_is_another_question(path, change):
    cache = AnswerCache(path)
    cache.keep(QUESTION, ANSWER)
    assert cache.find([QUESTION._replace(**change)]) == [None]


def test_the_order_of_parameters_and_what_is_shown_make_no_other_question(path):
    cache = AnswerCache(path)
    cache.keep(QUESTION, ANSWER)
    turned = dict(reversed(QUESTION.parameters.items()))
    assert cache.find([QUESTION._replace(parameters=turned, shown="x")]) == [ANSWER]


def test_the_first_answer_stays(path):
    cache = AnswerCache(path)
    assert cache.keep(QUESTION, ANSWER) == ANSWER
    assert cache.keep(QUESTION, Answer("- Sleep")) == ANSWER


def test_several_processes_write_at_once(path):
    def work(rank):
        cache = AnswerCache(path)
        for number in range(20):
            cache.keep(QUESTION._replace(text=f"{number}"), Answer(f"{rank}"))
            cache.spend("run", number)
        return [answer.text for answer in cache.find([QUESTION._replace(text="3")])]

    found = on_ranks(3, work, path.parent)
    assert len({answer for (answer,) in found}) == 1
    assert len(AnswerCache(path)) == 20


def test_closed_it_is_one_file_that_can_be_passed_on(path, tmp_path):
    cache = AnswerCache(path)
    cache.keep(QUESTION, ANSWER)
    cache.close()
    assert os.listdir(tmp_path) == ["answers.sqlite"]
    other = shutil.copy(path, tmp_path / "other.sqlite")
    assert AnswerCache(other).find([QUESTION]) == [ANSWER]


def test_a_file_that_may_only_be_read_is_read(path, monkeypatch):
    cache = AnswerCache(path)
    cache.keep(QUESTION, ANSWER)
    cache.close()
    monkeypatch.setattr(os, "access", lambda *_: False)
    cache = AnswerCache(path)
    assert cache.find([QUESTION]) == [ANSWER]
    other = QUESTION._replace(text="Who?")
    assert cache.keep(other, Answer("- Sleep")) == Answer("- Sleep")
    assert cache.find([other]) == [None]
    assert cache.spend("run", 5) == 5


def test_what_a_run_has_spent_never_falls(path):
    assert AnswerCache(path).spend("a", 7) == 7
    assert AnswerCache(path).spend("a", 3) == 7
    assert AnswerCache(path).spend("b", 1) == 1


def damaged(path):
    path.write_bytes(b"not a database at all, but long enough to look at" * 40)


def of_something_else(path):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE notes (text TEXT)")


def cut_short(path):
    cache = AnswerCache(path)
    for number in range(200):
        cache.keep(QUESTION._replace(text=f"{number}"), Answer("x" * 500))
    cache.close()
    path.write_bytes(path.read_bytes()[:5000])


@pytest.mark.parametrize("spoil", [damaged, of_something_else, cut_short])
def test_an_unusable_file_is_one_line(path, spoil):
    spoil(path)
    with pytest.raises((UserError, RunError)) as caught:
        AnswerCache(path).find([QUESTION])
    assert str(caught.value).count("\n") == 0
    assert str(caught.value).startswith(f"suggester_cache {path}: cannot be used (")
    assert "Move it away, or name another file" in str(caught.value)


@pytest.mark.parametrize("when", ["at the beginning", "in the midst"])
def test_a_locked_file_is_one_line(path, monkeypatch, when):
    monkeypatch.setattr(cache_module, "WAIT_SECONDS", 0.05)
    cache = AnswerCache(path)
    holder = sqlite3.connect(path, isolation_level=None)
    if when == "at the beginning":
        cache.close()
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    holder.execute("INSERT INTO budgets VALUES ('x', 1)")
    opened = AnswerCache if when == "at the beginning" else lambda _: cache
    with pytest.raises((UserError, RunError), match=r"locked.*Another program holds it"):
        opened(path).keep(QUESTION, ANSWER)
    holder.close()
