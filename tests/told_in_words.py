"""A small environment of frames and sentences, registered with Gymnasium."""

import gymnasium
import numpy as np
from gymnasium import spaces

COLOURS = ("red", "green", "blue")
N_STEPS = 6


class Told(gymnasium.Env):
    """The caption names a colour and the frame shows which of the goals is meant.

    A goal is to name that colour, or the next one, for a reward of 1.
    """

    def __init__(self, n_colours=1, side=12):
        self.observation_space = spaces.Dict(
            image=spaces.Box(0, 255, (n_colours, side, side), np.uint8),
            caption=spaces.Text(30),
            goal=spaces.Text(30),
        )
        self.action_space = spaces.Discrete(len(COLOURS))
        self.n_steps = self.colour = self.goal = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n_steps, self.goal = 0, int(self.np_random.integers(2))
        return self._look(), {}

    def step(self, action):
        reward = float(action == (self.colour + self.goal) % len(COLOURS))
        self.n_steps += 1
        terminated = self.n_steps == N_STEPS
        return self._look(), reward, terminated, False, {}

    def _look(self):
        self.colour = int(self.np_random.integers(len(COLOURS)))
        space = self.observation_space["image"]
        image = np.full(space.shape, 40 + 20 * self.n_steps, np.uint8)
        image[:, :4, :4] = 255 * self.goal
        goals = ("the ball", "the box")
        told = f"go to the {COLOURS[self.colour]} ball"
        return {"image": image, "caption": told, "goal": f"go to {goals[self.goal]}"}


gymnasium.register("Told-v0", f"{__name__}:Told")
gymnasium.register("ToldLimited-v0", f"{__name__}:Told", max_episode_steps=4)
