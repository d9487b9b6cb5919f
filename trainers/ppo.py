"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347) of any actor-critic agent.

Fill a rollout of T steps, estimate advantages, pass over it a few times in minibatches.
"""

import logging
import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from models.agent import ActorCriticAgent, Agent, Batch, Evaluation, Memory, Step
from models.observations import AgentInput, ObservationBatch, RunningMeanVariance
from models.settings import SequenceSettings
from trainers.learner import Learner, Transition
from trainers.rollout import ContextWindow, Rollout, check_rollout_fits
from trainers.settings import MOST_SAMPLES, PpoSettings, ScheduleSettings
from utils.cuda_graphs import CheckedGraph
from utils.errors import NotFiniteError
from utils.saved_state import check_steps, load_moments, moments, moments_of

log = logging.getLogger(__name__)


class Coefficients(NamedTuple):
    """Numbers, or where the step is a CUDA graph float32 tensors []."""

    learning_rate: float | Tensor
    ent_coef: float | Tensor
    clip_range: float | Tensor


class PPO(Learner):
    """Trains one agent on the rollouts it collects itself.

    Attributes:
        rollout: The steps since the last update; None before the first of them.
        past: Steps before the rollout that a GPT reads again.
    """

    reads = (PpoSettings,)
    takes_reward = True
    recordable = True
    default_optimizer = torch.optim.AdamW
    agent: ActorCriticAgent

    def __init__(self, config: PpoSettings, agent: ActorCriticAgent, *joined: Any) -> None:
        super().__init__(config, agent, *joined)
        self.parameters = [p for p in agent.parameters() if p.requires_grad]
        n_envs, shape = self.ranks.part_of(config.n_envs), agent.reader.image_shape
        # Before the rollout is allocated: a machine out of memory names no setting.
        check_rollout_fits(n_envs, config.n_rollout_steps, shape, config.device)
        self.optimizer = self.new_optimizer(self.parameters, config.learning_rate)
        # A whole number but for the last rollout, which may be longer than the rest of the run.
        self.n_updates = config.n_steps / (config.n_envs * config.n_rollout_steps)
        self.advantage_statistics = RunningMeanVariance()
        self.n_epochs_done = 0
        self.rollout: Rollout | None = None
        self.past: ContextWindow | None = None
        self._memory_is_stale = self._has_noticed = False
        self._choose = CheckedGraph("acting", agent.choose)
        self._step = CheckedGraph(
            "updates",
            lambda shown, others, now: self._learn(
                Batch(ObservationBatch(shown), *others), Coefficients(*now.unbind())
            ),
            lambda: [self.parameters, *moments_of([self.optimizer])],
        )

    @staticmethod
    def validate_config(config: PpoSettings, agent: type[Agent]) -> list[str]:
        n_envs, n_steps, n_batches = config.n_envs, config.n_rollout_steps, config.n_batches
        samples, problems = n_envs * n_steps, impossible_decays(config)
        if samples > MOST_SAMPLES:
            problems.append(
                f"n_rollout_steps: a rollout of {n_envs} x {n_steps} samples is larger than "
                f"{MOST_SAMPLES}"
            )
        # Sequences are counted by sequences_per_batch, and the last minibatch may have fewer.
        if samples % n_batches and not agent.sequential:
            problems.append(
                f"n_batches: a rollout of {n_envs} x {n_steps} = {samples} samples cannot be cut "
                f"into {n_batches} equal minibatches; choose a divisor of {samples}"
            )
        return problems

    @property
    def update_due(self) -> bool:
        return self.rollout is not None and self.rollout.is_full

    def act(self, percept: AgentInput, memory: Memory) -> Step:
        # Sampling from the policy is all the exploration there is.
        if self._memory_is_stale and self.past is not None:
            # Keys and values of its last steps come from the weights before the update.
            self.agent.refresh(*self.past, memory)
        self._memory_is_stale = False
        if self.may_record:
            stored_state, read = self.agent.recall(percept, memory)
            return self._choose(stored_state, percept.observations)._replace(read=read)
        return self.agent.act(percept, memory)

    def observe(self, transition: Transition) -> None:
        if self.rollout is None:
            # The first step shows kinds, shapes and types of what is stored.
            self.rollout = Rollout(
                self.config.n_rollout_steps,
                transition.percept.observations,
                transition.step.stored_state,
                self.past,
                keeps_following=self.reward is not None,
                keeps_states_after=self.reward is not None and self.reward.reads_stored_state,
                action_shape=self.agent.reader.action_shape,
            )
        rollout, t, following = self.rollout, self.rollout.n_stored, transition.following
        if self.scaling is not None:  # by the statistics of this step, as published
            scaled = self.scaling.scaled(transition.rewards)
            transition = transition._replace(rewards=scaled)
        rollout.store(transition)
        if self.config.bootstrap_truncated and (cut_off := transition.cut_off).any():
            # The value stands for the rest of the episode.
            values, _ = self._ahead(following, transition.memory)
            rollout.beyond[t] = self.config.gamma * values * cut_off
        at_ends = rollout.stored_states_at_ends
        if at_ends is not None and (rollout.is_full or transition.ended.any()):
            # Everywhere else the next step has it.
            _, at_ends[t] = self._ahead(following, transition.memory)
        if rollout.is_full:
            # V(s_T) closes the sums of episodes that go on. Of one that has ended `continues` is 0.
            rollout.bootstrap, _ = self._ahead(transition.after, transition.memory)

    def notice(self, mean_length: float) -> None:
        # Of a GPT the steps before the rollout are read again, with gradients; a frozen memory has
        # none to cut off.
        n_steps, agent = self.config.n_rollout_steps, self.agent
        cuts = agent.sequential and not agent.n_context
        if self._has_noticed or not cuts or mean_length <= n_steps:
            return
        self._has_noticed = True
        log.warning(
            f"n_rollout_steps: episodes have {mean_length:,.0f} steps on average, rollouts "
            f"{n_steps:,}: gradients end at the rollout's first step, and what was seen before it "
            "is hardly learned to be remembered. Choose a larger n_rollout_steps"
        )

    def update(self, progress: float, permutations: Tensor | None = None) -> dict[str, float]:
        """Pass n_epochs times over the rollout; return metrics, means over all minibatches.

        Args:
            progress: Share of the run that is over, for the schedules.
            permutations: Orders to use instead of random ones: of samples, or of sequences for a
                sequential agent.  [n_epochs, T*N or S]
        """
        rollout, config = self.rollout, self.config
        assert rollout is not None, "an update needs a full rollout"

        # Intrinsic rewards are those of the whole rollout: they come before the advantages.
        rewarded: dict[str, Tensor] = {}
        if self.reward is not None:
            rewards, rewarded = self.reward(rollout.transitions())
            rollout.rewards = rewards.view_as(rollout.rewards)
        # A_t = sum_k (gamma lambda)^k delta_{t+k} within the episode; its return is A_t + V(s_t).
        rollout.estimate(config.gamma, config.gae_lambda)

        # One value for all passes: schedules go by environment steps, which stand still meanwhile.
        now = self.coefficients(progress)
        here = torch.tensor(now).to(self.agent.device) if self.may_record else None

        # Several passes, each in an order of its own: of steps, or of sequences from a start on.
        logged: list[dict[str, Tensor]] = []
        orders: list[Tensor] = []
        n_shown = len(rollout.sequences.firsts) if self.agent.sequential else rollout.n_samples
        for epoch in range(config.n_epochs):
            # Drawn on the CPU, so that an order is the same whatever the device.
            orders.append(torch.randperm(n_shown) if permutations is None else permutations[epoch])
            first = len(logged)
            for batch in self._minibatches(rollout, orders[-1]):
                if here is None:
                    logged.append(self._learn(batch, now))
                else:
                    # The coefficients are inputs, too: a graph would keep those it was recorded by.
                    logged.append(self._step(batch.observations.selected, batch[1:], here))
            # The policy may already be too far from the one that acted. All ranks stop together.
            if config.target_kl is not None:
                # Asked once a pass: each time the host waits for the device.
                kl = torch.stack([row["train/approx_kl"] for row in logged[first:]]).mean().item()
                if self.ranks.average({"kl": kl})["kl"] > config.target_kl:
                    break
        self.n_epochs_done += len(orders)

        # Metrics stay on the device until here, so that no minibatch waits for it.
        names = list(logged[0])
        table = torch.stack([torch.stack([row[name] for name in names]) for row in logged])
        metrics = dict(zip(names, table.mean(0).tolist(), strict=True))
        # A mean over minibatches is finite only where each of them is.
        is_finite = math.isfinite(metrics["train/loss"] + metrics["train/grad_norm"])
        # All ranks raise: one that stopped alone would leave the others waiting.
        if any(self.ranks.all_reduce_max(not is_finite)):
            sums = torch.stack([row["train/loss"] + row["train/grad_norm"] for row in logged])
            bad = (~sums.isfinite()).nonzero()
            first = int(bad[0]) if len(bad) else 0  # it may be another rank that has one
            epoch, number = divmod(first, len(logged) // len(orders))
            raise NotFiniteError({"epoch": epoch, "number": number, "logged": logged[first]})

        # A GPT reads the last steps again in the next rollout, by then with other weights.
        if self.agent.n_context:
            self.past, self._memory_is_stale = rollout.past_of_next(self.agent.n_context), True
        self.rollout = None
        # What follows is no mean: the last minibatch's, or of the update as a whole.
        metrics |= {name: logged[-1][name].item() for name in ("train/adv_mean", "train/adv_std")}
        metrics |= {f"train/{name}": value for name, value in now._asdict().items()}
        metrics |= {name: value.item() for name, value in rewarded.items()}
        metrics["train/n_epochs"] = self.n_epochs_done
        if config.clip_range_vf is not None:
            metrics["train/clip_range_vf"] = config.clip_range_vf
        return metrics

    def _ahead(self, percept: AgentInput, memory: Memory) -> tuple[Tensor, Tensor]:
        """Return the value [N] and the stored state [N, ...] of an input; the memory stays."""
        # Deterministic: a draw here would shift those of the actions to come.
        step = self.agent.act(percept, memory, deterministic=True, advance=False)
        assert step.values is not None, "an agent that PPO trains has a critic"
        return step.values, step.stored_state

    def state_dict(self) -> dict[str, Any]:
        state = {
            "optimizer": moments(self.optimizer),
            "advantages": self.advantage_statistics.state_dict(),
            "n_epochs_done": self.n_epochs_done,
            "past": None if self.past is None else self.past.tensors(),
        }
        return state | ({} if self.reward is None else {"reward": self.reward.state_dict()})

    def load_state_dict(
        self, state: dict[str, Any], percept: AgentInput, memory: Memory | None
    ) -> None:
        load_moments(self.optimizer, state["optimizer"])
        self.advantage_statistics.load_state_dict(state["advantages"])
        self.n_epochs_done = state["n_epochs_done"]
        if self.reward is not None:
            self.reward.load_state_dict(state["reward"])
        past = state["past"]
        if past is None or memory is None:
            return
        # `past` has another length in every run, so that one step of this run shows its shapes.
        stored_state = self.agent.act(percept, memory.copy()).stored_state
        check_steps(
            past,
            ContextWindow(percept.observations, percept.is_first, stored_state).tensors(),
            "past",
        )
        self.past, self._memory_is_stale = ContextWindow.of(past, self.agent.device), True

    def check_counts(self, n_steps: int) -> None:
        if not 0 <= self.n_epochs_done <= n_steps * self.config.n_epochs:
            raise ValueError(f"n_epochs_done: not those of {n_steps:,} steps")

    def coefficients(self, progress: float) -> Coefficients:
        config, n_updates = self.config, self.n_updates
        learning_rate = scheduled(
            progress,
            n_updates,
            config.learning_rate,
            config.min_lr,
            config.lr_decay,
            config.lr_decay_start,
            config.lr_decay_end,
            config.lr_decay_factor,
        )
        ent_coef = scheduled(
            progress,
            n_updates,
            config.ent_coef,
            config.min_ent_coef,
            config.ent_decay,
            config.ent_decay_start,
            config.ent_decay_end,
            config.ent_decay_factor,
        )
        clip_range = scheduled(progress, n_updates, config.clip_range, 0.0, config.clip_decay)
        return Coefficients(learning_rate, ent_coef, clip_range)

    def _minibatches(self, rollout: Rollout, order: Tensor) -> Iterator[Batch]:
        config, ranks = self.config, self.ranks
        if not self.agent.sequential:
            samples = order.to(self.agent.device)
            # Of one size each: `validate_config` refuses other numbers of minibatches.
            return map(rollout.batch, samples.split(len(order) // config.n_batches))
        n_sequences = config.part(SequenceSettings).sequences_per_batch
        if ranks.size == 1:
            return map(rollout.sequence_batch, order.split(n_sequences))
        # Ranks have cut different numbers of sequences, and each minibatch needs some of each rank.
        wanted = -(-len(order) // ranks.part_of(n_sequences))
        n_batches = min(ranks.all_reduce_max(wanted)[0], ranks.least(len(order)))
        return map(rollout.sequence_batch, order.tensor_split(n_batches))

    @cached_property
    def may_record(self) -> bool:
        # The running deviation of advantages is the host's, which no graph can repeat.
        return super().may_record and not self.config.adv_norm

    def _learn(self, batch: Batch, now: Coefficients) -> dict[str, Tensor]:
        for group in self.optimizer.param_groups:
            # Where the step is a graph this is an input, which the optimiser reads on the device.
            group["lr"] = now.learning_rate
        loss, logged = self.loss(batch, self.agent.evaluate(batch), now)

        # Ranks average their gradients before these are clipped, so that all take the same step.
        self.optimizer.zero_grad()
        loss.backward()
        grad_norm = self.ranks.step(self.optimizer, self.parameters, self.config.max_grad_norm)
        return {
            "train/loss": loss.detach(),
            "train/grad_norm": grad_norm,
            **logged,
            "train/adv_mean": batch.advantages.mean(),
            "train/adv_std": batch.advantages.std(),
        }

    def loss(
        self, batch: Batch, result: Evaluation, now: Coefficients
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a minibatch, with gradients, and scalars to log."""
        config = self.config

        # L = L_clip + vf_coef * L_value - ent_coef * H
        advantages = self._normalized(batch.advantages)
        policy = clipped_policy_loss(result.log_probs, batch.log_probs, advantages, now.clip_range)
        critic = value_loss(result.values, batch.values, batch.returns, config.clip_range_vf)
        entropy = result.entropy.mean()
        loss = policy.loss + config.vf_coef * critic - now.ent_coef * entropy
        return loss, {
            "train/policy_gradient_loss": policy.loss.detach(),
            "train/value_loss": critic.detach(),
            "train/entropy_loss": -entropy.detach(),
            "train/approx_kl": policy.approx_kl,
            "train/clip_fraction": policy.clip_fraction,
            "train/explained_variance": explained_variance(result.values.detach(), batch.returns),
        }

    def _normalized(self, advantages: Tensor) -> Tensor:
        """Return advantages [B] standardised, or divided by their running standard deviation."""
        if self.config.adv_norm:
            self.advantage_statistics.update(advantages.cpu())
            # The mean is not taken off: what was better than expected stays so.
            return advantages / (self.advantage_statistics.variance + 1e-8) ** 0.5
        if len(advantages) < 2:  # one sample has no spread to divide by
            return advantages
        return (advantages - advantages.mean()) / (advantages.std() + 1e-8)


