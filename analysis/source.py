"""Episodes to be analysed, played or recorded, and an agent that looks at them."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Space, Text, flatdim
from gymnasium.vector import VectorEnv

from models import agent_class, build_agent, resolve_device
from models.agent import Agent
from models.baselines import RandomAgent
from models.helm import LanguageMemory
from models.memories import TrainedMemory
from models.observations import AgentInput, ObservationPreprocessor
from trainers.build import open_env, player_config, restored_agent
from trainers.checkpoint import find_checkpoint, load_checkpoint
from trainers.evaluation import evaluate, played_config, recorded_input
from utils.errors import UserError
from utils.given_settings import load_config
from utils.seeding import N_TOGETHER, evaluation_seed, seed_everything
from utils.settings import Config
from utils.user_modules import imported, is_named, parts_of

NOTHING = np.empty(0)


class AgentSource:
    """Episodes and an agent, each loaded when first asked for.

    The agent is a checkpoint's, or an untrained one of the settings: its frozen parts are the same.
    The episodes are the named files, else played by the checkpoint's agent, else at random.

    Args:
        paths: A run folder or checkpoint, episode files (.npz) or folders of them; both, or none.
        settings: A settings file, for an agent without checkpoint.
        overrides: KEY=VALUE, for an agent without checkpoint.
        n_episodes: How many to play, where none are named.
        seed: Of all episodes and random draws.
        trust: Whether a run begun elsewhere is trusted.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        settings: Path | None = None,
        overrides: Sequence[str] = (),
        n_episodes: int = 1,
        seed: int = 0,
        trust: bool = False,
    ) -> None:
        self.settings, self.overrides = settings, overrides
        self.n_episodes, self.seed, self.trust = n_episodes, seed, trust
        self.env_seed = evaluation_seed(seed)
        self.files = [file for path in paths for file in _episode_files(path)]
        others = [path for path in paths if not _episode_files(path)]
        if len(others) > 1:
            raise UserError(f"{others[1]}: a second run beside {others[0]}. Name one run")
        self.checkpoint = find_checkpoint(others[0], "SOURCE") if others else None
        if self.checkpoint and (settings or overrides):
            raise UserError(f"--config, --var: not for {others[0]}, which has its own settings")
        seed_everything(seed)

    @property
    def names_an_agent(self) -> bool:
        return bool(self.checkpoint or self.settings or self.overrides)

    @cached_property
    def config(self) -> Config:
        if self.checkpoint:
            config = played_config(self._state, self.checkpoint, self.trust)
        else:
            config = load_config(self.settings, self.overrides)
            agent_class(config.model).check(config)
        n_envs = min(self.n_episodes, N_TOGETHER)
        device = resolve_device("auto" if self.checkpoint else config.device)
        return config.replace(device=device, n_envs=n_envs)

    @cached_property
    def agent(self) -> Agent:
        if not self.checkpoint:
            return build_agent(self.config, *_spaces(self.episodes)).eval()
        with open_env(self.config, self.env_seed) as env:
            if self.files:
                self._check_made_for(env)
            return restored_agent(self.config, env, self._state, self.checkpoint)

    @property
    def language(self) -> LanguageMemory:
        language = self.agent.frozen_memory
        if language is None:
            remedy = "Name a run of HELM, HELMv2 or SHELM, or none and --var model=HELM"
            raise UserError(f"{self.config.model} has no language model. {remedy}")
        return language

    @cached_property
    def episodes(self) -> list[dict[str, np.ndarray]]:
        """Each episode's arrays by name, [L, ...]; all images have one size."""
        if not self.files:
            return self._played()
        episodes = [_read(file) for file in self.files]
        shapes = [episode["observations"].shape[1:] for episode in episodes]
        for file, shape in zip(self.files, shapes, strict=True):
            if shape != shapes[0]:
                raise UserError(
                    f"{file}: images of {_size(shape)}, and {self.files[0]} has images of "
                    f"{_size(shapes[0])}. Name episodes of one environment"
                )
        return episodes

    @cached_property
    def inputs(self) -> list[AgentInput]:
        """The agent's inputs at the steps of each episode; of its own with the tokens it read."""
        n_texts = self.agent.reader.n_texts
        for arrays in self.episodes:
            text = arrays.get("text", np.empty((len(arrays["actions"]), 0)))
            if text.shape != (len(text), n_texts):
                found = f"texts of {_size(text.shape)}, where the agent reads {n_texts} a step"
                raise UserError(f"episodes: {found}. Name episodes of its environment")
        return [recorded_input(self.agent, arrays) for arrays in self.episodes]

    def images(self, most: int) -> np.ndarray:
        """Return up to `most` different observations of the episodes.  [B, C, H, W] uint8"""
        seen = np.concatenate([episode["observations"] for episode in self.episodes])
        distinct = np.unique(seen, axis=0)  # equal images have a distance of 0, always
        if len(distinct) <= most:
            return distinct
        return distinct[np.random.default_rng(self.seed).choice(len(distinct), most, False)]

    def _check_made_for(self, env: VectorEnv) -> None:
        there = env.single_action_space
        size = ObservationPreprocessor(env.single_observation_space).image_shape
        for file, episode in zip(self.files, self.episodes, strict=True):
            shape, own = episode["observations"].shape[1:], _actions([episode])
            is_fewer = flatdim(own) <= flatdim(there) and type(own) is type(there) is Discrete
            if shape != size or not (is_fewer or own == there):
                raise UserError(
                    f"{file}: images of {_size(shape)} and actions of {own}, and "
                    f"{self.config.env}, where {self.checkpoint} was trained, has images of "
                    f"{_size(size or ())} and actions of {there}. "
                    "Name episodes of that environment"
                )

    @cached_property
    def _state(self) -> dict[str, Any]:
        assert self.checkpoint is not None, "only a checkpoint has a state"
        return load_checkpoint(self.checkpoint)

    def _played(self) -> list[dict[str, np.ndarray]]:
        with open_env(self.config, self.env_seed) as env:
            # Frozen parts say the same of any episode, so a random agent serves for untrained ones.
            random = RandomAgent(env.single_observation_space, env.single_action_space)
            player = self.agent if self.checkpoint else random.to(self.config.device)
            # In detail it says what it has read, which it might read otherwise again.
            has_read = player.frozen_memory is not None
            played = evaluate(player, env, self.n_episodes, seed=self.env_seed, in_detail=has_read)
            episodes = [recording.steps | recording.details for recording in played]
        if "observations" not in episodes[0]:
            raise UserError(f"{self.config.env}: it shows text alone. Choose another environment")
        return episodes


