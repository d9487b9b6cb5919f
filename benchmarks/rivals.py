"""stable-baselines3 on our environments, beside which agents without language are measured.

Encoder, widths, rollouts and epochs are the same. RecurrentPPO has one LSTM for both heads and
minibatches of half a rollout, or an LSTM for each head and minibatches of 128, its defaults.
"""

from typing import Any, cast

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from stable_baselines3 import PPO
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from models.baselines import N_FEATURES_NO_MEMORY, N_FEATURES_NO_MEMORY_NO_IMAGES
from models.encoders import LARGE, SMALL, build_encoder
from models.observations import ObservationPreprocessor
from models.settings import DEFAULT_ENCODER, EncoderSettings
from trainers.collector import stacked
from trainers.settings import PpoSettings
from utils.environments import Environments
from utils.errors import UserError

WIDTH = 256  # of features before an LSTM, and of the LSTM
# Settings that both libraries call so.
SAME = ("learning_rate", "n_epochs", "gamma", "gae_lambda", "ent_coef", "device", "seed")

QUIET = Logger(folder=None, output_formats=[])  # its own would leave empty folders


class OurFeatures(BaseFeaturesExtractor):
    def __init__(self, observation_space: spaces.Space, before_lstm: bool) -> None:
        reader = ObservationPreprocessor(observation_space)
        alone = N_FEATURES_NO_MEMORY if reader.image_shape else N_FEATURES_NO_MEMORY_NO_IMAGES
        width = WIDTH if before_lstm else alone
        super().__init__(observation_space, width)
        channels = SMALL if before_lstm else LARGE
        config = EncoderSettings(
            normalize_observations=False,
            sentence_encoder=DEFAULT_ENCODER,
            observation_cache_mb=0,
            last_action_input=False,
            last_reward_input=False,
            state_dependent_std=False,
        )
        self.encoder: Any = build_encoder(reader, config, width, channels)
        self.sees_images = reader.image_shape is not None

    def forward(self, observations: Tensor) -> Tensor:
        """Map images in [0, 1], [N, C, H, W], or numbers [N, F] to features [N, width]."""
        encoder = self.encoder
        return (encoder.of_pixels if self.sees_images else encoder.layers)(observations)


class Sb3Environments(VecEnv):
    """Our vector environments under the interface of stable-baselines3."""

    def __init__(self, env: gymnasium.vector.VectorEnv) -> None:
        space = env.single_observation_space
        self._reader = ObservationPreprocessor(space) if isinstance(space, spaces.Dict) else None
        if self._reader is not None:
            space = spaces.Box(-np.inf, np.inf, (self._reader.n_numbers,), np.float32)
        super().__init__(env.num_envs, space, env.single_action_space)
        self.env = env

    def reset(self) -> np.ndarray:
        seed = self._seeds[0]
        self._reset_seeds()
        return self._shown(self.env.reset(seed=seed)[0])

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        observations, rewards, terminated, truncated, info = self.env.step(self._actions)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        ended = terminated | truncated
        if ended.any():
            last = self._shown(stacked(info["final_obs"][ended]))
        for row, n in enumerate(np.flatnonzero(ended)):
            infos[n]["terminal_observation"] = last[row]
            infos[n]["TimeLimit.truncated"] = bool(truncated[n] and not terminated[n])
        return self._shown(observations), rewards, ended, infos

    def close(self) -> None:
        self.env.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self.env, attr_name, None)] * self.num_envs

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs

    def env_method(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError  # the environments are not separate objects

    set_attr = env_method

    def _shown(self, observations: Any) -> np.ndarray:
        if self._reader is None:
            return observations
        return cast(Tensor, self._reader(observations).vectors).numpy()


def readable(name: str, config: PpoSettings, env: Environments) -> ObservationPreprocessor:
    """Return the reader of the observations; UserError if a rival cannot see them."""
    space = env.single_observation_space
    reader = ObservationPreprocessor(space)
    if isinstance(space, spaces.Dict) and (reader.image_shape or reader.n_texts):
        raise UserError(f"{name} sees an image or numbers here, and {config.env} shows {space}")
    return reader


def rival(name: str, config: PpoSettings, env: Environments) -> PPO | RecurrentPPO:
    """Return PPO, RecurrentPPO or RecurrentPPO-default; UserError if it cannot see observations."""
    torch.manual_seed(config.seed)
    reader = readable(name, config, env)
    n_samples = config.n_envs * config.n_rollout_steps
    widths: dict[str, Any] = {"lstm_hidden_size": WIDTH}
    batch_size, own = {
        "PPO": (n_samples // config.n_batches, {}),
        "RecurrentPPO": (
            n_samples // 2,
            widths | {"shared_lstm": True, "enable_critic_lstm": False},
        ),
        "RecurrentPPO-default": (128, widths),
    }[name]
    recurrent = name != "PPO"
    kind = "Cnn" if reader.image_shape else "Mlp"
    learner = (RecurrentPPO if recurrent else PPO)(
        f"{kind}{'LstmPolicy' if recurrent else 'Policy'}",
        Sb3Environments(env),
        batch_size=batch_size,
        n_steps=config.n_rollout_steps,
        **{name: getattr(config, name) for name in SAME},
        policy_kwargs={
            "features_extractor_class": OurFeatures,
            "features_extractor_kwargs": {"before_lstm": recurrent},
            "net_arch": {"pi": [128], "vf": [512]},
            "ortho_init": False,  # the encoder has its own start
            **own,
        },
    )
    learner.set_logger(QUIET)
    return learner
