"""Runs published to a hub and played from it; the hub is a server on this machine."""

import dataclasses
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import eval as eval_program
import main as main_program
import publish as publish_program
from eval import FILES
from publish import Facts, card, redact_paths
from tests.bad_inputs.harness import refused
from tests.fake_hub import OWNER, TOKEN, FakeHub, Repository
from tests.runs import LSTM, SAC, folder_of, train, words_of
from tests.tiny_clip import tiny_settings
from utils.errors import escape
from utils.settings import load_config

NAME = f"{OWNER}/maze"
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
@pytest.mark.parametrize(("model", "task"), [("GPT", MAZE), ("HELM", {})])
def test_what_is_pretrained_is_not_published_but_named(model, task, in_empty_folder):
    folder = train(model, "first", **task, n_steps=32)
    evaluated(folder)
    assert publish(folder, "--folder", "out") == 0
    places = {
        name: value
        for name, value in tiny_settings(model).items()
        if name in ("language_model", "clip_pretrained", "embeddings")
    }
    published = json.loads(Path("out/config.json").read_text())
    assert all(published[name] == Path(place).name for name, place in places.items())
    theirs = play("out", *(f"--var={name}={place}" for name, place in places.items()))
    assert theirs["returns"] == play(folder)["returns"]


def test_a_learner_from_replay_is_published_without_its_replay(in_empty_folder):
    command = words_of(SAC | LSTM | MAZE | {"n_envs": 1, "n_steps": 60})
    assert main_program.main([*command, "--run-id", "first"]) == 0
    folder = folder_of("first")
    evaluated(folder, env_steps=60)
    assert publish(folder, "--folder", "out") == 0
    assert set(os.listdir("out")) == set(FILES)
    assert play("out")["returns"] == play(folder)["returns"]


def test_nothing_that_could_be_run_and_no_optimiser_is_published(run):
    evaluated(run)
    assert publish(run, "--folder", "out", "--checkpoint", "last") == 0
    assert set(os.listdir("out")) == set(FILES)
    agent = load_file("out/model.safetensors")
    assert not [name for name in agent if "optimizer" in name]
    assert Path("out/curve.png").read_bytes().startswith(b"\x89PNG")
    assert b"PK\x03\x04" not in Path("out/model.safetensors").read_bytes()[:8]


def test_the_card_is_what_a_hub_reads(run):
    evaluated(run, n_episodes=5, return_mean=9.0, actions="of the highest value")
    evaluated(run, success_mean=0.75)
    evaluated(run, var={"length": 3}, n_episodes=1000)
    evaluated(run, env_steps=10, n_episodes=1000)
    assert publish(run, NAME, "--folder", "out") == 0
    _, head, text = Path("out/README.md").read_text().split("---\n", 2)
    data = yaml.safe_load(head)
    assert data["library_name"] == "helm"
    assert {"reinforcement-learning", "TMazePassive-v0", "PPO", "CNN-PPO"} <= set(data["tags"])
    (index,) = data["model-index"]
    (result,) = index["results"]
    assert result["dataset"] == {"name": "TMazePassive-v0", "type": "TMazePassive-v0"}
    (metric,) = result["metrics"]
    assert (metric["type"], metric["value"]) == ("mean_reward", "0.50 +/- 0.25")
    assert "| 0.500 ± 0.250 | 9.000 ± 1.000 | 75.0% | 100 | sampled | 0 |" in text
    assert "| 9.000 ± 0.250 |" in text
    assert "| 5 | of the highest value | 0 |" in text
    assert text.count("±") == 4  # evaluations elsewhere, or of earlier steps, are not told
    assert f"hub:{NAME}" in text
    assert "\npython main.py --var=n_steps=32\n" in text
    assert re.search(r"\| gamma \| 0\.99 \|", text)
    assert "topk" not in text


