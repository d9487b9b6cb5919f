"""Language models that suggest: questions, answers, cache and costs."""

import json
from threading import Semaphore
from time import sleep
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.language import generation
from rewards.settings import LanguageModelSuggesterSettings
from rewards.suggesters import language_model
from rewards.suggesters.language_model import LanguageModelSuggester
from rewards.suggesters.rules import TextState
from tests.bad_inputs.harness import in_one_line
from tests.golden_data import GOLDEN
from tests.published_models import write_decoder
from tests.test_answer_cache import n_kept
from utils.answer_cache import AnswerCache, Completion, CompletionRequest
from utils.errors import RunError
from utils.settings import declared

ANSWERS = json.loads((GOLDEN / "ellm" / "lm_answers.json").read_text())
STEPS = json.loads((GOLDEN / "ellm" / "crafter_steps.json").read_text())
SCENE = "you see cow, and tree. you are targeting tree."
FIELD = TextState(SCENE, "", "", {})
ACTIONS = ("do nothing", "sleep", "chop tree", "eat cow", "attack cow", "mine coal", "make table")


def settings(kind, **changes):
    """Return the settings of a part as they are declared, but for changes."""
    given = {name: each.metadata["default"] for name, each in declared([kind]).items()}
    return kind(**given | changes)


class Answering(language_model.PromptedSuggester):
    """Gives a given answer."""

    model_id = "nobody"

    def __init__(self, cache, answer, asks_again=False, wait="for-answers"):
        super().__init__(cache, asks_again, wait)
        self.answer, self.n_asked = answer, 0

    def question(self, situation):
        return CompletionRequest("nobody", language_model.question(situation), {})

    def ask(self, questions):
        self.n_asked += len(questions)
        answer = None if self.answer is None else Completion(self.answer, 7, 0.25)
        return [answer] * len(questions)


@pytest.fixture
def cache(tmp_path):
    return AnswerCache(tmp_path / "answers.sqlite")


@pytest.mark.parametrize("row", ANSWERS, ids=lambda row: repr(row["answer"]))
def test_answers_are_read_and_remembered_as_the_original_does(row, cache):
    suggester = Answering(cache, row["answer"], asks_again=True)
    (first,), (again,) = suggester.suggest([FIELD]), suggester.suggest([FIELD])
    assert language_model.goals_of(row["answer"]) == row["goals_in_order"]
    assert sorted(first) == sorted(again) == row["goals"]
    assert first == list(dict.fromkeys(row["goals_in_order"] or []))
    kept = [goal for goal in again if goal not in row["achieved"]]
    assert sorted(kept) == row["goals_after_filter"]
    assert n_kept(cache) == row["remembered"]
    assert suggester.counts["from_cache"] == row["queries_answered_from_memory"]
    assert suggester.counts["rejected"] == row["rejections_counted"]
    assert row["accepted"] == (suggester.n_asked == 1)


def test_a_rejected_answer_is_asked_for_again_by_the_next_run_alone(cache):
    suggester, resumed = (Answering(cache, "I am sorry, I cannot.") for _ in range(2))
    assert [suggester.suggest([FIELD]) for _ in range(3)] == [[[]]] * 3
    resumed.load_state_dict(json.loads(json.dumps(suggester.state_dict())))
    assert resumed.suggest([FIELD]) == [[]]
    assert (suggester.n_asked, suggester.counts["rejected"], resumed.n_asked) == (1, 1, 0)
    assert n_kept(cache) == 0
    # One that an earlier version has kept does not stand in the way.
    cache.keep(suggester.question(FIELD), Completion("I am sorry, I cannot."))
    assert Answering(cache, "- Sleep").suggest([FIELD]) == [["sleep"]]
    assert Answering(cache, None).suggest([FIELD]) == [["sleep"]]


SAID = {
    "- Chop tree\n- Drink water\n": ["chop tree", "drink water"],
    "Sure! Here is my plan:\n\n- Chop tree\n\n- Drink water": ["chop tree", "drink water"],
    "1. Chop tree\n2) Drink water.\nGood luck!": ["chop tree", "drink water"],
    "* **Chop tree**: to get wood\n  • Drink water (thirsty)": ["chop tree", "drink water"],
    "<think>\n- Sleep?\n</think>\n- `Chop tree` - it is near": ["chop tree"],
    "<think>\n- Sleep?": None,
    "-": [],
    "": None,
    "I'm sorry - I cannot do that.": None,
}


