"""A server that suggests, against a real one on this machine: answers and failures."""

import logging
import threading
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.suggesters import server
from rewards.suggesters.household import YesNoSuggester
from rewards.suggesters.rules import Household, TextState
from tests.bad_inputs.harness import in_one_line
from tests.model_server import CHOP, Turns, said, serving
from tests.test_suggesters import settings
from utils.answer_cache import AnswerCache
from utils.errors import RunError
from utils.household import Goal

SCENES = [TextState(f"you see {thing}.", "", "", {}) for thing in ("tree", "cow", "water", "iron")]
KEY = "sk-of-nobody-0123456789"


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@pytest.fixture
def cache(tmp_path):
    return AnswerCache(tmp_path / "answers.sqlite")


@pytest.fixture
def waits(monkeypatch):
    """Collect how long tries wait for one another, and do not wait."""
    waits = []
    monkeypatch.setattr(server, "sleep", waits.append)
    return waits


@pytest.fixture
def suggester(cache, waits):
    def make(turns, **changes):
        given = {"suggester_url": turns.url, "suggester_model": "tiny"}
        return server.ServerSuggester(settings(server.ServerSettings, **given | changes), cache)

    return make


def everything_written(folder):
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def prompt_of(body):
    return body["prompt"] if "prompt" in body else body["messages"][0]["content"]


@pytest.mark.parametrize(
    ("api", "answer"),
    [("chat", said("- Chop tree\n- Sleep")), ("completions", {"choices": [{"text": CHOP}]})],
)
def test_a_server_suggests_and_is_asked_once(api, answer, suggester, tmp_path):
    with serving(Turns(answer)) as turns:
        found = suggester(turns, suggester_api=api)
        goals = [["chop tree", "sleep"] if api == "chat" else ["chop tree"]]
        assert found.suggest(SCENES[:1]) == found.suggest(SCENES[:1]) == goals
    ((path, headers, body),) = turns.asked
    assert path == f"/v1/{'chat/' if api == 'chat' else ''}completions"
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("tiny", 0.1, 200)
    assert body.get("stop") == (None if api == "chat" else "\n\n")
    assert "You see tree. What do you do?\n" in prompt_of(body)
    assert found.metrics()["suggester/tokens"] == (9 if api == "chat" else 0)
    assert found.metrics()["suggester/requests"] == 1
    assert KEY.encode() not in everything_written(tmp_path)


@given(st.integers(0, 60), st.none() | st.floats(0, 1e12))
def test_waits_grow_and_do_what_the_server_asks(number, asked):
    most = min(0.5 * 2**number, server.LONGEST_WAIT)
    low, high = (most / 2, most) if asked is None else [min(asked, server.LONGEST_WAIT)] * 2
    assert low <= server.pause(number, asked) <= high


