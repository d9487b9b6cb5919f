"""sb3-contrib's RecurrentPPO on our environments, beside which Impala-PPO is measured.

The same encoder, the same width of LSTM and heads, rollouts of the same size, as many epochs. Two
variants: one LSTM for both heads and minibatches of half a rollout, about what our eight sequences
are; or what sb3-contrib does unless told otherwise, an LSTM for each head and minibatches of 128.
"""

from typing import Any

import gymnasium
import numpy as np
import torch
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from envs import make_vector_env
from models.encoders import SmallImpalaCNN
from trainers.ppo import PpoSettings

WIDTH = 256
MINIBATCHES = 2


class ImpalaFeatures(BaseFeaturesExtractor):
    """The encoder of Impala-PPO."""

    def __init__(self, observation_space: gymnasium.spaces.Box) -> None:
        super().__init__(observation_space, WIDTH)
        self.encoder = SmallImpalaCNN(observation_space.shape, WIDTH, channels=(16, 32))

    def forward(self, images: Tensor) -> Tensor:
        """Map images in [0, 1], [N, C, H, W], to features [N, 256]."""
        return self.encoder.of_pixels(images)


class Sb3Environments(VecEnv):
    """Our vector environments under the interface of stable-baselines3."""

    def __init__(self, env: gymnasium.vector.VectorEnv) -> None:
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)
        self.env = env
        self._actions = np.zeros(env.num_envs, np.int64)

    def reset(self) -> np.ndarray:
        """Open an episode in every environment."""
        seed = self._seeds[0]
        self._reset_seeds()
        return self.env.reset(seed=seed)[0]

    def step_async(self, actions: np.ndarray) -> None:
        """Note the actions."""
        self._actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Take them."""
        observations, rewards, terminated, truncated, info = self.env.step(self._actions)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        ended = terminated | truncated
        for n in np.flatnonzero(ended):
            infos[n]["terminal_observation"] = info["final_obs"][n]
            infos[n]["TimeLimit.truncated"] = bool(truncated[n] and not terminated[n])
        return observations, rewards, ended, infos

    def close(self) -> None:
        """Close the environments."""
        self.env.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute, the same one for all."""
        return [getattr(self.env, attr_name, None)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Refuse: the environments are not separate objects."""
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> Any:
        """Refuse: the environments are not separate objects."""
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """Return that they are not."""
        return [False] * self.num_envs


def recurrent_ppo(config: PpoSettings, defaults: bool) -> RecurrentPPO:
    """Return the learner with the settings of a run.

    Args:
        config: The settings.
        defaults: Whether minibatches and LSTMs are sb3-contrib's defaults, not like ours.
    """
    torch.manual_seed(config.seed)
    half_a_rollout = config.n_envs * config.n_rollout_steps // MINIBATCHES
    batches: dict[str, Any] = {} if defaults else {"batch_size": half_a_rollout}
    lstms = {} if defaults else {"shared_lstm": True, "enable_critic_lstm": False}
    return RecurrentPPO(
        "CnnLstmPolicy",
        Sb3Environments(make_vector_env(config, config.seed)),
        learning_rate=config.learning_rate,
        n_steps=config.n_rollout_steps,
        n_epochs=config.n_epochs,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        ent_coef=config.ent_coef,
        device=config.device,
        seed=config.seed,
        policy_kwargs={
            "features_extractor_class": ImpalaFeatures,
            "lstm_hidden_size": WIDTH,
            "net_arch": {"pi": [128], "vf": [512]},
            "ortho_init": False,  # the encoder has its own start
            **lstms,
        },
        **batches,
    )
