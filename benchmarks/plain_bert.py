"""The straightforward BERT memory: the yardstick of `benchmarks.minilm`.

It keeps the tokens of the running episodes and reads all of them anew at every step, each seeing
itself and what came before it (Devlin et al. 2019, arXiv:1810.04805).
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from models.language.model_files import PublishedModel


class PlainBert:
    """A BERT that recomputes the whole context; episodes may not outgrow its positions."""

    def __init__(self, published: PublishedModel) -> None:
        self.config = published.config()
        self.weights = published.weights()

    @torch.no_grad()
    def step(
        self, tokens: Tensor, episodes: list[Tensor], starts: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """Read tokens [N, K, D] after N episodes [T_n, D] each.

        Returns:
            The hidden state [N, D], and the episodes with the new tokens.
        """
        begun = [past[:0] if start else past for past, start in zip(episodes, starts, strict=True)]
        episodes = [torch.cat(parts) for parts in zip(begun, tokens, strict=True)]
        # What is filled up comes last, where nothing before it looks.
        hidden = self._enter(torch.nn.utils.rnn.pad_sequence(episodes, batch_first=True))
        for layer in range(self.config["num_hidden_layers"]):
            hidden = self._layer(f"encoder.layer.{layer}.", hidden)
        lasts = torch.tensor([len(episode) - 1 for episode in episodes])
        return hidden[torch.arange(len(episodes)), lasts], episodes

    def _enter(self, tokens: Tensor) -> Tensor:
        """Return tokens [N, T, D] with positions and the first type added, normalised."""
        positions = self.weights["embeddings.position_embeddings.weight"][: tokens.shape[1]]
        types = self.weights["embeddings.token_type_embeddings.weight"][0]
        return self._norm("embeddings.LayerNorm", tokens + positions + types)

    def _layer(self, layer: str, hidden: Tensor) -> Tensor:
        mixed = self._linear(f"{layer}attention.output.dense", self._attention(layer, hidden))
        hidden = self._norm(f"{layer}attention.output.LayerNorm", hidden + mixed)
        inner = functional.gelu(self._linear(f"{layer}intermediate.dense", hidden))
        change = self._linear(f"{layer}output.dense", inner)
        return self._norm(f"{layer}output.LayerNorm", hidden + change)

    def _attention(self, layer: str, hidden: Tensor) -> Tensor:
        """Return what the heads of tokens [N, T, D] find among them and those before.  [N, T, D]"""
        n_head, n_tokens = self.config["num_attention_heads"], hidden.shape[1]
        queries, keys, values = (
            self._linear(f"{layer}attention.self.{name}", hidden).unflatten(-1, (n_head, -1))
            for name in ("query", "key", "value")
        )
        scores = torch.einsum("nihd,njhd->nhij", queries, keys) / math.sqrt(keys.shape[-1])
        later = torch.ones(n_tokens, n_tokens, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, -math.inf).softmax(-1)
        return torch.einsum("nhij,njhd->nihd", weights, values).flatten(2)

    def _linear(self, name: str, rows: Tensor) -> Tensor:
        return functional.linear(rows, *self._get(name))

    def _norm(self, name: str, rows: Tensor) -> Tensor:
        weight, bias = self._get(name)
        return functional.layer_norm(
            rows, weight.shape, weight, bias, self.config["layer_norm_eps"]
        )

    def _get(self, name: str) -> tuple[Tensor, Tensor]:
        return self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
