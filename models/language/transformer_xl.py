"""Transformer-XL as a memory (Dai et al. 2019, arXiv:1901.02860).

A token i attends to itself and the M-1 tokens before it; with j at distance m,

    score = (q_i + u) . k_j + (q_i + v) . r_m      weights = softmax(score / sqrt(d))

u and v are learned per layer, r_m is the layer's projection of the sinusoids of m. Before an
episode's first token the original has slots of zeros: k_j = v_j = 0, yet r_m keeps its share of
the softmax. So all M distances count from the first step on, and only k and v are cached.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from models.language.key_value_memory import Window
from models.language.layer_stack import CausalLayer, LayerStack
from models.language.layers import frozen, layer_norm, linear
from models.language.model_files import PublishedModel
from models.language.token_embeddings import AdaptiveEmbeddings, DenseEmbeddings, TokenEmbeddings
from utils.errors import UserError

SUPPORTED = {"pre_lnorm": False, "attn_type": 0, "same_length": True, "untie_r": True}


class TransformerXL(LayerStack):
    """The frozen Transformer-XL; its result equals recomputing every slot at every step."""

    def __init__(self, published: PublishedModel, mem_len: int, n_layer: int | None = None) -> None:
        super().__init__(published, mem_len)
        config = published.config()
        _check(config, self.name)
        weights = {
            name.removeprefix("transformer."): tensor
            for name, tensor in published.weights().items()
        }
        self.heads = (config["n_head"], config["d_head"])
        self.embeddings = _embeddings(config, weights)
        waves = _sinusoids(mem_len, self.width, config.get("clamp_len", -1))
        used = config["n_layer"] if n_layer is None else n_layer
        self.layers = nn.ModuleList(
            TransformerXLLayer(config, _below(weights, f"layers.{index}."), waves)
            for index in range(used)
        )
        self.eval()

    @property
    def n_past(self) -> int:
        """Return how many past tokens a new one can see at most."""
        return self.mem_len - 1

    def _enter(self, tokens: Tensor, ages: Tensor) -> Tensor:
        return tokens


class TransformerXLLayer(CausalLayer):
    """One layer: attention by content and by distance."""

    def __init__(
        self, config: Mapping[str, Any], weights: Mapping[str, Tensor], waves: Tensor
    ) -> None:
        epsilon = config["layer_norm_epsilon"]
        n_head, width = config["n_head"], config["d_head"]
        super().__init__(
            n_head,
            linear(weights, "dec_attn.qkv_net"),
            linear(weights, "dec_attn.o_net"),
            layer_norm(weights, "dec_attn.layer_norm", epsilon),
            linear(weights, "pos_ff.CoreNet.0", "relu"),
            linear(weights, "pos_ff.CoreNet.3"),
            layer_norm(weights, "pos_ff.layer_norm", epsilon),
        )
        self.scale = 1 / math.sqrt(width)
        self.content_bias = frozen(weights["dec_attn.r_w_bias"].view(n_head, 1, width))
        self.position_bias = frozen(weights["dec_attn.r_r_bias"].view(n_head, 1, width))
        positions = weights["dec_attn.r_net.weight"].float() @ waves.t()
        self.positions = frozen(positions.view(n_head, width, -1))  # [H, d, M], farthest first

    def attention(self, queries: Tensor, window: Window) -> Tensor:
        """Return the weights of M-1 slots, empty or not, and the K new tokens."""
        _, n_new, width = queries.shape
        by_head = queries.view(self.n_head, -1, width)  # [H, N*K, d]
        content = (self.scale * (by_head + self.content_bias)).view_as(queries)
        scores = self.scale * (by_head + self.position_bias) @ self.positions  # [H, N*K, M]
        scores = window.arranged(_by_column(scores.view(len(queries), n_new, -1)))
        scores[..., -window.n_tokens :] += window.hide_ended(window.scores(content), 0.0)
        return scores.softmax(dim=-1)

    def reading(self, attention: Tensor, window: Window) -> Tensor:
        """Return the weights of the n tokens; ended ones keep their share and are not read."""
        return window.hide_ended(super().reading(attention, window).clone(), 0.0)


def _by_column(scores: Tensor) -> Tensor:
    """Return scores by distance [..., K, M] as scores by column [..., K, M-1+K].

    Token i sees columns i to i+M-1, so its row moves i places to the right; -inf elsewhere.
    """
    *batch, n_new, n_distances = scores.shape
    if n_new == 1:
        return scores
    n_columns = n_distances - 1 + n_new
    # Rows one wider than the result, read with the result's width, move by one each.
    padded = nn.functional.pad(scores, (0, n_new), value=-math.inf).flatten(-2)
    return padded[..., : n_new * n_columns].view(*batch, n_new, n_columns)


def _sinusoids(mem_len: int, width: int, clamp_len: int) -> Tensor:
    """Return sin and cos of the distances M-1..0 at all wavelengths.  [M, D]"""
    distances = torch.arange(mem_len - 1, -1, -1.0)
    if clamp_len > 0:
        distances.clamp_(max=clamp_len)
    frequencies = 1 / (10000 ** (torch.arange(0.0, width, 2) / width))
    angles = torch.outer(distances, frequencies)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def _embeddings(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> TokenEmbeddings:
    scale = math.sqrt(config["d_model"])
    parts = _below(weights, "word_emb.")
    n_clusters = sum(name.startswith("emb_layers.") for name in parts)
    tables = [parts[f"emb_layers.{index}.weight"] for index in range(n_clusters)]
    projections = [parts[f"emb_projs.{index}"] for index in range(n_clusters) if len(parts) > 1]
    if not projections:
        return DenseEmbeddings(tables[0] * scale)
    return AdaptiveEmbeddings(tables, projections, scale)


def _below(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in weights.items()
        if name.startswith(prefix)
    }


def _check(config: Mapping[str, Any], name: str) -> None:
    for key, supported in SUPPORTED.items():
        if config.get(key, supported) != supported:
            raise UserError(
                f"language model '{name}': config.json has {key}={config[key]}, "
                f"supported is {key}={supported}."
            )
