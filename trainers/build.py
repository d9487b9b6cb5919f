"""Builds the parts of a run from its settings, and an agent from a checkpoint."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from gymnasium.spaces import flatdim
from gymnasium.vector import VectorEnv

from envs import (
    check_env_name,
    clips_rewards,
    is_given_vector,
    make_vector_env,
    scales_rewards,
)
from envs.notices import forget
from envs.settings import LEARNED, CrafterTextSettings
from models import AGENTS, build_agent, resolve_device
from models.agent import Agent
from rewards import CURIOSITIES
from rewards.goals import GoalRewards, with_goals
from rewards.settings import CuriositySettings
from trainers.checkpoint import (
    check_finetune,
    find_checkpoint,
    load_checkpoint,
    recorded_sha256,
    restore_agent,
)
from trainers.evaluation import GreedyEvaluation, played_config
from trainers.learner import Guide, Learner, RewardScaling
from trainers.parts import LEARNERS
from trainers.ranks import Ranks
from trainers.settings import FinetuneSettings, RunSettings, ScalingSettings
from utils.environments import Environments
from utils.errors import ENDINGS, UserError, error_text, raise_all
from utils.run_folder import check_run_id
from utils.seeding import N_TOGETHER
from utils.settings import Config
from utils.user_modules import is_named, telling

log = logging.getLogger(__name__)


def build_scaling(config: ScalingSettings, n_envs: int) -> RewardScaling | None:
    """Return the scaling of N environments' rewards; None where they are the environments' own."""
    choice = config.normalize_reward
    is_wanted = scales_rewards(config.env) if choice is None else choice
    clip = config.reward_clip if choice or clips_rewards(config.env) else None
    return RewardScaling(n_envs, config.gamma, clip) if is_wanted else None


def check(config: RunSettings, run_id: str | None = None, has_start: bool = False) -> None:
    """Raise UserError with a line for every problem of a run; `has_start`: with an agent."""
    forget()  # what was said of an earlier run's environment
    curiosity = config.part(CuriositySettings).curiosity
    learned = config.part(CrafterTextSettings).crafter_captions == LEARNED
    with telling(config):
        raise_all(
            lambda: check_env_name(config.env),
            lambda: LEARNERS.find(config.algorithm),
            lambda: AGENTS.find(config.model).check(config),
            lambda: curiosity is None or CURIOSITIES.find(curiosity),
            lambda: check_finetune(config.part(FinetuneSettings), has_start),
            lambda: check_run_id(config, run_id),
            lambda: _check_captions() if learned else None,
        )


def _check_captions() -> None:
    from envs.crafter.tile_reader import load_tile_reader

    load_tile_reader()  # raises where there is none


@contextmanager
def open_env(config: Config, seed: int, drawn: bool = False) -> Iterator[Environments]:
    """Open the environments of the settings, with goals, and close them; a user's own stay open.

    `drawn` prefers environments that can be drawn whole to faster ones.
    """
    with ExitStack() as stack:
        env = make_vector_env(config, seed, drawn)
        if not is_given_vector(config.env):
            stack.callback(_close, env, config.env)
        opened = with_goals(env, config)
        if isinstance(opened, GoalRewards):
            stack.callback(opened.suggester.close)
        yield opened


def _close(env: VectorEnv, name: str) -> None:
    try:
        env.close()
    except ENDINGS:
        raise
    except BaseException as error:  # whatever its author did: what was learned is saved
        log.warning(f"env: '{name}' raised {error_text(error)} when it was closed")


@contextmanager
def build_evaluation(config: RunSettings) -> Iterator[GreedyEvaluation | None]:
    if not config.eval_steps:
        yield None
        return
    if is_given_vector(config.env):
        raise UserError(
            "eval_steps: evaluations need environments of their own. Give a function that "
            "makes one environment, or leave eval_steps at 0"
        )
    # No more environments than episodes: each plays the first of its own.
    few = config.replace(n_envs=min(config.eval_episodes, N_TOGETHER))
    with open_env(few, config.seed) as env:
        yield GreedyEvaluation(config, env)


def build_learner(
    config: RunSettings, share: Config, agent: Agent, env: VectorEnv, ranks: Ranks, trust: bool
) -> Learner:
    """Return the learner of a run, with its scaling, intrinsic reward and guide, where there are.

    `share` are the settings and `env` the environments of this rank; `trust` is for the guide.
    """
    if is_named(config.model):  # only such an agent may have a memory of the user's own
        from models.memories.check import refuse_broken

        refuse_broken(agent, config.model)
    learner_of = LEARNERS.find(config.algorithm)
    # Checked for the whole run already, but a rank's minibatches come from its own share.
    problems = learner_of.validate_config(share, AGENTS.find(share.model))
    if problems:
        raise UserError(*problems)
    curiosity, reward = None, config.part(CuriositySettings).curiosity
    if reward is not None:
        n_actions = flatdim(env.single_action_space)
        curiosity = CURIOSITIES.find(reward).configured(config, agent, n_actions)
        # Its statistics and networks learn from the steps of all ranks.
        if ranks.size > 1:
            curiosity.share(ranks)
    scaling = build_scaling(config.part(ScalingSettings), env.num_envs)
    learner_of, joined = learner_of.of(agent), (ranks, curiosity, scaling)
    place = learner_of.guide_of(config)
    if place is None:
        return learner_of(config, agent, *joined)
    return learner_of(config, agent, *joined, guide=load_guide(place, config, env, trust))


def load_guide(place: str, config: Config, env: VectorEnv, trust: bool) -> Guide:
    """Return the agent of a run folder or checkpoint, to explore for another one."""
    path = find_checkpoint(Path(place), "guide")
    checkpoint = load_checkpoint(path)
    # With the settings it was trained with, on this run's device.
    theirs = played_config(checkpoint, path, trust).replace(device=config.device)
    try:
        agent = restored_agent(theirs, env, checkpoint, path).requires_grad_(False)
    except UserError as error:
        raise UserError(f"guide {place}: it was trained for another task ({error})") from error
    return Guide(agent, recorded_sha256(path))


def player_config(
    checkpoint: Mapping[str, Any],
    path: Path,
    n_envs: int,
    device: str,
    trust: bool,
    overrides: Sequence[str] = (),
    random: bool = False,
) -> Config:
    config = played_config(checkpoint, path, trust, overrides)
    agent = AGENTS.find(config.model)
    if not random:
        agent.check(config)
    return config.replace(device=resolve_device(device), n_envs=n_envs)


def restored_agent(
    config: Config, env: VectorEnv, checkpoint: Mapping[str, Any] | None, path: Path
) -> Agent:
    """Return the agent of a checkpoint in evaluation mode; without a checkpoint the random one."""
    spaces = env.single_observation_space, env.single_action_space
    if checkpoint is None:
        from models.baselines import RandomAgent

        return RandomAgent(*spaces).to(config.device)
    agent = build_agent(config, *spaces)
    restore_agent(agent, checkpoint, str(path))
    return agent.eval()
