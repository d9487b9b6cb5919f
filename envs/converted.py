"""One environment in the form that agents know, with its pictures."""

from typing import Any, SupportsFloat

import gymnasium
import numpy as np

from envs.conversion import acted, joint_action, seen

LONGEST_SIDE = 200  # of a picture in pixels; an episode of evaluation keeps hundreds
ACTION_NAMES, NUMBER_NAMES = "action_names", "number_names"  # in the metadata


class Converted(gymnasium.Wrapper):
    """An environment whose observations and actions are those of agents.

    What it has in `info` stays behind: nothing reads it, and no two environments agree on it.

    Args:
        env: Any environment.

    Raises:
        UserError: its spaces are none that agents know.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.observation_space, self._observed = seen(env.observation_space)
        self.action_space, self._action = acted(env.action_space)
        self.metadata = _with_action_names(env)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        observation, _ = self.env.reset(seed=seed, options=options)
        return self._shown(observation), {}

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Take one step."""
        if self._action is not None:
            action = self._action(action)
        observation, reward, terminated, truncated, _ = self.env.step(action)
        return self._shown(observation), reward, terminated, truncated, {}

    def render(self) -> np.ndarray:
        """Return a picture of the whole environment, made smaller where it is large.  [H, W, 3]"""
        picture = np.asarray(self.env.render())
        every = -(-max(picture.shape[:2]) // LONGEST_SIDE)
        return picture[::every, ::every]

    def _shown(self, observation: Any) -> Any:
        return observation if self._observed is None else self._observed(observation)


def _with_action_names(env: gymnasium.Env) -> dict[str, Any]:
    """Return the metadata of an environment; joint actions are called by their numbers."""
    space = env.action_space
    if not isinstance(space, gymnasium.spaces.MultiDiscrete):
        return env.metadata
    numbers = joint_action(space)
    names = [
        ", ".join(map(str, numbers(action).ravel())) for action in range(int(space.nvec.prod()))
    ]
    return {**env.metadata, ACTION_NAMES: names}
