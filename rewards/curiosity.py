"""Intrinsic rewards pay for novelty: RND, NovelD and APT, with the numbers of ELLM's code.

The story: a batch of steps becomes features, by kind, without gradients: the agent never learns
from these networks' losses. One reward a step comes out; then the networks learn from the batch.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.agent import Agent, Transitions
from models.caching import unit_images
from models.encoders import SmallImpalaCNN
from models.observations import ObservationBatch, Observations, Percept
from models.sentence_encoder import SentenceFeatures, SentenceSettings, load_sentence_encoder
from utils.errors import UserError
from utils.running_statistics import RunningMeanVariance
from utils.saved_state import load_moments, moments, with_moments
from utils.settings import Part, Registry, setting
from utils.starting import one_thread

TEXT = "text"  # the kind that has a weight of its own
CHANNELS = (16, 32)  # of the convolutions before a perceptron that reads images
CLIP, EPSILON = 5.0, 1e-5  # of standardised features
DEVIATION_EPSILON = 1e-8
SMALLEST = torch.finfo(torch.float32).tiny

CURIOSITIES = Registry(
    "curiosity",
    {
        "RND": "rewards.curiosity:RandomNetworkDistillation",
        "NovelD": "rewards.curiosity:NovelD",
        "APT": "rewards.curiosity:ActivePretraining",
    },
    "intrinsic reward",
)

Kinds = Mapping[str, Tensor]  # [B, ...] of images, vectors, text; or of the memory of it
Shapes = Mapping[str, Sequence[int]]  # of such features, (F,) or (C, H, W)


@dataclass(frozen=True)
class CuriositySettings(Part):
    """Which intrinsic reward there is."""

    title = "curiosity"

    curiosity: str | None = setting(
        "intrinsic reward: RND, NovelD, APT; null: the task's alone", default=None
    )


@dataclass(frozen=True)
class IntrinsicSettings(SentenceSettings, CuriositySettings):
    """The settings of every intrinsic reward."""

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


@dataclass(frozen=True)
class NovelDSettings(IntrinsicSettings):
    """The settings of NovelD."""

    noveld_alpha: float = setting(
        "share of the novelty before a step that is taken off that after it",
        low=0,
        high=1e6,
        default=1.0,
    )


@dataclass(frozen=True)
class AptSettings(IntrinsicSettings):
    """The settings of APT."""

    apt_neighbours: int = setting(
        "nearest neighbours that novelty is measured by, the step itself among them",
        low=1,
        high=1_000_000,
        default=12,
    )
    icm: str = setting(
        "networks that APT's distances are of: ellm, as in ELLM's code (an action is one number, "
        "text is read by the images' encoder), or paper, as in Pathak et al. 2017",
        choices=("ellm", "paper"),
        default="ellm",
    )
    apt_clip: float = setting(
        "distance, in mean distances, that counts for nothing", low=0, high=1e6, default=1e-4
    )
    apt_group: int = setting(
        "steps among which neighbours are looked for; a larger batch is cut at random",
        low=1,
        high=1_000_000,
        default=1024,
    )


class Curiosity(ABC):
    """An intrinsic reward beside the task's, and the networks that compute it.

    Args:
        config: Its settings.
        networks: By the kind of the features they read.
        features_of: Observations and their `Step.context` → their features, by kind.
        n_batches: Gradient steps on each batch, which is cut into so many.

    Attributes:
        reads: The settings it is built from.
        logged: The names in the result of `losses`.
        statistics: Running mean and variance that rewards are divided by.
        metrics: The names of everything that is logged of a batch.
        reads_context: Whether `Transitions.context` is asked for.
    """

    reads: ClassVar[tuple[type[Part], ...]]
    logged: ClassVar[tuple[str, ...]] = ("loss",)

    def __init__(
        self,
        config: Any,
        networks: Mapping[str, nn.Module],
        features_of: Callable[[ObservationBatch, Tensor], Kinds],
        n_batches: int = 1,
    ) -> None:
        self.config, self.features_of, self.n_batches = config, features_of, n_batches
        self.networks = nn.ModuleDict(networks)
        self.parameters = [p for p in self.networks.parameters() if p.requires_grad]
        rate = config.curiosity_learning_rate
        self.optimizer = with_moments(torch.optim.Adam(self.parameters, lr=rate, fused=True))
        self.statistics = RunningMeanVariance()
        logged = "reward_mean", "reward_std", *self.logged
        self.metrics = tuple(f"curiosity/{name}" for name in logged)
        self.reads_context = config.curiosity_features == "memory"
        self._ranks: Any = None  # the processes that train together, if there are several

    @staticmethod
    @abstractmethod
    def networks_for(config: Any, shapes: Shapes, n_actions: int) -> dict[str, nn.Module]:
        """Return fresh networks for features of such shapes, (F,) or (C, H, W), by kind."""

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
        if config.apt_group < config.apt_neighbours:
            problems.append(
                f"apt_group: among {config.apt_group} steps there are no {config.apt_neighbours} "
                "neighbours. Choose a larger apt_group, or fewer apt_neighbours"
            )
        return problems

    @abstractmethod
    def rewards(self, before: Kinds, after: Kinds) -> Tensor:
        """Return the reward of B steps, not weighted, given the features around each.  [B]"""

    @abstractmethod
    def losses(self, before: Kinds, after: Kinds, actions: Tensor) -> dict[str, Tensor]:
        """Return scalars to log, of which the networks learn from `loss`."""

    def __call__(self, steps: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        """Learn from the steps; return the rewards to learn from [B] and values to log.

        task_reward_weight * r_task + curiosity_weight * r_intrinsic
        """
        # The agent never learns from these losses; one pass of its encoder reads both halves.
        with torch.no_grad():
            both = self.features_of(steps.observations, steps.context)
        n_steps = len(steps.actions)
        before, after = _selected(both, slice(n_steps)), _selected(both, slice(n_steps, None))
        # Rewards come first: a batch is as novel as it was before the networks learned from it.
        rewards, config = self.rewards(before, after), self.config
        logged = {"reward_mean": rewards.mean(), "reward_std": rewards.std(correction=0)}
        logged |= self.learn(before, after, steps.actions)
        paid = config.task_reward_weight * steps.rewards + config.curiosity_weight * rewards
        return paid, {f"curiosity/{name}": value for name, value in logged.items()}

    def learn(self, before: Kinds, after: Kinds, actions: Tensor) -> dict[str, Tensor]:
        """Take the gradient steps of a batch and return the means of its losses."""
        rows = []
        n_parts = self.n_batches
        if self._ranks is not None and n_parts > 1:  # as many on every rank
            n_parts = self._ranks.least(min(n_parts, len(actions)))
        for part in self._parts(len(actions), n_parts, actions.device):
            losses = self.losses(_selected(before, part), _selected(after, part), actions[part])
            self.optimizer.zero_grad()
            losses["loss"].backward()
            if self._ranks is not None:
                self._ranks.average_gradients(self.parameters)
            self.optimizer.step()
            rows.append({name: value.detach() for name, value in losses.items()})
        return {name: torch.stack([row[name] for row in rows]).mean() for name in rows[0]}

    def share(self, ranks: Any) -> None:
        """Give all ranks the first one's networks, and the means of their gradients from now on.

        Statistics are each rank's own.
        """
        self._ranks = ranks
        ranks.broadcast(self.networks.state_dict().values())

    def state_dict(self) -> dict[str, Any]:
        """Return networks, optimiser and statistics."""
        return {
            "networks": dict(self.networks.state_dict()),
            "optimizer": moments(self.optimizer),
            "statistics": self.statistics.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.networks.load_state_dict(state["networks"])
        load_moments(self.optimizer, state["optimizer"])
        self.statistics.load_state_dict(state["statistics"])

    def _parts(self, n_steps: int, n_parts: int, device: torch.device) -> tuple[Tensor, ...]:
        """Return the numbers of B steps in so many parts drawn at random, of one step at least."""
        n_parts = min(n_parts, n_steps)
        order = torch.randperm(n_steps) if n_parts > 1 else torch.arange(n_steps)
        return order.to(device).tensor_split(n_parts)

    def _sum(self, kinds: Mapping[str, Tensor]) -> Tensor:
        """Return the sum of the kinds' rewards, text with its weight.  [B]"""
        weight = self.config.curiosity_text_weight
        return torch.stack([weight * r if kind == TEXT else r for kind, r in kinds.items()]).sum(0)


