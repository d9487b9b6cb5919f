"""An agent with your own memory: it keeps the first observation of an episode.

python examples/my_memory.py
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import helm
from models.agent import TensorMemory
from models.baselines import MemoryAgent
from models.memories import TrainedMemory
from models.settings import EncoderSettings, NetworkSettings
from utils.settings import setting


@dataclass(frozen=True)
class FirstSettings(NetworkSettings):
    """Settings of the memory, given by `--var first_weight=2` or a settings file."""

    title = "First"

    first_weight: float = setting("factor of the first features", low=0, high=10, default=1.0)


class First(TrainedMemory):
    """y_t = W [c * x_1, x_t]; the state is x_1, and 1 once there is one.  [N, F+1]"""

    def __init__(self, n_features: int, settings: FirstSettings) -> None:
        super().__init__(n_features, settings)
        self.width, self.weight = n_features, settings.first_weight
        self.joined = nn.Linear(2 * n_features, n_features)

    def initial(self, n_envs: int) -> TensorMemory:
        return TensorMemory(torch.zeros(n_envs, self.width + 1, device=self.device))

    def stored_state(self, state: Any, is_first: Tensor) -> Tensor:
        # The state is emptied where an episode begins.
        return state.state.masked_fill(is_first[:, None], 0.0)

    @torch.no_grad()
    def step(self, x: Tensor, state: Any, is_first: Tensor, advance: bool = True) -> Tensor:
        kept = self._kept(self.stored_state(state, is_first), x)
        if advance:
            state.state = kept
        return self._output(kept, x)

    def unroll(self, x: Tensor, is_first: Tensor, stored_state: Tensor) -> Tensor:
        # Whole sequences with gradients.  [T, B, F] -> [T, B, F]
        outputs, kept = [], stored_state
        for features, begun in zip(x, is_first.to(x.device), strict=True):
            kept = self._kept(kept.masked_fill(begun[:, None], 0.0), features)
            outputs.append(self._output(kept, features))
        return torch.stack(outputs)

    def _kept(self, before: Tensor, x: Tensor) -> Tensor:
        is_kept = before[:, -1:]
        first = is_kept * before[:, :-1] + (1 - is_kept) * x
        return torch.cat((first, torch.ones_like(is_kept)), dim=1)

    def _output(self, kept: Tensor, x: Tensor) -> Tensor:
        return self.joined(torch.cat((self.weight * kept[:, :-1], x), dim=1)).relu()


class FirstAgent(MemoryAgent):
    """An encoder, that memory and two heads; DQN and SAC put the memory into their networks."""

    memory_class = First
    reads = (EncoderSettings, FirstSettings)


def main(n_steps: int = 60_000) -> Path:
    """Train it on a T-Maze: the first step shows the way at the end; return the run's folder."""
    task = {"env": "TMazePassive-v0", "length": 6, "n_steps": n_steps}
    learning = {"memory_width": 32, "learning_rate": 1e-3, "ent_coef": 0.01}
    return helm.train(task | learning, agent=FirstAgent)


if __name__ == "__main__":  # environments in processes (env_processes) import this file, too
    print(main())
