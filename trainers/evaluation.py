"""Playing whole episodes without learning: for eval.py, and now and then while a run trains."""

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from models.agent import Agent, gradient_lengths
from models.observations import AgentInput, Observations
from rewards.settings import (
    OF_EVALUATION,
    ONLY_BY_SUBGOALS,
    REWARD_LAST,
    SURVIVAL,
    TASK,
    TASKS,
    as_played,
)
from rewards.suggesters import SUGGESTERS
from trainers.settings import EvaluationSettings
from utils.errors import EnvFault, UserError, did_you_mean
from utils.files import atomic_write
from utils.given_settings import with_env_settings
from utils.run_folder import check_outside, stored_config
from utils.seeding import N_EVALUATED, evaluation_seed, streams_kept
from utils.settings import Config, outside_settings, read_settings

LONGEST_PLAYED = 100_000  # steps of an episode; its steps are held until it ends
MOST_SALIENT = 64  # steps: 8 s for HELM with MiniLM, and 16 times that for 256
ALL = "all"  # tasks
SENTENCES = ("scene", "inventory", "status")
# The texts of a step by name, each with its default.
BEFORE: dict[str, Any] = {"suggestions": ()}  # an action: the goals of this step
AFTER = {"phrase": "", "matched": "", "goal_success": False, "goal_rewards": 0.0, "unlocked": ()}
TOLD = {"caption": "", **BEFORE, **AFTER}
KINDS: dict[type, Any] = {str: str, bool: bool | np.bool_, float: int | float | np.number}

Narration = list[dict[str, Any]]


class FinishedEpisode(NamedTuple):
    """One finished episode.

    Attributes:
        episode_return: The sum of the environment's own rewards.
        length: In environment steps.
        success: None where the environment does not say.
    """

    episode_return: float
    length: int
    success: bool | None = None

    @classmethod
    def of(cls, episode_return: Any, length: Any, success: Any = None) -> "FinishedEpisode":
        """Convert values of other types; a success of NaN is one that is not known."""
        known = None if success is None or math.isnan(success) else bool(success)
        return cls(float(episode_return), int(length), known)

    @classmethod
    def ended(cls, statistics: Mapping[str, np.ndarray], n: np.integer) -> "FinishedEpisode":
        success = statistics["success"][n] if "success" in statistics else None
        return cls.of(statistics["r"][n], statistics["l"][n], success)


class Recording(NamedTuple):
    """An episode, step by step.

    Attributes:
        episode: Its statistics; length L.
        steps: Arrays by name, [L, ...] each: observations before each action (images, or else
            vectors; vectors beside images; text), actions, rewards, values, `Agent.explain`, and
            the environment's texts, such as goals suggested before each action.
        details: More of them, for looking at: probabilities [L, A], overviews [L, H, W, 3] where
            the environment can be drawn, and `Agent.inspect`. Empty unless asked for.
    """

    episode: FinishedEpisode
    steps: dict[str, np.ndarray]
    details: dict[str, np.ndarray]

    def save(self, path: Path) -> None:
        arrays = io.BytesIO()  # NumPy fails to close a file on a full disk
        np.savez_compressed(arrays, allow_pickle=False, **self.steps)
        with atomic_write(path) as file:
            file.write(arrays.getbuffer())


