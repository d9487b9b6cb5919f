"""Modules of the user's own, which settings name as module:Name, and when they may be run.

To import a module is to run it. What a user names is looked for in the current folder, too. What a
stored run names may be somebody else's: it is imported where Python finds it anyway, else only from
a folder that this user has trained from before. Those folders are kept in a file in the user's own
data folder, where no run can write.
"""

import contextlib
import hashlib
import importlib
import json
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

from utils.errors import UserError

LONGEST_SHOWN = 100
GIVEN = "object:"  # begins the name of what a Python program gave as an object


def is_named(name: object) -> TypeGuard[str]:
    """Return whether a name says where something of the user's own is: module:Name."""
    return isinstance(name, str) and ":" in name and not name.startswith(GIVEN)


def named_modules(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the modules that the settings of a run name, by the setting that names each."""
    named = {setting: values.get(setting) for setting in ("model", "env")}
    return {setting: name.partition(":")[0] for setting, name in named.items() if is_named(name)}


def parts_of(setting: str, name: str) -> tuple[str, str]:
    """Return module and class of a name, or raise UserError where it has not that form."""
    module, _, class_name = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), class_name)):
        shown = name if len(name) <= LONGEST_SHOWN else f"{name[:LONGEST_SHOWN]}..."
        raise UserError(
            f"{setting}: '{shown}' is not of the form module:Class, such as my_agents:MyAgent"
        )
    return module, class_name


def search(folder: Path) -> None:
    """Let Python look for modules in a folder, too, after everywhere else."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    importlib.invalidate_caches()


def imported(setting: str, module: str) -> ModuleType:
    """Import the module that a setting names.

    Raises:
        UserError: there is none, or it raises whatever it may.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and f"{module}.".startswith(f"{error.name}."):
            raise UserError(
                f"{setting}: there is no module '{error.name}' in {Path.cwd()} or elsewhere where "
                "Python looks. Go to the folder it is in, or name that in PYTHONPATH"
            ) from None
        raise _raised(setting, module, error) from error
    except (Exception, SystemExit) as error:
        raise _raised(setting, module, error) from error


def admit(setting: str, module: str, recorded: Path | None) -> None:
    """Make sure that a module which a stored run names can be imported, and may be.

    Args:
        setting: What names it.
        module: Its name.
        recorded: The folder it was in when the run began, if that is known.

    Raises:
        UserError: it is not where Python looks, nor in a folder trained from before.
    """
    top = module.partition(".")[0]
    if top in sys.modules:
        return
    importlib.invalidate_caches()
    if _is_file(find_spec(top)):
        return
    candidates = [folder for folder in (recorded, Path.cwd()) if folder is not None]
    found = [folder for folder in candidates if PathFinder.find_spec(top, [str(folder)])]
    for folder in found:
        if is_trusted(folder):
            search(folder)
            return
    if found:
        raise UserError(
            f"{setting}: '{module}' in {found[0]} is code that a stored run names, and no run of "
            f"yours began there. If you trust it, name the folder in PYTHONPATH"
        )
    where = f"it was in {recorded}" if recorded else "where it was is not recorded"
    raise UserError(
        f"{setting}: there is no module '{module}' where Python looks, and {where}. "
        "Name its folder in PYTHONPATH"
    )


def folder_of(module: str) -> Path | None:
    """Return the folder in which Python has found an imported module, None where it is no file."""
    top = sys.modules.get(module.partition(".")[0])
    places = [*getattr(top, "__path__", ()), getattr(top, "__file__", None)]
    return Path(places[0]).resolve().parent if places[0] else None


def sha256_of(module: str) -> str:
    """Return the sha256 of an imported module's source; of all of a package."""
    digest = hashlib.sha256()
    for file in _files(module):
        digest.update(f"{file.name} {file.stat().st_size}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def trust(folder: Path) -> None:
    """Remember that this user trains with code from a folder, as far as that can be written."""
    folders = trusted_folders()
    if str(folder) in folders:
        return
    with contextlib.suppress(OSError):
        file = _trust_file()
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
        partial.write_text(json.dumps([*folders, str(folder)], indent=2) + "\n")
        partial.replace(file)


def is_trusted(folder: Path) -> bool:
    """Return whether this user has trained with code from a folder."""
    return str(folder.resolve()) in trusted_folders()


def trusted_folders() -> list[str]:
    """Return the folders that this user has trained from."""
    try:
        found = json.loads(_trust_file().read_text())
    except (OSError, ValueError):
        return []
    return [folder for folder in found if isinstance(folder, str)] if type(found) is list else []


def _trust_file() -> Path:
    home = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return Path(home, "helm", "trusted_folders.json")


def _is_file(spec: ModuleSpec | None) -> bool:
    """Return whether a module has a file of its own; any folder would do as a package without."""
    return spec is not None and spec.origin is not None


def _files(module: str) -> Iterator[Path]:
    top = sys.modules[module.partition(".")[0]]
    for folder in getattr(top, "__path__", ()):
        yield from sorted(Path(folder).rglob("*.py"))
    if not hasattr(top, "__path__") and getattr(top, "__file__", None):
        yield Path(str(top.__file__))


def _raised(setting: str, module: str, error: BaseException) -> UserError:
    """Return the error for a module that cannot be imported, with the last place in its code."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [(frame.filename, frame.lineno) for frame in frames if frame.filename[0] != "<"]
    reason, place = str(error), places[-1]
    if isinstance(error, SyntaxError):
        reason, place = error.msg, (str(error.filename), error.lineno)
    told = ": ".join(filter(None, (type(error).__name__, *reason.splitlines()[:1])))
    return UserError(f"{setting}: importing {module} raised {told} ({place[0]}, line {place[1]})")
