"""Modules of the user's own, which settings name as module:Name, and when they may be run.

To import a module is to run it. Modules that a user names are looked for in the current folder,
too; those of a stored run are imported only as utils/run_folder.py allows.

The user's modules may have the names of ours, and `sys.modules` has one place for both. Ours stand
there, and lend the user's names that they lack: `envs.corridor` comes from the user's folder envs/,
`from utils import mean` from the user's utils.py.
"""

import ast
import hashlib
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import distribution, packages_distributions
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, TypeGuard

from utils.errors import ENDINGS, ROOT, UserError, error_text, shortened

GIVEN = "object:"  # begins the name of an object that a Python program gave
OWN_PACKAGES = ("analysis", "envs", "models", "rewards", "sweeps", "trainers", "utils")
PACKAGE = "package"  # begins the names of packages that a part of the code is in
OWN_CLASSES = ("model", "algorithm", "curiosity")  # settings that may name a class of the user's
FAULTS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
PROGRAMS = ("eval", "main", "plot", "prepare_captions", "prepare_embeddings", "publish", "sweep")


def is_named(name: object) -> TypeGuard[str]:
    return isinstance(name, str) and ":" in name and not name.startswith(GIVEN)


def named_modules(values: Mapping[str, Any]) -> dict[str, str]:
    named = {setting: values.get(setting) for setting in (*OWN_CLASSES, "env")}
    return {setting: name.rpartition(":")[0] for setting, name in named.items() if is_named(name)}


def parts_of(setting: str, name: str) -> tuple[str, str]:
    module, _, class_name = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), class_name)):
        form = "module:Class, such as my_agents:MyAgent"
        raise UserError(f"{setting}: '{shortened(name)}' is not of the form {form}")
    return module, class_name


