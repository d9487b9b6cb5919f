"""Settings as they are given: by files, KEY=VALUE texts, Python programs and stored runs.

Precedence: defaults < --config FILE < --var KEY=VALUE. All problems are raised at once, one line
each, before anything heavy is loaded.
"""

import dataclasses
import json
import logging
import os
import shlex
import textwrap
from collections import ChainMap
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from utils.errors import UserError, did_you_mean, raise_any, shortened
from utils.files import read_bytes
from utils.settings import (
    NOTHING,
    Config,
    Settings,
    Values,
    all_settings,
    as_json,
    checked,
    from_text,
    installed,
    kind_text,
    own_choices,
    range_text,
    read_settings,
    settings_index,
    settings_of_env,
    with_text,
)
from utils.user_modules import search

# Names that other programs give to settings.
ELSEWHERE = {
    "algo": "algorithm",
    "buffer_size": "replay_capacity",
    "clip_coef": "clip_range",
    "discount": "gamma",
    "entropy_coef": "ent_coef",
    "env_id": "env",
    "hidden_size": "memory_width",
    "lr": "learning_rate",
    "num_envs": "n_envs",
    "num_layers": "memory_layers",
    "num_minibatches": "n_batches",
    "num_steps": "n_rollout_steps",
    "timesteps": "n_steps",
    "total_steps": "n_steps",
    "total_timesteps": "n_steps",
    "update_epochs": "n_epochs",
}
MOST_BYTES = 2**24  # of a settings file
MOST_DIGITS, MOST_NESTED = 300, 100  # a float holds a number of 300 digits
MOST_UNKNOWN = 10  # unknown keys that are told one by one; to look for a likeness takes long
SEVERAL = "agents"  # in a settings file: settings of several agents, for sweep.py alone
NAMED_BY_ALL = ("model", "env", "seed", "n_steps", "n_envs")  # by the settings of every run
CONFIGS = Path(__file__).resolve().parent.parent / "configs"  # the published settings
MEM_LEN_IGNORED_FOR = ("HELM", "HELMv2")
MEM_LEN_RAN = 511
NOTE = (
    f"* The released code ignored mem_len for {' and '.join(MEM_LEN_IGNORED_FOR)} and ran "
    f"{MEM_LEN_RAN}, and so did the\n"
    f"  published results. Here it is read; --var mem_len={MEM_LEN_RAN} or a file named -as-run "
    "repeats them.\n  See configs/README.md"
)


log = logging.getLogger(__name__)


class Override(NamedTuple):
    source: str
    name: str
    value: Any


def options_as_settings(words: Iterable[str]) -> str:
    """Return the settings to type in the place of unknown options, such as --model LSTM."""
    found: list[list[str]] = []
    for word in words:
        if word.startswith("--"):
            name, *value = word.lstrip("-").split("=", 1)
            name = name.replace("-", "_")
            found.append([ELSEWHERE.get(name, name), *value])
        elif found:
            found[-1].append(word)
    if "seeds" in [name for name, *_ in found]:
        return "A run has one seed, --seed N. Several runs: python sweep.py --seeds N"
    texts = [f"{name}={' '.join(value) or 'VALUE'}" for name, *value in found] or ["KEY=VALUE"]
    return f"Settings are given by {' '.join(f'--var {shlex.quote(text)}' for text in texts)}"


def load_config(
    file: str | Path | Sequence[Override] | None = None,
    overrides: Iterable[str] = (),
    values: Values = NOTHING,
) -> Config:
    """Return the declared defaults, changed by a file and then by KEY=VALUE overrides.

    A settings file may name every setting, as `--print-config` does. A shorter file may name
    settings of the parts that are chosen in the end, and of the parts that the file itself chooses:
    so `--var model=CNN` trains the memoryless twin of a file for HELM. An override may name only
    settings that the chosen parts read. An agent of the user's own is also searched for in the
    current folder.

    Args:
        file: A settings file, or its content.
        overrides: KEY=VALUE texts.
        values: Settings given by a Python program.

    Raises:
        UserError: one line for every unknown key, wrong type, value out of range, setting that
            nothing reads, or contradiction.
    """
    problems: list[str] = []
    overrides = list(overrides)
    from_file = given_by_file(file)
    from_python = [Override("settings", *each) for each in values.items()]
    chosen = own_classes(overrides, values, _values(from_file))
    defaults = [Override("default", *each) for each in default_settings(chosen).items()]
    above = [*from_python, *_given_by_texts(overrides, chosen, problems)]
    good = _good([*defaults, *from_file, *above], chosen, problems)
    problems += _untyped(from_file, chosen)
    problems += _unread_of_file(from_file, good)
    problems += _unread(above, good)
    raise_any(problems)
    config = Settings(good).part(Config)
    raise_any(installed().validate_config(config))
    return config


