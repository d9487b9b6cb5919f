"""The inner state of MiniGrid's own environments: plain values to save, the same play after.

Such an environment is a graph of small Python objects: the grid and the things in it, rooms,
targets. Two attributes may mean the same thing (`red_door` stands in the grid, too), so objects
are numbered and refer to one another by number; BabyAI's instructions refer to the environment.
Only MiniGrid's own classes are brought back to life, without running their code.
"""

import sys
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import SyncVectorEnv

PACKAGE = "minigrid."
PLAIN = (type(None), bool, int, float, str)
SEQUENCES = {"list": list, "tuple": tuple, "set": set}
FIXED = (gymnasium.Space, EnvSpec, type)  # belong to the task, not to the episode


class MiniGridVectorEnv(SyncVectorEnv):
    """MiniGrid's own environments, stepped one after the other, resumable to the bit."""

    def cues(self) -> Sequence[int | None] | None:
        """Return what each shows that is to be remembered, None if they do not say."""
        return self.call("cue") if self.envs[0].has_wrapper_attr("cue") else None

    def state_dict(self) -> dict[str, Any] | None:
        """Return the state of all environments, or None if one holds what cannot be saved."""
        try:
            return {"worlds": [world_state(env.unwrapped) for env in self.envs]}
        except UnknownKindError:
            return None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        for env, world in zip(self.envs, state["worlds"], strict=True):
            load_world_state(env.unwrapped, world)


class UnknownKindError(TypeError):
    """A kind of value that this module cannot turn into plain ones."""


def world_state(env: Any) -> dict[str, Any]:
    """Return everything of an environment that may change, as tensors and plain types."""
    writer = _Writer(env)
    variables = {name: value for name, value in vars(env).items() if not isinstance(value, FIXED)}
    encoded = {name: writer.encode(value) for name, value in variables.items()}
    return {"attributes": encoded, "objects": writer.objects}


def load_world_state(env: Any, state: dict[str, Any]) -> None:
    """Put a saved state into an environment of the same task."""
    reader = _Reader(state["objects"], env)
    fixed = {name: value for name, value in vars(env).items() if isinstance(value, FIXED)}
    saved = {name: reader.decode(value) for name, value in state["attributes"].items()}
    vars(env).clear()
    vars(env).update(saved | fixed)


class _Writer:
    """Turns values into plain ones: themselves, or a pair of their kind and its content."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.objects: list[tuple[str, dict[str, Any]]] = []
        self._numbers: dict[int, int] = {}

    def encode(self, value: Any) -> Any:
        if type(value) in PLAIN:
            return value
        if value is self._env:
            return "environment", None
        for kind, of_type in SEQUENCES.items():
            if type(value) is of_type:
                return kind, [self.encode(item) for item in value]
        if type(value) is dict:
            return "dict", [(self.encode(key), self.encode(item)) for key, item in value.items()]
        if isinstance(value, np.random.Generator):
            return "generator", value.bit_generator.state
        if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
            return type(value).__name__, torch.from_numpy(np.array(value))
        if type(value).__module__.startswith(PACKAGE) and hasattr(value, "__dict__"):
            return "object", self._number(value)
        raise UnknownKindError(f"a {type(value).__qualname__} has no plain form")

    def _number(self, thing: Any) -> int:
        """Return an object's number; the first time, write its attributes down."""
        if id(thing) not in self._numbers:
            number = self._numbers[id(thing)] = len(self.objects)
            attributes: dict[str, Any] = {}
            self.objects.append((_name(type(thing)), attributes))
            attributes.update({name: self.encode(value) for name, value in vars(thing).items()})
            return number
        return self._numbers[id(thing)]


class _Reader:
    """Turns plain values back into what they stand for."""

    def __init__(self, objects: list[tuple[str, dict[str, Any]]], env: Any) -> None:
        self._env, classes = env, _classes()
        self._objects: list[Any] = [object.__new__(classes[name]) for name, _ in objects]
        for thing, (_, attributes) in zip(self._objects, objects, strict=True):
            vars(thing).update({name: self.decode(value) for name, value in attributes.items()})

    def decode(self, value: Any) -> Any:
        if type(value) in PLAIN:
            return value
        kind, content = value
        if kind in SEQUENCES:
            return SEQUENCES[kind](self.decode(item) for item in content)
        if kind == "dict":
            return {self.decode(key): self.decode(item) for key, item in content}
        if kind == "environment":
            return self._env
        if kind == "object":
            return self._objects[content]
        if kind == "generator":
            generator = np.random.default_rng()
            generator.bit_generator.state = content
            return generator
        array = content.numpy().copy()
        return array if kind == "ndarray" else array[()]


def _classes() -> dict[str, type]:
    """Return MiniGrid's classes by name, as far as the environments in use have loaded them."""
    modules = [module for name, module in sys.modules.items() if name.startswith(PACKAGE)]
    found = [value for module in modules for value in vars(module).values()]
    return {
        _name(value): value
        for value in found
        if isinstance(value, type) and value.__module__.startswith(PACKAGE)
    }


def _name(of_class: type) -> str:
    return f"{of_class.__module__}.{of_class.__qualname__}"
