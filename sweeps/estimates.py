"""How long runs will take, from the speed of others like them."""

import statistics
from collections.abc import Iterable, Sequence

from sweeps.grid import Run
from sweeps.jobs import Job, State
from sweeps.progress import measured_speed, shared_out


class Estimates:
    """The time that runs of a sweep still take.

    Args:
        runs: All of them; how fast earlier ones of each kind were is looked up once.
    """

    def __init__(self, runs: Iterable[Run]) -> None:
        kinds = {_kind(run): run.config for run in runs}
        self._earlier = {kind: measured_speed(config) for kind, config in kinds.items()}

    def seconds_left(self, job: Job) -> float | None:
        """Return what a run takes at its own speed, or else its kind's; None where unknown."""
        if not job.steps_left:
            return 0.0
        speed = job.progress.speed or self._earlier[_kind(job.run)]
        return job.steps_left / speed if speed else None

    def until_all_are_done(self, jobs: Sequence[Job], n_at_once: int) -> float | None:
        """Return the time until no run is missing; None where one's is unknown."""
        self._learn(jobs)
        left = [self.seconds_left(job) for job in jobs if job.state is not State.FAILED]
        return shared_out(left, n_at_once)

    def _learn(self, jobs: Iterable[Job]) -> None:
        """Take over the speed of the runs under way."""
        speeds: dict[tuple[str, str], list[float]] = {}
        for job in jobs:
            if job.progress.speed is not None:
                speeds.setdefault(_kind(job.run), []).append(job.progress.speed)
        self._earlier |= {kind: statistics.median(known) for kind, known in speeds.items()}


def _kind(run: Run) -> tuple[str, str]:
    return run.config.model, run.config.env
