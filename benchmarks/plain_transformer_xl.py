"""The straightforward Transformer-XL memory: the yardstick of `benchmarks.language_memory`.

It remembers the inputs of every layer, M slots each, and computes the keys and values of all of
them, and the positions' projections, anew at every step (Dai et al. 2019, arXiv:1901.02860).
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from models.language.model_files import PublishedModel


class PlainTransformerXL:
    """Transformer-XL with the memory as the paper writes it: slots of layer inputs."""

    def __init__(self, published: PublishedModel, mem_len: int) -> None:
        self.config = published.config()
        self.mem_len = mem_len
        self.weights = {
            name.removeprefix("transformer."): tensor
            for name, tensor in published.weights().items()
        }

    def initial_memory(self, n_envs: int) -> Tensor:
        """Return empty slots of every layer.  [L, N, M, D]"""
        return torch.zeros(self.config["n_layer"], n_envs, self.mem_len, self.config["d_model"])

    @torch.no_grad()
    def step(self, tokens: Tensor, slots: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Read tokens [N, K, D] and return the hidden state [N, D] and the new slots."""
        slots[:, starts] = 0
        hidden = tokens
        inputs = []
        for layer in range(self.config["n_layer"]):
            seen = torch.cat([slots[layer], hidden], dim=1)
            inputs.append(seen[:, -self.mem_len :])
            hidden = self._layer(layer, hidden, seen)
        return hidden[:, -1], torch.stack(inputs)

    def _layer(self, layer: int, hidden: Tensor, seen: Tensor) -> Tensor:
        mixed = self._attention(layer, seen, hidden.shape[1])
        hidden = self._norm(
            layer, "dec_attn", hidden + mixed @ self._get(layer, "dec_attn.o_net").T
        )
        inner = functional.linear(hidden, *self._linear(layer, "pos_ff.CoreNet.0")).relu()
        change = functional.linear(inner, *self._linear(layer, "pos_ff.CoreNet.3"))
        return self._norm(layer, "pos_ff", hidden + change)

    def _attention(self, layer: int, seen: Tensor, n_new: int) -> Tensor:
        """Return what the heads of the last `n_new` of the seen tokens [N, M+K, D] find."""
        n_seen, n_head, width = seen.shape[1], self.config["n_head"], self.config["d_head"]
        qkv = functional.linear(seen, self._get(layer, "dec_attn.qkv_net"))
        queries, keys, values = qkv.unflatten(-1, (3, n_head, width)).unbind(2)
        queries = queries[:, -n_new:]
        waves = self._sinusoids(n_seen)
        positions = functional.linear(waves, self._get(layer, "dec_attn.r_net"))
        positions = positions.unflatten(-1, (n_head, width))
        content = queries + self.weights[f"layers.{layer}.dec_attn.r_w_bias"]
        placed = queries + self.weights[f"layers.{layer}.dec_attn.r_r_bias"]
        scores = torch.einsum("nihd,njhd->nhij", content, keys)
        # Distance of column j from new token i; what is not among the last M is masked.
        distances = torch.arange(n_new)[:, None] + n_seen - n_new - torch.arange(n_seen)
        by_distance = torch.einsum("nihd,mhd->nhim", placed, positions)
        index = distances.clamp(0, n_seen - 1).expand_as(scores)
        scores = (scores + by_distance.gather(-1, index)) / math.sqrt(width)
        hidden_columns = (distances < 0) | (distances >= self.mem_len)
        weights = scores.masked_fill(hidden_columns, -math.inf).softmax(-1)
        return torch.einsum("nhij,njhd->nihd", weights, values).flatten(2)

    def _sinusoids(self, n_distances: int) -> Tensor:
        """Return sin and cos of the distances 0..n-1.  [n, D]"""
        width = self.config["d_model"]
        distances = torch.arange(float(n_distances)).clamp(max=self.config["clamp_len"])
        angles = distances[:, None] / 10000 ** (torch.arange(0.0, width, 2) / width)
        return torch.cat([angles.sin(), angles.cos()], dim=-1)

    def _get(self, layer: int, name: str) -> Tensor:
        return self.weights[f"layers.{layer}.{name}.weight"]

    def _linear(self, layer: int, name: str) -> tuple[Tensor, Tensor]:
        return self._get(layer, name), self.weights[f"layers.{layer}.{name}.bias"]

    def _norm(self, layer: int, name: str, rows: Tensor) -> Tensor:
        weight, bias = self._linear(layer, f"{name}.layer_norm")
        epsilon = self.config["layer_norm_epsilon"]
        return functional.layer_norm(rows, weight.shape, weight, bias, epsilon)