def search(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    importlib.invalidate_caches()


def imported(setting: str, module: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name
        if absent and f"{module}.".startswith(f"{absent}."):
            raise UserError(
                f"{setting}: there is no module '{absent}' in {Path.cwd()} or elsewhere where "
                "Python looks. Go to the folder it is in, or name that in PYTHONPATH"
            ) from None
        why = f"importing {module} raised {error_text(error)}{advice(error)}"
        raise UserError(f"{setting}: {why}") from error
    except ENDINGS:
        raise
    except BaseException as error:
        raise UserError(f"{setting}: importing {module} raised {error_text(error)}") from error


@contextmanager
def telling(config: object) -> Iterator[None]:
    """Tell an error of classes of the user's own in one line, by the settings that name them."""
    named = {key: vars(config).get(key) for key in OWN_CLASSES}
    own = [f"{key}: {name}" for key, name in named.items() if is_named(name)]
    try:
        yield
    except ENDINGS:
        raise
    except BaseException as e:
        is_its = isinstance(e, FAULTS) or not isinstance(e, Exception)
        if not (own and is_its) or type(e).__name__ == "OutOfMemoryError":
            raise
        missing = (
            ". Settings that it takes, also those of its encoder, have to be in its `reads` "
            "(docs/reference/python_api.md)"
        )
        hint = missing if isinstance(e, AttributeError) else ""
        raise UserError(f"{', '.join(own)} raised {error_text(e)}{hint}") from e


def refuse_unguarded_script() -> None:
    """Raise UserError where a process of its own would run the line that is running again."""
    # Such a process imports the program's script, all but what stands under a test of __name__.
    script = vars(sys.modules["__main__"])
    file, spec = script.get("__file__"), script.get("__spec__")
    # Not imported are a notebook, `python -c` and the __main__.py of a package.
    if file is None or (spec is not None and spec.name.endswith("__main__")):
        return
    frame: FrameType | None = sys._getframe()
    while frame and (frame.f_globals is not script or frame.f_code.co_name != "<module>"):
        frame = frame.f_back
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    guards = [
        each
        for each in ast.walk(tree)
        if isinstance(each, ast.If) and "id='__name__'" in ast.dump(each.test)
    ]
    line = frame.f_lineno if frame else 0
    if line and not any(each.lineno <= line <= (each.end_lineno or 0) for each in guards):
        raise UserError(
            f"{file}, line {line}: processes of environments import this script, and would run "
            'this line again. Put it under: if __name__ == "__main__":'
        )


def advice(error: BaseException) -> str:
    if not isinstance(error, ImportError):
        return ""
    top, path = str(error.name).partition(".")[0], Path(error.path or "/")
    is_ours = top in (*OWN_PACKAGES, *PROGRAMS) and ROOT in path.parents
    return f". {path} is a part of this program: give your module another name" if is_ours else ""


def is_never_named(module: str) -> bool:
    """Return whether a stored run may never name a module: importing it may start a program."""
    parts = module.split(".")
    return parts[0] in sys.stdlib_module_names or "__main__" in parts


def is_environment_package(module: str) -> bool:
    """Return whether a module is an installed package that registers environments."""
    # It requires Gymnasium, and Python finds it in its place of installation, not elsewhere.
    for name in packages_distributions().get(module, ()):
        package, place = distribution(name), module_folder(module)
        requires = [text.casefold() for text in package.requires or ()]
        if place == Path(str(package.locate_file(""))).resolve():
            return any(text.startswith("gymnasium") for text in requires)
    return False


def has_file(module: str) -> bool:
    """Return whether Python finds a module; a folder without __init__.py is none."""
    spec = _spec(module)
    return spec is not None and spec.origin is not None


def module_folder(module: str) -> Path | None:
    """Return the folder in which Python finds a module's package, None where it is in no file."""
    spec = _spec(module)
    if spec is None or not (spec.submodule_search_locations or spec.has_location):
        return None
    places = [*(spec.submodule_search_locations or ()), str(spec.origin)]
    return Path(places[0]).resolve().parent


def sha256_of(module: str) -> str:
    """Return the sha256 of the source that Python finds for a module; of all of a package."""
    spec = _spec(module)
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    files = [file for folder in folders for file in sorted(Path(folder).rglob("*.py"))]
    if not folders and spec is not None and spec.has_location:
        files = [Path(str(spec.origin))]
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name} {file.stat().st_size}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def _spec(module: str) -> ModuleSpec | None:
    importlib.invalidate_caches()
    top, _, inner = module.partition(".")
    try:
        is_ours = inner and PathFinder.find_spec(inner.split(".")[0], [str(ROOT / top)])
        theirs = None if is_ours else _OURS_FIRST.spec_of_theirs(top)
        return theirs or find_spec(top)
    except (ImportError, ValueError):  # such as the script that is running
        return None


def import_module(module: str) -> ModuleType:
    return _OURS_FIRST.module_of_theirs(module) or importlib.import_module(module)


class _OursFirst:
    """Finds our modules before the user's of the same names, which are kept in `theirs`."""

    def __init__(self) -> None:
        self.names = {*OWN_PACKAGES, *PROGRAMS}
        self.theirs: dict[str, ModuleType] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top, _, inner = name.partition(".")
        if top not in self.names:
            return None
        found = PathFinder.find_spec(name, path if inner else [str(ROOT)], target)
        if found is not None and not inner:
            found.loader = _Lending(name, str(found.origin))
        if found is None and "." not in inner and (theirs := self.module_of_theirs(top)):
            return PathFinder.find_spec(name, vars(theirs).get("__path__", ()), target)
        return found

    def spec_of_theirs(self, name: str) -> ModuleSpec | None:
        if name not in self.names:
            return None
        return PathFinder.find_spec(name, [p for p in sys.path if Path(p).resolve() != ROOT])

    def module_of_theirs(self, name: str) -> ModuleType | None:
        """Return the user's module with the name of one of ours, imported; None without one."""
        if name in self.theirs or (spec := self.spec_of_theirs(name)) is None:
            return self.theirs.get(name)
        module = self.theirs[name] = module_from_spec(spec)
        try:
            if spec.loader is not None:
                spec.loader.exec_module(module)
            ours = vars(importlib.import_module(name)) if name in OWN_PACKAGES else {}
            for key, value in vars(module).items():
                if key[0] != "_" and ours.get(key, value) is not value:
                    places = f"{spec.origin} and in {name} of this program"
                    raise ImportError(f"'{key}' stands in {places}. Give your file another name")
        except BaseException:
            del self.theirs[name]
            raise
        return module


class _Lending(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        lend(module)
        super().exec_module(module)


def lend(ours: ModuleType) -> None:
    def attribute(name: str) -> Any:
        # Not for ours: a module that looks at itself, `from utils import files` before files is
        # imported, or Python's own names.
        is_ours = sys._getframe(1).f_globals is vars(ours) or (
            name[:2] == "__" and name != "__all__"
        )
        if not (is_ours or PathFinder.find_spec(name, vars(ours).get("__path__", ()))):
            found = vars(_OURS_FIRST.module_of_theirs(ours.__name__) or ours)
            if name == "__all__" and found is not vars(ours):  # of `from utils import *`
                return found.get(name, [each for each in found if each[0] != "_"])
            if name in found:
                return found[name]
        raise AttributeError(f"module '{ours.__name__}' has no attribute '{name}'")

    ours.__dict__["__getattr__"] = attribute


def keep_theirs(imported: Mapping[str, ModuleType]) -> None:
    """Give the places of ours in sys.modules back that the user's modules have taken."""
    for name, module in imported.items():
        top, _, inner = name.partition(".")
        file = Path(vars(module).get("__file__") or "/").resolve()
        if top in _OURS_FIRST.names and not {ROOT / top, ROOT / f"{top}.py"} & {
            file,
            *file.parents,
        }:
            sys.modules.pop(name, None)
            if not inner:
                _OURS_FIRST.theirs[top] = module
            elif not PathFinder.find_spec(name, [str(ROOT / top)]):
                sys.modules[name] = module


def give_back_programs() -> None:
    """Let names such as `main` be the user's again where no program of ours is running."""
    for name in PROGRAMS:
        if name in _OURS_FIRST.theirs:
            sys.modules[name] = _OURS_FIRST.theirs.pop(name)
        elif _OURS_FIRST.spec_of_theirs(name):
            sys.modules.pop(name, None)
    _OURS_FIRST.names -= {*PROGRAMS}


_OURS_FIRST = _OursFirst()
sys.meta_path.insert(0, _OURS_FIRST)
lend(sys.modules["utils"])
keep_theirs({**sys.modules})
