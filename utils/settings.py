"""Settings of a run: declared by part beside the code that reads them, read as one flat object.

They are the fields of a dataclass, made by `setting`:

    @dataclass(frozen=True)
    class GruSettings(Part):
        title = "GRU"

        gru_layers: int = setting("layers of the GRU", low=1, high=16, default=1)

A part that is chosen by name (an agent, a learner, a suite of environments) has such classes under
`reads`: the settings are then known to the command line and to its help. Programs hand over the
parts by `install`. An agent of the user's own stands in no registry: its settings are known where
it is `chosen`. Precedence: defaults < --config FILE < --var KEY=VALUE. All problems are raised at
once, one line each, before anything heavy is loaded.
"""

import contextlib
import dataclasses
import functools
import inspect
import json
import logging
import math
import os
import pkgutil
import re
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

from utils.errors import UserError, did_you_mean, escape, raise_any, shortened
from utils.files import read_bytes
from utils.user_modules import is_named, module_folder, named_modules, search

MOST_SEED = 2**32 - 1
KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    dict: "a JSON object",
    type(None): "null",
}
# Settings under their earlier names, which are understood for one version.
RENAMED = {
    "ask_again": "retry_malformed",
    "captions": "crafter_captions",
    "check_success": "require_success",
    "dying": "terminate_on_death",
    "epsilon_share": "exploration_fraction",
    "icm": "curiosity_icm",
    "media_minutes": "showcase_minutes",
    "missions": "minigrid_missions",
    "retrieval_colours": "retrieval_channels",
    "stimuli": "recognition_stimuli",
    "text_to": "text_reader",
    "update_every_steps": "train_frequency",
    "updates_per_step": "replay_ratio",
    "warmup_steps": "learning_starts",
}
NOTHING: Mapping[str, Any] = types.MappingProxyType({})
MOST_BYTES = 2**24  # of a settings file
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
            written: they are not taken from somebody else's run (utils/run_folder.py).
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

    algorithm: str = setting("how it learns: PPO, DQN, SAC, EllmDQN", default="PPO")
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
    """Return the JSON value a command-line text stands for; fields of text alone take it as it is.

    Only null is null where a text may be missing; a file of that name is ./null.
    """
    if declaration is None or (str in declaration.kinds and bool not in declaration.kinds):
        may_be_missing = declaration is not None and type(None) in declaration.kinds
        return None if text == "null" and may_be_missing else text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def checked(declaration: Declaration, value: Any) -> Any:
    name, limits = declaration.name, declaration.metadata
    value = _as_type(declaration, value)
    if limits["choices"] and isinstance(value, str) and value not in limits["choices"]:
        hint = did_you_mean(str(value), limits["choices"])
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


class Registry:
    """The parts that one setting chooses among; each is imported when it is chosen.

    Args:
        setting: That setting.
        places: "module:Class" by name. A class has in `reads` the settings that it alone reads.
        title: The noun for one of them in messages.
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
        key = self.aliases.get(name, name)
        return key if key in self.places else None

    def find(self, name: str) -> Any:
        key = self.known_as(name)
        if key is None:
            names = (*self.places, *self.aliases)
            raise UserError(
                f"{self.setting}: unknown {self.title} '{name}', known: {', '.join(names)}."
                f"{did_you_mean(name, names)}"
            )
        return pkgutil.resolve_name(self.places[key])

    def settings(self) -> dict[str, tuple[type[Part], ...]]:
        return {name: self.find(name).reads for name in self.places}


class Program(NamedTuple):
    """The parts of a program's settings.

    Attributes:
        registries: By the setting that chooses among their parts.
        general: The settings that every run reads.
        validate_config: Returns a line for every pair of settings that cannot both hold.
        recomposed: Makes settings in another process, given their values and the folders of the
            user's own code; a pickle names it by its module, which must install the program.
    """

    registries: Mapping[str, Registry]
    general: tuple[type[Part], ...]
    validate_config: Callable[[Any], list[str]]
    recomposed: Callable[[Mapping[str, Any], Iterable[Path]], Any]


_installed: list[Program] = []


def install(program: Program) -> None:
    _installed[:] = [program]


def installed() -> Program:
    if not _installed:
        raise RuntimeError("settings: no program is installed. Import trainers.build first")
    return _installed[0]


class SettingsIndex(NamedTuple):
    """Settings read in every run, and by each part: choosing setting -> part's name -> settings."""

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
        readers = self.readers(name)
        key = next(key for key, parts in self.by_choice.items() if readers[0] in parts)
        this = f"{key} is null" if values[key] is None else f"this is {shortened(values[key])}"
        listed = " and ".join(filter(None, (", ".join(readers[:-1]), readers[-1])))
        return f"{name} is read by {listed}, and {this}"


