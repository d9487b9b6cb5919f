"""Small environments of every kind that is converted, registered with Gymnasium."""

import gymnasium
import numpy as np
from gymnasium import spaces

from tests.bad_inputs.bad_envs import IMAGE, NUMBER

FLAT = spaces.Box(-np.inf, np.inf, (2,), np.float64)
SPACES = {
    "image, channels last": spaces.Box(0, 255, (6, 7, 3), np.uint8),
    "image, channels first": spaces.Box(0, 255, (3, 6, 7), np.uint8),
    "grey image": spaces.Box(0, 255, (5, 6), np.uint8),
    "grey image of one channel": spaces.Box(0, 255, (5, 6, 1), np.uint8),
    "vector": FLAT,
    "table": spaces.Box(-1, 1, (2, 3)),
    "bytes": spaces.Box(0, 255, (4,), np.uint8),
    "number": spaces.Box(-1, 1, ()),
    "one of three, from 5 on": spaces.Discrete(3, start=5),
    "several": spaces.MultiDiscrete([2, 3], start=[0, 1]),
    "a table of several": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    "bits": spaces.MultiBinary((2, 2)),
    "nested": spaces.Dict(
        look=spaces.Tuple((IMAGE, NUMBER)), more=spaces.Dict(a=FLAT, b=spaces.MultiBinary(3))
    ),
}


class Sampled(gymnasium.Env):
    """Shows random observations; an episode has six steps. It can be drawn."""

    metadata = {"render_modes": ["rgb_array"], "number_names": ["left"]}  # noqa: RUF012

    def __init__(self, kind="vector", actions=None, render_mode=None):
        self.observation_space = SPACES[kind]
        self.action_space = actions or spaces.Discrete(2)
        self.render_mode = render_mode
        self.taken, self.n_steps = [], 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n_steps = 0
        return self._look(), {"episode": "of nobody's interest"}

    def step(self, action):
        self.taken.append(action)
        self.n_steps += 1
        return self._look(), self.np_random.random(), self.n_steps == 6, False, {"success": 3}

    def render(self):
        return np.full((401, 300, 3), self.n_steps, np.uint8)

    def _look(self):
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample()


class Unseeded(Sampled):
    """No seed decides its observations."""

    def _look(self):
        return self.observation_space.sample()


gymnasium.register("Unseeded-v0", f"{__name__}:Unseeded")
gymnasium.register("Sampled-v0", f"{__name__}:Sampled", max_episode_steps=4)