def named_agent(name: str, overrides: Sequence[str], trust: bool) -> Agent:
    """Return the agent of a run or checkpoint, or an untrained one of a model or with a memory."""
    path, state = Path(name), None
    if path.exists():
        path = find_checkpoint(path, "NAME")
        state = load_checkpoint(path)
        config = player_config(state, path, 1, "cpu", trust, overrides)
    else:
        config = load_config(None, [f"model={_with_agent(name)}", *overrides])
        agent_class(config.model).check(config)
        config = config.replace(device="cpu", n_envs=1)
    seed_everything(config.seed)
    with open_env(config, config.seed) as env:
        if state is not None:
            return restored_agent(config, env, state, path)
        return build_agent(config, env.single_observation_space, env.single_action_space)


def _with_agent(name: str) -> str:
    if not is_named(name):
        return name
    module, memory = parts_of("model", name)
    members = vars(imported("model", module))
    kind = members.get(memory)
    if not (isinstance(kind, type) and issubclass(kind, TrainedMemory)):
        return name
    for key, each in members.items():
        if isinstance(each, type) and issubclass(each, Agent) and each.memory_class is kind:
            return f"{module}:{key}"
    raise UserError(f"model: no agent of {module} has the memory_class {memory}. Write one there")


def _episode_files(path: Path) -> list[Path]:
    if path.suffix == ".npz":
        return [path]
    return sorted(path.glob("*.npz")) if path.is_dir() else []


def _read(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise UserError(f"{path}: no such file. Name episodes that eval.py saved, or their folder")
    try:
        with np.load(path, allow_pickle=False) as arrays:  # a pickle may run any code
            episode = dict(arrays)
    except Exception as error:  # NumPy documents no set of exceptions for a bad file
        reason = f"{path}: not readable as an episode: {error}"
        raise UserError(reason.splitlines()[0]) from None
    observations, actions = (episode.get(name, NOTHING) for name in ("observations", "actions"))
    if observations.dtype != np.uint8 or observations.ndim != 4 or not observations.size:
        raise UserError(f"{path}: not an episode of eval.py, it has no observations")
    is_vector = actions.ndim == 2 and actions.dtype.kind == "f" and np.isfinite(actions).all()
    is_number = actions.ndim == 1 and actions.dtype.kind == "i"
    if not (is_vector or is_number) or len(actions) != len(observations):
        raise UserError(f"{path}: not an episode of eval.py, it has no actions of its steps")
    return episode


def _size(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _spaces(episodes: Sequence[dict[str, np.ndarray]]) -> tuple[Space, Space]:
    shape = episodes[0]["observations"].shape[1:]
    image: Space = Box(0, 255, shape, np.uint8)
    if "text" in episodes[0]:
        n_texts = episodes[0]["text"].shape[-1]
        image = Dict({"image": image, **{f"text{n}": Text(1) for n in range(n_texts)}})
    return image, _actions(episodes)


def _actions(episodes: Sequence[dict[str, np.ndarray]]) -> Space:
    first = episodes[0]["actions"]
    if first.ndim == 2:
        return Box(-1, 1, first.shape[1:])
    return Discrete(1 + max(int(episode["actions"].max()) for episode in episodes))
