"""The trained memories: each one file, all behind `TrainedMemory`."""

from models.memories.gpt import Gpt, GptSettings
from models.memories.lstm import Lstm
from models.memories.trained_memory import NetworkSettings, NoMemory, TrainedMemory

__all__ = ["Gpt", "GptSettings", "Lstm", "NetworkSettings", "NoMemory", "TrainedMemory"]
