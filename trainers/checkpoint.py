"""What a checkpoint holds, written whole or not at all, and read without executing anything.

A checkpoint is one `torch.save` of a dictionary of tensors, numbers and text:

    format      version of this layout
    config      every setting of the run
    agent       trained parts, fixed random projection and running statistics
    optimizer   AdamW's state
    env         reward statistics
    env_steps   environment steps behind it
    episodes    returns and lengths of the last episodes

Pretrained models are named by the config and not contained.
"""

import os
from pathlib import Path
from typing import Any

import torch

from utils.errors import UserError

FORMAT = 1
BEST, LAST = "ckpt_best.pt", "ckpt_last.pt"


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint to a temporary file beside its place, then move it there in one step."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        torch.save({"format": FORMAT, **state}, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def find_checkpoint(path: Path) -> Path:
    """Return the checkpoint a user means by a file, or by a run folder: its best, else its last."""
    if path.is_file():
        return path
    if not path.exists():
        raise UserError(
            f"--ckpt-path {path}: no such file or folder. Name a run folder or a checkpoint"
        )
    for name in (BEST, LAST):
        if (path / name).is_file():
            return path / name
    raise UserError(
        f"--ckpt-path {path}: the folder holds neither {BEST} nor {LAST}. "
        "Train with save_ckpt=true, or name a checkpoint file"
    )


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Return a checkpoint's content on the CPU.

    Raises:
        UserError: the file is not a checkpoint of this program.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load documents no set of exceptions for a bad file
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:120]
        raise UserError(f"{path}: not a checkpoint of this program ({reason})") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise UserError(f"{path}: not a checkpoint of format {FORMAT} (found {found})")
    if not {"config", "agent"} <= state.keys():
        raise UserError(f"{path}: not a checkpoint of this program (config or agent is missing)")
    return state
