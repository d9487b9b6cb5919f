"""Models of published sizes with random weights, for figures that need no trained ones."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.language.files import ModelFiles, find_model

MINILM = "all-MiniLM-L6-v2"
VIT = "ViT-B-16"


class TransformerSize(NamedTuple):
    """The size of a Transformer-XL; the published layers by default.

    Attributes:
        clusters: Tokens and width of each part of its adaptive embedding, frequent ones first.
    """

    n_layer: int = 18
    width: int = 1024
    n_head: int = 16
    inner: int = 4096
    clusters: tuple[tuple[int, int], ...] = ((8, 1024),)

    @property
    def d_head(self) -> int:
        return self.width // self.n_head

    @property
    def n_tokens(self) -> int:
        return sum(n_tokens for n_tokens, _ in self.clusters)


CLUSTERS = ((20_000, 1024), (20_000, 256), (160_000, 64), (67_735, 16))
WITHOUT_VOCABULARY = TransformerSize()
PUBLISHED = TransformerSize(clusters=CLUSTERS)
TINY = TransformerSize(n_layer=2, width=32, n_head=4, inner=48, clusters=((6, 32), (10, 8)))


class RandomTransformerXL(ModelFiles):
    def __init__(self, size: TransformerSize) -> None:
        super().__init__(f"Transformer-XL of {size.n_layer} layers, random weights")
        self.size = size

    def config(self) -> dict[str, Any]:
        size = self.size
        sizes = {"n_layer": size.n_layer, "d_model": size.width, "n_head": size.n_head}
        sizes |= {"d_head": size.d_head, "d_inner": size.inner, "vocab_size": size.n_tokens}
        return {"model_type": "transfo-xl", **sizes, "clamp_len": 1000, "layer_norm_epsilon": 1e-5}

    def weights(self) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(0)
        return {
            name: torch.randn(shape, generator=generator) * 0.02 + name.endswith("norm.weight")
            for name, shape in self._shapes().items()
        }

    def vocabulary(self) -> list[str]:
        return [str(number) for number in range(self.size.n_tokens)]

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        size, width, inner = self.size, self.size.width, self.size.inner
        layer: dict[str, tuple[int, ...]] = {
            "dec_attn.r_w_bias": (size.n_head, size.d_head),
            "dec_attn.r_r_bias": (size.n_head, size.d_head),
            "dec_attn.qkv_net.weight": (3 * width, width),
            "dec_attn.o_net.weight": (width, width),
            "dec_attn.r_net.weight": (width, width),
            "pos_ff.CoreNet.0.weight": (inner, width),
            "pos_ff.CoreNet.0.bias": (inner,),
            "pos_ff.CoreNet.3.weight": (width, inner),
            "pos_ff.CoreNet.3.bias": (width,),
        }
        for part in ("dec_attn", "pos_ff"):
            layer |= {f"{part}.layer_norm.{name}": (width,) for name in ("weight", "bias")}
        layers = range(size.n_layer)
        shapes = {f"layers.{n}.{name}": shape for n in layers for name, shape in layer.items()}
        for number, (n_tokens, thin) in enumerate(size.clusters):
            shapes[f"word_emb.emb_layers.{number}.weight"] = (n_tokens, thin)
            shapes[f"word_emb.emb_projs.{number}"] = (width, thin)
        return shapes


def write_transformer_xl(folder: Path, size: TransformerSize = PUBLISHED) -> list[str]:
    from safetensors.torch import save_file

    model = RandomTransformerXL(size)
    (folder / "config.json").write_text(json.dumps(model.config()))
    (folder / "vocab.txt").write_text("\n".join(model.vocabulary()) + "\n")
    save_file(model.weights(), folder / "model.safetensors")
    return [f"language_model={folder}"]


def write_clip(folder: Path) -> list[str]:
    """Write a random ViT-B-16 and embeddings of its words, and return the settings that use them.

    The words are those it shares with MiniLM; their embeddings are random, since to embed them all
    takes minutes and changes no figure.
    """
    import open_clip
    from safetensors.torch import save_file

    from models.clip import load_encoder
    from models.word_embeddings import PromptEmbeddings, file_name, shared_vocabulary

    torch.manual_seed(0)
    weights = open_clip.create_model(VIT, load_weights=False, pretrained_text=False).state_dict()
    checkpoint = folder / f"{VIT}.safetensors"
    save_file({key: tensor.contiguous() for key, tensor in weights.items()}, checkpoint)
    encoder, files = load_encoder(VIT, str(checkpoint)), find_model(MINILM)
    shared = shared_vocabulary(encoder.vocabulary, files.vocabulary())
    shape = (len(shared), encoder.width)
    embeddings = folder / "embeddings.npz"
    PromptEmbeddings(
        tokens=np.array(list(shared)),
        ids=np.array(list(shared.values()), dtype=np.int64),
        embeddings=np.random.default_rng(0).normal(size=shape).astype(np.float32),
        prompts=np.array(["{}"]),
        encoder=np.array(VIT),
        encoder_fingerprint=np.array(encoder.fingerprint),
        language_model=np.array(file_name(MINILM)),
        language_model_fingerprint=np.array(files.fingerprint()),
        versions=np.array(["random"]),
    ).write(embeddings)
    return [f"clip_encoder={VIT}", f"clip_pretrained={checkpoint}", f"embeddings={embeddings}"]