class PolicyLoss(NamedTuple):
    """The clipped surrogate and its metrics; all scalars."""

    loss: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


def clipped_policy_loss(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, clip_range: float | Tensor
) -> PolicyLoss:
    """Return PPO's clipped surrogate (arXiv:1707.06347, eq. 7), to be minimised; inputs [B].

    approx_kl is the mean of old minus new log-probability, clip_fraction the share of ratios
    outside 1 ± clip_range.
    """
    ratio = (log_probs - old_log_probs).exp()
    clipped = ratio.clamp(1 - clip_range, 1 + clip_range)  # type: ignore[arg-type]
    # The lesser of both: the clip takes gains away and never hides a loss.
    loss = -torch.minimum(advantages * ratio, advantages * clipped).mean()
    with torch.no_grad():
        approx_kl = (old_log_probs - log_probs).mean()
        clip_fraction = ((ratio - 1).abs() > clip_range).float().mean()
    return PolicyLoss(loss, approx_kl, clip_fraction)


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, clip_range: float | None
) -> Tensor:
    """Return the mean squared error of values [B] against returns [B].

    With a clip range the prediction may move at most that far from its old value.
    """
    if clip_range is not None:
        values = old_values + (values - old_values).clamp(-clip_range, clip_range)
    return F.mse_loss(values, returns)


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """Return 1 - Var(returns - values) / Var(returns); NaN where the returns do not vary."""
    variance = returns.var(correction=0)
    explained = 1 - (returns - values).var(correction=0) / variance
    return torch.where(variance > 0, explained, torch.nan)


