"""The trained parts every agent is made of: image encoder, actor, critic and how they start."""

import math
from typing import Generic, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.agent import Evaluation, Step
from utils.distinct_images import DistinctImages
from utils.errors import RunError

AnyModule = TypeVar("AnyModule", bound=nn.Module)

SMALL_SIDE = 9  # images up to this side get the smaller kernels


class Frozen(Generic[AnyModule]):
    """Holds a pretrained module so that its owner neither trains nor saves nor moves it."""

    def __init__(self, module: AnyModule) -> None:
        self.module = module.requires_grad_(False)


def unit_images(images: Tensor) -> Tensor:
    """Return uint8 images as floats in [0, 1], the images' space ending at 255."""
    return images.float().div_(255)


class SmallImpalaCNN(nn.Module):
    """Two strided convolutions and a linear layer, each followed by a ReLU.

    The encoder of the HELM paper (arXiv:2205.12258), a small relative of IMPALA's
    (arXiv:1802.01561). Xavier-uniform weights with gain sqrt(2), zero biases.

    Args:
        image_shape: (C, H, W).
        n_features: Width of the output.
        channels: Of the two convolutions.
    """

    def __init__(
        self, image_shape: tuple[int, ...], n_features: int, channels: tuple[int, int] = (64, 128)
    ) -> None:
        super().__init__()
        small = max(image_shape[1:]) <= SMALL_SIDE
        (kernel1, stride1), (kernel2, stride2) = ((4, 2), (2, 1)) if small else ((8, 4), (4, 2))
        self.field = kernel1 + (kernel2 - 1) * stride1  # pixels that one place of the output sees
        self.stride = stride1 * stride2
        self.convolutions = nn.Sequential(
            nn.Conv2d(image_shape[0], channels[0], kernel1, stride1),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels[0], channels[1], kernel2, stride2),
            nn.ReLU(inplace=True),
            nn.Flatten(),
        )
        with torch.no_grad():
            n_flat = self.convolutions(torch.zeros(1, *image_shape)).shape[1]
        self.linear = nn.Linear(n_flat, n_features)
        self.convolutions.to(memory_format=torch.channels_last)  # the faster layout everywhere
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.xavier_uniform_(module.weight, gain=math.sqrt(2))
                module.bias = nn.Parameter(torch.zeros(len(module.weight)))

    def forward(self, images: Tensor) -> Tensor:
        """Map images in [0, 1], [B, C, H, W], to features [B, n_features]."""
        images = images.contiguous(memory_format=torch.channels_last)
        return F.relu(self.linear(self.convolutions(images)))

    def of_distinct(self, images: DistinctImages) -> Tensor:
        """Return the features [U, n_features]; equal windows are convolved once."""
        if images.on_gpu:
            return self(unit_images(images.images))
        repeating = images.windows(self.field, self.stride)
        if repeating is None:
            return self(unit_images(images.images))
        windows, window_of = repeating
        maps = F.embedding(window_of, self._of_windows(windows))  # [U, rows, columns, channels]
        return F.relu(self.linear(maps.permute(0, 3, 1, 2).flatten(1)))

    def _of_windows(self, windows: Tensor) -> Tensor:
        """Convolve windows [Q, C, field, field] uint8.  [Q, channels]"""
        first, second = (cast(nn.Conv2d, self.convolutions[number]) for number in (0, 2))
        looks = unit_images(windows).contiguous(memory_format=torch.channels_last)
        maps = F.relu(first(looks))
        # The second kernel covers these maps whole: a product, quicker than the convolution.
        flat, kernel = (each.permute(0, 2, 3, 1).flatten(1) for each in (maps, second.weight))
        return F.relu(F.linear(flat, kernel, second.bias))


