"""The trained memories, behind `TrainedMemory`."""

# ruff: noqa: F401  (others import them from here)

from models.memories.base import HeadSettings, NetworkSettings, NoMemory, TrainedMemory
from models.memories.gpt import Gpt, GptSettings, GTrXL
from models.memories.lstm import Gru, Lstm
from models.memories.scan import Ffm, FfmSettings, Lru, MinGru, MLstm
