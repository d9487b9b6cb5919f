"""The arrows between packages, read from the imports."""

import ast
from pathlib import Path

import pytest

from utils.user_modules import OWN_PACKAGES, PROGRAMS

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {
    "utils": set(),
    "models": {"utils"},
    "envs": {"utils"},
    "rewards": {"models", "utils"},
    "trainers": {"rewards", "envs", "models", "utils"},
    "analysis": {"trainers", "models", "utils"},
    "helm": {"main", "analysis", "trainers", "models", "envs", "utils"},
    "main": {"analysis", "trainers", "models", "envs", "utils"},
    "eval": {"analysis", "trainers", "utils"},
    "prepare_captions": {"envs", "utils"},
    "prepare_embeddings": {"models", "envs", "utils"},
    "plot": {"analysis", "utils"},
    "publish": {"eval", "analysis", "trainers", "utils"},
    "sweep": {"sweeps", "trainers", "utils"},
    "sweeps": {"analysis", "utils"},
}
# Files that are read before a story is understood: what its file imports, and they in turn. A
# reader keeps about twenty in mind; main.py shows everything, helm.py language models, too.
MOST_FILES = {
    "main.py": 42,
    "trainers/ppo.py": 18,
    "trainers/dqn.py": 20,
    "models/helm.py": 24,
}
OURS = {*MAY_IMPORT, "benchmarks", "tests"}
WRAPPED = {
    "envpool": "envs/envpool_vector.py",
    "minigrid": "envs/minigrid.py",
    "miniworld": "envs/miniworld.py",
    "popgym": "envs/popgym.py",
    "crafter": "envs/crafter/world.py",
    "opensimplex": "envs/crafter/world.py",
    "numba": "envs/crafter/world.py",
    "deepmind_lab": "envs/psychlab.py",
    "avalon": "envs/avalon_package.py",
    "open_clip": "models/clip.py",
    "wandb": "utils/loggers.py",
    "ray": "sweeps/jobs.py",
    "optuna": "sweeps/search.py",
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
def test_simulators_and_agents_are_imported_where_they_may_be(path):
    relative, found = str(path.relative_to(ROOT)), set(imports(path))
    packages = {name.split(".")[0] for name in found} & WRAPPED.keys()
    assert {WRAPPED[name] for name in packages} <= {relative}
    if relative.startswith("trainers/") and path.name not in (
        "build.py",
        "parts.py",
    ):  # only by their interface
        models = {name for name in found if name.startswith("models")}
        assert models <= {
            "models.agent",
            "models.caching",
            "models.observations",
            "models.settings",
        }


@pytest.mark.parametrize("path", [path for _, path in sources()], ids=str)
def test_trained_encoders_of_images_are_made_in_one_place(path):
    """A choice among them would else reach some learners, and train the old one in others."""
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    names = {ast.unparse(call.func).rpartition(".")[2] for call in calls}
    of_their_own = ("models/encoders.py", "models/grid_clip.py", "envs/crafter/tile_reader.py")
    if not str(path).endswith(of_their_own):  # those of the last two are trained beforehand
        assert not names & {"Conv2d", "SmallImpalaCNN", "TileEmbedder", "FrameBranch"}


def modules():
    found = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for _, path in sources()}
    return {name.removesuffix(".__init__"): path for name, path in found.items()}


def test_modules_beside_which_the_users_may_stand_are_all_of_ours():
    assert {*OWN_PACKAGES, *PROGRAMS, "helm"} == {*MAY_IMPORT}


@pytest.mark.parametrize("story", MOST_FILES)
def test_a_story_is_told_in_few_files(story):
    known, read = modules(), set()
    todo = [story.removesuffix(".py").replace("/", ".")]
    while todo:
        name = todo.pop()
        if name in known and name not in read:
            read.add(name)
            todo += [*_targets(known[name], known, _at_the_start), name.rpartition(".")[0]]
    assert len(read) <= MOST_FILES[story], sorted(read)


def test_no_file_imports_itself_by_way_of_others_nor_by_a_name_in_a_text():
    known = modules()
    arrows = {name: set(_targets(path, known)) - {name} for name, path in known.items()}
    while arrows:  # take away, again and again, what imports nothing that is left
        free = {name for name, targets in arrows.items() if not targets & arrows.keys()}
        assert free, f"in a circle: {sorted(arrows)}"
        arrows = {name: targets for name, targets in arrows.items() if name not in free}


def _targets(path, modules, nodes=ast.walk):
    """Yield which of the modules a file names: as packages, as parts of them, as "module:Class"."""
    for node in nodes(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            inner = [name for name in names if name in modules]
            yield from inner
            if len(inner) < len(names) and node.module in modules:
                yield node.module
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            named, _, name = node.value.partition(":")
            if named in modules and name.isidentifier():
                yield named


def _at_the_start(tree):
    """Yield the statements that are run when a file is imported, as far as they import."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if isinstance(node, (ast.If, ast.Try, ast.With)):
            yield from _at_the_start(node)
