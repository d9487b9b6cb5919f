"""Plain loops over Crafter's worlds, compiled by numba and kept on the disk.

numba keeps compiled code per file and does not notice when a function changes that another file's
code has taken in. So all of it lies in a folder named after the sources of all that is compiled.
"""

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

from utils.folders import cache_folder

log = logging.getLogger(__name__)

SOURCES, MARK = "*.py", b"@compiled"
COMPILED = "*.nbc"  # what numba calls its files
N_LETTERS = 16


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function when it is first called, or take what an earlier process compiled."""
    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = before or FOLDER
    try:
        return numba.njit(cache=True)(function)
    except RuntimeError:  # there is no place to write to
        return numba.njit(function)
    finally:
        config.CACHE_DIR = before


def tell_of_compiling() -> None:
    """Say that the first steps will have to wait, where nothing has been compiled yet."""
    config: Any = numba.config
    if not any(Path(config.CACHE_DIR or FOLDER).rglob(COMPILED)):
        log.warning("compiling the rules of Crafter for this machine, once: about half a minute")


def _folder() -> str:
    """Return where compiled code of the present sources is kept."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob(SOURCES)):
        source = path.read_bytes()
        if MARK in source:
            digest.update(source)
    return str(cache_folder() / "crafter" / digest.hexdigest()[:N_LETTERS])


FOLDER = _folder()
