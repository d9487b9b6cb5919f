"""Rewards: intrinsic ones by name, and the scaling that is independent of an environment's own."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from utils.running_statistics import RunningMeanVariance
from utils.settings import Config, OwnRegistry, Part, setting

EPSILON = 1e-8
REWARD_LIMIT = 1.0


class Curiosities(OwnRegistry):
    base = "rewards.curiosity:Curiosity"


CURIOSITIES = Curiosities(
    "curiosity",
    {
        "RND": "rewards.curiosity:RandomNetworkDistillation",
        "NovelD": "rewards.curiosity:NovelD",
        "APT": "rewards.curiosity:ActivePretraining",
    },
    "intrinsic reward",
)


@dataclass(frozen=True)
class CuriositySettings(Part):
    title = "curiosity"

    curiosity: str | None = setting(
        "intrinsic reward: RND, NovelD, APT, or module:Class, one of your own; null: the task's "
        "alone",
        default=None,
    )


@dataclass(frozen=True)
class ScalingSettings(Config):
    title = "reward scaling"

    normalize_reward: bool | None = setting(
        "scale rewards by their return; null: as the suite does", default=None
    )


def build_scaling(config: ScalingSettings, n_envs: int, by_default: bool) -> "RewardScaling | None":
    """Return the scaling of N environments' rewards, None if the settings turn it off."""
    choice = config.normalize_reward
    is_wanted = by_default if choice is None else choice
    return RewardScaling(n_envs, config.gamma) if is_wanted else None


class RewardScaling:
    """Rewards divided by the running standard deviation of the discounted return, then clipped.

        R_t = gamma * R_{t-1} + r_t,    r'_t = clip(r_t / sqrt(Var[R] + 1e-8), -1, 1)

    R starts from 0 in every episode. The statistics take in R_t of all environments before r_t is
    divided (Engstrom et al. 2020, arXiv:2005.12729). Differs from the original in gamma, which is
    the run's here and always 0.99 there.
    """

    def __init__(self, n_envs: int, gamma: float) -> None:
        self.gamma = gamma
        self.statistics = RunningMeanVariance()
        self._returns = np.zeros(n_envs)

    def __call__(self, rewards: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """Return the scaled rewards of one step [N]; `ended` marks last steps of episodes."""
        self._returns = self._returns * self.gamma + rewards
        self.statistics.update(self._returns)
        self._returns[ended] = 0.0  # only now: the statistics need the returns of last steps
        deviation = np.sqrt(self.statistics.variance + EPSILON)
        return np.clip(rewards / deviation, -REWARD_LIMIT, REWARD_LIMIT)

    def begin(self) -> None:
        self._returns[:] = 0.0

    def state_dict(self) -> dict[str, Any]:
        returns = torch.from_numpy(self._returns.copy())
        return {"statistics": self.statistics.state_dict(), "discounted": returns}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.statistics.load_state_dict(state["statistics"])
        self._returns[:] = state["discounted"].numpy()
