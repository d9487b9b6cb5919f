"""HELM from Python: train, go on, load a run and play it step by step.

    import helm

    run = helm.train({"model": "LSTM", "n_steps": 100_000}, env=MyEnv)
    with helm.load(run, env=MyEnv) as player:
        observation = player.reset(seed=0)
        action = player.act(observation)

`train`, `resume`, `load`, `Player` and `UserError`, which tells every mistake, are the public
interface. Training is that of main.py; eval.py is made of the same parts (trainers/build.py).
"""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from envs import GivenEnv, check_env_name, given_name
from main import begin, go_on
from models import agent_class, resolve_device
from models.agent import Agent
from models.observations import Percept
from trainers.build import opened_env, restored_agent
from trainers.checkpoint import find_checkpoint, load_checkpoint
from trainers.evaluation import played_config
from trainers.ranks import joined_ranks
from trainers.train import RunSettings
from utils.errors import UserError
from utils.settings import Config, load_config

__all__ = ["Player", "UserError", "load", "resume", "train"]


def train(
    settings: Mapping[str, Any],
    env: GivenEnv | None = None,
    agent: type[Agent] | None = None,
    run_id: str | None = None,
    init_from: str | Path | None = None,
) -> Path:
    """Train a new run and return its folder, experiments/<model>/<env>/<run-id>.

    Args:
        settings: Those that differ from config.json, by name.
        env: What to train in instead of `settings["env"]`: a class or function that makes one
            environment of Gymnasium, or a vector environment in SAME_STEP autoreset mode.
        agent: A class of one's own, in a file, instead of `settings["model"]`.
        run_id: The folder's name.
        init_from: A run folder or a checkpoint whose agent's parameters to begin with.

    Raises:
        UserError: a line for each mistake in what is given; nothing has been written.
    """
    values = dict(settings)
    for name, part in (("env", env), ("model", agent)):
        if part is not None and name in values:
            raise UserError(f"settings: {name} is given, and an object in its place. Give one")
    if agent is not None:
        values["model"] = _name_of(agent)
    if env is not None:
        values["env"] = given_name(env)
    if isinstance(env, VectorEnv):
        values.setdefault("n_envs", env.num_envs)
    texts = [
        f"{name}={value if isinstance(value, str) else json.dumps(value, default=str)}"
        for name, value in settings.items()
    ]
    start = None if init_from is None else Path(init_from)
    with joined_ranks() as ranks:
        config = load_config(values=values).part(RunSettings)
        return begin(config, ranks, run_id, texts, start, env)


def resume(run: str | Path, env: GivenEnv | None = None, trust: bool = False) -> Path:
    """Go on with an unfinished run and return its folder.

    Args:
        run: Its folder.
        env: What it was trained in, if that was an object.
        trust: Follow its settings to code, addresses and places, though you have not begun it here.

    Raises:
        UserError: it cannot go on, or not in that environment.
    """
    with joined_ranks() as ranks:
        return go_on(Path(run), ranks, env, trust)


def load(
    run: str | Path, env: GivenEnv | None = None, device: str = "auto", trust: bool = False
) -> "Player":
    """Return the agent of a run, to be played step by step in one environment.

    Args:
        run: A run folder, whose best agent is taken, or a checkpoint.
        env: What to play in instead of the run's own environment: as of `train`, a vector
            environment being of one.
        device: auto, cpu or cuda.
        trust: As of `resume`.

    Raises:
        UserError: it is no run, or its agent or environment cannot be had here.
    """
    path = find_checkpoint(Path(run), "run")
    checkpoint = load_checkpoint(path)
    config = played_config(checkpoint, path, trust)
    if env is None:
        check_env_name(config.env)
    agent_class(config.model).check(config)
    config = replace(config, device=resolve_device(device), n_envs=1)
    with ExitStack() as stack:
        played_in = stack.enter_context(opened_env(config, config.seed, env, drawn=True))
        agent = restored_agent(config, played_in, checkpoint, path)
        return Player(config, agent, played_in, stack.pop_all())


