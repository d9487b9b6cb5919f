"""Data-parallel training: the processes that train one agent, each with its own environments.

torchrun starts them and numbers them in environment variables. All ranks hold the same agent. Each
learns from its own environments' steps, and gradients are averaged before the optimiser's step.
Running statistics of rewards and advantages are each rank's own. The first rank alone writes.
"""

import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from models.observations import Moments
from utils.errors import Interrupted, NotFiniteError, RunError, UserError, escape
from utils.files import load_saved
from utils.settings import Config

Result = TypeVar("Result")
Number = TypeVar("Number", int, float)
WHOLE = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")


@contextmanager
def joined_ranks() -> Iterator["Ranks"]:
    """Join the ranks that torchrun has started with this process; without torchrun be alone."""
    # Tensors on a CPU travel by gloo, those on GPUs by NCCL; a rank's GPU is the one with its
    # number on the machine. The first rank tells an error that ends all alike, once a machine.
    if "WORLD_SIZE" not in os.environ:
        yield Ranks()
        return
    _check_started_by_torchrun()
    n_gpus, local_rank = torch.cuda.device_count(), int(os.environ["LOCAL_RANK"])
    if local_rank < n_gpus:
        torch.cuda.set_device(local_rank)
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if n_gpus else "gloo")
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0][:200]
        raise RunError(f"the ranks do not find each other ({reason})") from None
    ranks = Ranks(dist.get_rank(), dist.get_world_size())
    try:
        yield ranks
        ranks.all_reduce_max(0)  # so that none takes its connections down before all are done
    except UserError:
        if local_rank == 0:
            raise
        raise SystemExit(2) from None
    except (Interrupted, NotFiniteError) as error:
        if ranks.first:
            raise
        status = 128 + error.signal if isinstance(error, Interrupted) else 1
        raise SystemExit(status) from None
    finally:
        dist.destroy_process_group()


class Ranks:
    """One of R processes and its collective operations, which do nothing where R = 1.

    Every method that speaks of all ranks must be called by all of them in the same order.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    @property
    def first(self) -> bool:
        return self.rank == 0

    def print(self, text: str) -> None:
        if self.first:
            print(*map(escape, text.split("\n")), sep="\n", flush=True)

    def share(self, config: Config) -> Config:
        if config.n_envs % self.size:
            raise UserError(
                f"n_envs: {config.n_envs} environments cannot be shared by {self.size} ranks. "
                f"Choose a multiple of {self.size}"
            )
        if self.size > 1 and config.device.startswith("cuda"):
            n_local, n_gpus = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
            if n_local > n_gpus or config.device != "cuda":
                raise UserError(
                    f"device: '{config.device}' for {n_local} ranks on a machine of {n_gpus} GPUs. "
                    "Start one for each GPU with device=cuda, or use device=cpu"
                )
        return config.replace(n_envs=config.n_envs // self.size)

    def part_of(self, n: int) -> int:
        return -(-n // self.size)

    def own_name(self, name: str) -> str:
        return name if self.first else f"{name}.rank{self.rank}"

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        if self.size > 1:
            with _together():
                for tensor in tensors:
                    dist.broadcast(tensor, 0)

    def average_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Replace gradients by their means over all ranks."""
        if self.size == 1:
            return
        for parameter in parameters:
            # A part that this rank's batch did not reach still has its place in the message.
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        # One tensor, since messages cost more than their content.
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        with _together():
            dist.all_reduce(flat)
        sums = flat.split([gradient.numel() for gradient in gradients])
        for gradient, total in zip(gradients, sums, strict=True):
            torch.div(total.view_as(gradient), dist.get_world_size(), out=gradient)

    def step(self, optimizer: Optimizer, parameters: Sequence[Tensor], max_norm: float) -> Tensor:
        """Average gradients, clip their norm, take the optimiser's step; return the norm before."""
        self.average_gradients(parameters)
        norm = clip_grad_norm_(parameters, max_norm)
        optimizer.step()
        return norm

    def average(self, numbers: Mapping[str, float]) -> dict[str, float]:
        if self.size == 1:
            return dict(numbers)
        # In float64: counts are among the metrics.
        values = torch.tensor(list(numbers.values()), dtype=torch.float64)
        with _together():
            dist.all_reduce(values)
        return dict(zip(numbers, (values / self.size).tolist(), strict=True))

    def joined(self, own: Moments) -> Moments:
        """Return the moments [F] of all ranks' rows together."""
        if self.size == 1:
            return own
        # M2 = sum_r M2_r + n_r (mean_r - mean)^2
        sums = torch.cat((own.mean.new_tensor([own.count]), own.count * own.mean))
        with _together():
            dist.all_reduce(sums)
        count, mean = sums[0], sums[1:] / sums[0]
        # A second message: squares are around the joint mean, known only now.
        squares = own.squares + own.count * (own.mean - mean).square()
        with _together():
            dist.all_reduce(squares)
        return Moments(count, mean, squares)

    def all_reduce_max(self, *values: Number) -> list[Number]:
        if self.size == 1:
            return list(values)
        is_whole = all(isinstance(value, int) for value in values)  # gloo has no maximum of bools
        largest = torch.tensor(values, dtype=torch.int64 if is_whole else torch.float64)
        with _together():
            dist.all_reduce(largest, dist.ReduceOp.MAX)
        return largest.tolist()

    def least(self, value: int) -> int:
        return -self.all_reduce_max(-value)[0]

    def gather(self, value: Result) -> list[Result]:
        """Return the values of all ranks, tensors on the CPU, on the first; elsewhere nothing."""
        if self.size == 1:
            return [value]
        # Not as pickled objects: what another process sends is read as tensors and plain values.
        file = io.BytesIO()
        torch.save(value, file)
        packed = [b""] * self.size if self.first else None
        with _together():
            dist.gather_object(file.getvalue(), packed)
        return [load_saved(io.BytesIO(content)) for content in packed or ()]

    def run_on_first(self, function: Callable[[], Result]) -> Result:
        """Run a function on the first rank alone; all ranks get its result, or end as it does."""
        if self.size == 1:
            return function()
        outcome: list[Any] = [None, None]
        if self.first:
            try:
                outcome[0] = function()
            except UserError as error:
                outcome[1] = error
        with _together():
            dist.broadcast_object_list(outcome)
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]

    @contextmanager
    def enter_on_first(self, context: AbstractContextManager[None]) -> Iterator[None]:
        """Enter a context on the first rank alone; a UserError on entering ends all ranks."""
        with ExitStack() as stack:
            self.run_on_first(partial(stack.enter_context, context))
            yield


def _check_started_by_torchrun() -> None:
    wrong = [name for name in WHOLE if not os.environ.get(name, "").isdecimal()]
    wrong += [name for name in ("MASTER_ADDR",) if not os.environ.get(name)]
    if not wrong and int(os.environ["RANK"]) >= int(os.environ["WORLD_SIZE"]):
        wrong = ["RANK"]
    if wrong:
        raise UserError(
            f"WORLD_SIZE is set to '{os.environ['WORLD_SIZE'][:40]}' in the environment, but "
            f"{', '.join(wrong)} not as torchrun sets them. Start with torchrun, or unset "
            "WORLD_SIZE to train alone"
        )


@contextmanager
def _together() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        reason = str(error).splitlines()[0][:200]
        raise RunError(
            f"rank {dist.get_rank()}: the ranks have lost each other ({reason})"
        ) from None
