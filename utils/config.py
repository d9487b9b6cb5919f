"""Settings: one frozen dataclass, read from JSON files and `--var KEY=VALUE` by each field's type.

Precedence: config.json < --config FILE < --var KEY=VALUE. All problems are collected and raised at
once, one line each, before anything heavy is loaded.
"""

import dataclasses
import json
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from utils.errors import UserError, suggestion
from utils.files import read_bytes

DEFAULT_FILE = Path(__file__).resolve().parent.parent / "config.json"
DECAYS = ("none", "linear", "linear_burn_in", "exp")
MOST_SEED = 2**32 - 1
MOST_SAMPLES = 2**24
LONGEST_SHOWN = 100
MOST_BYTES = 2**24  # of a settings file


def setting(
    text: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] | None = None,
    has_effect: bool = True,
) -> Any:
    """Declare a field: one line of explanation, an inclusive range or the allowed names.

    A setting without effect says what a run keeps and shows, not what it learns.
    """
    metadata = {"help": text, "low": low, "high": high, "choices": choices}
    return dataclasses.field(metadata=metadata | {"has_effect": has_effect})


@dataclass(frozen=True)
class Config:
    """Every setting of a run. The default values stand in config.json and nowhere else."""

    model: str = setting("agent: CNN-PPO, Impala-PPO, HELM, HELMv2 or SHELM")
    env: str = setting("environment by its full name, such as MiniGrid-KeyCorridorS3R1-v0")
    stimuli: str | None = setting("folder of pictures to recognise; null draws them")
    seed: int = setting("seed of everything random", low=0, high=MOST_SEED)
    device: str = setting(
        "where networks run: auto takes a GPU if there is one; or cpu, cuda, cuda:1"
    )

    language_model: str = setting(
        "frozen memory: all-MiniLM-L6-v2, transfo-xl-wt103, hub name (a/b, a/b@REVISION), folder"
    )
    n_layer: int | None = setting(
        "keep the language model's first n layers; null keeps all", low=1, high=1000
    )
    mem_len: int = setting("memory length in tokens", low=1, high=16_384)
    beta: float = setting("inverse temperature of HELM's token retrieval", low=0, high=1e6)
    clip_encoder: str = setting(
        "images to language in HELMv2, SHELM: grid-clip, or of open_clip: ViT-B-16, RN50"
    )
    clip_pretrained: str = setting(
        "its weights: a tag of open_clip (openai, openai@REVISION), or a local file"
    )
    topk: int = setting("tokens SHELM retrieves and reads at a step", low=1, high=16_384)
    embeddings: str | None = setting(
        "file of prepare_embeddings.py for SHELM; null: the one in data/ by its name"
    )
    observation_cache_mb: int = setting(
        "megabytes for the language of images seen before", low=0, high=1_000_000
    )
    frozen_dtype: str = setting(
        "type of the language model's weights and products", choices=("float32", "bfloat16")
    )

    n_steps: int = setting(
        "environment steps to train for, all environments together", low=1, high=10**12
    )
    n_envs: int = setting("parallel environments", low=1, high=1024)
    n_rollout_steps: int = setting("steps per environment and rollout", low=1, high=MOST_SAMPLES)
    n_epochs: int = setting("passes over each rollout", low=1, high=1000)
    n_batches: int = setting(
        "minibatches per pass (agents that learn from single steps)", low=1, high=MOST_SAMPLES
    )
    sequences_per_batch: int = setting(
        "sequences per minibatch (agents with an LSTM)", low=1, high=MOST_SAMPLES
    )

    learning_rate: float = setting("AdamW's learning rate at the start", low=0, high=10)
    lr_decay: str = setting("learning-rate schedule", choices=DECAYS)
    min_lr: float = setting("learning rate at the end of a linear schedule", low=0, high=10)
    lr_decay_start: float = setting("fraction of the run before the decay starts", low=0, high=1)
    lr_decay_end: float = setting("fraction of the run at which a linear decay ends", low=0, high=1)
    lr_decay_factor: float = setting("factor per update of an exp schedule", low=0, high=1)
    ent_coef: float = setting("weight of the entropy bonus at the start", low=0, high=1e6)
    ent_decay: str = setting("entropy schedule", choices=DECAYS)
    min_ent_coef: float = setting("entropy weight at the end of a linear schedule", low=0, high=1e6)
    ent_decay_start: float = setting("fraction of the run before the decay starts", low=0, high=1)
    ent_decay_end: float = setting(
        "fraction of the run at which a linear decay ends", low=0, high=1
    )
    ent_decay_factor: float = setting("factor per update of an exp schedule", low=0, high=1)

    gamma: float = setting("discount per step", low=0, high=1)
    gae_lambda: float = setting("lambda of generalised advantage estimation", low=0, high=1)
    clip_range: float = setting("clip range of the policy ratio at the start", low=0, high=1e6)
    clip_decay: str = setting("clip-range schedule, linear ends at 0", choices=("none", "linear"))
    clip_range_vf: float | None = setting(
        "clip range of the value; null does not clip", low=0, high=1e6
    )
    vf_coef: float = setting("weight of the value loss", low=0, high=1e6)
    max_grad_norm: float = setting("largest norm of the gradient", low=0, high=1e6)
    adv_norm: bool = setting("divide advantages by a running deviation, not a minibatch's")
    bootstrap_truncated: bool = setting("add the value of the last observation at a time limit")
    normalize_reward: bool | None = setting(
        "scale rewards by their return; null: as the suite does"
    )

    save_ckpt: bool = setting(
        "write ckpt_best.pt and ckpt_last.pt into the run folder", has_effect=False
    )
    checkpoint_minutes: float = setting(
        "minutes between two ckpt_last.pt", low=0, high=100_000, has_effect=False
    )
    deterministic: bool = setting(
        "the same bits in every run: repeatable operations on a GPU, one thread on a CPU"
    )
    media_minutes: float | None = setting(
        "minutes between an episode's movie, words and attention in TensorBoard; null: never",
        low=0,
        high=100_000,
        has_effect=False,
    )
    wandb: bool = setting("send metrics to Weights & Biases as well", has_effect=False)
    wandb_project: str = setting("its project there", has_effect=False)


