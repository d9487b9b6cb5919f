"""What all intrinsic rewards share: computed on the batch that is learned from, and trained there.

Features of what is seen go in, without gradients: the agent never learns from these networks'
losses. One reward a step comes out; then the networks learn from the same batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from models.agent import Agent, Moves
from models.images import Features
from models.sentence_encoder import SentenceSettings
from settings import Part, setting
from utils.running_statistics import RunningMeanVariance

TEXT = "text"  # the kind that has a weight of its own

Named = Mapping[str, Features]


@dataclass(frozen=True)
class CuriositySettings(Part):
    """Which intrinsic reward there is."""

    title = "curiosity"

    curiosity: str | None = setting(
        "intrinsic reward: RND, NovelD, APT; null: the task's alone", default=None
    )


@dataclass(frozen=True)
class IntrinsicSettings(SentenceSettings, CuriositySettings):
    """What every intrinsic reward reads."""

    title = "curiosity"

    curiosity_weight: float = setting(
        "weight of the intrinsic reward", low=0, high=1e6, default=0.01
    )
    task_reward_weight: float = setting(
        "weight of the task's reward beside the intrinsic one", low=0, high=1e6, default=1.0
    )
    curiosity_features: str = setting(
        "what is novel: features of the agent's encoder, the observation itself, or the frozen "
        "memory of the HELM family",
        choices=("agent", "observation", "memory"),
        default="agent",
    )
    curiosity_text_weight: float = setting(
        "weight of texts beside what else is seen", low=0, high=1e6, default=0.5
    )
    curiosity_width: int = setting(
        "width of the intrinsic networks", low=1, high=16_384, default=512
    )
    curiosity_learning_rate: float = setting(
        "learning rate of the intrinsic networks", low=0, high=10, default=1e-4
    )
    curiosity_batches: int | None = setting(
        "gradient steps of the intrinsic networks on each batch, which is cut into so many; null: "
        "n_batches with PPO, 1 with DQN and SAC",
        low=1,
        high=2**24,
        default=None,
    )


class Sight(NamedTuple):
    """What an intrinsic reward has to go by.

    Attributes:
        shapes: Of the features, by kind: (F,), or (C, H, W).
        n_actions: A.
        features_of: What is seen → features of all observations, by kind.
    """

    shapes: Mapping[str, Sequence[int]]
    n_actions: int
    features_of: Callable[[Moves], Named]


class Ranks(Protocol):
    """The processes that train together."""

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors with the first rank's."""

    def average_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Replace gradients by their means over all ranks."""

    def least(self, value: int) -> int:
        """Return the smallest of a value over all ranks."""


class Experience(NamedTuple):
    """Features before and after B steps, by kind, and what was done.

    Attributes:
        seen: Before each step, B of every kind.
        following: After it.
        actions: [B] int64
    """

    seen: Named
    following: Named
    actions: Tensor

    def select(self, steps: Tensor) -> "Experience":
        """Return some of the steps, given their numbers.  [B'] int64"""
        return Experience(
            _selected(self.seen, steps), _selected(self.following, steps), self.actions[steps]
        )


class Losses(NamedTuple):
    """What networks learn from, a scalar, and what else is to be logged of it."""

    loss: Tensor
    logged: Mapping[str, Tensor]


class Curiosity(ABC):
    """An intrinsic reward, and the networks that compute it.

    Where several ranks train together each has statistics of its own, and all the same networks.

    Args:
        config: Its settings.
        networks: By the kind of the features they read.
        features_of: What is seen → features of all observations, by kind.

    Attributes:
        reads: The settings it is built from.
        logged: What `learn` has to log.
        networks: By kind.
        statistics: Running mean and variance that rewards are divided by.
    """

    reads: ClassVar[tuple[type[Part], ...]]
    logged: ClassVar[tuple[str, ...]] = ("loss",)

    def __init__(
        self,
        config: IntrinsicSettings,
        networks: Mapping[str, nn.Module],
        features_of: Callable[[Moves], Named],
    ) -> None:
        self.config, self._features_of = config, features_of
        self.networks = nn.ModuleDict(networks)
        self.parameters = [p for p in self.networks.parameters() if p.requires_grad]
        rate = config.curiosity_learning_rate
        self.optimizer = torch.optim.Adam(self.parameters, lr=rate, fused=True)
        self.statistics = RunningMeanVariance()
        self._ranks: Ranks | None = None

    @classmethod
    @abstractmethod
    def configured(cls, config: Any, sight: Sight) -> "Curiosity":
        """Return one with fresh networks for what there is to be seen."""

    @staticmethod
    def contradictions(config: Any, agent: type[Agent]) -> list[str]:
        """Return one line for every pair of settings that cannot both hold with such an agent."""
        problems = []
        if config.curiosity_weight == config.task_reward_weight == 0:
            problems.append(
                "curiosity_weight: with task_reward_weight it is 0, so that nothing is rewarded. "
                "Choose one above 0"
            )
        if config.curiosity_features == "memory" and not hasattr(agent, "language_class"):
            problems.append(
                f"curiosity_features: memory is the frozen one of HELM, HELMv2 and SHELM, and "
                f"model is {config.model}. Choose curiosity_features=agent or observation"
            )
        return problems

    @abstractmethod
    def raw_rewards(self, experience: Experience) -> Tensor:
        """Return the reward of every step, not weighted.  [B]"""

    @abstractmethod
    def losses(self, experience: Experience) -> Losses:
        """Return what the networks learn from."""

    @property
    def reads_memory(self) -> bool:
        """Whether `Moves.context` is asked for."""
        return self.config.curiosity_features == "memory"

    @property
    def names(self) -> tuple[str, ...]:
        """What is logged of a batch."""
        return tuple(f"curiosity/{name}" for name in ("reward_mean", "reward_std", *self.logged))

    def weighted_task(self, rewards: Tensor) -> Tensor:
        """Return the task's rewards with the weight they have beside the intrinsic ones."""
        return self.config.task_reward_weight * rewards

    def __call__(self, moves: Moves, n_batches: int = 1) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the rewards of B steps, then learn from them.

        Args:
            moves: The steps.
            n_batches: Gradient steps to take, each on a part of the batch, unless the settings say.

        Returns:
            The weighted rewards [B], and what to log by its name.
        """
        experience = self.read(moves)
        rewards = self.raw_rewards(experience)
        logged = {"reward_mean": rewards.mean(), "reward_std": rewards.std(correction=0)}
        logged |= self.learn(experience, self.config.curiosity_batches or n_batches)
        weighted = self.config.curiosity_weight * rewards
        return weighted, {f"curiosity/{name}": value for name, value in logged.items()}

    @torch.no_grad()
    def read(self, moves: Moves) -> Experience:
        """Return the features of what was seen."""
        features = self._features_of(moves)
        return Experience(
            _selected(features, moves.before), _selected(features, moves.after), moves.actions
        )

    def learn(self, experience: Experience, n_batches: int = 1) -> dict[str, Tensor]:
        """Take gradient steps and return the means of what to log."""
        rows = []
        for part in self._parts(experience, n_batches):
            loss, logged = self.losses(part)
            self.optimizer.zero_grad()
            loss.backward()
            if self._ranks is not None:
                self._ranks.average_gradients(self.parameters)
            self.optimizer.step()
            rows.append({"loss": loss.detach()} | {k: v.detach() for k, v in logged.items()})
        return {name: torch.stack([row[name] for row in rows]).mean() for name in rows[0]}

    def share(self, ranks: Ranks) -> None:
        """Give all ranks the first one's networks, and the means of their gradients from now on."""
        self._ranks = ranks
        ranks.broadcast(self.networks.state_dict().values())

    def state_dict(self) -> dict[str, Any]:
        """Return networks, optimiser and statistics."""
        return {
            "networks": dict(self.networks.state_dict()),  # plain, as it is checked when loaded
            "optimizer": self.optimizer.state_dict(),
            "statistics": self.statistics.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.networks.load_state_dict(state["networks"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.statistics.load_state_dict(state["statistics"])

    def _parts(self, experience: Experience, n_batches: int) -> Iterator[Experience]:
        """Yield a batch in so many parts, drawn at random."""
        n_steps = len(experience.actions)
        n_parts = min(n_batches, n_steps)
        if self._ranks is not None and n_batches > 1:
            n_parts = self._ranks.least(n_parts)
        if n_parts < 2:
            yield experience
            return
        order = torch.randperm(n_steps).to(experience.actions.device)
        for steps in order.tensor_split(n_parts):
            yield experience.select(steps)


def weighted_sum(values: Mapping[str, Tensor], text_weight: float) -> Tensor:
    """Return the sum of what each kind says, text with its weight."""
    parts = [text_weight * part if kind == TEXT else part for kind, part in values.items()]
    return torch.stack(parts).sum(0)


def _selected(features: Named, numbers: Tensor) -> dict[str, Features]:
    return {kind: each.select(numbers) for kind, each in features.items()}
