"""Attempts as Ray tasks, on this machine or on a cluster."""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sweeps.worker
from sweeps.jobs import Job
from sweeps.worker import Ending, Order, attempt
from utils.errors import UserError, printable

LONGEST_NOTE = 200
CONNECT_SECONDS = 10.0
OBJECT_STORE_BYTES = 100 * 2**20  # only orders and endings go through it
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # Ray would let everything else on the machine go first
    # A worker that ends would kill its runs at once; as it is they get SIGTERM and save.
    "RAY_kill_child_processes_on_worker_exit": "false",
}


class RayPool:
    """Carries out attempts as Ray has room for them.

    Args:
        cpus: Cores that a task occupies.
        gpus: GPUs that a task occupies, or a share of one.

    Attributes:
        n_places: Tasks that there is room for at once.
    """

    def __init__(self, cpus: int, gpus: float) -> None:
        import ray

        # Sent as it is, so that workers need not find this package.
        ray.cloudpickle.register_pickle_by_value(sweeps.worker)
        self._task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(attempt)
        self._jobs: dict[Any, Job] = {}
        self.n_places = sum(_places(machine, cpus, gpus) for machine in _machines())

    def submit(self, job: Job, order: Order) -> None:
        """Queue an attempt."""
        self._jobs[self._task.remote(order)] = job

    def ended(self, seconds: float) -> list[tuple[Job, Ending]]:
        """Return the attempts that ended since the last call, waiting for one for some time."""
        import ray

        if not self._jobs:
            return []
        done, _ = ray.wait(list(self._jobs), num_returns=1, timeout=seconds)
        return [(self._jobs.pop(task), _ending(task)) for task in done]


def check_address(address: str | None) -> None:
    """Raise UserError unless something answers at an address; whether auto does is left to Ray.

    Ray itself would try for two minutes.
    """
    if address in (None, "auto"):
        return
    host, _, port = str(address).removeprefix("ray://").rpartition(":")
    try:
        if not host:
            raise ValueError("no host")
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError, ValueError) as error:
        reason = printable(str(error))
        raise UserError(
            f"--address {printable(str(address))}: no Ray cluster answers there ({reason}). "
            "Use auto, or HOST:PORT of its first machine"
        ) from None


@contextmanager
def ray_pool(address: str | None, cpus: int, gpus: float) -> Iterator[RayPool]:
    """Start Ray on this machine, or connect to a cluster; leave it in the end.

    Raises:
        UserError: there is no cluster at the address, or no machine of it has that many cores and
            GPUs.
    """
    os.environ.update(ENVIRONMENT)
    import ray

    here = address is None
    try:
        ray.init(
            address=address or "local",
            num_cpus=len(os.sched_getaffinity(0)) if here else None,
            object_store_memory=OBJECT_STORE_BYTES if here else None,
            include_dashboard=False if here else None,
            logging_level=logging.ERROR,
            log_to_driver=False,
        )
    except Exception as error:  # Ray raises a bare one where its start takes longer than 30 s
        where = f"--address {address}: " if address else ""
        raise UserError(f"{where}Ray cannot be reached: {str(error).splitlines()[0]}") from None
    try:
        _check_room(cpus, gpus)
        yield RayPool(cpus, gpus)
    finally:
        ray.shutdown()


def _check_room(cpus: int, gpus: float) -> None:
    """Raise UserError unless some machine can hold a task."""
    machines = _machines()
    if any(_places(machine, cpus, gpus) for machine in machines):
        return
    found = ", ".join(f"{m.get('CPU', 0):g} cores and {m.get('GPU', 0):g} GPUs" for m in machines)
    raise UserError(f"--cpus {cpus} --gpus {gpus:g}: no machine has that many, there are: {found}")


def _machines() -> list[dict[str, float]]:
    """Return what each machine has."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _places(machine: dict[str, float], cpus: int, gpus: float) -> int:
    """Return how many tasks a machine holds at once."""
    places = int(machine.get("CPU", 0) / cpus)
    return min(places, int(machine.get("GPU", 0) / gpus)) if gpus else places


def _ending(task: Any) -> Ending:
    """Return how an attempt ended, also where its worker or machine was lost."""
    import ray

    try:
        return Ending(*ray.get(task))
    except ray.exceptions.RayError as error:
        lines = str(error).strip().splitlines()
        return Ending(1, ": ".join((type(error).__name__, *lines[-1:]))[:LONGEST_NOTE])
