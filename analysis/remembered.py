"""What memories hold, step by step, of episodes in which something is shown to be remembered."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from gymnasium.spaces import Discrete
from gymnasium.vector import VectorEnv

from envs.cues import NOT_SHOWN, cues_of
from models.agent import Agent, Step
from models.observations import Percept
from utils.errors import UserError


class Remembered(NamedTuple):
    """An episode of T steps as one memory has read it.

    Attributes:
        states: What the memory gave to the heads.  [T, D] float32
        cues: What was shown that is to be remembered, NOT_SHOWN where nothing was.  [T] int64
    """

    states: np.ndarray
    cues: np.ndarray


class Reader:
    """An agent that reads N running episodes, whoever acts in them.

    Args:
        agent: In evaluation mode.
        observations: What the environments show first.
        n_envs: N.
    """

    def __init__(self, agent: Agent, observations: Any, n_envs: int) -> None:
        self.agent = agent
        self.memory = agent.initial_memory(n_envs)
        self.percept = Percept.first(agent.read(observations))

    def step(self) -> Step:
        """Advance the memory by what is shown.

        Raises:
            UserError: the agent does not say what its memory gives to its heads.
        """
        step = self.agent.act(self.percept, self.memory)
        if step.remembered is None:
            raise UserError(
                f"{type(self.agent).__name__} does not say what it remembers: return it from act "
                "as `remembered` of the Step"
            )
        return step

    def see(
        self, observations: Any, actions: np.ndarray, rewards: np.ndarray, ended: np.ndarray
    ) -> None:
        """Be told what followed actions [N]."""
        done = torch.as_tensor(actions, device=self.agent.device)
        self.percept = Percept.after(self.agent.read(observations), done, rewards, ended)


def remembered(
    env: VectorEnv, agents: Sequence[Agent], n_episodes: int, random_share: float, seed: int
) -> Iterator[list[Remembered]]:
    """Yield episodes as each of several agents remembers them; the first of them acts.

    They are the first episodes of each environment, in equal shares.

    Args:
        env: Tells its cues.
        agents: In evaluation mode.
        n_episodes: How many.
        random_share: Probability of an action drawn at random in the place of the agent's.
        seed: Of episodes and random actions.
    """
    observations, _ = env.reset(seed=seed)
    n_envs, n_actions = env.num_envs, int(cast(Discrete, env.single_action_space).n)
    readers = [Reader(agent, observations, n_envs) for agent in agents]
    rng = np.random.default_rng(seed)
    missing = np.full(n_envs, n_episodes // n_envs) + (np.arange(n_envs) < n_episodes % n_envs)
    running: list[list[tuple[list[np.ndarray], int]]] = [[] for _ in range(n_envs)]
    while missing.any():
        cues = cast(np.ndarray, cues_of(env))
        steps = [reader.step() for reader in readers]
        actions = steps[0].actions.cpu().numpy()
        at_random = rng.random(n_envs) < random_share
        actions = np.where(at_random, rng.integers(n_actions, size=n_envs), actions)
        states = [cast(torch.Tensor, step.remembered).cpu().numpy() for step in steps]
        for n in np.flatnonzero(missing):
            running[n].append(([own[n].copy() for own in states], int(cues[n])))

        observations, rewards, terminated, truncated, _ = env.step(actions)
        ended = terminated | truncated
        for reader in readers:
            reader.see(observations, actions, rewards, ended)
        for n in np.flatnonzero(ended & (missing > 0)):
            yield _by_agent(running[n])
            running[n] = []
        missing -= ended & (missing > 0)


def _by_agent(steps: Sequence[tuple[list[np.ndarray], int]]) -> list[Remembered]:
    """Return an episode as each agent remembers it."""
    cues = np.array([cue for _, cue in steps])
    by_agent = zip(*(states for states, _ in steps), strict=True)
    return [Remembered(np.stack(states), cues) for states in by_agent]


def recalled(cues: np.ndarray, k: int, is_stream: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps of an episode to read at, and what was shown k steps before each.

    Args:
        cues: What was shown at each step.  [T]
        k: Steps since then.
        is_stream: Whether each is to be read whatever was shown since; else only the last.

    Returns:
        [R], [R]
    """
    steps = np.arange(k, len(cues))
    shown = cues[steps - k]
    is_due = shown != NOT_SHOWN
    if not is_stream:
        numbers = np.where(cues != NOT_SHOWN, np.arange(len(cues)), -1)
        is_due &= np.maximum.accumulate(numbers)[steps] == steps - k
    return steps[is_due], shown[is_due]
