"""Playing whole episodes without learning."""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from gymnasium.vector import VectorEnv

from models.agent import Agent, Memory, Step
from models.observations import Observations, Percept
from rewards.goals import OF_EVALUATION, as_played
from rewards.suggesters import SUGGESTERS
from runs.stored import check_outside
from settings import Config, outside_settings, read_settings, with_env_settings
from trainers.checkpoint import checkpoint_config
from trainers.narration import Narration, narrated, told_after, told_before
from utils.files import written_whole


class Episode(NamedTuple):
    """One finished episode.

    Attributes:
        episode_return: The sum of its rewards, as the environment pays them.
        length: In environment steps.
        success: Whether it succeeded; None where the environment does not say.
    """

    episode_return: float
    length: int
    success: bool | None = None


class Recording(NamedTuple):
    """An episode with everything that happened in it, step by step.

    Attributes:
        episode: Return, length L, and success where there is such a thing.
        steps: Arrays by name, [L, ...] each: what was seen before each action (observations: images
            or vectors; vectors beside images; text), actions, rewards, values, what the agent
            itself has to say of its observations, and what the environment says in words
            (trainers/narration.py), as the goals suggested before each action.
        details: More of them, for looking at: probabilities [L, A], overviews [L, H, W, 3] where
            the environment can be drawn, and what `Agent.inspect` returns. Empty unless asked for.
    """

    episode: Episode
    steps: dict[str, np.ndarray]
    details: dict[str, np.ndarray]

    def with_steps(self, more: dict[str, np.ndarray]) -> "Recording":
        """Return the recording with more arrays of its steps."""
        return self._replace(steps=self.steps | more)

    def save(self, path: Path) -> None:
        """Write an .npz of the steps that NumPy reads without pickle, whole or not at all."""
        arrays = io.BytesIO()  # NumPy cannot end a file that no more fits into
        np.savez_compressed(arrays, allow_pickle=False, **self.steps)
        with written_whole(path) as file:
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

    Counting shares instead of taking whichever episodes end first keeps short episodes from being
    over-represented.
    """
    observations, info = env.reset(seed=seed)
    memory = agent.initial_memory(env.num_envs)
    percept = Percept.first(agent.read(observations))
    running: list[list[dict[str, np.ndarray]]] = [[] for _ in range(env.num_envs)]
    said: list[Narration] = [[] for _ in range(env.num_envs)]
    missing = np.full(env.num_envs, n_episodes // env.num_envs)
    missing[: n_episodes % env.num_envs] += 1
    while missing.any():
        details = _details(agent, env, percept, memory) if in_detail else {}
        step = agent.act(percept, memory, deterministic)
        if in_detail and step.all_log_probs is not None:
            details["probabilities"] = step.all_log_probs.exp().cpu().numpy()
        told = told_before(info, env.num_envs)
        rows = {**_seen(percept.observations, agent), **_rows(step), **agent.explain(percept)}
        observations, rows["rewards"], terminated, truncated, info = env.step(rows["actions"])
        ended = terminated | truncated
        percept = Percept.after(agent.read(observations), step.actions, rows["rewards"], ended)
        came_of_it = told_after(info, env.num_envs)
        for n in np.flatnonzero(missing):
            running[n].append({name: values[n] for name, values in (rows | details).items()})
            said[n].append(told[n] | came_of_it[n])
        for n in np.flatnonzero(ended & (missing > 0)):
            recording = _recording(info["episode"], int(n), running[n], names=rows)
            yield recording.with_steps(narrated(said[n]))
            running[n], said[n] = [], []
        missing -= ended & (missing > 0)


def _details(
    agent: Agent, env: VectorEnv, percept: Percept, memory: Memory
) -> dict[str, np.ndarray]:
    """Return what there is to look at before the agent acts on what it has seen.  [N, ...]"""
    details = agent.inspect(percept, memory)
    if env.render_mode == "rgb_array":
        details["overviews"] = np.stack(cast(tuple[np.ndarray, ...], env.render()))
    return details


def _seen(observations: Observations, agent: Agent) -> dict[str, np.ndarray]:
    """Return what N environments show, under the names it is kept by.  [N, ...]"""
    images, vectors, text = observations
    seen = {}
    if images is not None:
        seen["observations"] = images.cpu().numpy()
    if vectors is not None:
        seen["vectors" if seen else "observations"] = vectors.cpu().numpy()
    if text is not None:
        seen["text"] = agent.reader.sentences.texts(text)
    return seen


def _rows(step: Step) -> dict[str, np.ndarray]:
    """Return what is kept of every step.  [N]"""
    rows = {"actions": step.actions.cpu().numpy()}
    return rows if step.values is None else rows | {"values": step.values.cpu().numpy()}


def _recording(
    statistics: dict[str, np.ndarray],
    n: int,
    steps: list[dict[str, np.ndarray]],
    names: Iterable[str],
) -> Recording:
    """Return the episode that environment n has ended; `names` are those of no detail."""
    success = bool(statistics["success"][n]) if "success" in statistics else None
    episode = Episode(float(statistics["r"][n]), int(statistics["l"][n]), success)
    arrays = _stacked(steps)
    return Recording(episode, {name: arrays.pop(name) for name in names}, arrays)


def _stacked(steps: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the arrays of L steps as arrays [L, ...]."""
    return {name: np.stack([step[name] for step in steps]) for name in steps[0]}


def played_config(
    checkpoint: Mapping[str, Any], path: Path, trust: bool, overrides: Sequence[str] = ()
) -> Config:
    """Return the settings of a checkpoint as its agent is played.

    Args:
        checkpoint: As loaded.
        path: Of its file.
        trust: Whether its run is trusted, whoever has begun it.
        overrides: KEY=VALUE texts, of what an evaluation may change.

    Raises:
        UserError: they are wrong, or lead outside and the run is not to be trusted.
    """
    stored = checkpoint_config(checkpoint, path, trust)
    changes = dict(text.split("=", 1) for text in overrides if "=" in text)
    places, goals = read_settings(stored).intersection(outside_settings()), set(OF_EVALUATION)
    if SUGGESTERS.known_as(changes.get("suggester", "")):
        parts = SUGGESTERS.find(changes["suggester"]).reads
        goals |= {field.name for part in parts for field in fields(part)}
    config = with_env_settings(stored, overrides, places, goals)
    alone = {"wandb": False, "guide": None}  # what learning alone reads
    config = replace(as_played(config, changes), **cast(dict[str, Any], alone))
    check_outside(config, checkpoint["config"], path, trust, changes)
    return config