FIELDS = {field.name: field for field in dataclasses.fields(Config)}
WITHOUT_EFFECT = {name for name, field in FIELDS.items() if not field.metadata["has_effect"]}
TYPES = typing.get_type_hints(Config)


def load_config(
    file: str | Path | None = None,
    overrides: Iterable[str] = (),
    default_file: Path = DEFAULT_FILE,
) -> Config:
    """Return the settings of config.json, changed by a file and then by KEY=VALUE overrides.

    Raises:
        UserError: one line for every unknown key, wrong type, value out of range or contradiction.
    """
    values: dict[str, Any] = {}
    named: set[str] = set()
    problems: list[str] = []
    for path in (default_file, file):
        if path is not None:
            given = read_json_object(Path(path))
            named |= given.keys()
            found, wrong = _checked(given, str(path))
            values.update(found)
            problems += wrong
    found, wrong = _parse_overrides(overrides)
    values.update(found)
    problems += wrong
    problems += [
        f"{default_file}: setting '{name}' is missing" for name in FIELDS if name not in named
    ]
    if not problems:
        config = Config(**values)
        problems = contradictions(config)
    if problems:
        raise UserError(*problems)
    return config


def config_from_dict(values: Any, source: str) -> Config:
    """Return the settings stored in a checkpoint or a run folder, which must be complete.

    Those without effect may be missing and are as in config.json.
    """
    if not isinstance(values, dict):
        raise UserError(f"{source}: its settings are not there but {_shown(values)}")
    defaults = read_json_object(DEFAULT_FILE)
    values = {name: defaults[name] for name in WITHOUT_EFFECT} | values
    found, problems = _checked(values, source)
    problems += [f"{source}: setting '{name}' is missing" for name in FIELDS if name not in values]
    if problems:
        raise UserError(*problems)
    return Config(**found)


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; no key may stand in it twice."""
    try:
        text = read_bytes(path, MOST_BYTES).decode()
        values = json.loads(text, object_pairs_hook=_without_repetition)
    except FileNotFoundError:
        raise UserError(f"{path}: no such settings file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not readable as JSON: {str(error).splitlines()[0]}") from None
    if not isinstance(values, dict):
        raise UserError(
            f"{path}: a settings file is one JSON object, not a {type(values).__name__}"
        )
    return values


def contradictions(config: Config) -> list[str]:
    """Return one line for every pair of settings that cannot both hold."""
    problems = []
    samples = config.n_envs * config.n_rollout_steps
    if samples % config.n_batches:
        problems.append(
            f"n_batches: a rollout of {config.n_envs} x {config.n_rollout_steps} = {samples} "
            f"samples cannot be cut into {config.n_batches} equal minibatches; "
            f"choose a divisor of {samples}"
        )
    if samples > MOST_SAMPLES:
        problems.append(
            f"n_rollout_steps: a rollout of {config.n_envs} x {config.n_rollout_steps} samples is "
            f"larger than {MOST_SAMPLES}"
        )
    for name in ("lr", "ent"):
        start, end = getattr(config, f"{name}_decay_start"), getattr(config, f"{name}_decay_end")
        if getattr(config, f"{name}_decay") == "linear_burn_in" and start >= end:
            problems.append(
                f"{name}_decay_start: {start} is not below {name}_decay_end {end}; "
                "linear_burn_in decays between the two"
            )
    return problems


def describe_settings(default_file: Path = DEFAULT_FILE) -> str:
    """Return the table of all settings with type, default and explanation, for `--help`."""
    defaults = read_json_object(default_file)
    lines = []
    for name, field in FIELDS.items():
        lines.append(f"  {name} ({_type_name(name)}, default {json.dumps(defaults.get(name))})")
        lines.append(f"      {field.metadata['help']}{_range_text(name)}")
    return "\n".join(lines)


def _checked(values: Mapping[str, Any], source: str) -> tuple[dict[str, Any], list[str]]:
    """Return the good values and one line for each bad one."""
    good: dict[str, Any] = {}
    problems = []
    for name, value in values.items():
        try:
            good[name] = _convert(name, value)
        except ValueError as error:
            problems.append(f"{source}: {error}")
    return good, problems


def _parse_overrides(overrides: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    values: dict[str, Any] = {}
    problems = []
    for text in overrides:
        name, equals, value = text.partition("=")
        if not equals:
            problems.append(
                f"--var {_shortened(text)}: expected KEY=VALUE, such as --var learning_rate=3e-4"
            )
            continue
        good, wrong = _checked({name: _from_text(name, value)}, f"--var {_shortened(text)}")
        values.update(good)
        problems += wrong
    return values, problems


def _from_text(name: str, text: str) -> Any:
    """Return the JSON value a command-line text stands for; text fields take it as it is.

    Only null is null where a text may be missing; a file of that name is ./null.
    """
    if name not in TYPES or str in _members(name):
        return None if text == "null" and name in TYPES and type(None) in _members(name) else text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _convert(name: str, value: Any) -> Any:
    """Return a value as its field's type, or raise ValueError with the line to show."""
    if name not in FIELDS:
        text = _shortened(str(name))
        raise ValueError(f"unknown key '{text}'.{suggestion(text, FIELDS)}")
    value = _as_type(name, value)
    field = FIELDS[name].metadata
    if field["choices"] and value not in field["choices"]:
        hint = suggestion(str(value), field["choices"])
        text = _shortened(value)
        raise ValueError(f"{name}: '{text}' is none of {', '.join(field['choices'])}.{hint}")
    if (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and not _in_range(value, field)
    ):
        raise ValueError(f"{name}: {_shown(value)} is out of range{_range_text(name)}")
    return value


