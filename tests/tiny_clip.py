"""Small CLIP models of open_clip's own classes, random, in the published file format."""

import functools
import json
import tempfile
from pathlib import Path

import torch

from models.clip import load_encoder
from models.language.files import find_model
from models.word_embeddings import prepare
from tests.golden_data import GOLDEN

TEXT = {"context_length": 77, "vocab_size": 49408, "width": 8, "heads": 2, "layers": 2}
CONFIGS = {
    "tiny-vit": {
        "embed_dim": 16,
        "vision_cfg": {
            "image_size": 32,
            "patch_size": 16,
            "width": 32,
            "head_width": 16,
            "layers": 2,
        },
        "text_cfg": TEXT,
    },
    "tiny-resnet": {
        "embed_dim": 24,
        "vision_cfg": {"image_size": 32, "patch_size": None, "width": 8, "layers": [1, 1, 1, 1]},
        "text_cfg": TEXT,
    },
}


@functools.cache
def _folder():
    """Return a folder that lives as long as the process; open_clip knows the models in it."""
    import open_clip

    folder = tempfile.TemporaryDirectory()
    for name, config in CONFIGS.items():
        (Path(folder.name) / f"{name}.json").write_text(json.dumps(config))
    open_clip.add_model_config(folder.name)
    return folder


@functools.cache
def tiny_clip(name="tiny-vit", seed=0):
    """Return the checkpoint file of a random model; open_clip knows the model by its name."""
    import open_clip
    from safetensors.torch import save_file

    path = Path(_folder().name) / f"{name}_{seed}.safetensors"
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = open_clip.create_model(name, pretrained_text=False)
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, path)
    return path


def tiny_encoder(name="tiny-vit", seed=0):
    """Return a random encoder, loaded the way published ones are."""
    return load_encoder(name, str(tiny_clip(name, seed)))


@functools.cache
def tiny_embeddings():
    """Return the file of embeddings for tiny-vit and the golden Transformer-XL."""
    language_model = find_model(GOLDEN / "transfo_xl_k1")
    return prepare(tiny_encoder(), language_model, "minigrid", Path(_folder().name))


def tiny_settings(model):
    """Return the settings of an agent with tiny models."""
    model = model.rpartition(":")[2]  # one of a user's own is named as ours
    settings = {"language_model": str(GOLDEN / "transfo_xl_k1")} if "HELM" in model else {}
    if model in ("HELMv2", "SHELM"):
        settings |= {"clip_encoder": "tiny-vit", "clip_pretrained": str(tiny_clip())}
    if model == "SHELM":
        settings |= {"embeddings": str(tiny_embeddings()), "topk": 2}
    return settings
