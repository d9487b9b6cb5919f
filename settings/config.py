"""What every run has, whatever it is made of."""

from dataclasses import dataclass
from typing import TypeVar

from settings.declaration import Part, setting

AnyPart = TypeVar("AnyPart", bound=Part)
MOST_SEED = 2**32 - 1


@dataclass(frozen=True)
class Config(Part):
    """The settings of a run, as far as every part may read them.

    Those of a run are of a class made from this one and all others, by `load_config`.
    """

    title = "the run"

    algorithm: str = setting("how it learns: PPO, DQN, SAC, NStepDQN", default="PPO")
    model: str = setting(
        "what it remembers: CNN, LSTM, GPT, HELM, HELMv2, SHELM, ELLM; or as published: "
        "CNN-PPO, Impala-PPO; or module:Class, an agent of your own",
        default="HELM",
    )
    env: str = setting(
        "environment by its full name, such as MiniGrid-KeyCorridorS3R1-v0",
        default="MiniGrid-KeyCorridorS3R1-v0",
    )
    seed: int = setting("seed of everything random", low=0, high=MOST_SEED, default=0)
    device: str = setting(
        "where networks run: auto takes a GPU if there is one; or cpu, cuda, cuda:1", default="auto"
    )
    threads: int | None = setting(
        "threads of PyTorch's operations on a CPU; null: OMP_NUM_THREADS where that is set, else 1",
        low=1,
        high=1024,
        has_effect=False,
        default=None,
    )
    n_steps: int = setting(
        "environment steps to train for, all environments together",
        low=1,
        high=10**12,
        default=500000,
    )
    n_envs: int = setting("parallel environments", low=1, high=1024, default=16)
    learning_rate: float = setting(
        "the optimiser's learning rate at the start", low=0, high=10, default=0.0001
    )
    gamma: float = setting("discount per step", low=0, high=1, default=0.99)
    deterministic: bool = setting(
        "the same bits in every run on a GPU, too, by operations that are repeatable", default=False
    )

    def part(self, kind: type[AnyPart]) -> AnyPart:
        """Return these settings, known to have those of a part."""
        if not isinstance(self, kind):
            raise TypeError(f"{type(self).__name__} has no settings of {kind.__name__}")
        return self
