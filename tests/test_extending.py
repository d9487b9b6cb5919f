"""The examples of the documentation: taken from its pages, trained with, resumed."""

import importlib.util
import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
import torch

import envs
import eval as eval_program
import helm
import main as main_program
import models
import sweep
import trainers.build
from analysis import __main__ as analysis
from rewards.suggesters.rules import TextState
from tests.bad_inputs.harness import refused
from tests.generate_docs import DOCS
from tests.haste import Haste
from tests.runs import (
    COMMON,
    LSTM,
    STEERED,
    folder_of,
    outcome,
    resume,
    same,
    signal_at,
    words_of,
)
from tests.test_resume import TINY, command
from tests.user_code import forget_modules_of
from trainers.rollout import Rollout
from utils.errors import ROOT

TUTORIALS = [page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("tutorials/*.md"))]
PAGES = [
    page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("reference/*.md"))
] + TUTORIALS
NAMED = re.compile(r"`([\w/]+\.\w+)`:\n\n```(?:python|json)\n(.*?)^```", re.M | re.S)
FILES = {name: text for page in PAGES for name, text in NAMED.findall(page)}  # the last counts
LINE = re.compile(r"^In `(\w+)` of `[\w/.]+`[^\n]*:\n\n```python\n(.*?)^```", re.M | re.S)
LINES = {(table, line) for page in PAGES for table, line in LINE.findall(page)}
COMMANDS = [
    line
    for page in TUTORIALS
    for block in re.findall(r"^```bash\n(.*?)^```", page, re.M | re.S)
    for line in block.splitlines()
    if line.startswith(("python main.py", "python sweep.py"))
]


@pytest.fixture
def examples(tmp_path, monkeypatch):
    """Import the pages' agents of this repository, and put their lines into its table."""
    for path in ("models/linear.py",):
        name = path.removesuffix(".py").replace("/", ".")
        (tmp_path / Path(path).name).write_text(FILES[path])
        spec = importlib.util.spec_from_file_location(name, tmp_path / Path(path).name)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
    for table, line in LINES:
        assert table == "AGENTS"
        ((name, value),) = eval(f"{{{line.strip()}}}").items()
        monkeypatch.setitem(models.AGENTS.places, name, value)


@pytest.fixture
def my_files(in_empty_folder, monkeypatch):
    """Write the tutorials' files, as a reader does."""
    monkeypatch.syspath_prepend(in_empty_folder)  # as `python main.py` in this folder would
    named = [match for page in TUTORIALS for match in NAMED.findall(page)]
    for name, text in named:
        Path(name).write_text(text)
    yield {name for name, _ in named}
    forget_modules_of(in_empty_folder)


@pytest.mark.slow
@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_a_tutorial_is_one(line, my_files, capsys):
    _, program, *words = shlex.split(line, comments=True)
    words = [str(ROOT / word) if word.startswith("configs/") else word for word in words]
    if program == "main.py":
        assert main_program.main([*words, "--print-config"]) == 0
        given = {word.partition("=")[0] for word in words if "=" in word}
        assert json.loads(capsys.readouterr().out).keys() >= given
    else:
        assert sweep.main([*dict.fromkeys([*words, "--dry-run"])]) == 0
        assert " missing: " in capsys.readouterr().out
    assert not Path("experiments").exists()


@pytest.mark.slow
def test_the_tutorials_environment_is_trained_in_by_its_script(my_files, monkeypatch, capsys):
    def short(settings, **given):
        shorter = {"n_steps": 64, "n_envs": 2, "n_rollout_steps": 16, "memory_width": 8}
        return train(settings | shorter, **given)

    train = helm.train
    monkeypatch.setattr(helm, "train", short)
    runpy.run_path("train_doors.py", run_name="__main__")
    assert "of 100 episodes succeeded" in capsys.readouterr().out
    assert main_program.main(command("LSTM", "named", env="doors:Doors-v0", memory_width=8)) == 0
    longer = ["--ckpt-path", str(folder_of("named")), "--var", 'env_args={"metres": 30}']
    assert eval_program.main([*longer, "--n-episodes", "2"]) == 0
    assert "30.0" in capsys.readouterr().out


