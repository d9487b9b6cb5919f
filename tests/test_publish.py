"""Runs published to a hub and played from it; the hub is a server on this machine."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import save_file

import eval as eval_program
import main as main_program
import publish as publish_program
from eval import FILES
from publish import card, redact_paths
from tests.bad_inputs.harness import refused
from tests.fake_hub import OWNER, FakeHub, Repository
from tests.runs import train
from tests.test_answer_cache import ANSWER, QUESTION, with_answer
from tests.tiny_clip import tiny_settings
from trainers.checkpoint import WarmStart
from utils.answer_cache import AnswerCache
from utils.errors import ROOT, escape
from utils.given_settings import load_config

NAME = f"{OWNER}/maze"
FOREIGN = f"{OWNER}/foreign"
MAZE = {"env": "TMazePassive-v0", "length": 3}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run, trained once."""
    place = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(sys, "argv", ["/home/me/helm/main.py", "--var=n_steps=32"])
        return place / train("CNN-PPO", "first", **MAZE, n_steps=32)


@pytest.fixture
def run(trained, in_empty_folder):
    """A copy of the run in a working folder of the test's own."""
    folder = Path("experiments/CNN-PPO/TMazePassive-v0/first")
    shutil.copytree(trained, folder)
    return folder


@pytest.fixture
def hub(tmp_path_factory, monkeypatch):
    """A hub, in which this user is logged in."""
    hub = FakeHub(tmp_path_factory.mktemp("home"))
    hub.install(monkeypatch)
    return hub


def publish(*arguments):
    return publish_program.main([str(argument) for argument in arguments])


def play(place, *more):
    """Evaluate, and return the result file's content."""
    assert eval_program.main(["--ckpt-path", str(place), "--n-episodes", "2", *more]) == 0
    folder = next(Path("downloads").glob("*/*/*")) if str(place).startswith("hub:") else place
    (path,) = Path(folder).glob("*_eval_*_2_episodes_*.json")
    return json.loads(path.read_text())


def evaluated(run, **changes):
    """Write the result of an evaluation, so that none need be played."""
    result = {"return_mean": 0.5, "return_std": 0.25, "length_mean": 9.0, "length_std": 1.0}
    result |= {"n_episodes": 100, "seed": 0, "env_steps": 32, "random": False, "var": {}}
    name = f"ckpt_best_eval_sampled_{len(list(run.glob('*_eval_*')))}.json"
    (run / name).write_text(json.dumps(result | changes))


def refusal(capsys, program, *arguments):
    """Return the one line with which a program refuses."""
    (line,) = refused(capsys, program, [str(argument) for argument in arguments])
    return line


def test_what_is_published_plays_the_episodes_of_the_run(run, hub, capsys):
    evaluated(run)
    assert publish(run, NAME) == 0
    assert f"play it: python eval.py --ckpt-path hub:{NAME}\n" in capsys.readouterr().out
    assert hub.files(NAME).keys() == set(FILES)
    ours, theirs = play(run), play(f"hub:{NAME}")
    for name in ("returns", "lengths", "env_steps"):
        assert ours[name] == theirs[name]


@pytest.mark.slow
def test_the_program_reads_a_run_in_a_process_of_its_own(run):
    """The tests' own process has every part imported already."""
    evaluated(run)
    command = [sys.executable, str(ROOT / "publish.py"), str(run), "--folder", "out"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (Path("out") / "model.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(("model", "task"), [("GPT", MAZE), ("HELM", {})])
def test_what_is_pretrained_is_not_published_but_named(model, task, in_empty_folder):
    folder = train(model, "first", **task, n_steps=32)
    evaluated(folder)
    assert publish(folder, "--folder", "out") == 0
    pretrained = ("language_model", "clip_pretrained", "embeddings")
    places = {name: v for name, v in tiny_settings(model).items() if name in pretrained}
    published = json.loads(Path("out/config.json").read_text())
    assert all(published[name] == Path(place).name for name, place in places.items())
    theirs = play("out", *(f"--var={name}={place}" for name, place in places.items()))
    assert theirs["returns"] == play(folder)["returns"]


def test_the_card_is_what_a_hub_reads(run):
    evaluated(run, n_episodes=5, return_mean=9.0)
    evaluated(run, success_mean=0.75)
    evaluated(run, var={"length": 3}, n_episodes=1000)
    evaluated(run, env_steps=10, n_episodes=1000)
    assert publish(run, NAME, "--folder", "out") == 0
    _, head, text = Path("out/README.md").read_text().split("---\n", 2)
    data = yaml.safe_load(head)
    assert data["library_name"] == "helm"
    assert {"reinforcement-learning", "TMazePassive-v0", "PPO", "CNN-PPO"} <= set(data["tags"])
    (result,) = data["model-index"][0]["results"]
    assert result["dataset"] == {"name": "TMazePassive-v0", "type": "TMazePassive-v0"}
    (metric,) = result["metrics"]
    assert (metric["type"], metric["value"]) == ("mean_reward", "0.50 +/- 0.25")
    assert "| 0.500 ± 0.250 | 9.000 ± 1.000 | 75.0% | 100 | 0 |" in text
    assert re.search(r"\| 9\.000 ± 0\.250 \|.*\| 5 \| 0 \|", text)
    assert text.count("±") == 4  # evaluations elsewhere, or of earlier steps, are not told
    assert all(each in text for each in (f"hub:{NAME}", "main.py --var=n_steps=32\n"))


def told(config, description, played=(), weights=()):
    """Return the card of an agent."""
    checkpoint = {"env_steps": 1, "weights": dict.fromkeys(weights, "0")}
    return card(config, checkpoint, description, played, f"hub:{NAME}", False)


def test_the_card_names_the_code_it_needs():
    text = told(load_config(values={"model": "examples.my_memory:FirstAgent"}), {})
    assert "code that is not contained: examples.my_memory." in text
    assert f"--ckpt-path hub:{NAME} --trust\n" in text
    assert "--trust" not in told(load_config(), {})


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        *({"success_mean": value} for value in ("yes", None, 10**39, 1e308)),
        *({"return_mean": value} for value in (float("nan"), 10**400, 1e308, "0.5")),
    ],
    ids=str,
)
def test_an_evaluation_that_is_none_does_not_count(changes, run):
    evaluated(run)
    evaluated(run, **{"return_mean": 9.0, "n_episodes": 10**6, **changes})
    assert publish(run, "--folder", "out") == 0
    assert Path("out/README.md").read_text().count("±") == 2


