"""How far the settings of a stored run are followed: one's own, and one of somebody else."""

import contextlib
import gc
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import sys
from pathlib import Path

import pytest

import eval as eval_program
import helm
import main as main_program
import sweep
from analysis import __main__ as analysis
from tests.bad_inputs.harness import refused
from tests.model_server import CHOP, Turns, said, serving
from tests.runs import CNN, PPO, signal_at, train, words_of
from tests.test_jobs import FakePool
from tests.user_code import MY_ENVS, forget_modules_of
from trainers.checkpoint import LAST, load_checkpoint, save_checkpoint
from utils.errors import UserError
from utils.given_settings import load_config
from utils.settings import all_settings, outside_settings

TINY = {"n_envs": 1, "n_steps": 32}
WORLD = {"env": "CrafterText-v0", "crafter_length": 10, "crafter_actions": "good"}
MARKER = "code_was_run"
EVIL = "open({!r}, 'a').close()\n"
SERVED = {"suggester": "server", "suggester_model": "served", "goal_encoder": "same-text"}
LISTED_ELSEWHERE = {  # settings whose texts are names in a table of the program, or numbers
    *("algorithm", "model", "env", "device", "curiosity", "clip_encoder"),
    "ffm_periods",
}


def rewrite(folder, changes, description=None):
    """Change the settings in all files of a run folder, and further entries of run.json."""
    for name, extra in (("config.json", {}), ("run.json", description or {})):
        values = json.loads((folder / name).read_text())
        settings = values["settings"] if name == "run.json" else values
        settings.update(changes)
        (folder / name).write_text(json.dumps(values | extra))
    for path in folder.glob("*.pt"):
        state = load_checkpoint(path)
        state["config"] |= changes
        save_checkpoint(path, state)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "precious")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with serving(Turns(said(CHOP), models=("served",))) as turns:
        yield turns


@pytest.fixture
def asking(in_empty_folder, server):
    asked = SERVED | {"suggester_url": server.url, "suggester_cache": Path("own.sqlite").resolve()}
    folder = train("CNN", "received", **(TINY | WORLD | asked | {"n_steps": 64}))
    gc.collect()  # SQLite's file changes when the run's connection is collected
    return folder


def unfinished(folder):
    """Take its end from a run, so that it has steps left."""
    for path in folder.glob("ckpt_*"):
        path.unlink()
    description = json.loads((folder / "run.json").read_text())
    description.pop("finished", None)
    (folder / "run.json").write_text(json.dumps(description))


@pytest.mark.slow
@pytest.mark.parametrize("goal_conditioned", ["false", "true"])
def test_playing_asks_no_server_by_itself(goal_conditioned, in_empty_folder, server, capsys):
    cache = {"suggester_cache": Path("own.sqlite").resolve(), "goal_conditioned": goal_conditioned}
    asked = TINY | WORLD | SERVED | cache | {"suggester_url": server.url}
    asking = train("CNN", "received", **asked)
    del server.asked[:]
    Path("own.sqlite").unlink()
    play = ["--ckpt-path", str(asking), "--n-episodes=1"]
    assert eval_program.main(play) == 0
    with helm.load(asking) as player:
        player.act(player.reset(seed=0))
    assert analysis.main(["words", str(asking)]) == 2  # a CNN has none, but it is restored
    assert server.asked == []
    assert not Path("own.sqlite").exists()
    assert eval_program.main([*play, "--var=suggester=server"]) == 0
    assert {path for path, _, _ in server.asked} == {"/v1/models", "/v1/chat/completions"}


@pytest.mark.slow
def test_a_received_run_contacts_nobody_and_says_where(asking, server, somebody_else, capsys):
    stolen = {"suggester_key_variable": "AWS_SECRET_ACCESS_KEY", "suggester_cache": "theirs.sqlite"}
    rewrite(asking, stolen)
    unfinished(asking)
    del server.asked[:]
    capsys.readouterr()
    for become in (lambda: None, somebody_else):  # changed it is not one's own run either
        become()
        (line,) = refused(capsys, "main", ["--resume", str(asking)])
        for name in ("suggester_url", *stolen):
            assert f"{name}=" in line
        assert "Add --trust" in line
    assert server.asked == []
    assert not Path("theirs.sqlite").exists()
    assert main_program.main(["--resume", str(asking), "--trust"]) == 0
    assert "suggester_url=" in capsys.readouterr().out
    assert server.asked
    unfinished(asking)  # now it is one's own
    assert main_program.main(["--resume", str(asking)]) == 0


