"""Ways to spoil a good file: its bytes, its place, or one value in it."""

import json
import shutil

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from models.word_embeddings import CHECKSUM, PromptEmbeddings
from trainers.checkpoint import load_checkpoint, save_checkpoint
from utils.files import load_saved


def emptied(path):
    path.write_bytes(b"")


def cut(path, share):
    """Keep some share of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])


def halved(path):
    cut(path, 0.5)


def flipped(path, share=0.5):
    """Flip a bit at some share of a file."""
    content = bytearray(path.read_bytes())
    content[int(share * (len(content) - 1))] ^= 1
    path.write_bytes(content)


def removed(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def a_folder(path):
    removed(path)
    path.mkdir()


def endless(path):
    removed(path)
    path.symlink_to("/dev/zero")


def value(keys, new):
    """Return how to give the value at some keys, "a b c", another one: `new` of the old one."""

    def spoil(path):
        content = inner = read(path)
        *outer, last = keys.split()
        for key in outer:
            inner = inner[int(key) if isinstance(inner, list | tuple) or key.isdigit() else key]
        if new is removed:
            del inner[last]
        else:
            inner[last] = new(inner[last])
        write(path, content)

    spoil.__name__ = f"{keys} {new.__name__}"
    return spoil


def read(path):
    """Return the content of a good file."""
    if path.suffix == ".json":
        return json.loads(path.read_text())
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    if path.suffix == ".safetensors":
        return load_file(path)
    return load_checkpoint(path) if path.suffix == ".pt" else load_saved(path)


def write(path, content):
    """Write a file of the kind its ending says; embeddings with a checksum that is right."""
    if path.suffix == ".json":
        path.write_text(json.dumps(content))
    elif path.suffix == ".npz" and CHECKSUM in content:
        PromptEmbeddings(**{k: v for k, v in content.items() if k != CHECKSUM}).write(path)
    elif path.suffix == ".npz":
        np.savez(path, **content)
    elif path.suffix == ".safetensors":
        save_file({name: tensor.contiguous() for name, tensor in content.items()}, path)
    elif path.suffix == ".pt":
        save_checkpoint(path, content)
    else:
        torch.save(content, path)