def _as_type(name: str, value: Any) -> Any:
    allowed = _members(name)
    if value is None and type(None) in allowed:
        return None
    if isinstance(value, bool):
        if bool in allowed:
            return value
    elif int in allowed and _is_whole(value):
        return int(value)
    elif float in allowed and (_is_whole(value) or _is_fraction(value)):
        return _as_float(value)
    elif str in allowed and isinstance(value, str) and value:
        if not _is_unicode(value):
            raise ValueError(f"{name}: {_shown(value)} is not text in UTF-8. Rename what it names")
        return value
    raise ValueError(f"{name}: {_shown(value)} is not {_type_name(name)}")


def _is_unicode(text: str) -> bool:
    """Return whether a text can be written into files; a name of other bytes cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())


def _is_fraction(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def _as_float(value: float) -> float:
    """Return a number as a float, infinite where it is beyond all floats."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _shown(value: Any) -> str:
    """Return a value as it would stand in JSON, cut short where it is long."""
    try:
        return _shortened(json.dumps(value))
    except (TypeError, ValueError, RecursionError):
        return f"a {type(value).__name__}"


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}..."


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of a JSON object as a dictionary, or raise ValueError."""
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key '{_shortened(twice)}' stands there twice")
    return values


def _members(name: str) -> tuple[type, ...]:
    hint = TYPES[name]
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def _type_name(name: str) -> str:
    words = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "text",
        type(None): "null",
    }
    return " or ".join(words[member] for member in _members(name))


def _in_range(value: float, field: Mapping[str, Any]) -> bool:
    low, high = field["low"], field["high"]
    return (low is None or value >= low) and (high is None or value <= high)


def _range_text(name: str) -> str:
    low, high = (FIELDS[name].metadata[bound] for bound in ("low", "high"))
    if low is None:
        choices = FIELDS[name].metadata["choices"]
        return f" ({', '.join(choices)})" if choices else ""
    return f" ({low} or more)" if high is None else f" ({low} to {high})"
