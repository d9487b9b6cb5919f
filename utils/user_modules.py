"""Modules of the user's own, which settings name as module:Name, and when they may be run.

To import a module is to run it. Modules that a user names are looked for in the current folder,
too; those of a stored run are imported only as utils/run_folder.py allows.
"""

import hashlib
import importlib
import logging
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from importlib.metadata import distribution, packages_distributions
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

from utils.errors import UserError, shortened, told

GIVEN = "object:"  # begins the name of an object that a Python program gave


def is_named(name: object) -> TypeGuard[str]:
    return isinstance(name, str) and ":" in name and not name.startswith(GIVEN)


def named_modules(values: Mapping[str, Any]) -> dict[str, str]:
    named = {setting: values.get(setting) for setting in ("model", "env")}
    return {setting: name.rpartition(":")[0] for setting, name in named.items() if is_named(name)}


def parts_of(setting: str, name: str) -> tuple[str, str]:
    module, _, class_name = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), class_name)):
        raise UserError(
            f"{setting}: '{shortened(name)}' is not of the form module:Class, such as "
            "my_agents:MyAgent"
        )
    return module, class_name


def search(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    importlib.invalidate_caches()


def imported(setting: str, module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if error.name == "settings" and not has_file("settings"):  # understood for one version
            logging.warning(f"{module}: 'settings' is 'utils.settings' now")
            sys.modules["settings"] = importlib.import_module("utils.settings")
            return imported(setting, module)
        absent = isinstance(error, ModuleNotFoundError) and error.name
        if absent and f"{module}.".startswith(f"{absent}."):
            raise UserError(
                f"{setting}: there is no module '{absent}' in {Path.cwd()} or elsewhere where "
                "Python looks. Go to the folder it is in, or name that in PYTHONPATH"
            ) from None
        raise UserError(f"{setting}: importing {module} raised {told(error)}") from error
    except (Exception, SystemExit) as error:
        raise UserError(f"{setting}: importing {module} raised {told(error)}") from error


def is_never_named(module: str) -> bool:
    """Return whether a stored run may never name a module: importing it may start a program."""
    parts = module.split(".")
    return parts[0] in sys.stdlib_module_names or "__main__" in parts


def is_environment_package(module: str) -> bool:
    """Return whether a module is an installed package that registers environments.

    It requires Gymnasium, and Python finds it in its place of installation, not in another folder.
    """
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
    try:
        return find_spec(module.partition(".")[0])
    except (ImportError, ValueError):  # such as the script that is running
        return None
