"""How settings become a run, and a checkpoint a player.

This file alone knows which parts there are: it hands the registries to the settings.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from gymnasium.spaces import Discrete
from gymnasium.vector import VectorEnv

from envs import (
    ENVIRONMENTS,
    GivenEnv,
    check_env_name,
    given_name,
    given_vector_env,
    make_vector_env,
    scales_rewards,
)
from envs.crafter.text import LEARNED, CrafterTextSettings
from envs.wrappers import EpisodeStatistics
from models import AGENTS, build_agent, resolve_device
from models import contradictions as model_contradictions
from models.agent import Agent
from models.tile_reader import load_tile_reader, with_tile_reader
from rewards.curiosity import CURIOSITIES, CuriositySettings, configured_curiosity
from rewards.goals import GoalRewards, GoalSettings, with_goals
from rewards.goals import contradictions as goal_contradictions
from rewards.scaling import ScalingSettings, configured_scaling
from rewards.suggesters import SUGGESTERS
from runs.folder import begun_with, check_run_id, create_run_folder, locked, resumed_config
from runs.loggers import check_loggers
from settings import Config, Program, install, recomposed
from trainers import LEARNERS
from trainers.checkpoint import (
    find_checkpoint,
    load_checkpoint,
    own_checkpoint,
    recorded_sha256,
    restore_agent,
)
from trainers.collector import Collector
from trainers.evaluation import played_config
from trainers.greedy_evaluation import GreedyEvaluation, envs_needed
from trainers.n_step_dqn import Guide, NStepDQN, NStepDqnSettings
from trainers.ranks import Ranks
from trainers.run import Run, RunSettings, Showcase
from trainers.warm_start import FinetuneSettings, WarmStart
from utils.errors import UserError, raise_all
from utils.seeding import seed_everything
from utils.starting import number_of_threads


def contradictions(config: Any) -> list[str]:
    """Return one line for every pair of settings that cannot both hold in this run."""
    goals = goal_contradictions(config)
    if not (LEARNERS.known_as(config.algorithm) and AGENTS.known_as(config.model)):
        return goals
    agent, curiosity = AGENTS.find(config.model), CURIOSITIES.known_as(config.curiosity or "")
    return [
        *goals,
        *model_contradictions(config),
        *LEARNERS.find(config.algorithm).contradictions(config, agent),
        *(CURIOSITIES.find(curiosity).contradictions(config, agent) if curiosity else ()),
    ]


def recomposed_config(values: Mapping[str, Any], places: Iterable[Path]) -> Config:
    """Return the settings of another process, which finds all parts by importing this file."""
    return recomposed(values, places)


REGISTRIES = (LEARNERS, AGENTS, ENVIRONMENTS, SUGGESTERS, CURIOSITIES)
install(
    Program(
        {registry.setting: registry for registry in REGISTRIES},
        (ScalingSettings, GoalSettings, CuriositySettings, RunSettings),
        contradictions,
        recomposed_config,
    )
)


class NewRun(NamedTuple):
    """What is said of a new run beside its settings.

    Attributes:
        run_id: The folder's name; None for one made of the overrides and the seed.
        overrides: What was given as KEY=VALUE.
        init_from: The run or checkpoint whose agent's parameters it begins with.
        env: The object it is trained in, if that has no name.
        trust: Whether a guide's run is trusted, whoever has begun it.
    """

    run_id: str | None = None
    overrides: Sequence[str] = ()
    init_from: Path | None = None
    env: GivenEnv | None = None
    trust: bool = False


Show = Callable[[RunSettings, Agent], Showcase | None]  # what shows a run while it trains


def show_nothing(config: RunSettings, agent: Agent) -> None:
    """Return nothing that shows a run."""


def begin(config: RunSettings, new: NewRun, ranks: Ranks, show: Show = show_nothing) -> Path:
    """Train a run from its first step to its last and return its folder."""
    check(config, new)
    start = None if new.init_from is None else WarmStart.named(new.init_from)
    with configured_run(config, ranks, new.env, start, new.trust, show) as run:
        of_env: dict[str, str] = getattr(run.collector.env, "fingerprints", dict)()
        weights = run.learner.agent.fingerprints() | of_env
        facts = None if start is None else start._asdict()
        details = (new.run_id, new.overrides, weights, facts)
        folder = ranks.run_on_first(lambda: create_run_folder(run.config, *details))
        with ranks.enter_on_first(locked(folder)):
            ranks.print(run.train(folder).report(folder, by_name=new.env is None))
    return folder


def check(config: RunSettings, new: NewRun) -> None:
    """Raise UserError with a line for everything that speaks against a new run."""
    curiosity = config.part(CuriositySettings).curiosity
    raise_all(
        lambda: check_env_name(config.env) if new.env is None else None,
        lambda: LEARNERS.find(config.algorithm),
        lambda: AGENTS.find(config.model).check(config),
        lambda: curiosity is None or CURIOSITIES.find(curiosity),
        lambda: config.part(FinetuneSettings).check_finetune(new.init_from),
        lambda: check_run_id(config, new.run_id),
        lambda: check_captions(config),
    )


def check_captions(config: RunSettings) -> None:
    """Raise UserError where captions are to be read off the pixels and nothing has learned it."""
    if config.part(CrafterTextSettings).captions == LEARNED:
        load_tile_reader()


def go_on(
    folder: Path,
    ranks: Ranks,
    env: GivenEnv | None = None,
    trust: bool = False,
    show: Show = show_nothing,
) -> Path:
    """Go on with an unfinished run from its last good checkpoint, or from its beginning."""
    config = ranks.run_on_first(lambda: resumed_config(folder, trust).part(RunSettings))
    if env is None:
        check_env_name(config.env)
    elif given_name(env) != config.env:
        raise UserError(f"env: {folder} is a run on {config.env}, and this is {given_name(env)}")
    with ranks.enter_on_first(locked(folder)):
        checkpoint = own_checkpoint(folder, config, ranks)
        facts = begun_with(folder) if checkpoint is None else None
        start = None if facts is None else WarmStart.recorded(facts)
        with configured_run(config, ranks, env, start, trust, show) as run:
            ranks.print(run.resume(folder, checkpoint))
            ranks.print(run.train(folder).report(folder, by_name=env is None))
    return folder


@contextmanager
def configured_run(
    config: RunSettings,
    ranks: Ranks,
    given: GivenEnv | None = None,
    start: WarmStart | None = None,
    trust: bool = False,
    show: Show = show_nothing,
) -> Iterator[Run]:
    """Build everything the settings name; close the environments in the end."""
    check_loggers(config)
    n_threads = number_of_threads(config.threads)
    config = replace(config, device=resolve_device(config.device), threads=n_threads)
    torch.set_num_threads(n_threads)
    ranks.print(f"{config.model} on {config.env}, device {config.device}")
    seed_everything(config.seed, config.deterministic)
    share = ranks.share(config)
    with opened_env(share, share.seed, given) as env:
        learner_of = LEARNERS.find(config.algorithm)
        problems = learner_of.contradictions(share, AGENTS.find(share.model))
        if problems:  # a part of the environments can be too few
            raise UserError(*problems)
        agent = build_agent(config, env.single_observation_space, env.single_action_space)
        if start is not None:
            start.give(agent)
        scaling = configured_scaling(
            config.part(ScalingSettings), env.num_envs, scales_rewards(config.env)
        )
        ranks.synchronize(agent, config)
        n_actions = int(cast(Discrete, env.single_action_space).n)
        curiosity = configured_curiosity(config, agent, n_actions)
        if curiosity is not None and ranks.size > 1:
            curiosity.share(ranks)
        learner = learner_of(config, agent, ranks, curiosity)
        if isinstance(learner, NStepDQN):
            learner.guide = configured_guide(config.part(NStepDqnSettings), env, trust)
        collector = Collector(env, learner, scaling, ranks)
        with evaluation_of(config, given) as evaluation:
            yield Run(config, learner, collector, show(config, agent), evaluation)


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
) -> Iterator[EpisodeStatistics | GoalRewards]:
    """Return the environments of the settings, or given ones, and what is wanted in them.

    What was opened is closed in the end.

    Args:
        config: The settings.
        seed: Of the first of them.
        given: An object in their place.
        drawn: Prefer environments that can be drawn whole to faster ones.
    """
    if given is None:
        env = make_vector_env(config, seed, drawn)
    else:
        env = given_vector_env(given, config.n_envs, seed)
    try:
        yield with_goals(with_tile_reader(env), config)
    finally:
        if not isinstance(given, VectorEnv):
            env.close()


def configured_guide(config: NStepDqnSettings, env: VectorEnv, trust: bool) -> Guide | None:
    """Return the agent that explores for another, if the settings name one.

    Raises:
        UserError: there is none, or it cannot see or act in these environments.
    """
    if config.guide is None:
        return None
    path = find_checkpoint(Path(config.guide), "guide")
    checkpoint = load_checkpoint(path)
    theirs = replace(played_config(checkpoint, path, trust), device=config.device)
    try:
        agent = restored_agent(theirs, env, checkpoint, path)
    except UserError as error:
        raise UserError(
            f"guide {config.guide}: it was trained for another task ({error})"
        ) from error
    return Guide(agent.requires_grad_(False), recorded_sha256(path))


def restored_agent(
    config: Config, env: VectorEnv, checkpoint: Mapping[str, Any], path: Path
) -> Agent:
    """Return the agent of a checkpoint, in evaluation mode."""
    agent = build_agent(config, env.single_observation_space, env.single_action_space)
    restore_agent(agent, checkpoint, str(path))
    return agent.eval()
