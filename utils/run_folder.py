"""The folder of a run: made whole before the first step, described, locked, found again.

A folder may come from somebody else, and its settings may lead outside: to code, an address, or a
place to read or write. They are followed where the user's own list, which no run folder holds, has
the run with exactly these settings: the user has begun it, or trusted it, here. Any other run needs
the user's word: --trust for all settings, or a new value for one.
"""

import contextlib
import datetime
import errno
import fcntl
import functools
import hashlib
import importlib.metadata
import itertools
import json
import logging
import os
import platform
import re
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from utils.errors import ROOT, UserError, cli_command, one_line, received
from utils.files import atomic_write, backup_copy, check_plain, folder_name, open_of_run
from utils.given_settings import config_from_dict, read_json_object, with_defaults
from utils.settings import (
    Config,
    Values,
    as_json,
    installed,
    outside_settings,
    read_settings,
    settings_without_effect,
)
from utils.user_modules import (
    GIVEN,
    OWN_PACKAGES,
    PROGRAMS,
    has_file,
    is_environment_package,
    is_never_named,
    module_folder,
    named_modules,
    parts_of,
    search,
    sha256_of,
)

DESCRIPTION = "run.json"
INIT_FROM = "init_from"  # in run.json: the checkpoint that a run began with
ID = "id"  # in run.json: the name of a run in the user's list
UNLISTED = "unlisted"  # there: no list could be kept, and the settings lead outside
RECEIVED = "received"  # in that list, of a module: the run came with it and was trusted
EXPERIMENTS = Path("experiments")
SETTINGS, LOCK = "config.json", "lock"
PUBLISHED = "model.safetensors"  # the name under which a hub expects weights
GONE = {"wandb_project"}  # settings of earlier versions without an effect
LONGEST_NAME = 120  # file systems allow 255 bytes for one name
PACKAGES: tuple[str, ...] = ("torch", "numpy", "gymnasium", "minigrid", "envpool", "miniworld")
PACKAGES += ("open_clip_torch", "transformers")
ENVIRONMENT = "environment"  # in run.json: what tells a given one from others of its name
NO_FACTS: Values = {}
# Of another order of sums come other last bits, and other instructions add in another order. Runs
# of earlier versions have not recorded the instructions, nor what limits them.
INSTRUCTIONS = ("cpu_capability", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
HARDWARE = ("cpu", "threads", "gpus", "cuda", *INSTRUCTIONS)
GIB = 2**30

log = logging.getLogger(__name__)


def default_run_id(overrides: Iterable[str], seed: int, first: Collection[str] = ()) -> str:
    """Return the settings and the seed as a folder's name.

    Too many of them are told apart by a hash: those named in `first` stand before it, then as many
    of the others as there is room for.
    """
    parts = [text for text in overrides if not text.startswith(("seed=", "model=", "env="))]
    name = _joined(*parts, f"seed={seed}")
    if len(name) <= LONGEST_NAME:
        return name
    end = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8], f"seed={seed}"
    kept: list[str] = []
    for part in sorted(parts, key=lambda part: part.partition("=")[0] not in first):
        kept += [part] * (len(_joined(*kept, part, *end)) <= LONGEST_NAME)
    return _joined(*kept, *end)


def _joined(*parts: str) -> str:
    return re.sub(r"[^A-Za-z0-9=.+_-]+", "-", "_".join(parts)).strip(".-")


