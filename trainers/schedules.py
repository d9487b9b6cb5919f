"""Schedules of a coefficient: functions of a run's progress.

The progress of an update is the share of the run's environment steps taken before it, those of its
own rollout included: 1 / n_updates at the first update, 1 or a little more at the last.
"""

from collections.abc import Callable
from typing import NamedTuple

from utils.config import Config


class Coefficients(NamedTuple):
    """The scheduled coefficients of one update."""

    learning_rate: float
    ent_coef: float
    clip_range: float


class Schedule(NamedTuple):
    """A named decay of one coefficient.

    Attributes:
        decay: A key of DECAYS.
        start: Value before the decay.
        end: Value after a linear decay.
        start_fraction: Progress at which the decay starts (linear starts at once).
        end_fraction: Progress at which a linear decay ends.
        factor: Factor per update of the exponential decay.
        n_updates: Updates of the whole run, for the exponential decay.
    """

    decay: str
    start: float
    end: float = 0.0
    start_fraction: float = 0.0
    end_fraction: float = 1.0
    factor: float = 1.0
    n_updates: float = 0.0

    def value(self, progress: float) -> float:
        """Return the coefficient of the update at this progress."""
        return DECAYS[self.decay](self, progress)


def _constant(schedule: Schedule, progress: float) -> float:
    return schedule.start


def _linear(schedule: Schedule, progress: float) -> float:
    return _between(schedule, progress / schedule.end_fraction if schedule.end_fraction else 1.0)


def _linear_burn_in(schedule: Schedule, progress: float) -> float:
    length = schedule.end_fraction - schedule.start_fraction
    return _between(schedule, (progress - schedule.start_fraction) / length)


def _exponential(schedule: Schedule, progress: float) -> float:
    """Return start * factor^n from start_fraction on, and start before.

    As in the original implementation, n counts all updates before this one, those before
    start_fraction too: the first update has the factor 1, and a decay that begins late begins with
    a drop to where it would be by then.
    """
    if progress < schedule.start_fraction:
        return schedule.start
    n_before = max(round(progress * schedule.n_updates) - 1, 0)
    return schedule.start * schedule.factor**n_before


def _between(schedule: Schedule, share: float) -> float:
    """Return the point between start and end, a share outside 0..1 standing for the nearer end."""
    share = min(max(share, 0.0), 1.0)
    return schedule.start + share * (schedule.end - schedule.start)


DECAYS: dict[str, Callable[[Schedule, float], float]] = {
    "none": _constant,
    "linear": _linear,
    "linear_burn_in": _linear_burn_in,
    "exp": _exponential,
}


def configured_schedules(config: Config) -> tuple[Schedule, Schedule, Schedule]:
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
