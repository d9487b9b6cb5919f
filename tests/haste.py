"""A price on every step, before whatever else is done with the rewards."""

from typing import Any

import numpy as np
from torch import Tensor

from trainers.learner import RewardScaling


class Haste:
    """r'_t = r_t - price, then scaled where rewards are.

    `update` is called at each step, `scaled` when steps are learned from: replay keeps the rewards
    as they were paid.
    """

    def __init__(self, scaling: RewardScaling | None, price: float) -> None:
        self.scaling, self.price = scaling, price

    def update(self, rewards: np.ndarray, ended: np.ndarray) -> None:
        if self.scaling is not None:
            self.scaling.update(rewards - self.price, ended)

    def scaled(self, rewards: Tensor) -> Tensor:
        dear = rewards - self.price
        return dear if self.scaling is None else self.scaling.scaled(dear)

    def begin(self) -> None:
        if self.scaling is not None:
            self.scaling.begin()

    def state_dict(self) -> dict[str, Any]:
        return {} if self.scaling is None else self.scaling.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.scaling is not None:
            self.scaling.load_state_dict(state)
