"""The straightforward update of ELLM by NStepDQN: the yardstick of `benchmarks.n_step`.

Written as the equations read: every network is asked whenever its answer is needed, encoder
included, by the layers of PyTorch as they come.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CHANNELS, KERNELS, STRIDES = (32, 64, 64), (8, 4, 3), (4, 2, 1)


class PlainNetwork(nn.Module):
    """ELLM on frames and the vectors of sentences, under the names its parts have in ours.

    Args:
        n_frames, n_flat, n_text, width, n_actions: Sizes.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        super().__init__()
        width, n_in = sizes["width"], sizes["n_frames"]
        layers: list[nn.Module] = []
        for n_out, kernel, stride in zip(CHANNELS, KERNELS, STRIDES, strict=True):
            layers += [nn.Conv2d(n_in, n_out, kernel, stride), nn.ReLU()]
            n_in = n_out
        convolutions = nn.Sequential(*layers, nn.Flatten())
        linear = nn.Linear(sizes["n_flat"], width)
        self.image = nn.ModuleDict({"convolutions": convolutions, "linear": linear})
        self.text = nn.ModuleDict({"linear": nn.Linear(sizes["n_text"], width)})
        self.trunk = nn.Linear(2 * width, width)
        streams = {"value": 1, "advantage": sizes["n_actions"]}
        self.head = nn.ModuleDict({name: _stream(width, n) for name, n in streams.items()})

    def forward(self, images: Tensor, text: Tensor) -> Tensor:
        """Map frames [B, S, H, W] uint8 and vectors [B, D] to values [B, A]."""
        maps = self.image["convolutions"](images.float() / 255)
        seen = self.image["linear"](F.normalize(maps, dim=-1))
        told = self.text["linear"](F.normalize(text, dim=-1))
        features = F.relu(self.trunk(torch.cat((seen, told), dim=-1)))
        advantage = self.head["advantage"](features)
        return self.head["value"](features) + advantage - advantage.mean(-1, keepdim=True)


class PlainBatch(NamedTuple):
    """What is learned from.

    Attributes:
        images, following: [B, S, H, W] uint8
        text, following_text: [B, D]
        actions, returns, discounts: [B]
    """

    images: Tensor
    following: Tensor
    text: Tensor
    following_text: Tensor
    actions: Tensor
    returns: Tensor
    discounts: Tensor


def plain_update(
    online: PlainNetwork, target: PlainNetwork, optimizer: torch.optim.Optimizer, batch: PlainBatch
) -> None:
    """Take one gradient step on the Huber loss."""
    with torch.no_grad():
        best = online(batch.following, batch.following_text).argmax(-1, keepdim=True)
        following = target(batch.following, batch.following_text).gather(-1, best).squeeze(-1)
        targets = batch.returns + batch.discounts * following
    values = online(batch.images, batch.text).gather(-1, batch.actions[:, None]).squeeze(-1)
    loss = F.smooth_l1_loss(values, targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def _stream(width: int, n_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, n_out),
    )