def create_run_folder(
    config: Config,
    run_id: str | None,
    overrides: Iterable[str],
    weights: Mapping[str, str] | None = None,
    init_checkpoint: Mapping[str, object] | None = None,
    environment: Values = NO_FACTS,
) -> Path:
    """Create experiments/<model>/<env>/<run-id>/ and describe the run in it.

    Without a run id the overrides and the seed name the folder, with a number behind them where
    an earlier run has that name. The folder appears with its files in it, or not at all.

    Args:
        config: All settings.
        run_id: The folder's name.
        overrides: KEY=VALUE texts.
        weights: sha256 of the pretrained parts, by the setting that names them.
        init_checkpoint: The checkpoint of the agent's first parameters.
        environment: What tells a given environment from others of its name.
    """
    check_run_id(config, run_id)
    folder = folder_of(config, run_id or default_run_id(overrides, config.seed))
    # Unique among the processes of all machines that share the file system.
    unfinished = folder.with_name(f".{socket.gethostname()}.{os.getpid()}.partial")
    try:
        unfinished.mkdir(parents=True, exist_ok=True)
        write_json(unfinished / SETTINGS, config.as_dict())
        description = {"command": command(), "started": now(), **describe_basis(config)}
        description |= {"machine": platform.platform(), "weights": dict(weights or {})}
        description["settings"] = config.as_dict()
        description |= {ENVIRONMENT: dict(environment)} if environment else {}
        if init_checkpoint is not None:
            description[INIT_FROM] = dict(init_checkpoint)
        description[ID] = secrets.token_hex(16)
        description |= enlist(config, description)
        write_json(unfinished / DESCRIPTION, description)
        others = (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2))
        names = [folder] if run_id else itertools.chain([folder], others)
        # The last act, so that a folder with a run's name is always whole.
        return _rename_to_free(unfinished, names)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def check_run_id(config: Config, run_id: str | None) -> None:
    """Raise UserError unless a given run id is one plain folder name that is still free."""
    if run_id is None:
        return
    if not re.fullmatch(r"[A-Za-z0-9=_+][A-Za-z0-9=._+-]{0,119}", run_id):
        allowed = "one folder name of up to 120 letters, digits and = _ . + -"
        raise UserError(f"--run-id {run_id!r}: not {allowed}, or it begins with . or -")
    folder = folder_of(config, run_id)
    if folder.exists():
        resume = "" if is_finished(folder) else f", or go on with it: {resume_command(folder)}"
        raise UserError(f"--run-id {run_id}: {folder} exists already. Choose another{resume}")


def folder_of(config: Config, run_id: str) -> Path:
    return EXPERIMENTS / folder_name(config.model) / folder_name(config.env) / run_id


def is_finished(folder: Path) -> bool:
    return "finished" in description_of(folder)


