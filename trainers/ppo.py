"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347) of any agent.

The story of a run: collect a rollout, estimate advantages, update the agent, log, checkpoint.
"""

import dataclasses
import math
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from models.agent import Agent, Batch, Memory
from trainers.checkpoint import BEST, LAST, save_checkpoint
from trainers.evaluation import Episode
from trainers.losses import clipped_policy_loss, explained_variance, value_loss
from trainers.rollout import Rollout
from trainers.schedules import Schedule
from utils.config import Config
from utils.metrics import MetricsWriter
from utils.running_statistics import RunningMeanVariance

EPISODES_AVERAGED = 100
CHECKPOINT_SECONDS = 60


class Scene(NamedTuple):
    """Where the environments stand: what the agent is about to see.

    Attributes:
        observations: [N, C, H, W] uint8
        starts: Whether an episode begins with the observation.  [N] bool
        memory: What the agent remembers of the N episodes.
    """

    observations: Tensor
    starts: Tensor
    memory: Memory


class TrainingEnv(Protocol):
    """A Gymnasium vector environment in SAME_STEP mode whose statistics can be saved."""

    @property
    def num_envs(self) -> int:
        """N."""

    def reset(self, *, seed: int) -> tuple[np.ndarray, dict[str, Any]]:
        """Open an episode in every environment."""

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Return observations, rewards, terminated, truncated and info."""

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics."""


class Coefficients(NamedTuple):
    """The scheduled coefficients of one update."""

    learning_rate: float
    ent_coef: float
    clip_range: float


class Summary(NamedTuple):
    """What a finished run comes to."""

    env_steps: int
    seconds: float
    mean_return: float
    best_mean_return: float
    n_episodes: int

    def report(self, folder: Path) -> str:
        """Return what a person wants to know at the end of a run, and what to type next."""
        minutes, seconds = divmod(round(self.seconds), 60)
        return "\n".join(
            (
                "",
                f"  mean return       {self.mean_return:.3f} (best {self.best_mean_return:.3f})"
                f" over the last {EPISODES_AVERAGED} episodes",
                f"  episodes          {self.n_episodes:,}",
                f"  environment steps {self.env_steps:,}",
                f"  time              {minutes} min {seconds} s,"
                f" {self.env_steps / self.seconds:,.0f} steps/s",
                f"  run folder        {folder}",
                "",
                f"  play it           python eval.py --ckpt-path '{folder}'",
                f"  see the curves    tensorboard --logdir '{folder}'",
            )
        )


class PPOTrainer:
    """Trains one agent in one vector environment.

    Args:
        config: The settings of the run.
        agent: What is trained, known by the interface in models/agent.py alone.
        env: N environments that open the next episode in the step that ends one.
    """

    def __init__(self, config: Config, agent: Agent, env: TrainingEnv) -> None:
        self.config, self.agent, self.env = config, agent, env
        self.parameters = [p for p in agent.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=config.learning_rate, eps=1e-8, weight_decay=0.01, fused=True
        )
        self.schedules = _schedules(config)
        self.advantage_statistics = RunningMeanVariance()
        self.episodes: deque[Episode] = deque(maxlen=EPISODES_AVERAGED)
        self.env_steps = self.n_episodes = self.n_epochs_done = 0
        self.best_mean_return = -np.inf
        self._last_saved = -np.inf  # seconds of the process's clock

    def train(self, folder: Path) -> Summary:
        """Run to the configured number of environment steps, logging into a run folder."""
        begun = time.perf_counter()
        scene = self.first_scene()
        with MetricsWriter(folder) as writer, self._progress_bar() as bar:
            while self.env_steps < self.config.n_steps:
                rollout_begun = time.perf_counter()
                rollout, scene = self.collect(scene, bar)
                metrics = self.update(rollout)
                seconds = time.perf_counter() - rollout_begun
                metrics |= self._episode_metrics() | self.agent.metrics()
                metrics["time/fps"] = rollout.n_samples / seconds
                metrics["time/seconds"] = time.perf_counter() - begun
                writer.write(self.env_steps, metrics)
                self._checkpoint(folder, metrics["rollout/return_mean"])
                bar.set_postfix_str(f"return {metrics['rollout/return_mean']:.3f}")
        seconds = time.perf_counter() - begun
        return Summary(
            self.env_steps, seconds, self.mean_return, self.best_mean_return, self.n_episodes
        )

    def first_scene(self) -> Scene:
        """Open an episode in every environment, with an empty memory."""
        observations, _ = self.env.reset(seed=self.config.seed)
        starts = torch.ones(self.env.num_envs, dtype=torch.bool, device=self.agent.device)
        memory = self.agent.initial_memory(self.env.num_envs)
        return Scene(self._to_device(observations), starts, memory)

    def collect(self, scene: Scene, bar: tqdm | None = None) -> tuple[Rollout, Scene]:
        """Act for T steps and return what happened, and where the environments stand after it."""
        observations, starts, memory = scene
        rollout: Rollout | None = None
        for t in range(self.config.n_rollout_steps):
            step = self.agent.act(observations, memory, starts)
            if rollout is None:
                rollout = Rollout(self.config.n_rollout_steps, observations, step.context)
            rollout.store(t, observations, starts, step)

            after, rewards, terminated, truncated, info = self.env.step(step.actions.cpu().numpy())
            ended = terminated | truncated
            rollout.rewards[t] = self._to_device(rewards)
            rollout.continues[t] = self._to_device(~ended)
            if self.config.bootstrap_truncated and truncated.any():
                rollout.rewards[t] += self._value_at_time_limit(after, truncated, info, memory)

            self._note_episodes(ended, info)
            observations, starts = self._to_device(after), self._to_device(ended)
            self.env_steps += self.env.num_envs
            if bar is not None:
                bar.update(self.env.num_envs)
        assert rollout is not None, "n_rollout_steps is at least 1"
        bootstrap = self.agent.peek_values(observations, memory, starts)
        rollout.estimate(bootstrap, self.config.gamma, self.config.gae_lambda)
        return rollout, Scene(observations, starts, memory)

    def update(self, rollout: Rollout, permutations: Tensor | None = None) -> dict[str, float]:
        """Pass n_epochs times over a rollout and return what to log.

        Values are means over all minibatches; adv_mean and adv_std are the last minibatch's.

        Args:
            rollout: Collected, with its advantages estimated.
            permutations: Orders to use instead of random ones: of samples, or of sequences for a
                sequential agent.  [n_epochs, T*N or S]
        """
        now = self.coefficients(self.env_steps / self.config.n_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = now.learning_rate

        logged = []
        for epoch in range(self.config.n_epochs):
            permutation = None if permutations is None else permutations[epoch]
            for batch in self._minibatches(rollout, permutation):
                logged.append(self._learn(batch, now))
        self.n_epochs_done += self.config.n_epochs

        means = torch.stack([torch.stack(list(row.values())) for row in logged]).mean(0)
        metrics = dict(zip(logged[0], means.tolist(), strict=True))
        metrics |= {name: logged[-1][name].item() for name in ("train/adv_mean", "train/adv_std")}
        metrics |= {f"train/{name}": value for name, value in now._asdict().items()}
        metrics["train/n_updates"] = self.n_epochs_done
        if self.config.clip_range_vf is not None:
            metrics["train/clip_range_vf"] = self.config.clip_range_vf
        return metrics

    def coefficients(self, progress: float) -> Coefficients:
        """Return the scheduled coefficients after a share of the run."""
        return Coefficients(*(schedule.value(min(progress, 1.0)) for schedule in self.schedules))

    @property
    def mean_return(self) -> float:
        """Mean raw return of the last 100 episodes, zeros standing in until N have ended."""
        returns = [episode.episode_return for episode in self.episodes]
        return float(np.sum(returns) / max(len(returns), self.env.num_envs))

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint holds of the run."""
        return {
            "config": dataclasses.asdict(self.config),
            "agent": self.agent.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "env": self.env.state_dict(),
            "env_steps": self.env_steps,
            "episodes": [tuple(episode) for episode in self.episodes],
        }

    def _minibatches(self, rollout: Rollout, permutation: Tensor | None) -> Iterator[Batch]:
        if self.agent.sequential:
            if permutation is None:
                permutation = torch.randperm(len(rollout.sequences.firsts))
            return rollout.sequence_minibatches(permutation, self.config.sequences_per_batch)
        if permutation is None:
            permutation = torch.randperm(rollout.n_samples)
        size = rollout.n_samples // self.config.n_batches
        return rollout.minibatches(permutation.to(self.agent.device), size)

    def _learn(self, batch: Batch, now: Coefficients) -> dict[str, Tensor]:
        """Take one gradient step and return what to log of it, without waiting for the device."""
        config = self.config
        result = self.agent.evaluate(batch)
        advantages = self._normalized(batch.advantages)
        policy = clipped_policy_loss(result.log_probs, batch.log_probs, advantages, now.clip_range)
        critic = value_loss(result.values, batch.values, batch.returns, config.clip_range_vf)
        entropy = result.entropy.mean()
        loss = policy.loss + config.vf_coef * critic - now.ent_coef * entropy

        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, config.max_grad_norm)
        self.optimizer.step()
        return {
            "train/loss": loss.detach(),
            "train/policy_gradient_loss": policy.loss.detach(),
            "train/value_loss": critic.detach(),
            "train/entropy_loss": -entropy.detach(),
            "train/approx_kl": policy.approx_kl,
            "train/clip_fraction": policy.clip_fraction,
            "train/explained_variance": explained_variance(result.values.detach(), batch.returns),
            "train/adv_mean": batch.advantages.mean(),
            "train/adv_std": batch.advantages.std(),
        }

    def _normalized(self, advantages: Tensor) -> Tensor:
        """Return advantages [B] standardised, or divided by their running standard deviation."""
        if self.config.adv_norm:
            self.advantage_statistics.update(advantages.cpu())
            return advantages / (self.advantage_statistics.variance**0.5 + 1e-8)
        if len(advantages) < 2:  # one sample has no spread to divide by
            return advantages
        return (advantages - advantages.mean()) / (advantages.std() + 1e-8)

    def _value_at_time_limit(
        self, after: np.ndarray, truncated: np.ndarray, info: dict[str, Any], memory: Memory
    ) -> Tensor:
        """Return gamma times the value of the last observation where a time limit cut in, else 0.

        Added to the reward it stands for what the episode would still have brought.  [N]
        """
        last = after.copy()
        last[truncated] = np.stack(list(info["final_obs"][truncated]))
        no_starts = torch.zeros(len(after), dtype=torch.bool, device=self.agent.device)
        values = self.agent.peek_values(self._to_device(last), memory, no_starts)
        return self.config.gamma * values * self._to_device(truncated)

    def _note_episodes(self, ended: np.ndarray, info: dict[str, Any]) -> None:
        for n in np.flatnonzero(ended):
            episode = info["episode"]
            self.episodes.append(Episode(float(episode["r"][n]), int(episode["l"][n])))
            self.n_episodes += 1

    def _episode_metrics(self) -> dict[str, float]:
        lengths = [episode.length for episode in self.episodes]
        return {
            "rollout/return_mean": self.mean_return,
            "rollout/length_mean": float(np.mean(lengths)) if lengths else 0.0,
            "rollout/n_episodes": self.n_episodes,
        }

    def _checkpoint(self, folder: Path, mean_return: float) -> None:
        """Write the best checkpoint when the mean return improves, the last one now and then."""
        is_best = mean_return > self.best_mean_return
        self.best_mean_return = max(mean_return, self.best_mean_return)
        if not self.config.save_ckpt:
            return
        is_last = self.env_steps >= self.config.n_steps
        is_due = time.perf_counter() - self._last_saved > CHECKPOINT_SECONDS
        state = self.state_dict() if is_best or is_last or is_due else {}
        if is_best:
            save_checkpoint(folder / BEST, state)
        if is_last or is_due:
            save_checkpoint(folder / LAST, state)
            self._last_saved = time.perf_counter()

    def _progress_bar(self) -> tqdm:
        """Return a bar that ends with the rollout in which the configured steps are reached."""
        per_rollout = self.config.n_envs * self.config.n_rollout_steps
        total = math.ceil(self.config.n_steps / per_rollout) * per_rollout
        return tqdm(total=total, unit=" frames", unit_scale=True, dynamic_ncols=True)

    def _to_device(self, array: np.ndarray) -> Tensor:
        return torch.as_tensor(array, device=self.agent.device)


def _schedules(config: Config) -> tuple[Schedule, Schedule, Schedule]:
    """Return the schedules in the order of `Coefficients`."""
    n_updates = config.n_steps / (config.n_envs * config.n_rollout_steps)
    learning_rate = Schedule(
        config.lr_decay,
        config.learning_rate,
        config.min_lr,
        config.lr_decay_start,
        config.lr_decay_end,
        config.lr_decay_factor,
        n_updates,
    )
    entropy = Schedule(
        config.ent_decay,
        config.ent_coef,
        config.min_ent_coef,
        config.ent_decay_start,
        config.ent_decay_end,
        config.ent_decay_factor,
        n_updates,
    )
    return learning_rate, entropy, Schedule(config.clip_decay, config.clip_range)
