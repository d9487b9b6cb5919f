"""HELM from Python: train, go on, load a run and play it step by step.

    import helm

    run = helm.train({"model": "LSTM", "n_steps": 100_000}, env=MyEnv)
    with helm.load(run, env=MyEnv) as player:
        observation = player.reset(seed=0)
        action = player.act(observation)

`train`, `resume`, `load`, `Player` and `UserError`, which tells every mistake, are the public
interface. What main.py and eval.py do, they do by what stands here, too.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from envs import (
    GivenEnv,
    check_env_name,
    given_name,
    given_vector_env,
    make_vector_env,
    scales_rewards,
)
from models import agent_class, build_agent, resolve_device
from models.agent import Agent
from models.observations import Percept
from report.while_training import configured_showcase
from rewards.scaling import ScalingSettings, configured_scaling
from runs.folder import begun_with, check_run_id, create_run_folder, locked, resumed_config
from runs.loggers import check_loggers
from runs.named_files import say_named_files
from settings import Config, load_config
from trainers import learner_class
from trainers.checkpoint import (
    checkpoint_config,
    find_checkpoint,
    load_checkpoint,
    own_checkpoint,
    restore_agent,
)
from trainers.collector import Collector
from trainers.greedy_evaluation import GreedyEvaluation, envs_needed
from trainers.ranks import Ranks, joined_ranks
from trainers.run import Run, RunSettings
from trainers.warm_start import WarmStart
from utils.errors import UserError, raise_all
from utils.seeding import seed_everything

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
            raise UserError(f"settings: {name} is given beside an object. Give one of them")
    if agent is not None:
        values["model"] = _name_of(agent)
    if env is not None:
        values["env"] = given_name(env)
    if isinstance(env, VectorEnv):
        values.setdefault("n_envs", env.num_envs)
    texts = [f"{name}={value}" for name, value in settings.items()]
    new = NewRun(run_id, texts, None if init_from is None else Path(init_from), env)
    with joined_ranks() as ranks:
        config = ranks.run_on_first(lambda: load_config(values=values).part(RunSettings))
        return begin(config, new, ranks)


def resume(run: str | Path, env: GivenEnv | None = None) -> Path:
    """Go on with an unfinished run and return its folder.

    Args:
        run: Its folder.
        env: What it was trained in, if that was an object.

    Raises:
        UserError: it cannot go on, or not in that environment.
    """
    with joined_ranks() as ranks:
        return go_on(Path(run), ranks, env)


def load(run: str | Path, env: GivenEnv | None = None, device: str = "auto") -> "Player":
    """Return the agent of a run, to be played step by step in one environment.

    Args:
        run: A run folder, whose best agent is taken, or a checkpoint.
        env: What to play in instead of the run's own environment: as of `train`, a vector
            environment being of one.
        device: auto, cpu or cuda.

    Raises:
        UserError: it is no run, or its agent or environment cannot be had here.
    """
    path = find_checkpoint(Path(run), "run")
    checkpoint = load_checkpoint(path)
    config = checkpoint_config(checkpoint, path)
    if env is None:
        check_env_name(config.env)
    say_named_files(config, path)
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _begin(self) -> None:
        self._memory = self.agent.initial_memory(1)
        self._starts, self._action, self._reward = True, 0, 0.0

    def _percept(self, observation: Any) -> Percept:
        """Return what the agent is told: an observation, and what was done before it."""
        space = self.env.single_observation_space
        batch = concatenate(space, [observation], create_empty_array(space, 1))
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


class NewRun(NamedTuple):
    """What is said of a new run beside its settings.

    Attributes:
        run_id: The folder's name; None for one made of the overrides and the seed.
        overrides: What was given as KEY=VALUE.
        init_from: The run or checkpoint whose agent's parameters it begins with.
        env: The object it is trained in, if that has no name.
    """

    run_id: str | None = None
    overrides: Sequence[str] = ()
    init_from: Path | None = None
    env: GivenEnv | None = None


def begin(config: RunSettings, new: NewRun, ranks: Ranks) -> Path:
    """Train a run from its first step to its last and return its folder."""
    ranks.run_on_first(lambda: check(config, new))
    start = None
    if new.init_from is not None:
        source = new.init_from
        start = ranks.run_on_first(lambda: WarmStart.named(source))
    with configured_run(config, ranks, new.env, start) as run:
        weights = run.learner.agent.fingerprints()
        facts = None if start is None else start._asdict()
        details = (new.run_id, new.overrides, weights, facts)
        folder = ranks.run_on_first(lambda: create_run_folder(run.config, *details))
        with ranks.enter_on_first(locked(folder)):
            ranks.print(run.train(folder).report(folder, by_name=new.env is None))
    return folder


def check(config: RunSettings, new: NewRun) -> None:
    """Raise UserError with a line for everything that speaks against a new run."""
    raise_all(
        lambda: check_env_name(config.env) if new.env is None else None,
        lambda: learner_class(config.algorithm),
        lambda: agent_class(config.model).check(config),
        lambda: check_run_id(config, new.run_id),
    )


def go_on(folder: Path, ranks: Ranks, env: GivenEnv | None = None) -> Path:
    """Go on with an unfinished run from its last good checkpoint, or from its beginning."""
    config = ranks.run_on_first(lambda: resumed_config(folder).part(RunSettings))
    if env is None:
        ranks.run_on_first(lambda: check_env_name(config.env))
    elif given_name(env) != config.env:
        raise UserError(f"env: {folder} is a run on {config.env}, and this is {given_name(env)}")
    with ranks.enter_on_first(locked(folder)):
        checkpoint = own_checkpoint(folder, config, ranks)
        facts = begun_with(folder) if checkpoint is None else None
        start = None if facts is None else WarmStart.recorded(facts)
        with configured_run(config, ranks, env, start) as run:
            ranks.print(run.resume(folder, checkpoint))
            ranks.print(run.train(folder).report(folder, by_name=env is None))
    return folder


@contextmanager
def configured_run(
    config: RunSettings,
    ranks: Ranks,
    given: GivenEnv | None = None,
    start: WarmStart | None = None,
) -> Iterator[Run]:
    """Build everything the settings name; close the environments in the end."""
    ranks.run_on_first(lambda: check_loggers(config))
    config = replace(config, device=ranks.run_on_first(lambda: resolve_device(config.device)))
    ranks.print(f"{config.model} on {config.env}, device {config.device}")
    seed_everything(config.seed, config.deterministic)
    share = ranks.share(config)
    with opened_env(share, share.seed, given) as env:
        learner_of = learner_class(config.algorithm)
        ranks.run_on_first(lambda: learner_of.check_fits(share, env.single_observation_space))
        agent = build_agent(config, env.single_observation_space, env.single_action_space)
        if start is not None:
            ranks.run_on_first(lambda: start.give(agent))
        scaling = configured_scaling(
            config.part(ScalingSettings), env.num_envs, scales_rewards(config.env)
        )
        ranks.synchronize(agent, config)
        learner = learner_of(config, agent, ranks)
        collector = Collector(env, learner, scaling, ranks)
        with evaluation_of(config, given) as evaluation:
            showcase = configured_showcase(config, agent)
            yield Run(config, learner, collector, showcase, evaluation)


@contextmanager
def evaluation_of(config: RunSettings, given: GivenEnv | None) -> Iterator[GreedyEvaluation | None]:
    """Return what plays greedily while the run trains; close its environments in the end."""
    n_envs = envs_needed(config)
    if not n_envs:
        yield None
        return
    if isinstance(given, VectorEnv):
        raise UserError(
            "eval_steps: evaluations need environments of their own. Give a function that makes "
            "one environment, or leave eval_steps at 0"
        )
    with opened_env(replace(config, n_envs=n_envs), config.seed, given) as env:
        yield GreedyEvaluation(config, env)


@contextmanager
def opened_env(
    config: Config, seed: int, given: GivenEnv | None = None, drawn: bool = False
) -> Iterator[VectorEnv]:
    """Return the environments of the settings, or given ones; close in the end what was opened.

    Args:
        config: The settings.
        seed: Of the first of them.
        given: An object in their place.
        drawn: Prefer environments that can be drawn whole to faster ones.
    """
    if given is None:
        env = make_vector_env(config, seed, drawn)
    else:
        env = given_vector_env(given, config.n_envs)
    try:
        yield env
    finally:
        if not isinstance(given, VectorEnv):
            env.close()


def restored_agent(
    config: Config, env: VectorEnv, checkpoint: Mapping[str, Any], path: Path
) -> Agent:
    """Return the agent of a checkpoint, in evaluation mode."""
    agent = build_agent(config, env.single_observation_space, env.single_action_space)
    restore_agent(agent, checkpoint, str(path))
    return agent.eval()


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