def test_a_received_run_that_leads_nowhere_is_played_and_goes_on(in_empty_folder, somebody_else):
    folder = train("CNN", "received", **TINY)
    somebody_else()
    assert eval_program.main(["--ckpt-path", str(folder), "--n-episodes=1"]) == 0
    unfinished(folder)
    assert main_program.main(["--resume", str(folder)]) == 0


def test_the_variable_of_a_key_is_typed(in_empty_folder, server, capsys):
    settings = {"suggester": "server", "suggester_url": server.url}
    settings |= {"suggester_key_variable": "AWS_SECRET_ACCESS_KEY", "env": "CrafterText-v0"}
    Path("theirs.json").write_text(json.dumps(settings))
    refused(capsys, "main", ["--config", "theirs.json"], "suggester_key_variable", "command line")
    assert server.asked == []
    typed = [f"{name}={value}" for name, value in settings.items()]
    assert load_config(overrides=typed).suggester_key_variable == "AWS_SECRET_ACCESS_KEY"


def test_every_text_among_the_settings_is_safe_or_listed():
    free = {name: each for name, each in all_settings().items() if not each.metadata["choices"]}
    texts = {name for name, each in free.items() if {str, dict}.intersection(each.kinds)}
    assert texts - outside_settings().keys() == LISTED_ELSEWHERE


