"""The trained memories, one file each, behind `TrainedMemory`."""

from models.memories.base import NetworkSettings, NoMemory, TrainedMemory
from models.memories.gpt import Gpt, GptSettings
from models.memories.lstm import Lstm

__all__ = ["Gpt", "GptSettings", "Lstm", "NetworkSettings", "NoMemory", "TrainedMemory"]