def test_nothing_of_a_run_becomes_html_or_a_line_of_the_card():
    evil = "`<img src=x>\n---\n[a](b) | *c*\n```\n<script>"
    config = dataclasses.replace(load_config(), model=evil, env=evil, algorithm=evil)
    numbers = dict.fromkeys(("return_mean", "return_std", "length_mean", "length_std"), 0.0)
    played = numbers | {"n_episodes": 1, "seed": 0, "actions": evil}
    description = {"command": [evil, "--run-id", evil], "git_commit": evil}
    facts = Facts(config, {"language_model": evil}, 1, description, [played], NAME, False)
    _, head, text = re.split(r"^---\n", card(facts), flags=re.MULTILINE)
    assert yaml.safe_load(head)["tags"][-1] == escape(evil)
    code = [line for line in text.splitlines() if line.endswith("'")]
    assert len(code) == 1  # the command, between its fences
    assert text.count("\n```\n") == 4
    assert not re.search(r"<|(?<!\\)[`*\[]", text.replace(code[0], "").replace("\n```\n", ""))


def test_an_evaluation_is_played_where_none_is_known(run, capsys):
    assert publish(run, "--folder", "out", "--n-episodes", "2") == 0
    assert (run / "ckpt_best_eval_sampled_2_episodes_seed_0.json").is_file()
    assert "mean_reward" in Path("out/README.md").read_text()


def test_places_of_this_machine_stay_here(run):
    evaluated(run)
    description = json.loads((run / "run.json").read_text())
    secret = "/home/me/secret plans"
    description["command"] += [
        "--config",
        f"{secret}/mine.json",
        f"--var=recognition_stimuli={secret}/them",
    ]
    description["new"] = "secret"
    description["resumed"] = [{"command": [f"{secret}/main.py"], "git_changed_files": [secret]}]
    (run / "run.json").write_text(json.dumps(description))
    assert publish(run, "--folder", "out") == 0
    texts = [Path("out", name).read_text() for name in ("run.json", "README.md", "config.json")]
    assert not any(word in text for text in texts for word in ("secret", "/home", str(Path.cwd())))
    assert "mine.json" in texts[0]
    assert "--config config.json" in texts[1]  # the published one, which others have
    assert '"--var=recognition_stimuli=them"' in texts[0]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("/a/b/c", "c"),
        ("~/models/x", "x"),
        ("../up/x", "x"),
        ("recognition_stimuli=/a/b", "recognition_stimuli=b"),
        ("/a/seed=0", "seed=0"),
        ('{"path": "/a/b", "n": 1}', '{"path": "b", "n": 1}'),
        ("someone/model", "someone/model"),
        ("experiments/x", "experiments/x"),
        ("https://example.org/x", "https://example.org/x"),
        (["/a/b", {"x": "/c/d"}, 3, None], ["b", {"x": "d"}, 3, None]),
    ],
)
def test_a_path_that_leads_out_is_its_last_name(before, after):
    assert redact_paths(before) == after


def test_a_private_repository_is_for_those_who_may(run, hub, monkeypatch, capsys):
    evaluated(run)
    assert publish(run, NAME, "--private") == 0
    assert hub.repositories[NAME].private
    play(f"hub:{NAME}")
    monkeypatch.delenv("HF_TOKEN")
    assert "no such repository, or it is private" in refusal(
        capsys, "eval", "--ckpt-path", f"hub:{NAME}"
    )


def test_a_branch_is_published_and_played_apart(run, hub, capsys):
    evaluated(run)
    assert publish(run, NAME, "--revision", "tried") == 0
    assert f"hub:{NAME}@tried" in capsys.readouterr().out
    assert hub.files(NAME) == {}
    assert publish(run, NAME, "--revision", "tried") == 0  # again: a commit more
    play(f"hub:{NAME}@tried")
    assert "has no model.safetensors" in refusal(capsys, "eval", "--ckpt-path", f"hub:{NAME}")


def test_what_was_fetched_plays_without_the_hub(run, hub):
    evaluated(run)
    publish(run, NAME)
    first = play(f"hub:{NAME}")
    hub.is_reachable = False
    assert play(f"hub:{NAME}") == first


