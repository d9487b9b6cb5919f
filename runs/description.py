"""What is needed to repeat a run: command, source, versions and machine."""

import dataclasses
import datetime
import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from settings import Config
from utils.user_modules import folder_of, named_modules, sha256_of

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    *("torch", "numpy", "gymnasium", "minigrid", "envpool", "miniworld"),
    *("open_clip_torch", "transformers"),
)
HARDWARE = ("cpu", "threads", "gpus", "cuda")  # of another order of sums come other last bits
NOT_TRAINING = ("tests", "benchmarks")
GIB = 2**30


def describe_run(config: Config, weights: Mapping[str, str]) -> dict[str, object]:
    """Return what run.json says when a run begins.

    Args:
        config: Its settings.
        weights: sha256 of the pretrained parts in use, by the setting that names them.
    """
    return {
        "command": command(),
        "started": now(),
        **describe_basis(config),
        "machine": platform.platform(),
        "weights": dict(weights),
    }


def describe_basis(config: Config) -> dict[str, object]:
    """Return what decides a run's numbers beside its settings: source, versions, hardware."""
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
    """Return in words in what two descriptions differ that decides a run's numbers."""
    if "source_sha256" not in before:
        return ["the source it was made with is not recorded"]
    found = []
    if before["source_sha256"] != here["source_sha256"]:
        commits = [str(basis.get("git_commit") or "unknown")[:9] for basis in (before, here)]
        which = f"commit {' -> '.join(commits)}" if len(set(commits)) > 1 else "not committed"
        found.append(f"the source has changed ({which})")
    versions = [_versions(basis) for basis in (before, here)]
    found += _changed_modules(before, here)
    for name, version in versions[1].items():
        if versions[0].get(name) != version:
            found.append(f"{name} {version} instead of {versions[0].get(name)}")
    return found


def describe_user_modules(config: Config) -> dict[str, dict[str, str]]:
    """Return where the code of the user's own that a run names is, and its sha256, by module."""
    modules = named_modules(dataclasses.asdict(config)).values()
    folders = {module: folder for module in modules if (folder := folder_of(module))}
    return {
        module: {"folder": str(folder), "sha256": sha256_of(module)}
        for module, folder in folders.items()
    }


def source_sha256() -> str:
    """Return the sha256 of all that can run in a training: the programs and their packages."""
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
    """Return the processor, the memory in GiB and the GPUs."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB, 1),
        "gpus": [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())],
        "cuda": torch.version.cuda,
    }


def command() -> list[str]:
    """Return the command line of this process."""
    return [Path(sys.executable).name, *sys.argv]


def now() -> str:
    """Return the time, in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _cpu_model() -> str:
    """Return the processor's name, as Linux has it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _git(*arguments: str) -> str:
    """Return what git says of this source tree, or an empty text where there is no git."""
    git = ["git", "-C", str(ROOT), *arguments]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.rstrip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _versions(basis: Mapping[str, Any]) -> dict[str, object]:
    """Return what a run's numbers depend on beside source and settings, by name."""
    packages, hardware = (
        part if isinstance(part := basis.get(name), dict) else {}
        for name in ("packages", "hardware")
    )
    return {
        "python": basis.get("python"),
        **{name: packages.get(name) for name in PACKAGES},
        **{name: hardware.get(name) for name in HARDWARE},
    }


def _changed_modules(before: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Return in words which modules of the user's own are no longer the same."""
    earlier = before.get("user_modules")
    known = earlier if isinstance(earlier, dict) else {}
    return [
        f"{module} has changed"
        for module, facts in here["user_modules"].items()
        if not isinstance(known.get(module), dict) or known[module].get("sha256") != facts["sha256"]
    ]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