@pytest.mark.parametrize("answer", SAID)
def test_lists_of_chat_models_are_read(answer):
    assert language_model.listed_goals(answer) == SAID[answer]


@given(st.lists(st.text("abc ", min_size=1).filter(str.strip), min_size=1))
def test_a_plain_list_is_read_as_in_the_original(goals):
    answer = "\n".join(f"- {goal}." for goal in goals)
    for read in (language_model.listed_goals, language_model.goals_of):
        assert read(answer) == [goal.strip() for goal in goals]


class Slow(Answering):
    """Answers when it may."""

    def __init__(self, *given, **more):
        super().__init__(*given, **more)
        self.may = Semaphore(0)

    def ask(self, questions):
        self.may.acquire(timeout=60)  # a failed test must end
        if isinstance(self.answer, Exception):
            raise self.answer
        return super().ask(questions)

    def look(self):
        """Return the goals of a scene once its answer has come."""
        self.may.release()
        while self.pending:
            found = self.suggest([FIELD])
            sleep(0.001)
        return found


@pytest.mark.parametrize(("wait", "meanwhile"), [("no-goals", []), ("last-goals", None)])
def test_a_new_scene_does_not_wait_for_its_answer(cache, wait, meanwhile):
    slow = Slow(cache, "- Chop tree", wait=wait)
    assert [slow.suggest([FIELD]) for _ in range(3)] == [[meanwhile]] * 3
    assert slow.look() == [["chop tree"]]
    assert (slow.n_asked, slow.counts["asked"], slow.counts["from_cache"]) == (1, 1, 1)
    slow.answer = RunError("the server is gone")
    assert slow.suggest([FIELD._replace(status="you feel sleepy.")]) == [meanwhile]
    with pytest.raises(RunError, match="is gone"):
        slow.look()


def test_no_answer_is_asked_for_again_and_a_rejected_one_is_not(cache):
    suggester = Answering(cache, None)
    for answer, goals in ((None, []), ("Chop the tree!", []), ("- Chop tree", [])):
        suggester.answer = answer
        assert suggester.suggest([FIELD]) == [goals]
    assert (suggester.n_asked, suggester.counts["rejected"]) == (2, 1)
    assert (suggester.counts["unanswered"], suggester.counts["asked"]) == (1, 1)


def test_what_several_environments_see_alike_is_asked_once_and_counts_go_on(cache):
    suggester, resumed = Answering(cache, "- Chop tree"), Answering(cache, "- Chop tree")
    other = FIELD._replace(inventory="you have in your inventory wood.")
    assert suggester.suggest([FIELD, other, FIELD]) == [["chop tree"]] * 3
    resumed.load_state_dict(suggester.state_dict())
    resumed.suggest([FIELD])
    counts = {"asked": 2, "from_cache": 2, "rejected": 0, "unanswered": 0, "tokens": 14}
    expected = {f"suggester/{name}": n for name, n in (counts | {"seconds": 0.5}).items()}
    assert resumed.metrics() == expected


def test_a_model_is_told_what_the_original_tells_it():
    assert STEPS
    for row in STEPS:
        situation = TextState(row["scene"], row["inventory_text"], row["status_text"], {})
        assert language_model.lm_sentence(situation) == row["lm_sentence"]
        asked = language_model.question(situation)
        assert asked.startswith(language_model.INSTRUCTION)
        assert asked.endswith(f"{row['lm_sentence']} What do you do?\n")


