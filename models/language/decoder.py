"""Any decoder-only model of the transformers library as a memory.

The library computes, with its own attention; the slots of a `KeyValueMemory` stand in for its
cache, a mask hides ended episodes, and every environment counts its positions from the start of
its episode.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    MODEL_MAPPING,
)
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging

from models.language.files import ModelFiles, configuration, first_line
from models.language.kv_cache import Window
from models.language.language_model import LanguageModel
from models.language.layers import DenseEmbeddings, FrozenLinear
from utils.errors import UserError

# The library's types of language models without those that encode, or encode and decode.
DECODERS = (
    set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    - set(MODEL_FOR_MASKED_LM_MAPPING_NAMES)
    - set(MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES)
)
CHANGING_ROTATIONS = {"dynamic", "longrope"}
FULL, SLIDING = "full_attention", "sliding_attention"


def describe(settings: Mapping[str, Any], name: str) -> tuple[int, int, int, int | None]:
    """Return layers, width, tokens and positions; UserError where it is no supported decoder."""
    config = configuration(settings, name)
    n_positions = positions_of(config, name)
    reach_of(config, name)
    return config.num_hidden_layers, config.hidden_size, config.vocab_size, n_positions


def positions_of(config: PreTrainedConfig, name: str) -> int | None:
    """Return P of a model with learned positions, None of one with rotary positions."""
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
            f"language model '{name}': the positions of model_type '{config.model_type}' are "
            "neither learned nor rotary ones without an end. Choose another model."
        )
    return n_positions


def reach_of(config: PreTrainedConfig, name: str) -> dict[str, int | None]:
    """Return how many tokens a layer of each kind sees, itself included; None for all."""
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or [SLIDING if window else FULL])
    if kinds - {FULL, SLIDING}:
        raise UserError(
            f"language model '{name}': config.json has layers of type "
            f"{', '.join(sorted(kinds - {FULL, SLIDING}))}, supported are {FULL}, {SLIDING}."
        )
    return {kind: window if kind == SLIDING else None for kind in sorted(kinds)}


def load_published(
    name: str, weights: dict[str, Tensor], config: PreTrainedConfig, with_head: bool = False
) -> PreTrainedModel:
    """Return the model in the type it is published in.

    The library is given tensors and no folder: in a folder it would look for weights by rules of
    its own, and find others than those the fingerprint tells.

    Args:
        name: As it was asked for.
        weights: All of its tensors, under their published names.
        config: Its settings.
        with_head: Whether with the head that tells how likely the next tokens are.
    """
    kinds: Any = MODEL_FOR_CAUSAL_LM_MAPPING if with_head else MODEL_MAPPING
    # The fused attention would leave out what caps the scores.
    attention = "eager" if getattr(config, "attn_logit_softcapping", None) else None
    try:
        kind: Any = kinds[type(config)]
        with _quiet():
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
    """Put frozen layers for the linear ones; all other weights become float32."""
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
    """Keep the library from reporting the head and layers that are left out on purpose."""
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
def explained(name: str) -> Iterator[None]:
    """Turn whatever a model of unforeseen build raises into a user's mistake."""
    try:
        yield
    except Exception as error:
        raise UserError(
            f"language model '{name}' cannot serve as a memory: {first_line(error)}. "
            "Choose another model."
        ) from error