class Player:
    """An agent that plays in one environment, seen step by step.

    Each step: `inspect`, if one wants to look, then `act`, then `step`. An agent that is to act
    elsewhere needs `reset` where an episode begins, and `act`.

    Args:
        config: The settings of its run.
        agent: Restored.
        env: One environment.
        opened: What is to be closed in the end.
    """

    def __init__(self, config: Config, agent: Agent, env: VectorEnv, opened: ExitStack) -> None:
        self.config, self.agent, self.env, self._opened = config, agent, env, opened
        self.ended = True
        self._begin()

    def reset(self, seed: int | None = None) -> Any:
        """Begin an episode with an empty memory and return what is seen first."""
        observations, _ = self.env.reset(seed=seed)
        self._begin()
        self.ended = False
        return self._first(observations)

    def inspect(self, observation: Any) -> dict[str, np.ndarray]:
        """Return what the agent makes of an observation, before it acts on it.

        Such as `attention` [L, H, S], how much each head of each layer of its memory looks at the
        last S steps; `words` that its memory reads; `action_values`. The memory stays as it is.
        """
        percept = self._percept(observation)
        seen = self.agent.explain(percept) | self.agent.inspect(percept, self._memory)
        return {name: values[0] for name, values in seen.items()}

    def act(self, observation: Any, greedy: bool = False) -> int:
        """Let the memory read an observation and return what the agent does.

        Args:
            observation: What one environment shows.
            greedy: Take the most probable action instead of drawing one.
        """
        step = self.agent.act(self._percept(observation), self._memory, greedy)
        self._action = int(step.actions[0])
        self._starts = False
        return self._action

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Do something in the environment; returns what Gymnasium's `step` does.

        Raises:
            UserError: the episode has ended.
        """
        if self.ended:
            raise UserError("step: no episode is going on. Call reset() first")
        shown, rewards, terminated, truncated, info = self.env.step(np.array([action]))
        self._action, self._reward = int(action), float(rewards[0])
        self.ended = bool(terminated[0] or truncated[0])
        observation = info["final_obs"][0] if self.ended else self._first(shown)
        return observation, self._reward, bool(terminated[0]), bool(truncated[0]), info

    def draw(self) -> np.ndarray:
        """Return a picture of the whole environment as it is now.  [H, W, 3] uint8

        Raises:
            UserError: it cannot be drawn.
        """
        if self.env.render_mode != "rgb_array":
            raise UserError(f"draw: {self.config.env} has no render_mode 'rgb_array'")
        return np.asarray(cast(Sequence[np.ndarray], self.env.render())[0])

    def close(self) -> None:
        """Close the environment, unless it was given."""
        self._opened.close()

    def __enter__(self) -> "Player":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> None:
        self._memory = self.agent.initial_memory(1)
        self._starts, self._action, self._reward = True, 0, 0.0

    def _percept(self, observation: Any) -> Percept:
        """Return what the agent is told: an observation, and what was done before it."""
        space = self.env.single_observation_space
        batch = concatenate(space, [observation], cast(Any, create_empty_array(space, 1)))
        device, begins = self.agent.device, self._starts
        return Percept(
            self.agent.read(batch),
            starts=torch.tensor([begins], device=device),
            last_actions=torch.tensor([0 if begins else self._action], device=device),
            last_rewards=torch.tensor([0.0 if begins else self._reward], device=device),
        )

    def _first(self, observations: Any) -> Any:
        """Return what the only one of some environments shows."""
        return next(iter(iterate(self.env.observation_space, observations)))


def _name_of(agent: type[Agent]) -> str:
    """Return the name by which a class will be found again, also by eval.py.

    Raises:
        UserError: it is not in a file, but typed in.
    """
    module = agent.__module__
    if module == "__main__":  # a script: its file is the module
        file = getattr(sys.modules[module], "__file__", None)
        if file is None:
            raise UserError(f"agent: {agent.__name__} is not in a file, in which eval.py finds it")
        module = Path(file).stem
    return f"{module}:{agent.__qualname__}"