def perceptron(n_in: int, n_hidden: int, n_out: int) -> nn.Sequential:
    """Return linear, LayerNorm without affine, ReLU, linear; orthogonal with gain sqrt(2)."""
    first, last = nn.Linear(n_in, n_hidden), nn.Linear(n_hidden, n_out)
    for layer in (first, last):
        nn.init.orthogonal_(layer.weight, gain=math.sqrt(2))
        layer.bias.data.zero_()
    norm = nn.LayerNorm(n_hidden, elementwise_affine=False)
    return nn.Sequential(first, norm, nn.ReLU(), last)


class ActorCritic(nn.Module):
    """The two heads on an agent's features: action logits and the value."""

    def __init__(self, n_features: int, n_actions: int) -> None:
        super().__init__()
        self.actor = perceptron(n_features, 128, n_actions)
        self.critic = perceptron(n_features, 512, 1)

    def values(self, features: Tensor) -> Tensor:
        """Map features [B, n_features] to values [B]."""
        return self.critic(features).squeeze(-1)

    def step(self, features: Tensor, context: Tensor, deterministic: bool = False) -> Step:
        """Choose an action for every row of features [N, n_features].

        Raises:
            RunError: on a CPU, where the probabilities are not finite.
        """
        all_log_probs = F.log_softmax(self.actor(features), dim=-1)  # [N, A]
        actions = all_log_probs.argmax(-1) if deterministic else _drawn(all_log_probs.exp())
        log_probs = all_log_probs.gather(-1, actions[:, None]).squeeze(-1)
        return Step(actions, log_probs, self.values(features), context, all_log_probs)

    def evaluate(
        self, features: Tensor, actions: Tensor, row_of: Tensor | None = None
    ) -> Evaluation:
        """Return log-probabilities, values and entropy [B] of actions taken before.

        Args:
            features: [U, n_features]
            actions: [B]
            row_of: Which row of the features belongs to each action; None for its own.  [B] int64
        """
        logits, values = self.actor(features), self.values(features)
        if row_of is not None:
            logits, values = F.embedding(row_of, logits), values[row_of]
        return _evaluation(logits, values, actions)

    def evaluate_beside(
        self, context: Tensor, features: Tensor, row_of: Tensor, actions: Tensor
    ) -> Evaluation:
        """Return the same where each of B rows is a context beside one of U features.

        Args:
            context: [B, n_context]
            features: [U, n_features - n_context]
            row_of: Which row of the features belongs to each context.  [B] int64
            actions: [B]
        """
        logits, values = (
            _applied_beside(head, context, features, row_of) for head in (self.actor, self.critic)
        )
        return _evaluation(logits, values.squeeze(-1), actions)


def _applied_beside(
    head: nn.Sequential, context: Tensor, features: Tensor, row_of: Tensor
) -> Tensor:
    """Apply a head to (context, features[row_of]), multiplying each of the features once."""
    first = cast(nn.Linear, head[0])
    widths = context.shape[1], features.shape[1]
    of_context, of_features = first.weight.split(widths, dim=1)
    part = F.embedding(row_of, F.linear(features, of_features, first.bias))  # [B, n_hidden]
    return head[1:](torch.addmm(part, context, of_context.T))


def _drawn(probabilities: Tensor) -> Tensor:
    """Return an action for each row of probabilities [N, A].  [N]"""
    try:
        return torch.multinomial(probabilities, 1).squeeze(-1)
    except RuntimeError:
        if probabilities.isfinite().all():
            raise
        raise RunError(
            "no action can be drawn: the agent's probabilities are not finite numbers, "
            "its weights have grown too large"
        ) from None


def _evaluation(logits: Tensor, values: Tensor, actions: Tensor) -> Evaluation:
    """Return the evaluation of actions [B] by logits [B, A] and values [B]."""
    all_log_probs = F.log_softmax(logits, dim=-1)
    entropy = -(all_log_probs.exp() * all_log_probs).sum(-1)
    log_probs = all_log_probs.gather(-1, actions[:, None]).squeeze(-1)
    return Evaluation(log_probs, values, entropy)
