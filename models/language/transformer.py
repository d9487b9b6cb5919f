"""Transformer-XL and BERT as memories: post-norm layers that read K new tokens at a time.

On a GPU a step is some hundred small kernels, and each is done before the host has sent the next.
A CUDA graph sends them all at once, and does exactly what was recorded: the same shapes at the same
addresses. So a recorded step reads the whole ring of slots in the order in which they lie, and all
that changes from step to step is put into tensors that stay in their places: the tokens, the ages
and the slot that is written next.
"""

import math
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from models.language.files import PublishedModel
from models.language.kv_cache import KeyValueMemory, Window, join_heads, ring_windows, split_heads
from models.language.language_model import LanguageModel
from models.language.layers import (
    ACTIVATIONS,
    AdaptiveEmbeddings,
    DenseEmbeddings,
    FrozenLinear,
    TokenEmbeddings,
    frozen,
    layer_norm,
    linear,
)
from utils.errors import UserError

Read = Callable[[Tensor, Tensor, list[Window]], Tensor]
WARM_UPS = 3  # calls in which libraries set themselves up, before one is recorded
CHECKS = 8  # steps that are taken both ways


class RingStep:
    """The reading of K tokens, given in tensors that stay in their places.

    Args:
        read: What the language model does with tokens, ages and windows.
        tokens: An example of what is read.  [N, K, D]
        memory: Whose ring is read, from now on all of it.
        n_visible: How many past tokens may be seen at most.
    """

    def __init__(self, read: Read, tokens: Tensor, memory: KeyValueMemory, n_visible: int) -> None:
        memory.open(tokens.shape[1])
        self.read, self.n_visible = read, n_visible
        self.keys, self.values = memory.keys, memory.values
        self.n_slots = memory.n_slots
        self.tokens, self.ages = tokens.clone(), memory.ages.clone()
        self.position = torch.tensor(memory.position, device=tokens.device)

    def fits(self, tokens: Tensor, memory: KeyValueMemory) -> bool:
        """Return whether such tokens and this memory are what the tensors were made for."""
        same_ring = memory.keys is self.keys and memory.n_slots == self.n_slots
        return same_ring and tokens.shape == self.tokens.shape

    def put(self, tokens: Tensor, ages: Tensor, position: int) -> None:
        """Say what is read next: tokens [N, K, D], ages [N] before them, the first one's slot."""
        self.tokens.copy_(tokens)
        self.ages.copy_(ages)
        self.position.fill_(position)

    def run(self) -> Tensor:
        """Read what was put, without the host looking at a single number.  [N, D]"""
        rings = self.keys[:, :, : self.n_slots], self.values[:, :, : self.n_slots]
        n_new = self.tokens.shape[1]
        windows = ring_windows(rings, self.position, self.ages, n_new, self.n_visible)
        return self.read(self.tokens, self.ages, windows)


class CapturedStep:
    """A `RingStep` as a graph; compared a few times with the plain step, given up if it differs.

    Args:
        step: What is recorded.
        tolerance: By how much results may differ, as a share of the largest number.

    Attributes:
        step: That.
        works: False once it could not be recorded or has differed.
        reason: Why it does not work; empty while it does.
    """

    def __init__(self, step: RingStep, tolerance: float) -> None:
        self.step, self.tolerance = step, tolerance
        self.works, self.reason, self._n_unchecked = True, "", CHECKS
        try:
            self._replay = recorded(step.run)
        except RuntimeError as error:  # of many kinds, from drivers and libraries
            self._give_up(str(error).partition("\n")[0])

    @property
    def trusted(self) -> bool:
        """Return whether it has agreed with the plain step often enough."""
        return self.works and self._n_unchecked == 0

    def __call__(self, tokens: Tensor, ages: Tensor, position: int) -> Tensor:
        """Read tokens [N, K, D] into the ring, from the given slot on.  [N, D]"""
        self.step.put(tokens, ages, position)
        return self._replay().clone()

    def compare(self, found: Tensor, expected: Tensor) -> None:
        """Take note of what the plain step makes of the same tokens.  [N, D] both"""
        difference = ((found - expected).abs().max() / expected.abs().max()).item()
        self._n_unchecked -= 1
        if not difference <= self.tolerance:
            self._give_up(f"it differs by {difference:.1%} from the plain step")

    def _give_up(self, reason: str) -> None:
        self.works, self.reason = False, reason
        print(f"steps are not replayed as a CUDA graph: {reason}", file=sys.stderr)


