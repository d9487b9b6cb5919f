"""One environment in the form that agents know, with its pictures and where it stands."""

from typing import Any, SupportsFloat, cast

import gymnasium
import numpy as np
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from envs.conversion import acted, joint_action, seen

LONGEST_SIDE = 200  # of a picture in pixels; an episode of evaluation keeps hundreds
ACTION_NAMES, NUMBER_NAMES = "action_names", "number_names"  # in the metadata


class Converted(gymnasium.Wrapper):
    """An environment whose observations and actions are those of agents.

    What it has in `info` stays behind: nothing reads it, and no two environments agree on it.

    Args:
        env: Any environment.
        number: Which of the environments of a run it is.

    Raises:
        UserError: its spaces are none that agents know.
    """

    def __init__(self, env: gymnasium.Env, number: int = 0) -> None:
        super().__init__(env)
        self._number = number
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

    @property
    def tells_cue(self) -> bool:
        """Whether the environment says what it shows that is to be remembered."""
        return self.env.has_wrapper_attr("cue")

    def cue(self) -> Any:
        """Return what it shows now that is to be remembered, None if nothing."""
        return self.env.get_wrapper_attr("cue")()

    def world_state(self) -> dict[str, Any] | None:
        """Return where the environment stands, or None if it cannot say."""
        save = getattr(self.unwrapped, "state_dict", None)
        layers = list(_layers(self.env))
        if save is None or not all(type(layer) in (OrderEnforcing, TimeLimit) for layer in layers):
            return None
        elapsed = [layer._elapsed_steps for layer in layers if isinstance(layer, TimeLimit)]
        return {"own": save(), "elapsed": elapsed}

    def load_world_state(self, states: list[dict[str, Any]]) -> None:
        """Continue where `world_state` was taken, given those of all environments of the run."""
        state = states[self._number]
        cast(Any, self.unwrapped).load_state_dict(state["own"])
        limits = [layer for layer in _layers(self.env) if isinstance(layer, TimeLimit)]
        for layer, elapsed in zip(limits, state["elapsed"], strict=True):
            layer._elapsed_steps = elapsed

    def _shown(self, observation: Any) -> Any:
        return observation if self._observed is None else self._observed(observation)


def _layers(env: gymnasium.Env) -> list[gymnasium.Wrapper]:
    """Return the wrappers around an environment, the outermost first."""
    layers = []
    while isinstance(env, gymnasium.Wrapper):
        layers.append(env)
        env = env.env
    return layers


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
