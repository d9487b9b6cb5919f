"""Folders: what they are called, and whether one can be written into, asked before long work."""

import os
from pathlib import Path

from utils.errors import UserError

LONGEST_NAME = 255  # bytes that file systems allow for one name


def check_without_links(folder: Path) -> None:
    """Raise UserError where a run folder holds a symbolic link, which may lead anywhere."""
    for entry in sorted(folder.iterdir()) if folder.is_dir() else []:
        if entry.is_symlink():
            raise UserError(
                f"{entry}: a link to {os.readlink(entry)}, and a run folder may not lead out of "
                "itself. Put the file itself in its place, or remove the link"
            )


def folder_name(name: str) -> str:
    """Return what the folder of a model or environment is called: of `module:Name`, the name."""
    return name.rpartition(":")[2].replace("/", "-")


def cache_folder() -> Path:
    """Return the folder of this user for what can be made again; it need not exist yet."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home, "helm")


def check_writable(folder: Path, name: str) -> None:
    """Raise UserError unless the folder, or the nearest there is above it, can be written into.

    Args:
        folder: It need not exist yet.
        name: What the user knows the folder by.
    """
    try:
        os.lstat(folder)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        raise UserError(f"{name} {folder}: cannot be written ({error})") from None
    existing = Path(os.path.abspath(folder))
    while not os.path.lexists(existing) and existing != existing.parent:
        existing = existing.parent
    if not os.path.isdir(existing):
        raise UserError(f"{name} {folder}: {existing} is not a folder. Choose another place")
    if not os.access(
        existing, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids
    ):
        raise UserError(f"{name} {folder}: no permission to write in {existing}")


def check_file(path: Path) -> None:
    """Raise UserError where no file can be written whole, for its name or a folder in its place."""
    partial = path.with_name(f"{path.name}.partial")
    if len(os.fsencode(partial.name)) > LONGEST_NAME:
        raise UserError(
            f"{path}: the name leaves no room for '.partial' within {LONGEST_NAME} bytes. "
            "Choose shorter names, or change fewer settings"
        )
    for each in (path, partial):
        if os.path.isdir(each) and not os.path.islink(each):
            raise UserError(f"{each}: a folder, where a file is to be written. Move it away")
