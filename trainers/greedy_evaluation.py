"""Playing greedily now and then while a run trains, in environments of its own."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from models.agent import Agent
from settings import Config, setting
from trainers.evaluation import evaluate
from utils.seeding import derived_seed

MOST_ENVS = 16
SEED_OF_EVALUATION = 42  # apart from the seeds of what is trained in


@dataclass(frozen=True)
class EvaluationSettings(Config):
    """When a run plays greedily."""

    title = "evaluation while training"

    eval_steps: int = setting(
        "environment steps between two evaluations; 0: none", low=0, high=10**12, default=0
    )
    eval_episodes: int = setting("episodes of an evaluation", low=1, high=1000, default=10)


class GreedyEvaluation:
    """Returns and lengths of a few episodes of most probable, or most valued, actions.

    No random stream of the run moves and nothing of the agent changes, so that a run with
    evaluations is the run without. The episodes follow from the run's seed and step.

    Args:
        config: The settings of the run.
        env: Its own environments.

    Attributes:
        n_due: Evaluations that have been due, done or passed over.
    """

    def __init__(self, config: EvaluationSettings, env: VectorEnv) -> None:
        self.config, self.env = config, env
        self.n_due = 0

    def __call__(self, agent: Agent, env_steps: int) -> dict[str, float]:
        """Return what to log after so many steps: NaN under every name where none is due."""
        names = ("return_mean", "length_mean", "success_mean")
        n_due = env_steps // self.config.eval_steps
        if n_due == self.n_due:
            return {f"eval/{name}": math.nan for name in names}
        self.n_due = n_due
        seed = derived_seed(self.config.seed + SEED_OF_EVALUATION, env_steps)
        with left_alone(agent):
            played = evaluate(agent, self.env, self.config.eval_episodes, True, seed)
            episodes = [recording.episode for recording in played]
        returns, lengths, successes = (
            np.array([getattr(episode, name) for episode in episodes], float)  # None is NaN
            for name in ("episode_return", "length", "success")
        )
        means = (float(values.mean()) for values in (returns, lengths, successes))
        return {f"eval/{name}": mean for name, mean in zip(names, means, strict=True)}


@contextmanager
def left_alone(agent: Agent) -> Iterator[None]:
    """Let an agent act without following statistics or moving random streams."""
    modes = {module: module.training for module in agent.modules()}
    with torch.random.fork_rng(devices=[]):
        agent.eval()
        try:
            yield
        finally:
            for module, training in modes.items():
                module.training = training


def envs_needed(config: EvaluationSettings) -> int:
    """Return how many environments an evaluation uses; 0 where there is none."""
    return min(config.eval_episodes, MOST_ENVS) if config.eval_steps else 0
