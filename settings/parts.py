"""Which parts a run is made of and what they read; all of it together as one typed object.

The programs say which parts there are (settings/registry.py). An agent of the user's own stands in
no registry: its settings are known where it is chosen. Functions that ask for `chosen` are told by
that which agent that is.
"""

import dataclasses
import functools
import json
import os
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from settings.config import Config
from settings.declaration import Declaration, Part, declared
from settings.registry import installed
from settings.values import KINDS, shortened
from utils.errors import UserError
from utils.user_modules import folder_of, is_named, named_modules, search

NOTHING: Mapping[str, Any] = types.MappingProxyType({})


class Reading(NamedTuple):
    """Who reads what.

    Attributes:
        everywhere: Settings that are read in every run.
        by_choice: The settings that each part reads, by its name, by the setting that chooses it.
    """

    everywhere: set[str]
    by_choice: dict[str, dict[str, set[str]]]

    def readers(self, name: str) -> list[str]:
        """Return the parts that read a setting; none where it is read in every run."""
        if name in self.everywhere:
            return []
        return [
            reader
            for parts in self.by_choice.values()
            for reader, names in parts.items()
            if name in names
        ]

    def read_by(self, values: Mapping[str, Any]) -> set[str]:
        """Return the settings that are read where parts are chosen by these values.

        A value that names no part may mean each of them; null chooses none.
        """
        found = set(self.everywhere)
        for key, parts in self.by_choice.items():
            if key in values and values[key] is None:
                continue
            chosen = _known_as(key, values.get(key))
            found |= set().union(*([parts[chosen]] if chosen in parts else parts.values()))
        return found

    def refusal(self, name: str, values: Mapping[str, Any]) -> str:
        """Return one line that says who reads a setting that is not read here."""
        readers = self.readers(name)
        key = next(key for key, parts in self.by_choice.items() if readers[0] in parts)
        this = f"{key} is null" if values[key] is None else f"this is {shortened(values[key])}"
        return f"{name} is read by {_listed(readers)}, and {this}"


def all_settings(chosen: Mapping[str, Any] = NOTHING) -> dict[str, Declaration]:
    """Return every setting there is, by its name.

    Raises:
        UserError: the chosen agent of the user's own does not declare its settings as it must.
    """
    name = chosen.get("model")
    if not is_named(name):
        return _declared(_all_parts(chosen))
    try:
        found = _declared(_all_parts(chosen))
    except (TypeError, NameError) as error:
        raise UserError(f"model: '{name}': {error}") from None
    for each in found.keys() - all_settings().keys():
        _check_own(name, found[each])
    return found


def settings_without_effect(chosen: Mapping[str, Any] = NOTHING) -> set[str]:
    """Return the settings that say what a run keeps and shows, not what it learns."""
    return {name for name, each in all_settings(chosen).items() if not each.metadata["has_effect"]}


def outside_settings() -> dict[str, Callable[[Any], bool]]:
    """Return of each setting that may lead outside whether a value of it does."""
    safe = {name: each.metadata["safe"] for name, each in all_settings().items()}
    return {
        name: functools.partial(_leads_outside, values)
        for name, values in safe.items()
        if values is not None
    }


def reading(chosen: Mapping[str, Any] = NOTHING) -> Reading:
    """Return who reads what."""
    return Reading(
        _names([Config, *installed().general]),
        {
            key: {name: _names(parts) for name, parts in table.items()}
            for key, table in _tables(chosen).items()
        },
    )


def read_settings(config: Config) -> set[str]:
    """Return the names of the settings that the parts of a run read."""
    values = dataclasses.asdict(config)
    return reading(values).read_by(values)


def settings_of_env(config: Config) -> set[str]:
    """Return the names of the settings that nobody but the environment of a run reads."""
    who, chosen = reading(dataclasses.asdict(config)), _known_as("env", config.env)
    others = (
        names for key in who.by_choice if key != "env" for names in who.by_choice[key].values()
    )
    own = who.by_choice["env"][chosen] if chosen else set()
    return own.difference(who.everywhere, *others)


def composed(values: Mapping[str, Any]) -> Config:
    """Return the settings of a run, of the class that all parts make together."""
    return composed_class(values)(**values)


def composed_class(chosen: Mapping[str, Any] = NOTHING) -> type[Config]:
    """Return a class of settings that is a subclass of every part's."""
    return _composed(_all_parts(chosen))


@functools.cache
def _declared(parts: tuple[type[Part], ...]) -> dict[str, Declaration]:
    return declared(parts)


@functools.cache
def _composed(parts: tuple[type[Part], ...]) -> type[Config]:
    # Only those that nobody builds on; the fields of the last base come first.
    bases = [part for part in parts if sum(issubclass(other, part) for other in parts) == 1]
    namespace = {"__reduce__": _reduced, "__hash__": _hashed}
    made = dataclasses.make_dataclass(
        "RunConfig", [], bases=tuple(reversed(bases)), namespace=namespace, frozen=True
    )
    return cast(type[Config], made)


def _reduced(config: Config) -> tuple[Any, ...]:
    """Return how to make these settings in another process, which makes its own class."""
    values = dataclasses.asdict(config)
    places = [folder_of(module) for module in named_modules(values).values()]
    return installed().recomposed, (values, [place for place in places if place is not None])


def recomposed(values: Mapping[str, Any], places: Iterable[Path]) -> Config:
    """Return the settings of another process, which has found the user's own code in places."""
    for place in places:
        search(place)
    return composed(values)


def _hashed(config: Config) -> int:
    """Return the hash of settings, of which some are objects that have none."""
    return hash(json.dumps(dataclasses.asdict(config), sort_keys=True))


def _leads_outside(safe: tuple[Any, ...], value: Any) -> bool:
    """Return whether a value is not safe; of arguments, whether a text in them may be a place.

    A text with a colon may name a module, or be an address.
    """
    if not isinstance(value, dict):
        return value not in safe
    parts: list[Any] = [value]
    for part in parts:  # which grows
        if isinstance(part, dict):
            parts += [*part, *part.values()]
        elif isinstance(part, list):
            parts += part
    texts = [part for part in parts if isinstance(part, str)]
    return any(re.search(r"[/\\:~]", text) or os.path.lexists(text) for text in texts)


def _all_parts(chosen: Mapping[str, Any]) -> tuple[type[Part], ...]:
    tables = _tables(chosen).values()
    by_choice = (part for table in tables for parts in table.values() for part in parts)
    return tuple(dict.fromkeys((Config, *by_choice, *installed().general)))


def _check_own(name: str, declaration: Declaration) -> None:
    """Raise UserError unless a setting that the user's own agent alone declares can be given."""
    if not set(declaration.kinds) <= KINDS.keys():
        raise UserError(
            f"model: '{name}': its setting '{declaration.name}' must be an int, float, bool or "
            "str, perhaps with | None"
        )


def _tables(chosen: Mapping[str, Any]) -> dict[str, dict[str, tuple[type[Part], ...]]]:
    registries = installed().registries
    tables = {setting: registry.settings() for setting, registry in registries.items()}
    name = chosen.get("model")
    if is_named(name):
        tables["model"][name] = registries["model"].find(name).reads
    return tables


def _known_as(setting: str, name: Any) -> str | None:
    return installed().registries[setting].known_as(name) if isinstance(name, str) else None


def _names(parts: Iterable[type[Part]]) -> set[str]:
    return {field.name for part in parts for field in dataclasses.fields(part)}


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