def recorded(work: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Return what repeats the work as one CUDA graph; its result is overwritten by each call."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(WARM_UPS):
            work()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay


TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 0.1}  # of a CUDA graph, by `dtype`


class LayerOutput(NamedTuple):
    """What one layer makes of K new tokens."""

    hidden: Tensor  # [N, K, D]
    attention: Tensor  # [H*N, K, columns], the latest token last


class CausalLayer(nn.Module):
    """Attention to the past and the K new tokens, then a feed-forward network.

    Args:
        n_head: H.
        qkv: D to queries, keys and values of all heads, [3*H*d].
        out: What the heads found, [H*d], to D.
        norm: Follows the attention.
        inner: D to the feed-forward network's own width, with its activation.
        outer: That width to D.
        last_norm: Follows the feed-forward network.
    """

    def __init__(
        self,
        n_head: int,
        qkv: FrozenLinear,
        out: FrozenLinear,
        norm: nn.LayerNorm,
        inner: FrozenLinear,
        outer: FrozenLinear,
        last_norm: nn.LayerNorm,
    ) -> None:
        super().__init__()
        self.n_head = n_head
        self.qkv = qkv
        self.out = out
        self.norm = norm
        self.inner = inner
        self.outer = outer
        self.last_norm = last_norm

    @abstractmethod
    def attention(self, queries: Tensor, window: Window) -> Tensor:
        """Return where the new tokens look.

        Args:
            queries: Of the new tokens.  [H*N, K, d]
            window: The n tokens in sight, the new ones last.

        Returns:
            Weights that sum to 1; the last n columns are those tokens.  [H*N, K, columns]
        """

    def reading(self, attention: Tensor, window: Window) -> Tensor:
        """Return the weights with which the n tokens' values are read.  [H*N, K, n]"""
        return attention[..., -window.n_tokens :]

    def forward(self, hidden: Tensor, window: Window) -> LayerOutput:
        """Read K new tokens, hidden [N, K, D], and write their keys and values into the window."""
        n_envs, _, width = hidden.shape
        rows = hidden.reshape(-1, width)
        queries, keys, values = split_heads(self.qkv(rows), self.n_head, n_envs)
        window.write(keys, values)
        attention = self.attention(queries, window)
        mixed = window.mix(self.reading(attention, window))
        rows = self.norm(rows + self.out(join_heads(mixed, self.n_head)))
        rows = self.last_norm(rows + self.outer(self.inner(rows)))
        return LayerOutput(rows.view_as(hidden), attention)