def all_settings(chosen: Mapping[str, Any] = NOTHING) -> dict[str, Declaration]:
    """Return every setting by its name; a wrong declaration of the user's agent is a UserError."""
    name = chosen.get("model")
    if not is_named(name):
        return _declared(_all_parts(chosen))
    try:
        found = _declared(_all_parts(chosen))
    except (TypeError, NameError) as error:
        raise UserError(f"model: '{name}': {error}") from None
    for each in found.keys() - all_settings().keys():
        if not set(found[each].kinds) <= KINDS.keys():
            raise UserError(
                f"model: '{name}': its setting '{each}' must be an int, float, bool or str, "
                "perhaps with | None"
            )
    return found


def settings_without_effect(chosen: Mapping[str, Any] = NOTHING) -> set[str]:
    """Return the settings of keeping and showing, which change no number of a run."""
    return {name for name, each in all_settings(chosen).items() if not each.metadata["has_effect"]}


def outside_settings() -> dict[str, Callable[[Any], bool]]:
    """Return, for each setting that may lead outside, a test of whether a value does."""
    return {
        name: functools.partial(_leads_outside, each.metadata["safe"])
        for name, each in all_settings().items()
        if each.metadata["safe"] is not None
    }


def settings_index(chosen: Mapping[str, Any] = NOTHING) -> SettingsIndex:
    return SettingsIndex(
        _names([Config, *installed().general]),
        {
            key: {name: _names(parts) for name, parts in table.items()}
            for key, table in _tables(chosen).items()
        },
    )


def read_settings(config: Config) -> set[str]:
    values = dataclasses.asdict(config)
    return settings_index(values).read_by(values)


def settings_of_env(config: Config) -> set[str]:
    readers, chosen = settings_index(dataclasses.asdict(config)), _known_as("env", config.env)
    suites = readers.by_choice["env"]
    own = suites[chosen] if chosen else set()
    # Not those that other parts read as well, nor those of every run, which have no readers.
    return {name for name in own if (by := readers.readers(name)) and suites.keys() >= {*by}}


def composed_class(chosen: Mapping[str, Any] = NOTHING) -> type[Config]:
    return _composed(_all_parts(chosen))


_declared = functools.cache(declared)


@functools.cache
def _composed(parts: tuple[type[Part], ...]) -> type[Config]:
    # Python orders bases only if none is built on by another; the fields of the last come first.
    bases = [part for part in parts if sum(issubclass(other, part) for other in parts) == 1]
    # Some settings are dictionaries, which have no hash.
    namespace = {
        "__reduce__": _reduced,
        "__hash__": lambda config: hash(json.dumps(dataclasses.asdict(config), sort_keys=True)),
    }
    made = dataclasses.make_dataclass(
        "RunConfig", [], bases=tuple(reversed(bases)), namespace=namespace, frozen=True
    )
    return cast(type[Config], made)


def _reduced(config: Config) -> tuple[Any, ...]:
    values = dataclasses.asdict(config)
    places = [module_folder(module) for module in named_modules(values).values()]
    return installed().recomposed, (values, [place for place in places if place is not None])


def recomposed(values: Mapping[str, Any], places: Iterable[Path]) -> Config:
    """Unpickle settings; `places` are the folders of the user's own code."""
    for place in places:
        search(place)
    return composed_class(values)(**values)


def _leads_outside(safe: tuple[Any, ...], value: Any) -> bool:
    """Return whether a value is not safe; of a dictionary, whether a text in it may be a place.

    A text with a colon may name a module, or be an address.
    """
    if not isinstance(value, dict):
        return value not in safe
    parts: list[Any] = [value]
    for part in parts:  # the list grows meanwhile: nested values come last
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