def config_from_dict(values: object, source: str) -> Config:
    """Return the settings stored in a checkpoint or a run folder; later ones may lack."""
    # An agent of the user's own is imported: utils/run_folder.py decides first whether it may be.
    if not isinstance(values, dict):
        raise UserError(f"{source}: settings are a JSON object, not {as_json(values)}")
    missing = [name for name in NAMED_BY_ALL if name not in values]
    problems = [f"{source}: setting '{name}' is missing" for name in missing]
    if unknown := [shortened(name) for name in values if name not in all_settings(values)]:
        more = f" and {len(unknown) - MOST_UNKNOWN:,} more" * (len(unknown) > MOST_UNKNOWN)
        problems.append(
            f"{source}: unknown settings {', '.join(unknown[:MOST_UNKNOWN])}{more}, perhaps of "
            "another version of this program. Use the version that began the run"
        )
    raise_any(problems)
    given = [Override(source, *each) for each in with_defaults(values, values).items()]
    found = _good(given, values, problems)
    raise_any(problems)
    return Settings(found).part(Config)


def with_env_settings(
    config: Config,
    overrides: Iterable[str],
    places: Collection[str] = (),
    goals: Collection[str] = (),
) -> Config:
    """Return stored settings changed by KEY=VALUE texts, which only the environment may read.

    Args:
        config: The settings.
        overrides: The texts; an object is merged with the stored one.
        places: Settings that may be changed as well: paths of pretrained parts.
        goals: And these, which name goals in the environment.

    Raises:
        UserError: one line for every other text.
    """
    problems: list[str] = []
    chosen, own = config.as_dict(), settings_of_env(config).union(places)
    given, known = _given_by_texts(overrides, chosen, problems), all_settings(chosen)
    others = [each for each in given if each.name in known and each.name not in own.union(goals)]
    allowed = f"Only {', '.join(sorted(own))} can be changed" if own else "Leave it out"
    problems += [
        f"{each.source}: {each.name} stays as it was in training. {allowed}" for each in others
    ]
    changes = _good([each for each in given if each not in others], chosen, problems)
    raise_any(problems)
    for name, value in changes.items():
        if isinstance(value, dict):  # arguments of the environment: those not named stay
            changes[name] = {**chosen[name], **value}
    return config.replace(**changes)


def own_classes(overrides: Iterable[str], *below: Values) -> Values:
    """Return the chosen classes of the user's own as settings, imported; nothing without one.

    Args:
        overrides: KEY=VALUE texts.
        below: Settings that these override, and others that those override.
    """
    texts = dict(text.partition("=")[::2] for text in overrides)
    chosen = own_choices(ChainMap(texts, *map(dict, below)))
    if not chosen:
        return NOTHING
    search(Path.cwd())
    all_settings(chosen)  # mistakes of its code are told before those of its settings
    return chosen


def with_defaults(stored: Values, chosen: Values = NOTHING) -> dict[str, Any]:
    """Return stored settings, completed by later ones' `older`; `chosen` imports its agent."""
    older = {name: each.metadata["older"] for name, each in all_settings(chosen).items()}
    return {**older, **stored}


def file_settings(path: Path) -> dict[str, Any]:
    """Read a settings file, unchecked; configs/... may be named from anywhere."""
    beside = CONFIGS.parent / path
    is_ours = path.parts[:1] == (CONFIGS.name,) and not os.path.lexists(path) and beside.is_file()
    return read_json_object(beside if is_ours else path)


def read_json_object(path: Path, of_run: bool = False) -> dict[str, Any]:
    """Return the object in a file: one that the user names, or one `of_run`, in a run folder."""
    try:
        text = read_bytes(path, MOST_BYTES, of_run).decode()
        values = json.loads(text, object_pairs_hook=_without_repetition, parse_int=_whole)
        _check_depth(values)
    except FileNotFoundError:
        raise UserError(f"{path}: no such settings file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not readable as JSON: {str(error).splitlines()[0]}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: not one JSON object but a {type(values).__name__}")
    return values


def given_by_file(file: str | Path | Sequence[Override] | None) -> list[Override]:
    if file is None:
        return []
    if not isinstance(file, (str, Path)):
        return list(file)
    values = file_settings(Path(file))
    if SEVERAL in values:
        remedy = f"Train them by: python sweep.py --config {file}"
        raise UserError(f"{file}: holds settings of several agents ('{SEVERAL}'). {remedy}")
    return [Override(str(file), *each) for each in values.items()]


def default_settings(chosen: Values = NOTHING) -> dict[str, Any]:
    return {name: each.metadata["default"] for name, each in all_settings(chosen).items()}


def _given_by_texts(
    overrides: Iterable[str], chosen: Values, problems: list[str]
) -> list[Override]:
    declarations, given = all_settings(chosen), []
    for text in overrides:
        name, equals, value = text.partition("=")
        source = f"--var {shortened(text)}"
        if equals:
            declaration = declarations.get(name)
            given.append(Override(source, name, from_text(declaration, value)))
        else:
            problems.append(f"{source}: expected KEY=VALUE, such as --var learning_rate=3e-4")
    return given


