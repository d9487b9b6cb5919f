"""Packages that an installation may lack, and the command that adds one."""

import importlib.metadata
import importlib.util

from utils.errors import ROOT, UserError

DISTRIBUTION = "helm-rl"
# Modules that are imported, and the extra of pyproject.toml that brings them.
EXTRAS = {
    "crafter": "suites",
    "miniworld": "suites",
    "mujoco": "suites",
    "numba": "suites",
    "opensimplex": "suites",
    "popgym": "suites",
    "pyglet": "suites",
    "imageio": "analysis",
    "imageio_ffmpeg": "analysis",
    "pandas": "analysis",
    "sklearn": "analysis",
    "optuna": "sweeps",
    "ray": "sweeps",
    "wandb": "wandb",
}


def check_installed(module: str, needed_by: str) -> None:
    """Raise UserError where a module is not installed; it is not imported."""
    if importlib.util.find_spec(module) is None:
        raise missing(module, needed_by)


def missing(module: str, needed_by: str) -> UserError:
    """Return the line about a module that is not installed; `needed_by` begins it."""
    top = module.partition(".")[0]
    # Where the program is installed, pip adds the packages of an extra and fetches it no more.
    wanted = f"'{_our_name()}[{EXTRAS[top]}]'" if top in EXTRAS else top
    return UserError(
        f"{needed_by} needs the package '{top}', which is not installed. Run: pip install {wanted}"
    )


def _our_name() -> str:
    try:
        importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return str(ROOT)
    return DISTRIBUTION
