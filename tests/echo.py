"""An agent with a memory of its own, as a user would write it."""

from dataclasses import dataclass

from models.baselines import MemoryAgent
from models.memories.lstm import Lstm
from models.settings import EncoderSettings, NetworkSettings
from utils.settings import setting


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
