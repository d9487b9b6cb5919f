"""The base of learners: a policy that acts, and updates that change it."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from models.agent import Agent, Memory, Step, Transitions
from models.observations import AgentInput, RunningMeanVariance
from trainers.ranks import Ranks
from trainers.settings import REWARD_CLIP
from utils.cuda_graphs import Recordable
from utils.environments import State
from utils.saved_state import with_moments
from utils.settings import Part

OPTIMIZERS: dict[str, type[Optimizer]] = {
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "RMSprop": torch.optim.RMSprop,
}

# What a step's tensors are called in checkpoints and replay files. Files of earlier runs go on, so
# these keep their old names.
IS_FIRST, STORED_STATE = "starts", "context"


class Transition(NamedTuple):
    """One step of N environments.

    Attributes:
        percept: The agent's input.
        step: Its actions, with the outputs of its networks.
        rewards: The environments' own.  [N] float64
        terminated: Whether the episode reached an end of its own.  [N] bool
        truncated: Whether a limit cut the episode off.  [N] bool
        following: The next input as if no new episode had begun.
        after: The next input; new episodes have begun.
        memory: The agent's, advanced by `step`.
        info: As the environments return it.
    """

    percept: AgentInput
    step: Step
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    following: AgentInput
    after: AgentInput
    memory: Memory
    info: dict[str, Any]

    @property
    def ended(self) -> Tensor:
        """Whether this step was the last of its episode.  [N] bool"""
        return self.terminated | self.truncated

    @property
    def cut_off(self) -> Tensor:
        """Whether a limit alone ended the episode: a goal on the last step is an end.  [N] bool"""
        return self.truncated & ~self.terminated


class Guide(NamedTuple):
    """A frozen agent that explores, and the checksum of its checkpoint."""

    agent: Agent
    sha256: str | None


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
        divided = rewards.double() / math.sqrt(self.statistics.variance + 1e-8)
        return divided if self.clip is None else divided.clamp(-self.clip, self.clip)

    def begin(self) -> None:
        self._returns[:] = 0.0

    def state_dict(self) -> State:
        returns = torch.from_numpy(self._returns.copy())
        return {"statistics": self.statistics.state_dict(), "discounted": returns}

    def load_state_dict(self, state: State) -> None:
        self.statistics.load_state_dict(state["statistics"])
        self._returns[:] = state["discounted"].numpy()


class Learner(Recordable, ABC):
    """The base of PPO, DQN, SAC and EllmDQN, and of learners of the user's own.

    Attributes:
        reads: The groups of settings it reads.
        networks: The agent it trains: one with a policy and a critic, as of PPO, or the networks
            that are built for DQN, SAC, TD3 or EllmDQN.
        default_optimizer: What it has where the setting `optimizer` names none.
        takes_reward: Whether it learns from `reward` where there is one.
        ranks: The processes that train together, each from its own steps.
        reward: An intrinsic reward in place of the environments'.
        scaling: Divides the environments' rewards before anything is learned from them; its
            statistics are the collector's to update.
        folder: The run's, set before the first step; replay is too large for a checkpoint.
    """

    reads: ClassVar[tuple[type[Part], ...]]
    networks: ClassVar[str] = "PPO"
    default_optimizer: ClassVar[type[Optimizer]] = torch.optim.Adam
    takes_reward: ClassVar[bool] = False
    config: Any
    agent: Agent
    ranks: Ranks
    reward: "Reward | None"
    scaling: RewardScaling | None
    folder: Path | None = None

    def __init__(
        self,
        config: Any,
        agent: Any,
        ranks: Ranks | None = None,
        reward: "Reward | None" = None,
        scaling: RewardScaling | None = None,
    ) -> None:
        self.config, self.agent, self.ranks = config, agent, ranks or Ranks()
        self.reward, self.scaling = reward, scaling

    def new_optimizer(
        self, parameters: Sequence[Tensor], learning_rate: float, fused: bool = True, **more: Any
    ) -> Optimizer:
        """Return the optimiser of the settings, with moments of 0; `more` are its own arguments."""
        chosen = self.config.optimizer
        kind = OPTIMIZERS[chosen] if chosen else self.default_optimizer
        on_gpu = self.agent.device.type == "cuda"
        # Steps are recorded there, and a count of steps in the host's memory cannot be.
        more |= {"lr": learning_rate, "capturable": on_gpu}
        if kind is not torch.optim.RMSprop:  # PyTorch has no fused one
            more["fused"] = fused or on_gpu or None
        return with_moments(kind(parameters, **more))

    @cached_property
    def may_record(self) -> bool:
        """Whether work may go as CUDA graphs."""
        agent = self.agent
        # A graph waits for no other rank and asks no table of sentences.
        is_alone = self.ranks.size == 1 and not agent.reader.n_texts
        return agent.device.type == "cuda" and is_alone and self.recordable and agent.recordable

    @classmethod
    def of(cls, agent: Agent) -> "type[Learner]":
        """Return the class that trains an agent of this kind of actions."""
        return cls

    @classmethod
    def guide_of(cls, config: Any) -> str | None:
        """Return the run or checkpoint of an agent that explores, a further argument `guide`."""
        return None

    @staticmethod
    def validate_config(config: Any, agent: type[Agent]) -> list[str]:
        """Return one line for every pair of settings that cannot both hold with such an agent."""
        return []

    @abstractmethod
    def act(self, percept: AgentInput, memory: Memory) -> Step:
        """Choose actions, exploration included, and advance the memory in place."""

    @abstractmethod
    def observe(self, transition: Transition) -> None:
        """Store one step; EllmDQN also takes the gradient steps that are due with it."""

    @property
    @abstractmethod
    def update_due(self) -> bool:
        """Whether there is enough to learn from, or the run is over."""

    @property
    def may_stop(self) -> bool:
        """Whether nothing is half done between two steps: the run may be saved there, and end."""
        return False

    def notice(self, mean_length: float) -> None:
        """Say once where settings do not fit episodes of so many steps."""
        return

    def take_step(self) -> bool:
        """Take a gradient step of a long update; False where none is left, or updates are short.

        The run may be saved after each, and end there. All ranks take as many.
        """
        return False

    @property
    def under_way(self) -> tuple[int, int] | None:
        """Gradient steps taken of an update that has begun, and all of them; else None."""
        return None

    @abstractmethod
    def update(self, progress: float) -> dict[str, float]:
        """Learn whatever is left and return the metrics; `progress` is the share of the run."""

    @abstractmethod
    def state_dict(self) -> State:
        """Return the state, without the agent: after an update, where it `may_stop`, or between
        two gradient steps.
        """

    @abstractmethod
    def load_state_dict(self, state: State, percept: AgentInput, memory: Memory | None) -> None:
        """Restore a state that has the shape of a new learner's, before the agent's own.

        Args:
            state: From `state_dict`.
            percept: The agent's next input.
            memory: The agent's; None where new episodes begin and running ones are lost.

        Raises:
            Exception: of several kinds; it is not a state of this learner.
        """

    def check_counts(self, n_steps: int) -> None:
        """Raise ValueError where restored counts are not of so many steps of all environments."""
        return


class Reward(Protocol):
    """An intrinsic reward, which learns from the batches it is computed for.

    Attributes:
        metrics: The names of its metrics.
        reads_stored_state: Whether it reads `Transitions.stored_state`, then a frozen memory's.
    """

    metrics: tuple[str, ...]
    reads_stored_state: bool

    def __call__(self, steps: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the rewards of B steps [B] and the metrics, having learned from them."""

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


class MeanMetrics:
    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._n_steps = 0

    @property
    def are_finite(self) -> bool:
        return all(map(math.isfinite, self._sums.values()))

    def add(self, sums: Mapping[str, float], n_steps: int = 1) -> None:
        for name, value in sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._n_steps += n_steps

    def means(self) -> dict[str, float]:
        return {name: total / self._n_steps for name, total in self._sums.items()}

    def state_dict(self) -> State:
        return {"sums": dict(self._sums), "n_steps": self._n_steps}

    def load_state_dict(self, state: State) -> None:
        self._sums, self._n_steps = dict(state["sums"]), state["n_steps"]
