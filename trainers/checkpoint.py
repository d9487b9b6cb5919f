"""What a checkpoint holds, written whole or not at all, and read without executing anything.

A checkpoint is a line of text with its format and the sha256 of what follows: one `torch.save` of
a dictionary of tensors, numbers and text. Every checkpoint holds

    config      every setting of the run
    agent       trained parts, fixed random projection and running statistics
    weights     sha256 of the pretrained parts, which are not contained
    env_steps   environment steps behind it

and ckpt_last.pt all else that a run needs to go on (trainers/run_state.py).
"""

import dataclasses
import hashlib
import logging
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from models.agent import Agent
from utils.config import WITHOUT_EFFECT, Config
from utils.errors import UserError
from utils.files import name_also, written_whole
from utils.run_folder import is_finished, note_end, resume_command
from utils.saved_tensors import load_saved

FORMAT = 2
HELD_BY_ALL = ("config", "agent", "weights", "env_steps")
BEST, LAST, PREVIOUS = "ckpt_best.pt", "ckpt_last.pt", "ckpt_last.previous.pt"
HEADER = "HELM checkpoint {:03d} sha256 {}\n"
UNWRITTEN = HEADER.format(FORMAT, "-" * 64).encode()

log = logging.getLogger(__name__)


def save_checkpoint(path: Path, state: dict[str, Any], previous: Path | None = None) -> None:
    """Write a checkpoint; whatever interrupts the writing, an earlier one stays.

    Args:
        path: Its place.
        state: Tensors, numbers and text.
        previous: Where to keep the checkpoint that stood there; None overwrites it.
    """
    with written_whole(path, previous) as file:
        file.write(UNWRITTEN)
        _torch_save(state, file)
        file.seek(len(UNWRITTEN))
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        file.write(HEADER.format(FORMAT, digest).encode())


def find_checkpoint(path: Path) -> Path:
    """Return the checkpoint a user means by a file, or by a run folder: its best, else its last."""
    if os.path.isfile(path):
        return path
    if not os.path.exists(path):
        raise UserError(
            f"--ckpt-path {path}: no such file or folder. Name a run folder or a checkpoint"
        )
    for name in (BEST, LAST, PREVIOUS):
        if (path / name).is_file():
            return path / name
    raise UserError(
        f"--ckpt-path {path}: the folder holds neither {BEST} nor {LAST}. "
        "Train with save_ckpt=true, or name a checkpoint file"
    )


def last_checkpoint(folder: Path) -> dict[str, Any] | None:
    """Return the last good checkpoint of a run, None if it has written none.

    A damaged last one gives its place to the one before, which the next would else push out.

    Raises:
        UserError: there are checkpoints, and all are damaged.
    """
    problems = []
    for path in (folder / LAST, folder / PREVIOUS):
        if not path.is_file():
            continue
        try:
            checkpoint = load_checkpoint(path)
        except UserError as error:
            problems.append(error)
            continue
        if problems:
            log.warning("%s; going on from the one before", problems[0])
            name_also(path, folder / LAST)
        return checkpoint
    if problems:
        raise problems[0]
    return None


