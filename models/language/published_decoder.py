"""Decoder-only models of the transformers library as they are published: settings and weights."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    MODEL_MAPPING,
)
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging

from models.language.layers import FrozenLinear
from utils.errors import UserError

# The library's types of language models without those that encode, or encode and decode.
DECODERS = (
    set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    - set(MODEL_FOR_MASKED_LM_MAPPING_NAMES)
    - set(MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES)
)
CHANGING_ROTATIONS = {"dynamic", "longrope"}
MOST_COUNTED = 1000  # layers, heads or experts
COUNTS = re.compile(r"(?:^|_)n(?:um)?_\w*(?:layer|head|expert)")
FULL, SLIDING = "full_attention", "sliding_attention"


def describe(settings: Mapping[str, Any], name: str) -> tuple[int, int, int, int | None]:
    """Return layers, width, tokens and positions; UserError where it is no supported decoder."""
    config = configuration(settings, name)
    n_positions = positions_of(config, name)
    reach_of(config, name)
    return config.num_hidden_layers, config.hidden_size, config.vocab_size, n_positions


def configuration(settings: Mapping[str, Any], name: str) -> PreTrainedConfig:
    """Return the library's settings of a decoder; UserError where it is none or lacks some."""
    _check_counts(settings, name)
    try:
        config = CONFIG_MAPPING[settings["model_type"]].from_dict(dict(settings))
    except Exception as error:  # the library checks values in many ways
        raise UserError(f"language model '{name}': config.json: {first_line(error)}.") from error
    for key in ("num_hidden_layers", "hidden_size", "vocab_size"):
        if not isinstance(getattr(config, key, None), int):
            raise UserError(f"language model '{name}': config.json lacks '{key}'.")
    if config.is_encoder_decoder:
        raise UserError(f"language model '{name}' has an encoder; only decoders are supported.")
    return config


def _check_counts(settings: Mapping[str, Any], name: str) -> None:
    """Refuse more layers than any model has, before the library makes a list of them."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            _check_counts(value, name)
        elif isinstance(value, int) and value > MOST_COUNTED and COUNTS.search(key):
            raise UserError(
                f"language model '{name}': config.json has {key}={value}, "
                f"at most {MOST_COUNTED:,} are read."
            )


def positions_of(config: PreTrainedConfig, name: str) -> int | None:
    """Return P of a model with learned positions, None of one with rotary positions."""
    rotary = getattr(config, "rope_parameters", None)
    if rotary:
        kinds = {part.get("rope_type") for part in (rotary, *rotary.values()) if _is_map(part)}
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


def _is_map(part: object) -> bool:
    return isinstance(part, Mapping)


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
    try:
        kind: Any = kinds[type(config)]
        with _quiet():
            model, report = kind.from_pretrained(
                None,
                config=config,
                state_dict=weights,
                dtype="auto",
                attn_implementation=_attention(config),
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


def _attention(config: PreTrainedConfig) -> str | None:
    """Return the model's own attention where the fused one would leave something out."""
    return "eager" if getattr(config, "attn_logit_softcapping", None) else None


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


def first_line(error: Exception) -> str:
    """Return the beginning of what an error says, without the period."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


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
