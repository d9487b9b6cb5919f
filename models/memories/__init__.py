"""The trained memories, behind `TrainedMemory`."""

# ruff: noqa: F401  (others import them from here)

from models.memories.base import NetworkSettings, NoMemory, TrainedMemory
from models.memories.gpt import Gpt, GptSettings, GTrXL
from models.memories.lstm import Gru, Lstm
from models.memories.matrix import ConvolutionSettings, GatedDeltaNet, Mamba2, MLstm
from models.memories.scan import Ffm, FfmSettings, Lru, MinGru, Scan
