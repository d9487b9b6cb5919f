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


class Size(NamedTuple):
    """How large a Transformer-XL is; as published unless said.

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
        """Return the width of a head."""
        return self.width // self.n_head

    @property
    def n_tokens(self) -> int:
        """Return V."""
        return sum(n_tokens for n_tokens, _ in self.clusters)


CLUSTERS = ((20_000, 1024), (20_000, 256), (160_000, 64), (67_735, 16))
WITHOUT_VOCABULARY = Size()
PUBLISHED = Size(clusters=CLUSTERS)
TINY = Size(n_layer=2, width=32, n_head=4, inner=48, clusters=((6, 32), (10, 8)))


class RandomTransformerXL(ModelFiles):
    """A Transformer-XL of any size, always the same random weights."""

    def __init__(self, size: Size) -> None:
        super().__init__(f"Transformer-XL of {size.n_layer} layers, random weights")
        self.size = size

    def config(self) -> dict[str, Any]:
        """Return the published settings, the sizes being these."""
        size = self.size
        sizes = {"n_layer": size.n_layer, "d_model": size.width, "n_head": size.n_head}
        sizes |= {"d_head": size.d_head, "d_inner": size.inner, "vocab_size": size.n_tokens}
        return {"model_type": "transfo-xl", **sizes, "clamp_len": 1000, "layer_norm_epsilon": 1e-5}

    def weights(self) -> dict[str, Tensor]:
        """Return random tensors under their published names."""
        generator = torch.Generator().manual_seed(0)
        return {
            name: torch.randn(shape, generator=generator) * 0.02 + name.endswith("norm.weight")
            for name, shape in self._shapes().items()
        }

    def vocabulary(self) -> list[str]:
        """Return a number for every token."""
        return [str(number) for number in range(self.size.n_tokens)]

    def tokenize(self, text: str) -> list[int]:
        """Return a token for every word, by its length."""
        return [len(word) % self.size.n_tokens for word in text.split()]

    def fingerprint(self) -> str:
        """Return where the weights come from."""
        return "random weights of seed 0"

    def write(self, folder: Path) -> None:
        """Write it in the published layout."""
        from safetensors.torch import save_file

        (folder / "config.json").write_text(json.dumps(self.config()))
        (folder / "vocab.txt").write_text("\n".join(self.vocabulary()) + "\n")
        save_file(self.weights(), folder / "model.safetensors")

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        width, inner = self.size.width, self.size.inner
        shapes: dict[str, tuple[int, ...]] = {}
        for number, (n_tokens, thin) in enumerate(self.size.clusters):
            shapes[f"word_emb.emb_layers.{number}.weight"] = (n_tokens, thin)
            shapes[f"word_emb.emb_projs.{number}"] = (width, thin)
        for layer in range(self.size.n_layer):
            attention, forward = f"layers.{layer}.dec_attn.", f"layers.{layer}.pos_ff."
            for bias in ("r_w_bias", "r_r_bias"):
                shapes[f"{attention}{bias}"] = (self.size.n_head, self.size.d_head)
            shapes[f"{attention}qkv_net.weight"] = (3 * width, width)
            shapes[f"{attention}o_net.weight"] = (width, width)
            shapes[f"{attention}r_net.weight"] = (width, width)
            shapes |= {f"{forward}CoreNet.0.weight": (inner, width)}
            shapes |= {f"{forward}CoreNet.0.bias": (inner,)}
            shapes |= {f"{forward}CoreNet.3.weight": (width, inner)}
            shapes |= {f"{forward}CoreNet.3.bias": (width,)}
            for part in (attention, forward):
                shapes |= {f"{part}layer_norm.weight": (width,), f"{part}layer_norm.bias": (width,)}
        return shapes


def write_transformer_xl(folder: Path, size: Size = PUBLISHED) -> list[str]:
    """Write a random Transformer-XL into a folder and return the settings that use it."""
    RandomTransformerXL(size).write(folder)
    return [f"language_model={folder}"]


def write_decoder(folder: Path) -> Path:
    """Write a tiny random Llama that reads texts byte by byte, and return its folder."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    signs = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({sign: number for number, sign in enumerate(signs)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(signs),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():  # far from even odds
            parameter.mul_(4)
    model.save_pretrained(folder)
    return folder


def write_clip(folder: Path, name: str = VIT, language_model: str = MINILM) -> list[str]:
    """Write a random CLIP and where its words lie, and return the settings that use it.

    The words are those the two models share; their embeddings are random, since to embed them all
    takes minutes and changes no figure.
    """
    import open_clip
    from safetensors.torch import save_file

    from models.clip import load_encoder
    from models.word_embeddings import PromptEmbeddings, file_name, shared_vocabulary

    torch.manual_seed(0)
    weights = open_clip.create_model(name, load_weights=False, pretrained_text=False).state_dict()
    checkpoint = folder / f"{name}.safetensors"
    save_file({key: tensor.contiguous() for key, tensor in weights.items()}, checkpoint)
    encoder, files = load_encoder(name, str(checkpoint)), find_model(language_model)
    shared = shared_vocabulary(encoder.vocabulary, files.vocabulary())
    shape = (len(shared), encoder.width)
    embeddings = folder / "embeddings.npz"
    PromptEmbeddings(
        tokens=np.array(list(shared)),
        ids=np.array(list(shared.values()), dtype=np.int64),
        embeddings=np.random.default_rng(0).normal(size=shape).astype(np.float32),
        prompts=np.array(["{}"]),
        encoder=np.array(name),
        encoder_fingerprint=np.array(encoder.fingerprint),
        language_model=np.array(file_name(language_model)),
        language_model_fingerprint=np.array(files.fingerprint()),
        versions=np.array(["random"]),
    ).write(embeddings)
    return [f"clip_encoder={name}", f"clip_pretrained={checkpoint}", f"embeddings={embeddings}"]
