"""How a part of the program declares its settings: as the fields of a dataclass, by `setting`.

    @dataclass(frozen=True)
    class GruSettings(Part):
        title = "GRU"

        gru_layers: int = setting("layers of the GRU", low=1, high=16, default=1)

Whoever is chosen by name (an agent, a learner, a suite of environments) names such classes under
`reads`, and that is all: the settings are then known to the command line and to its help.
"""

import dataclasses
import inspect
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple


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

    config.json shows the defaults, as `main.py --print-config` does. A run that is older than a
    setting has its default.

    A setting without effect says what a run keeps and shows, not what it learns.

    Values other than the safe ones lead outside, to an address or to a place that is read or
    written: they are not taken from somebody else's run (runs/stored.py). One that must be typed is
    taken from no settings file either.
    """
    limits = {"low": low, "high": high, "choices": choices}
    more = {"help": text, "has_effect": has_effect, "default": default}
    more |= {"safe": safe, "typed": typed}
    return dataclasses.field(metadata=limits | more)


@dataclass(frozen=True)
class Part:
    """Settings that belong together, beside the code that reads them.

    Attributes:
        title: What they are listed under in the help; subclasses without one share it.
    """

    title: ClassVar[str] = "more"


class Declaration(NamedTuple):
    """One setting as it was declared.

    Attributes:
        name: Its key.
        kinds: The types a value may have.
        title: Of the part that declared it.
        metadata: What `setting` was given.
    """

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
    bases = (base for part in parts for base in part.__mro__)
    for part in dict.fromkeys(bases):
        for declaration in _own(part):
            first = found.setdefault(declaration.name, declaration)
            owner = owners.setdefault(declaration.name, part)
            if first._replace(title="") != declaration._replace(title=""):
                raise TypeError(
                    f"setting '{declaration.name}' is declared by {owner.__module__}."
                    f"{owner.__name__} and otherwise by {part.__module__}.{part.__name__}"
                )
    return found


def _own(part: type) -> list[Declaration]:
    """Return what a class declares itself."""
    if not issubclass(part, Part):
        return []
    hints, own = typing.get_type_hints(part), inspect.get_annotations(part)
    return [
        Declaration(field.name, _kinds(hints[field.name]), part.title, dict(field.metadata))
        for field in dataclasses.fields(part)
        if field.name in own
    ]


def _kinds(hint: Any) -> tuple[type, ...]:
    hints = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return tuple(typing.get_origin(each) or each for each in hints)