class RandomNetworkDistillation(Curiosity):
    """Random network distillation (Burda et al. 2018, arXiv:1810.12894).

    A network learns to predict a fixed random one of the features before a step. Its error is
    large where little like it has been seen, and divided by its running standard deviation.

        r = (e_images + e_vectors + lambda e_text) / (sqrt(Var[e]) + 1e-8)

    The statistics take in a batch before it is divided; lambda is `curiosity_text_weight`.
    """

    reads = (IntrinsicSettings,)

    @staticmethod
    def networks_for(config: Any, shapes: Shapes, n_actions: int) -> dict[str, nn.Module]:
        """Return three layers of `curiosity_width` in each network."""
        widths = [config.curiosity_width] * 3
        return {kind: Distillation(shape, widths) for kind, shape in shapes.items()}

    @torch.no_grad()
    def rewards(self, before: Kinds, after: Kinds) -> Tensor:
        """Return the scaled novelty of each step.  [B]"""
        novelty = self._sum(self.novelty(before, after))
        self.statistics.update(novelty.cpu())
        return novelty / (self.statistics.variance**0.5 + DEVIATION_EPSILON)

    def novelty(self, before: Kinds, after: Kinds) -> dict[str, Tensor]:
        """Return the novelty of each step by kind.  [B] each"""
        return self.errors(before)

    def errors(self, features: Kinds) -> dict[str, Tensor]:
        """Return the error of each prediction by kind.  [B] each"""
        return {kind: self.networks[kind](each) for kind, each in features.items()}

    def losses(self, before: Kinds, after: Kinds, actions: Tensor) -> dict[str, Tensor]:
        """Return the mean error, all kinds alike."""
        return {"loss": torch.stack(list(self.errors(before).values())).sum(0).mean()}


