"""A published run by its name on the hub, as a folder of this machine."""

import os
import shutil
from pathlib import Path

from sharing.published_run import FILES
from trainers.checkpoint import PUBLISHED, load_checkpoint
from utils.errors import UserError
from utils.hub import HubError, check_repository_name, hub_snapshot

HUB = "hub:"
DOWNLOADS = Path("downloads")
SHOWN = 12  # signs of a commit


def local_place(text: str) -> Path:
    """Return where a checkpoint lies that is named by its place, or as hub:OWNER/NAME[@REVISION].

    Each commit that comes from the hub becomes a folder, downloads/OWNER/NAME/COMMIT.

    Raises:
        UserError: there is none of this name, the hub is out of reach, or what it has is damaged
            or no checkpoint of this program.
    """
    if not text.startswith(HUB):
        return Path(text)
    repository, _, revision = text.removeprefix(HUB).partition("@")
    try:
        check_repository_name(repository)
        snapshot = hub_snapshot(repository, revision or None, FILES)
        folder = DOWNLOADS / repository / snapshot.name[:SHOWN]
        if folder.exists():
            return folder
        if not _is_sound(snapshot):  # fetched again once: the copy may be what is damaged
            snapshot = hub_snapshot(repository, revision or None, FILES, anew=True)
    except HubError as error:
        raise UserError(f"{text}: {error}") from None
    if not (snapshot / PUBLISHED).is_file():
        raise UserError(f"{text}: the repository has no {PUBLISHED}, so it is no run of publish.py")
    load_checkpoint(snapshot / PUBLISHED)
    _copy(snapshot, folder)
    return folder


def _is_sound(snapshot: Path) -> bool:
    """Return whether what was fetched can be played; what is not there cannot be damaged."""
    if not (snapshot / PUBLISHED).is_file():
        return True
    try:
        load_checkpoint(snapshot / PUBLISHED)
    except UserError:
        return False
    return True


def _copy(snapshot: Path, folder: Path) -> None:
    """Copy the files themselves, where the hub's library keeps links; all of them or none."""
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    unfinished.mkdir(parents=True)
    try:
        for name in FILES:
            if (snapshot / name).is_file():
                shutil.copyfile(snapshot / name, unfinished / name)
        if not folder.exists():
            unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