@pytest.mark.slow
def test_the_tutorials_memory_is_right_and_its_mistake_is_found(my_files, capsys):
    assert analysis.main(["check", "averages:Averages"]) == 0
    assert "10 ok, 1 not tested" in capsys.readouterr().out
    right = Path("averages.py").read_text()
    wrong = re.sub(r"return state\.state\.masked_fill.*", "return state.state", right)
    assert wrong != right
    Path("wrong.py").write_text(wrong)
    assert analysis.main(["check", "wrong:Averages"]) == 1
    shown = capsys.readouterr()
    assert re.search(r"a reset equals a fresh start .* FAILS", shown.out)


def test_what_a_tutorial_shows_without_a_files_name_runs():
    unnamed = [
        text
        for page in TUTORIALS
        for text in re.findall(r"^```python\n(.*?)^```", NAMED.sub("", page), re.M | re.S)
    ]
    for text in unnamed:
        names = {"__name__": __name__}
        exec(text, names)
    assert names["AveragesSettings"](memory_width=8).slowest == 5.0


def test_a_suggester_of_ones_own_suggests():
    made = {"__name__": "needs"}
    exec(FILES["rewards/suggesters/needs.py"], made)
    state = TextState("You see tree.", "", "You feel hungry.", {})
    assert made["Needs"]().suggest([state]) == [["attack cow", "chop tree"]]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["Linear"])
def test_a_new_agent_trains_goes_on_and_plays(model, examples, in_empty_folder, monkeypatch):
    assert main_program.main(command(model, "whole")) == 0
    signal_at(monkeypatch, 2, at=39)
    assert main_program.main(command(model, "cut")) == 130
    assert resume("cut") == 0
    assert same(outcome(folder_of("cut")), outcome(folder_of("whole")))
    assert eval_program.main(["--ckpt-path", str(folder_of("whole")), "--n-episodes", "2"]) == 0


PENALISED = LSTM | {"kl_weight": 0.5, "n_epochs": 3, "learning_rate": 0.01}
REINFORCE = COMMON | {"env": "RandomMaze-v0", "n_steps": 128, "normalize_reward": "true"}
REINFORCE |= {"reinforce_steps": 16} | LSTM
OWN = {  # setting, other settings, a metric, a class that is none
    "averages:AveragesAgent": ("model", {}, "train/grad_norm", "TensorMemory"),
    "my_encoder:ResNetLstm": ("model", {"memory_width": 8}, "train/grad_norm", "ResNet"),
    "my_rewards:Change": ("curiosity", {"curiosity_weight": 0.1}, "reward_mean", "Tensor"),
    "my_learner:Penalised": ("algorithm", PENALISED, "train/kl", "Tensor"),
    "my_reinforce:Reinforce": ("algorithm", REINFORCE, "train/value_loss", "Rollout"),
}


@pytest.mark.slow
@pytest.mark.parametrize("part", OWN)
def test_a_part_of_ones_own_goes_on_and_is_run_for_no_other(
    part, in_empty_folder, monkeypatch, capsys
):
    module, (setting, settings, metric, wrong) = part.partition(":")[0], OWN[part]
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path(f"{module}.py").write_text(FILES[f"{module}.py"])
    chosen = {"model": "CNN"} | settings | {setting: part}
    base = {} if settings is REINFORCE else TINY
    assert main_program.main(command(run_id="whole", base=base, **chosen)) == 0
    signal_at(monkeypatch, 2, at=39)
    assert main_program.main(command(run_id="cut", base=base, **chosen)) == 130
    assert resume("cut") == 0
    assert same(outcome(folder_of("cut")), outcome(folder_of("whole")))
    header, *_, last = (folder_of("whole") / "metrics.csv").read_text().splitlines()
    (logged,) = (n for n, key in enumerate(header.split(",")) if key.endswith(metric))
    assert float(last.split(",")[logged]) > 0
    assert eval_program.main(["--ckpt-path", str(folder_of("whole")), "--n-episodes", "2"]) == 0
    refused(capsys, "main", [f"--var={setting}={module}:{wrong}"], "Derive it from ")
    monkeypatch.setenv("XDG_STATE_HOME", str(in_empty_folder / "of_somebody_else"))
    refused(
        capsys,
        "eval",
        ["--ckpt-path", str(folder_of("whole"))],
        f"{setting}: '{module}'",
        "--trust",
    )
    forget_modules_of(in_empty_folder)


