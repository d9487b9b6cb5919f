"""Transformer-XL and BERT as memories: post-norm layers that read K new tokens at a time.

On a GPU a step is some hundred small kernels, and each ends before the host has sent the next. A
CUDA graph sends them all at once, with the recorded shapes and addresses. So a recorded step reads
the whole ring of slots in the order in which they lie.
"""

import math
import sys
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from models.language import LanguageModel
from models.language.files import ModelConfig, ModelFiles
from models.language.kv_cache import CacheView, KVCache, Ring, join_heads, ring_windows, split_heads
from models.language.layers import (
    ACTIVATIONS,
    AdaptiveEmbeddings,
    DenseEmbeddings,
    FrozenLinear,
    below,
    frozen,
    layer_norm,
    linear,
)
from utils.cuda_graphs import CheckedGraph

Weights = Mapping[str, Tensor]
TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 0.1}  # of a CUDA graph, by `dtype`


@cache
def can_fuse(device: torch.device) -> bool:
    """Try our kernels: they need a GPU, and Triton, which needs a C compiler."""
    if device.type != "cuda":
        return False
    try:
        from models.language import kernels

        rows, slots = torch.zeros(1, 16, device=device), torch.zeros(2, 1, 1, 16, device=device)
        age = torch.zeros(1, dtype=torch.int64, device=device)
        kernels.attend(rows.repeat(1, 3), 1, Ring(slots[0], slots[1], age[0], age, 0), 1.0)
        layer, norm = FrozenLinear(torch.eye(16)), nn.LayerNorm(16)
        kernels.added(rows, layer.to(device), rows, norm.to(device))
    except Exception as error:  # of many kinds
        reason = str(error).partition("\n")[0] or type(error).__name__
        print(f"a language model's layers are not kernels of ours: {reason}", file=sys.stderr)
        return False
    return True


