"""Active pre-training (Liu & Abbeel 2021, arXiv:2103.04551) on the features of ICM, as ELLM has it.

What is far from its nearest neighbours is rewarded. Distances are those of an encoder which learns
to tell what was done from what is seen before and after it, and what comes of it (Pathak et al.
2017, arXiv:1705.05363).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.agent import Agent
from models.images import Features
from rewards.curiosity import (
    TEXT,
    Curiosity,
    Experience,
    IntrinsicSettings,
    Losses,
    Sight,
    weighted_sum,
)
from rewards.networks import Perceptron
from settings import setting
from utils.errors import UserError

SMALLEST = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class AptSettings(IntrinsicSettings):
    """What APT reads."""

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


class Dynamics(nn.Module):
    """The intrinsic curiosity module: an encoder, what comes of an action, which action it was.

    Args:
        shape: Of what is read.
        widths: Of the hidden layers, and of the code.
        n_actions: A.
    """

    def __init__(self, shape: Sequence[int], widths: tuple[int, int], n_actions: int) -> None:
        super().__init__()
        n_hidden, n_encoded = widths
        n_told, n_guessed, tanh = self.numbers_of_an_action(n_actions)
        self.n_actions = n_actions
        self.encoder = Perceptron(shape, (n_hidden, n_encoded))
        self.forwards = Perceptron((n_encoded + n_told,), (n_hidden, n_encoded))
        self.inverse = Perceptron((2 * n_encoded,), (n_hidden, n_guessed), tanh)

    def numbers_of_an_action(self, n_actions: int) -> tuple[int, int, bool]:
        """Return how many are told, how many guessed, and whether those go through a tanh."""
        return n_actions, n_actions, False

    def errors(self, before: Features, after: Features, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the errors of both predictions.  [B] each"""
        now, then = (each.map(self.encoder).each() for each in (before, after))
        foreseen = self.forwards(torch.cat((now, self.told(actions)), -1))
        guessed = self.inverse(torch.cat((now, then), -1))
        return self.forward_errors(foreseen, then), self.inverse_errors(guessed, actions)

    def told(self, actions: Tensor) -> Tensor:
        """Return actions [B] as they are read: one-hot.  [B, A]"""
        return F.one_hot(actions, self.n_actions).float()

    def forward_errors(self, foreseen: Tensor, then: Tensor) -> Tensor:
        """Return half the squared distance of codes [B, D].  [B]"""
        return 0.5 * (then - foreseen).square().sum(-1)

    def inverse_errors(self, guessed: Tensor, actions: Tensor) -> Tensor:
        """Return the negative log-probability of actions [B] by logits [B, A].  [B]"""
        return F.cross_entropy(guessed, actions, reduction="none")


class EllmDynamics(Dynamics):
    """The same as ELLM's code has it: an action is one number, told and guessed."""

    def numbers_of_an_action(self, n_actions: int) -> tuple[int, int, bool]:
        """Return that it is one, guessed by a tanh."""
        return 1, 1, True

    def told(self, actions: Tensor) -> Tensor:
        """Return actions [B] as numbers.  [B, 1]"""
        return actions[:, None].float()

    def forward_errors(self, foreseen: Tensor, then: Tensor) -> Tensor:
        """Return the distance of codes [B, D].  [B]"""
        return torch.linalg.vector_norm(then - foreseen, dim=-1)

    def inverse_errors(self, guessed: Tensor, actions: Tensor) -> Tensor:
        """Return the distance of each guess [B, 1] to the actions of all steps.  [B]"""
        return torch.linalg.vector_norm(actions.float() - guessed, dim=-1)


class ActivePretraining(Curiosity):
    """How far what a step leads to is from its neighbours.

        r = log(1 + mean over k of max(d / m - clip, 0))

    d are the distances to the k nearest steps of the batch, the step itself among them; m is the
    running mean of all those, which takes in a batch before it is divided. Steps that are all alike
    are paid nothing.
    """

    reads = (AptSettings,)
    logged = ("loss", "forward_loss", "inverse_loss")
    config: AptSettings

    @classmethod
    def configured(cls, config: Any, sight: Sight) -> "ActivePretraining":
        """Return one whose codes are `curiosity_width` wide and hidden layers twice that.

        Raises:
            UserError: text is to be read by the encoder of something of another shape.
        """
        kind = EllmDynamics if config.icm == "ellm" else Dynamics
        widths = 2 * config.curiosity_width, config.curiosity_width
        networks = {
            name: kind(shape, widths, sight.n_actions) for name, shape in sight.shapes.items()
        }
        if config.icm == "ellm":
            _check_alike(sight.shapes)
        return cls(config, networks, sight.features_of)

    @staticmethod
    def contradictions(config: Any, agent: type[Agent]) -> list[str]:
        """Return one line for every pair of settings that cannot both hold with such an agent."""
        problems = Curiosity.contradictions(config, agent)
        if config.apt_group < config.apt_neighbours:
            problems.append(
                f"apt_group: among {config.apt_group} steps there are no {config.apt_neighbours} "
                "neighbours. Choose a larger apt_group, or fewer apt_neighbours"
            )
        return problems

    @torch.no_grad()
    def raw_rewards(self, experience: Experience) -> Tensor:
        """Return the rewards of all steps.  [B]"""
        n_steps = len(experience.actions)
        n_groups = math.ceil(n_steps / self.config.apt_group)
        order = torch.arange(n_steps) if n_groups == 1 else torch.randperm(n_steps)
        groups = order.to(experience.actions.device).tensor_split(n_groups)
        rewards = {
            kind: self._of_codes(each.map(self._encoder(kind)).each(), groups)
            for kind, each in experience.following.items()
        }
        return weighted_sum(rewards, self.config.curiosity_text_weight)

    def losses(self, experience: Experience) -> Losses:
        """Return the mean of both errors, all kinds alike."""
        errors = self.errors(experience)
        forward_loss, inverse_loss = (torch.stack(each).sum(0).mean() for each in errors)
        logged = {"forward_loss": forward_loss, "inverse_loss": inverse_loss}
        return Losses(forward_loss + inverse_loss, logged)

    def errors(self, experience: Experience) -> tuple[list[Tensor], list[Tensor]]:
        """Return the forward errors of all kinds, and the inverse ones.  [B] each"""
        seen, following, actions = experience
        both = [
            cast(Dynamics, self.networks[kind]).errors(seen[kind], following[kind], actions)
            for kind in seen
        ]
        return [each[0] for each in both], [each[1] for each in both]

    def _encoder(self, kind: str) -> nn.Module:
        """Return what reads a kind: with ELLM text is read as what is first of the others is."""
        if kind == TEXT and self.config.icm == "ellm":
            kind = next(iter(self.networks))
        return cast(Dynamics, self.networks[kind]).encoder

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


def _check_alike(shapes: Mapping[str, Sequence[int]]) -> None:
    first = next(iter(shapes))
    if tuple(shapes.get(TEXT, shapes[first])) != tuple(shapes[first]):
        raise UserError(
            f"icm: ellm has text read as {first} are, and what is seen of them has another shape. "
            "Choose icm=paper, or curiosity_features=agent"
        )
