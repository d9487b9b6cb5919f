"""What is installed: the wheel and its base dependencies, the lock, extras, other systems."""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.bad_inputs.harness import refused
from utils import packages
from utils.packages import DISTRIBUTION, EXTRAS, missing
from utils.run_folder import is_finished
from utils.user_modules import OWN_PACKAGES, PROGRAMS

ROOT = Path(__file__).parent.parent
LOCK = (ROOT / "requirements.lock").read_text()
ENTRY = re.compile(r"^([a-z0-9-]+)==(\S+)(.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}\b")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
OPTIONAL = PROJECT["project"]["optional-dependencies"]
UV = str(Path(sys.executable).with_name("uv"))
# As where there is no Linux: Python's start imports a module of this name.
ELSEWHERE = (
    "import os\nfor name in ('sched_getaffinity', 'sched_setaffinity'):\n    delattr(os, name)\n"
)


def wanted():
    """Return all that pyproject.toml names, but for itself."""
    lists = [PROJECT["project"]["dependencies"], *OPTIONAL.values()]
    lists += PROJECT["dependency-groups"].values()
    found = [Requirement(text) for each in lists for text in each]
    return [each for each in found if each.name != DISTRIBUTION]


def locked(text):
    """Return the hashes of every package and version in a lock."""
    return {(name, version): HASH.findall(rest) for name, version, rest in ENTRY.findall(text)}


@pytest.mark.parametrize("requirement", wanted(), ids=str)
def test_every_requirement_is_in_the_lock_within_its_range(requirement):
    name = canonicalize_name(requirement.name)
    versions = [version for each, version in locked(LOCK) if each == name]
    assert versions, "run: make lock"
    assert all(requirement.specifier.contains(each) for each in versions), versions


def test_every_package_of_the_lock_has_its_hashes():
    entries = locked(LOCK)
    assert len(entries) > len(wanted())
    assert [entry for entry, hashes in entries.items() if not hashes] == []
    begun = [line for line in LOCK.splitlines() if line and line[0] not in " #"]
    assert len(begun) == len(entries)  # so there is nothing in it but such entries


