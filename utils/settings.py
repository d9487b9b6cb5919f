"""Settings of a run: declared by part beside the code that reads them, read as one flat object.

They are the fields of a dataclass, made by `setting`:

    @dataclass(frozen=True)
    class GruSettings(Part):
        title = "GRU"

        gru_layers: int = setting("layers of the GRU", low=1, high=16, default=1)

A part that is chosen by name (an agent, a learner, a suite of environments) has such classes under
`reads`: the settings are then known to the command line and to its help. Programs hand over the
parts by `install`. An agent of the user's own stands in no registry: its settings are known where
it is `chosen`. utils/given_settings.py reads what a user gives.
"""

import contextlib
import copy
import dataclasses
import functools
import inspect
import json
import math
import os
import pkgutil
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, NoReturn, Self, TypeVar, cast

from utils.errors import UserError, did_you_mean, shortened
from utils.user_modules import imported, is_named, parts_of

MOST_SEED = 2**31 - 2**16 - 1  # seeds above are of episodes held out (utils/seeding.py)
KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    dict: "a JSON object",
    type(None): "null",
}
Values = Mapping[str, Any]  # of settings, or of what run.json describes, by name
NOTHING: Values = types.MappingProxyType({})


def setting(  # noqa: PLR0913  a keyword for each fact
    text: str,
    *,
    default: Any,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] | None = None,
    has_effect: bool = True,
    safe: tuple[object, ...] | None = None,
    typed: bool = False,
    older: Any = None,
    needs: str | None = None,
) -> Any:
    """Declare a field: one line of explanation, an inclusive range or the allowed names.

    config.json shows the defaults. A run that is older than a setting has its default, or `older`.

    Args:
        text: The explanation.
        default: The default value.
        low, high: The inclusive range.
        choices: The allowed names.
        has_effect: False for settings of keeping and showing, which change no number of a run.
        safe: Values other than these lead outside, to an address or to a place that is read or
            written: they are not taken from somebody else's run (utils/run_folder.py).
        typed: Taken from the command line alone, from no settings file.
        older: What runs did before there was the setting, where the default is something else.
        needs: A setting without which (null, false or 0) this one is not read.
    """
    facts: dict[str, Any] = {"low": low, "high": high, "choices": choices}
    facts |= {"help": text, "has_effect": has_effect, "default": default}
    facts |= {"safe": safe, "typed": typed, "older": default if older is None else older}
    facts["needs"] = needs
    if isinstance(default, dict):
        return dataclasses.field(default_factory=default.copy, metadata=facts)
    return dataclasses.field(default=default, metadata=facts)


class Settings:
    """All settings of a run, each an attribute; they stay as they are.

    Whatever reads settings names the dataclass that declares them as its argument's type, such as
    `config: PpoSettings`. A run hands on this object, typed so by `part`, for one part calls the
    next; a test may hand on `PpoSettings()`.
    """

    def __init__(self, values: Values) -> None:
        vars(self).update(values)

    def part(self, kind: type["AnyPart"]) -> "AnyPart":
        """Return these settings as those of a part. TypeError: they are not among them."""
        if missing := {field.name for field in dataclasses.fields(kind)} - vars(self).keys():
            raise TypeError(f"no settings of {kind.__name__}: {', '.join(sorted(missing))} lack")
        return cast("AnyPart", self)

    def replace(self, **changes: object) -> Self:
        if unknown := changes.keys() - vars(self).keys():
            raise TypeError(f"no such settings: {', '.join(sorted(unknown))}")
        changed = copy.copy(self)
        vars(changed).update(changes)
        return changed

    def as_dict(self) -> dict[str, Any]:
        return copy.deepcopy(vars(self))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"settings stay as they are: {name}. Use replace({name}=...)")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(json.dumps(vars(self), sort_keys=True))  # some values are dictionaries

    def __repr__(self) -> str:
        return f"Settings({vars(self)})"


@dataclass(frozen=True)
class Part(Settings):
    """The settings of one part of a run.

    Attributes:
        title: Their heading in the help.
        learners: Of ours, whose networks alone read them; all if empty. Not inherited.
    """

    title: ClassVar[str] = "more"
    learners: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def own(cls) -> list[dataclasses.Field[Any]]:
        """Return the fields that this class declares itself."""
        here = inspect.get_annotations(cls)
        return [field for field in dataclasses.fields(cls) if field.name in here]


AnyPart = TypeVar("AnyPart", bound=Part)


