"""How a part of the program declares its settings, and the values that a declaration allows.

They are the fields of a dataclass, made by `setting`:

    @dataclass(frozen=True)
    class GruSettings(Part):
        title = "GRU"

        gru_layers: int = setting("layers of the GRU", low=1, high=16, default=1)

A part that is chosen by name (an agent, a learner, a suite of environments) has such classes under
`reads`, and that is all: the settings are then known to the command line and to its help.
"""

import contextlib
import dataclasses
import inspect
import json
import math
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

from utils.errors import suggestion

MOST_SEED = 2**32 - 1
LONGEST_SHOWN = 100
KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    dict: "a JSON object",
    type(None): "null",
}


def setting(
    text: str,
    *,
    default: Any,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] | None = None,
    has_effect: bool = True,
    safe: tuple[Any, ...] | None = None,
    typed: bool = False,
) -> Any:
    """Declare a field: one line of explanation, an inclusive range or the allowed names.

    config.json shows the defaults. A run that is older than a setting has its default.

    Args:
        text: The explanation.
        default: The default value.
        low, high: The inclusive range.
        choices: The allowed names.
        has_effect: False for settings of keeping and showing, which change no number of a run.
        safe: Values other than these lead outside, to an address or to a place that is read or
            written: they are not taken from somebody else's run (utils/stored_run.py).
        typed: Taken from the command line alone, from no settings file.
    """
    limits = {"low": low, "high": high, "choices": choices}
    more = {"help": text, "has_effect": has_effect, "default": default}
    more |= {"safe": safe, "typed": typed}
    return dataclasses.field(metadata=limits | more)


@dataclass(frozen=True)
class Part:
    title: ClassVar[str] = "more"


AnyPart = TypeVar("AnyPart", bound=Part)


@dataclass(frozen=True)
class Config(Part):
    """The settings of a run, as far as every part may read them.

    `load_config` returns a class made from this one and all others.
    """

    title = "the run"

    algorithm: str = setting("how it learns: PPO, DQN, SAC, NStepDQN", default="PPO")
    model: str = setting(
        "the memory: CNN, LSTM, GPT, HELM, HELMv2, SHELM, ELLM; or as published: "
        "CNN-PPO, Impala-PPO; or module:Class, an agent of your own",
        default="HELM",
    )
    env: str = setting(
        "environment by its full name, such as MiniGrid-KeyCorridorS3R1-v0",
        default="MiniGrid-KeyCorridorS3R1-v0",
    )
    seed: int = setting("seed of everything random", low=0, high=MOST_SEED, default=0)
    device: str = setting(
        "where networks run: auto takes a GPU if there is one; or cpu, cuda, cuda:1", default="auto"
    )
    threads: int | None = setting(
        "threads of PyTorch's operations on a CPU; null: OMP_NUM_THREADS where that is set, else 1",
        low=1,
        high=1024,
        has_effect=False,
        default=None,
    )
    n_steps: int = setting(
        "environment steps to train for, all environments together",
        low=1,
        high=10**12,
        default=500000,
    )
    n_envs: int = setting("parallel environments", low=1, high=1024, default=16)
    learning_rate: float = setting(
        "the optimiser's learning rate at the start", low=0, high=10, default=0.0001
    )
    gamma: float = setting("discount per step", low=0, high=1, default=0.99)
    deterministic: bool = setting(
        "the same bits in every run on a GPU, too, by operations that are repeatable", default=False
    )

    def part(self, kind: type[AnyPart]) -> AnyPart:
        if not isinstance(self, kind):
            raise TypeError(f"{type(self).__name__} has no settings of {kind.__name__}")
        return self


class Declaration(NamedTuple):
    """One setting: its name, its allowed types, its part's title, the arguments of `setting`."""

    name: str
    kinds: tuple[type, ...]
    title: str
    metadata: dict[str, Any]