def test_the_lock_names_no_place_to_install_from():
    assert "://" not in LOCK
    assert not re.search(r"^\s*--(?!hash=)|^-", LOCK, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("module", EXTRAS)
def test_the_extra_that_is_named_brings_the_module(module):
    todo = [canonicalize_name(Requirement(text).name) for text in OPTIONAL[EXTRAS[module]]]
    brought = set()
    while todo:  # opensimplex comes with crafter
        name = todo.pop()
        if name not in brought:
            brought.add(name)
            needed = map(Requirement, importlib.metadata.requires(name) or ())
            todo += [canonicalize_name(each.name) for each in needed if not each.marker]
    origins = importlib.metadata.packages_distributions()[module]
    assert brought & set(map(canonicalize_name, origins))


def test_a_missing_package_is_told_with_the_command_that_adds_it(monkeypatch, capsys):
    assert str(missing("sklearn.svm", "this")).endswith("pip install 'helm-rl[analysis]'")
    assert str(missing("atlantis", "this")).endswith("pip install atlantis")
    monkeypatch.setattr(packages, "DISTRIBUTION", "never-installed")
    assert str(missing("ray", "this")).endswith(f"pip install '{ROOT}[sweeps]'")


@pytest.mark.parametrize(
    ("module", "program", "words", "told"),
    [
        ("popgym", "main", ["--var=env=popgym-RepeatFirstEasy-v0"], "env: 'popgym-RepeatFirst"),
        ("imageio", "eval", ["--ckpt-path=x", "--video"], "--video"),
        ("ray", "sweep", ["--seeds=2"], "a sweep"),
    ],
)
def test_a_program_without_an_extra_tells_so(
    module, program, words, told, monkeypatch, capsys, in_empty_folder
):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == module else find(n))
    for name in [each for each in sys.modules if f"{each}.".startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    refused(capsys, program, words, told, f"package '{module}'", f"helm-rl[{EXTRAS[module]}]")


def test_without_a_gpu_the_lock_is_installed_with_another_torch():
    said = subprocess.run(
        ["make", "-n", "train", "TORCH=cpu", "VENV=new"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert re.search(r"uv pip install .*--torch-backend cpu --constraint new/versions.txt", said)
    assert "--require-hashes -r requirements.lock" not in said
    (strip,) = (line for line in said.splitlines() if "versions.txt" in line and "sed" in line)
    versions = subprocess.run(
        strip.partition(" > ")[0], shell=True, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    lines = [line for line in versions.splitlines() if not line.lstrip().startswith("#")]
    assert [str(Requirement(line)) for line in lines]  # each is one
    assert len(lines) == len(locked(LOCK))


def test_a_gymnasium_that_is_too_old_is_told():
    code = "import gymnasium; gymnasium.__version__ = '1.3.0'; import envs"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 1
    assert re.fullmatch("gymnasium 1.3.0 is installed, .*'gymnasium>=1.4'\n", ended.stderr)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    place = tmp_path_factory.mktemp("wheel")
    source = shutil.copytree(ROOT, place / "source", ignore=kept_out, symlinks=True)
    command = [UV, "build", "--wheel", "--no-build-isolation", "--python", sys.executable]
    subprocess.run([*command, "--out-dir", place, source], check=True, capture_output=True)
    (built,) = place.glob("*.whl")
    return built


def kept_out(folder, names):
    at_the_top = Path(folder) == ROOT
    unneeded = {"experiments", "runs", "build", "eval", "downloads"} if at_the_top else set()
    return [name for name in names if name[0] == "." or name in unneeded | {"__pycache__"}]


@pytest.mark.slow
def test_the_wheel_holds_the_programs_and_their_packages_alone(wheel):
    with zipfile.ZipFile(wheel) as file:
        top = {name.partition("/")[0] for name in file.namelist()}
    ours = {f"{name}.py" for name in ("helm", *PROGRAMS)} | {*OWN_PACKAGES, "configs", "data"}
    assert {name for name in top if not name.endswith(".dist-info")} == ours


@pytest.mark.slow
def test_the_wheel_trains_plays_and_plots_with_its_base_dependencies(wheel, in_empty_folder):
    python = in_empty_folder / "venv" / "bin" / "python"
    versions = in_empty_folder / "versions.txt"
    versions.write_text(re.sub(r" \\$|^ +--hash.*\n", "", LOCK, flags=re.MULTILINE))
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, "venv"], check=True)
    install = [UV, "pip", "install", "--quiet", "--python", python, "--constraint", versions]
    subprocess.run([*install, wheel], check=True)
    kept = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}

    def ended(program, *words):
        """Run a program outside of the repository; return its status and what it told."""
        command = [python.with_name(f"helm-{program}"), *words]
        done = subprocess.run(command, env=kept, capture_output=True, text=True)
        return done.returncode, done.stderr

    for env in ("CartPole-v1", "TMazePassive-v0"):
        for model in ("LSTM", "HELM"):
            values = {"env": env, "model": model, "n_steps": 2000, "device": "cpu"}
            words = [word for pair in values.items() for word in ("--var", "{}={}".format(*pair))]
            status, told = ended("train", *words, "--run-id", "a")
            assert status == 0, told
            assert is_finished(Path("experiments", model, env, "a"))
    run = "experiments/LSTM/CartPole-v1/a"
    assert ended("eval", "--ckpt-path", run, "--report", "--n-episodes", "2")[0] == 0
    assert ended("plot", run, "experiments/HELM/CartPole-v1/a", "--output", "x.png")[0] == 0
    assert Path("x.png").stat().st_size > 10_000
    status, told = ended("train", "--var", "env=Crafter-v1")
    assert (status, told.count("\n")) == (2, 1)
    assert "pip install 'helm-rl[suites]'" in told


@pytest.mark.slow
def test_a_sweep_and_a_resume_need_nothing_of_linux_alone(in_empty_folder):
    Path("sitecustomize.py").write_text(ELSEWHERE)
    settings = {"n_steps": 256, "n_envs": 2, "n_rollout_steps": 16, "n_batches": 2}
    Path("tiny.json").write_text(json.dumps(settings))
    kept = os.environ | {"PYTHONPATH": str(in_empty_folder)}

    def ended(program, *words):
        command = [sys.executable, ROOT / program, *words]
        return subprocess.run(command, env=kept, capture_output=True, text=True)

    grid = ["--config", "tiny.json", "--var", "model=CNN-PPO", "--var", "env=RandomMaze-v0"]
    swept = ended("sweep.py", *grid, "--seeds", "2")
    assert swept.returncode == 0, swept.stderr
    folders = sorted(Path("experiments/CNN-PPO/RandomMaze-v0").iterdir())
    assert len(folders) == 2
    assert all(map(is_finished, folders))
    facts = json.loads((folders[0] / "run.json").read_text())
    assert facts["hardware"]["usable_cores"] == os.cpu_count()
    resumed = ended("main.py", "--resume", str(folders[0]), "--var", "n_steps=320")
    assert resumed.returncode == 0, resumed.stderr
