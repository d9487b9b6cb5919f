"""The scaling of rewards, which is independent of an environment's own."""

import math

import numpy as np
import torch
from torch import Tensor

from rewards.settings import REWARD_CLIP
from utils.environments import State
from utils.running_statistics import RunningMeanVariance

EPSILON = 1e-8


class RewardScaling:
    """Rewards divided by the running standard deviation of the discounted return, then clipped.

        R_t = gamma * R_{t-1} + r_t,    r'_t = clip(r_t / sqrt(Var[R] + 1e-8), -c, c)

    R starts from 0 in every episode. The statistics take in R_t of all environments before r_t is
    divided (Engstrom et al. 2020, arXiv:2005.12729). Differs from the original in gamma, which is
    the run's here and always 0.99 there. Without a clip c is None.
    """

    def __init__(self, n_envs: int, gamma: float, clip: float | None = REWARD_CLIP) -> None:
        self.gamma, self.clip = gamma, clip
        self.statistics = RunningMeanVariance()
        self._returns = np.zeros(n_envs)

    def update(self, rewards: np.ndarray, ended: np.ndarray) -> None:
        """Add the rewards of one step [N] to the statistics; `ended` marks last steps."""
        self._returns = self._returns * self.gamma + rewards
        # Of returns, not of rewards: values are to have a scale of one, whatever gamma is.
        self.statistics.update(self._returns)
        self._returns[ended] = 0.0  # only now: the statistics need the returns of last steps

    def scaled(self, rewards: Tensor) -> Tensor:
        """Return rewards of any steps, scaled by the statistics as they are now; float64."""
        divided = rewards.double() / math.sqrt(self.statistics.variance + EPSILON)
        return divided if self.clip is None else divided.clamp(-self.clip, self.clip)

    def begin(self) -> None:
        self._returns[:] = 0.0

    def state_dict(self) -> State:
        returns = torch.from_numpy(self._returns.copy())
        return {"statistics": self.statistics.state_dict(), "discounted": returns}

    def load_state_dict(self, state: State) -> None:
        self.statistics.load_state_dict(state["statistics"])
        self._returns[:] = state["discounted"].numpy()