def test_a_run_of_two_environments_is_not_published(run, capsys):
    evaluated(run)
    path = run / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"env": "RandomMaze-v0"}))
    line = refusal(capsys, "publish", run, "--folder", "out")
    assert "config.json" in line
    assert " env" in line


def test_nothing_of_a_run_becomes_html_or_a_line_of_the_card():
    evil = "`<img src=x>\n---\n[a](b) | *c*\n```\n<script>"
    config = load_config().replace(model=evil, env=evil, algorithm=evil)
    numbers = dict.fromkeys(("return_mean", "return_std", "length_mean", "length_std"), 0.0)
    played = numbers | {"n_episodes": 1, "seed": 0, "actions": evil}
    description = {"command": [evil, "--run-id", evil]}
    text = told(config, description, [played], [evil])
    _, head, text = re.split(r"^---\n", text, flags=re.MULTILINE)
    assert yaml.safe_load(head)["tags"][-1] == escape(evil)
    code = [line for line in text.splitlines() if line.endswith("'")]
    assert len(code) == 1  # the command, between its fences
    assert text.count("\n```\n") == 4
    shown = text.replace(code[0], "").replace("\n```\n", "").replace("[config.json]", "")
    assert not re.search(r"<|(?<!\\)[`*\[]", shown)


def test_places_of_this_machine_stay_here(run):
    evaluated(run)
    description = json.loads((run / "run.json").read_text())
    secret = "/home/me/secret plans"
    stimuli = f"--var=recognition_stimuli={secret}/them"
    description["command"] += ["--config", f"{secret}/mine.json", stimuli]
    description["new"] = "secret"
    description["resumed"] = [{"command": [f"{secret}/main.py"], "git_changed_files": [secret]}]
    (run / "run.json").write_text(json.dumps(description))
    assert publish(run, "--folder", "out") == 0
    texts = [Path("out", name).read_text() for name in ("run.json", "README.md", "config.json")]
    assert not re.search(f"secret|/home|{Path.cwd()}", "".join(texts))
    assert "mine.json" in texts[0]
    assert '"--var=recognition_stimuli=them"' in texts[0]


PATHS = {
    **{"/a/b/c": "c", "~/models/x": "x", "../up/x": "x", "/a/seed=0": "seed=0"},
    "recognition_stimuli=/a/b": "recognition_stimuli=b",
    '{"path": "/a/b", "n": 1}': '{"path": "b", "n": 1}',
    **{text: text for text in ("someone/model", "experiments/x", "https://example.org/x")},
}


def test_a_path_that_leads_out_is_its_last_name():
    assert {path: redact_paths(path) for path in PATHS} == PATHS
    assert redact_paths(["/a/b", {"x": "/c/d"}, 3, None]) == ["b", {"x": "d"}, 3, None]


@pytest.mark.slow
def test_a_branch_is_published_and_played_apart_by_those_who_may(run, hub, monkeypatch, capsys):
    for _ in range(2):  # again: a commit more
        assert publish(run, NAME, "--private", "--revision", "tried", "--n-episodes", "2") == 0
    assert f"hub:{NAME}@tried" in capsys.readouterr().out
    assert len(list(run.glob("*_eval_*"))) == 1  # played as none was known
    assert hub.repositories[NAME].private
    assert hub.files(NAME) == {}
    assert b"mean_reward" in hub.files(NAME, "tried")["README.md"]
    play(f"hub:{NAME}@tried")
    assert "has no model.safetensors" in refusal(capsys, "eval", "--ckpt-path", f"hub:{NAME}")
    monkeypatch.delenv("HF_TOKEN")
    line = refusal(capsys, "eval", "--ckpt-path", f"hub:{NAME}@tried")
    assert "the hub has no such repository" in line


