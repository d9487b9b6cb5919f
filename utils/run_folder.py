"""The folder of a run: made whole before the first step, described, locked, found again."""

import contextlib
import dataclasses
import datetime
import errno
import fcntl
import hashlib
import importlib.metadata
import itertools
import json
import logging
import os
import platform
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from utils.errors import UserError
from utils.files import (
    check_without_links,
    folder_name,
    keep_copy,
    open_without_waiting,
    written_whole,
)
from utils.settings import Config, completed, read_json_object, settings_without_effect
from utils.starting import typed
from utils.stored_run import (
    BEGUN_HERE,
    DESCRIPTION,
    INIT_FROM,
    begun_here,
    check_outside,
    describe_user_modules,
    description_of,
    stored_config,
)

EXPERIMENTS = Path("experiments")
SETTINGS, LOCK = "config.json", "lock"
LONGEST_NAME = 120  # file systems allow 255 bytes for one name
ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    *("torch", "numpy", "gymnasium", "minigrid", "envpool", "miniworld"),
    *("open_clip_torch", "transformers"),
)
HARDWARE = ("cpu", "threads", "gpus", "cuda")  # of another order of sums come other last bits
NOT_TRAINING = ("tests", "benchmarks")
GIB = 2**30

log = logging.getLogger(__name__)


def default_run_id(overrides: Iterable[str], seed: int) -> str:
    parts = [text for text in overrides if not text.startswith(("seed=", "model=", "env="))]
    name = "_".join([*parts, f"seed={seed}"])
    # The end is kept: it has the seed, which tells most runs apart.
    return re.sub(r"[^A-Za-z0-9=.+_-]+", "-", name).strip(".-")[-LONGEST_NAME:]


def create_run_folder(
    config: Config,
    run_id: str | None,
    overrides: Iterable[str],
    weights: Mapping[str, str] | None = None,
    begun_with: Mapping[str, object] | None = None,
) -> Path:
    """Create experiments/<model>/<env>/<run-id>/ and describe the run in it.

    Without a run id the overrides and the seed name the folder, with a number behind them where
    an earlier run has that name. The folder appears with its files in it, or not at all.

    Args:
        config: All settings.
        run_id: The folder's name.
        overrides: KEY=VALUE texts.
        weights: sha256 of the pretrained parts, by the setting that names them.
        begun_with: The checkpoint of the agent's first parameters.
    """
    check_run_id(config, run_id)
    folder = folder_of(config, run_id or default_run_id(overrides, config.seed))
    # Unique among the processes of all machines that share the file system.
    unfinished = folder.with_name(f".{socket.gethostname()}.{os.getpid()}.partial")
    try:
        unfinished.mkdir(parents=True, exist_ok=True)
        write_json(unfinished / SETTINGS, dataclasses.asdict(config))
        description = {"command": command(), "started": now(), **describe_basis(config)}
        description |= {"machine": platform.platform(), "weights": dict(weights or {})}
        description["settings"] = dataclasses.asdict(config)
        if begun_with is not None:
            description[INIT_FROM] = dict(begun_with)
        description[BEGUN_HERE] = begun_here(config, description)
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
        raise UserError(
            f"--run-id {run_id!r}: a run id is one folder name of up to 120 letters, digits and "
            "= _ . + -, not starting with a dot or a dash"
        )
    folder = folder_of(config, run_id)
    if folder.exists():
        resume = "" if is_finished(folder) else f", or go on with it: {resume_command(folder)}"
        raise UserError(
            f"--run-id {run_id}: {folder} exists already. Choose another run id{resume}"
        )


def folder_of(config: Config, run_id: str) -> Path:
    return EXPERIMENTS / folder_name(config.model) / folder_name(config.env) / run_id


def is_finished(folder: Path) -> bool:
    return "finished" in description_of(folder)