@dataclass(frozen=True)
class Config(Part):
    """The settings that every part may read."""

    title = "the run"

    algorithm: str = setting(
        "how it learns: PPO, DQN, SAC, TD3, EllmDQN; or module:Class, a learner of your own",
        default="PPO",
    )
    model: str = setting(
        "the memory: CNN (none), LSTM, GRU, MinGRU, LRU, FFM, mLSTM, GatedDeltaNet, Mamba2, GPT, "
        "GTrXL, HELM, HELMv2, SHELM, ELLM; or as published: CNN-PPO, Impala-PPO; or module:Class, "
        "an agent of your own",
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


class Declaration(NamedTuple):
    """One setting: its name, its allowed types, its part's title, the arguments of `setting`."""

    name: str
    kinds: tuple[type, ...]
    title: str
    metadata: dict[str, Any]


def declared(parts: Iterable[type[Part]]) -> dict[str, Declaration]:
    """Return all settings of parts and their bases, by name; TypeError if declared differently."""
    found: dict[str, Declaration] = {}
    owners: dict[str, type] = {}
    bases = dict.fromkeys(base for part in parts for base in part.__mro__)
    for part in (base for base in bases if issubclass(base, Part)):
        hints = typing.get_type_hints(part)
        for field in part.own():
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
    """Return the JSON value a command-line text stands for; fields of text take it as it is."""
    # Only null is null where a text may be missing; a file of that name is ./null.
    if declaration is None or (str in declaration.kinds and bool not in declaration.kinds):
        may_be_missing = declaration is not None and type(None) in declaration.kinds
        return None if text == "null" and may_be_missing else text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def checked(declaration: Declaration, value: object) -> Any:
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
        raise ValueError(f"{name}: {as_json(value)} is out of range{range_text(declaration)}")
    return value


def kind_text(declaration: Declaration) -> str:
    return " or ".join(KINDS[kind] for kind in declaration.kinds)


def range_text(declaration: Declaration) -> str:
    """Return a setting's range or choices in parentheses, after a space; nothing without."""
    low, high, choices = (declaration.metadata[name] for name in ("low", "high", "choices"))
    if low is None:
        return f" ({', '.join(choices)})" if choices else ""
    return f" ({low} or more)" if high is None else f" ({low} to {high})"


def with_text(declaration: Declaration) -> str:
    needs = declaration.metadata["needs"]
    return f"; read with {needs}" if needs else ""


def as_json(value: object) -> str:
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
            raise ValueError(f"{declaration.name}: {as_json(value)} is not UTF-8") from None
        return value
    raise ValueError(f"{declaration.name}: {as_json(value)} is not {kind_text(declaration)}")


class Registry:
    """The parts that one setting chooses among; each is imported when it is chosen.

    Args:
        setting: That setting.
        places: "module:Class" by name.
        title: The noun for one of them in messages.
        reads: The classes of the settings that each of them reads, by name; so the settings are
            known before a class is imported. A class of the user's own has them in `reads`.
        aliases: Further names, each with the name it stands for.
    """

    def __init__(
        self,
        setting: str,
        places: Mapping[str, str],
        title: str,
        reads: Mapping[str, tuple[type[Part], ...]],
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        self.setting, self.places, self.title, self.reads = setting, places, title, reads
        self.aliases = aliases or {}

    def known_as(self, name: str) -> str | None:
        key = self.aliases.get(name, name)
        return key if key in self.places else None

    def find(self, name: str) -> Any:
        key = self.known_as(name)
        if key is None:
            names = (*self.places, *self.aliases)
            kinds = [
                each.setting for each in installed().registries.values() if name in each.places
            ]
            hint = f" Did you mean {kinds[0]}={name}?" if kinds else did_you_mean(name, names)
            raise UserError(
                f"{self.setting}: unknown {self.title} '{name}', known: {', '.join(names)}.{hint}"
            )
        return pkgutil.resolve_name(self.places[key])

    def settings(self) -> dict[str, tuple[type[Part], ...]]:
        return {name: self.reads.get(name, ()) for name in self.places}


class OwnRegistry(Registry):
    """A registry that also knows a user's classes as module:Class, derived from `base`."""

    base: ClassVar[str]

    def known_as(self, name: str) -> str | None:
        return name if is_named(name) else super().known_as(name)

    def find(self, name: str) -> Any:
        """Return a class; UserError where one of the user's own is missing or incomplete."""
        if not is_named(name):
            return super().find(name)
        listed = [key for key, place in self.places.items() if place == name]
        if listed:
            raise UserError(
                f"{self.setting}: '{name}' is called {listed[0]}. Choose {self.setting}={listed[0]}"
            )
        module, class_name = parts_of(self.setting, name)
        found, base = imported(self.setting, module), pkgutil.resolve_name(self.base)
        kind = getattr(found, class_name, None)
        where = f"{self.setting}: '{class_name}' of {vars(found).get('__file__', module)}"
        if kind is None:
            known = {key: each for key, each in vars(found).items() if _is_kind(each, base)}
            classes = [key for key, each in known.items() if each.__module__ == module]
            raise UserError(f"{where}: there is no such class.{did_you_mean(class_name, classes)}")
        if not _is_kind(kind, base):
            raise UserError(f"{where} is no {self.title}. {self.remedy(kind)}")
        missing = sorted(getattr(kind, "__abstractmethods__", ()))
        declared = {key for each in kind.__mro__ for key in inspect.get_annotations(each)}
        missing += sorted(
            key for key in {"memory_class", "reads"} & declared if not hasattr(kind, key)
        )
        if missing:
            raise UserError(f"{where} is incomplete: it lacks {', '.join(missing)}")
        if not _are_settings(kind.reads):
            allowed = "a tuple of dataclasses(frozen=True) derived from utils.settings.Part"
            raise UserError(f"{where}: `reads` must be {allowed}, with fields made by `setting`")
        return kind

    def remedy(self, kind: object) -> str:
        return f"Derive it from {self.base.replace(':', '.')}"


def _is_kind(kind: object, base: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, base)


def _are_settings(reads: object) -> bool:
    return isinstance(reads, tuple) and all(
        _is_kind(part, Part)
        and "__dataclass_fields__" in vars(part)
        and all("help" in field.metadata for field in dataclasses.fields(part))
        for part in reads
    )


class Program(NamedTuple):
    """The parts of a program's settings.

    Attributes:
        registries: By the setting that chooses among their parts.
        general: The settings that every run reads.
        validate_config: Returns a line for every pair of settings that cannot both hold.
        check_env: Raises UserError where there is no environment of a name.
    """

    registries: Mapping[str, Registry]
    general: tuple[type[Part], ...]
    validate_config: Callable[[Any], list[str]]
    check_env: Callable[[str], None]


_installed: list[Program] = []


def install(program: Program) -> None:
    _installed[:] = [program]


def installed() -> Program:
    if not _installed:
        raise RuntimeError("settings: no program is installed. Import trainers.parts first")
    return _installed[0]


class SettingsIndex(NamedTuple):
    """Settings read in every run, and by each part: choosing setting -> part's name -> settings."""

    everywhere: set[str]
    by_choice: dict[str, dict[str, set[str]]]
    parts: dict[str, dict[str, tuple[type[Part], ...]]]  # the same, as classes

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

    def read_by(self, values: Values) -> set[str]:
        """Return the settings that are read where parts are chosen by these values.

        A value that names no part may mean each of them; null chooses none.
        """
        found, networks = set(self.everywhere), None
        learner = _known_as("algorithm", values.get("algorithm"))
        if learner in self.parts["algorithm"]:  # one of the user's own only where it was chosen
            networks = _networks(learner)
        for key, parts in self.parts.items():
            if key in values and values[key] is None:
                continue
            chosen = _known_as(key, values.get(key))
            for each in [parts[chosen]] if chosen in parts else parts.values():
                found |= _names(each, networks)
        return found

    def choice(self, name: str) -> str:
        """Return the setting that chooses among the parts that read a setting."""
        readers = self.readers(name)
        return next(key for key, parts in self.by_choice.items() if readers[0] in parts)

    def refusal(self, name: str, values: Values) -> str:
        for key, parts in self.parts.items():
            chosen = parts.get(_known_as(key, values.get(key)) or "", ())
            for base in (base for part in chosen for base in part.__mro__):
                if issubclass(base, Part) and name in {field.name for field in base.own()}:
                    return (
                        f"{name} is read with {' or '.join(base.learners)} alone, and algorithm "
                        f"is {shortened(values['algorithm'])}"
                    )
        readers, key = self.readers(name), self.choice(name)
        this = f"{key} is null" if values[key] is None else f"this is {shortened(values[key])}"
        listed = " and ".join(filter(None, (", ".join(readers[:-1]), readers[-1])))
        return f"{name} is read by {listed}, and {this}"


def all_settings(chosen: Values = NOTHING) -> dict[str, Declaration]:
    """Return every setting by its name; a wrong declaration of the user's own is a UserError."""
    own = own_choices(chosen)
    if not own:
        return _declared(_all_parts(chosen))
    where = ", ".join(f"{key}: '{name}'" for key, name in own.items())
    try:
        found = _declared(_all_parts(chosen))
    except (TypeError, NameError) as error:
        raise UserError(f"{where}: {error}") from None
    for each in found.keys() - all_settings().keys():
        if not set(found[each].kinds) <= KINDS.keys():
            allowed = "an int, float, bool or str, perhaps with | None"
            raise UserError(f"{where}: its setting '{each}' must be {allowed}")
    return found


def own_choices(chosen: Values) -> dict[str, str]:
    """Return the settings that choose classes of the user's own, module:Class."""
    own = (key for key, each in installed().registries.items() if isinstance(each, OwnRegistry))
    return {key: chosen[key] for key in own if is_named(chosen.get(key))}


def networks_of(config: Config) -> str:
    """Return the learner of ours that names the networks of the configured one."""
    return _networks(config.algorithm)


def settings_without_effect(chosen: Values = NOTHING) -> set[str]:
    return {name for name, each in all_settings(chosen).items() if not each.metadata["has_effect"]}


def outside_settings() -> dict[str, Callable[[object], bool]]:
    return {
        name: functools.partial(_leads_outside, each.metadata["safe"])
        for name, each in all_settings().items()
        if each.metadata["safe"] is not None
    }


def settings_index(chosen: Values = NOTHING) -> SettingsIndex:
    tables = _tables(chosen)
    return SettingsIndex(
        _names([Config, *installed().general]),
        {
            key: {name: _names(parts) for name, parts in table.items()}
            for key, table in tables.items()
        },
        tables,
    )


def needless(config: Config, names: Iterable[str]) -> list[str]:
    """Return a line for each of some settings that has a value although its `needs` has none."""
    values = config.as_dict()
    declarations = all_settings(values)
    facts = {name: declarations[name].metadata for name in names}
    return [
        f"{name}: it is read with {each['needs']} alone, and {each['needs']} is "
        f"{as_json(values[each['needs']])}. Add {each['needs']}=..., or leave {name} out"
        for name, each in facts.items()
        if each["needs"] and not values[each["needs"]] and values[name] != each["default"]
    ]


def read_settings(config: Config) -> set[str]:
    values = config.as_dict()
    return settings_index(values).read_by(values)


def settings_of_env(config: Config) -> set[str]:
    readers, chosen = settings_index(config.as_dict()), _known_as("env", config.env)
    suites = readers.by_choice["env"]
    own = suites[chosen] if chosen else set()
    # Not those that other parts read as well, nor those of every run, which have no readers.
    return {name for name in own if (by := readers.readers(name)) and suites.keys() >= {*by}}


_declared = functools.cache(declared)


def _leads_outside(safe: tuple[object, ...], value: object) -> bool:
    """Return whether a value is not safe; of a dictionary, whether a text in it may be a place."""
    # A text with a colon may name a module, or be an address.
    if not isinstance(value, dict):
        return value not in safe
    parts: list[object] = [value]
    for part in parts:  # the list grows meanwhile: nested values come last
        if isinstance(part, dict):
            parts += [*part, *part.values()]
        elif isinstance(part, list):
            parts += part
    texts = [part for part in parts if isinstance(part, str)]
    return any(re.search(r"[/\\:~]", text) or os.path.lexists(text) for text in texts)


def _all_parts(chosen: Values) -> tuple[type[Part], ...]:
    tables = _tables(chosen).values()
    by_choice = (part for table in tables for parts in table.values() for part in parts)
    return tuple(dict.fromkeys((Config, *by_choice, *installed().general)))


def _tables(chosen: Values) -> dict[str, dict[str, tuple[type[Part], ...]]]:
    registries = installed().registries
    tables = {setting: registry.settings() for setting, registry in registries.items()}
    for setting, name in own_choices(chosen).items():
        tables[setting][name] = registries[setting].find(name).reads
    return tables


def _known_as(setting: str, name: object) -> str | None:
    return installed().registries[setting].known_as(name) if isinstance(name, str) else None


def _networks(algorithm: str) -> str:
    """Return the learner of ours that names a learner's networks; ours name their own."""
    if not is_named(algorithm):
        return algorithm
    networks: str = installed().registries["algorithm"].find(algorithm).networks
    return networks


def _names(parts: Iterable[type[Part]], networks: str | None = None) -> set[str]:
    """Return the settings of some parts; with a learner of ours, those that are read with it."""
    found = set[str]()
    for base in {base for part in parts for base in part.__mro__ if issubclass(base, Part)}:
        learners = vars(base).get("learners", ())
        if networks is None or not learners or networks in learners:
            found |= {field.name for field in base.own()}
    return found
