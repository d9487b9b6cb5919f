"""How long runs will take, from the speed of others like them."""

import statistics
from collections.abc import Iterable, Sequence

from sweeps.grid import Run
from sweeps.jobs import Job, State
from sweeps.progress import measured_speed, shared_out


class Estimates:
    """The time that runs of a sweep still take; how fast earlier ones were is looked up once."""

    def __init__(self) -> None:
        self._earlier: dict[tuple[str, str], float | None] = {}

    def seconds_left(self, job: Job) -> float | None:
        """Return what a run takes at its own speed, or else its kind's; None where unknown."""
        if not job.steps_left:
            return 0.0
        speed = job.progress.speed or self._speed_of_kind(job.run)
        return job.steps_left / speed if speed else None

    def until_all_are_done(
        self, jobs: Sequence[Job], n_at_once: int, n_to_come: int = 0
    ) -> float | None:
        """Return the time until no run is missing; None where one's is unknown.

        Args:
            jobs: Those that are known.
            n_at_once: How many run at the same time.
            n_to_come: How many more there will be, each taken for the mean of those known.
        """
        self._learn(jobs)
        left = [self.seconds_left(job) for job in jobs if job.state is not State.FAILED]
        return shared_out([*left, *[self._mean_seconds(jobs)] * n_to_come], n_at_once)

    def _mean_seconds(self, jobs: Sequence[Job]) -> float | None:
        """Return how long a run takes; None where no speed is known."""
        speeds = ((job.run.config.n_steps, self._speed_of_kind(job.run)) for job in jobs)
        seconds = [n_steps / speed for n_steps, speed in speeds if speed]
        return statistics.mean(seconds) if seconds else None

    def _speed_of_kind(self, run: Run) -> float | None:
        """Return how fast others of its agent in its environment were; None where none were."""
        if _kind(run) not in self._earlier:
            self._earlier[_kind(run)] = measured_speed(run.config)
        return self._earlier[_kind(run)]

    def _learn(self, jobs: Iterable[Job]) -> None:
        """Take over the speed of the runs under way."""
        speeds: dict[tuple[str, str], list[float]] = {}
        for job in jobs:
            if job.progress.speed is not None:
                speeds.setdefault(_kind(job.run), []).append(job.progress.speed)
        self._earlier |= {kind: statistics.median(known) for kind, known in speeds.items()}


def _kind(run: Run) -> tuple[str, str]:
    return run.config.model, run.config.env