def declared(parts: Iterable[type[Part]]) -> dict[str, Declaration]:
    """Return every setting of some parts and of those they build on, by its name.

    Raises:
        TypeError: a setting of several parts is not declared alike in all.
    """
    found: dict[str, Declaration] = {}
    owners: dict[str, type] = {}
    bases = dict.fromkeys(base for part in parts for base in part.__mro__)
    for part in (base for base in bases if issubclass(base, Part)):
        hints, own = typing.get_type_hints(part), inspect.get_annotations(part)
        for field in dataclasses.fields(part):
            if field.name not in own:
                continue
            hint = hints[field.name]
            options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
            kinds = tuple(typing.get_origin(each) or each for each in options)
            new = Declaration(field.name, kinds, part.title, dict(field.metadata))
            first = found.setdefault(field.name, new)
            owner = owners.setdefault(field.name, part)
            if first._replace(title="") != new._replace(title=""):
                raise TypeError(
                    f"setting '{field.name}' is declared by {owner.__module__}."
                    f"{owner.__name__} and otherwise by {part.__module__}.{part.__name__}"
                )
    return found


def from_text(declaration: Declaration | None, text: str) -> Any:
    """Return the JSON value a command-line text stands for; text fields take it as it is.

    Only null is null where a text may be missing; a file of that name is ./null.
    """
    if declaration is None or str in declaration.kinds:
        may_be_missing = declaration is not None and type(None) in declaration.kinds
        return None if text == "null" and may_be_missing else text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def checked(declaration: Declaration, value: Any) -> Any:
    name, limits = declaration.name, declaration.metadata
    value = _as_type(declaration, value)
    if limits["choices"] and value is not None and value not in limits["choices"]:
        hint = suggestion(str(value), limits["choices"])
        raise ValueError(
            f"{name}: '{shortened(value)}' is none of {', '.join(limits['choices'])}.{hint}"
        )
    low, high = limits["low"], limits["high"]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and not ((low is None or value >= low) and (high is None or value <= high)):
        raise ValueError(f"{name}: {shown(value)} is out of range{range_text(declaration)}")
    return value


def kind_text(declaration: Declaration) -> str:
    return " or ".join(KINDS[kind] for kind in declaration.kinds)


def range_text(declaration: Declaration) -> str:
    """Return a setting's range or choices in parentheses, after a space; nothing without."""
    low, high, choices = (declaration.metadata[name] for name in ("low", "high", "choices"))
    if low is None:
        return f" ({', '.join(choices)})" if choices else ""
    return f" ({low} or more)" if high is None else f" ({low} to {high})"


def shown(value: Any) -> str:
    try:
        return shortened(json.dumps(value))
    except (TypeError, ValueError, RecursionError):
        return f"a {type(value).__name__}"


def shortened(text: str) -> str:
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}..."


def _as_type(declaration: Declaration, value: Any) -> Any:
    kinds = declaration.kinds
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if value is None and type(None) in kinds:
        return None
    if isinstance(value, bool):
        if bool in kinds:
            return value
    elif int in kinds and is_whole:
        return int(value)
    elif float in kinds and (is_whole or (isinstance(value, float) and math.isfinite(value))):
        try:
            return float(value)
        except OverflowError:  # a whole number beyond all floats
            return math.inf if value > 0 else -math.inf
    elif dict in kinds and isinstance(value, dict):
        with contextlib.suppress(ValueError, TypeError, RecursionError):
            json.dumps(value, allow_nan=False)  # JSON has no NaN and no Infinity
            return value
    elif str in kinds and isinstance(value, str) and value:
        try:
            value.encode()  # or it could not be written into files
        except UnicodeEncodeError:
            raise ValueError(
                f"{declaration.name}: {shown(value)} is not text in UTF-8. Choose another name"
            ) from None
        return value
    raise ValueError(f"{declaration.name}: {shown(value)} is not {kind_text(declaration)}")