@pytest.mark.slow
def test_what_was_fetched_plays_without_the_hub_and_what_is_published_anew_is_fetched(run, hub):
    evaluated(run)
    publish(run, NAME)
    first = play(f"hub:{NAME}")
    hub.is_reachable = False
    assert play(f"hub:{NAME}") == first
    hub.is_reachable = True
    publish(run, NAME, "--checkpoint", "last")
    assert eval_program.main(["--ckpt-path", f"hub:{NAME}", "--n-episodes", "1"]) == 0
    assert len(list(Path("downloads", OWNER, "maze").iterdir())) == 2


def foreign_repository(run):
    """Return a repository that this program has not published."""
    repository = Repository(private=False)
    repository.commit("main", {"config.json": (run / "config.json").read_bytes()})
    return repository


def test_files_of_another_program_are_refused(hub, run, capsys, tmp_path):
    save_file({"weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    repository = hub.repositories[NAME] = foreign_repository(run)
    weights = (tmp_path / "other.safetensors").read_bytes()
    repository.commit("main", {"model.safetensors": weights})
    line = refusal(capsys, "eval", "--ckpt-path", f"hub:{NAME}")
    assert "not a checkpoint of this program, but another's weights" in line


def test_damaged_files_are_fetched_again_once_and_then_refused(run, hub, capsys):
    evaluated(run)
    publish(run, NAME)
    hub.is_damaging = True
    line = refusal(capsys, "eval", "--ckpt-path", f"hub:{NAME}")
    assert "not a checkpoint of this program" in line
    assert hub.n_fetched == 2
    hub.is_damaging = False
    play(f"hub:{NAME}")


def test_a_published_agent_is_no_run_to_go_on_with_and_a_changed_number_is_noticed(run, capsys):
    evaluated(run)
    publish(run, "--folder", "out")
    capsys.readouterr()
    assert main_program.main(["--resume", "out"]) == 2
    line = capsys.readouterr().err
    assert line == "out: a published agent, which can be played but not trained on\n"
    assert len(WarmStart.named(Path("out")).sha256) == 64  # noticed by runs that begin with it
    content = bytearray(Path("out/model.safetensors").read_bytes())
    content[-1] ^= 1
    Path("out/model.safetensors").write_bytes(content)
    assert "does not have its checksum" in refusal(capsys, "eval", "--ckpt-path", "out")


def test_without_a_network_nothing_is_played_or_written(run, hub, capsys):
    hub.is_reachable = False
    assert "no connection" in refusal(capsys, "publish", run, NAME)
    assert f"hub:{NAME}: nothing" in refusal(capsys, "eval", "--ckpt-path", f"hub:{NAME}")


def test_an_answer_cache_in_use_is_published_as_one_file(run, tmp_path):
    evaluated(run)
    cache = with_answer(tmp_path / "in_use.sqlite")
    publish(run, "--folder", "out", "--answers", cache.path)
    assert AnswerCache(Path("out/answers.sqlite")).find([QUESTION]) == [ANSWER]


MISTAKES = [
    ("eval", ["hub:a b/c"], "Repo id must use"),
    ("eval", ["hub:maze"], "a repository is named OWNER/NAME"),
    ("eval", ["hub:someone/nothing"], "the hub has no such repository"),
    ("eval", [f"hub:{FOREIGN}@nowhere"], "the repository has no such revision"),
    ("publish", ["nowhere", NAME], "nowhere: not a run folder"),
    ("publish", ["RUN"], "name OWNER/NAME on the hub, or a --folder"),
    ("publish", ["RUN/ckpt_best.pt", NAME], "not a run folder"),
    ("publish", ["empty", NAME], "empty: not a run folder"),
    ("publish", ["RUN", "--folder", "empty/.."], "not empty"),
    (
        "publish",
        ["RUN", "--folder", "out", "--private"],
        "--private and --revision are for the hub",
    ),
    ("publish", ["RUN", NAME, "--revision", " "], "--revision is empty"),
    ("publish", ["RUN", NAME, "--checkpoint", "last"], "ckpt_last.pt"),
    ("publish", ["RUN", NAME, "--answers", "no"], "--answers no: cannot be used (unable to"),
    ("publish", ["RUN", "another/maze"], "does not let you write there"),
    ("hf_wrong", ["RUN", NAME], "Run: hf auth login"),
]


@pytest.mark.parametrize(("program", "arguments", "line"), MISTAKES)
def test_a_mistake_gets_one_line(program, arguments, line, run, hub, monkeypatch, capsys):
    hub.repositories[FOREIGN] = foreign_repository(run)
    evaluated(run)
    Path("empty").mkdir()
    (run / "ckpt_last.pt").unlink()
    if program == "eval":
        arguments = ["--ckpt-path", *arguments]
    elif program != "publish":
        monkeypatch.setenv("HF_TOKEN", program)
        program = "publish"
    command = [word.replace("RUN", str(run)) for word in arguments]
    assert line in refusal(capsys, program, *command)
    assert hub.repositories.keys() == {FOREIGN}
