"""Agents by name."""

import importlib

import torch
from gymnasium.spaces import Box, Discrete, Space

from models.agent import ActorCriticAgent
from utils.config import Config
from utils.errors import UserError, suggestion

AGENTS = {
    "CNN-PPO": "models.baselines:CnnPpo",
    "Impala-PPO": "models.baselines:LstmAgent",
    "GPT": "models.baselines:GptAgent",
    "HELM": "models.helm:Helm",
    "HELMv2": "models.helmv2:HelmV2",
    "SHELM": "models.shelm:Shelm",
}


def build_agent(config: Config, observation_space: Space, action_space: Space) -> ActorCriticAgent:
    """Return the configured agent, freshly initialised, on its device.

    Args:
        config: The settings; `device` must be resolved.
        observation_space: Images (C, H, W) of one environment.
        action_space: Actions of one environment.
    """
    if not isinstance(observation_space, Box) or not isinstance(action_space, Discrete):
        raise TypeError(f"agents see a Box and act in a Discrete space, not {action_space}")
    return agent_class(config.model)(config, observation_space, action_space).to(config.device)


def agent_class(name: str) -> type[ActorCriticAgent]:
    """Return an agent's class, importing only its module."""
    if name not in AGENTS:
        hint = suggestion(name, AGENTS)
        raise UserError(f"model: unknown agent '{name}', known: {', '.join(AGENTS)}.{hint}")
    module, class_name = AGENTS[name].split(":")
    return getattr(importlib.import_module(module), class_name)


def resolve_device(name: str) -> str:
    """Return a device that exists: "auto" becomes a GPU if there is one.

    Raises:
        UserError: the device is unknown or not on this machine.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name).item()
    except Exception:  # torch raises about five kinds of errors here
        raise UserError(f"device: '{name}' is not on this machine. Use auto, cpu or cuda") from None
    return name
