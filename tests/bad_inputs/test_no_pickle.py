"""No file is unpickled freely: readers of received files take data only."""

import ast
from pathlib import Path

import pytest

from tests.test_architecture import MAY_IMPORT
from utils.files import load_saved

ROOT = Path(__file__).parent.parent.parent
SOURCES = [
    path
    for folder in (*MAY_IMPORT, "benchmarks")
    for path in [ROOT / f"{folder}.py", *sorted((ROOT / folder).rglob("*.py"))]
    if path.exists()
]
UNSAFE_MODULES = {"pickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
MUST_SAY = {"torch.load": ("weights_only", True), "np.load": ("allow_pickle", False)}


def unsafe_calls(tree):
    """Yield every import that can unpickle and every call that does not say that it will not."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] in UNSAFE_MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from [node.module] * (node.module.split(".")[0] in UNSAFE_MODULES)
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            given = {word.arg: getattr(word.value, "value", None) for word in node.keywords}
            if name in MUST_SAY and MUST_SAY[name] not in given.items():
                yield name
            if name in ("eval", "exec") or given.get("allow_pickle") or name == "read_pickle":
                yield name


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_source_unpickles(path):
    assert list(unsafe_calls(ast.parse(path.read_text()))) == []


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "np.savez(path, allow_pickle=True)",
        "eval(text)",
    ],
)
def test_what_would_unpickle_is_found(line):
    assert len(list(unsafe_calls(ast.parse(line)))) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["intruder.pt", "old_intruder.pt", "hidden_intruder.pt"])
def test_what_is_loaded_is_not_run(name, in_gallery):
    with pytest.raises(Exception, match=r"(?i)weights.only"):
        load_saved(in_gallery / "foreign" / name)
