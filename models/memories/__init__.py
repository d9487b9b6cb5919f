"""The trained memories, behind `TrainedMemory`."""

from models.memories.base import HeadSettings, NetworkSettings, NoMemory, TrainedMemory
from models.memories.gpt import Gpt, GptSettings, GTrXL
from models.memories.lstm import Gru, Lstm
from models.memories.scan import Ffm, Lru, MinGru, MLstm

__all__ = [
    "Ffm",
    "GTrXL",
    "Gpt",
    "GptSettings",
    "Gru",
    "HeadSettings",
    "Lru",
    "Lstm",
    "MLstm",
    "MinGru",
    "NetworkSettings",
    "NoMemory",
    "TrainedMemory",
]
