"""What is needed to repeat a run: command, source, versions and machine."""

import datetime
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "numpy", "gymnasium", "minigrid", "envpool", "miniworld", "open_clip_torch")
GIB = 2**30


def describe_run(weights: Mapping[str, str]) -> dict[str, object]:
    """Return what run.json says when a run begins.

    Args:
        weights: sha256 of the pretrained parts in use, by the setting that names them.
    """
    changed = _git("status", "--porcelain").splitlines()
    return {
        "command": command(),
        "started": now(),
        "git_commit": _git("rev-parse", "HEAD"),
        "git_dirty": bool(changed),
        "git_changed_files": changed,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "machine": platform.platform(),
        "hardware": describe_hardware(),
        "weights": dict(weights),
    }


def describe_hardware() -> dict[str, object]:
    """Return the processor, the memory in GiB and the GPUs."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
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
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
