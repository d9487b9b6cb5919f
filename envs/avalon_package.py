"""The package avalon-rl: whether it is here, its modules, and its installer of its engine.

It was written for NumPy 1 and an older gym. What it lacks beside newer ones is put right here, so
that it makes, of a seed, the world that it made before; what it imports is named in
docs/how-to/avalon.md.
"""

import contextlib
import functools
import importlib
import importlib.metadata
import io
import os
import runpy
import sys
from types import ModuleType
from typing import Annotated, Any, Literal

import numpy as np
from scipy.stats import qmc

from utils.errors import UserError, error_text

NAME, VERSION = "avalon-rl", "1.0.2"
FETCH = "python -m envs.avalon_package"
HELP = "See docs/how-to/avalon.md"


def check_ready(env: str) -> None:
    """Raise UserError unless the package is here, in its version, and has its engine."""
    try:
        version = importlib.metadata.version(NAME)
    except importlib.metadata.PackageNotFoundError as error:
        raise UserError(
            f"env: '{env}' needs {NAME} {VERSION}, which is not installed. {HELP}"
        ) from error
    if version != VERSION:
        raise UserError(
            f"env: '{env}' needs {NAME} {VERSION}, and {version} is installed. "
            f"Run: pip install --no-deps {NAME}=={VERSION}"
        )
    try:
        engine = package("datagen.godot_env.interactive_godot_process").GODOT_BINARY_PATH
    except ImportError as error:
        raise UserError(
            f"env: '{env}': {NAME} cannot be imported: {error_text(error)}. {HELP}"
        ) from error
    if not os.access(engine, os.X_OK):
        raise UserError(f"env: '{env}': the engine of Avalon is not at {engine}. Run: {FETCH}")


@functools.cache
def package(name: str) -> Any:
    """Return a module of the package, which was written for NumPy 1 and an older gym."""
    # Annotations alone need nptyping, which cannot be imported beside NumPy 2.
    sys.modules.setdefault("nptyping", _annotations())
    importlib.import_module("loguru").logger.disable("avalon")  # it tells each step of its way
    # The whole of openturns is for one sequence of points; and it would take Ctrl-C for itself.
    sys.modules.setdefault("openturns", ModuleType("openturns"))
    with contextlib.redirect_stderr(io.StringIO()):  # gym says that it is old
        return importlib.import_module(f"avalon.{name}")


@functools.cache
def _annotations() -> ModuleType:
    numbers = dict.fromkeys(("Bool", "Double", "Float", "Float32", "Int32"), float)
    module = ModuleType("nptyping")
    vars(module).update(NDArray=Annotated, Shape=Literal, assert_isinstance=_unchecked, **numbers)
    return module


@functools.cache
def world_makers() -> Any:
    """Return the package's generator of worlds, which makes the worlds that it made before."""
    makers = package("datagen.world_creation.world_generator")
    vars(np).setdefault("float_", np.float64)  # the type of buildings, until NumPy 2
    # Compound worlds take int() of arrays that hold one number, until NumPy 2.4.
    vars(package("datagen.world_creation.worlds.compositional"))["int"] = _whole_number
    region = package("datagen.world_creation.region")
    vars(region)["_create_low_discrepancy_random_points"] = _sobol_points
    return makers


def _whole_number(value: Any) -> int:
    return int(np.asarray(value).item())


def _sobol_points(at_least: int) -> np.ndarray:
    """Return more points than that, the next power of two, in a square from -1 to 1.  [n, 2]"""
    sequence = qmc.Sobol(2, scramble=False)  # openturns' to the bit, which begins a point later
    return 2 * sequence.fast_forward(1).random(2 ** int(at_least).bit_length()) - 1


def _unchecked(value: object, kind: object) -> None:
    pass  # nptyping's check of an array's shape


def fetch() -> None:
    """Run the package's own installer of its engine, which nptyping keeps from running alone."""
    package("datagen.godot_env.interactive_godot_process")
    runpy.run_module("avalon.install_godot_binary", run_name="__main__")


if __name__ == "__main__":
    fetch()