def resume_command(folder: Path, n_ranks: int | None = None) -> str:
    """Return the command that resumes a run of so many ranks, by default as many as now."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    n_ranks = n_ranks or int(os.environ.get("WORLD_SIZE", 1))
    program = []
    if n_ranks > 1:
        n_machines = max(n_ranks // here, 1) if here > 1 else 1
        machines = [f"--nnodes={n_machines}"] if n_machines > 1 else []
        program = ["torchrun", *machines, f"--nproc-per-node={n_ranks // n_machines}"]
    words = typed("main.py") if n_ranks == 1 else [*program, "main.py"]
    return shlex.join([*words, "--resume", str(folder)])


def recorded_config(folder: Path, trust: bool = False) -> Config:
    """Return the settings of an earlier run, with `trust` also those that name foreign code."""
    path = folder / SETTINGS
    if not path.is_file():
        raise UserError(f"{folder}: not a run folder, it has no {SETTINGS}. Name one of main.py's")
    return stored_config(read_json_object(path), str(path), folder, trust)


def begun_with(folder: Path) -> dict[str, Any] | None:
    """Return the checkpoint that a run began with, from run.json; None for a fresh agent."""
    found = description_of(folder).get(INIT_FROM)
    return found if isinstance(found, dict) else None


def resumed_config(folder: Path, trust: bool) -> Config:
    """Return the settings of a run to be resumed; links and foreign places are refused."""
    check_without_links(folder)
    config, path = recorded_config(folder, trust), folder / SETTINGS
    check_outside(config, read_json_object(path), path, trust, learns=True)
    return config


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    try:
        file = open(folder / LOCK, "a", opener=open_without_waiting)  # noqa: SIM115  below
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{folder}: another run is writing here at this moment. Wait for it or end it"
            ) from None
        yield


def check_settings(folder: Path, config: Config, recorded: Any, where: str) -> None:
    """Raise UserError where a setting with an effect was changed in config.json since the start.

    `recorded` are the settings at the start, from `where`; an earlier version kept none.
    """
    if recorded is None:
        return
    here = dataclasses.asdict(config)
    known = completed(recorded, here) if isinstance(recorded, dict) else {}
    free = settings_without_effect(here)
    names = [name for name, value in here.items() if name not in free and known.get(name) != value]
    if names:
        raise UserError(
            f"{folder}: {SETTINGS} differs from {where} in {', '.join(names)}. "
            "Restore it, or begin another run"
        )


def note_resumption(
    folder: Path, config: Config, env_steps: int, differences: Sequence[str]
) -> list[str]:
    """Add the resumption of a run to run.json, and whether it continues exactly.

    `differences` are those of its state, in words; all differences are returned.
    """
    description, here = _description_to_amend(folder), describe_basis(config)
    # Compared with the part before it: a change is told once, not at every later resumption.
    earlier = description.get("resumed", [])
    differences = [*differences, *basis_differences((earlier or [description])[-1], here)]
    entry = {"env_steps": env_steps, "time": now(), "command": command()}
    entry |= {"exact": not differences, "differences": differences, **here}
    description |= {"resumed": [*earlier, entry]}
    description[BEGUN_HERE] = begun_here(config, description)  # it is the user's run from now on
    write_json(folder / DESCRIPTION, description)
    return differences


def note_end(folder: Path) -> None:
    write_json(folder / DESCRIPTION, _description_to_amend(folder) | {"finished": now()})


def write_json(path: Path, value: object) -> None:
    with written_whole(path) as file:
        file.write((json.dumps(value, indent=2) + "\n").encode())


def _description_to_amend(folder: Path) -> dict[str, Any]:
    path = folder / DESCRIPTION
    try:
        description = read_json_object(path)
        resumed = description.get("resumed", [])
        if isinstance(resumed, list) and all(isinstance(entry, dict) for entry in resumed):
            return description
        problem = f"{path}: 'resumed' is no list of resumptions"
    except UserError as error:
        problem = str(error)
    kept = f"; the damaged file is kept as {keep_copy(path)}" if path.is_file() else ""
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


def basis_differences(before: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    if "source_sha256" not in before:
        return ["the source it was made with is not recorded"]
    found = []
    if before["source_sha256"] != here["source_sha256"]:
        commits = [str(basis.get("git_commit") or "unknown")[:9] for basis in (before, here)]
        which = f"commit {' -> '.join(commits)}" if len(set(commits)) > 1 else "not committed"
        found.append(f"the source has changed ({which})")
    known = before.get("user_modules")
    for module, facts in here["user_modules"].items():
        earlier = known.get(module) if isinstance(known, dict) else None
        if not isinstance(earlier, dict) or earlier.get("sha256") != facts["sha256"]:
            found.append(f"{module} has changed")
    was = _versions(before)
    for name, version in _versions(here).items():
        if was[name] != version:
            found.append(f"{name} {version} instead of {was[name]}")
    return found


def source_sha256() -> str:
    """Return the sha256 of all that can run in a training: the programs and their packages."""
    # All of it rather than the imported modules: they depend on the settings.
    packages = sorted(path.parent for path in ROOT.glob("*/__init__.py"))
    files = [*ROOT.glob("*.py")]
    for package in packages:
        files += [] if package.name in NOT_TRAINING else package.rglob("*.py")
    digest = hashlib.sha256()
    for file in sorted(filter(Path.is_file, files)):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(ROOT)} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def describe_hardware() -> dict[str, object]:
    names: list[str] = []
    with contextlib.suppress(OSError):  # Linux knows the processor's name
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB, 1),
        "gpus": [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())],
        "cuda": torch.version.cuda,
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


def _versions(basis: Mapping[str, Any]) -> dict[str, object]:
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
