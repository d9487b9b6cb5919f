"""Agents of the user's own: classes outside this program that settings name as module:Class."""

import dataclasses
import inspect

from models.agent import ActorCriticAgent
from settings import Part
from utils.errors import UserError, suggestion
from utils.user_modules import imported, parts_of

MEMORIES = ("memory_class", "language_class")  # what agents built around a memory name


def own_agent_class(name: str) -> type[ActorCriticAgent]:
    """Import the class that a name leads to.

    Raises:
        UserError: it cannot be imported, is no agent, or does not declare its settings.
    """
    module, class_name = parts_of("model", name)
    found = imported("model", module)
    kind = getattr(found, class_name, None)
    where = f"model: '{class_name}' of {getattr(found, '__file__', module)}"
    if kind is None:
        agents = {key: each for key, each in vars(found).items() if _is_agent(each)}
        classes = [key for key, each in agents.items() if each.__module__ == module]
        raise UserError(f"{where}: there is no such class.{suggestion(class_name, classes)}")
    if not _is_agent(kind):
        raise UserError(f"{where} is no agent. Derive it from models.agent.ActorCriticAgent")
    missing = [*sorted(getattr(kind, "__abstractmethods__", ())), *_missing_classes(kind)]
    if missing:
        raise UserError(f"{where} is not whole, it lacks {', '.join(missing)}")
    methods = [kind.act, *([kind.memory_class.step] if hasattr(kind, "memory_class") else [])]
    for method in methods:
        if "advance" not in inspect.signature(method).parameters:
            raise UserError(
                f"{where}: {method.__qualname__} takes no `advance`. Give it advance=True, and "
                "leave the memory as it is where it is False"
            )
    if not _are_settings(kind.reads):
        raise UserError(
            f"{where}: `reads` must be a tuple of classes of settings: each derived from "
            "settings.Part, a dataclass(frozen=True) itself, its fields made by settings.setting"
        )
    return kind


def _is_agent(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, ActorCriticAgent)


def _missing_classes(kind: type) -> list[str]:
    """Return which memory a class is to name and does not."""
    declared = {name for base in kind.__mro__ for name in inspect.get_annotations(base)}
    return [name for name in MEMORIES if name in declared and not hasattr(kind, name)]


def _are_settings(reads: object) -> bool:
    """Return whether these are classes of settings as they must be."""
    return isinstance(reads, tuple) and all(
        isinstance(part, type)
        and issubclass(part, Part)
        and "__dataclass_fields__" in vars(part)
        and all("help" in field.metadata for field in dataclasses.fields(part))
        for part in reads
    )
