"""Settings of a stored run: how far they are followed.

A run folder may come from somebody else, and its settings may lead outside: to code, an address,
or a place to read or write. They are followed where this user has begun the run on this machine,
shown by a signature in run.json made with a key that no run folder holds. Any other run needs the
user's word: --trust for all settings, or a new value for one.
"""

import contextlib
import dataclasses
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from utils.errors import UserError, printable
from utils.settings import (
    Config,
    config_from_dict,
    outside_settings,
    read_json_object,
    read_settings,
)
from utils.user_modules import (
    folder_of,
    has_file,
    is_environment_package,
    is_never_named,
    named_modules,
    parts_of,
    search,
    sha256_of,
)

DESCRIPTION = "run.json"
INIT_FROM = "init_from"  # in run.json: the checkpoint that a run began with
BEGUN_HERE = "begun_here"  # in run.json: the user's own code, and the signature
KEY_BYTES = 32


def description_of(folder: Path) -> dict[str, Any]:
    try:
        return read_json_object(folder / DESCRIPTION)
    except UserError:
        return {}


def describe_user_modules(config: Config) -> dict[str, dict[str, str]]:
    """Return the folder and sha256 of the user's own code that a run names, by module."""
    modules = named_modules(dataclasses.asdict(config)).values()
    folders = {module: folder for module in modules if (folder := folder_of(module))}
    return {
        module: {"folder": str(folder), "sha256": sha256_of(module)}
        for module, folder in folders.items()
    }


def begun_here(config: Config, description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the proof, for run.json, that this user has begun the run here."""
    modules = describe_user_modules(config)
    _make_key()
    signature = _signature(dataclasses.asdict(config), modules, description)
    return {"user_modules": modules, "signature": signature}


def stored_config(values: Any, source: str, folder: Path, trust: bool) -> Config:
    """Return stored settings; the code they name is made ready to be imported, if that is allowed.

    `values` are from the file `source` of the run in `folder`; `trust` allows any code.
    """
    own = _own_modules(values, folder)
    for setting, module in named_modules(values).items() if isinstance(values, dict) else ():
        if setting == "model":
            parts_of(setting, values[setting])  # raises where it has not that form
        _admit(setting, module, source, own, trust)
    return config_from_dict(values, source)


def check_outside(
    config: Config,
    values: Mapping[str, Any],
    source: Path,
    trust: bool,
    given: Collection[str] = (),
    learns: bool = False,
) -> None:
    """Refuse settings of somebody else's run that lead outside; with `trust`, print them.

    Args:
        config: The settings, perhaps changed since they were stored.
        values: As they were stored.
        source: Their file, in the run's folder.
        trust: Whether the user trusts the run.
        given: Names of the settings that the user has given anew.
        learns: Whether the agent goes on learning, or only plays.
    """
    here = dataclasses.asdict(config)
    read = read_settings(config).difference(given)
    leading = [f"{name}={value}" for name, value in _outside(here).items() if name in read]
    start = description_of(source.parent).get(INIT_FROM) if learns else None
    leading += [f"{INIT_FROM}={start.get('checkpoint')}"] if isinstance(start, dict) else []
    if not leading or _own_modules(values, source.parent) is not None:
        return
    if not trust:
        raise UserError(
            f"{source}: of a run that was not begun here by you, and its settings lead outside: "
            f"{', '.join(leading)}. Add --trust to follow them"
            + ("" if learns else ", or give them anew by --var")
        )
    print(printable(f"as {source} says, with {', '.join(leading)}"), flush=True)


def _admit(
    setting: str, module: str, source: str, own: Mapping[str, Any] | None, trust: bool
) -> None:
    """Let Python find a module that a stored run names, or raise UserError.

    It is never the standard library's, nor a package's own program: importing those may start one.
    """
    facts = (own or {}).get(module)
    place = Path(facts["folder"]) if facts else None
    if is_never_named(module):
        raise UserError(
            f"{source}: {setting} names '{module}', which holds no agent and no environment. "
            "Name another run"
        )
    # Unchanged code of one's own run: the user has run it before.
    if place is not None and facts is not None:
        search(place)
        if folder_of(module) == place and sha256_of(module) == facts["sha256"]:
            return
    if trust:
        search(Path.cwd())
    elif setting == "env" and is_environment_package(module):
        return
    if not has_file(module):
        was = f"it was in {place}" if place else "where it was is not recorded"
        raise UserError(
            f"{setting}: there is no module '{module}' where Python looks, and {was}. "
            "Go to the folder it is in, or name that in PYTHONPATH"
        )
    if not trust:
        why = f"'{module}' in {folder_of(module)} has changed since the run began"
        if place is None:
            why = f"'{module}' is code, and the run was not begun here by you"
        elif folder_of(module) != place:
            why = f"'{module}' is now that of {folder_of(module)}, and was that of {place}"
        raise UserError(f"{source}: {setting}: {why}. Add --trust to run it as it is")


def _own_modules(values: Any, folder: Path) -> dict[str, Any] | None:
    description = description_of(folder)
    match description.get(BEGUN_HERE):
        case {"user_modules": dict(modules), "signature": str(found)} if isinstance(values, dict):
            expected = _signature(values, modules, description)
            # In constant time, so that its duration tells nothing of the signature.
            if expected and hmac.compare_digest(expected.encode(), found.encode()):
                return modules
    return None


def _signature(
    values: Mapping[str, Any], modules: Mapping[str, Any], description: Mapping[str, Any]
) -> str | None:
    """Return the signature of all that leads outside, None where the user can keep no key."""
    signed = [_outside(values), named_modules(values), modules, description.get(INIT_FROM)]
    message = json.dumps(signed, sort_keys=True).encode()
    try:
        key = _key_file().read_bytes()
    except OSError:
        return None
    return hmac.new(key, message, hashlib.sha256).hexdigest()


def _outside(values: Mapping[str, Any]) -> dict[str, Any]:
    known = outside_settings()
    return {name: each for name, each in values.items() if name in known and known[name](each)}


def _key_file() -> Path:
    home = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return Path(home, "helm", "key")


def _make_key() -> None:
    """Make this user's key unless there is one; where none can be kept, no run is one's own."""
    file = _key_file()
    if file.exists():
        return
    made = file.with_name(f"key.{os.getpid()}")
    with contextlib.suppress(OSError):  # also: another process was quicker
        file.parent.mkdir(parents=True, exist_ok=True)
        made.touch(0o600)  # before the key is in it: others cannot read it
        made.write_bytes(secrets.token_bytes(KEY_BYTES))
        file.hardlink_to(made)  # fails where a file stands, unlike a renaming
    made.unlink(missing_ok=True)
