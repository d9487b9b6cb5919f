"""What a person sees of a sweep: a line for each change, and a bar of steps on a terminal."""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence

from tqdm import tqdm

from analysis.run_data import aligned
from sweeps.jobs import Job, Jobs, State
from utils.errors import printable

ORDER = (State.DONE, State.PRUNED, State.WAITING, State.STOPPED, State.FAILED, State.RUNNING)
HEADING = ("run", "state", "steps", "of", "return", "steps/s", "tries", "last failure")


def show(work: Jobs, seconds: Iterable[Sequence[Job]]) -> None:
    """Print a line for each change of the jobs, which stand anew every second."""
    said: dict[Job, tuple[State, int]] = {}
    begun = sum(job.progress.env_steps for job in work.jobs)
    with tqdm(initial=begun, unit=" steps", unit_scale=True, disable=None) as bar:
        for jobs in seconds:
            for job in jobs:
                now = (job.state, job.n_attempts)
                if now != said.get(job, (State.WAITING, 0)):
                    tqdm.write(_event(job))
                    sys.stdout.flush()
                said[job] = now
            bar.n = sum(job.progress.env_steps for job in jobs)
            to_come = work.n_to_come * jobs[0].run.config.n_steps
            bar.total = bar.n + sum(job.steps_left for job in jobs) + to_come
            bar.set_description(summary(jobs, work.n_to_come))


def print_table(jobs: Iterable[Job]) -> None:
    """Print a row for each run."""
    rows = [
        (
            job.run.folder,
            job.state.value,
            f"{job.progress.env_steps:,}",
            f"{job.run.config.n_steps:,}",
            "" if job.progress.mean_return is None else f"{job.progress.mean_return:.3f}",
            "" if job.progress.speed is None else f"{job.progress.speed:,.0f}",
            job.n_attempts or "",
            printable(job.note),
        )
        for job in jobs
    ]
    print(aligned([HEADING, *rows]))


def summary(jobs: Sequence[Job], n_to_come: int = 0) -> str:
    """Return how many runs stand where."""
    counts = Counter(job.state for job in jobs)
    parts = [f"{counts[state]} {state}" for state in ORDER if counts[state]]
    parts += [f"{n_to_come} to come"] * (n_to_come > 0)
    return f"{len(jobs) + n_to_come} runs: {', '.join(parts)}"


def _event(job: Job) -> str:
    progress = job.progress
    parts = [f"{job.state:8s}{job.run.folder}"]
    if progress.mean_return is not None:
        parts.append(f"{progress.env_steps:,} steps, return {progress.mean_return:.3f}")
    if job.note:
        parts.append(f"attempt {job.n_attempts}: {printable(job.note)}")
    return "  ".join(parts)
