"""TorchRL's recurrent PPO on our environments, joined as its guide to recurrent states joins it.

Widths, rollouts, epochs, losses' weights are ours; a minibatch is half the environments' rollout.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import Tensor, nn
from torch.distributions import Categorical
from torchrl.collectors import Collector
from torchrl.data import Categorical as Numbered
from torchrl.data import Composite, Unbounded
from torchrl.envs import EnvBase
from torchrl.modules import LSTMModule, ProbabilisticActor, ValueOperator, set_recurrent_mode
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from benchmarks.rivals import WIDTH, OurFeatures, readable
from models import resolve_device
from models.caching import to_float01
from models.encoders import mlp
from models.observations import ObservationPreprocessor
from trainers.collector import stacked
from trainers.settings import PpoSettings
from utils.environments import Environments
from utils.errors import UserError


class TorchRlEnvironments(EnvBase):
    """Our vector environments, which reset themselves, under the interface of TorchRL."""

    def __init__(self, env: Environments) -> None:
        n_envs = env.num_envs
        super().__init__(device="cpu", batch_size=[n_envs])
        self.env, self.reader = env, ObservationPreprocessor(env.single_observation_space)
        shape, dtype = self.reader.image_shape, torch.uint8
        if shape is None:
            shape, dtype = (self.reader.n_numbers,), torch.float32
        shown = Unbounded((n_envs, *shape), dtype=dtype)
        self.observation_spec = Composite(observation=shown, shape=(n_envs,))
        self.action_spec = Numbered(spaces.flatdim(env.single_action_space), shape=(n_envs,))
        self.reward_spec = Unbounded((n_envs, 1))
        self.begun = torch.empty(0)  # what the environments show after their own resets

    def _set_seed(self, seed: int | None) -> None:
        self.first_seed = seed

    def _reset(self, tensordict: TensorDict | None, **options: Any) -> TensorDict:
        if tensordict is None or tensordict.get("_reset", None) is None:
            self.begun = self._shown(self.env.reset(seed=self.first_seed)[0])
        return TensorDict({"observation": self.begun}, self.batch_size)

    def _step(self, tensordict: TensorDict) -> TensorDict:
        actions = tensordict["action"].numpy()
        observations, rewards, terminated, truncated, info = self.env.step(actions)
        self.begun = shown = self._shown(observations)
        ended = terminated | truncated
        if ended.any():
            shown = self.begun.clone()
            shown[torch.as_tensor(ended)] = self._shown(stacked(info["final_obs"][ended]))
        paid = rewards.astype(np.float32)
        told = {"reward": paid, "done": ended, "terminated": terminated}
        columns = {name: torch.tensor(each)[:, None] for name, each in told.items()}
        return TensorDict({"observation": shown, **columns}, self.batch_size)

    def _shown(self, observations: Any) -> Tensor:
        # A copy: environments may write the next ones into the same array.
        return self.reader(observations).any().clone()


class Features(OurFeatures):
    def forward(self, observations: Tensor) -> Tensor:
        """Map images in bytes, [..., C, H, W], or numbers [..., F] to features [..., width]."""
        if not self.sees_images:
            return super().forward(observations)
        flat = super().forward(to_float01(observations.flatten(end_dim=-4)))
        return flat.unflatten(0, observations.shape[:-3])


class TorchRlPpo:
    def __init__(self, name: str, config: PpoSettings, env: Environments) -> None:
        readable(name, config, env)
        if not isinstance(env.single_action_space, spaces.Discrete):
            raise UserError(f"{name} takes discrete actions, and {config.env} has others")
        torch.manual_seed(config.seed)
        device = resolve_device(config.device)
        features = Features(env.single_observation_space, before_lstm=True)
        n_actions = spaces.flatdim(env.single_action_space)
        memory = TensorDictSequential(
            TensorDictModule(features, in_keys=["observation"], out_keys=["features"]),
            LSTMModule(WIDTH, WIDTH, in_key="features", out_key="memory"),
        )
        logits = TensorDictModule(
            mlp(WIDTH, 128, n_actions), in_keys=["memory"], out_keys=["logits"]
        )
        values = ValueOperator(mlp(WIDTH, 512, 1), in_keys=["memory"]).to(device)
        actor = ProbabilisticActor(
            TensorDictSequential(memory, logits),
            in_keys=["logits"],
            distribution_class=Categorical,
            return_log_prob=True,
        ).to(device)
        self.config, self.num_timesteps = config, 0
        environments = TorchRlEnvironments(env)
        environments.set_seed(config.seed)
        self.collector = Collector(
            environments,
            actor,
            frames_per_batch=config.n_envs * config.n_rollout_steps,
            policy_device=device,
            storing_device=device,
            auto_register_policy_transforms=True,
        )
        self.advantages = GAE(
            gamma=config.gamma,
            lmbda=config.gae_lambda,
            value_network=TensorDictSequential(memory, values),
            deactivate_vmap=True,  # an LSTM cannot be mapped over
            device=device,
        )
        # The values are of what the actor's LSTM, run just before, has put out.
        self.loss = ClipPPOLoss(
            actor,
            values,
            clip_epsilon=config.clip_range,
            entropy_coeff=config.ent_coef,
            critic_coeff=config.vf_coef,
            loss_critic_type="l2",
            normalize_advantage=True,
            # The critic's gradient stops before the LSTM, as in RecurrentPPO: CartPole is not
            # learned in 50,000 steps otherwise.
            separate_losses=True,
        )
        self.optimizer = torch.optim.Adam(self.loss.parameters(), config.learning_rate)

    def learn(self, n_steps: int, callback: Callable[[], object]) -> None:
        for rollout in self.collector:  # [N, T]
            self.update(rollout)
            self.num_timesteps += rollout.numel()
            callback()
            if self.num_timesteps >= n_steps:
                break
        self.collector.shutdown(close_env=False)

    def update(self, rollout: TensorDict) -> None:
        config = self.config
        with set_recurrent_mode(True), torch.no_grad():
            self.advantages(rollout)
        for _ in range(config.n_epochs):
            for rows in torch.randperm(config.n_envs).split(max(1, config.n_envs // 2)):
                losses = self.loss(rollout[rows])
                loss = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.loss.parameters(), config.max_grad_norm)
                self.optimizer.step()
