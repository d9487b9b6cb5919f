"""Answers of language models in one SQLite file."""

import os
import shutil
import sqlite3

import pytest

from tests.ranks import on_ranks
from utils import answer_cache
from utils.answer_cache import AnswerCache, Completion, CompletionRequest
from utils.errors import RunError, UserError

QUESTION = CompletionRequest("model", "What?", {"by": "writing", "temperature": 0.1})
OTHER = QUESTION._replace(text="Who?")
ANSWER = Completion("- Chop tree", 12, 0.5)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "answers.sqlite"


def with_answer(path):
    cache = AnswerCache(path)
    cache.keep(QUESTION, ANSWER)
    return cache


def n_kept(cache):
    return cache.connection.execute("SELECT count(*) FROM answers").fetchone()[0]


def test_the_first_answer_is_found_again_and_what_a_run_has_spent_never_falls(path):
    assert with_answer(path).keep(QUESTION, Completion("- Sleep")) == ANSWER
    assert AnswerCache(path).find([QUESTION, OTHER]) == [ANSWER, None]
    spent = [AnswerCache(path).spend(run, asked) for run, asked in (("a", 7), ("a", 3), ("b", 1))]
    assert spent == [7, 7, 1]


def test_model_prompt_and_parameters_make_a_question_their_order_and_looks_do_not(path):
    cache = with_answer(path)
    for change in ({"model": "other"}, {"text": "What"}, {"parameters": {"by": "writing"}}):
        assert cache.find([QUESTION._replace(**change)]) == [None]
    turned = dict(reversed(QUESTION.parameters.items()))
    assert cache.find([QUESTION._replace(parameters=turned, shown="x")]) == [ANSWER]


def test_several_processes_write_at_once(path):
    def work(rank):
        cache = AnswerCache(path)
        for number in range(20):
            cache.keep(QUESTION._replace(text=f"{number}"), Completion(f"{rank}"))
            cache.spend("run", number)
        return [answer.text for answer in cache.find([QUESTION._replace(text="3")])]

    found = on_ranks(3, work, path.parent)
    assert len({answer for (answer,) in found}) == 1
    assert n_kept(AnswerCache(path)) == 20


def test_closed_it_is_one_file_that_can_be_passed_on_and_read(path, tmp_path, monkeypatch):
    with_answer(path).connection.close()
    assert os.listdir(tmp_path) == ["answers.sqlite"]
    other = shutil.copy(path, tmp_path / "other.sqlite")
    monkeypatch.setattr(os, "access", lambda *_: False)  # it may not be written
    cache = AnswerCache(other)
    assert cache.keep(OTHER, Completion("- Sleep")) == Completion("- Sleep")
    assert cache.find([QUESTION, OTHER]) == [ANSWER, Completion("- Sleep")]
    assert AnswerCache(other).find([QUESTION, OTHER]) == [ANSWER, None]
    assert cache.spend("run", 5) == 5


def damaged(path):
    path.write_bytes(b"not a database at all, but long enough to look at" * 40)


def of_something_else(path):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE notes (text TEXT)")


def cut_short(path):
    cache = with_answer(path)
    for number in range(200):
        cache.keep(QUESTION._replace(text=f"{number}"), Completion("x" * 500))
    cache.connection.close()
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
    monkeypatch.setattr(answer_cache, "WAIT_SECONDS", 0.05)
    cache = AnswerCache(path)
    holder = sqlite3.connect(path, isolation_level=None)
    if when == "at the beginning":
        cache.connection.close()
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    holder.execute("INSERT INTO budgets VALUES ('x', 1)")
    opened = AnswerCache if when == "at the beginning" else lambda _: cache
    with pytest.raises((UserError, RunError), match=r"locked.*Another program holds it"):
        opened(path).keep(QUESTION, ANSWER)
    holder.close()