def evaluate(
    agent: Agent,
    env: VectorEnv,
    n_episodes: int,
    deterministic: bool = False,
    seed: int | None = None,
    in_detail: bool = False,
) -> Iterator[Recording]:
    """Yield n_episodes recordings, the first episodes of each environment in equal shares.

    Raises:
        EnvFault: one of them does not end.
    """
    observations, info = env.reset(seed=seed)
    memory = agent.initial_memory(env.num_envs)
    percept = AgentInput.first(agent.read(observations), env.single_action_space.shape or ())
    running: list[list[dict[str, np.ndarray]]] = [[] for _ in range(env.num_envs)]
    texts: list[Narration] = [[] for _ in range(env.num_envs)]
    # A number for each environment: the first to end of all would be the short ones.
    missing = np.full(env.num_envs, n_episodes // env.num_envs)
    missing[: n_episodes % env.num_envs] += 1
    while missing.any():
        details: dict[str, np.ndarray] = {}
        before = memory.copy() if in_detail else memory
        step = agent.act(percept, memory, deterministic)
        if in_detail:  # of this very step: who reads twice may read other words
            details = agent.inspect(percept, before, step)
            if env.render_mode == "rgb_array":
                details["overviews"] = np.stack(cast(tuple[np.ndarray, ...], env.render()))
            if step.all_log_probs is not None:
                details["probabilities"] = step.all_log_probs.exp().cpu().numpy()
        rows = _seen(percept.observations, agent) | {"actions": step.actions.cpu().numpy()}
        if step.values is not None:
            rows["values"] = step.values.cpu().numpy()
        rows |= agent.explain(step)
        told_before = info_before(info, env.num_envs)
        observations, rows["rewards"], terminated, truncated, info = env.step(rows["actions"])
        ended = terminated | truncated
        percept = AgentInput.after(agent.read(observations), step.actions, rows["rewards"], ended)
        after = texts_in_info(info, AFTER, env.num_envs)
        for n in np.flatnonzero(missing):
            running[n].append({name: values[n] for name, values in (rows | details).items()})
            texts[n].append(told_before[n] | after[n])
        for n in np.flatnonzero(ended & (missing > 0)):
            steps = running[n]
            arrays = {name: np.stack([step[name] for step in steps]) for name in steps[0]}
            kept = {name: arrays.pop(name) for name in rows}
            yield Recording(
                FinishedEpisode.ended(info["episode"], n), kept | narrated(texts[n]), arrays
            )
            # The next episode of this environment begins within the same step.
            running[n], texts[n] = [], []
        missing -= ended & (missing > 0)
        if max(map(len, running)) >= LONGEST_PLAYED:
            raise EnvFault(
                f"env: an episode that is played has not ended after {LONGEST_PLAYED:,} steps. "
                "Wrap the environment in gymnasium.wrappers.TimeLimit"
            )


def _seen(observations: Observations, agent: Agent) -> dict[str, np.ndarray]:
    images, vectors, text, masks, _ = observations
    seen = {}
    if images is not None:
        seen["observations"] = images.cpu().numpy()
    if vectors is not None:
        seen["vectors" if seen else "observations"] = vectors.cpu().numpy()
    if text is not None:
        seen["text"] = agent.reader.sentences.texts(text)
    if masks is not None:
        seen["action_masks"] = masks.cpu().numpy()
    return seen


def recorded_input(agent: Agent, steps: Mapping[str, np.ndarray]) -> AgentInput:
    """Return an agent's inputs at a recording's T steps, as of T environments, with tokens read."""
    kinds, n_steps = {}, len(steps["actions"])
    for name in {"observations", "vectors"} & steps.keys():
        seen = torch.from_numpy(steps[name]).to(agent.device)
        kinds["vectors" if seen.is_floating_point() else "images"] = seen
    if agent.reader.n_texts:
        numbers = agent.reader.sentences.numbers(steps["text"].flat)
        kinds["text"] = torch.tensor(numbers, device=agent.device).view(steps["text"].shape)
    if agent.reader.n_last:
        kinds["last_step"] = torch.zeros(n_steps, agent.reader.n_last, device=agent.device)
    actions = torch.from_numpy(steps["actions"]).to(agent.device)
    rewards, begins = steps.get("rewards", np.zeros(n_steps)), np.arange(n_steps) == 0
    shown = Observations(**kinds)
    episode = AgentInput.after(shown, actions.roll(1, 0), np.roll(rewards, 1), begins)
    if "tokens" in steps:
        episode = episode._replace(tokens=torch.from_numpy(steps["tokens"]).to(agent.device))
    return episode


def saliency(agent: Agent, steps: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Return how much the value at each step, a row, depends on the observation of each.  [S, S]

    It is the length of the value's gradient at an embedded observation, as a share of the row. Of
    a recording's steps these are the first `MOST_SALIENT`, or as many as a frozen memory has in
    sight at once. None where the agent cannot say.
    """
    first = {name: array[:MOST_SALIENT] for name, array in steps.items()}
    actions = torch.from_numpy(first["actions"]).to(agent.device)
    with torch.backends.cudnn.flags(enabled=False):  # it has no gradients outside of training
        found = agent.episode_values(recorded_input(agent, first), actions)
        if found is None:
            return None
        values, inputs = found
        lengths = torch.cat([gradient_lengths(value, inputs) for value in values], dim=1).T
    return (lengths / lengths.sum(1, keepdim=True).clamp(min=1e-30)).cpu().numpy()


def info_before(info: Mapping[str, Any], n_envs: int) -> Narration:
    """Return the texts before an action, of each of N environments, by name.

    "caption" is the sentences of scene, inventory and status one after the other.
    """
    rows = texts_in_info(info, BEFORE, n_envs)
    sentences = texts_in_info(info, dict.fromkeys(SENTENCES, ""), n_envs)
    for row, parts in zip(rows, sentences, strict=True):
        if len(parts) == len(SENTENCES):
            row["caption"] = " ".join(filter(None, parts.values()))
    return rows


def narrated(steps: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Return the texts of L steps as arrays that need no pickle, by name.

    Names that no step has are left out. Several texts a step are an array [L, K], padded with empty
    ones; everything else is [L].
    """
    arrays = {}
    for name, nothing in TOLD.items():
        if any(name in step for step in steps):
            values = [step.get(name, nothing) for step in steps]
            if nothing == ():
                longest = max(1, *map(len, values))
                values = [[*texts, *[""] * (longest - len(texts))] for texts in values]
            arrays[name] = np.array(values)
    return arrays


def texts_in_info(info: Mapping[str, Any], nothings: Mapping[str, Any], n_envs: int) -> Narration:
    """Return some texts of each of N environments in `info`, by name, unless of another type."""
    rows: Narration = [{} for _ in range(n_envs)]
    for name, nothing in nothings.items():
        values = info.get(name)
        if not (isinstance(values, np.ndarray) and values.shape == (n_envs,)):
            continue
        for row, value in zip(rows, values, strict=True):
            if value is None:
                row[name] = nothing
            elif nothing == ():
                if isinstance(value, tuple | list) and all(isinstance(each, str) for each in value):
                    row[name] = tuple(map(str, value))
            elif isinstance(value, KINDS[type(nothing)]):
                row[name] = type(nothing)(value)
    return rows


class GreedyEvaluation:
    """Returns and lengths of a few episodes of most probable, or most valued, actions.

    No random stream of the run moves and nothing of the agent changes, so that a run with
    evaluations is the run without. All runs play the same episodes, which no training meets: a
    block of them after the other.
    """

    latest: float | None = None  # the mean return of the newest one in this process

    def __init__(self, config: EvaluationSettings, env: VectorEnv) -> None:
        self.config, self.env = config, env
        self.n_due = 0  # evaluations so far, done or passed over

    def __call__(self, agent: Agent, env_steps: int) -> dict[str, float]:
        """Return the metrics after so many steps: NaN under every name where none is due."""
        # Names without a value are NaN, since metrics.csv has one width.
        names = [f"eval/{name}_mean" for name in ("return", "length", "success")]
        n_due = env_steps // self.config.eval_steps
        if n_due == self.n_due:
            return dict.fromkeys(names, math.nan)
        # A long update may pass several: one evaluation stands for all of them.
        self.n_due = n_due
        n_episodes = self.config.eval_episodes
        # Held-out seeds are limited in number: after the last block comes the first again.
        n_blocks = max(N_EVALUATED // n_episodes, 1)
        seed = evaluation_seed((n_due - 1) % n_blocks * n_episodes)
        with preserve_rng_and_mode(agent):
            played = evaluate(agent, self.env, n_episodes, True, seed)
            columns = zip(*(recording.episode for recording in played), strict=True)
            means = (float(np.array(values, float).mean()) for values in columns)  # None is NaN
            metrics = dict(zip(names, means, strict=True))
        self.latest = metrics["eval/return_mean"]
        return metrics


@contextmanager
def preserve_rng_and_mode(agent: Agent) -> Iterator[None]:
    modes = {module: module.training for module in agent.modules()}
    with streams_kept():  # environments of this process may draw from NumPy's and Python's
        # No dropout, and no statistics that learn from what is shown here.
        agent.eval()
        try:
            yield
        finally:
            for module, training in modes.items():
                module.training = training


def played_config(
    checkpoint: Mapping[str, Any], path: Path, trust: bool, overrides: Sequence[str] = ()
) -> Config:
    """Return a checkpoint's settings with overrides; UserError if wrong, or not trusted."""
    stored = stored_config(checkpoint["config"], str(path), path.parent, trust)
    changes = dict(text.split("=", 1) for text in overrides if "=" in text)
    places, goals = read_settings(stored).intersection(outside_settings()), set(OF_EVALUATION)
    if SUGGESTERS.known_as(changes.get("suggester", "")):
        parts = SUGGESTERS.reads.get(changes["suggester"], ())
        goals |= {field.name for part in parts for field in fields(part)}
    config = with_env_settings(stored, overrides, places, goals)
    # Of an object that was merged with the stored one a part may still be the run's.
    now = config.as_dict()
    merged = {
        name
        for name, value in stored.as_dict().items()
        if isinstance(value, dict) and any(now[name][key] == value[key] for key in value)
    }
    # Learning alone reads these two.
    learning: dict[str, Any] = {"wandb": False, "guide": None}
    config = as_played(config, changes).replace(**learning)
    check_outside(config, checkpoint["config"], path, trust, changes.keys() - merged)
    return config


def task_settings(config: Config, names: str) -> dict[str, Config]:
    """Return the settings to play single tasks, named with commas between them or "all", by task.

    Whole tasks are played. Of those that are only done by subgoals the last subgoal counts, and all
    are shown.

    Raises:
        UserError: there is no such task, or it has no end.
    """
    allowed = [name for name in TASKS if name != SURVIVAL]
    played: dict[str, Config] = {}
    for task in allowed if names == ALL else names.split(","):
        if task not in allowed:
            hint = " It is never completed" if task in TASKS else did_you_mean(task, TASKS)
            raise UserError(f"--tasks: '{task}' is none of {ALL}, {', '.join(allowed)}.{hint}")
        kind = REWARD_LAST if task in ONLY_BY_SUBGOALS else TASK
        changes = {"suggester": None, "single_task": task, "single_task_goals": kind}
        played[task] = config.replace(**cast(Any, changes))
    return played
