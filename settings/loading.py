"""Settings read from JSON files and `--var KEY=VALUE`, each by its declared type.

Precedence: config.json < --config FILE < --var KEY=VALUE. All problems are collected and raised at
once, one line each, before anything heavy is loaded.
"""

import dataclasses
import json
import logging
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from settings.config import Config
from settings.parts import (
    NOTHING,
    all_settings,
    composed,
    reading,
    settings_of_env,
)
from settings.registry import installed
from settings.values import checked, from_text, shortened, shown
from utils.errors import UserError, suggestion
from utils.files import read_bytes
from utils.user_modules import is_named, search

MOST_BYTES = 2**24  # of a settings file
MOST_UNKNOWN = 10  # unknown keys that are told one by one; to look for a likeness takes long
ROOT = Path(__file__).resolve().parent.parent
SEVERAL = "agents"  # in a settings file: settings of several agents, for sweep.py alone
NAMED_BY_ALL = ("model", "env", "seed", "n_steps", "n_envs")  # by the settings of every run
CONFIGS = "configs"  # the folder of the published settings, in ROOT

log = logging.getLogger(__name__)


class Given(NamedTuple):
    """A setting somebody gave: where, its name, and the value, not yet checked."""

    source: str
    name: str
    value: Any


def load_config(
    file: str | Path | Sequence[Given] | None = None,
    overrides: Iterable[str] = (),
    values: Mapping[str, Any] = NOTHING,
) -> Config:
    """Return the declared defaults, changed by a file and then by KEY=VALUE overrides.

    A settings file may name every setting, as `--print-config` does. If not, it may name those that
    are read by the chosen parts or by those it chooses itself, of which an override may choose
    another: its memoryless twin by `--var model=CNN`. Overrides may name those that are read. An
    agent of the user's own is looked for in the current folder, too.

    Args:
        file: Settings that differ: the file, or what stands in it.
        overrides: More of them, as KEY=VALUE.
        values: More of them, that a Python program gives.

    Raises:
        UserError: one line for every unknown key, wrong type, value out of range, setting that
            nothing reads, or contradiction.
    """
    problems: list[str] = []
    overrides = list(overrides)
    from_file = given_by_file(file)
    from_python = [Given("settings", name, value) for name, value in values.items()]
    chosen = chosen_agent(overrides, values, _values(from_file))
    defaults = [Given("default", name, value) for name, value in default_settings(chosen).items()]
    above = [*from_python, *_given_by_texts(overrides, chosen, problems)]
    good = _good([*defaults, *from_file, *above], chosen, problems)
    problems += _untyped(from_file, chosen)
    problems += _unread_of_file(from_file, good)
    problems += _unread(above, good)
    if problems:
        raise UserError(*problems)
    config = composed(good)
    problems = installed().contradictions(config)
    if problems:
        raise UserError(*problems)
    return config


def config_from_dict(values: Any, source: str) -> Config:
    """Return the settings stored in a checkpoint or a run folder; those that came later may lack.

    An agent of the user's own is imported: runs/stored.py says first whether it may be.

    Raises:
        UserError: a line for everything that is wrong with them, or with that agent.
    """
    if not isinstance(values, dict):
        raise UserError(f"{source}: its settings are not there but {shown(values)}")
    missing = [name for name in NAMED_BY_ALL if name not in values]
    problems = [f"{source}: setting '{name}' is missing" for name in missing]
    all_values = completed(values, values)
    given = [Given(source, name, value) for name, value in all_values.items()]
    found = _good(given, values, problems)
    if problems:
        raise UserError(*problems)
    return composed(found)


def with_env_settings(
    config: Config,
    overrides: Iterable[str],
    places: Collection[str] = (),
    goals: Collection[str] = (),
) -> Config:
    """Return stored settings changed by KEY=VALUE texts, which only the environment may read.

    Args:
        config: The settings.
        overrides: The texts.
        places: Names of settings that may be changed as well: where pretrained parts lie.
        goals: And these, which say what is wanted in the environment.

    Raises:
        UserError: one line for everything else.
    """
    problems: list[str] = []
    chosen, own = dataclasses.asdict(config), settings_of_env(config).union(places)
    given, known = _given_by_texts(overrides, chosen, problems), all_settings(chosen)
    others = [each for each in given if each.name in known and each.name not in own.union(goals)]
    allowed = f"change {', '.join(sorted(own))}" if own else f"{config.env} has no such setting"
    problems += [
        f"{each.source}: {each.name} is neither read by the environment alone nor the place of a "
        f"pretrained part; {allowed}"
        for each in others
    ]
    changes = _good([each for each in given if each not in others], chosen, problems)
    if problems:
        raise UserError(*problems)
    return dataclasses.replace(config, **changes)


