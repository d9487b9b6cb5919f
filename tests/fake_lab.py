"""A small stand-in for DeepMind Lab's Python interface."""

from typing import ClassVar

import numpy as np

N_DECISIONS = 5


class FakeLab:
    """The promises of DeepMind Lab's Python interface; an episode lasts 20 frames.

    A frame is 1/fps seconds of game time, 1/60 where the configuration does not say. The image
    holds the frame in its upper left pixel's red, the seed's digits in its green.
    """

    opened: ClassVar[list["FakeLab"]] = []

    def __init__(self, level, observations, config=None, renderer="software"):
        self.level, self.names, self.config, self.renderer = level, observations, config, renderer
        self.resets = []
        self.actions = []
        self.frame = None
        self.seconds = 0.0
        self.closed = False
        FakeLab.opened.append(self)

    def reset(self, episode=-1, seed=None):
        assert isinstance(episode, int)
        assert isinstance(seed, int)
        assert 0 <= seed < 2**31
        self.resets.append((episode, seed))
        self.frame = 0

    def is_running(self):
        return self.frame is not None and self.frame < 4 * N_DECISIONS

    def step(self, action, num_steps=1):
        assert self.is_running()
        assert action.dtype == np.intc
        assert action.shape == (7,)
        assert (np.abs(action) <= [512, 512, 1, 1, 1, 1, 1]).all()
        self.actions.append(tuple(action.tolist()))
        self.frame += num_steps
        self.seconds += num_steps / int(self.config.get("fps", "60"))
        return 1.0 if self.frame == 12 else 0.0

    def observations(self):
        if not self.is_running():
            raise RuntimeError("Environment in wrong status to get observations.")
        image = np.zeros((int(self.config["height"]), int(self.config["width"]), 3), np.uint8)
        image[0, 0] = self.frame, self.resets[-1][1] % 256, 0
        return dict.fromkeys(self.names, image)

    def close(self):
        self.closed = True
