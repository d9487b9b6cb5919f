"""Any decoder-only model of the transformers library as a memory.

The library computes, with its own attention; the slots of a `KVCache` take the place of its
cache, a mask hides ended episodes, and every environment counts positions from its episode's start.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer
from transformers.models.auto import modeling_auto as auto
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging

from models.language import LanguageModel
from models.language.files import ModelConfig, ModelFiles, configuration, first_line
from models.language.kv_cache import CacheView
from models.language.layers import DenseEmbeddings, FrozenLinear
from utils.errors import UserError

# Families of the library that are no memory here, and why; the first that holds a type counts.
REFUSED: tuple[tuple[Collection[str], str], ...] = (
    (
        ("mamba", "falcon_mamba", "mamba2", "rwkv", "xlstm"),
        "is recurrent: it has no keys and values to keep",
    ),
    (
        (*auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, "whisper"),
        "has an encoder, which reads a whole text at once, and an episode comes token by token",
    ),
    (
        auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        "is an encoder of another build than bert, roberta and distilbert",
    ),
    (auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES, "reads images, not tokens"),
    (auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, "reads images besides tokens"),
)
DECODERS = {*auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}.difference(*(types for types, _ in REFUSED))
CHANGING_ROTATIONS = {"dynamic", "longrope"}
FULL, SLIDING = "full_attention", "sliding_attention"


def describe(settings: ModelConfig, name: str) -> tuple[int, int, int, int | None]:
    """Return layers, width, tokens and positions; UserError unless it is a supported decoder."""
    config = configuration(settings, name)
    n_positions = positions_of(config, name)
    sliding_window_of(config, name)
    return config.num_hidden_layers, config.hidden_size, config.vocab_size, n_positions


def positions_of(config: PreTrainedConfig, name: str) -> int | None:
    """Return P of learned positions, None of rotary ones; UserError for any others."""
    rotary = getattr(config, "rope_parameters", None)
    if rotary:
        parts = [part for part in (rotary, *rotary.values()) if isinstance(part, Mapping)]
        kinds = {part.get("rope_type", "") for part in parts}
        for kind in sorted(kinds & CHANGING_ROTATIONS):
            raise UserError(
                f"language model '{name}': rotary positions of type '{kind}' change with the "
                "longest episode, so that keys cannot be kept. Choose another model."
            )
        return None
    n_positions = getattr(config, "max_position_embeddings", None)
    if n_positions is None or getattr(config, "rotary_dim", None):
        raise UserError(
            f"language model '{name}': model_type '{config.model_type}' has other positions "
            "than learned ones and unlimited rotary ones. Choose another model."
        )
    return n_positions


def sliding_window_of(config: PreTrainedConfig, name: str) -> dict[str, int | None]:
    """Return the tokens that a layer of each kind sees, the new one included; None for all."""
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or [SLIDING if window else FULL])
    if kinds - {FULL, SLIDING}:
        raise UserError(
            f"language model '{name}': model_type '{config.model_type}' has layers of type "
            f"{', '.join(sorted(kinds - {FULL, SLIDING}))}, which keep more than keys and "
            f"values. Supported are {FULL}, {SLIDING}."
        )
    return {kind: window if kind == SLIDING else None for kind in sorted(kinds)}


def load_published(
    name: str, weights: dict[str, Tensor], config: PreTrainedConfig, with_head: bool = False
) -> PreTrainedModel:
    """Return the model in its published type, `with_head` for the logits of the next token."""
    kinds: Any = auto.MODEL_FOR_CAUSAL_LM_MAPPING if with_head else auto.MODEL_MAPPING
    # The fused attention would leave out the cap of the scores.
    attention = "eager" if getattr(config, "attn_logit_softcapping", None) else None
    try:
        kind: Any = kinds[type(config)]
        with _quiet():
            # In a folder the library would look for weights by rules of its own, and might find
            # others than those of the fingerprint.
            model, report = kind.from_pretrained(
                None,
                config=config,
                state_dict=weights,
                dtype="auto",
                attn_implementation=attention,
                output_loading_info=True,
            )
    except Exception as error:  # weights that do not fit raise about ten kinds of errors
        raise UserError(
            f"language model '{name}': the weights do not load: {first_line(error)}."
        ) from error
    if report["missing_keys"]:
        raise UserError(
            f"language model '{name}': {len(report['missing_keys'])} weights are missing, "
            f"'{min(report['missing_keys'])}' among them."
        )
    return model


def frozen_decoder(decoder: PreTrainedModel) -> PreTrainedModel:
    """Replace linear layers by frozen ones; all other weights become float32."""
    for module in list(decoder.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, FrozenLinear(child.weight, child.bias))
            elif type(child) is Conv1D:  # GPT-2's linear layer, its weight the other way round
                setattr(module, name, FrozenLinear(child.weight.t(), child.bias))
    for module in decoder.modules():
        if not isinstance(module, FrozenLinear):
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.float()
    return decoder.requires_grad_(False)


@contextmanager
def _quiet() -> Iterator[None]:
    # The library would report the head and layers that are left out on purpose.
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def user_error_context(name: str) -> Iterator[None]:
    """Turn any exception of a model of unforeseen build into a UserError."""
    try:
        yield
    except Exception as error:
        raise UserError(
            f"language model '{name}' cannot serve as a memory: {first_line(error)}. "
            "Choose another model."
        ) from error


class Decoder(LanguageModel):
    """A frozen decoder; its result equals reading the tokens in sight all at once.

    A call with K tokens sees a window of M + K tokens: older ones leave it, and their contribution
    to younger ones stays. Layers with a sliding window of their own see no further than that.
    Rotary positions have no end, since only their differences matter. Learned ones (GPT-2) end at
    P: the window is then min(M + K, P), and the position stays at P-1 once there. With fewer layers
    than published the model's last normalisation follows the last one.
    """

    def __init__(self, published: ModelFiles, mem_len: int, n_layer: int | None = None) -> None:
        super().__init__(published, mem_len)
        config = configuration(self.config, self.name)
        self.n_positions = positions_of(config, self.name)
        if n_layer is not None:
            config.num_hidden_layers = n_layer
            if getattr(config, "layer_types", None):
                config.layer_types = config.layer_types[:n_layer]
        self.reach = sliding_window_of(config, self.name)
        decoder = load_published(self.name, published.weights(), config)
        table = decoder.get_input_embeddings().float()
        with torch.no_grad():  # scaled as the model scales its look-ups
            self.embeddings = DenseEmbeddings(table(torch.arange(config.vocab_size)))
        decoder.set_input_embeddings(nn.Identity())  # the table is held once
        self.decoder = frozen_decoder(decoder)
        self.n_layer = config.num_hidden_layers
        with user_error_context(self.name):
            self.heads = self._heads()
        self.eval()

    def pack(self, dtype: torch.dtype = torch.float32) -> Self:
        super().pack(dtype)
        with user_error_context(self.name):
            self._try_out(0.001 if dtype == torch.float32 else 0.1)
        return self

    def read(self, tokens: Tensor, ages: Tensor, windows: list[CacheView]) -> Tensor:
        return self._run(tokens, ages, windows).last_hidden_state

    def _look(self, tokens: Tensor, ages: Tensor, windows: list[CacheView]) -> Iterable[Tensor]:
        with _eager(self.decoder):
            return self._run(tokens, ages, windows, output_attentions=True).attentions

    def _states(self, tokens: Tensor, ages: Tensor, windows: list[CacheView]) -> Iterable[Tensor]:
        return self._run(tokens, ages, windows, output_hidden_states=True).hidden_states[1:]

    def _run(self, tokens: Tensor, ages: Tensor, windows: list[CacheView], **options: Any) -> Any:
        n_new = tokens.shape[1]
        positions = ages[:, None] + torch.arange(n_new, device=ages.device)  # [N, K]
        if self.n_positions is not None:
            positions = positions.clamp(max=self.n_positions - 1)
        masks = {kind: _mask(windows[0], ages, n_new, reach) for kind, reach in self.reach.items()}
        return self.decoder(
            inputs_embeds=tokens,
            position_ids=positions,
            attention_mask=by_kind(masks),
            past_key_values=Cache(layers=[WindowLayer(window, n_new) for window in windows]),
            use_cache=True,
            **options,
        )

    @torch.no_grad()
    def _heads(self) -> tuple[int, int]:
        token = self.embed(torch.zeros(1, 1, dtype=torch.long))
        cache = DynamicCache()
        self.decoder(inputs_embeds=token, past_key_values=cache, use_cache=True)
        layers = [layer for layer in cache.layers if isinstance(layer, DynamicLayer)]
        stored = [tensor for layer in layers for tensor in (layer.keys, layer.values)]
        shapes = {(tensor.shape[1], tensor.shape[3]) for tensor in stored if tensor is not None}
        if len(stored) != 2 * self.n_layer or len(shapes) != 1:
            raise UserError("not every layer keeps keys and values, or their sizes differ")
        return shapes.pop()

    @torch.no_grad()
    def _try_out(self, tolerance: float) -> None:
        """Read two tokens with a memory and without: [A, B] beside an episode that begins at B."""
        ids = torch.tensor([[1], [self.embeddings.n_tokens // 2]], device=self.device)
        first, second = self.embed(ids).unsqueeze(1).expand(2, 2, 1, -1)
        memory = self.initial_memory(2)
        is_first = torch.tensor([False, True], device=self.device)
        self.step(first, memory, ~is_first)
        found = self.step(second, memory, is_first)
        episodes = torch.cat((first[:1], second[:1]), dim=1), second[:1]
        with _eager(self.decoder):
            read = [self.decoder(inputs_embeds=tokens, use_cache=False) for tokens in episodes]
        expected = torch.cat([each.last_hidden_state[:, -1] for each in read])
        if found.shape[-1] != self.width:
            raise UserError(f"it reads vectors of {self.width} and returns {found.shape[-1]}")
        difference = ((found - expected).abs().max() / expected.abs().max()).item()
        # Asked this way round, NaN is refused as well.
        if not difference <= tolerance:
            raise UserError(
                f"what it computes with its memory differs by {difference:.0%} from the plain model"
            )


def _mask(window: CacheView, ages: Tensor, n_new: int, reach: int | None) -> Tensor:
    hidden = window.out_of_reach(n_new, reach).expand(len(ages), -1, -1)
    return score_mask(hidden if window.ended is None else hidden | window.ended)


def score_mask(hidden: Tensor) -> Tensor:
    """Return the numbers to add to attention scores: 0, or -1e38 where hidden.  [N, 1, K, n]"""
    mask = torch.zeros(hidden.shape, device=hidden.device)
    # A row of -inf would become NaN; the least number leaves no weight, either.
    return mask.masked_fill_(hidden, torch.finfo(mask.dtype).min)[:, None]


def by_kind(masks: dict[str, Tensor]) -> dict[str, Tensor] | Tensor:
    """Return masks in the library's form: a single one where all layers are of one kind."""
    return masks if len(masks) > 1 else next(iter(masks.values()))


@contextmanager
def _eager(decoder: PreTrainedModel) -> Iterator[None]:
    """Use the model's own attention for a while, which returns its weights."""
    before = decoder.config._attn_implementation
    decoder.set_attn_implementation("eager")
    try:
        yield
    finally:
        decoder.set_attn_implementation(before)


class WindowLayer(CacheLayerMixin):
    is_sliding = False

    def __init__(self, window: CacheView, n_new: int) -> None:
        super().__init__()
        self.window, self.n_new = window, n_new
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new tokens' keys and values [N, H, K, d]; return all in sight [N, H, n, d]."""
        by_head = key_states.shape[:2]  # rows are the heads of one environment, then of the next
        self.window.write(key_states.flatten(0, 1), value_states.flatten(0, 1))
        keys, values = _joined(self.window.keys), _joined(self.window.values)
        return keys.unflatten(0, by_head), values.unflatten(0, by_head)

    def get_seq_length(self) -> int:
        return self.window.n_tokens - self.n_new

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1  # no limit: the memory makes room by itself

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        pass  # the slots are there


def _joined(runs: list[Tensor]) -> Tensor:
    return runs[0] if len(runs) == 1 else torch.cat(runs, dim=1)
