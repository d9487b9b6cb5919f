"""The arrows between packages, read from the imports."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {
    "utils": set(),
    "models": {"utils"},
    "envs": {"utils"},
    "trainers": {"models", "utils"},
    "plots": {"utils"},
    "analysis": {"plots", "trainers", "models", "envs", "utils"},
    "main": {"analysis", "trainers", "models", "envs", "utils"},
    "report": {"trainers", "utils"},
    "eval": {"report", "trainers", "models", "envs", "utils"},
    "prepare_embeddings": {"models", "envs", "utils"},
    "plot": {"plots", "utils"},
    "sweep": {"sweeps", "plot", "trainers", "models", "envs", "utils"},
    "sweeps": {"utils"},
}
OURS = {*MAY_IMPORT, "benchmarks", "tests"}
WRAPPED = {
    "envpool": "envs/envpool_vector.py",
    "minigrid": "envs/minigrid.py",
    "miniworld": "envs/miniworld.py",
    "deepmind_lab": "envs/psychlab.py",
    "open_clip": "models/clip_encoder.py",
    "wandb": "utils/loggers.py",
    "ray": "sweeps/cluster.py",
}


def sources():
    for package in MAY_IMPORT:
        single = ROOT / f"{package}.py"
        files = [single] if single.exists() else sorted((ROOT / package).rglob("*.py"))
        for path in files:
            yield package, path


def imports(path, nodes=ast.walk):
    for node in nodes(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


@pytest.mark.parametrize(("package", "path"), sources(), ids=lambda value: str(value))
def test_imports_follow_the_arrows(package, path):
    found = {name.split(".")[0] for name in imports(path)} & OURS
    assert found <= MAY_IMPORT[package] | {package}


@pytest.mark.parametrize("path", [path for _, path in sources()], ids=str)
def test_simulators_are_imported_when_used_and_in_one_place(path):
    relative = str(path.relative_to(ROOT))
    everywhere = {name.split(".")[0] for name in imports(path)}
    assert {name for name in WRAPPED if name in everywhere} <= {
        name for name, home in WRAPPED.items() if home == relative
    }


def test_the_trainers_know_agents_only_by_their_interface():
    for path in sorted((ROOT / "trainers").glob("*.py")):
        assert {name for name in imports(path) if name.startswith("models")} <= {"models.agent"}


def test_main_stays_a_composition_root():
    assert len((ROOT / "main.py").read_text().splitlines()) < 90
