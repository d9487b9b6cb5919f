"""Agents by name, or by module:Class for the user's own."""

import importlib
import inspect
from typing import TYPE_CHECKING, Any

from gymnasium.spaces import Box, Space

from models.settings import READS, NormalizationSettings
from utils.errors import UserError
from utils.settings import Config, OwnRegistry, networks_of
from utils.user_modules import is_named, telling

if TYPE_CHECKING:  # importing this file brings no PyTorch
    from models.agent import Agent

# Names of the papers that say how an agent learns, too: agent and algorithm.
PUBLISHED = {"CNN-PPO": ("CNN", "PPO"), "Impala-PPO": ("LSTM", "PPO")}


class Agents(OwnRegistry):
    base = "models.agent:ActorCriticAgent"

    def find(self, name: str) -> type["Agent"]:
        kind: type[Agent] = super().find(name)
        if not is_named(name):
            return kind
        if not isinstance(kind.algorithms, tuple):
            raise UserError(f"model: '{name}': `algorithms` is no tuple of names, such as ('PPO',)")
        from models.baselines import MemoryAgent

        memory = kind.memory_class
        if memory is None and issubclass(kind, MemoryAgent):
            raise UserError(f"model: '{name}' is not whole, it lacks memory_class")
        if memory is not None and not _is_memory(memory):
            raise UserError(
                f"model: '{name}': derive its memory_class from models.memories.TrainedMemory"
            )
        for method in (kind.act, *([] if memory is None else [memory.step])):
            if "advance" not in inspect.signature(method).parameters:
                raise UserError(
                    f"model: '{name}': {method.__qualname__} takes no `advance`. Give it "
                    "advance=True, and leave the memory as it is where it is False"
                )
        return kind

    def remedy(self, kind: object) -> str:
        if not (isinstance(kind, type) and _is_memory(kind)):
            return super().remedy(kind)
        return (
            f"It is a memory, which an agent has: class MyAgent(models.baselines.MemoryAgent): "
            f"memory_class = {kind.__name__} (examples/my_memory.py)"
        )


def _is_memory(kind: object) -> bool:
    from models.memories import TrainedMemory

    return isinstance(kind, type) and issubclass(kind, TrainedMemory)


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
        "GatedDeltaNet": "models.baselines:GatedDeltaNetAgent",
        "Mamba2": "models.baselines:Mamba2Agent",
        "GPT": "models.baselines:GptAgent",
        "GTrXL": "models.baselines:GTrXLAgent",
        "HELM": "models.helm:Helm",
        "HELMv2": "models.helm:HelmV2",
        "SHELM": "models.helm:Shelm",
        "ELLM": "models.ellm:Ellm",
    },
    "agent",
    READS,
    {name: agent for name, (agent, _) in PUBLISHED.items()},
)
agent_class = AGENTS.find
ACTOR_CRITICS = ("PPO", "SAC", "TD3")
DISCRETE, CONTINUOUS = ("DQN", "EllmDQN"), ("TD3",)  # of one kind of actions alone
# These have networks of their own, with the memory of the model in them.
FROM_REPLAY = ("DQN", "SAC", "TD3")


def build_agent(config: Config, observation_space: Space, action_space: Space) -> Any:
    """Return the configured agent, initialised; UserError if it cannot see or act there.

    Both spaces are those of one environment; `config.device` must be resolved.
    """
    is_box = isinstance(action_space, Box)
    others, networks = DISCRETE if is_box else CONTINUOUS, networks_of(config)
    if networks in others:
        raise UserError(
            f"algorithm: {config.algorithm} is for {'discrete' if is_box else 'continuous'} "
            f"actions, and {config.env} has {action_space}. Choose algorithm="
            f"{' or '.join(name for name in ACTOR_CRITICS if name not in others)}"
        )
    kind = agent_class(config.model)
    with telling(config):
        if networks in FROM_REPLAY:
            from_replay = importlib.import_module("models.q_networks")
            agent = from_replay.build_from_replay(config, observation_space, action_space, kind)
        else:
            agent = kind(config, observation_space, action_space)
        if is_box and agent.reader.action_shape != action_space.shape:
            raise UserError(
                f"model: '{config.model}' chooses among discrete actions, and {config.env} has "
                f"{action_space}. Build its reader by models.encoders.configured_reader and its "
                "heads by models.heads.build_heads, or choose another model"
            )
        normalizes = config.part(NormalizationSettings).normalize_observations
        if normalizes and agent.reader.normalizer not in agent.modules():
            raise UserError(
                f"normalize_observations: true, and '{config.model}' does not read through its "
                "reader's normalizer. Build both by models.encoders.configured_reader and "
                "build_encoder, or leave it at false"
            )
        return agent.to(config.device)


def validate_config(config: Config) -> list[str]:
    from models.settings import EncoderSettings

    key, algorithm = PUBLISHED.get(config.model, (config.model, config.algorithm))
    if algorithm != config.algorithm:
        return [
            f"model: {config.model} is {key} trained by {algorithm}, and algorithm is "
            f"{config.algorithm}. Choose model={key}"
        ]
    kind, networks = agent_class(key), networks_of(config)
    if kind.algorithms and networks not in kind.algorithms:
        return [
            f"model: {config.model} is trained by {', '.join(kind.algorithms)}, and algorithm is "
            f"{config.algorithm}. Choose algorithm={kind.algorithms[0]}, or another model"
        ]
    is_told = isinstance(config, EncoderSettings) and config.last_action_input
    if networks in FROM_REPLAY and is_told:
        return [
            f"last_action_input: {config.algorithm} reads the last action by action_embedding "
            "already. Leave it at false"
        ]
    if networks not in FROM_REPLAY or kind.memory_class or kind.has_frozen_memory:
        return []
    return [
        f"model: '{config.model}' has no memory_class, which {config.algorithm} puts into networks "
        "of its own. Give it one (docs/tutorials/your_memory.md), or choose algorithm=PPO"
    ]


def resolve_device(name: str) -> str:
    """Return a device of this machine, or raise UserError; "auto" is a GPU if there is one."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        if name.startswith("cpu:"):
            raise ValueError("there is one alone, and torch takes any number for it")
        torch.zeros(1, device=name).item()
    except Exception:  # torch raises about five kinds of errors here
        raise UserError(f"device: '{name}' is not on this machine. Use auto, cpu or cuda") from None
    return name
