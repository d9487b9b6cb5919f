"""Random actions in the place of some of an agent's own, ever fewer of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from settings import Config, setting


@dataclass(frozen=True)
class EpsilonSettings(Config):
    """What learners that explore by epsilon read."""

    title = "exploration"

    epsilon_final: float | None = setting(
        "share of random actions in the end; null: of DQN one in the longest episode of the "
        "warm-up, of NStepDQN 0.01",
        low=0,
        high=1,
        default=None,
    )


def epsilon_after(n_steps: int, n_falling: float, start: float, final: float) -> float:
    """Return epsilon after so many steps: it falls linearly over n_falling, then is constant."""
    fraction = min(n_steps / n_falling, 1.0) if n_falling > 0 else 1.0
    return start + fraction * (final - start)


def explored(chosen: Tensor, others: Tensor, epsilons: Sequence[float]) -> Tensor:
    """Replace actions [N] by others [N], each with a probability of its own."""
    is_other = torch.rand(len(chosen), dtype=torch.float64) < torch.tensor(epsilons).double()
    return torch.where(is_other.to(chosen.device), others, chosen)
