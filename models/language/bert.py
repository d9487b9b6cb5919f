"""A BERT-style encoder as a memory (Devlin et al. 2019, arXiv:1810.04805).

Token vectors enter where word embeddings would: the model's own position and type embeddings and
normalisation follow. Attention is causal over the tokens of the running episode, so that keys
and values of the past can be kept.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from models.language.key_value_memory import Window
from models.language.layer_stack import CausalLayer, LayerStack
from models.language.layers import (
    ACTIVATIONS,
    FrozenLinear,
    frozen,
    layer_norm,
    linear,
)
from models.language.model_files import PublishedModel
from models.language.token_embeddings import DenseEmbeddings
from utils.errors import UserError


class Bert(LayerStack):
    """A frozen BERT.

    A call with K tokens sees a window of min(M + K, P) tokens, P being the pretrained positions:
    older tokens leave it, and what they contributed to younger ones stays. The position counts
    from the episode's start and stays at P-1 once there.
    """

    def __init__(self, published: PublishedModel, mem_len: int, n_layer: int | None = None) -> None:
        super().__init__(published, mem_len)
        config = published.config()
        _check(config, self.name)
        weights = _plain_names(published.weights())
        self.heads = _heads(config)
        self.embeddings = DenseEmbeddings(weights["embeddings.word_embeddings.weight"])
        types = weights["embeddings.token_type_embeddings.weight"]
        positions = weights["embeddings.position_embeddings.weight"]
        self.positions = frozen(positions + types[0])  # every token is of the first type
        self.norm = layer_norm(weights, "embeddings.LayerNorm", config["layer_norm_eps"])
        used = config["num_hidden_layers"] if n_layer is None else n_layer
        self.layers = nn.ModuleList(
            BertLayer(config, weights, f"encoder.layer.{index}.") for index in range(used)
        )
        self.eval()

    @property
    def n_positions(self) -> int:
        """Return P."""
        return len(self.positions)

    @property
    def n_past(self) -> int:
        """Return how many past tokens a new one can see at most."""
        return self._n_visible(1)

    def _n_visible(self, n_new: int) -> int:
        return max(min(self.mem_len, self.n_positions - n_new), 0)

    def _enter(self, tokens: Tensor, ages: Tensor) -> Tensor:
        counted = ages[:, None] + torch.arange(tokens.shape[1], device=ages.device)  # [N, K]
        return self.norm(tokens + self.positions[counted.clamp(max=self.n_positions - 1)])

    @torch.no_grad()
    def read_both_ways(self, ids: Tensor) -> Tensor:
        """Return the last layer's outputs for texts whose tokens all see each other, as trained.

        Args:
            ids: Texts of one length, without a memory.  [B, K] int64

        Returns:
            [B, K, D]
        """
        n_texts, n_tokens = ids.shape
        n_head, width = self.heads
        keys, values = torch.empty(2, n_head * n_texts, n_tokens, width, device=ids.device)
        # No token counts as older than another: so none is hidden from any.
        order = torch.zeros(n_tokens, dtype=torch.int64, device=ids.device)
        window = Window([keys], [values], (keys, values), slice(n_tokens), None, order)
        hidden = self._enter(self.embed(ids), ids.new_zeros(n_texts))
        for layer in self.layers:
            hidden = layer(hidden, window).hidden
        return hidden


class BertLayer(CausalLayer):
    """One layer: attention by content."""

    def __init__(
        self, config: Mapping[str, Any], weights: Mapping[str, Tensor], prefix: str
    ) -> None:
        epsilon = config["layer_norm_eps"]
        n_head, width = _heads(config)
        parts = [f"{prefix}attention.self.{name}" for name in ("query", "key", "value")]
        qkv = FrozenLinear(
            torch.cat([weights[f"{part}.weight"] for part in parts]),
            torch.cat([weights[f"{part}.bias"] for part in parts]),
        )
        super().__init__(
            n_head,
            qkv,
            linear(weights, f"{prefix}attention.output.dense"),
            layer_norm(weights, f"{prefix}attention.output.LayerNorm", epsilon),
            linear(weights, f"{prefix}intermediate.dense", config["hidden_act"]),
            linear(weights, f"{prefix}output.dense"),
            layer_norm(weights, f"{prefix}output.LayerNorm", epsilon),
        )
        self.scale = 1 / math.sqrt(width)

    def attention(self, queries: Tensor, window: Window) -> Tensor:
        """Return the weights of the past and the K new tokens."""
        scores = window.hide_ended(window.scores(self.scale * queries), -math.inf)
        if queries.shape[1] > 1:
            window.hide_later(scores)
        return scores.softmax(dim=-1)


def _heads(config: Mapping[str, Any]) -> tuple[int, int]:
    n_head = config["num_attention_heads"]
    return n_head, config["hidden_size"] // n_head


def _plain_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the encoder's tensors under one set of names, whoever saved them."""
    renamed = {}
    for name, tensor in weights.items():
        modern = name.replace("LayerNorm.gamma", "LayerNorm.weight")
        modern = modern.replace("LayerNorm.beta", "LayerNorm.bias")
        renamed[modern.removeprefix("bert.")] = tensor.float()
    return renamed


def _check(config: Mapping[str, Any], name: str) -> None:
    if config["hidden_act"] not in ACTIVATIONS:
        raise UserError(
            f"language model '{name}': config.json has hidden_act={config['hidden_act']}, "
            f"supported are {', '.join(ACTIVATIONS)}."
        )
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise UserError(f"language model '{name}': only absolute positions are supported.")
