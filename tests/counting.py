"""An environment that shows its own step count."""

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode

from utils.environments import Environments


class CountingEnv(Environments):
    """N environments that show the number of steps since the episode began.

    The reward of a step is the count after it; environment n ends after lengths[n] steps, of itself
    or by a time limit or both, as `ends` tells. Statistics come as envs/vector.py gives them.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, lengths, ends="terminated", n_actions=4):
        self.lengths, self.ends = np.array(lengths), ends
        self.num_envs = len(lengths)
        self.single_observation_space = Box(0, 255, (3, 9, 9), np.uint8)
        self.single_action_space = Discrete(n_actions)
        self.counts = np.zeros(self.num_envs, dtype=np.int64)

    def reset(self, *, seed=None, options=None):
        self.counts[:] = 0
        return self.images(self.counts), {}

    def step(self, actions):
        self.counts += 1
        rewards = self.counts.astype(np.float64)
        ended = self.counts >= self.lengths
        info = {
            "final_obs": self.images(self.counts),
            "_final_obs": ended,
            "episode": {"r": self.counts * (self.counts + 1) / 2, "l": self.counts.copy()},
            "_episode": ended,
        }
        self.counts = np.where(ended, 0, self.counts)
        terminated, truncated = (
            ended & (name in self.ends) for name in ("terminated", "truncated")
        )
        return self.images(self.counts), rewards, terminated, truncated, info

    def images(self, counts):
        shape = (self.num_envs, *self.single_observation_space.shape)
        return np.broadcast_to(counts[:, None, None, None], shape).astype(np.uint8)

    def state_dict(self):
        return {"resumable": True, "counts": self.counts.tolist()}

    def load_state_dict(self, state):
        self.counts[:] = state["counts"]
        return True
