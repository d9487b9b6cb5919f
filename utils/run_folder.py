"""The folder of a run and what is written into it before the first step."""

import dataclasses
import datetime
import importlib.metadata
import json
import platform
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from utils.config import Config
from utils.errors import UserError

EXPERIMENTS = Path("experiments")
ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "numpy", "gymnasium", "minigrid", "envpool", "miniworld", "open_clip_torch")
LONGEST_NAME = 120  # file systems allow 255 bytes for one name


def default_run_id(overrides: Iterable[str], seed: int) -> str:
    """Return the overrides and the seed joined to one folder name."""
    parts = [text for text in overrides if not text.startswith(("seed=", "model=", "env="))]
    name = "_".join([*parts, f"seed={seed}"])
    return re.sub(r"[^A-Za-z0-9=.+_-]+", "-", name).strip(".-")[-LONGEST_NAME:]


def create_run_folder(config: Config, run_id: str | None, overrides: Iterable[str]) -> Path:
    """Create experiments/<model>/<env>/<run-id>/ and describe the run in it.

    Without a run id the overrides and the seed name the folder, with a number behind them where
    an earlier run has that name.

    Raises:
        UserError: as `check_run_id`, or the folder cannot be written.
    """
    check_run_id(config, run_id)
    folder = _parent(config) / run_id if run_id else _free_folder(config, overrides)
    try:
        folder.mkdir(parents=True)
        write_json(folder / "config.json", dataclasses.asdict(config))
        write_json(folder / "run.json", _describe_run())
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}") from None
    return folder


def check_run_id(config: Config, run_id: str | None) -> None:
    """Raise UserError unless a given run id is one plain folder name that is still free."""
    if run_id is None:
        return
    if not re.fullmatch(r"[A-Za-z0-9=_+-][A-Za-z0-9=._+-]{0,119}", run_id):
        raise UserError(
            f"--run-id {run_id!r}: a run id is one folder name of up to 120 letters, digits and "
            "= _ . + -, not starting with a dot"
        )
    folder = _parent(config) / run_id
    if folder.exists():
        raise UserError(f"--run-id {run_id}: {folder} exists already. Choose another run id")


def write_json(path: Path, value: object) -> None:
    """Write a value as indented JSON."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _parent(config: Config) -> Path:
    return EXPERIMENTS / config.model / config.env


def _free_folder(config: Config, overrides: Iterable[str]) -> Path:
    name = default_run_id(overrides, config.seed)
    folder, number = _parent(config) / name, 1
    while folder.exists():
        number += 1
        folder = _parent(config) / f"{name}-{number}"
    return folder


def _describe_run() -> dict[str, object]:
    return {
        "command": [Path(sys.executable).name, *sys.argv],
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "git_commit": _git("rev-parse", "HEAD"),
        "git_changed_files": _git("status", "--porcelain").splitlines(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "machine": platform.platform(),
    }


def _git(*arguments: str) -> str:
    """Return what git says of this source tree, or an empty text where there is no git."""
    command = ["git", "-C", str(ROOT), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
