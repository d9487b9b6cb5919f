"""GGUF files, as llama.cpp packs models, written once into a cache in the published layout.

Weights of few bits become float32, the numbers that llama.cpp would compute with. To do so takes
ten seconds or more; what comes out is mapped in no time, by all processes of a machine alike.
"""

import json
import logging
import os
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from utils.errors import UserError
from utils.files import alone_with, cache_folder, check_writable, written_whole

log = logging.getLogger(__name__)

LAYOUT = 1  # counts how what is written below has changed
WEIGHTS = "model.safetensors"


def unpacked(path: Path, sha256: str) -> Path:
    """Return a folder with config.json, tokenizer.json and model.safetensors of a GGUF file.

    Args:
        path: The file.
        sha256: Of the file; what it was unpacked to is found by it.

    Raises:
        UserError: it is no GGUF file, or of a model that the transformers library does not read.
    """
    folder = cache_folder() / "gguf" / f"{sha256[:32]}-{LAYOUT}"
    if (folder / WEIGHTS).is_file():
        return folder
    _check_gguf(path)
    check_writable(folder, "cache")
    folder.mkdir(parents=True, exist_ok=True)
    with alone_with(folder / WEIGHTS):
        if not (folder / WEIGHTS).is_file():
            log.warning("%s: unpacked into %s, once on this machine", path.name, folder)
            _unpack(path, folder)
    return folder


def _check_gguf(path: Path) -> None:
    try:
        import gguf  # noqa: F401 (the transformers library reads with it)
    except ImportError as error:
        raise UserError(f"{path}: needs gguf. Run: python -m pip install gguf") from error
    try:
        with path.open("rb") as file:
            beginning = file.read(4)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from error
    if beginning != b"GGUF":
        raise UserError(f"{path}: not a GGUF file, fetch it again.")


def _unpack(path: Path, folder: Path) -> None:
    """Write tokenizer and settings, then the weights: where these stand, everything does."""
    from safetensors.torch import save_file

    try:
        with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):  # its progress bar
            config, tensors = _read(path)
            tokenizer = _read_tokenizer(path)
    except Exception as error:  # a broken file raises about ten kinds of errors
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise UserError(f"{path}: not a readable GGUF file: {reason[:200]}.") from error
    with written_whole(folder / "config.json") as file:
        file.write(json.dumps(config).encode())
    with written_whole(folder / "tokenizer.json") as file:
        file.write(tokenizer.encode())
    partial = folder / f"{WEIGHTS}.partial"
    save_file(tensors, partial)
    partial.replace(folder / WEIGHTS)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings and the tensors, in float32, under their published names."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    from models.language.published_decoder import configuration

    found = load_gguf_checkpoint(str(path))["config"]
    config = configuration(found, path.name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    tensors = load_gguf_checkpoint(
        str(path), return_tensors=True, model_to_load=model, torch_dtype=torch.float32
    )["tensors"]
    if not tensors:
        raise ValueError(f"no weights of a {found['model_type']} are in it")
    settings = json.loads(config.to_json_string(use_diff=False)) | {"dtype": "float32"}
    return settings, tensors


def _read_tokenizer(path: Path) -> str:
    from transformers.integrations.gguf import convert_gguf_tokenizer, get_gguf_tokenizer

    architecture, vocabulary, _ = get_gguf_tokenizer(str(path))
    return convert_gguf_tokenizer(architecture, vocabulary)[0].to_str()
