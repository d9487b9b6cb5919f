"""A checkpoint as others get it: a file of tensors and JSON in the safetensors format.

It holds what every checkpoint does and nothing that could be run. The tensors are those of the
agent; the header has as text

    checkpoint  JSON of the format, the settings, the weights' sha256 and the steps behind it
    sha256      of that text and of all tensors
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from utils.errors import UserError
from utils.files import written_whole

PUBLISHED = "model.safetensors"  # what a hub expects weights in


def save_published(path: Path, state: Mapping[str, Any], version: int) -> None:
    """Write a checkpoint, whole or not at all.

    Args:
        path: Its place.
        state: What every checkpoint holds.
        version: The format of that.
    """
    from safetensors.torch import save

    described = {name: state[name] for name in ("config", "weights", "env_steps")}
    text = json.dumps({"format": version, **described})
    # Copies: what an agent has under two names would be refused.
    tensors = {name: tensor.clone().contiguous() for name, tensor in state["agent"].items()}
    header = {"format": "pt", "checkpoint": text, "sha256": _digest(text, tensors)}
    with written_whole(path) as file:
        file.write(save(tensors, header))


def load_published(path: Path) -> dict[str, Any]:
    """Return what a checkpoint holds and its "format", on the CPU.

    Raises:
        UserError: the file is damaged, or of another program.
        Exception: it is no file of tensors.
    """
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        header = file.metadata() or {}
        if not header.keys() >= {"checkpoint", "sha256"}:
            raise UserError(f"{path}: not a checkpoint of this program, but another's weights")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if _digest(header["checkpoint"], tensors) != header["sha256"]:
        raise UserError(f"{path}: damaged, its content does not have its checksum")
    return json.loads(header["checkpoint"]) | {"agent": tensors}


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    """Return the sha256 of a text and of tensors with their names, types and shapes."""
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