class Decoder(LanguageModel):
    """A frozen decoder; its result equals reading the tokens in sight all at once.

    A call with K tokens sees a window of M + K tokens: older ones leave it, and what they
    contributed to younger ones stays. Layers with a sliding window of their own see no further
    than that. Rotary positions count on without end, since only their differences matter. Learned
    ones (GPT-2) end at P: the window is then min(M + K, P), and the position stays at P-1 once
    there. With fewer layers than published the model's last normalisation follows the last one.
    """

    def __init__(self, published: ModelFiles, mem_len: int, n_layer: int | None = None) -> None:
        super().__init__(published, mem_len)
        config = configuration(published.config(), self.name)
        self.n_positions = positions_of(config, self.name)
        if n_layer is not None:
            config.num_hidden_layers = n_layer
            if getattr(config, "layer_types", None):
                config.layer_types = config.layer_types[:n_layer]
        self.reach = reach_of(config, self.name)
        decoder = load_published(self.name, published.weights(), config)
        table = decoder.get_input_embeddings().float()
        with torch.no_grad():  # scaled where the model scales what it looks up
            self.embeddings = DenseEmbeddings(table(torch.arange(config.vocab_size)))
        decoder.set_input_embeddings(nn.Identity())  # the table is held once
        self.decoder = frozen_decoder(decoder)
        self._n_layer = config.num_hidden_layers
        with explained(self.name):
            self.heads = self._heads()
        self.eval()

    @property
    def n_layer(self) -> int:
        """Return L."""
        return self._n_layer

    @property
    def n_past(self) -> int:
        """Return how many past tokens a new one can see at most."""
        return self._n_visible(1)

    def pack(self, dtype: torch.dtype = torch.float32) -> Self:
        """Lay the weights out for their device, then see whether the model keeps the contract."""
        super().pack(dtype)
        with explained(self.name):
            self._try_out(0.001 if dtype == torch.float32 else 0.1)
        return self

    def _n_visible(self, n_new: int) -> int:
        if self.n_positions is None:
            return self.mem_len
        return max(min(self.mem_len, self.n_positions - n_new), 0)

    def _read(self, tokens: Tensor, ages: Tensor, windows: list[Window]) -> Tensor:
        return self._run(tokens, ages, windows).last_hidden_state[:, -1]

    def _look(self, tokens: Tensor, ages: Tensor, windows: list[Window]) -> Iterable[Tensor]:
        with _eager(self.decoder):
            return self._run(tokens, ages, windows, output_attentions=True).attentions

    def _states(self, tokens: Tensor, ages: Tensor, windows: list[Window]) -> Iterable[Tensor]:
        return self._run(tokens, ages, windows, output_hidden_states=True).hidden_states[1:]

    def _run(self, tokens: Tensor, ages: Tensor, windows: list[Window], **options: Any) -> Any:
        n_new = tokens.shape[1]
        positions = ages[:, None] + torch.arange(n_new, device=ages.device)  # [N, K]
        if self.n_positions is not None:
            positions = positions.clamp(max=self.n_positions - 1)
        masks = {kind: _mask(windows[0], ages, n_new, self.reach[kind]) for kind in self.reach}
        return self.decoder(
            inputs_embeds=tokens,
            position_ids=positions,
            attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
            past_key_values=Cache(layers=[WindowLayer(window, n_new) for window in windows]),
            use_cache=True,
            **options,
        )

    @torch.no_grad()
    def _heads(self) -> tuple[int, int]:
        """Return number and width of the keys of a token, as the library's own cache finds them."""
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
        starts = torch.tensor([False, True], device=self.device)
        self.step(first, memory, ~starts)
        found = self.step(second, memory, starts)
        episodes = torch.cat((first[:1], second[:1]), dim=1), second[:1]
        with _eager(self.decoder):
            read = [self.decoder(inputs_embeds=tokens, use_cache=False) for tokens in episodes]
        expected = torch.cat([each.last_hidden_state[:, -1] for each in read])
        if found.shape[-1] != self.width:
            raise UserError(f"it reads vectors of {self.width} and returns {found.shape[-1]}")
        difference = ((found - expected).abs().max() / expected.abs().max()).item()
        if not difference <= tolerance:
            raise UserError(f"with its memory it differs by {difference:.0%} from without")


def _mask(window: Window, ages: Tensor, n_new: int, reach: int | None) -> Tensor:
    """Return what is added to the scores: 0, or a number that leaves no weight.  [N, 1, K, n]"""
    hidden = window.out_of_reach(n_new, reach)
    if window.ended is not None:
        hidden = hidden | window.ended
    mask = torch.zeros(len(ages), *hidden.shape[-2:], device=ages.device)
    return mask.masked_fill_(hidden, torch.finfo(mask.dtype).min)[:, None]


@contextmanager
def _eager(decoder: PreTrainedModel) -> Iterator[None]:
    """Let a model use its own attention, which shows its weights, for a while."""
    before = decoder.config._attn_implementation
    decoder.set_attn_implementation("eager")
    try:
        yield
    finally:
        decoder.set_attn_implementation(before)


class WindowLayer(CacheLayerMixin):
    """One layer's window as the cache that the library reads and writes, for a single call.

    Its rows are the heads of the first environment, then of the next.
    """

    is_sliding = False

    def __init__(self, window: Window, n_new: int) -> None:
        super().__init__()
        self.window, self.n_new = window, n_new
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new tokens' keys and values [N, H, K, d]; return all in sight [N, H, n, d]."""
        by_head = key_states.shape[:2]
        self.window.write(key_states.flatten(0, 1), value_states.flatten(0, 1))
        return (
            _joined(self.window.keys).unflatten(0, by_head),
            _joined(self.window.values).unflatten(0, by_head),
        )

    def get_seq_length(self) -> int:
        """Return how many tokens are in sight before the new ones."""
        return self.window.n_tokens - self.n_new

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return how many tokens are in sight and that none before them is counted."""
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        """Return -1: the memory makes room by itself."""
        return -1

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing; the slots are there."""


def _joined(runs: list[Tensor]) -> Tensor:
    return runs[0] if len(runs) == 1 else torch.cat(runs, dim=1)
