"""Agents by the name of what they remember with, or module:Class for those of the user's own."""

import functools
import importlib
from typing import Any

import torch
from gymnasium.spaces import Discrete, Space

from models.agent import Agent
from models.observations import ObservationReader
from models.own_agents import own_agent_class
from settings import Config, Registry
from utils.errors import UserError
from utils.user_modules import is_named

# Names of the papers that say how an agent learns, too: agent and algorithm.
PUBLISHED = {"CNN-PPO": ("CNN", "PPO"), "Impala-PPO": ("LSTM", "PPO")}


class Agents(Registry):
    """The agents, and those of the user's own by module:Class."""

    def known_as(self, name: str) -> str | None:
        """Return the name an agent is listed under; one of the user's own is known by its own."""
        return name if is_named(name) else super().known_as(name)

    def find(self, name: str) -> type[Agent]:
        """Return an agent's class.

        Raises:
            UserError: there is no such agent.
        """
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
        "GPT": "models.baselines:GptAgent",
        "HELM": "models.helm:Helm",
        "HELMv2": "models.helmv2:HelmV2",
        "SHELM": "models.shelm:Shelm",
        "ELLM": "models.ellm:Ellm",
    },
    "agent",
    {name: agent for name, (agent, _) in PUBLISHED.items()},
)
agent_class = AGENTS.find
# What learns from replay has networks of its own, with the memory of the model in them.
FROM_REPLAY = {
    "DQN": "models.off_policy:build_q_agent",
    "SAC": "models.off_policy:build_sac_agent",
}


def build_agent(config: Config, observation_space: Space, action_space: Space) -> Any:
    """Return the configured agent, of the kind its algorithm trains, freshly initialised.

    Args:
        config: The settings; `device` must be resolved.
        observation_space: What one environment shows; models/observations.py says what can be.
        action_space: Actions of one environment.

    Raises:
        UserError: the agent cannot see or act there.
    """
    if not isinstance(action_space, Discrete):
        raise UserError(f"env: agents act in a Discrete space, and {config.env} has {action_space}")
    spaces = observation_space, action_space
    if config.algorithm in FROM_REPLAY:
        return _build_from_replay(config, spaces).to(config.device)
    return agent_class(config.model)(config, *spaces).to(config.device)


def _build_from_replay(config: Any, spaces: tuple[Space, Discrete]) -> Agent:
    """Return an agent with the networks of DQN or SAC around the memory of the model."""
    off_policy, build = (part for part in FROM_REPLAY[config.algorithm].split(":"))
    networks = importlib.import_module(off_policy)
    kind: Any = agent_class(config.model)
    reader, n_actions = ObservationReader(spaces[0]), int(spaces[1].n)
    seen = reader
    if hasattr(kind, "language_class"):
        language = kind.language_class(config, reader)
        seen = importlib.import_module("models.language_memory").told_beside(config, reader)
        body_of = functools.partial(networks.FrozenBody, language=language)
    else:
        body_of = functools.partial(networks.TrainedBody.of, kind.memory_class, config)
    embedder_of = networks.embedders(config, seen, n_actions)
    return getattr(networks, build)(config, reader, n_actions, lambda: body_of(embedder_of()))


def contradictions(config: Config) -> list[str]:
    """Return one line where the name of an agent says another algorithm than the settings."""
    if is_named(config.model):
        return _not_trained_by(config, config.model) or _impossible_from_replay(config)
    key, algorithm = PUBLISHED.get(config.model, (config.model, config.algorithm))
    if algorithm == config.algorithm:
        return _not_trained_by(config, key)
    return [
        f"model: {config.model} is {key} trained by {algorithm}, and algorithm is "
        f"{config.algorithm}. Choose model={key}"
    ]


def _not_trained_by(config: Config, key: str) -> list[str]:
    """Return one line where an agent cannot be trained by the configured algorithm."""
    able = agent_class(key).algorithms
    if not able or config.algorithm in able:
        return []
    return [
        f"model: {config.model} is trained by {', '.join(able)}, and algorithm is "
        f"{config.algorithm}. Choose algorithm={able[0]}, or another model"
    ]


def _impossible_from_replay(config: Config) -> list[str]:
    """Return one line where the user's own agent has no memory to learn from replay with."""
    kind = agent_class(config.model)
    has_memory = hasattr(kind, "memory_class") or hasattr(kind, "language_class")
    if config.algorithm not in FROM_REPLAY or has_memory:
        return []
    return [
        f"model: '{config.model}' has no memory_class, which {config.algorithm} puts into networks "
        "of its own. Give it one (docs/extending.md), or choose algorithm=PPO"
    ]


def resolve_device(name: str) -> str:
    """Return a device that exists: "auto" becomes a GPU if there is one.

    Raises:
        UserError: the device is unknown or not on this machine.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        if name.startswith("cpu:"):
            raise ValueError("there is one alone, and torch takes any number for it")
        torch.zeros(1, device=name).item()
    except Exception:  # torch raises about five kinds of errors here
        raise UserError(f"device: '{name}' is not on this machine. Use auto, cpu or cuda") from None
    return name
