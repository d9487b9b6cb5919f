"""The examples of docs/extending.md, taken from the page and trained with."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch

import envs
import eval as eval_program
import main as main_program
import models
import trainers.build
from envs import Suite
from tests.bad_inputs.harness import refused
from tests.runs import folder_of, outcome, resume, same, signal_at
from tests.test_resume import command
from tests.user_code import forget_modules_of
from trainers.rollout import Rollout

PAGE = (Path(__file__).parent.parent / "docs" / "extending.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`([\w/]+\.py)`:\n\n```python\n(.*?)^```", PAGE, re.M | re.S))
LINES = re.findall(r"^In `(\w+)` of `[\w/.]+`[^\n]*:\n\n```python\n(.*?)^```", PAGE, re.M | re.S)


@pytest.fixture
def examples(tmp_path, monkeypatch):
    """Return the page's modules by path, the page's lines standing in their tables."""
    made = {}
    for path, source in FILES.items():
        name = path.removesuffix(".py").replace("/", ".")
        (tmp_path / Path(path).name).write_text(source)
        spec = importlib.util.spec_from_file_location(name, tmp_path / Path(path).name)
        made[path] = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, made[path])
        spec.loader.exec_module(made[path])
    tables = {"AGENTS": models.AGENTS.places, "SUITES": envs.SUITES}
    for table, line in LINES:
        if table in tables:
            ((name, value),) = eval(f"{{{line.strip()}}}", {"Suite": Suite}).items()
            monkeypatch.setitem(tables[table], name, value)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("model", ["Average", "Linear"])
def test_a_new_agent_trains_goes_on_and_plays(model, examples, in_empty_folder, monkeypatch):
    assert main_program.main(command(model, "whole")) == 0
    signal_at(monkeypatch, 2, at=39)
    assert main_program.main(command(model, "cut")) == 130
    assert resume("cut") == 0
    assert same(outcome(folder_of("cut")), outcome(folder_of("whole")))
    assert eval_program.main(["--ckpt-path", str(folder_of("whole")), "--n-episodes", "2"]) == 0


@pytest.mark.slow
def test_a_reward_of_ones_own_goes_on_and_is_run_for_no_other(in_empty_folder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("my_rewards.py").write_text(FILES["my_rewards.py"])
    chosen = {"curiosity": "my_rewards:Change", "curiosity_weight": 0.1}
    assert main_program.main(command("CNN", "whole", **chosen)) == 0
    signal_at(monkeypatch, 2, at=39)
    assert main_program.main(command("CNN", "cut", **chosen)) == 130
    assert resume("cut") == 0
    assert same(outcome(folder_of("cut")), outcome(folder_of("whole")))
    header, *_, last = (folder_of("whole") / "metrics.csv").read_text().splitlines()
    paid = dict(zip(header.split(","), last.split(","), strict=True))["curiosity/reward_mean"]
    assert float(paid) > 0
    wrong = refused(capsys, "main", ["--var=curiosity=my_rewards:Tensor"])
    assert "is no intrinsic reward. Derive it from rewards.curiosity.Curiosity" in wrong[0]
    monkeypatch.setenv("XDG_DATA_HOME", str(in_empty_folder / "of_somebody_else"))
    (line,) = refused(capsys, "eval", ["--ckpt-path", str(folder_of("whole"))])
    assert "curiosity: 'my_rewards' is code, and the run was not begun here by you" in line
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


def test_a_new_environment_is_known_by_its_name(examples, in_empty_folder, capsys):
    assert main_program.main(command("LSTM", "run", env="Colour-v0")) == 0
    folder = str(folder_of("run"))
    assert eval_program.main(["--ckpt-path", folder, "--n-episodes", "2", "--report"]) == 0
    assert "Colour-v0" in capsys.readouterr().out


def test_a_new_reward_is_learned_from_and_not_reported(examples, in_empty_folder, monkeypatch):
    haste = examples["rewards/haste.py"]
    ((_, line),) = [each for each in LINES if each[0] == "build_learner"]
    learned = []

    def hasty(*given):
        names = {"Haste": haste.Haste, "scaling": build_scaling(*given)}
        exec(line.strip(), names)
        return names["scaling"]

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