class CausalLayer(nn.Module):
    """Attention to the past and the K new tokens, then a feed-forward network.

    Args:
        n_head: H.
        qkv: D to queries, keys and values of all heads, [3*H*d].
        weights: Of the published model.
        names: Of H*d to D, the normalisation that follows, D to the feed-forward network's width,
            back to D, and the last normalisation.
    """

    scale: float

    def __init__(
        self,
        n_head: int,
        qkv: FrozenLinear,
        weights: Weights,
        names: Sequence[str],
        activation: str,
        epsilon: float,
    ) -> None:
        super().__init__()
        out, norm, inner, outer, last_norm = names
        self.n_head, self.qkv = n_head, qkv
        self.out = linear(weights, out)
        self.norm = layer_norm(weights, norm, epsilon)
        self.inner = linear(weights, inner, activation)
        self.outer = linear(weights, outer)
        self.last_norm = layer_norm(weights, last_norm, epsilon)

    @abstractmethod
    def attention(self, queries: Tensor, window: CacheView) -> Tensor:
        """Return the attention weights of the new tokens' queries [H*N, K, d], which sum to 1.

        The last n columns are the tokens in sight, the new ones last.  [H*N, K, columns]
        """

    def reading(self, attention: Tensor, window: CacheView) -> Tensor:
        """Return the weights of the n tokens' values.  [H*N, K, n]"""
        return attention[..., -window.n_tokens :]

    def forward(self, hidden: Tensor, window: CacheView) -> tuple[Tensor, Tensor]:
        """Read K new tokens, hidden [N, K, D]; write their keys and values into the window.

        Return the layer's output [N, K, D], and the attention [H*N, K, columns].
        """
        n_envs, _, width = hidden.shape
        rows = hidden.reshape(-1, width)
        queries, keys, values = split_heads(self.qkv(rows), self.n_head, n_envs)
        window.write(keys, values)
        attention = self.attention(queries, window)
        mixed = window.mix(self.reading(attention, window))
        rows = self.norm(rows + self.out(join_heads(mixed, self.n_head)))
        rows = self.last_norm(rows + self.outer(self.inner(rows)))
        return rows.view_as(hidden), attention

    def fused(self, rows: Tensor, ring: Ring) -> Tensor:
        """Read one new token as `forward` does, by kernels on a GPU.  [N, D] both"""
        from models.language.kernels import added, attend, product

        (qkv,) = product(rows, self.qkv)
        mixed = attend(qkv, self.n_head, ring, self.scale, self.relative)
        rows = added(mixed, self.out, rows, self.norm)
        (inner,) = product(rows, self.inner)
        return added(inner, self.outer, rows, self.last_norm)

    @property
    def relative(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """What scores depend on beside the content, as `attend` takes it."""
        return None


class LayerStack(LanguageModel):
    """A language model of `CausalLayer`s.

    Attributes:
        sizes: The names in config.json of the number of layers, their width, the numbers of tokens
            and of positions; None where these have no end.
        may_capture: False to leave steps on a GPU unrecorded.
    """

    sizes: ClassVar[tuple[str, str, str, str | None]]
    layers: nn.ModuleList

    def __init__(self, published: ModelFiles, mem_len: int) -> None:
        super().__init__(published, mem_len)
        self.may_capture = True

    @property
    def captures(self) -> bool:
        return self.may_capture and self.device.type == "cuda"

    def _enter(self, tokens: Tensor, ages: Tensor) -> Tensor:
        return tokens

    def _hidden(self, tokens: Tensor, memory: KVCache, ages: Tensor) -> Tensor:
        if not self.captures:
            return super()._hidden(tokens, memory, ages)
        if memory.graph is None:
            # The whole ring from the start: a graph cannot widen it later.
            memory.open(tokens.shape[1])
            slots = slice(0, memory.n_slots)
            rings = memory.keys[:, :, slots], memory.values[:, :, slots]
            memory.graph = self.recorded(rings)
        if not memory.graph.works:
            return super()._hidden(tokens, memory, ages)
        position = torch.full((), memory.position, dtype=torch.int64, device=ages.device)
        return memory.graph(tokens, ages, position)

    def recorded(self, rings: tuple[Tensor, Tensor]) -> CheckedGraph[Tensor]:
        # A step of tokens [N, K, D], ages [N] and a position [] on all layers' keys and values.
        # The host must not look at a number here: a graph would repeat its decision for ever.
        def plain(tokens: Tensor, ages: Tensor, position: Tensor) -> Tensor:
            n_new = tokens.shape[1]
            windows = ring_windows(rings, position, ages, n_new, self._n_visible(n_new))
            return self.read(tokens, ages, windows)[:, -1]

        def fused(tokens: Tensor, ages: Tensor, position: Tensor) -> Tensor:
            if tokens.shape[1] > 1:  # the kernels read one new token
                return plain(tokens, ages, position)
            rows = self._enter(tokens, ages)[:, 0].contiguous()
            for layer, keys, values in zip(self.layers, *rings, strict=True):
                ring = Ring(keys, values, position, ages, self._n_visible(1))
                rows = cast(CausalLayer, layer).fused(rows, ring)
            return rows

        step = fused if can_fuse(rings[0].device) else plain
        name = "a language model's step"
        return CheckedGraph(name, step, plain=plain, tolerance=TOLERANCES[self.dtype])

    def read(self, tokens: Tensor, ages: Tensor, windows: Sequence[CacheView]) -> Tensor:
        hidden = self._enter(tokens, ages)
        for layer, window in zip(self.layers, windows, strict=True):
            hidden = layer(hidden, window)[0]
        return hidden

    def _look(self, tokens: Tensor, ages: Tensor, windows: Sequence[CacheView]) -> Iterator[Tensor]:
        by_head = self.heads[0], len(tokens)
        for _, attention in self._outputs(tokens, ages, windows):
            yield attention.unflatten(0, by_head).transpose(0, 1)  # [N, H, K, columns]

    def _states(
        self, tokens: Tensor, ages: Tensor, windows: Sequence[CacheView]
    ) -> Iterator[Tensor]:
        return (hidden for hidden, _ in self._outputs(tokens, ages, windows))

    def _outputs(
        self, tokens: Tensor, ages: Tensor, windows: Sequence[CacheView]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        hidden = self._enter(tokens, ages)
        for layer, window in zip(self.layers, windows, strict=True):
            hidden, attention = layer(hidden, window)
            yield hidden, attention


class TransformerXL(LayerStack):
    """The frozen Transformer-XL (Dai et al. 2019, arXiv:1901.02860).

    A token i attends to itself and the M-1 tokens before it; with j at distance m,

        score = (q_i + u) . k_j + (q_i + v) . r_m      weights = softmax(score / sqrt(d))

    u and v are learned per layer, r_m is the layer's projection of the sinusoids of m. Before an
    episode's first token the original has slots of zeros: k_j = v_j = 0, yet r_m keeps its share of
    the softmax. So all M distances count from the first step on, and only k and v are cached. The
    result equals recomputing every slot at every step.
    """

    sizes = ("n_layer", "d_model", "vocab_size", None)
    supported: ClassVar = {
        **{"pre_lnorm": [False], "attn_type": [0]},
        **{"same_length": [True], "untie_r": [True]},
    }

    def __init__(self, published: ModelFiles, mem_len: int, n_layer: int | None = None) -> None:
        super().__init__(published, mem_len)
        config = self.config
        weights = {k.removeprefix("transformer."): v for k, v in published.weights().items()}
        self.heads = (config["n_head"], config["d_head"])
        self.embeddings = _embeddings(math.sqrt(config["d_model"]), below(weights, "word_emb."))
        waves = _sinusoids(mem_len, self.width, config.get("clamp_len", -1))
        self.n_layer = config["n_layer"] if n_layer is None else n_layer
        self.layers = nn.ModuleList(
            TransformerXLLayer(config, below(weights, f"layers.{index}."), waves)
            for index in range(self.n_layer)
        )
        self.eval()

    def _n_visible(self, n_new: int) -> int:
        return self.mem_len - 1


class TransformerXLLayer(CausalLayer):
    def __init__(self, config: ModelConfig, weights: Weights, waves: Tensor) -> None:
        n_head, width = config["n_head"], config["d_head"]
        qkv = linear(weights, "dec_attn.qkv_net")
        names = ["dec_attn.o_net", "dec_attn.layer_norm"]
        names += ["pos_ff.CoreNet.0", "pos_ff.CoreNet.3", "pos_ff.layer_norm"]
        super().__init__(n_head, qkv, weights, names, "relu", config["layer_norm_epsilon"])
        self.scale = 1 / math.sqrt(width)
        self.content_bias = frozen(weights["dec_attn.r_w_bias"].view(n_head, 1, width))
        self.position_bias = frozen(weights["dec_attn.r_r_bias"].view(n_head, 1, width))
        positions = weights["dec_attn.r_net.weight"].float() @ waves.t()
        self.positions = frozen(positions.view(n_head, width, -1))  # [H, d, M], farthest first
        self._by_distance: Tensor | None = None  # [H, M, d], where one kernel reads them

    @property
    def relative(self) -> tuple[Tensor, Tensor, Tensor]:
        if self._by_distance is None:
            self._by_distance = self.positions.transpose(1, 2).contiguous()
        return self.content_bias, self.position_bias, self._by_distance

    def attention(self, queries: Tensor, window: CacheView) -> Tensor:
        _, n_new, width = queries.shape
        by_head = queries.view(self.n_head, -1, width)  # [H, N*K, d]
        content = (self.scale * (by_head + self.content_bias)).view_as(queries)
        scores = self.scale * (by_head + self.position_bias) @ self.positions  # [H, N*K, M]
        scores = window.arranged(_by_column(scores.view(len(queries), n_new, -1)))
        scores[..., -window.n_tokens :] += window.mask_finished(window.scores(content), 0.0)
        return scores.softmax(dim=-1)

    def reading(self, attention: Tensor, window: CacheView) -> Tensor:
        # Tokens of ended episodes keep their share of the softmax and are not read.
        return window.mask_finished(super().reading(attention, window).clone(), 0.0)


def _by_column(scores: Tensor) -> Tensor:
    """Return scores by distance [..., K, M] as scores by column [..., K, M-1+K]."""
    # Token i sees columns i to i+M-1, so its row moves i places to the right; -inf elsewhere.
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


def _embeddings(scale: float, parts: Weights) -> AdaptiveEmbeddings | DenseEmbeddings:
    n_clusters = sum(name.startswith("emb_layers.") for name in parts)
    tables = [parts[f"emb_layers.{index}.weight"] for index in range(n_clusters)]
    if len(parts) == 1:  # without projections
        return DenseEmbeddings(tables[0] * scale)
    projections = [parts[f"emb_projs.{index}"] for index in range(n_clusters)]
    return AdaptiveEmbeddings(tables, projections, scale)


class Bert(LayerStack):
    """A frozen BERT (Devlin et al. 2019, arXiv:1810.04805), made causal to keep keys and values.

    Token vectors take the place of word embeddings: the model's own position and type embeddings
    and normalisation follow. A call with K tokens sees a window of min(M + K, P) tokens: older ones
    leave it, and their contribution to younger ones stays. The position counts from the episode's
    start and stays at P-1 once there.

    Attributes:
        prefix: Of the weights' names where the model has a head.
        renamed: Parts of names of weights, and names of settings, with those used here.
        n_unused: Rows of the table of positions before the first position's.
        has_types: Whether there are embeddings of token types.
    """

    n_positions: int
    prefix: ClassVar = "bert."
    renamed: ClassVar[Mapping[str, str]] = {  # old checkpoints have other names
        "LayerNorm.gamma": "LayerNorm.weight",
        "LayerNorm.beta": "LayerNorm.bias",
    }
    n_unused: ClassVar = 0
    has_types: ClassVar = True
    sizes = ("num_hidden_layers", "hidden_size", "vocab_size", "max_position_embeddings")
    supported: ClassVar[Mapping[str, Sequence[object]]] = {
        "hidden_act": list(ACTIVATIONS),
        "position_embedding_type": ["absolute"],
    }

    def __init__(self, published: ModelFiles, mem_len: int, n_layer: int | None = None) -> None:
        super().__init__(published, mem_len)
        config = {self.renamed.get(key, key): value for key, value in self.config.items()}
        weights = {}
        for published_name, tensor in published.weights().items():
            name = published_name.removeprefix(self.prefix)
            for theirs, ours in self.renamed.items():
                name = name.replace(theirs, ours)
            weights[name] = tensor.float()
        n_head = config["num_attention_heads"]
        self.heads = n_head, config["hidden_size"] // n_head
        self.embeddings = DenseEmbeddings(weights["embeddings.word_embeddings.weight"])
        positions = weights["embeddings.position_embeddings.weight"][self.n_unused :]
        if self.has_types:  # every token is of the first type
            positions = positions + weights["embeddings.token_type_embeddings.weight"][0]
        self.positions = frozen(positions)
        self.norm = layer_norm(weights, "embeddings.LayerNorm", config.get("layer_norm_eps", 1e-12))
        self.n_positions = len(positions)
        self.n_layer = config["num_hidden_layers"] if n_layer is None else n_layer
        self.layers = nn.ModuleList(
            BertLayer(config, self.heads, below(weights, f"encoder.layer.{index}."))
            for index in range(self.n_layer)
        )
        self.eval()

    def _enter(self, tokens: Tensor, ages: Tensor) -> Tensor:
        counted = ages[:, None] + torch.arange(tokens.shape[1], device=ages.device)  # [N, K]
        return self.norm(tokens + self.positions[counted.clamp(max=self.n_positions - 1)])

    @torch.no_grad()
    def read_both_ways(self, ids: Tensor) -> Tensor:
        # As BERT was trained; there is no memory.
        n_texts, n_tokens = ids.shape
        n_head, width = self.heads
        keys, values = torch.empty(2, n_head * n_texts, n_tokens, width, device=ids.device)
        # No token counts as older than another: so none is hidden from any.
        order = torch.zeros(n_tokens, dtype=torch.int64, device=ids.device)
        window = CacheView([keys], [values], (keys, values), slice(n_tokens), None, order)
        hidden = self._enter(self.embed(ids), ids.new_zeros(n_texts))
        for layer in self.layers:
            hidden, _ = layer(hidden, window)
        return hidden


class Roberta(Bert):
    """RoBERTa (Liu et al. 2019, arXiv:1907.11692): positions begin behind the padding's."""

    prefix: ClassVar = "roberta."
    supported: ClassVar = {**Bert.supported, "pad_token_id": [1]}
    n_unused: ClassVar = 2


class DistilBert(Bert):
    """DistilBERT (Sanh et al. 2019, arXiv:1910.01108): BERT without token types, names its own."""

    sizes = ("n_layers", "dim", "vocab_size", "max_position_embeddings")
    supported: ClassVar = {"activation": list(ACTIVATIONS)}
    prefix: ClassVar = "distilbert."
    renamed: ClassVar = {
        **{"n_layers": "num_hidden_layers", "n_heads": "num_attention_heads"},
        **{"dim": "hidden_size", "activation": "hidden_act"},
        "transformer.layer.": "encoder.layer.",
        "attention.q_lin": "attention.self.query",
        "attention.k_lin": "attention.self.key",
        "attention.v_lin": "attention.self.value",
        "attention.out_lin": "attention.output.dense",
        **{"ffn.lin1": "intermediate.dense", "ffn.lin2": "output.dense"},
        **{"sa_layer_norm": "attention.output.LayerNorm", "output_layer_norm": "output.LayerNorm"},
    }
    has_types: ClassVar = False


class BertLayer(CausalLayer):
    def __init__(self, config: ModelConfig, heads: tuple[int, int], weights: Weights) -> None:
        parts = [f"attention.self.{name}" for name in ("query", "key", "value")]
        qkv = FrozenLinear(
            torch.cat([weights[f"{part}.weight"] for part in parts]),
            torch.cat([weights[f"{part}.bias"] for part in parts]),
        )
        names = ["attention.output.dense", "attention.output.LayerNorm"]
        names += ["intermediate.dense", "output.dense", "output.LayerNorm"]
        activation, epsilon = config["hidden_act"], config.get("layer_norm_eps", 1e-12)
        super().__init__(heads[0], qkv, weights, names, activation, epsilon)
        self.scale = 1 / math.sqrt(heads[1])

    def attention(self, queries: Tensor, window: CacheView) -> Tensor:
        scores = window.mask_finished(window.scores(self.scale * queries), -math.inf)
        if queries.shape[1] > 1:
            scores.masked_fill_(window.out_of_reach(queries.shape[1]), -math.inf)
        return scores.softmax(dim=-1)