def test_several_new_scenes_are_asked_each_and_without_a_key_none_is_sent(suggester, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    with serving(Turns(said(CHOP))) as turns:
        assert suggester(turns).suggest(SCENES) == [["chop tree"]] * 4
    assert len({prompt_of(body) for _, _, body in turns.asked}) == 4
    assert "Authorization" not in turns.asked[0][1]


FAILURES = [500, 503, 429, "die", "grumble", "cut", "stall", b"<html>rubbish", b"[" * 9999]
FAILURES += ["drip_headers", "go_on_and_on"]


def patience(turn):
    # Short only for a silent server: the first request of a process imports modules within its
    # timeout, and on a busy machine that would become a second try.
    silent = turn in ["grumble", "stall", "drip_headers", "go_on_and_on", "dribble"]
    return {"suggester_timeout": 0.4} if silent else {}


@pytest.mark.quick("500", "die")
@pytest.mark.parametrize("turn", FAILURES, ids=str)
def test_what_may_pass_is_tried_again(suggester, waits, turn):
    with serving(Turns(turn, said(CHOP))) as turns:
        found = suggester(turns, **patience(turn))
        assert found.suggest(SCENES[:1]) == [["chop tree"]]
    assert len(turns.asked) == found.sent == 2
    (wait,) = waits
    assert wait == 7 or (wait >= 0 and turn not in (500, 503, 429))  # as the server asks


@pytest.mark.quick("401", "away")
@pytest.mark.parametrize(
    "turn", [*FAILURES, 401, 403, 404, 400, "away", "dribble", {"no": 1}], ids=str
)
def test_what_does_not_pass_ends_the_run_with_one_line(suggester, turn):
    with serving(Turns(turn)) as turns:
        found = suggester(turns, suggester_retries=1, **patience(turn))
        begun = time.perf_counter()
        with pytest.raises(RunError, match=f"suggester_url: {turns.url}") as caught:
            found.suggest(SCENES[:1])
    assert time.perf_counter() - begun < 1.5  # a slow answer alone takes twice a second
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 500
    assert "at length" not in line
    assert "suggester_failure=no-suggestions" in line
    tried_twice = turn in FAILURES or turn == "dribble"
    assert len(turns.asked) == (2 if tried_twice else 1)
    if isinstance(turn, int):
        assert f"answers {turn} (" in line
        assert "said no" in line


def test_an_answer_that_never_ends_is_not_kept(suggester, monkeypatch):
    monkeypatch.setattr(server, "MOST_BYTES", 10)
    with serving(Turns(said(CHOP))) as turns, pytest.raises(RunError, match="more than 10 bytes"):
        suggester(turns, suggester_retries=0).suggest(SCENES[:1])


def test_or_the_run_goes_on_without_and_rests_each_time_longer(suggester, caplog, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(server, "monotonic", lambda: now[0])
    with serving(Turns("die", 401, said(CHOP), 500, 0)) as turns:
        found = suggester(turns, suggester_retries=0, suggester_failure="no-suggestions")
        n_asked = []
        for scene, rest in zip(
            SCENES, (server.FIRST_REST, 2 * server.FIRST_REST, 0, server.FIRST_REST), strict=True
        ):
            goals = found.suggest([scene])
            n_asked.append(len(turns.asked))
            assert goals == ([[]] if rest else [["chop tree"]])
            now[0] += max(rest - 0.5, 0)
            if rest:
                assert found.suggest([scene]) == [[]]  # is left alone
                assert len(turns.asked) == n_asked[-1]
                now[0] += 1
    assert n_asked == [1, 2, 3, 4]
    assert found.counts["unanswered"] == 6
    assert len([each for each in caplog.records if each.levelno == logging.WARNING]) == 3


def test_a_closed_suggester_ends_its_thread_and_tries_no_more(suggester, monkeypatch):
    with serving(Turns(500)) as turns:
        found = suggester(turns, suggester_wait="no-goals", suggester_retries=20)
        tried = threading.Event()
        monkeypatch.setattr(server, "sleep", lambda _: tried.set() or threading.Event().wait(0.01))
        n_before = threading.active_count()
        found.suggest(SCENES[:1])
        assert tried.wait(60)
        found.close()
        assert len(turns.asked) < 20
    assert threading.active_count() <= n_before


def test_the_budget_is_kept_retries_among_it(suggester, caplog):
    with serving(Turns(500, said(CHOP))) as turns:
        found = suggester(turns, suggester_budget=3)
        goals = [found.suggest([scene])[0] for scene in SCENES]
    assert goals == [["chop tree"], ["chop tree"], [], []]
    assert len(turns.asked) == 3
    assert found.counts["unanswered"] == 2
    assert len([each for each in caplog.records if "all 3 requests" in each.message]) == 1


def test_a_resumed_run_has_what_is_left_of_its_budget(suggester):
    with serving(Turns(said(CHOP))) as turns:
        killed = suggester(turns, suggester_budget=3)
        killed.suggest(SCENES[:1])
        state = killed.state_dict()
        killed.suggest(SCENES[1:2])  # after the checkpoint
        resumed = suggester(turns, suggester_budget=3)
        resumed.suggest(SCENES[2:3])  # scenes that the run's own replace
        resumed.load_state_dict(state)
        assert resumed.sent == 3
        assert resumed.suggest(SCENES) == [["chop tree"]] * 3 + [[]]
        alone = suggester(turns, suggester_budget=0)  # the cache
        assert alone.suggest(SCENES) == [["chop tree"]] * 3 + [[]]
    assert len(turns.asked) == 3


def test_the_key_is_in_no_error_though_the_server_repeats_it(suggester):
    with serving(Turns("repeat_the_key")) as turns, pytest.raises(RunError) as caught:
        suggester(turns).suggest(SCENES[:1])
    assert "OPENAI_API_KEY is missing or wrong" in str(caught.value)
    assert "Bearer (key)" in str(caught.value)
    assert KEY not in str(caught.value)


MUGS = Household(None, [], {"mug": "sink", "cup": "sofa", "jug": "bed"})
TOP = {"choices": [{"logprobs": {"top_logprobs": [{" Yes": -3.0, " No": -0.25}]}}]}


def test_yes_and_no_are_asked_once_for_all_runs_within_the_budget(suggester, caplog):
    with serving(Turns(TOP)) as turns:
        first = YesNoSuggester(suggester(turns, suggester_budget=2))
        (goals,) = first.goals([MUGS])
        state = first.state_dict()
        resumed = YesNoSuggester(suggester(turns, suggester_budget=2))
        resumed.load_state_dict(state)
        assert resumed.goals([MUGS]) == first.goals([MUGS]) == [goals]
        second = YesNoSuggester(suggester(turns))
        assert second.goals([MUGS]) == [[Goal("mug"), Goal("cup"), Goal("jug")]]
    assert set(goals) < {Goal("mug"), Goal("cup"), Goal("jug")}
    assert (len(goals), len(turns.asked)) == (2, 3)
    assert (turns.asked[0][0], turns.asked[0][2]["logprobs"]) == ("/v1/completions", 5)
    assert second.metrics()["suggester/from_cache"] == 2
    assert len([each for each in caplog.records if "all 2 requests" in each.message]) == 2


@pytest.mark.parametrize("turn", [said("Yes"), {"choices": [{"logprobs": None}]}, 401])
def test_without_their_probabilities_the_run_ends_or_goes_on(suggester, turn):
    with serving(Turns(turn)) as turns:
        with pytest.raises(RunError, match="suggester_url") as caught:
            YesNoSuggester(suggester(turns)).goals([MUGS])
        going_on = suggester(turns, suggester_failure="no-suggestions")
        assert YesNoSuggester(going_on).goals([MUGS]) == [[]]
    assert "\n" not in str(caught.value)


def configured(tmp_path, **changes):
    given = {"suggester_cache": str(tmp_path / "a.sqlite"), "suggester_model": "tiny"}
    config = settings(server.ServerSettings, **given | changes)
    return server.ServerSuggester.configured(SimpleNamespace(part=lambda _: config), ())


MODELS = {
    ("tiny",): "",
    None: "",  # it does not say
    (): "",
    ("tinny", "large"): r"no 'tiny'. Did you mean 'tinny'\? It has tinny, large",
    401: r"answers 401 \(the key in the environment variable OPENAI_API_KEY is missing",
    500: r"answers 500 .*said no",
}


@pytest.mark.parametrize("models", MODELS)
def test_a_server_is_asked_for_its_models_before_the_run(tmp_path, models):
    with serving(Turns(said(CHOP), models=models)) as turns:
        if not MODELS[models]:
            assert configured(tmp_path, suggester_url=f"{turns.url}/").suggest(SCENES[:1])
            return
        with in_one_line(MODELS[models]):
            configured(tmp_path, suggester_url=turns.url)


LINE_BREAK = {"suggester_url": "https://h", "suggester_key_variable": "TWO_LINES"}
BAD = {
    "no address": ({}, "suggester_url: missing"),
    "no server": ({"suggester_url": "http://127.0.0.1:9/v1"}, "127.0.0.1:9/v1: .*budget=0"),
    "no scheme": ({"suggester_url": "localhost:8000"}, "is no address"),
    "no port": ({"suggester_url": "http://localhost:port"}, "suggester_url: Port could not"),
    "a password": ({"suggester_url": "https://me:secret@host/v1"}, "contains more than an address"),
    "a key in the address": ({"suggester_url": "https://h/v1?key=secret"}, "contains more than"),
    "not encrypted": ({"suggester_url": "http://example.org/v1"}, "is not encrypted, and the key"),
    "a line break": (LINE_BREAK, "TWO_LINES: contains characters that no key has"),
    "the key itself": (LINE_BREAK | {"suggester_key_variable": "sk-secret"}, "not the key"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_setting_is_one_line_without_secrets(tmp_path, monkeypatch, name):
    monkeypatch.setenv("TWO_LINES", "one\nsecret")
    changes, line = BAD[name]
    with in_one_line(line) as caught:
        configured(tmp_path, **changes)
    assert "secret" not in str(caught.value)