class NovelD(RandomNetworkDistillation):
    """NovelD (Zhang et al. 2021, NeurIPS; first as BeBold, arXiv:2012.08621).

    A step is rewarded that leads over the boundary of known ground:

        n_kind = max(e(after) - alpha e(before), 0)

    Without the restriction to the first visit in an episode, which ELLM leaves out.
    """

    reads = (NovelDSettings,)

    def novelty(self, before: Kinds, after: Kinds) -> dict[str, Tensor]:
        """Return the novelty of each step by kind.  [B] each"""
        known, reached, alpha = self.errors(before), self.errors(after), self.config.noveld_alpha
        return {kind: F.relu(reached[kind] - alpha * known[kind]) for kind in known}


class ActivePretraining(Curiosity):
    """Active pre-training (Liu & Abbeel 2021, arXiv:2103.04551): far from its nearest neighbours.

    Distances are those of the encoder of an intrinsic curiosity module.

        r = log(1 + mean over K neighbours of max(d / mean(d) - clip, 0))
    """

    reads = (AptSettings,)
    logged = ("loss", "forward_loss", "inverse_loss")

    @staticmethod
    def networks_for(config: Any, shapes: Shapes, n_actions: int) -> dict[str, nn.Module]:
        """Return modules whose codes are `curiosity_width` wide and hidden layers twice that.

        Raises:
            UserError: text is to be read by the encoder of something of another shape.
        """
        as_ellm, first = config.icm == "ellm", next(iter(shapes))
        if as_ellm and tuple(shapes.get(TEXT, shapes[first])) != tuple(shapes[first]):
            raise UserError(
                f"icm: ellm has text read as {first} are, and what is seen of them has another "
                "shape. Choose icm=paper, or curiosity_features=agent"
            )
        widths = 2 * config.curiosity_width, config.curiosity_width
        return {kind: Dynamics(shape, widths, n_actions, as_ellm) for kind, shape in shapes.items()}

    @torch.no_grad()
    def rewards(self, before: Kinds, after: Kinds) -> Tensor:
        """Return the reward of each step's outcome.  [B]"""
        codes = {kind: self._encoder(kind)(each) for kind, each in after.items()}
        example = next(iter(codes.values()))
        n_groups = math.ceil(len(example) / self.config.apt_group)
        groups = self._parts(len(example), n_groups, example.device)
        return self._sum({kind: self._of_codes(each, groups) for kind, each in codes.items()})

    def losses(self, before: Kinds, after: Kinds, actions: Tensor) -> dict[str, Tensor]:
        """Return the means of both errors and their sum, all kinds alike."""
        errors = [net(before[kind], after[kind], actions) for kind, net in self.networks.items()]
        forward, inverse = (torch.stack(each).sum(0).mean() for each in zip(*errors, strict=True))
        return {"loss": forward + inverse, "forward_loss": forward, "inverse_loss": inverse}

    def _encoder(self, kind: str) -> nn.Module:
        """Return the encoder of a kind: with ELLM text is read by that of the first other kind."""
        if kind == TEXT and self.config.icm == "ellm":
            kind = next(iter(self.networks))
        return self.networks.get_submodule(f"{kind}.encoder")

    def _of_codes(self, codes: Tensor, groups: Sequence[Tensor]) -> Tensor:
        """Return the rewards of steps with codes [B, D], neighbours being those of a group.  [B]"""
        n_nearest = min(self.config.apt_neighbours, min(map(len, groups)))
        distances = codes.new_empty(len(codes), n_nearest)
        for steps in groups:
            # Rounding would leave a little between a step and itself.
            among = torch.cdist(codes[steps], codes[steps]).fill_diagonal_(0)
            distances[steps] = among.topk(n_nearest, largest=False).values
        self.statistics.update(distances.cpu(), correction=int(distances.numel() > 1))
        mean = max(float(self.statistics.mean), SMALLEST)  # 0 where all steps so far were alike
        relative = distances / mean - self.config.apt_clip
        return relative.clamp(min=0).mean(1).log1p()