def impossible_decays(config: ScheduleSettings) -> list[str]:
    problems = []
    for name, decay, start, end in (
        ("lr", config.lr_decay, config.lr_decay_start, config.lr_decay_end),
        ("ent", config.ent_decay, config.ent_decay_start, config.ent_decay_end),
    ):
        if decay == "linear_burn_in" and start >= end:
            problems.append(
                f"{name}_decay_start: {start} is not below {name}_decay_end {end}; "
                "linear_burn_in decays between the two"
            )
    return problems


def scheduled(
    progress: float,
    n_updates: float,
    start: float,
    end: float,
    decay: str,
    start_fraction: float = 0.0,
    end_fraction: float = 1.0,
    factor: float = 1.0,
) -> float:
    """Return a coefficient at an update, by the settings of `ScheduleSettings`.

    Args:
        progress: The share of the run's environment steps taken before it, those of its own rollout
            included: 1 / n_updates at the first update, 1 or a little more at the last.
        n_updates: Updates of the whole run.
        start, end: The coefficient there.
        decay: One of DECAYS.
        start_fraction, end_fraction: Of the progress.
        factor: Of an exponential decay, per update.
    """
    if decay == "none":
        return start
    if decay == "exp":
        # start * factor^n. As in the original, n counts all updates before this one, those before
        # start_fraction too: a decay that begins late begins with a drop.
        if progress < start_fraction:
            return start
        return start * factor ** max(round(progress * n_updates) - 1, 0)
    begin = start_fraction if decay == "linear_burn_in" else 0.0
    length = end_fraction - begin
    # A decay of no length is over as soon as it begins.
    share = (progress - begin) / length if length else 1.0
    return start + min(max(share, 0.0), 1.0) * (end - start)
