"""Modules as a user would write them, in a folder of the test's own."""

import sys
from pathlib import Path

MY_AGENTS = """
from dataclasses import dataclass

from models.agent import ActorCriticAgent
from models.baselines import CnnAgent, MemoryAgent
from models.encoders import EncoderSettings
from models.memories import NetworkSettings
from models.memories.lstm import Lstm
from settings import Part, setting


@dataclass(frozen=True)
class EchoSettings(NetworkSettings):
    title = "Echo"
    echoes: int = setting("how often it sounds", low=1, high=9, default=3)


class Echo(Lstm):
    settings = EchoSettings

    def __init__(self, n_features, settings):
        super().__init__(n_features, settings)
        self.echoes = settings.echoes


class MyAgent(MemoryAgent):
    memory_class = Echo
    reads = (EncoderSettings, EchoSettings)
"""


MY_ENVS = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

gymnasium.register("MyCartPole-v0", CartPoleEnv, max_episode_steps=20)
"""


def forget_modules_of(folder: Path) -> None:
    """Let Python import anew what a test has written."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and Path(file).is_relative_to(folder):
            del sys.modules[name]