LEARNERS = """
from trainers.sac import SAC, ContinuousSAC

class Bare(Learner):
    reads = (ReinforceSettings,)
class OfSac(SAC): ...
class OfOtherSac(ContinuousSAC): ...
"""
FROM_SAC = {"model": "CNN", "warmup_episodes": 1, "head_width": 8}


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("Bare", {}, "lacks act, load_state_dict, observe, state_dict, update, update_due"),
        ("Rollout", {}, "is no learner. Derive it from trainers.learner.Learner"),
        ("Reinforce", {"reinforce_steps": 0}, "reinforce_steps: 0 is out of range"),
        ("Reinforce", {"n_epochs": 2}, "n_epochs is read by PPO"),
        ("Reinforce", {"curiosity": "RND"}, "curiosity: RND is not read by my_reinforce:Reinforce"),
        ("OfSac", FROM_SAC | STEERED, "Derive it from trainers.sac.ContinuousSAC"),
        ("OfOtherSac", FROM_SAC | {"env": "TMazeActive-v0"}, "Derive it from trainers.sac.SAC"),
    ],
)
def test_a_mistake_in_a_learner_gets_one_line(
    name, settings, words, in_empty_folder, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("my_reinforce.py").write_text(FILES["my_reinforce.py"] + LEARNERS)
    chosen = COMMON | {"model": "LSTM"} | settings | {"algorithm": f"my_reinforce:{name}"}
    assert main_program.main(words_of(chosen)) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert words in line
    assert line.startswith(("algorithm: ", "--var ", "curiosity: "))
    assert not Path("experiments").exists()
    forget_modules_of(in_empty_folder)


@pytest.mark.parametrize(
    ("wrong", "words"),
    {
        "self.lacks = config.lacks": "my_rewards:Bad raised AttributeError: ",
        "raise RuntimeError('no disk')": "my_rewards:Bad raised RuntimeError: no disk",
        "self.rewards = lambda before, after: 1 / 0": "my_rewards:Bad raised ZeroDivisionError: ",
        "raise SystemExit('bye')": "my_rewards:Bad raised SystemExit: bye",
        "self.rewards = lambda *_: __import__('sys').exit(4)": "my_rewards:Bad raised SystemExit",
    }.items(),
)
def test_an_intrinsic_reward_that_fails_is_told(wrong, words, in_empty_folder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", list(sys.path))
    bad = f"""
class Bad(Change):
    def __init__(self, config, *given):
        super().__init__(config, *given)
        {wrong}
"""
    Path("my_rewards.py").write_text(FILES["my_rewards.py"] + bad)
    assert main_program.main(command("CNN", "bad", curiosity="my_rewards:Bad")) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"curiosity: {words}")
    forget_modules_of(in_empty_folder)


def test_a_new_environment_is_known_by_its_name(in_empty_folder, monkeypatch, capsys):
    monkeypatch.setitem(envs.SUITES, "Colour-v0", "tests.colour:Colour")
    assert main_program.main(command("LSTM", "run", env="Colour-v0")) == 0
    folder = str(folder_of("run"))
    assert eval_program.main(["--ckpt-path", folder, "--n-episodes", "2", "--report"]) == 0
    assert "Colour-v0" in capsys.readouterr().out


def test_a_new_reward_is_learned_from_and_not_reported(in_empty_folder, monkeypatch):
    learned = []

    def hasty(*given):
        return Haste(build_scaling(*given), price=0.01)

    def store(self, transition):
        learned.append(transition.rewards)
        stored(self, transition)

    build_scaling, stored = trainers.build.build_scaling, Rollout.store
    monkeypatch.setattr(trainers.build, "build_scaling", hasty)
    monkeypatch.setattr(Rollout, "store", store)
    run = command("CNN", "run", normalize_reward="false", showcase_minutes="null")
    assert main_program.main(run) == 0
    paid = torch.stack(learned).numpy() + 0.01
    assert {round(float(reward), 6) for reward in paid.flat} <= {-1.0, -0.01, 1.0}
    assert len(learned) == 64
