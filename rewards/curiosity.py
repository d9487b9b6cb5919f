"""Intrinsic rewards for novelty: E3B; RND, NovelD and APT with the numbers of ELLM's code.

A batch of steps becomes features, by kind, without gradients. One reward a step comes out; only
then do the networks of the reward learn from the batch.
"""

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from hashlib import blake2b
from itertools import pairwise, repeat
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.agent import Agent, Transitions
from models.caching import DistinctImages, to_float01
from models.encoders import ImageEncoder, build_image_encoder, initialise_orthogonal
from models.language.load import SentenceFeatures, load_sentence_encoder
from models.observations import AgentInput, ObservationBatch, Observations, RunningMeanVariance
from rewards.settings import AptSettings, E3BSettings, IntrinsicSettings, NovelDSettings
from utils.environments import State
from utils.errors import UserError
from utils.saved_state import check_like, load_moments, moments, with_moments
from utils.settings import Part, networks_of

TEXT = "text"  # the kind that has a weight of its own
CLIP, EPSILON = 5.0, 1e-5  # of standardised features
DEVIATION_EPSILON = 1e-8
SMALLEST = torch.finfo(torch.float32).tiny  # divisor of distances


Kinds = Mapping[str, Tensor]  # [B, ...] of images, vectors, text; or of the memory of it
Shapes = Mapping[str, Sequence[int]]  # of such features, (F,) or (C, H, W)


