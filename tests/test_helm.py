"""The public interface: train, go on, load and play from Python; the scripts of examples/."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import eval as eval_program
import helm
import main as main_program
from tests.any_envs import Sampled
from tests.bad_inputs.harness import in_one_line, refused
from tests.runs import outcome, same, signal_at
from trainers.checkpoint import LAST, load_checkpoint
from utils.errors import Interrupted, UserError

EXAMPLES = Path(__file__).parent.parent / "examples"
TINY = {"model": "LSTM", "device": "cpu", "n_steps": 64, "n_envs": 2, "n_rollout_steps": 16}
TINY |= {"memory_width": 8, "showcase_minutes": None}


@pytest.fixture
def example(monkeypatch):
    """Import a script of examples/ as a module, as Python does in its folder."""
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def script(name):
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return script


@pytest.fixture
def recall(example):
    return example("train_on_my_env").RecallColour


SCRIPTS = {  # what stands in a script behind its imports; the line that is refused
    "work()": 2,
    "def begin():\n    work()\nbegin()": 4,
    'if __name__ == "__main__":\n    pass\nwork()': 4,
    'if __name__ == "__main__":\n    work()': None,
    'def begin():\n    work()\nif __name__ == "__main__" and True:\n    begin()': None,
}


def script_ended(*words, text=None):
    """Run Python in the current folder, where our packages are found."""
    path = {"PYTHONPATH": f"{EXAMPLES.parent}:."}
    command = [sys.executable, *words]
    return subprocess.run(
        command, input=text, env=os.environ | path, capture_output=True, text=True
    )


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_that_a_process_would_run_again_is_refused(script, in_empty_folder):
    text = f"from utils.user_modules import refuse_unguarded_script as work\n{script}\n"
    Path("script.py").write_text(text)
    for words in (["script.py"], ["-m", "script"]):
        ended, line = script_ended(*words), SCRIPTS[script]
        assert ended.returncode == (0 if line is None else 1)
        assert line is None or f"script.py, line {line}: " in ended.stderr.splitlines()[-1]
        assert line is None or ended.stderr.endswith('if __name__ == "__main__":\n')
    Path("package").mkdir()
    Path("script.py").rename("package/__main__.py")  # processes import none of these
    for words in (["-m", "package"], ["-c", text], ["-"]):
        assert script_ended(*words, text=text).stderr == ""


@pytest.mark.slow
def test_no_process_of_an_unguarded_script_starts(in_empty_folder):
    settings = TINY | {"env": "CartPole-v1", "env_processes": True}
    text = f"import helm\nprint(helm.train({settings}, run_id='a'))\n"
    Path("script.py").write_text(text)
    ended = script_ended("script.py")
    assert "UserError: " in ended.stderr.splitlines()[-1]
    assert ended.stderr.count("Traceback") == 1
    assert {path.name for path in in_empty_folder.iterdir()} == {"script.py"}
    guarded = text.replace("print", "if __name__ == '__main__':\n    print")
    Path("script.py").write_text(guarded)
    assert script_ended("script.py").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("has_pandas", [False, True])
def test_runs_become_a_data_frame(has_pandas, in_empty_folder, monkeypatch):
    run = helm.train(TINY | {"env": "RandomMaze-v0"})
    pandas = SimpleNamespace(DataFrame=list) if has_pandas else None
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    if not has_pandas:
        with pytest.raises(UserError, match=r"pip install .*analysis"):
            helm.runs()
        return
    (row,) = helm.runs()
    assert (row["folder"], row["model"], row["env_steps"]) == (str(run), "LSTM", 64)
    (other,) = helm.runs(run)
    assert other["memory_width"] == 8


def vector_env(make, n_envs=2, mode=AutoresetMode.SAME_STEP):
    return SyncVectorEnv([make] * n_envs, autoreset_mode=mode)


@pytest.mark.parametrize("kind", ["class", "function", "vector"])
def test_an_environment_object_is_trained_in(kind, recall, in_empty_folder):
    env = {"class": recall, "function": lambda: recall(), "vector": vector_env(recall)}[kind]
    folder = helm.train(TINY | (EVALUATED if kind == "class" else {}), env=env, run_id="mine")
    assert folder == Path("experiments/LSTM/RecallColour/mine")
    assert json.loads((folder / "config.json").read_text())["env"] == "object:RecallColour"
    assert ("eval/return_mean" in (folder / "metrics.csv").read_text()) == (kind == "class")
    if kind == "vector":
        env.reset()  # the given object stays open


def test_a_name_leads_to_what_main_trains(in_empty_folder):
    settings = TINY | {"env": "RandomMaze-v0"}
    mine = helm.train(settings)
    assert mine.name.startswith("device=cpu_n_steps=64")
    assert mine.name.endswith("showcase_minutes=null_seed=0")
    texts = [f"--var={name}={json.dumps(v) if v is None else v}" for name, v in settings.items()]
    assert main_program.main([*texts, "--run-id=other"]) == 0
    other = load_checkpoint(mine.with_name("other") / LAST)
    ours = load_checkpoint(mine / LAST)["agent"]
    assert all(tensor.equal(other["agent"][name]) for name, tensor in ours.items())


@pytest.mark.slow
def test_an_interrupted_run_on_an_object_goes_on_with_it(recall, in_empty_folder, monkeypatch):
    whole = helm.train(TINY, env=recall, run_id="whole")
    signal_at(monkeypatch, 2, at=10)
    with pytest.raises(Interrupted):
        helm.train(TINY, env=recall, run_id="cut")
    folder = Path("experiments/LSTM/RecallColour/cut")
    with pytest.raises(UserError, match="on object:RecallColour, and object:Sampled is given"):
        helm.resume(folder, env=Sampled)
    assert helm.resume(folder, env=recall) == folder
    assert same(outcome(folder), outcome(whole))


def test_a_finished_run_on_an_object_goes_on_to_more_steps(recall, in_empty_folder):
    run = helm.train(TINY, env=recall, run_id="mine")
    for wrong in (64, 0, "x", True, 1e99):
        with in_one_line("n_steps"):
            helm.resume(run, env=recall, n_steps=wrong)
    assert helm.resume(run, env=recall, n_steps=96) == run
    assert json.loads((run / "config.json").read_text())["n_steps"] == 96
    assert load_checkpoint(run / LAST)["env_steps"] == 96


def test_programs_say_that_they_need_the_object(recall, in_empty_folder, capsys):
    folder = str(helm.train(TINY, env=recall, run_id="mine"))
    for program, option in (("eval", "--ckpt-path"), ("main", "--resume")):
        refused(capsys, program, [option, folder], "helm.load(run, env=...)")
    (line,) = refused(capsys, "main", ["--var", "env=object:RecallColour"])
    assert line.startswith("env: this environment is an object of a Python program")


def test_a_run_is_played_step_by_step_as_eval_plays_it(in_empty_folder):
    folder = helm.train(TINY | {"env": "TMazePassive-v0", "length": 4}, run_id="mine")
    command = ["--ckpt-path", str(folder), "--n-episodes=1", "--greedy"]
    assert eval_program.main(command) == 0
    (recording,) = Path("episodes/TMazePassive-v0/LSTM").glob("*.npz")
    seen, done = [], []
    with helm.load(folder) as player:
        observation = player.reset(seed=0)
        while not player.ended:
            seen.append(observation)
            done.append(player.act(observation, greedy=True))
            observation, _, _, _, _ = player.step(done[-1])
        with pytest.raises(UserError, match="the episode has ended"):
            player.step(0)
    with np.load(recording) as arrays:
        np.testing.assert_array_equal(arrays["observations"], seen)
        np.testing.assert_array_equal(arrays["actions"], done)


def test_looking_leaves_the_memory_alone_and_pictures_are_of_the_present(in_empty_folder):
    def drawn():
        return Sampled("nested", render_mode="rgb_array")

    folder = helm.train(TINY | {"model": "GPT", "mem_len": 4}, env=drawn, run_id="mine")
    with helm.load(folder, env=drawn) as player:
        observation = player.reset(seed=0)
        for steps in range(1, 4):
            first, again = player.inspect(observation), player.inspect(observation)
            assert first["attention"].shape[2] >= steps
            np.testing.assert_array_equal(first["attention"], again["attention"])
            observation, *_ = player.step(player.act(observation))
        assert (player.draw() == 3).all()
        player.reset()
        assert (player.draw() == 0).all()
    bare = helm.load(folder, env=lambda: gymnasium.wrappers.TimeLimit(drawn(), 2))
    assert bare.env.num_envs == 1
    bare.close()


EVALUATED = {"eval_steps": 32, "eval_episodes": 1}
PETTING_ZOO = type("Zoo", (type("AECEnv", (), {"__module__": "pettingzoo.utils.env"}),), {})
OLD_GYM = type("Old", (type("Env", (), {"__module__": "gym.core"}),), {})
MISTAKES = {  # settings, and options that are made of the class of an environment
    "SAME_STEP": ({}, lambda env: {"env": vector_env(env, mode=AutoresetMode.DISABLED)}),
    "has 2 environments, and 3 are needed": ({"n_envs": 3}, lambda env: {"env": vector_env(env)}),
    "neither a vector environment nor a function": ({}, lambda env: {"env": env()}),
    "the function returns int, neither a vector": ({}, lambda _: {"env": lambda: 3}),
    "of old gym is bridged by shimmy.GymV26Compat": ({}, lambda _: {"env": OLD_GYM}),
    "such as OneAgent of docs/reference/environments.md": ({}, lambda _: {"env": PETTING_ZOO}),
    "such as lambda: MyEnv(size=8)": ({}, lambda env: {"env": lambda: env(size=3)}),
    "package:Pong-v0": ({}, lambda _: {"env": "Pong-v0"}),
    "env is given, and an object": ({"env": "RandomMaze-v0"}, lambda env: {"env": env}),
    "model is given, and an object": ({}, lambda _: {"agent": type("A", (), {})}),
    "settings: topk is read by SHELM, and this is LSTM": ({"topk": 2}, lambda _: {}),
    "not one folder name": ({}, lambda _: {"run_id": "../x"}),
    "no such file or folder": ({}, lambda _: {"init_from": "nowhere"}),
    "evaluations need environments of their own": (EVALUATED, lambda env: {"env": vector_env(env)}),
}


@pytest.mark.parametrize("reason", MISTAKES)
def test_a_mistake_is_told_in_one_line_and_nothing_is_written(reason, recall, in_empty_folder):
    settings, options = MISTAKES[reason]
    with in_one_line(re.escape(reason)):
        helm.train(TINY | settings, **options(recall))
    for function in (helm.load, helm.resume, helm.train):
        with pytest.raises(UserError):
            function("nowhere")
    assert list(in_empty_folder.iterdir()) == []


def test_a_class_that_is_typed_in_has_no_file_to_be_found_in(monkeypatch, in_empty_folder):
    agent = type("Mine", (), {"__module__": "__main__"})
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    settings = {name: value for name, value in TINY.items() if name != "model"}
    with pytest.raises(UserError, match="Mine is in no file"):
        helm.train(settings, agent=agent)


@pytest.mark.slow
def test_every_example_runs(example, in_empty_folder, monkeypatch, capsys):
    monkeypatch.setattr(helm, "load_config", tiny(helm.load_config))
    first = example("train_on_my_env").main(n_steps=32)
    assert first.parent == Path("experiments/LSTM/RecallColour")
    second = example("my_memory").main(n_steps=32)
    assert second.parent == Path("experiments/FirstAgent/TMazePassive-v0")
    assert json.loads((second / "config.json").read_text())["model"] == "my_memory:FirstAgent"
    folder = helm.train({"env": "MiniGrid-Empty-5x5-v0", "model": "GPT", "memory_width": 8})
    assert example("play_a_run").main(str(folder)) >= 0
    assert Path("episode.gif").stat().st_size > 0
    assert "looks back" in capsys.readouterr().out


def tiny(load_config):
    """Return a `load_config` that makes every run small."""
    small = {"n_envs": 2, "n_rollout_steps": 8, "device": "cpu", "showcase_minutes": None}

    def load(values):
        return load_config(values={"n_steps": 16} | values | small)

    return load
