"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347) of any agent.

The story of a run: collect a rollout, estimate advantages, update the agent, log, checkpoint.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from models.agent import Agent, Batch, Memory
from trainers.checkpoint import check_weights
from trainers.evaluation import Episode
from trainers.guards import NotFiniteError, guarded
from trainers.interruption import Interruption
from trainers.keeper import Keeper
from trainers.losses import clipped_policy_loss, explained_variance, value_loss
from trainers.ranks import Ranks
from trainers.rollout import Rollout, Scene
from trainers.run_state import restore
from trainers.schedules import Coefficients, configured_schedules
from trainers.summary import Summary
from utils.config import Config
from utils.loggers import Media
from utils.metrics import MetricsWriter
from utils.run_folder import note_end, note_resumption
from utils.running_statistics import RunningMeanVariance

EPISODES_AVERAGED = 100
Showcase = Callable[[Rollout, bool], Media]


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
        """Return the statistics, and the running episodes where "resumable" is true."""

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Take over a saved state; return False where new episodes must be begun."""

    def share_statistics(self, rows: Callable[[Tensor], Tensor]) -> None:
        """Let running statistics take in the rows of all ranks, [n, ...] -> [N, ...]."""


class PPOTrainer:
    """Trains one agent in one vector environment.

    Args:
        config: The settings of the run.
        agent: What is trained, known by the interface in models/agent.py alone.
        env: N environments that open the next episode in the step that ends one.
        ranks: The processes that train together, each with N environments; None for this one alone.
        showcase: Told of every rollout and whether it is the last; returns what there is to show.
    """

    def __init__(
        self,
        config: Config,
        agent: Agent,
        env: TrainingEnv,
        ranks: Ranks | None = None,
        showcase: Showcase | None = None,
    ) -> None:
        self.config, self.agent, self.env, self.showcase = config, agent, env, showcase
        self.ranks = ranks or Ranks()
        self.ranks.unite(agent, env, config)
        self.n_envs = env.num_envs * self.ranks.size  # of all ranks
        self.parameters = [p for p in agent.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=config.learning_rate, eps=1e-8, weight_decay=0.01, fused=True
        )
        self.schedules = configured_schedules(config)
        self.advantage_statistics = RunningMeanVariance()
        self.episodes: deque[Episode] = deque(maxlen=EPISODES_AVERAGED)
        self.env_steps = self.n_episodes = self.n_epochs_done = 0
        self.best_mean_return = -np.inf
        self.seconds = 0.0
        self.scene: Scene | None = None
        self.rollout: Rollout | None = None  # while it is being collected

    def train(self, folder: Path) -> Summary:
        """Run to the configured number of environment steps, logging into a run folder.

        Raises:
            RunError: the run cannot go on.
            Interrupted: a signal ended it.
        """
        self.ranks.say(f"writing to {folder}")
        with (
            Interruption() as interruption,
            self._written(folder) as writer,
            self._progress_bar() as bar,
        ):
            keeper = Keeper(self, folder, writer, interruption)
            scene = self.scene or self.first_scene(self.config.seed)
            while self.env_steps < self.config.n_steps:
                begun = time.perf_counter()
                rollout, scene = self.collect(scene, bar, keeper.after_step)
                metrics = self.update(rollout)
                seconds = time.perf_counter() - begun
                self.seconds += seconds
                metrics |= self._episode_metrics() | self.agent.metrics()
                metrics["time/fps"] = rollout.n_samples * self.ranks.size / seconds
                metrics["time/seconds"] = self.seconds
                if writer is not None:
                    writer.write(self.env_steps, metrics)
                    self._show(rollout, writer)
                keeper.after_rollout(metrics["rollout/return_mean"])
                bar.set_postfix_str(f"return {metrics['rollout/return_mean']:.3f}")
        return self.summary()

    def summary(self) -> Summary:
        """Return what the run has come to so far."""
        return Summary(
            self.env_steps,
            self.seconds,
            self.mean_return,
            self.best_mean_return,
            self.n_episodes,
            EPISODES_AVERAGED,
        )

    def resume(self, folder: Path, checkpoint: dict[str, Any] | None) -> str:
        """Go on from a run's checkpoint, or from its beginning, and return a line to show.

        Raises:
            UserError: the checkpoint was made with other pretrained parts.
        """
        exactly = True
        if checkpoint is not None:
            check_weights(checkpoint, self.agent.fingerprints(), str(folder))
            exactly = restore(self, checkpoint, str(folder))
        if self.ranks.first:
            with guarded(folder):
                note_resumption(folder, self.env_steps, exactly)
        how = "exactly" if exactly else "in new episodes"
        return f"going on after {self.env_steps:,} steps, {how}"

    def first_scene(self, seed: int) -> Scene:
        """Open an episode in every environment, with an empty memory."""
        observations, _ = self.env.reset(seed=seed + self.ranks.rank * self.env.num_envs)
        starts = torch.ones(self.env.num_envs, dtype=torch.bool, device=self.agent.device)
        memory = self.agent.initial_memory(self.env.num_envs)
        return Scene(self._to_device(observations), starts, memory)

    def collect(
        self,
        scene: Scene,
        bar: tqdm | None = None,
        after_step: Callable[[], None] | None = None,
    ) -> tuple[Rollout, Scene]:
        """Act for T steps and return what happened, and where the environments stand after it.

        A rollout that a checkpoint cut is collected to its end.

        Args:
            scene: Where the environments stand.
            bar: Shows the progress.
            after_step: Called between steps; what it raises ends the rollout.
        """
        rollout = self.rollout
        for t in range(rollout.n_stored if rollout else 0, self.config.n_rollout_steps):
            rollout, scene = self._take_step(t, rollout, scene)
            self.scene, self.rollout = scene, rollout
            if bar is not None:
                bar.update(self.n_envs)
            if after_step is not None:
                after_step()
        assert rollout is not None, "n_rollout_steps is at least 1"
        self.rollout = None
        bootstrap = self.agent.peek_values(scene.observations, scene.memory, scene.starts)
        rollout.estimate(bootstrap, self.config.gamma, self.config.gae_lambda)
        return rollout, scene

    def update(self, rollout: Rollout, permutations: Tensor | None = None) -> dict[str, float]:
        """Pass n_epochs times over a rollout and return what to log.

        Values are means over all minibatches; adv_mean and adv_std are the last minibatch's.

        Args:
            rollout: Collected, with its advantages estimated.
            permutations: Orders to use instead of random ones: of samples, or of sequences for a
                sequential agent, those of all ranks.  [n_epochs, T*N or S]
        """
        now = self.coefficients(self.env_steps / self.config.n_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = now.learning_rate
        logged = []
        orders = []
        counts = self._counts(rollout)
        for epoch in range(self.config.n_epochs):
            if permutations is None:
                orders.append(self.ranks.from_first(torch.randperm(sum(counts))))
            else:
                orders.append(permutations[epoch])
            for batch in self._minibatches(rollout, orders[-1], counts):
                logged.append(self._learn(batch, now))
        self.n_epochs_done += self.config.n_epochs

        means = torch.stack([torch.stack(list(row.values())) for row in logged]).mean(0)
        metrics = dict(zip(logged[0], means.tolist(), strict=True))
        if not math.isfinite(metrics["train/loss"] + metrics["train/grad_norm"]):
            raise NotFiniteError(self._first_not_finite(rollout, orders, logged))
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
        return float(np.sum(returns) / max(len(returns), self.n_envs))

    def _take_step(self, t: int, rollout: Rollout | None, scene: Scene) -> tuple[Rollout, Scene]:
        """Act once in every environment and keep it as step t of the rollout, the first of a new.

        Returns:
            The rollout, and where the environments stand now.
        """
        observations, starts, memory = scene
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
        self.env_steps += self.n_envs
        return rollout, Scene(self._to_device(after), self._to_device(ended), memory)

    def _counts(self, rollout: Rollout) -> list[int]:
        """Return how many samples each rank has, or sequences for a sequential agent."""
        if self.agent.sequential:
            return self.ranks.counts(len(rollout.sequences.firsts))
        return [rollout.n_samples] * self.ranks.size

    def _minibatches(
        self, rollout: Rollout, permutation: Tensor, counts: list[int]
    ) -> Iterator[Batch]:
        """Yield what is here of every minibatch of a permutation, which covers all ranks."""
        if self.agent.sequential:
            parts = permutation.split(self.config.sequences_per_batch)
            return rollout.sequence_minibatches(self.ranks.own_parts(parts, counts))
        parts = permutation.to(self.agent.device).split(sum(counts) // self.config.n_batches)
        return rollout.minibatches(self.ranks.own_parts(parts, counts))

    def _first_not_finite(
        self, rollout: Rollout, orders: list[Tensor], logged: list[dict[str, Tensor]]
    ) -> dict[str, Any]:
        """Return the first minibatch whose loss or gradient was not finite, cut once more."""
        sums = torch.stack([row["train/loss"] + row["train/grad_norm"] for row in logged])
        first = int((~sums.isfinite()).nonzero()[0])
        epoch, number = divmod(first, len(logged) // len(orders))
        batch = list(self._minibatches(rollout, orders[epoch], self._counts(rollout)))[number]
        parts = self.ranks.gathered(batch._asdict() | {"images": batch.images.images})
        return {
            "env_steps": self.env_steps,
            "epoch": epoch,
            "number": number,
            "logged": logged[first],
            **(parts[0] if parts else {}),
            "other_ranks": parts[1:],
        }

    def _learn(self, batch: Batch, now: Coefficients) -> dict[str, Tensor]:
        """Take one gradient step and return what to log of it, without waiting for the device."""
        config = self.config
        result, batch = self.ranks.evaluate(self.agent, batch)
        advantages = self._normalized(batch.advantages)
        policy = clipped_policy_loss(result.log_probs, batch.log_probs, advantages, now.clip_range)
        critic = value_loss(result.values, batch.values, batch.returns, config.clip_range_vf)
        entropy = result.entropy.mean()
        loss = policy.loss + config.vf_coef * critic - now.ent_coef * entropy

        self.optimizer.zero_grad()
        loss.backward()
        self.ranks.sum_gradients(self.parameters)
        grad_norm = nn.utils.clip_grad_norm_(self.parameters, config.max_grad_norm)
        self.optimizer.step()
        return {
            "train/loss": loss.detach(),
            "train/grad_norm": grad_norm,
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
        if self.ranks.size == 1 and not ended.any():
            return
        nothing = {"r": np.zeros(len(ended)), "l": np.zeros(len(ended))}
        episode = info.get("episode", nothing)
        table = np.stack((ended, episode["r"], episode["l"]), 1).astype(np.float64)
        for has_ended, episode_return, length in self.ranks.rows(torch.from_numpy(table)).tolist():
            if has_ended:
                self.episodes.append(Episode(episode_return, int(length)))
                self.n_episodes += 1

    def _episode_metrics(self) -> dict[str, float]:
        lengths = [episode.length for episode in self.episodes]
        return {
            "rollout/return_mean": self.mean_return,
            "rollout/length_mean": float(np.mean(lengths)) if lengths else 0.0,
            "rollout/n_episodes": self.n_episodes,
        }

    @contextmanager
    def _written(self, folder: Path) -> Iterator[MetricsWriter | None]:
        """Open the logs, and note a run's end; None on all ranks but the first."""
        if not self.ranks.first:
            with self.ranks.quiet():
                yield None
            return
        with guarded(folder):
            with MetricsWriter(folder, self.config, self.env_steps) as writer:
                yield writer
            note_end(folder)

    def _show(self, rollout: Rollout, writer: MetricsWriter) -> None:
        if self.showcase is not None:
            is_last = self.env_steps >= self.config.n_steps
            writer.show(self.env_steps, self.showcase(rollout, is_last))

    def _progress_bar(self) -> tqdm:
        """Return a bar that ends with the rollout in which the configured steps are reached."""
        per_rollout = self.config.n_envs * self.config.n_rollout_steps
        total = math.ceil(self.config.n_steps / per_rollout) * per_rollout
        return tqdm(
            disable=not self.ranks.first,
            total=total,
            initial=self.env_steps,
            unit=" frames",
            unit_scale=True,
            dynamic_ncols=True,
        )

    def _to_device(self, array: np.ndarray) -> Tensor:
        return torch.as_tensor(array, device=self.agent.device)