def unfinished_checkpoint(folder: Path, config: Config, n_ranks: int = 1) -> dict[str, Any] | None:
    """Return what a run goes on from, None where nothing has been saved yet.

    Where a run was killed between its last checkpoint and its end, the end is noted in run.json.

    Raises:
        UserError: the run is finished, saves nothing, or its settings are no longer those of the
            checkpoint; or another number of ranks made it; or all its checkpoints are damaged.
    """
    if not config.save_ckpt:
        raise UserError(f"{folder}: a run with save_ckpt=false cannot go on. Begin another")
    checkpoint = last_checkpoint(folder)
    if checkpoint is None:
        return None
    changed = [
        name
        for name, value in dataclasses.asdict(config).items()
        if name not in WITHOUT_EFFECT and checkpoint["config"].get(name) != value
    ]
    if changed:
        raise UserError(
            f"{folder}: config.json differs from the checkpoint in {', '.join(changed)}. "
            "Restore it, or begin another run"
        )
    made_by = 1 + len(checkpoint.get("other_ranks", []))
    if made_by != n_ranks:
        raise UserError(
            f"{folder}: its checkpoint is one of {made_by} rank{'s'[: made_by - 1]}, "
            f"this is {n_ranks}. Go on with: {resume_command(folder, made_by)}"
        )
    if checkpoint["env_steps"] >= config.n_steps:
        if not is_finished(folder):
            note_end(folder)
        raise UserError(
            f"{folder}: this run is finished, it has had its {config.n_steps:,} steps. Play it: "
            f"{shlex.join(['python', 'eval.py', '--ckpt-path', str(folder)])}"
        )
    return checkpoint


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Return a checkpoint's content on the CPU.

    Raises:
        UserError: the file is not a checkpoint of this program, or it is damaged.
    """
    try:
        state = _read(path)
    except UserError:
        raise
    except Exception as error:  # torch.load documents no set of exceptions for a bad file
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:120]
        raise UserError(f"{path}: not a checkpoint of this program ({reason})") from None
    if not isinstance(state, dict) or not all(name in state for name in HELD_BY_ALL):
        raise UserError(
            f"{path}: not a checkpoint of this program (it lacks some of {', '.join(HELD_BY_ALL)})"
        )
    weights = state["weights"]
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights):
        raise UserError(f"{path}: not a checkpoint of this program (its weights have no names)")
    if type(state["env_steps"]) is not int or state["env_steps"] < 0:
        raise UserError(f"{path}: not a checkpoint of this program (env_steps is no count)")
    return state


def restore_agent(agent: Agent, checkpoint: Mapping[str, Any], source: str) -> None:
    """Fill an agent with what a checkpoint holds of it.

    Raises:
        UserError: it is not this agent's, made with other pretrained parts, or not finite.
    """
    check_weights(checkpoint, agent.fingerprints(), source)
    try:
        agent.load_state_dict(checkpoint["agent"])
    except Exception as error:  # a changed state raises about five kinds of errors
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{source}: the agent in it is not the one of its settings ({reason})"
        ) from error
    if not all(tensor.isfinite().all() for tensor in agent.state_dict().values()):
        raise UserError(f"{source}: the agent in it has weights that are not finite numbers")


def check_weights(checkpoint: Mapping[str, Any], found: Mapping[str, str], source: str) -> None:
    """Raise UserError where a checkpoint was made with other pretrained parts.

    Args:
        checkpoint: As loaded.
        found: sha256 of the parts in use, by the setting that names them.
        source: What to call the checkpoint.
    """
    made_with = checkpoint["weights"]
    for setting in sorted(made_with.keys() | found.keys()):
        before, here = (str(parts.get(setting)) for parts in (made_with, found))
        if before != here:
            raise UserError(
                f"{source}: made with another {setting}, '{checkpoint['config'].get(setting)}' "
                f"with sha256 {before[:12]}... (here {here[:12]}...). Restore those weights"
            )


def _torch_save(state: dict[str, Any], file: BinaryIO) -> None:
    """Write like `torch.save`, which hides an error of the disk behind one of its own."""
    try:
        torch.save(state, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def _read(path: Path) -> Any:
    with path.open("rb") as file:
        header = re.fullmatch(
            rb"HELM checkpoint (\d{3}) sha256 ([0-9a-f]{64}|-{64})\n", file.read(len(UNWRITTEN))
        )
        if header is None:
            raise UserError(
                f"{path}: not a checkpoint of format {FORMAT}, "
                "but of an earlier one, or another file"
            )
        if int(header[1]) != FORMAT:
            found = int(header[1])
            raise UserError(f"{path}: not a checkpoint of format {FORMAT} (found {found})")
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != header[2].decode():
            raise UserError(f"{path}: damaged, its content does not have its checksum")
        file.seek(len(UNWRITTEN))
        return load_saved(file)