def test_what_is_published_anew_is_fetched_anew(run, hub):
    evaluated(run)
    publish(run, NAME)
    play(f"hub:{NAME}")
    publish(run, NAME, "--checkpoint", "last")
    assert eval_program.main(["--ckpt-path", f"hub:{NAME}", "--n-episodes", "1"]) == 0
    assert len(list(Path("downloads", OWNER, "maze").iterdir())) == 2


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("hub:", "Repo id must use"),
        ("hub:maze", "a repository is named OWNER/NAME"),
        ("hub:a/b/c", "Repo id must be in the form"),
        ("hub:a b/c", "Repo id must use"),
        ("hub:someone/nothing", "the hub has no such repository"),
        (f"hub:{NAME}@nowhere", "the repository has no such revision"),
    ],
)
def test_a_name_that_leads_nowhere_gets_one_line(name, line, hub, run, capsys):
    hub.repositories[NAME] = foreign_repository(run)
    assert line in refusal(capsys, "eval", "--ckpt-path", name)


def foreign_repository(run):
    """Return a repository that this program has not published."""
    repository = Repository(private=False)
    repository.commit("main", {"config.json": (run / "config.json").read_bytes()})
    return repository


def test_files_of_another_program_are_refused(hub, run, capsys, tmp_path):
    save_file({"weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    repository = hub.repositories[NAME] = foreign_repository(run)
    foreign = {"model.safetensors": (tmp_path / "other.safetensors").read_bytes()}
    repository.commit("main", foreign)
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


def test_a_changed_number_is_noticed(run, capsys):
    evaluated(run)
    publish(run, "--folder", "out")
    content = bytearray(Path("out/model.safetensors").read_bytes())
    content[-1] ^= 1
    Path("out/model.safetensors").write_bytes(content)
    assert "does not have its checksum" in refusal(capsys, "eval", "--ckpt-path", "out")


def test_a_published_agent_is_no_run_to_go_on_with(run, capsys):
    evaluated(run)
    publish(run, "--folder", "out")
    assert main_program.main(["--resume", "out"]) == 2
    line = capsys.readouterr().err
    assert line == "out: a published agent, to be played; it holds no run to go on\n"


@pytest.mark.parametrize(
    ("token", "repository", "line"),
    [
        (None, NAME, "Run: hf auth login"),
        ("hf_wrong", NAME, "Run: hf auth login"),
        (TOKEN, "another/maze", "does not let you write there"),
    ],
)
def test_a_user_who_may_not_write_there_is_told_why(
    token, repository, line, run, hub, monkeypatch, capsys
):
    evaluated(run)
    monkeypatch.delenv("HF_TOKEN")
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    assert line in refusal(capsys, "publish", run, repository)


def test_without_a_network_nothing_is_played_or_written(run, hub, capsys):
    hub.is_reachable = False
    assert "the hub cannot be reached" in refusal(capsys, "publish", run, NAME)
    line = refusal(capsys, "eval", "--ckpt-path", f"hub:{NAME}")
    assert "nothing of it has been fetched before" in line


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nowhere", NAME], "RUN nowhere: no such file or folder"),
        (["RUN"], "name OWNER/NAME on the hub, or a --folder"),
        (["RUN", "maze"], "a repository is named OWNER/NAME"),
        (["RUN", "a//b"], "Repo id must be in the form"),
        (["RUN", NAME, "--checkpoint", "newest"], "invalid choice: 'newest'"),
        (["RUN/ckpt_best.pt", NAME], "Name the run's folder"),
        (["empty", NAME], "holds neither ckpt_best.pt nor ckpt_last.pt"),
        (["RUN", "--folder", "empty/.."], "not empty"),
        (["RUN", "--folder", "out", "--private"], "--private and --revision are for the hub"),
        (["RUN", NAME, "--revision", " "], "--revision is empty"),
        (["RUN", NAME, "--checkpoint", "last"], "--checkpoint last: there is no"),
        (["RUN", NAME, "--n-episodes", "0"], "is not a whole number"),
    ],
)
def test_a_mistake_gets_one_line_and_nothing_is_written(arguments, line, run, hub, capsys):
    Path("empty").mkdir()
    (run / "ckpt_last.pt").unlink()
    command = [word.replace("RUN", str(run)) for word in arguments]
    assert line in refusal(capsys, "publish", *command)
    assert hub.repositories == {}