def resume_command(folder: Path, n_ranks: int | None = None) -> str:
    here = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    n_ranks = n_ranks or int(os.environ.get("WORLD_SIZE", 1))
    program = []
    if n_ranks > 1:
        n_machines = max(n_ranks // here, 1) if here > 1 else 1
        machines = [f"--nnodes={n_machines}"] if n_machines > 1 else []
        program = ["torchrun", *machines, f"--nproc-per-node={n_ranks // n_machines}"]
    words = cli_command("main.py") if n_ranks == 1 else [*program, "main.py"]
    return shlex.join([*words, "--resume", str(folder), *trusting(folder)])


def trusting(folder: Path) -> list[str]:
    """Return the option that a run needs which was begun here, where no list can be kept."""
    is_unlisted = description_of(folder).get(UNLISTED) is True
    return ["--trust"] if is_unlisted and not os.access(_user_list(), os.R_OK) else []


def load_run_config(folder: Path, trust: bool = False) -> Config:
    path = folder / SETTINGS
    if not path.is_file():
        raise UserError(f"{folder}: not a run folder, it has no {SETTINGS}. Name one of main.py's")
    return stored_config(read_json_object(path, of_run=True), str(path), folder, trust)


def init_checkpoint(folder: Path) -> dict[str, Any] | None:
    found = description_of(folder).get(INIT_FROM)
    return found if isinstance(found, dict) else None


def resumed_config(folder: Path, trust: bool) -> Config:
    """Return the settings of a run to be resumed; links and foreign places are refused."""
    check_plain(folder, goes_on=True)
    config, path = load_run_config(folder, trust), folder / SETTINGS
    check_outside(config, read_json_object(path, of_run=True), path, trust, learns=True)
    return config


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    try:
        file = open(folder / LOCK, "a", opener=open_of_run)  # noqa: SIM115  below
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{folder}: another run is writing here. Wait, or end it") from None
        yield


def check_settings(
    folder: Path, config: Config, recorded: object, where: str, to_go_on: bool = False
) -> None:
    """Raise UserError where a setting with an effect was changed in config.json since the start.

    `recorded` are the settings at the start, from `where`; an earlier version kept none. `n_steps`
    may be another if it is given anew (`to_go_on`), or run.json says that it was.
    """
    if recorded is None:
        return
    here = config.as_dict()
    known = with_defaults(recorded, here) if isinstance(recorded, dict) else {}
    free = settings_without_effect(here)
    if to_go_on or here["n_steps"] == _n_steps_given_anew(folder):
        free = free | {"n_steps"}
    names = [name for name, value in here.items() if name not in free and known.get(name) != value]
    if names:
        differing = f"{SETTINGS} differs from {where} in {', '.join(names)}"
        raise UserError(f"{folder}: {differing}. Restore it, or begin another run")


def _n_steps_given_anew(folder: Path) -> object:
    """Return n_steps as it was last given to a resumption; it may not have saved anything yet."""
    resumed = description_of(folder).get("resumed")
    for entry in reversed(resumed if isinstance(resumed, list) else []):
        match entry:
            case {"n_steps": {"after": int(after)}}:
                return after
    return None


def record_resume(
    folder: Path,
    config: Config,
    env_steps: int,
    differences: Sequence[str],
    environment: Values = NO_FACTS,
) -> list[str]:
    """Add the resumption of a run to run.json, and whether it continues exactly.

    Where `n_steps` was given anew, config.json gets it, too.

    `differences` are those of its state, in words; all differences are returned.
    """
    description, here = _description_to_amend(folder), describe_basis(config)
    here |= {ENVIRONMENT: dict(environment)} if environment else {}
    # Compared with the part before it: a change is told once, not at every later resumption.
    earlier = description.get("resumed", [])
    differences = [*differences, *basis_differences((earlier or [description])[-1], here)]
    settings = read_json_object(folder / SETTINGS)
    if is_longer := settings.get("n_steps") != config.n_steps:
        differences.append(
            f"n_steps {config.n_steps:,} instead of {as_json(settings.get('n_steps'))}: schedules "
            "go by it"
        )
    entry = {"env_steps": env_steps, "time": now(), "command": command()}
    if is_longer:
        entry |= {"n_steps": {"before": settings.get("n_steps"), "after": config.n_steps}}
        description.pop("finished", None)
    entry |= {"exact": not differences, "differences": differences, **here}
    own = _own_modules(settings, folder)
    description |= {"resumed": [*earlier, entry]}
    # It is the user's run from now on. Code that it was received with stays received.
    modules = describe_user_modules(config)
    came = [name for name in modules if own is None or RECEIVED in own.get(name, ())]
    if not _file_in_list(description):
        description[ID] = secrets.token_hex(16)
    description |= enlist(config, description, came)
    write_json(folder / DESCRIPTION, description)
    if is_longer:  # after run.json, which allows it, so that a kill in between does no harm
        write_json(folder / SETTINGS, settings | {"n_steps": config.n_steps})
    return differences


def mark_finished(folder: Path) -> None:
    write_json(folder / DESCRIPTION, _description_to_amend(folder) | {"finished": now()})


def write_json(path: Path, value: object) -> None:
    with atomic_write(path) as file:
        file.write((json.dumps(value, indent=2) + "\n").encode())


def _description_to_amend(folder: Path) -> dict[str, Any]:
    path = folder / DESCRIPTION
    try:
        description = read_json_object(path, of_run=True)
        resumed = description.get("resumed", [])
        if isinstance(resumed, list) and all(isinstance(entry, dict) for entry in resumed):
            return description
        problem = f"{path}: 'resumed' is no list of resumptions"
    except UserError as error:
        problem = str(error)
    kept = f"; the damaged file is kept as {backup_copy(path)}" if path.is_file() else ""
    log.warning(f"{problem}; the run's first command and source are no longer recorded{kept}")
    return {}


def _rename_to_free(folder: Path, names: Iterable[Path]) -> Path:
    """Give a folder the first free name; other processes may do the same at the moment."""
    for name in names:
        if os.path.lexists(name):
            continue
        try:
            return folder.rename(name)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
    raise FileExistsError(errno.EEXIST, "another run has just taken this name")


def describe_basis(config: Config) -> dict[str, object]:
    changed = _git("status", "--porcelain").splitlines()
    return {
        "git_commit": _git("rev-parse", "HEAD"),
        "git_dirty": bool(changed),
        "git_changed_files": changed,
        "source_sha256": source_sha256(),
        "user_modules": describe_user_modules(config),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "hardware": describe_hardware(),
    }


def basis_differences(before: Values, here: Values) -> list[str]:
    if "source_sha256" not in before:
        return ["the source it was made with is not recorded"]
    found = []
    if before["source_sha256"] != here["source_sha256"]:
        commits = [
            received(str(basis.get("git_commit") or "unknown")[:9]) for basis in (before, here)
        ]
        which = f"commit {' -> '.join(commits)}" if len(set(commits)) > 1 else "not committed"
        found.append(f"the source has changed ({which})")
    known = before.get("user_modules")
    for module, facts in here["user_modules"].items():
        earlier = known.get(module) if isinstance(known, dict) else None
        if not isinstance(earlier, dict) or earlier.get("sha256") != facts["sha256"]:
            found.append(f"{module} has changed")
    given = before.get(ENVIRONMENT)
    for name, value in here.get(ENVIRONMENT, NO_FACTS).items():
        if isinstance(given, dict) and given.get(name, value) != value:
            found.append(f"{ENVIRONMENT}.{name} {as_json(value)} instead of {as_json(given[name])}")
    was, hardware = _versions(before), before.get("hardware")
    for name, version in _versions(here).items():
        is_known = name not in INSTRUCTIONS or (isinstance(hardware, dict) and name in hardware)
        if was[name] != version and is_known:
            found.append(f"{name} {version} instead of {received(was[name])}")
    return found


def source_sha256() -> str:
    """Return the sha256 of all that can run in a training: the programs and their packages."""
    # All of it rather than the imported modules: they depend on the settings.
    files = [ROOT / f"{name}.py" for name in ("helm", *PROGRAMS)]
    for package in OWN_PACKAGES:
        files += (ROOT / package).rglob("*.py")
    digest = hashlib.sha256()
    for file in sorted(filter(Path.is_file, files)):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(ROOT)} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def usable_cores() -> int:
    """Return on how many cores this process may run; where the system cannot tell, all of them."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # of Linux alone
        return os.cpu_count() or 1


def describe_hardware() -> dict[str, object]:
    import torch  # not above: plot.py's --help would wait for it

    names: list[str] = []
    with contextlib.suppress(OSError):  # Linux knows the processor's name
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "threads": torch.get_num_threads(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB, 1),
        "gpus": [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())],
        "cuda": torch.version.cuda,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        **{name: os.environ.get(name) for name in INSTRUCTIONS[1:]},
    }


def command() -> list[str]:
    return [Path(sys.executable).name, *sys.argv]


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _git(*arguments: str) -> str:
    git = ["git", "-C", str(ROOT), *arguments]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.rstrip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _versions(basis: Values) -> dict[str, object]:
    found: dict[str, object] = {"python": basis.get("python")}
    for part, names in (("packages", PACKAGES), ("hardware", HARDWARE)):
        known = basis.get(part)
        found |= {name: known.get(name) if isinstance(known, dict) else None for name in names}
    return found


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def description_of(folder: Path) -> dict[str, Any]:
    try:
        return read_json_object(folder / DESCRIPTION, of_run=True)
    except UserError:
        return {}


def describe_user_modules(config: Config) -> dict[str, dict[str, str]]:
    modules = named_modules(config.as_dict()).values()
    folders = {module: folder for module in modules if (folder := module_folder(module))}
    return {
        module: {"folder": str(folder), "sha256": sha256_of(module)}
        for module, folder in folders.items()
    }


def enlist(config: Config, description: Values, came: Collection[str] = ()) -> dict[str, bool]:
    """Add the run's outside places to the user's list; return an entry for run.json if it fails."""
    # A run that leads nowhere outside needs no place in the list.
    values = config.as_dict()
    leads_to = _leads_to(values, description)
    is_read = not read_settings(config).isdisjoint(leads_to["outside"])
    if not (is_read or leads_to["code"] or leads_to[INIT_FROM]):
        return {}
    modules = describe_user_modules(config)
    for module in came:
        modules[module][RECEIVED] = "yes"
    file = _file_in_list(description)
    assert file is not None, "it has just been named"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {"leads_to": leads_to, "user_modules": modules})
    except OSError:
        log.warning(
            f"{file.parent}: no list of runs can be kept there, and this run's settings lead "
            "outside: --trust alone resumes and plays it. Set XDG_STATE_HOME to a folder that can "
            "be written"
        )
        return {UNLISTED: True}
    return {}


def stored_config(values: Any, source: str, folder: Path, trust: bool) -> Config:
    """Return stored settings; the code they name is made ready to be imported, if that is allowed.

    `values` are from the file `source` of the run in `folder`; `trust` allows any code.
    """
    own = _own_modules(values, folder)
    for setting, module in named_modules(values).items() if isinstance(values, dict) else ():
        if setting != "env":
            parts_of(setting, values[setting])  # raises where it has not that form
        _admit(setting, module, source, own, trust)
    if isinstance(values, dict):
        values = {name: value for name, value in values.items() if name not in GONE}
    return config_from_dict(values, source)


def check_outside(
    config: Config,
    values: Values,
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
    here = config.as_dict()
    read = read_settings(config).difference(given)
    leading = [f"{name}={value}" for name, value in _outside(here).items() if name in read]
    start = description_of(source.parent).get(INIT_FROM) if learns else None
    leading += [f"{INIT_FROM}={start.get('checkpoint')}"] if isinstance(start, dict) else []
    if not leading or _own_modules(values, source.parent) is not None:
        return
    if not config.env.startswith(GIVEN):
        installed().check_env(config.env)  # where there is none, trust would not help
    if not trust:
        raise UserError(
            f"{source}: you did not begin this run here, and its settings lead outside: "
            f"{', '.join(leading)}. Add --trust to follow them"
            + ("" if learns else ", or give other values by --var")
        )
    print(one_line(f"as {source} says, with {', '.join(leading)}"), flush=True)


def _admit(setting: str, module: str, source: str, own: Values | None, trust: bool) -> None:
    """Let Python find a module that a stored run names, or raise UserError."""
    # It is never the standard library's, nor a package's own program: importing those may start
    # one.
    facts = (own or {}).get(module)
    place = Path(facts["folder"]) if facts else None
    if is_never_named(module):
        named = f"{setting} names '{module}', no agent and no environment"
        raise UserError(f"{source}: {named}. Name another run")
    # Code of one's own run, where the user has run it before; an edit of it is the user's.
    if place is not None and facts is not None:
        search(place)
        if module_folder(module) == place:
            is_edited = (found := sha256_of(module)) != facts["sha256"]
            if not is_edited or RECEIVED not in facts:
                if is_edited:
                    _tell_edited(setting, module, place, found)
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
        why = f"'{module}' in {module_folder(module)} has changed since the run began"
        if place is None:
            why = f"'{module}' is code, and you did not begin this run here"
        elif module_folder(module) != place:
            why = f"'{module}' is now that of {module_folder(module)}, and was that of {place}"
        raise UserError(f"{source}: {setting}: {why}. Add --trust to run it as it is")


@functools.cache  # once, though a sweep has many runs of it
def _tell_edited(setting: str, module: str, place: Path, _sha256: str) -> None:
    log.warning(
        f"{setting}: '{module}' in {place} has changed since the run began; it runs as it is now"
    )


def _own_modules(values: object, folder: Path) -> dict[str, Any] | None:
    """Return the code of a run in the user's list; None where it is not there as it is here."""
    description = description_of(folder)
    file = _file_in_list(description)
    if file is None or not file.is_file() or not isinstance(values, dict):
        return None
    known, leads_to = read_json_object(file), _leads_to(values, description)
    is_own = json.dumps(known["leads_to"], sort_keys=True) == json.dumps(leads_to, sort_keys=True)
    return known["user_modules"] if is_own else None


def _leads_to(values: Values, description: Values) -> dict[str, Any]:
    start = description.get(INIT_FROM)
    return {"outside": _outside(values), "code": named_modules(values), INIT_FROM: start}


def _outside(values: Values) -> dict[str, Any]:
    known = outside_settings()
    return {name: each for name, each in values.items() if name in known and known[name](each)}


def _file_in_list(description: Values) -> Path | None:
    """Return the place of a run in the user's list, None without an id; it may be received."""
    name = description.get(ID)
    if not isinstance(name, str) or not re.fullmatch("[0-9a-f]{32}", name):
        return None
    return _user_list() / f"{name}.json"


def _user_list() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state, "helm", "runs")