class LayerStack(LanguageModel):
    """A language model whose layers are `CausalLayer`s.

    Attributes:
        layers: Those in use, the first one first.
        may_capture: False to leave steps on a GPU unrecorded.
    """

    layers: nn.ModuleList

    def __init__(self, published: PublishedModel, mem_len: int) -> None:
        super().__init__(published, mem_len)
        self.may_capture = True
        # A step is recorded on the slots of one memory, and is of no use without them.
        self._captured: WeakKeyDictionary[KeyValueMemory, CapturedStep] = WeakKeyDictionary()

    @property
    def n_layer(self) -> int:
        """Return L."""
        return len(self.layers)

    def captured_on(self, memory: KeyValueMemory) -> CapturedStep | None:
        """Return the step that is recorded on a memory's slots, if one is."""
        return self._captured.get(memory)

    @property
    def captures(self) -> bool:
        """Return whether steps are recorded as CUDA graphs: on a GPU."""
        return self.may_capture and next(self.parameters()).is_cuda

    @abstractmethod
    def _enter(self, tokens: Tensor, ages: Tensor) -> Tensor:
        """Return what the first layer reads, given the episodes' ages [N].  [N, K, D]"""

    def _hidden(self, tokens: Tensor, memory: KeyValueMemory, ages: Tensor) -> Tensor:
        if not self.captures:
            return super()._hidden(tokens, memory, ages)
        captured = self.captured_on(memory)
        if captured is None or not captured.step.fits(tokens, memory):
            step = RingStep(self._read, tokens, memory, self._n_visible(tokens.shape[1]))
            self._captured[memory] = captured = CapturedStep(step, TOLERANCES[self.dtype])
        if captured.trusted:
            return captured(tokens, ages, memory.position)
        found = captured(tokens, ages, memory.position) if captured.works else None
        expected = super()._hidden(tokens, memory, ages)  # the plain keys and values stay
        if found is not None:
            captured.compare(found, expected)
        return expected

    def _read(self, tokens: Tensor, ages: Tensor, windows: Sequence[Window]) -> Tensor:
        hidden = tokens
        for output in self._outputs(tokens, ages, windows):
            hidden = output.hidden
        return hidden[:, -1]

    def _look(self, tokens: Tensor, ages: Tensor, windows: Sequence[Window]) -> Iterator[Tensor]:
        n_head, _ = self.heads
        for output in self._outputs(tokens, ages, windows):
            by_head = output.attention.unflatten(0, (n_head, len(tokens)))  # [H, N, K, columns]
            yield by_head.transpose(0, 1)

    def _states(self, tokens: Tensor, ages: Tensor, windows: Sequence[Window]) -> Iterator[Tensor]:
        return (output.hidden for output in self._outputs(tokens, ages, windows))

    def _outputs(
        self, tokens: Tensor, ages: Tensor, windows: Sequence[Window]
    ) -> Iterator[LayerOutput]:
        hidden = self._enter(tokens, ages)
        for layer, window in zip(self.layers, windows, strict=True):
            output = layer(hidden, window)
            hidden = output.hidden
            yield output


SUPPORTED = {"pre_lnorm": False, "attn_type": 0, "same_length": True, "untie_r": True}


class TransformerXL(LayerStack):
    """The frozen Transformer-XL (Dai et al. 2019, arXiv:1901.02860).

    A token i attends to itself and the M-1 tokens before it; with j at distance m,

        score = (q_i + u) . k_j + (q_i + v) . r_m      weights = softmax(score / sqrt(d))

    u and v are learned per layer, r_m is the layer's projection of the sinusoids of m. Before an
    episode's first token the original has slots of zeros: k_j = v_j = 0, yet r_m keeps its share of
    the softmax. So all M distances count from the first step on, and only k and v are cached. The
    result equals recomputing every slot at every step.
    """

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


class Bert(LayerStack):
    """A frozen BERT (Devlin et al. 2019, arXiv:1810.04805), made causal to keep keys and values.

    Token vectors enter where word embeddings would: the model's own position and type embeddings
    and normalisation follow. A call with K tokens sees a window of min(M + K, P) tokens, P being
    the pretrained positions: older tokens leave it, and what they contributed to younger ones
    stays. The position counts from the episode's start and stays at P-1 once there.
    """

    def __init__(self, published: PublishedModel, mem_len: int, n_layer: int | None = None) -> None:
        super().__init__(published, mem_len)
        config = published.config()
        _check_bert(config, self.name)
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


def _check_bert(config: Mapping[str, Any], name: str) -> None:
    if config["hidden_act"] not in ACTIVATIONS:
        raise UserError(
            f"language model '{name}': config.json has hidden_act={config['hidden_act']}, "
            f"supported are {', '.join(ACTIVATIONS)}."
        )
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise UserError(f"language model '{name}': only absolute positions are supported.")