def chosen_agent(overrides: Iterable[str], *below: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the agent of the user's own that is chosen, imported; nothing if none is.

    Args:
        overrides: KEY=VALUE texts.
        below: Settings that these override, and others that those override.

    Raises:
        UserError: it is no agent, or does not declare its settings as it must.
    """
    texts = [text.partition("=")[2] for text in overrides if text.startswith("model=")]
    names = [*texts[-1:], *(values["model"] for values in below if "model" in values)]
    if not names or not is_named(names[0]):
        return NOTHING
    search(Path.cwd())
    chosen = {"model": names[0]}
    all_settings(chosen)  # what is wrong with it is told before anything of its settings
    return chosen


def completed(stored: Mapping[str, Any], chosen: Mapping[str, Any] = NOTHING) -> dict[str, Any]:
    """Return stored settings with the defaults of those added that came later.

    Those of an agent of the user's own are added only where it is `chosen`, which imports it.
    """
    return default_settings(chosen) | dict(stored)


def file_settings(path: Path) -> dict[str, Any]:
    """Return what a settings file says, not yet checked; configs/... may be named from anywhere."""
    return read_json_object(_published(path))


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
    values = file_settings(Path(file))
    if SEVERAL in values:
        raise UserError(
            f"{file}: holds settings of several agents ('{SEVERAL}'), which sweep.py trains: "
            f"python sweep.py --config {file}"
        )
    return [Given(str(file), name, value) for name, value in values.items()]


def default_settings(chosen: Mapping[str, Any] = NOTHING) -> dict[str, Any]:
    """Return the default of every setting, as config.json shows them."""
    return {name: each.metadata["default"] for name, each in all_settings(chosen).items()}


def _published(path: Path) -> Path:
    """Return a path under configs/ as one beside this program, where there is none here."""
    beside = ROOT / path
    is_ours = path.parts[:1] == (CONFIGS,) and not os.path.lexists(path) and beside.is_file()
    return beside if is_ours else path


def _given_by_texts(
    overrides: Iterable[str], chosen: Mapping[str, Any], problems: list[str]
) -> list[Given]:
    """Return what KEY=VALUE texts give; a line for each that is none is added to the problems."""
    declarations, given = all_settings(chosen), []
    for text in overrides:
        name, equals, value = text.partition("=")
        source = f"--var {shortened(text)}"
        if equals:
            given.append(Given(source, name, from_text(declarations.get(name), value)))
        else:
            problems.append(f"{source}: expected KEY=VALUE, such as --var learning_rate=3e-4")
    return given


def _good(given: Iterable[Given], chosen: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """Return the good values; a line for each bad one is added to the problems."""
    declarations = all_settings(chosen)
    good: dict[str, Any] = {}
    unknown: list[Given] = []
    for each in given:
        if each.name not in declarations:
            unknown.append(each)
            continue
        try:
            good[each.name] = checked(declarations[each.name], each.value)
        except ValueError as error:
            good.pop(each.name, None)
            problems.append(f"{each.source}: {error}")
    for each in unknown[:MOST_UNKNOWN]:
        text = shortened(str(each.name))
        problems.append(f"{each.source}: unknown key '{text}'.{suggestion(text, declarations)}")
    if len(unknown) > MOST_UNKNOWN:
        problems.append(f"{each.source}: {len(unknown) - MOST_UNKNOWN:,} more unknown keys")
    return good


def _untyped(from_file: Iterable[Given], chosen: Mapping[str, Any]) -> list[str]:
    """Return a line for every value of a settings file that only the command line may give."""
    declarations = all_settings(chosen)
    metadata = [
        (each, declarations[each.name].metadata) for each in from_file if each.name in declarations
    ]
    return [
        f"{each.source}: {each.name} is taken from the command line alone. Leave it out of the "
        f"file, and add --var {each.name}=..."
        for each, facts in metadata
        if facts["typed"] and each.value != facts["default"]
    ]


def _unread(given: Iterable[Given], *chosen: Mapping[str, Any]) -> list[str]:
    """Return a line for every good setting that no part reads, chosen by one of these values."""
    values = chosen[0]
    who = reading(values)
    read = set().union(*(who.read_by(each) for each in chosen))
    return [
        f"{each.source}: {who.refusal(each.name, values)}"
        for each in given
        if each.name in values and each.name not in read
    ]


def _unread_of_file(given: Sequence[Given], values: Mapping[str, Any]) -> list[str]:
    """Return a line for every setting of a file that its own parts do not read, nor the chosen.

    A file that is whole, as a run's is, has what its model does not read. It is known by naming all
    that every run has.
    """
    in_file = _values(given)
    if not in_file or {field.name for field in dataclasses.fields(Config)} <= in_file.keys():
        return []
    read = reading(values).read_by(values)
    left_out = [name for name in in_file if name in values and name not in read]
    unread = _unread(given, values, {**values, **in_file})
    if left_out and not unread:
        log.warning(
            "%s does not read %s of the file", shortened(values["model"]), ", ".join(left_out)
        )
    return unread


def _values(given: Iterable[Given]) -> dict[str, Any]:
    """Return what is given by name."""
    return {each.name: each.value for each in given}


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of a JSON object as a dictionary, or raise ValueError."""
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = next(name for name, n in Counter(name for name, _ in pairs).items() if n > 1)
        raise ValueError(f"the key '{shortened(twice)}' stands there twice")
    return values
