"""Random network distillation (Burda et al. 2018, arXiv:1810.12894), as ELLM computes it.

A network learns to predict what a fixed random one says of the features of what is seen. Its error
is large where little like it has been seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from models.images import Features
from rewards.curiosity import (
    Curiosity,
    Experience,
    IntrinsicSettings,
    Losses,
    Named,
    Sight,
    weighted_sum,
)
from rewards.networks import Perceptron, Standardised

EPSILON = 1e-8


@dataclass(frozen=True)
class RndSettings(IntrinsicSettings):
    """What RND reads."""


class Distillation(nn.Module):
    """A network that learns to predict a fixed one, both behind a standardisation.

    Args:
        shape: Of what is read.
        widths: Of the layers of both.
    """

    def __init__(self, shape: Sequence[int], widths: Sequence[int]) -> None:
        super().__init__()
        self.standardise = Standardised(shape)
        self.predictor = Perceptron(shape, widths)
        self.target = Perceptron(shape, widths).requires_grad_(False)

    def forward(self, features: Features) -> Tensor:
        """Return the mean squared difference of both, of every observation.  [B]"""
        return self.standardise(features).map(self._errors).each().squeeze(-1)

    def _errors(self, rows: Tensor) -> Tensor:
        return (self.predictor(rows) - self.target(rows)).square().mean(-1, keepdim=True)


class RandomNetworkDistillation(Curiosity):
    """The error of the prediction, divided by its running standard deviation.

        r = (e_images + e_vectors + lambda e_text) / (sqrt(Var[e]) + 1e-8)

    The statistics take in a batch before it is divided; lambda is `curiosity_text_weight`.
    """

    reads = (RndSettings,)

    @classmethod
    def configured(cls, config: Any, sight: Sight) -> "RandomNetworkDistillation":
        """Return one with three layers of `curiosity_width` in each network."""
        widths = [config.curiosity_width] * 3
        networks = {kind: Distillation(shape, widths) for kind, shape in sight.shapes.items()}
        return cls(config, networks, sight.features_of)

    @torch.no_grad()
    def raw_rewards(self, experience: Experience) -> Tensor:
        """Return the scaled novelty of what was seen.  [B]"""
        novelty = weighted_sum(self.novelty(experience), self.config.curiosity_text_weight)
        self.statistics.update(novelty.cpu())
        return novelty / (self.statistics.variance**0.5 + EPSILON)

    def novelty(self, experience: Experience) -> dict[str, Tensor]:
        """Return what each kind says of every step.  [B] each"""
        return self.errors(experience.seen)

    def errors(self, features: Named) -> dict[str, Tensor]:
        """Return the errors of all kinds.  [B] each"""
        return {kind: self.networks[kind](each) for kind, each in features.items()}

    def losses(self, experience: Experience) -> Losses:
        """Return the mean error of what was seen, all kinds alike."""
        errors = self.errors(experience.seen)
        return Losses(torch.stack(list(errors.values())).sum(0).mean(), {})