@pytest.fixture
def received(in_empty_folder, monkeypatch, somebody_else):
    """Return a received run folder full of code; the same code lies in the current folder."""
    folder = train("CNN", "received", **TINY)
    unfinished(Path(shutil.copytree(folder, "begun")))
    alike = [f"{top}/{part}" for top in ("envs", "models") for part in ("__init__.py", "evil.py")]
    for name in ("__init__.py", "test_evil.py", "evil.py", "__main__.py", "utils.py", *alike):
        for place in (Path(), folder, Path("begun")):
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_text(EVIL.format(str(in_empty_folder / MARKER)))
    somebody_else()
    monkeypatch.setattr(sys, "path", [str(in_empty_folder), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("BROWSER", f"touch {in_empty_folder / MARKER} #%s")
    return folder


NAMES = [
    *("unittest.__main__:X", "antigravity:X", "venv.__main__:X", "this:X", "evil:X"),
    *("evil.deeper:X", "received.evil:X", "begun.evil:X", "pytest.__main__:X", "pip.__main__:X"),
    *("torch.utils.collect_env:X", "minigrid:evil:X", "minigrid.manual_control:X", "main:X"),
    *("envs.evil:X", "models:X", "utils:X"),
    *("tests.conftest:X", "__main__:X", "os:X", "test_evil:X", "evil:X:Y", "sitecustomize:X"),
]
PLACES = ["/etc", "begun", "../outside", "file:///etc/passwd", "~/.ssh", "somebody/model", "evil"]
HOUSEKEEP = ("housekeep_folder", "housekeep_scene", "housekeep_split")
SERVER = ("suggester_model", "suggester_cache", "suggester_url", "suggester_key_variable")
DICTIONARIES = ("env_args", "reset_options")
DESCRIPTIONS = [
    {"user_modules": {"evil": {"folder": "{here}", "sha256": "0" * 64}}},
    {"id": "{own}", "user_modules": {"evil": {"folder": "{here}"}}},  # that of a run of one's own
    {"id": "../runs/{own}"},
]


def tries():
    """Yield settings and words in run.json by which a run could lead outside."""
    for setting, name in itertools.product(("model", "env"), NAMES):
        yield {setting: name}, {}
    for setting, description in itertools.product(("model", "env"), DESCRIPTIONS):
        yield {setting: "evil:X"}, description
    reads = {
        "avalon_worlds": {"env": "Avalon-eat-v0"},
        "recognition_stimuli": {"env": "ContinuousRecognition-v0"},
        "env_args": {"env": "CartPole-v1"},
        "reset_options": {"env": "CartPole-v1"},
        "language_model": {"model": "HELM"},
        "clip_pretrained": {"model": "HELMv2"},
        "embeddings": {"model": "SHELM"},
        "guide": {"algorithm": "EllmDQN", "model": "ELLM"},
        "sentence_encoder": {"env": "CrafterText-v0"},
        "goal_encoder": WORLD | {"suggester": "oracle"},
        **{name: {"env": "Housekeep-v0"} for name in HOUSEKEEP},
        **{name: WORLD | {"suggester": "server"} for name in SERVER},
    }
    assert {*reads, "wandb"} == outside_settings().keys()
    for setting, place in itertools.product(reads, PLACES):
        if (setting, place) == ("reset_options", "evil"):
            continue  # no place: a word, as options may have, which CartPole does not look at
        value = {"path": place} if setting in DICTIONARIES else place
        yield reads[setting] | {setting: value}, {}
    yield {"wandb": True}, {}
    yield {}, {"init_from": {"checkpoint": "/etc/passwd", "sha256": "0" * 64, "env_steps": 0}}


TRIES = list(tries())


def with_own_run(name):
    """Have a run of one's own in the list, which leads to other code."""
    place = Path(os.environ["XDG_STATE_HOME"], "helm", "runs", f"{name}.json")
    place.parent.mkdir(parents=True)
    leads_to = {"outside": {}, "code": {"model": "my_agents"}, "init_from": None}
    place.write_text(json.dumps({"leads_to": leads_to, "user_modules": {"my_agents": {}}}))


def everything(folder):
    """Return every file below a folder."""
    return sorted(str(path) for path in folder.rglob("*"))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_nothing_that_a_received_run_names_acts(part, received, capsys):
    assert len(TRIES) > 100
    begun, here, own = Path("begun"), str(Path.cwd()), "0" * 32
    with_own_run(own)
    kept = {path: path.read_bytes() for folder in (received, begun) for path in folder.glob("*.*")}
    for changes, description in TRIES[part::4]:
        words = json.dumps(description).replace("{here}", here).replace("{own}", own)
        words = json.loads(words)
        for folder in (begun, received):
            rewrite(folder, changes, words)
        before = everything(Path())
        modules = {*sys.modules}
        (line,) = refused(capsys, "main", ["--resume", "begun"])
        assert line, changes
        learning_alone = {"guide", "wandb", "suggester", "goal_encoder"}.intersection(changes)
        if changes and not learning_alone:
            assert eval_program.main(["--ckpt-path", str(received / LAST)]) == 2, changes
            assert analysis.main(["attention", str(received)]) == 2
            if "env_args" in changes:  # of which a part is given anew
                more = ["--ckpt-path", str(received / LAST), '--var=env_args={"other": 1}']
                is_word = changes["env_args"] == {"path": "evil"}
                refused(capsys, "eval", more, "path" if is_word else "Add --trust")
            with pytest.raises(UserError):
                helm.load(received)
        capsys.readouterr()
        assert not os.path.exists(MARKER), changes
        assert everything(Path()) == before, changes
        named = {str(changes.get(name)).partition(":")[0] for name in ("model", "env")}
        assert not named.intersection({*sys.modules} - modules), changes
        for path, content in kept.items():
            path.write_bytes(content)


@pytest.mark.slow
def test_where_no_list_can_be_kept_that_is_said_and_the_printed_commands_work(
    in_empty_folder, monkeypatch, capsys, caplog
):
    Path("my_envs.py").write_text(MY_ENVS)
    monkeypatch.syspath_prepend(in_empty_folder)
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    train("CNN", "plain", **TINY)  # it leads nowhere and needs no word
    assert "--trust" not in caplog.text + capsys.readouterr().out
    signal_at(monkeypatch, signal.SIGINT, at=5)
    words = words_of(PPO | CNN | TINY | {"n_steps": 96, "env": "my_envs:MyCartPole-v0"})
    assert main_program.main([*words, "--run-id=cut"]) == 130
    (line,) = caplog.messages
    assert "/dev/null/helm/runs" in line
    assert "XDG_STATE_HOME" in line
    told = capsys.readouterr().err.split("Go on with: python main.py ")[1]
    folder = "experiments/CNN/MyCartPole-v0/cut"
    refused(capsys, "main", ["--resume", folder], "Add --trust")
    assert main_program.main(shlex.split(told)) == 0
    (play,) = re.findall(r"play it +python eval.py (.*)", capsys.readouterr().out)
    assert eval_program.main([*shlex.split(play), "--n-episodes=1"]) == 0
    monkeypatch.delenv("XDG_STATE_HOME")  # a list of later makes no run one's own
    monkeypatch.setenv("HOME", str(in_empty_folder))
    assert "Add --trust" in refused(capsys, "main", ["--resume", folder])[0]
    forget_modules_of(in_empty_folder)


def edit(module):
    with open(f"{module}.py", "a") as file:
        file.write("# a comment\n")


@pytest.mark.slow
def test_an_edit_of_ones_own_code_is_told_and_code_that_was_received_stays_so(
    in_empty_folder, somebody_else, monkeypatch, capsys, caplog
):
    Path("my_envs.py").write_text(MY_ENVS)
    monkeypatch.syspath_prepend(in_empty_folder)
    settings = TINY | {"n_steps": 64, "env": "my_envs:MyCartPole-v0"}
    folder = train("CNN", "own", **settings)
    play = ["--ckpt-path", str(folder), "--n-episodes=1"]
    resume = ["--resume", str(folder)]
    for program in (
        lambda: eval_program.main(play),
        lambda: helm.load(folder).close() or 0,
        lambda: main_program.main([*resume, "--print-config"]),
        lambda: main_program.main([*resume, "--var=n_steps=96"]),
    ):
        edit("my_envs")
        caplog.clear()
        assert program() == 0
        assert "'my_envs'" in caplog.text
        assert "has changed" in caplog.text
    forget_modules_of(in_empty_folder)
    Path("elsewhere").mkdir()  # the same lines in another place are not the user's
    Path("my_envs.py").rename("elsewhere/my_envs.py")
    monkeypatch.syspath_prepend(in_empty_folder / "elsewhere")
    assert "Add --trust" in refused(capsys, "eval", play)[0]
    Path("elsewhere/my_envs.py").rename("my_envs.py")
    somebody_else()
    assert "Add --trust" in refused(capsys, "main", [*resume, "--var=n_steps=128"])[0]
    assert main_program.main([*resume, "--var=n_steps=128", "--trust"]) == 0
    assert eval_program.main(play) == 0  # trusted once, as it was
    edit("my_envs")
    for again in (play, [*play, "--seed=1"]):
        assert "Add --trust" in refused(capsys, "eval", again)[0]
    assert main_program.main([*resume, "--var=n_steps=160", "--trust"]) == 0
    edit("my_envs")
    assert "Add --trust" in refused(capsys, "eval", play)[0]
    forget_modules_of(in_empty_folder)


@pytest.mark.slow
def test_a_sweep_trusts_the_runs_that_it_resumes_if_it_is_told_to(
    in_empty_folder, somebody_else, monkeypatch, capsys
):
    Path("my_envs.py").write_text(MY_ENVS)
    monkeypatch.syspath_prepend(in_empty_folder)
    words = [*words_of(PPO | CNN | TINY | {"env": "my_envs:MyCartPole-v0"}), "--seeds=1"]
    monkeypatch.setattr(sweep.grid, "draw_runs", lambda *_: None)
    made = []

    @contextlib.contextmanager
    def pool(*options):
        made.append(options)
        yield FakePool({0: ["killed"]})

    monkeypatch.setattr(sweep.jobs, "ray_pool", pool)
    assert sweep.main([*words, "--retries=0"]) == 1
    somebody_else()
    refused(capsys, "sweep", words, "Add --trust")
    assert sweep.main([*words, "--trust"]) == 0
    assert [options[-1] for options in made] == [False, True]
    edit("my_envs")
    somebody_else()
    assert sweep.main(words) == 0  # a finished run is left alone
    assert made[2:] == []
    forget_modules_of(in_empty_folder)
