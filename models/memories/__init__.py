"""The trained memories by name: each one file, all behind `TrainedMemory`."""

from models.memories.gpt import Gpt, GptSettings
from models.memories.lstm import Lstm
from models.memories.none import NoMemory
from models.memories.trained_memory import MemorySettings, NetworkSettings, TrainedMemory
from utils.errors import UserError, suggestion

__all__ = [
    "MEMORIES",
    "GptSettings",
    "MemorySettings",
    "NetworkSettings",
    "NoMemory",
    "TrainedMemory",
    "build_memory",
]

MEMORIES: dict[str, type[TrainedMemory]] = {"none": NoMemory, "LSTM": Lstm, "GPT": Gpt}


def build_memory(name: str, n_features: int, settings: MemorySettings) -> TrainedMemory:
    """Return a freshly initialised memory.

    Args:
        name: A key of MEMORIES.
        n_features: F, the width of what it reads.
        settings: At least those that the memory's class reads.

    Raises:
        UserError: there is no such memory, or its settings do not fit each other.
    """
    if name not in MEMORIES:
        hint = suggestion(name, MEMORIES)
        raise UserError(f"memory: unknown name '{name}', known: {', '.join(MEMORIES)}.{hint}")
    return MEMORIES[name](n_features, settings)
