"""Settings read from JSON files and `--var KEY=VALUE`, each by its declared type.

Precedence: config.json < --config FILE < --var KEY=VALUE. All problems are collected and raised at
once, one line each, before anything heavy is loaded.
"""

import dataclasses
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from settings.config import Config
from settings.declaration import Declaration
from settings.parts import (
    all_settings,
    composed,
    contradictions,
    reading,
    settings_of_env,
    settings_without_effect,
)
from settings.values import checked, from_text, shortened, shown
from utils.errors import UserError, suggestion
from utils.files import read_bytes

MOST_BYTES = 2**24  # of a settings file
DEFAULT_FILE = Path(__file__).resolve().parent.parent / "config.json"


class Given(NamedTuple):
    """A setting somebody gave: where, its name, and the value, not yet checked."""

    source: str
    name: str
    value: Any


def load_config(
    file: str | Path | Sequence[Given] | None = None,
    overrides: Iterable[str] = (),
    default_file: Path = DEFAULT_FILE,
) -> Config:
    """Return the settings of config.json, changed by a file and then by KEY=VALUE overrides.

    A settings file may name every setting, as `--print-config` does. If not, it may name those that
    the chosen parts read, and so may the overrides.

    Args:
        file: The file, or what stands in it.
        overrides: KEY=VALUE texts.
        default_file: config.json.

    Raises:
        UserError: one line for every unknown key, wrong type, value out of range, setting that
            nothing reads, or contradiction.
    """
    problems: list[str] = []
    defaults = given_by_file(default_file)
    from_file = given_by_file(file)
    from_texts = _given_by_texts(overrides, problems)
    declared = [Given("", name, value) for name, value in _declared_defaults().items()]
    values = _good([*declared, *defaults, *from_file, *from_texts], problems)
    named = {each.name for each in (*declared, *defaults, *from_file)}
    problems += _missing(str(default_file), named)
    stored = completed({each.name: each.value for each in from_file})
    if _missing("", stored):  # else it is whole, as a run's is, with what its model does not read
        problems += _unread(from_file, values)
    problems += _unread(from_texts, values)
    if problems:
        raise UserError(*problems)
    config = composed(values)
    problems = contradictions(config)
    if problems:
        raise UserError(*problems)
    return config


def config_from_dict(values: Any, source: str) -> Config:
    """Return the settings stored in a checkpoint or a run folder, which must be complete.

    Some may be missing: those without effect, and those that came later.
    """
    if not isinstance(values, dict):
        raise UserError(f"{source}: its settings are not there but {shown(values)}")
    values = completed(values)
    problems: list[str] = []
    found = _good([Given(source, name, value) for name, value in values.items()], problems)
    problems += _missing(source, values)
    if problems:
        raise UserError(*problems)
    return composed(found)


def with_env_settings(
    config: Config, overrides: Iterable[str], places: Collection[str] = ()
) -> Config:
    """Return stored settings changed by KEY=VALUE texts, which only the environment may read.

    Args:
        config: The settings.
        overrides: The texts.
        places: Names of settings that may be changed as well: where pretrained parts lie.

    Raises:
        UserError: one line for everything else.
    """
    problems: list[str] = []
    own = settings_of_env(config).union(places)
    given = _given_by_texts(overrides, problems)
    others = [each for each in given if each.name in all_settings() and each.name not in own]
    allowed = f"change {', '.join(sorted(own))}" if own else f"{config.env} has no such setting"
    problems += [
        f"{each.source}: {each.name} is neither read by the environment alone nor the place of a "
        f"pretrained part; {allowed}"
        for each in others
    ]
    changes = _good([each for each in given if each not in others], problems)
    if problems:
        raise UserError(*problems)
    return dataclasses.replace(config, **changes)


def completed(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored settings with those added that may be missing among them.

    Those without effect are as in config.json, others have the default they declare.
    """
    defaults = read_json_object(DEFAULT_FILE)
    missing = {name: defaults[name] for name in settings_without_effect() if name in defaults}
    return _declared_defaults() | missing | dict(stored)


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


def given_by_file(file: str | Path | Sequence[Given] | None) -> list[Given]:
    """Return what stands in a settings file, not yet checked; nothing without a file."""
    if file is None:
        return []
    if not isinstance(file, (str, Path)):
        return list(file)
    path = Path(file)
    return [Given(str(path), name, value) for name, value in read_json_object(path).items()]


def _declared_defaults() -> dict[str, Any]:
    """Return the defaults that stand beside the code."""
    return {
        name: each.metadata["default"] for name, each in all_settings().items() if each.has_default
    }


def _given_by_texts(overrides: Iterable[str], problems: list[str]) -> list[Given]:
    """Return what KEY=VALUE texts give; a line for each that is none is added to the problems."""
    declarations, given = all_settings(), []
    for text in overrides:
        name, equals, value = text.partition("=")
        source = f"--var {shortened(text)}"
        if equals:
            given.append(Given(source, name, from_text(declarations.get(name), value)))
        else:
            problems.append(f"{source}: expected KEY=VALUE, such as --var learning_rate=3e-4")
    return given


def _good(given: Iterable[Given], problems: list[str]) -> dict[str, Any]:
    """Return the good values; a line for each bad one is added to the problems."""
    declarations = all_settings()
    good: dict[str, Any] = {}
    for source, name, value in given:
        try:
            good[name] = checked(_known(name, declarations), value)
        except ValueError as error:
            good.pop(name, None)
            problems.append(f"{source}: {error}")
    return good


def _known(name: Any, declarations: Mapping[str, Declaration]) -> Declaration:
    """Return the declaration of a setting, or raise ValueError with the line to show."""
    if name not in declarations:
        text = shortened(str(name))
        raise ValueError(f"unknown key '{text}'.{suggestion(text, declarations)}")
    return declarations[name]


def _missing(source: str, named: Collection[str]) -> list[str]:
    """Return a line for every setting that is not named."""
    return [
        f"{source}: setting '{name}' is missing" for name in all_settings() if name not in named
    ]


def _unread(given: Iterable[Given], values: Mapping[str, Any]) -> list[str]:
    """Return a line for every good setting that no chosen part reads."""
    who = reading()
    read = who.read_by(values)
    return [
        f"{each.source}: {who.refusal(each.name, values)}"
        for each in given
        if each.name in values and each.name not in read
    ]


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of a JSON object as a dictionary, or raise ValueError."""
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key '{shortened(twice)}' stands there twice")
    return values
