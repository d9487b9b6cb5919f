"""Agents by name, or by module:Class for the user's own."""

import dataclasses
import importlib
import inspect
from typing import Any

import torch
from gymnasium.spaces import Discrete, Space

from models.agent import ActorCriticAgent, Agent
from utils.errors import UserError, did_you_mean, told
from utils.settings import Config, Part, Registry
from utils.user_modules import imported, is_named, parts_of

# Names of the papers that say how an agent learns, too: agent and algorithm.
PUBLISHED = {"CNN-PPO": ("CNN", "PPO"), "Impala-PPO": ("LSTM", "PPO")}


class Agents(Registry):
    """The agents of HELM; module:Class names a class of the user's own."""

    def known_as(self, name: str) -> str | None:
        return name if is_named(name) else super().known_as(name)

    def find(self, name: str) -> type[Agent]:
        if not is_named(name):
            return super().find(name)
        listed = [key for key, place in self.places.items() if place == name]
        if listed:
            raise UserError(f"model: '{name}' is called {listed[0]}. Choose model={listed[0]}")
        return own_agent_class(name)


AGENTS = Agents(
    "model",
    {
        "CNN": "models.baselines:CnnAgent",
        "LSTM": "models.baselines:LstmAgent",
        "GRU": "models.baselines:GruAgent",
        "MinGRU": "models.baselines:MinGruAgent",
        "LRU": "models.baselines:LruAgent",
        "FFM": "models.baselines:FfmAgent",
        "mLSTM": "models.baselines:MLstmAgent",
        "GPT": "models.baselines:GptAgent",
        "GTrXL": "models.baselines:GTrXLAgent",
        "HELM": "models.helm:Helm",
        "HELMv2": "models.helm:HelmV2",
        "SHELM": "models.helm:Shelm",
        "ELLM": "models.ellm:Ellm",
    },
    "agent",
    {name: agent for name, (agent, _) in PUBLISHED.items()},
)
agent_class = AGENTS.find
FROM_REPLAY = ("DQN", "SAC")  # have networks of their own, with the memory of the model in them


def build_agent(config: Config, observation_space: Space, action_space: Space) -> Any:
    """Return the configured agent, freshly initialised; `config.device` must be resolved.

    Both spaces are those of one environment.

    Raises:
        UserError: the agent cannot see or act there.
    """
    if not isinstance(action_space, Discrete):
        raise UserError(f"env: agents act in a Discrete space, and {config.env} has {action_space}")
    kind = agent_class(config.model)
    try:
        if config.algorithm in FROM_REPLAY:
            networks = importlib.import_module("models.q_networks")
            agent = networks.build_from_replay(config, observation_space, action_space, kind)
        else:
            agent = kind(config, observation_space, action_space)
        return agent.to(config.device)
    except (AttributeError, TypeError, ValueError) as error:
        if not is_named(config.model):
            raise
        raise UserError(
            f"model: making {config.model} raised {told(error)}. Settings that it takes, also those"
            " of its encoder, have to be in its `reads` (docs/extending.md)"
        ) from error


def validate_config(config: Config) -> list[str]:
    """Return a message where the configured algorithm cannot train the agent."""
    key, algorithm = PUBLISHED.get(config.model, (config.model, config.algorithm))
    if algorithm != config.algorithm:
        return [
            f"model: {config.model} is {key} trained by {algorithm}, and algorithm is "
            f"{config.algorithm}. Choose model={key}"
        ]
    kind = agent_class(key)
    if kind.algorithms and config.algorithm not in kind.algorithms:
        return [
            f"model: {config.model} is trained by {', '.join(kind.algorithms)}, and algorithm is "
            f"{config.algorithm}. Choose algorithm={kind.algorithms[0]}, or another model"
        ]
    if config.algorithm in FROM_REPLAY and getattr(config, "last_action_input", False):
        return [
            f"last_action_input: {config.algorithm} reads the last action by action_embedding "
            "already. Leave it at false"
        ]
    has_memory = hasattr(kind, "memory_class") or hasattr(kind, "language_class")
    if config.algorithm not in FROM_REPLAY or has_memory:
        return []
    return [
        f"model: '{config.model}' has no memory_class, which {config.algorithm} puts into networks "
        "of its own. Give it one (docs/extending.md), or choose algorithm=PPO"
    ]


def resolve_device(name: str) -> str:
    """Return a device of this machine, or raise UserError; "auto" is a GPU if there is one."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        if name.startswith("cpu:"):
            raise ValueError("there is one alone, and torch takes any number for it")
        torch.zeros(1, device=name).item()
    except Exception:  # torch raises about five kinds of errors here
        raise UserError(f"device: '{name}' is not on this machine. Use auto, cpu or cuda") from None
    return name


def own_agent_class(name: str) -> type[ActorCriticAgent]:
    """Import a class of the user's own; UserError where it is missing or incomplete."""
    module, class_name = parts_of("model", name)
    found = imported("model", module)
    kind = getattr(found, class_name, None)
    where = f"model: '{class_name}' of {getattr(found, '__file__', module)}"
    if kind is None:
        agents = {key: each for key, each in vars(found).items() if _is_agent(each)}
        classes = [key for key, each in agents.items() if each.__module__ == module]
        raise UserError(f"{where}: there is no such class.{did_you_mean(class_name, classes)}")
    if not _is_agent(kind):
        raise UserError(f"{where} is no agent. Derive it from models.agent.ActorCriticAgent")
    missing = sorted(getattr(kind, "__abstractmethods__", ()))
    declared = {key for base in kind.__mro__ for key in inspect.get_annotations(base)}
    if "memory_class" in declared and not hasattr(kind, "memory_class"):
        missing.append("memory_class")
    if missing:
        raise UserError(f"{where} is not whole, it lacks {', '.join(missing)}")
    if not isinstance(kind.algorithms, tuple):
        raise UserError(f"{where}: `algorithms` is no tuple of names, such as ('PPO',)")
    memory = getattr(kind, "memory_class", None)
    if memory is not None and not hasattr(memory, "step"):
        raise UserError(f"{where}: derive its memory_class from models.memories.TrainedMemory")
    for method in (kind.act, *([] if memory is None else [memory.step])):
        if "advance" not in inspect.signature(method).parameters:
            raise UserError(
                f"{where}: {method.__qualname__} takes no `advance`. Give it advance=True, and "
                "leave the memory as it is where it is False"
            )
    if not _are_settings(kind.reads):
        raise UserError(
            f"{where}: `reads` must be a tuple of classes of settings: each derived from "
            "utils.settings.Part, a dataclass(frozen=True) itself, its fields made by "
            "utils.settings.setting"
        )
    return kind


def _is_agent(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, ActorCriticAgent)


def _are_settings(reads: object) -> bool:
    return isinstance(reads, tuple) and all(
        isinstance(part, type)
        and issubclass(part, Part)
        and "__dataclass_fields__" in vars(part)
        and all("help" in field.metadata for field in dataclasses.fields(part))
        for part in reads
    )