def _good(given: Iterable[Override], chosen: Values, problems: list[str]) -> dict[str, Any]:
    declarations = all_settings(chosen)
    good: dict[str, Any] = {}
    unknown: list[Override] = []
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
        known_as = ELSEWHERE.get(text)
        hint = f" Did you mean '{known_as}'?" if known_as else did_you_mean(text, declarations)
        problems.append(f"{each.source}: unknown key '{text}'.{hint}")
    if len(unknown) > MOST_UNKNOWN:
        problems.append(f"{each.source}: {len(unknown) - MOST_UNKNOWN:,} more unknown keys")
    return good


def _untyped(from_file: Iterable[Override], chosen: Values) -> list[str]:
    facts = {name: each.metadata for name, each in all_settings(chosen).items()}
    typed = {name: each["default"] for name, each in facts.items() if each["typed"]}
    return [
        f"{each.source}: {each.name} is taken from the command line alone. Leave it out of the "
        f"file, and add --var {each.name}=..."
        for each in from_file
        if each.name in typed and each.value != typed[each.name]
    ]


def _unread(given: Iterable[Override], *chosen: Values) -> list[str]:
    values, readers = chosen[0], settings_index(chosen[0])
    read = set().union(*(readers.read_by(each) for each in chosen))
    return [
        f"{each.source}: {readers.refusal(each.name, values)}"
        for each in given
        if each.name in values and each.name not in read
    ]


def _unread_of_file(given: Sequence[Override], values: Values) -> list[str]:
    """Return a line for every setting of a file that neither its own parts nor the chosen read."""
    # The file of a run names all settings, also those that its model does not read. Such a file is
    # recognised by this: it names every setting that all runs share.
    in_file = _values(given)
    if not in_file or {field.name for field in dataclasses.fields(Config)} <= in_file.keys():
        return []
    read = settings_index(values).read_by(values)
    left_out = [name for name in in_file if name in values and name not in read]
    unread = _unread(given, values, {**values, **in_file})
    parts: dict[str, list[str]] = {}  # the model, the environment, ...
    for name in left_out if not unread else ():
        part = str(values[settings_index(values).choice(name)])
        parts.setdefault(part, []).append(name)
    for part, names in parts.items():
        log.warning("%s does not read %s of the file", shortened(part), ", ".join(names))
    return unread


def _values(given: Iterable[Override]) -> dict[str, Any]:
    return {each.name: each.value for each in given}


def _whole(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"a whole number of {len(text):,} digits")
    return int(text)


def _check_depth(values: object) -> None:
    level, depth = [values], 0
    while level := [each for each in level if isinstance(each, dict | list)]:
        level = [
            part for each in level for part in (each.values() if isinstance(each, dict) else each)
        ]
        if (depth := depth + 1) > MOST_NESTED:
            raise ValueError(f"more than {MOST_NESTED} objects and lists within one another")


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"the key '{shortened(name)}' is given twice")
        values[name] = value
    return values


def describe_settings(part: str = "", chosen: Values = NOTHING) -> str:
    """Return the help of a part's settings, of one setting, of "all", or the names of the parts.

    A part is named by its title or by the value that chooses it, as PPO or KeyToDoor-v0. Those of
    the user's own agent are known where it is chosen.
    """
    readers = settings_index(chosen).readers
    groups: dict[str, list[str]] = {}
    for name, each in all_settings(chosen).items():
        title, by = each.title, readers(name)
        if part not in ("", "all", title, name, *by):
            continue
        heading = title if by in ([], [title]) else f"{title} (read by {', '.join(by)})"
        default = json.dumps(each.metadata["default"])
        groups.setdefault(heading, []).append(
            f"  {name} ({kind_text(each)}, default {default})\n"
            f"      {each.metadata['help']}{range_text(each)}{with_text(each)}"
        )
    titles = dict.fromkeys(each.title for each in all_settings(chosen).values())
    if not groups:
        raise UserError(f"--help {part}: no such part or setting.{did_you_mean(part, titles)}")
    if not part:
        return textwrap.fill(f"parts with settings, for --help PART: {', '.join(titles)}", 79)
    lines = "\n".join("\n".join([f"\n{heading}:", *lines]) for heading, lines in groups.items())
    return f"settings, for --var and --config:\n{lines}"


def published_table() -> str:
    rows = [("settings file", "agent", "environment", "steps", "mem_len")]
    for path in sorted(CONFIGS.rglob("config.json")):
        config = load_config(path)
        how = "" if config.algorithm == "PPO" else f", {config.algorithm}"
        mem_len = ""
        if "mem_len" in read_settings(config):  # marked where the published run had another
            mem_len = str(config.as_dict()["mem_len"])
            is_ignored = config.model in MEM_LEN_IGNORED_FOR and mem_len != str(MEM_LEN_RAN)
            mem_len += "*" if is_ignored else " "
        place = str(path.relative_to(CONFIGS.parent))
        rows.append((place, f"{config.model}{how}", config.env, f"{config.n_steps:,}", mem_len))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:  # names to the left, numbers to the right
        cells = *map(str.ljust, row[:3], widths), *map(str.rjust, row[3:], widths[3:])
        lines.append("  ".join(cells).rstrip())
    return "\n".join([*lines, "", NOTE])
