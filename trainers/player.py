"""An agent that plays step by step, in a program of one's own (helm.py)."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from envs import EnvLike, given
from models.agent import Agent
from models.observations import AgentInput
from trainers.build import open_env, player_config, restored_agent
from trainers.checkpoint import find_checkpoint, load_checkpoint
from utils.errors import UserError
from utils.seeding import evaluation_seed, streams_kept
from utils.settings import Config


class Player:
    """An agent that plays in one environment, step by step.

    Each step calls `inspect` (optional), `act`, then `step`. To act in an environment of your own,
    call `reset` where an episode begins, and `act`.
    """

    def __init__(self, config: Config, agent: Agent, env: VectorEnv, opened: ExitStack) -> None:
        self.config, self.agent, self.env, self._opened = config, agent, env, opened
        self.ended = True
        self._seed: int | None = config.seed  # of the first episode, where `reset` gets none
        self._begin()

    def reset(self, seed: int | None = None) -> Any:
        """Begin an episode with an empty memory and return its first observation.

        No seed leads to an episode of the training. Without one, the first episode is that of the
        run's seed, and others follow.
        """
        seed, self._seed = self._seed if seed is None else seed, None
        own = None if seed is None else evaluation_seed(seed)
        observations, _ = self.env.reset(seed=own)
        self._begin()
        self.ended = False
        return self._first(observations)

    def inspect(self, observation: Any) -> dict[str, np.ndarray]:
        """Return diagnostics of the agent for an observation, without advancing its memory.

        Among them, as far as the agent has them: `hidden` [D], the memory's output, by which it is
        going to act (without a memory the encoder's); `attention` [L, H, S], the attention of each
        layer and head of the memory to the last S steps; `words`, read by the memory;
        `action_values`.
        """
        percept = self._percept(observation)
        with streams_kept():  # a memory that draws what it reads draws the same when it acts
            step = self.agent.act(percept, self._memory, deterministic=True, advance=False)
        seen = self.agent.explain(step) | self.agent.inspect(percept, self._memory, step)
        if step.remembered is not None:
            seen["hidden"] = step.remembered.cpu().numpy()
        return {name: values[0] for name, values in seen.items()}

    def act(self, observation: Any, greedy: bool = False) -> Any:
        """Advance the memory by an observation and return the agent's action.

        It is a number, or where actions are a Box an array of numbers from -1 to 1.

        Args:
            observation: Of one environment, without a batch dimension.
            greedy: Take the most probable action instead of drawing one.
        """
        step = self.agent.act(self._percept(observation), self._memory, greedy)
        self._action = step.actions[0].cpu().numpy()
        self._starts = False
        return self._action if self._action.ndim else int(self._action)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take an action in the environment; returns the same tuple as Gymnasium's `step`."""
        if self.ended:
            raise UserError("step: the episode has ended. Call reset() first")
        self._action = np.asarray(action, self.env.single_action_space.dtype)
        shown, rewards, terminated, truncated, info = self.env.step(self._action[None])
        self._reward = float(rewards[0])
        self.ended = bool(terminated[0] or truncated[0])
        # `shown` is the next episode's first observation by then: autoreset is in the same step.
        observation = info["final_obs"][0] if self.ended else self._first(shown)
        return observation, self._reward, bool(terminated[0]), bool(truncated[0]), info

    def draw(self) -> np.ndarray:
        """Return a picture of the whole environment.  [H, W, 3] uint8"""
        if self.env.render_mode != "rgb_array":
            raise UserError(f"draw: {self.config.env} has no render_mode 'rgb_array'")
        return np.asarray(cast(Sequence[np.ndarray], self.env.render())[0])

    def close(self) -> None:
        self._opened.close()

    def __enter__(self) -> "Player":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> None:
        self._memory = self.agent.initial_memory(1)
        space = self.env.single_action_space
        self._action = np.zeros(space.shape or (), space.dtype)
        self._starts, self._reward = True, 0.0

    def _percept(self, observation: Any) -> AgentInput:
        # Nothing precedes the first observation of an episode: action and reward are zero there.
        space = self.env.single_observation_space
        batch = concatenate(space, [observation], cast(Any, create_empty_array(space, 1)))
        action = torch.as_tensor(self._action[None], device=self.agent.device)
        paid, begins = np.array([self._reward]), np.array([self._starts])
        return AgentInput.after(self.agent.read(batch), action, paid, begins)

    def _first(self, observations: Any) -> Any:
        return next(iter(iterate(self.env.observation_space, observations)))


@contextmanager
def restored(
    run: str | Path,
    env: EnvLike | None,
    device: str,
    trust: bool,
    drawn: bool = False,
    texts: Sequence[str] = (),
) -> Iterator[tuple[Config, Agent, VectorEnv]]:
    path = find_checkpoint(Path(run), "run")
    checkpoint = load_checkpoint(path)
    config = player_config(checkpoint, path, 1, device, trust, texts)
    with ExitStack() as stack:
        with given(env) as name:
            own = config if name is None else config.replace(env=name)
            seed = evaluation_seed(config.seed)
            played_in = stack.enter_context(open_env(own, seed, drawn))
        yield config, restored_agent(config, played_in, checkpoint, path), played_in
