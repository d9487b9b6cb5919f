"""Schedules of a coefficient: functions of a run's progress.

The progress of an update is the share of the run's environment steps taken before it, those of its
own rollout included: 1 / n_updates at the first update, 1 or a little more at the last.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from utils.settings import Config, setting

DECAYS = ("none", "linear", "linear_burn_in", "exp")


class Coefficients(NamedTuple):
    learning_rate: float
    ent_coef: float
    clip_range: float


class Schedule(NamedTuple):
    """A decay of one coefficient; see `ScheduleSettings`. Fractions are those of the progress.

    Attributes:
        decay: One of DECAYS.
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
        if self.decay == "none":
            return self.start
        if self.decay == "exp":
            # start * factor^n. As in the original, n counts all updates before this one, those
            # before start_fraction too: a decay that begins late begins with a drop.
            if progress < self.start_fraction:
                return self.start
            n_before = max(round(progress * self.n_updates) - 1, 0)
            return self.start * self.factor**n_before
        begin = self.start_fraction if self.decay == "linear_burn_in" else 0.0
        length = self.end_fraction - begin
        share = (progress - begin) / length if length else 1.0
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)


@dataclass(frozen=True)
class ScheduleSettings(Config):
    title = "schedules"

    lr_decay: str = setting("learning-rate schedule", choices=DECAYS, default="none")
    min_lr: float = setting(
        "learning rate at the end of a linear schedule", low=0, high=10, default=1e-07
    )
    lr_decay_start: float = setting(
        "fraction of the run before the decay starts", low=0, high=1, default=0.0
    )
    lr_decay_end: float = setting(
        "fraction of the run at which a linear decay ends", low=0, high=1, default=1.0
    )
    lr_decay_factor: float = setting(
        "factor per update of an exp schedule", low=0, high=1, default=0.99
    )
    ent_coef: float = setting(
        "weight of the entropy bonus at the start", low=0, high=1e6, default=0.05
    )
    ent_decay: str = setting("entropy schedule", choices=DECAYS, default="none")
    min_ent_coef: float = setting(
        "entropy weight at the end of a linear schedule", low=0, high=1e6, default=0.0001
    )
    ent_decay_start: float = setting(
        "fraction of the run before the decay starts", low=0, high=1, default=0.0
    )
    ent_decay_end: float = setting(
        "fraction of the run at which a linear decay ends", low=0, high=1, default=1.0
    )
    ent_decay_factor: float = setting(
        "factor per update of an exp schedule", low=0, high=1, default=0.99
    )
    clip_range: float = setting(
        "clip range of the policy ratio at the start", low=0, high=1e6, default=0.2
    )
    clip_decay: str = setting(
        "clip-range schedule, linear ends at 0", choices=("none", "linear"), default="none"
    )


def impossible_decays(config: ScheduleSettings) -> list[str]:
    problems = []
    for name in ("lr", "ent"):
        start, end = getattr(config, f"{name}_decay_start"), getattr(config, f"{name}_decay_end")
        if getattr(config, f"{name}_decay") == "linear_burn_in" and start >= end:
            problems.append(
                f"{name}_decay_start: {start} is not below {name}_decay_end {end}; "
                "linear_burn_in decays between the two"
            )
    return problems


def configured_schedules(
    config: ScheduleSettings, n_updates: float
) -> tuple[Schedule, Schedule, Schedule]:
    """Return the schedules of a run of so many updates, in the order of `Coefficients`."""

    def decayed(name: str, start: float, end: float) -> Schedule:
        def of(way: str) -> Any:
            return getattr(config, f"{name}_decay{way}")

        return Schedule(of(""), start, end, of("_start"), of("_end"), of("_factor"), n_updates)

    learning_rate = decayed("lr", config.learning_rate, config.min_lr)
    entropy = decayed("ent", config.ent_coef, config.min_ent_coef)
    return learning_rate, entropy, Schedule(config.clip_decay, config.clip_range)