class Curiosity(ABC):
    """An intrinsic reward beside the task's, and the networks that compute it.

    Args:
        networks: By the kind of features they read.
        features_of: Observations and their `Step.stored_state` → features, by kind.
        n_batches: Gradient steps on each batch, which is cut into as many parts.

    Attributes:
        logged: The keys of the result of `losses`.
        statistics: Running mean and variance that rewards are divided by.
    """

    reads: ClassVar[tuple[type[Part], ...]]
    logged: ClassVar[tuple[str, ...]] = ("loss",)

    def __init__(
        self,
        config: IntrinsicSettings,
        networks: Mapping[str, nn.Module],
        features_of: Callable[[ObservationBatch, Tensor], Kinds],
        n_batches: int = 1,
    ) -> None:
        self.config, self.features_of, self.n_batches = config, features_of, n_batches
        self.networks = nn.ModuleDict(networks)
        self.parameters = [p for p in self.networks.parameters() if p.requires_grad]
        rate = config.curiosity_learning_rate
        # A reward without networks has an optimiser of nothing, which Adam takes as a group alone.
        groups = [{"params": self.parameters}]
        self.optimizer = with_moments(torch.optim.Adam(groups, lr=rate, fused=True))
        self.statistics = RunningMeanVariance()
        logged = "reward_mean", "reward_std", *(self.logged if self.parameters else ())
        self.metrics = tuple(f"curiosity/{name}" for name in logged)
        self.reads_stored_state = config.curiosity_features == "memory"
        self._ranks: Any = None  # the processes that train together, if there are several

    @classmethod
    def configured(cls, config: Any, agent: Agent, n_actions: int) -> "Curiosity":
        """Return the reward of the settings, with fresh networks; UserError without features."""
        features_of = FeatureReader(config, agent)
        with torch.no_grad():
            example = features_of(*_example(config, agent))
        if not example:
            raise UserError(
                f"curiosity_features: {config.curiosity_features} gives {config.curiosity} no "
                "features here. Choose another, or curiosity_text_weight above 0 where there is "
                "only text"
            )
        shapes = {name: tuple(each.shape[1:]) for name, each in example.items()}
        # PPO shows a whole rollout at once; replay shows a batch of the size of its own steps.
        by_default = config.n_batches if networks_of(config) == "PPO" else 1
        fresh = cls.networks_for(config, shapes, n_actions)
        networks = {name: network.to(agent.device) for name, network in fresh.items()}
        return cls(config, networks, features_of, config.curiosity_batches or by_default)

    @staticmethod
    def networks_for(config: Any, shapes: Shapes, n_actions: int) -> dict[str, nn.Module]:
        """Return fresh networks for features of shapes (F,) or (C, H, W), by kind; perhaps none."""
        return {}

    @staticmethod
    def validate_config(config: Any, agent: type[Agent]) -> list[str]:
        problems = []
        if config.curiosity_weight == config.task_reward_weight == 0:
            problems.append(
                "curiosity_weight: it is 0, and so is task_reward_weight: no step has a reward. "
                "Choose one above 0"
            )
        if config.curiosity_features == "memory" and not agent.has_frozen_memory:
            problems.append(
                f"curiosity_features: memory is the frozen one of HELM, HELMv2 and SHELM, and "
                f"model is {config.model}. Choose curiosity_features=agent or observation"
            )
        if config.noveld_first_visit and networks_of(config) != "PPO":
            problems.append(
                "noveld_first_visit: visits are counted along PPO's rollouts, and algorithm is "
                f"{config.algorithm}. Choose algorithm=PPO, or leave it out"
            )
        if config.apt_group < config.apt_neighbours:
            problems.append(
                f"apt_group: among {config.apt_group} steps there are no {config.apt_neighbours} "
                "neighbours. Choose a larger apt_group, or fewer apt_neighbours"
            )
        return problems

    @abstractmethod
    def rewards(self, before: Kinds, after: Kinds) -> Tensor:
        """Return the unweighted rewards, given the features around each step.  [B]"""

    def restricted(self, rewards: Tensor, steps: Transitions) -> Tensor:
        """Return the rewards [B], 0 for steps that are not to be paid."""
        return rewards

    def losses(self, before: Kinds, after: Kinds, actions: Tensor) -> dict[str, Tensor]:
        """Return scalars to log; the networks learn from `loss`. Without networks not called."""
        raise NotImplementedError

    def __call__(self, steps: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        """Learn from B steps; return the rewards for the agent [B] and values to log.

        r = task_reward_weight * r_task + curiosity_weight * r_intrinsic
        """
        # Without gradients: the agent must not learn from these losses. Its encoder reads the
        # observations before and after the steps in one pass.
        with torch.no_grad():
            both = self.features_of(steps.observations, steps.stored_state)
        n_steps = len(steps.actions)
        before, after = _selected(both, slice(n_steps)), _selected(both, slice(n_steps, None))
        # Before learning: afterwards the networks know the batch, and it is no longer novel.
        rewards, config = self.restricted(self.rewards(before, after), steps), self.config
        logged = {"reward_mean": rewards.mean(), "reward_std": rewards.std(correction=0)}
        logged |= self.learn(before, after, steps.actions)
        # Two weights: with the first at 0 an agent explores for the intrinsic reward alone.
        paid = config.task_reward_weight * steps.rewards + config.curiosity_weight * rewards
        return paid, {f"curiosity/{name}": value for name, value in logged.items()}

    def learn(self, before: Kinds, after: Kinds, actions: Tensor) -> dict[str, Tensor]:
        if not self.parameters:
            return {}
        # One row of losses for each gradient step.
        rows = []
        n_parts = self.n_batches
        if self._ranks is not None and n_parts > 1:  # every rank must average as often
            n_parts = self._ranks.least(min(n_parts, len(actions)))
        for part in self._parts(len(actions), n_parts, actions.device):
            losses = self.losses(_selected(before, part), _selected(after, part), actions[part])
            self.optimizer.zero_grad()
            losses["loss"].backward()
            if self._ranks is not None:
                # The networks are one on all ranks; their statistics are not.
                self._ranks.average_gradients(self.parameters)
            self.optimizer.step()
            rows.append({name: value.detach() for name, value in losses.items()})
        return {name: torch.stack([row[name] for row in rows]).mean() for name in rows[0]}

    def share(self, ranks: Any) -> None:
        """Copy the first rank's networks to all; average gradients, not statistics, from now on."""
        self._ranks = ranks
        ranks.broadcast(self.networks.state_dict().values())

    def state_dict(self) -> State:
        return {
            "networks": dict(self.networks.state_dict()),
            "optimizer": moments(self.optimizer),
            "statistics": self.statistics.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        self.networks.load_state_dict(state["networks"])
        load_moments(self.optimizer, state["optimizer"])
        self.statistics.load_state_dict(state["statistics"])

    def _parts(self, n_steps: int, n_parts: int, device: torch.device) -> tuple[Tensor, ...]:
        # No part may be empty: the mean of nothing is NaN.
        n_parts = min(n_parts, n_steps)
        # One part needs no order: no random number is drawn for it.
        order = torch.randperm(n_steps) if n_parts > 1 else torch.arange(n_steps)
        return order.to(device).tensor_split(n_parts)

    def _divided(self, novelty: Tensor) -> Tensor:
        # Before dividing, as in ELLM's code: the first batch is divided by its own deviation.
        self.statistics.update(novelty.cpu())
        return novelty / (self.statistics.variance**0.5 + DEVIATION_EPSILON)

    def _sum(self, kinds: Mapping[str, Tensor]) -> Tensor:
        weight = self.config.curiosity_text_weight
        return torch.stack([weight * r if kind == TEXT else r for kind, r in kinds.items()]).sum(0)


class RandomNetworkDistillation(Curiosity):
    """Random network distillation (Burda et al. 2018, arXiv:1810.12894).

    A network learns to predict a fixed random one from the features before each step. Its error is
    large for unfamiliar features:

        r = (e_images + e_vectors + lambda e_text) / (sqrt(Var[e]) + 1e-8)

    The statistics take in a batch before it is divided; lambda is `curiosity_text_weight`.
    """

    reads = (IntrinsicSettings,)

    @staticmethod
    def networks_for(
        config: IntrinsicSettings, shapes: Shapes, n_actions: int
    ) -> dict[str, nn.Module]:
        # Three equal layers for predictor and target: their codes can be compared.
        widths = [config.curiosity_width] * 3
        return {kind: Distillation(shape, widths) for kind, shape in shapes.items()}

    @torch.no_grad()
    def rewards(self, before: Kinds, after: Kinds) -> Tensor:
        return self._divided(self._sum(self.novelty(before, after)))

    def novelty(self, before: Kinds, after: Kinds) -> dict[str, Tensor]:
        """Return the novelty of each step by kind.  [B] each"""
        return self.errors(before)

    def errors(self, features: Kinds) -> dict[str, Tensor]:
        """Return the prediction errors by kind.  [B] each"""
        return {kind: self.networks[kind](each) for kind, each in features.items()}

    def losses(self, before: Kinds, after: Kinds, actions: Tensor) -> dict[str, Tensor]:
        return {"loss": torch.stack(list(self.errors(before).values())).sum(0).mean()}


class NovelD(RandomNetworkDistillation):
    """NovelD (Zhang et al. 2021, NeurIPS; first as BeBold, arXiv:2012.08621).

    A step is rewarded if it leads from familiar to unfamiliar features:

        n_kind = max(e(after) - alpha e(before), 0)

    As in ELLM's code every visit counts, unless `noveld_first_visit` is set.

    Attributes:
        visited: Hashes of the observations of each environment's running episode.
    """

    config: NovelDSettings
    reads = (NovelDSettings,)

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.visited: defaultdict[int, set[int]] = defaultdict(set)

    def restricted(self, rewards: Tensor, steps: Transitions) -> Tensor:
        if not self.config.noveld_first_visit:
            return rewards
        assert steps.is_first is not None, "PPO learns from whole rollouts"
        hashes = observation_hashes(steps.observations)
        seen, reached = hashes[: len(rewards)], hashes[len(rewards) :]
        counts = []
        for row, begins in enumerate(steps.is_first.flatten().tolist()):
            # Steps lie time before environment: [T, N] in rows.
            env = row % steps.is_first.shape[1]
            if begins:  # the first observation counts as visited
                self.visited[env] = {seen[row]}
            counts.append(reached[row] not in self.visited[env])
            # Paid or not, it has been visited now.
            self.visited[env].add(reached[row])
        return rewards * torch.tensor(counts, device=rewards.device)

    def state_dict(self) -> State:
        if not self.config.noveld_first_visit:
            return super().state_dict()
        visited = {env: sorted(each) for env, each in self.visited.items()}
        return super().state_dict() | {"visited": visited}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        for env, each in state.get("visited", {}).items():
            self.visited[env] = set(each)

    def novelty(self, before: Kinds, after: Kinds) -> dict[str, Tensor]:
        known, reached, alpha = self.errors(before), self.errors(after), self.config.noveld_alpha
        return {kind: F.relu(reached[kind] - alpha * known[kind]) for kind in known}


def observation_hashes(batch: ObservationBatch) -> list[int]:
    """Return a 64-bit hash of each of B observations, the same in every process."""
    kinds = batch.stored._replace(images=None).map(batch.picked).tensors().values()
    numbers = [kind.cpu().numpy() for kind in kinds]
    beside: Iterable[bytes] = repeat(b"")
    if numbers:
        beside = (b"".join(each.tobytes() for each in row) for row in zip(*numbers, strict=True))
    images = np.zeros((1, 0), np.uint8)
    image_of: Iterator[int] = repeat(0)
    if batch.stored.images is not None:
        # Few images of a rollout differ, and the encoder has told them apart for the whole update.
        different = DistinctImages(batch)
        images = different.images.cpu().numpy()
        image_of = iter(different.row_of.tolist())

    @cache
    def hashed(image: int, beside: bytes) -> int:
        return int.from_bytes(blake2b(images[image].tobytes() + beside, digest_size=8).digest())

    return list(map(hashed, image_of, beside))


class ActivePretraining(Curiosity):
    """Active pre-training, the variant of URLB: distance to nearest neighbours.

    Laskin et al. 2021, arXiv:2110.15191, after Liu & Abbeel 2021, arXiv:2103.04551.

    d is the distance of two codes, made by the encoder of an intrinsic curiosity module:

        r = log(1 + mean over K neighbours of max(d / mean(d) - clip, 0))
    """

    config: AptSettings
    reads = (AptSettings,)
    logged = ("loss", "forward_loss", "inverse_loss")

    @classmethod
    def configured(cls, config: AptSettings, agent: Agent, n_actions: int) -> Curiosity:
        if config.curiosity_icm == "ellm" and agent.reader.action_shape:
            raise UserError(
                "curiosity_icm: ellm supports discrete actions only, and actions are vectors here. "
                "Choose curiosity_icm=paper"
            )
        return super().configured(config, agent, n_actions)

    @staticmethod
    def networks_for(config: AptSettings, shapes: Shapes, n_actions: int) -> dict[str, nn.Module]:
        """Return curiosity modules; UserError if ellm's shared encoder meets unequal shapes."""
        as_ellm, first = config.curiosity_icm == "ellm", next(iter(shapes))
        if as_ellm and tuple(shapes.get(TEXT, shapes[first])) != tuple(shapes[first]):
            raise UserError(
                f"curiosity_icm: ellm has one encoder for text and {first}, and their features "
                "differ in shape. Choose curiosity_icm=paper, or curiosity_features=agent"
            )
        widths = 2 * config.curiosity_width, config.curiosity_width
        return {kind: Dynamics(shape, widths, n_actions, as_ellm) for kind, shape in shapes.items()}

    @torch.no_grad()
    def rewards(self, before: Kinds, after: Kinds) -> Tensor:
        codes = {kind: self._encoder(kind)(each) for kind, each in after.items()}
        example = next(iter(codes.values()))
        # Distances of all pairs need memory by the square: only those within groups are taken.
        n_groups = math.ceil(len(example) / self.config.apt_group)
        groups = self._parts(len(example), n_groups, example.device)
        return self._sum({kind: self._of_codes(each, groups) for kind, each in codes.items()})

    def losses(self, before: Kinds, after: Kinds, actions: Tensor) -> dict[str, Tensor]:
        errors = [net(before[kind], after[kind], actions) for kind, net in self.networks.items()]
        forward, inverse = (torch.stack(each).sum(0).mean() for each in zip(*errors, strict=True))
        return {"loss": forward + inverse, "forward_loss": forward, "inverse_loss": inverse}

    def _encoder(self, kind: str) -> nn.Module:
        # ELLM's code reads text with the encoder of images, too.
        if kind == TEXT and self.config.curiosity_icm == "ellm":
            kind = next(iter(self.networks))
        return self.networks.get_submodule(f"{kind}.encoder")

    def _of_codes(self, codes: Tensor, groups: Sequence[Tensor]) -> Tensor:
        """Return the rewards [B] of codes [B, D]; neighbours come from the same group."""
        n_nearest = min(self.config.apt_neighbours, min(map(len, groups)))
        distances = codes.new_empty(len(codes), n_nearest)
        for steps in groups:
            # Rounding would leave a small distance between a step and itself.
            among = torch.cdist(codes[steps], codes[steps]).fill_diagonal_(0)
            # A step is its own nearest neighbour, at distance 0.
            distances[steps] = among.topk(n_nearest, largest=False).values
        self.statistics.update(distances.cpu(), correction=int(distances.numel() > 1))
        mean = max(float(self.statistics.mean), SMALLEST)  # it is 0 if all steps were alike
        relative = distances / mean - self.config.apt_clip
        return relative.clamp(min=0).mean(1).log1p()


class E3B(Curiosity):
    """Exploration by elliptical episodic bonuses (Henaff et al. 2022, arXiv:2210.05805).

    A step is paid for what the observation after it has that no other of its episode had:

        r = phi(after)^T C^-1 phi(after) / (sqrt(Var[r]) + 1e-8)
        C = ridge I + sum of phi phi^T over the episode's observations so far

    phi encodes for a model that learns which action was taken. The division is that of the paper's
    runs in MiniHack, of weight 1; those in VizDoom have none, and weights of 3e-5 and less. Differs
    from the original, which pays the bonus of an observation for the step that leaves it.

    Attributes:
        inverses: C^-1 of each environment, by kind. In float32 rounding would pay for what is known
            already as soon as codes are longer than 10, then pay less than 0.  [N, D, D] float64
        is_first: Where an episode begins in the rollout that is being paid.  [T, N]
    """

    config: E3BSettings
    reads = (E3BSettings,)

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.inverses: dict[str, Tensor] = {}
        self.is_first: Tensor | None = None

    @staticmethod
    def validate_config(config: Any, agent: type[Agent]) -> list[str]:
        problems = Curiosity.validate_config(config, agent)
        if networks_of(config) != "PPO":
            problems.append(
                f"curiosity: {config.curiosity} follows episodes along PPO's rollouts, and "
                f"algorithm is {config.algorithm}. Choose algorithm=PPO, or another curiosity"
            )
        return problems

    @staticmethod
    def networks_for(config: E3BSettings, shapes: Shapes, n_actions: int) -> dict[str, nn.Module]:
        widths = 2 * config.curiosity_width, config.curiosity_width
        return {kind: InverseDynamics(shape, widths, n_actions) for kind, shape in shapes.items()}

    def __call__(self, steps: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        # `rewards` gets features alone, and the bonus follows episodes.
        self.is_first = steps.is_first
        return super().__call__(steps)

    @torch.no_grad()
    def rewards(self, before: Kinds, after: Kinds) -> Tensor:
        bonuses = {kind: self.bonuses(kind, before[kind], after[kind]) for kind in after}
        return self._divided(self._sum(bonuses))

    def bonuses(self, kind: str, before: Tensor, after: Tensor) -> Tensor:
        """Return the undivided rewards [B] of a rollout's features, and take their codes in."""
        assert self.is_first is not None, "PPO learns from whole rollouts"
        n_envs, width = self.is_first.shape[1], self.config.curiosity_width
        encoder = self.networks.get_submodule(f"{kind}.encoder")
        # float64: see `inverses`.
        now, then = (encoder(each).double().view(-1, n_envs, width) for each in (before, after))
        # C begins as ridge * I, so its inverse as I / ridge.
        empty = torch.eye(width, dtype=now.dtype, device=now.device) / self.config.e3b_ridge
        if kind not in self.inverses:
            self.inverses[kind] = empty.repeat(n_envs, 1, 1)
        inverses, found = self.inverses[kind], []
        for t, begins in enumerate(self.is_first.cpu()):
            if begins.any():  # an episode's first observation is seen, but no step led to it
                fresh = empty.repeat(int(begins.sum()), 1, 1)
                take_in(now[t, begins], fresh)
                # The new episode knows its first observation and nothing of the one before.
                inverses[begins] = fresh
            # Paid by C before this step is in it, as the bonus is taken inside `take_in`.
            found.append(take_in(then[t], inverses))
        return torch.cat(found).float()

    def losses(self, before: Kinds, after: Kinds, actions: Tensor) -> dict[str, Tensor]:
        errors = [net(before[kind], after[kind], actions) for kind, net in self.networks.items()]
        return {"loss": torch.stack(errors).sum(0).mean()}

    def state_dict(self) -> State:
        return super().state_dict() | {"inverses": dict(self.inverses)}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        width, device = self.config.curiosity_width, self.parameters[0].device
        for kind, each in state["inverses"].items():
            like = torch.zeros((), dtype=torch.float64).expand(len(each), width, width)
            check_like(each, like, f"reward.inverses.{kind}")
            self.inverses[kind] = each.to(device, copy=True)


def take_in(codes: Tensor, inverses: Tensor) -> Tensor:
    """Return phi^T C^-1 phi [N] of codes [N, D], and add them to C, of which C^-1 is given.

    (C + phi phi^T)^-1 = C^-1 - u u^T / (1 + phi^T u),  u = C^-1 phi  (Sherman & Morrison 1950)
    """
    u = inverses @ codes[:, :, None]
    bonuses = codes[:, None] @ u
    inverses.baddbmm_(u / (1 + bonuses), u.mT, alpha=-1)
    return bonuses.flatten()


class Distillation(nn.Module):
    """A network that learns to predict a fixed one, both of standardised features.

    B rows are standardised by their own mean and variance (Ioffe & Szegedy 2015), and clipped:

        x' = clip((x - mean) / sqrt(variance + 1e-5), -5, 5)
    """

    def __init__(self, shape: Sequence[int], widths: Sequence[int]) -> None:
        super().__init__()
        self.predictor = Perceptron(shape, widths)
        # Random for ever; its weights are saved, as the error is measured against them.
        self.target = Perceptron(shape, widths).requires_grad_(False)

    def forward(self, features: Tensor) -> Tensor:
        """Return the mean squared error of each prediction.  [B]"""
        # Of the batch itself, also when a single rollout is judged: no running numbers to save.
        variance, mean = torch.var_mean(features, 0, correction=0)
        rows = ((features - mean) / (variance + EPSILON).sqrt()).clamp(-CLIP, CLIP)
        return (self.predictor(rows) - self.target(rows)).square().mean(-1)


class Dynamics(nn.Module):
    """The intrinsic curiosity module (Pathak et al. 2017, arXiv:1705.05363).

    Its encoder learns to predict the action from the features before and after it, and the code
    after it from the code before it. With `as_ellm` an action is one number, predicted through a
    tanh, and errors are distances. Widths are those of the hidden layers and of the code.
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
        """Return the errors of the predicted codes and of the predicted actions.  [B] each"""
        now, then = self.encoder(before), self.encoder(after)
        taken = actions
        if not actions.is_floating_point():
            # ELLM's code feeds the number of the action as if it were a quantity.
            taken = actions[:, None] if self.as_ellm else F.one_hot(actions, self.n_actions)
        foreseen = self.forwards(torch.cat((now, taken.float()), -1))
        guessed = self.inverse(torch.cat((now, then), -1))
        if self.as_ellm:
            # A guess [B, 1] is compared with the actions [B] of all steps, as in ELLM's code.
            differences = then - foreseen, actions.float() - guessed.tanh()
            forward, inverse = (torch.linalg.vector_norm(each, dim=-1) for each in differences)
            return forward, inverse
        return 0.5 * (then - foreseen).square().sum(-1), action_errors(guessed, actions)


class InverseDynamics(nn.Module):
    """The part of Pathak's module that learns to predict the action."""

    def __init__(self, shape: Sequence[int], widths: tuple[int, int], n_actions: int) -> None:
        super().__init__()
        self.encoder = Perceptron(shape, widths)
        self.inverse = Perceptron((2 * widths[1],), (widths[0], n_actions))

    def forward(self, before: Tensor, after: Tensor, actions: Tensor) -> Tensor:
        """Return the errors of the predicted actions.  [B]"""
        codes = torch.cat((self.encoder(before), self.encoder(after)), -1)
        return action_errors(self.inverse(codes), actions)


def action_errors(guessed: Tensor, actions: Tensor) -> Tensor:
    if actions.is_floating_point():
        return 0.5 * (actions - guessed).square().sum(-1)
    return F.cross_entropy(guessed, actions, reduction="none")


class Perceptron(nn.Module):
    def __init__(self, shape: Sequence[int], widths: Sequence[int]) -> None:
        super().__init__()
        self.convolutions: ImageEncoder | None = None
        n_inputs = math.prod(shape)
        if len(shape) == 3:
            n_inputs = widths[0]
            self.convolutions = build_image_encoder("HELM", tuple(shape), n_inputs)
        self.layers = nn.ModuleList(
            initialise_orthogonal(nn.Linear(*sizes), math.sqrt(2))
            for sizes in pairwise((n_inputs, *widths))
        )

    def forward(self, rows: Tensor) -> Tensor:
        if self.convolutions is not None:
            rows = self.convolutions.of_pixels(rows)
        for layer in self.layers[:-1]:
            rows = F.relu(layer(rows))
        return self.layers[-1](rows)


class FeatureReader:
    def __init__(self, config: IntrinsicSettings, agent: Agent) -> None:
        self.config, self.agent = config, agent

    def __call__(self, observations: ObservationBatch, stored_state: Tensor) -> Kinds:
        """Return the features of B observations with their `Step.stored_state` [B, ...]."""
        if self.config.curiosity_features == "memory":
            # The hidden state: frozen, so that it never becomes stale.
            return {"memory": stored_state[:, : self.agent.frozen_memory.width]}
        is_agents = self.config.curiosity_features == "agent"
        kinds = self.agent.curiosity_features(observations) if is_agents else None
        if kinds is None:  # some agents have no encoder of their own
            kinds = self._shown(observations)
        has_text = self.config.curiosity_text_weight > 0
        return {kind: each for kind, each in kinds.items() if has_text or kind != TEXT}

    def _shown(self, observations: ObservationBatch) -> dict[str, Tensor]:
        shown, kinds = observations.selected, {}
        if shown.images is not None:
            kinds["images"] = to_float01(shown.images)
        if shown.vectors is not None:
            kinds["vectors"] = shown.vectors
        if shown.text is not None and self.config.curiosity_text_weight > 0:
            kinds[TEXT] = self._sentences(shown.text).flatten(1)
        return kinds

    @cached_property
    def _sentences(self) -> SentenceFeatures:
        encoder = load_sentence_encoder(self.config.sentence_encoder)
        return SentenceFeatures(self.agent.reader.sentences, encoder)


def _example(config: IntrinsicSettings, agent: Agent) -> tuple[ObservationBatch, Tensor]:
    reader, device = agent.reader, agent.device
    images = vectors = text = None
    if reader.image_shape is not None:
        images = torch.zeros(1, *reader.image_shape, dtype=torch.uint8, device=device)
    if reader.n_numbers:
        vectors = torch.zeros(1, reader.n_numbers, device=device)
    if reader.n_texts:
        text = torch.tensor([reader.sentences.numbers(["nothing"] * reader.n_texts)], device=device)
    last_step = torch.zeros(1, reader.n_last, device=device) if reader.n_last else None
    observations = Observations(images, vectors, text, last_step=last_step)
    stored_state = torch.zeros(1, 0, device=device)
    if config.curiosity_features == "memory":
        memory, seen = agent.initial_memory(1), AgentInput.first(observations)
        stored_state = agent.act(seen, memory, deterministic=True, advance=False).stored_state
    return ObservationBatch(observations), stored_state


def _selected(features: Kinds, rows: Tensor | slice) -> dict[str, Tensor]:
    return {kind: each[rows] for kind, each in features.items()}
