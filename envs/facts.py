"""What tells the environments of Python programs apart, which are named after their class alone."""

import ast
import functools
import hashlib
import inspect
import linecache
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import FunctionType, MethodType

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv, VectorWrapper

from envs.episodes import WithOptions
from utils.errors import ROOT
from utils.user_modules import OWN_PACKAGES, PACKAGE, sha256_of

NO_TASK = ("seed", "render")  # parts of the names of arguments that change no task
LONGEST = 200  # characters of a value
SHOWN = 12  # characters of a sha256
INSTALLED = ("site-packages", "dist-packages")

Layer = gymnasium.Env | VectorEnv
Code = type | FunctionType


def facts_of(given: object, made: Layer) -> dict[str, object]:
    """Return the known facts of a given environment, by name: plain values, or lists of such.

    It is `made`, and `given` is the same or the function or class that has made it. Known are its
    wrappers, spaces, spec and arguments, and those of its maker; and the sha256 of a user's code.
    """
    facts = _Facts()
    if isinstance(made, VectorEnv):
        facts.note("observation_space", _short(str(made.single_observation_space)))
        facts.note("action_space", _short(str(made.single_action_space)))
    else:
        facts.note("observation_space", _short(str(made.observation_space)))
        facts.note("action_space", _short(str(made.action_space)))
    facts.note_layers(made)
    if given is not made:
        facts.note_maker(given)
    return {name: found[0] if len(found) == 1 else found for name, found in facts.found.items()}


class _Facts:
    def __init__(self) -> None:
        self.found: dict[str, list[object]] = {}
        self._seen: list[object] = []

    def note(self, name: str, value: object) -> None:
        values = self.found.setdefault(name, [])
        if value not in values:  # as several environments of one vector have it
            values.append(value)

    def note_layers(self, made: Layer) -> None:
        # Ours around those of a given vector environment stay there after a run.
        layers = [each for each in (made, *_within(made)) if not isinstance(each, WithOptions)]
        self.note("layers", " > ".join(type(layer).__name__ for layer in layers))
        if made.spec is not None:
            self.note("spec", made.spec.id)
            limit = {"max_episode_steps": made.spec.max_episode_steps}
            self.note_arguments("spec", {**made.spec.kwargs, **limit})
        for layer in layers:
            kind = type(layer)
            self.note_code(kind)
            if isinstance(layer, SyncVectorEnv | AsyncVectorEnv):
                for make in layer.env_fns:
                    self.note_maker(make)
                for env in layer.envs if isinstance(layer, SyncVectorEnv) else ():
                    self.note_layers(env)
                continue
            # Most classes keep an argument under its name, or with a dash before it.
            kept = {name.removeprefix("_"): value for name, value in vars(layer).items()}
            with suppress(TypeError, ValueError):  # a class of another language
                names = inspect.signature(kind).parameters
                own = {name: kept[name] for name in names if name in kept}
                self.note_arguments(kind.__name__, own)

    def note_arguments(self, place: str, arguments: Mapping[str, object]) -> None:
        for name, value in arguments.items():
            if any(part in name for part in NO_TASK):
                continue
            value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
            if isinstance(value, Code | MethodType | functools.partial):
                self.note_maker(value)
            elif isinstance(value, dict):
                self.note_arguments(f"{place}.{name}", {str(key): value[key] for key in value})
            elif _is_plain(value):
                is_number = isinstance(value, bool | int | None)
                self.note(f"{place}.{name}", value if is_number else _short(str(value)))

    def note_maker(self, make: object) -> None:
        if any(make is each for each in self._seen):
            return
        self._seen.append(make)
        if isinstance(make, functools.partial):
            places = {str(n): value for n, value in enumerate(make.args)}
            self.note_arguments("maker", places | make.keywords)
            self.note_maker(make.func)
        elif isinstance(make, MethodType):
            self.note_maker(make.__self__)
            self.note_maker(make.__func__)
        elif isinstance(make, type):
            self.note_code(make)
        elif not isinstance(make, FunctionType):  # an object that can be called
            self.note_code(type(make))
            self.note_arguments("maker", vars(make))
        elif self.note_code(make):
            within, signature = inspect.getclosurevars(make), inspect.signature(make)
            defaults = {name: each.default for name, each in signature.parameters.items()}
            self.note_arguments("maker", {**within.globals, **within.nonlocals, **defaults})

    def note_code(self, thing: Code) -> bool:
        """Note the source of a function, or of a class and its bases; whether a user wrote it."""
        is_users = False
        for each in thing.__mro__ if isinstance(thing, type) else (thing,):
            if (file := _users_file(each)) is None:
                continue
            is_users = True
            with suppress(OSError, TypeError):  # it stands no longer where it was
                text = _lambda_in(file, each) or inspect.cleandoc(inspect.getsource(each))
                self.note(f"source.{each.__name__}", _sha256(text))
            package, dot, _ = each.__module__.partition(".")
            if package != "__main__":  # a script may name the run's seed
                self.note(f"module.{each.__module__}", _sha256("".join(linecache.getlines(file))))
                if dot:
                    self.note(f"{PACKAGE}.{package}", sha256_of(package)[:SHOWN])
        return is_users


def _within(made: Layer) -> Iterator[Layer]:
    while isinstance(made, gymnasium.Wrapper | VectorWrapper):
        made = made.env
        yield made


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, int):
        return value.bit_length() < 64
    return value is None or isinstance(value, float | str)


def _users_file(thing: Code) -> str | None:
    """Return the file of a user's code; None where it is an installed package's, ours or typed."""
    try:
        name = inspect.getsourcefile(thing)
    except TypeError:
        return None
    file = Path(name or "")
    is_ours = any(ROOT / package in file.parents for package in OWN_PACKAGES)
    is_pythons = Path(sysconfig.get_path("stdlib")) in file.parents
    return None if is_ours or is_pythons or set(INSTALLED) & set(file.parts) else name


def _lambda_in(file: str, function: Code) -> str | None:
    """Return a lambda without the rest of its line, which may name the run's seed."""
    if isinstance(function, type) or function.__name__ != "<lambda>":
        return None
    text = "".join(linecache.getlines(file))
    spots = [spot for spot in function.__code__.co_positions() if spot[2] != spot[3]]
    with suppress(SyntaxError, TypeError, ValueError):
        begin, end = min(spot[::2] for spot in spots), max(spot[1::2] for spot in spots)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Lambda):
                body = node.body
                is_begun = (body.lineno, body.col_offset) == begin
                if is_begun and (body.end_lineno, body.end_col_offset) == end:
                    return ast.get_source_segment(text, node)
    return None


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... {_sha256(text)}"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:SHOWN]