def test_candidates_are_actions_with_what_is_seen_held_or_felt():
    assert language_model.candidates(ACTIONS, FIELD) == ["chop tree", "eat cow", "attack cow"]
    sleepy = FIELD._replace(status="you feel sleepy.")
    found = language_model.candidates(ACTIONS, sleepy)
    assert found == ["sleep", "chop tree", "eat cow", "attack cow"]
    held = "you have in your inventory coal, wood_pickaxe."
    holding = TextState("you see .", held, "", {"coal": 1})
    names = (*ACTIONS, "make wood pickaxe", "chop wood pickaxe", "attack zombie")
    found = language_model.candidates(names, holding)
    assert found == ["mine coal", "make table", "make wood pickaxe", "chop wood pickaxe"]
    assert language_model.bullet("chop tree") == " Chop tree"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_decoder(tmp_path_factory.mktemp("decoder"))


@pytest.fixture
def suggester(folder, cache):
    def make(**changes):
        config = settings(LanguageModelSuggesterSettings, suggester_model=str(folder), **changes)
        return LanguageModelSuggester(config, ACTIONS, cache)

    return make


def test_scoring_suggests_the_likeliest_phrases_of_what_is_seen(suggester):
    found = suggester(n_suggestions=2)
    (goals,) = found.suggest([FIELD])
    model = generation.load_text_model(found.config.suggester_model)
    names = ["chop tree", "eat cow", "attack cow"]
    asked, phrases = f"{language_model.question(FIELD)}-", map(language_model.bullet, names)
    scores = model.phrase_log_probabilities(asked, [*phrases])
    assert goals == sorted(names, key=lambda n: -scores[names.index(n)])[:2]
    assert found.counts["tokens"] > 0


def test_number_and_threshold_choose_among_kept_scores(suggester, cache, monkeypatch):
    (all_three,) = suggester(n_suggestions=9).suggest([FIELD])
    monkeypatch.setattr(generation, "load_text_model", lambda *_: pytest.fail("asked anew"))
    assert suggester(n_suggestions=1).suggest([FIELD]) == [all_three[:1]]
    assert suggester(suggestion_threshold=0.0).suggest([FIELD]) == [[]]
    other = FIELD._replace(scene="you see water.")  # kept scores of another form
    cache.keep(suggester().question(other), Completion("[1, 2]"))
    with pytest.raises(pytest.fail.Exception, match="asked anew"):
        suggester().suggest([other])


def test_writing_gives_all_new_situations_at_once_to_the_model(suggester, monkeypatch):
    found = suggester(suggest_by="writing", suggester_max_tokens=3)
    asked = []

    def write(prompts, writing, shared):
        asked.append((len(prompts), writing))
        return [generation.Written("- Chop tree\n- Sleep", 3) for _ in prompts]

    monkeypatch.setattr(found.model, "write", write)
    other = FIELD._replace(status="you feel sleepy.")
    assert found.suggest([FIELD, other]) == [["chop tree", "sleep"]] * 2
    assert asked == [(2, generation.Writing(3, 0.1, "\n\n"))]


def configured(action_names=ACTIONS, **changes):
    given = settings(LanguageModelSuggesterSettings, **changes)
    config = SimpleNamespace(part=lambda _: given, env="Some-v0")
    return LanguageModelSuggester.configured(config, action_names)


BAD = {
    "no decoder": ({"suggester_model": "all-MiniLM-L6-v2"}, r"'bert' cannot write text"),
    "no folder": ({"suggester_model": "no/such\0"}, r"no/such"),
    "no action names": ({"action_names": ()}, r"suggester: .*Some-v0 names none"),
    "cache is a folder": ({"suggester_cache": "."}, r"suggester_cache \.: not a file"),
    "cache in a file": ({"suggester_cache": "file/x"}, r"suggester_cache.*is not a folder"),
    "cache is damaged": ({"suggester_cache": "file"}, r"suggester_cache .*file: cannot be used"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_setting_is_one_line(folder, in_empty_folder, name):
    (in_empty_folder / "file").write_text("no database, only some text " * 99)
    changes, line = BAD[name]
    with in_one_line(line):
        configured(**{"suggester_model": str(folder)} | changes)
    assert [path.name for path in in_empty_folder.iterdir()] == ["file"]


def test_a_cache_is_made_in_a_new_folder(folder, tmp_path):
    path = tmp_path / "new" / "answers.sqlite"
    configured(suggester_model=str(folder), suggester_cache=str(path))
    assert path.is_file()
