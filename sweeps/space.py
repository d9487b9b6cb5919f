"""What a search varies: ranges and choices of settings, beside those that stay as they are.

{"model": "LSTM", "learning_rate": {"low": 1e-5, "high": 1e-3, "log": true},
 "memory_layers": {"low": 1, "high": 3}, "lr_decay": {"choices": ["none", "linear"]}}
"""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from settings import Config, Given, all_settings, given_by_file, load_config
from settings.declaration import Declaration
from settings.registry import installed
from settings.values import checked, shortened, shown
from utils.errors import UserError, suggestion

FORM = '{"low": 1, "high": 2}, "log": true besides, or {"choices": [1, 2]}'
NOT_SEARCHED = {
    "env": "scores of several environments cannot be compared",
    "seed": "a seed is no better than another",
}


class Range(NamedTuple):
    """Numbers from low to high, both included; the logarithm is what is drawn where `log`."""

    low: float
    high: float
    log: bool = False

    @property
    def first(self) -> float:
        """Return the lowest value."""
        return self.low

    def __str__(self) -> str:
        return f"{self.low} to {self.high}" + ", logarithmic" * self.log


class Choices(NamedTuple):
    """Values of which one is drawn."""

    values: tuple[Any, ...]

    @property
    def first(self) -> Any:
        """Return the value that was named first."""
        return self.values[0]

    def __str__(self) -> str:
        return ", ".join(json.dumps(value) for value in self.values)


Dimension = Range | Choices


class Space(NamedTuple):
    """What a search varies, and what stays.

    Attributes:
        dimensions: What each searched setting is drawn from.
        sources: Where each of them was given.
        fixed: What stays, as a settings file gives it.
        overrides: What stays, as KEY=VALUE.
    """

    dimensions: dict[str, Dimension]
    sources: dict[str, str]
    fixed: list[Given]
    overrides: list[str]

    def config(self, values: Mapping[str, Any]) -> Config:
        """Return all settings of a point.

        Raises:
            UserError: they cannot be together.
        """
        drawn = [Given(self.sources[name], name, value) for name, value in values.items()]
        return load_config([*self.fixed, *drawn], self.overrides)

    def corners(self) -> list[Config]:
        """Return the settings with every choice of parts, all else at its lowest or first.

        Raises:
            UserError: a line for each setting that one of the parts does not read, and for what
                cannot be together.
        """
        first = {name: dimension.first for name, dimension in self.dimensions.items()}
        parts = {
            name: dimension.values
            for name, dimension in self.dimensions.items()
            if name in installed().registries and isinstance(dimension, Choices)
        }
        found, problems = [], dict[str, None]()
        for chosen in itertools.product(*parts.values()):
            try:
                found.append(self.config(first | dict(zip(parts, chosen, strict=True))))
            except UserError as error:
                problems |= dict.fromkeys(error.lines)
        if problems:
            raise UserError(*problems)
        return found

    def settings(self, config: Config) -> dict[str, Any]:
        """Return of a point's settings those that were given or drawn."""
        texts = (text.partition("=")[0] for text in self.overrides)
        named = {*(each.name for each in self.fixed), *texts, *self.dimensions}
        return {name: getattr(config, name) for name in all_settings() if name in named}


def read_space(file: Path | None, texts: Iterable[str]) -> Space:
    """Return the space of a settings file and of KEY=VALUE texts, which replace what it says.

    Raises:
        UserError: a line for each range that is none, or nothing is to be searched.
    """
    given = given_by_file(file)
    overrides: list[str] = []
    problems: list[str] = []
    for text in texts:
        name, _, value = text.partition("=")
        given = [each for each in given if each.name != name]
        if _is_range(name, value.startswith("{")):
            given += _parsed(text, problems)
        else:
            overrides.append(text)
            problems += _list_problems(text)
    space = Space({}, {}, [], overrides)
    for each in given:
        if not _is_range(each.name, isinstance(each.value, dict)):
            space.fixed.append(each)
            continue
        try:
            space.dimensions[each.name] = _dimension(each)
            space.sources[each.name] = each.source
        except ValueError as error:
            problems.append(f"{each.source}: {error}")
    if not (problems or space.dimensions):
        problems.append(f"--search: nothing to search. Give a setting a range, such as {FORM}")
    if problems:
        raise UserError(*problems)
    return space


def _is_range(name: str, looks_like_one: bool) -> bool:
    """Return whether an object stands for a range; some settings are objects themselves."""
    declaration = all_settings().get(name)
    return looks_like_one and (declaration is None or dict not in declaration.kinds)


def _parsed(text: str, problems: list[str]) -> list[Given]:
    name, _, value = text.partition("=")
    source = f"--var {shortened(text)}"
    try:
        return [Given(source, name, json.loads(value))]
    except (ValueError, RecursionError):
        problems.append(f"{source}: not readable as JSON. Write {FORM}")
        return []


def _list_problems(text: str) -> list[str]:
    """Return a line for what would be a list in a grid."""
    name, _, value = text.partition("=")
    if "," not in value or value.startswith(("{", "[")):
        return []
    return [f"--var {shortened(text)}: a search takes one value of {name}, or a range: {FORM}"]


def _dimension(given: Given) -> Dimension:
    """Return what a setting is drawn from, or raise ValueError with the line to show."""
    name, value = given.name, given.value
    declaration = all_settings().get(name)
    if declaration is None:
        raise ValueError(f"unknown key '{shortened(name)}'.{suggestion(name, all_settings())}")
    if name in NOT_SEARCHED:
        raise ValueError(f"{name}: is not searched, {NOT_SEARCHED[name]}")
    if value.keys() == {"choices"}:
        return Choices(_choices(declaration, value["choices"]))
    if not {"low", "high"} <= value.keys() <= {"low", "high", "log"}:
        raise ValueError(f"{name}: {shown(value)} is no range. Write {FORM}")
    return _range(declaration, value)


def _choices(declaration: Declaration, values: Any) -> tuple[Any, ...]:
    name = declaration.name
    if not isinstance(values, list) or not values:
        raise ValueError(f"{name}: choices are a list with one value or more, not {shown(values)}")
    found = tuple(checked(declaration, value) for value in values)
    if twice := [value for value in found if found.count(value) > 1]:
        raise ValueError(f"{name}: {shown(twice[0])} stands twice among the choices")
    return found


def _range(declaration: Declaration, value: Mapping[str, Any]) -> Range:
    name, log = declaration.name, value.get("log", False)
    if not {int, float} & set(declaration.kinds):
        raise ValueError(f'{name}: is no number and has no range. Write {{"choices": [...]}}')
    if not isinstance(log, bool):
        raise ValueError(f"{name}: log is {shown(log)}, and may be true or false")
    if value["low"] is None or value["high"] is None:
        raise ValueError(f"{name}: the ends of a range are numbers, not null")
    low, high = (checked(declaration, value[end]) for end in ("low", "high"))
    if low > high:
        raise ValueError(f"{name}: low {low} is above high {high}. Exchange them")
    if log and low <= 0:
        raise ValueError(f"{name}: low is {low}, and a logarithmic range begins above 0")
    return Range(low, high, log)


def described(dimensions: Mapping[str, Dimension]) -> Sequence[str]:
    """Return a line for each searched setting."""
    width = max(map(len, dimensions), default=0)
    return [f"{name:{width}}  {dimension}" for name, dimension in dimensions.items()]