class Distillation(nn.Module):
    """A network that learns to predict a fixed one, both of standardised features.

    B rows are standardised by their own mean and variance (Ioffe & Szegedy 2015), and clipped:

        x' = clip((x - mean) / sqrt(variance + 1e-5), -5, 5)

    Args:
        shape: Of the features.
        widths: Of the layers of both.
    """

    def __init__(self, shape: Sequence[int], widths: Sequence[int]) -> None:
        super().__init__()
        self.predictor = Perceptron(shape, widths)
        self.target = Perceptron(shape, widths).requires_grad_(False)

    def forward(self, features: Tensor) -> Tensor:
        """Return the mean squared difference of both, of every observation.  [B]"""
        variance, mean = torch.var_mean(features, 0, correction=0)
        rows = ((features - mean) / (variance + EPSILON).sqrt()).clamp(-CLIP, CLIP)
        return (self.predictor(rows) - self.target(rows)).square().mean(-1)


class Dynamics(nn.Module):
    """The intrinsic curiosity module (Pathak et al. 2017, arXiv:1705.05363).

    Its encoder learns to tell which action was taken from the features before and after it, and
    to foresee the features after it.

    Args:
        shape: Of the features.
        widths: Of the hidden layers, and of the code.
        n_actions: A.
        as_ellm: An action is one number, guessed through a tanh, and errors are distances.
    """

    def __init__(
        self, shape: Sequence[int], widths: tuple[int, int], n_actions: int, as_ellm: bool
    ) -> None:
        super().__init__()
        self.n_actions, self.as_ellm = n_actions, as_ellm
        n_hidden, n_code = widths
        n_numbers = 1 if as_ellm else n_actions
        self.encoder = Perceptron(shape, widths)
        self.forwards = Perceptron((n_code + n_numbers,), widths)
        self.inverse = Perceptron((2 * n_code,), (n_hidden, n_numbers))

    def forward(self, before: Tensor, after: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the errors of the foreseen outcomes, and of the guessed actions.  [B] each"""
        now, then = self.encoder(before), self.encoder(after)
        told = actions[:, None] if self.as_ellm else F.one_hot(actions, self.n_actions)
        foreseen = self.forwards(torch.cat((now, told.float()), -1))
        guessed = self.inverse(torch.cat((now, then), -1))
        if self.as_ellm:
            # A guess [B, 1] is compared with the actions [B] of all steps, as in ELLM's code.
            differences = then - foreseen, actions.float() - guessed.tanh()
            forward, inverse = (torch.linalg.vector_norm(each, dim=-1) for each in differences)
            return forward, inverse
        inverse = F.cross_entropy(guessed, actions, reduction="none")
        return 0.5 * (then - foreseen).square().sum(-1), inverse


class Perceptron(nn.Module):
    """Linear layers with ReLUs between them; before them convolutions, where images are read.

    Args:
        shape: Of the features: (F,), or (C, H, W).
        widths: Of the layers, the output's last.
    """

    def __init__(self, shape: Sequence[int], widths: Sequence[int]) -> None:
        super().__init__()
        self.convolutions: SmallImpalaCNN | None = None
        n_inputs = math.prod(shape)
        if len(shape) == 3:
            n_inputs = widths[0]
            self.convolutions = SmallImpalaCNN(tuple(shape), n_inputs, CHANNELS)
        self.layers = nn.ModuleList()
        for width in widths:
            layer = nn.Linear(n_inputs, width)
            with one_thread():  # the same seed gives the same weights with any number of threads
                nn.init.orthogonal_(layer.weight, gain=math.sqrt(2))
            nn.init.zeros_(layer.bias)
            self.layers.append(layer)
            n_inputs = width

    def forward(self, rows: Tensor) -> Tensor:
        """Map rows [B, ...] to outputs [B, D]."""
        if self.convolutions is not None:
            rows = self.convolutions.of_pixels(rows)
        for layer in self.layers[:-1]:
            rows = F.relu(layer(rows))
        return self.layers[-1](rows)


def configured_curiosity(config: Any, agent: Agent, n_actions: int) -> Curiosity | None:
    """Return the intrinsic reward of the settings, its networks fresh; None if there is none.

    Raises:
        UserError: there is nothing to see.
    """
    if config.curiosity is None:
        return None
    kind, features_of = CURIOSITIES.find(config.curiosity), FeatureReader(config, agent)
    with torch.no_grad():
        example = features_of(*_example(config, agent))
    if not example:
        raise UserError(
            f"curiosity_features: {config.curiosity_features} leaves {config.curiosity} nothing to "
            "see here. Choose another, or curiosity_text_weight above 0 where only text is shown"
        )
    shapes = {name: tuple(each.shape[1:]) for name, each in example.items()}
    fresh = kind.networks_for(config, shapes, n_actions)
    networks = {name: network.to(agent.device) for name, network in fresh.items()}
    n_batches = config.n_batches if config.algorithm == "PPO" else 1
    return kind(config, networks, features_of, config.curiosity_batches or n_batches)


class FeatureReader:
    """The features of observations that the settings name, by kind."""

    def __init__(self, config: Any, agent: Agent) -> None:
        self.config, self.agent = config, agent

    def __call__(self, observations: ObservationBatch, context: Tensor) -> Kinds:
        """Return the features of B observations with their `Step.context` [B, ...]."""
        if self.config.curiosity_features == "memory":
            return {"memory": context}  # frozen, so that nothing makes it stale
        kinds = None
        if self.config.curiosity_features == "agent":
            kinds = self.agent.curiosity_features(observations)
        if kinds is None:
            kinds = self._shown(observations)
        has_text = self.config.curiosity_text_weight > 0
        return {kind: each for kind, each in kinds.items() if has_text or kind != TEXT}

    def _shown(self, observations: ObservationBatch) -> dict[str, Tensor]:
        """Return observations as numbers: pixels from 0 to 1, vectors, sentences as vectors."""
        shown, kinds = observations.shown, {}
        if shown.images is not None:
            kinds["images"] = unit_images(shown.images)
        if shown.vectors is not None:
            kinds["vectors"] = shown.vectors
        if shown.text is not None and self.config.curiosity_text_weight > 0:
            kinds[TEXT] = self._sentences(shown.text).flatten(1)
        return kinds

    @cached_property
    def _sentences(self) -> SentenceFeatures:
        encoder = load_sentence_encoder(self.config.sentence_encoder)
        return SentenceFeatures(self.agent.reader.sentences, encoder)


def _example(config: Any, agent: Any) -> tuple[ObservationBatch, Tensor]:
    """Return one observation of nothing, and its context where that is read."""
    reader, device = agent.reader, agent.device
    images = vectors = text = None
    if reader.image_shape is not None:
        images = torch.zeros(1, *reader.image_shape, dtype=torch.uint8, device=device)
    if reader.n_numbers:
        vectors = torch.zeros(1, reader.n_numbers, device=device)
    if reader.n_texts:
        text = torch.tensor([reader.sentences.numbers(["nothing"] * reader.n_texts)], device=device)
    observations, context = Observations(images, vectors, text), torch.zeros(1, 0, device=device)
    if config.curiosity_features == "memory":
        memory, seen = agent.initial_memory(1), Percept.first(observations)
        context = agent.act(seen, memory, deterministic=True, advance=False).context
    return ObservationBatch(observations), context


def _selected(features: Kinds, rows: Tensor | slice) -> dict[str, Tensor]:
    return {kind: each[rows] for kind, each in features.items()}
