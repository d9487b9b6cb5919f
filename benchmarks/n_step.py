"""Updates of ELLM by NStepDQN beside the straightforward one, sizes as published.

Plain is written as the equations read: every network is asked whenever its answer is needed,
encoder included, by the layers of PyTorch as they come.
The floor is what must be multiplied and added, 2 operations each: at batch 64 and 84 x 84 frames,
`gigaflops()` of it. An update cannot take less than that at the speed of a matrix product.
The difference is that of the last layer's biases, after as many updates of each.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, Text
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.measuring import Pair, Work
from models.ellm import Ellm
from models.observations import Observations, SentenceTable
from settings import load_config
from trainers.frame_replay import FrameSteps
from trainers.losses import n_step_returns
from trainers.n_step_dqn import NStepDQN, NStepDqnSettings
from utils.seeding import seed_everything

N_TEXT = 384
CHANNELS, KERNELS, STRIDES = (32, 64, 64), (8, 4, 3), (4, 2, 1)


class Size(NamedTuple):
    """The batch, and the width of the network."""

    n_samples: int
    side: int
    width: int
    n_actions: int


PUBLISHED = Size(64, 84, 512, 139)
TINY = Size(4, 36, 16, 5)


class KnownSentences:
    """Vectors drawn once, in the place of a sentence encoder: both versions are given them."""

    width = N_TEXT

    def __init__(self, device: str) -> None:
        self.sentences = SentenceTable()
        self._vectors = torch.randn(64, N_TEXT).to(device)

    def __call__(self, numbers: Tensor) -> Tensor:
        """Return the vectors of sentences.  [B, K, D]"""
        return self._vectors[numbers % len(self._vectors)]


class Prepared(NamedTuple):
    """A learner, and steps to learn from."""

    learner: NStepDQN
    steps: FrameSteps
    read: KnownSentences


def pairs(quick: bool) -> Iterator[Pair]:
    """Compare one update."""
    size = TINY if quick else PUBLISHED
    yield Pair(
        f"NStepDQN-ELLM, batch {size.n_samples}",
        partial(plain, size),
        partial(ours, size),
        rounds=1 if quick else 15,
        repeats=1 if quick else 2,
        note=f"{size.side} x {size.side} x 4, floor {gigaflops(size):.1f} GFLOP",
    )


def prepare(size: Size, device: str = "cpu") -> Prepared:
    """Return a fresh learner and steps of noise on a device, always the same."""
    seed_everything(0)
    frozen: Any = KnownSentences(device)
    space = Dict(
        image=Box(0, 255, (1, size.side, size.side), np.uint8), caption=Text(9), goal=Text(9)
    )
    loaded: Any = load_config(
        None, ["model=ELLM", "algorithm=NStepDQN", f"hidden_dim={size.width}"]
    )
    config: Any = dataclasses.replace(loaded, device=device, learning_rate=6.25e-5)
    agent = Ellm(config, space, Discrete(size.n_actions), frozen).to(device)
    seen, following = (_noise(size).map(lambda kind: kind.to(device)) for _ in range(2))
    actions = torch.randint(size.n_actions, (size.n_samples,))
    goes_on = torch.rand(size.n_samples, 3) < 0.99
    rewards = torch.rand(size.n_samples, 3)
    others = (each.to(device) for each in (actions, rewards, goes_on))
    steps = FrameSteps(seen, following, *others)
    return Prepared(NStepDQN(config.part(NStepDqnSettings), agent), steps, frozen)


def ours(size: Size, device: str = "cpu") -> Iterator[Work]:
    """Update by the learner, the first time from the same start as the plain version."""
    prepared = prepare(size, device)
    learner, steps = prepared.learner, prepared.steps

    def update() -> Tensor:
        learner.learn(steps)
        return learner.parameters[-1].detach().clone()

    while True:
        yield update


def plain(size: Size) -> Iterator[Work]:
    """Update the plain network, from the same start and by the same steps."""
    prepared = prepare(size)
    agent = prepared.learner.agent
    sizes = {
        "n_frames": agent.frame_stack,
        "n_flat": agent.get_parameter("image.linear.weight").shape[1],
        "n_text": N_TEXT,
        "width": size.width,
        "n_actions": size.n_actions,
    }
    online, target = PlainNetwork(sizes), PlainNetwork(sizes)
    for network in (online, target):
        network.load_state_dict({k: v.contiguous() for k, v in agent.state_dict().items()})
    optimizer = torch.optim.Adam(online.parameters(), lr=6.25e-5)

    def update() -> Tensor:
        plain_update(online, target, optimizer, prepared.steps, prepared.read)
        return list(online.parameters())[-1].detach().clone()

    while True:
        yield update


def gigaflops(size: Size) -> float:
    """Return the least work of an update, in 10^9 multiplications and additions.

    Forward both observations, both ways of the gradient but none into the pixels.
    """
    side, n_in, convolutions = size.side, 4, []
    for n_out, kernel, stride in zip(CHANNELS, KERNELS, STRIDES, strict=True):
        side = (side - kernel) // stride + 1
        convolutions.append(side**2 * n_out * n_in * kernel**2)
        n_in = n_out
    width, n_actions = size.width, size.n_actions
    joined = (64 * side**2 + N_TEXT + 2 * width) * width
    head = (4 * width + n_actions + 1) * width
    forward = sum(convolutions) + joined + head
    backward = 2 * forward - convolutions[0] - N_TEXT * width
    return 2 * size.n_samples * (2 * forward + head + backward) / 1e9


def _noise(size: Size) -> Observations:
    shape = size.n_samples, 4, size.side, size.side
    images = torch.randint(0, 256, shape, dtype=torch.uint8)
    return Observations(images, text=torch.randint(0, 64, (size.n_samples, 2)))


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


def plain_update(
    online: PlainNetwork,
    target: PlainNetwork,
    optimizer: torch.optim.Optimizer,
    steps: FrameSteps,
    read: KnownSentences,
) -> None:
    """Take one gradient step on the Huber loss."""
    text, following_text = (
        read(cast(Tensor, seen.text)).sum(1) for seen in (steps.observations, steps.following)
    )
    images, following = (
        cast(Tensor, steps.observations.images),
        cast(Tensor, steps.following.images),
    )
    returns, discounts = n_step_returns(steps.rewards, steps.goes_on, 0.99, torch.float16)
    with torch.no_grad():
        best = online(following, following_text).argmax(-1, keepdim=True)
        ahead = target(following, following_text).gather(-1, best).squeeze(-1)
        targets = returns + discounts * ahead
    values = online(images, text).gather(-1, steps.actions[:, None]).squeeze(-1)
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