class Override(NamedTuple):
    """A setting with its origin (a file, --var), its value not yet checked."""

    source: str
    name: str
    value: Any


def override(source: str, name: str, value: Any) -> Override:
    """Return a setting that somebody gave, under its present name; an earlier one is told."""
    ((present, now),) = present_settings({name: value}).items()
    if (present, now) != (name, value):
        log.warning(f"{escape(source)}: {name}={shown(value)} is {present}={shown(now)} now")
    return Override(source, present, now)


def present_text(text: str) -> str:
    """Return KEY=VALUE of a command line under the setting's present name."""
    name, equals, value = text.partition("=")
    one = override(f"--var {shortened(text)}", name, value)
    return f"{one.name}{equals}{one.value}"


def present_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings under their present names."""
    if values.get("algorithm") == "NStepDQN":
        values = {**values, "algorithm": "EllmDQN"}
    return {RENAMED.get(name, name): value for name, value in values.items()}


def load_config(
    file: str | Path | Sequence[Override] | None = None,
    overrides: Iterable[str] = (),
    values: Mapping[str, Any] = NOTHING,
) -> Config:
    """Return the declared defaults, changed by a file and then by KEY=VALUE overrides.

    A settings file may name every setting, as `--print-config` does. If not, it may name those that
    are read by the chosen parts or by those it chooses itself, of which an override may choose
    another: its memoryless twin by `--var model=CNN`. Overrides may name those that are read. An
    agent of the user's own is looked for in the current folder, too.

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
    from_python = [override("settings", *each) for each in values.items()]
    chosen = chosen_agent(overrides, values, _values(from_file))
    defaults = [Override("default", *each) for each in default_settings(chosen).items()]
    above = [*from_python, *_given_by_texts(overrides, chosen, problems)]
    good = _good([*defaults, *from_file, *above], chosen, problems)
    problems += _untyped(from_file, chosen)
    problems += _unread_of_file(from_file, good)
    problems += _unread(above, good)
    raise_any(problems)
    config = composed_class(good)(**good)
    raise_any(installed().validate_config(config))
    return config


def config_from_dict(values: Any, source: str) -> Config:
    """Return the settings stored in a checkpoint or a run folder; those that came later may lack.

    An agent of the user's own is imported: utils/run_folder.py decides first whether it may be.
    """
    if not isinstance(values, dict):
        raise UserError(f"{source}: settings are a JSON object, not {shown(values)}")
    missing = [name for name in NAMED_BY_ALL if name not in values]
    problems = [f"{source}: setting '{name}' is missing" for name in missing]
    given = [Override(source, *each) for each in with_defaults(values, values).items()]
    found = _good(given, values, problems)
    raise_any(problems)
    return composed_class(found)(**found)


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
        places: Settings that may be changed as well: paths of pretrained parts.
        goals: And these, which name goals in the environment.

    Raises:
        UserError: one line for every other text.
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
    raise_any(problems)
    return dataclasses.replace(config, **changes)


