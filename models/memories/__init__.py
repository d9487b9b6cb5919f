"""The trained memories, behind `TrainedMemory`."""

# ruff: noqa: F401  (others import them from here)

from models.memories.base import NoMemory, TrainedMemory
from models.memories.gpt import Gpt, GTrXL
from models.memories.lstm import Gru, Lstm
from models.memories.matrix import GatedDeltaNet, Mamba2, MLstm
from models.memories.scan import Ffm, Lru, MinGru, Scan
from models.settings import ConvolutionSettings, FfmSettings, GptSettings, NetworkSettings
