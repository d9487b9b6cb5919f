"""Parts of the program that settings choose by name, and all of them together."""

import pkgutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from settings.declaration import Part
from utils.errors import UserError, suggestion


class Registry:
    """The parts that one setting chooses among; each is imported when it is chosen.

    Args:
        setting: That setting.
        places: "module:Class" by name. A class has in `reads` the settings that it alone reads.
        title: What one of them is, for messages.
        aliases: Further names, each with the name it stands for.
    """

    def __init__(
        self,
        setting: str,
        places: Mapping[str, str],
        title: str,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        self.setting, self.places, self.title = setting, places, title
        self.aliases = aliases or {}

    def known_as(self, name: str) -> str | None:
        """Return the name a part is listed under, None if there is no such part."""
        key = self.aliases.get(name, name)
        return key if key in self.places else None

    def find(self, name: str) -> Any:
        """Return the class of a part.

        Raises:
            UserError: there is none of this name.
        """
        key = self.known_as(name)
        if key is None:
            names = (*self.places, *self.aliases)
            raise UserError(
                f"{self.setting}: unknown {self.title} '{name}', known: {', '.join(names)}."
                f"{suggestion(name, names)}"
            )
        return pkgutil.resolve_name(self.places[key])

    def settings(self) -> dict[str, tuple[type[Part], ...]]:
        """Return the settings that each part alone reads, by its name."""
        return {name: self.find(name).reads for name in self.places}


class Program(NamedTuple):
    """What the settings of a run are put together from.

    Attributes:
        registries: By the setting that chooses among their parts.
        general: The settings that every run reads.
        contradictions: Returns a line for every pair of settings that cannot both hold.
        recomposed: Makes settings in another process, given their values and the folders of the
            user's own code; it stands where that process finds it.
    """

    registries: Mapping[str, Registry]
    general: tuple[type[Part], ...]
    contradictions: Callable[[Any], list[str]]
    recomposed: Callable[[Mapping[str, Any], Iterable[Path]], Any]


_installed: list[Program] = []


def install(program: Program) -> None:
    """Say what settings are put together from, once in a process."""
    _installed[:] = [program]


def installed() -> Program:
    """Return what settings are put together from."""
    if not _installed:
        raise RuntimeError("settings: no program is installed. Import trainers.build first")
    return _installed[0]