def chosen_agent(overrides: Iterable[str], *below: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the chosen agent of the user's own as settings, imported; nothing if none is chosen.

    Args:
        overrides: KEY=VALUE texts.
        below: Settings that these override, and others that those override.
    """
    texts = [text.partition("=")[2] for text in overrides if text.startswith("model=")]
    names = [*texts[-1:], *(values["model"] for values in below if "model" in values)]
    if not names or not is_named(names[0]):
        return NOTHING
    search(Path.cwd())
    chosen = {"model": names[0]}
    all_settings(chosen)  # mistakes of its code are told before those of its settings
    return chosen


def with_defaults(stored: Mapping[str, Any], chosen: Mapping[str, Any] = NOTHING) -> dict[str, Any]:
    """Return stored settings with the defaults of those added later; `chosen` imports its agent."""
    return default_settings(chosen) | present_settings(stored)


def file_settings(path: Path) -> dict[str, Any]:
    """Read a settings file, unchecked; configs/... may be named from anywhere."""
    beside = CONFIGS.parent / path
    is_ours = path.parts[:1] == (CONFIGS.name,) and not os.path.lexists(path) and beside.is_file()
    return read_json_object(beside if is_ours else path)


def read_json_object(path: Path) -> dict[str, Any]:
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


def given_by_file(file: str | Path | Sequence[Override] | None) -> list[Override]:
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
    return [override(str(file), *each) for each in values.items()]


def default_settings(chosen: Mapping[str, Any] = NOTHING) -> dict[str, Any]:
    return {name: each.metadata["default"] for name, each in all_settings(chosen).items()}


def _given_by_texts(
    overrides: Iterable[str], chosen: Mapping[str, Any], problems: list[str]
) -> list[Override]:
    declarations, given = all_settings(chosen), []
    for text in overrides:
        name, equals, value = text.partition("=")
        source = f"--var {shortened(text)}"
        if equals:
            declaration = declarations.get(RENAMED.get(name, name))
            given.append(override(source, name, from_text(declaration, value)))
        else:
            problems.append(f"{source}: expected KEY=VALUE, such as --var learning_rate=3e-4")
    return given


def _good(
    given: Iterable[Override], chosen: Mapping[str, Any], problems: list[str]
) -> dict[str, Any]:
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
        problems.append(f"{each.source}: unknown key '{text}'.{did_you_mean(text, declarations)}")
    if len(unknown) > MOST_UNKNOWN:
        problems.append(f"{each.source}: {len(unknown) - MOST_UNKNOWN:,} more unknown keys")
    return good


def _untyped(from_file: Iterable[Override], chosen: Mapping[str, Any]) -> list[str]:
    facts = {name: each.metadata for name, each in all_settings(chosen).items()}
    typed = {name: each["default"] for name, each in facts.items() if each["typed"]}
    return [
        f"{each.source}: {each.name} is taken from the command line alone. Leave it out of the "
        f"file, and add --var {each.name}=..."
        for each in from_file
        if each.name in typed and each.value != typed[each.name]
    ]


def _unread(given: Iterable[Override], *chosen: Mapping[str, Any]) -> list[str]:
    values, readers = chosen[0], settings_index(chosen[0])
    read = set().union(*(readers.read_by(each) for each in chosen))
    return [
        f"{each.source}: {readers.refusal(each.name, values)}"
        for each in given
        if each.name in values and each.name not in read
    ]


def _unread_of_file(given: Sequence[Override], values: Mapping[str, Any]) -> list[str]:
    """Return a line for every setting of a file that neither its own parts nor the chosen read.

    A whole file, as a run's is, also has settings its model does not read. It is known by naming
    all that every run has.
    """
    in_file = _values(given)
    if not in_file or {field.name for field in dataclasses.fields(Config)} <= in_file.keys():
        return []
    read = settings_index(values).read_by(values)
    left_out = [name for name in in_file if name in values and name not in read]
    unread = _unread(given, values, {**values, **in_file})
    if left_out and not unread:
        log.warning(
            "%s does not read %s of the file", shortened(values["model"]), ", ".join(left_out)
        )
    return unread


def _values(given: Iterable[Override]) -> dict[str, Any]:
    return {each.name: each.value for each in given}


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"the key '{shortened(name)}' is given twice")
        values[name] = value
    return values


def describe_settings(part: str = "", chosen: Mapping[str, Any] = NOTHING) -> str:
    """Return the help of a part's settings, of "all", or the names of the parts.

    A part is named by its title or by the value that chooses it, as PPO or KeyToDoor-v0. Those of
    the user's own agent are known where it is chosen.
    """
    readers = settings_index(chosen).readers
    groups: dict[str, list[str]] = {}
    for name, each in all_settings(chosen).items():
        title, by = each.title, readers(name)
        if part not in ("", "all", title, *by):
            continue
        heading = title if by in ([], [title]) else f"{title} (read by {', '.join(by)})"
        default = json.dumps(each.metadata["default"])
        groups.setdefault(heading, []).append(
            f"  {name} ({kind_text(each)}, default {default})\n"
            f"      {each.metadata['help']}{range_text(each)}"
        )
    titles = dict.fromkeys(each.title for each in all_settings(chosen).values())
    if not groups:
        raise UserError(f"--help {part}: no such part.{did_you_mean(part, titles)}")
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
            mem_len = str(dataclasses.asdict(config)["mem_len"])
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
