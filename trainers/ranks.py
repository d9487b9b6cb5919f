"""Data-parallel training: the processes that train one agent, each with its own environments.

torchrun starts them and numbers them in environment variables. All ranks hold the same agent. Each
learns from its own environments' steps, and gradients are averaged before the optimiser's step.
Running statistics of rewards and advantages are each rank's own. The first rank alone writes.
"""

import io
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial, reduce
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, get_total_norm
from torch.optim import Optimizer

from models.agent import Agent
from utils.errors import Interrupted, NotFiniteError, RunError, UserError, escape
from utils.files import load_saved
from utils.running_statistics import Moments
from utils.seeding import derived_seed, seed_everything
from utils.settings import Config

Result = TypeVar("Result")
ALIGNED = 16  # floats: a line of the processor's cache
WHOLE = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")


@contextmanager
def joined_ranks() -> Iterator["Ranks"]:
    """Join the ranks that torchrun has started with this process; without torchrun be alone.

    Tensors on a CPU travel by gloo, those on GPUs by NCCL; a rank's GPU is the one with its number
    on the machine. The first rank tells an error that ends all alike, a mistake once a machine.
    """
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
        self._shared: dict[Optimizer, SharedStep | None] = {}

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

    def synchronize(self, agent: Agent, config: Config) -> None:
        self.broadcast(agent.state_dict().values())
        if not self.first:
            seed_everything(derived_seed(config.seed, self.rank), config.deterministic)

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        if self.size > 1:
            with _together():
                for tensor in tensors:
                    dist.broadcast(tensor, 0)

    def average_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Replace gradients by their means over all ranks.

        They travel as one tensor: messages cost more than their content.
        """
        if self.size == 1:
            return
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        with _together():
            dist.all_reduce(flat)
        sums = flat.split([gradient.numel() for gradient in gradients])
        for gradient, total in zip(gradients, sums, strict=True):
            torch.div(total.view_as(gradient), dist.get_world_size(), out=gradient)

    def step(self, optimizer: Optimizer, parameters: Sequence[Tensor], max_norm: float) -> Tensor:
        """Average gradients, clip their norm, take the optimiser's step; return the norm before.

        `parameters` are all that the optimiser has, an Adam or AdamW with its moments. Ranks that
        share the memory of a machine share the work, too: `SharedStep`.
        """
        # Decided at the first step and not earlier: until then a checkpoint may replace moments.
        if self.size > 1 and optimizer not in self._shared:
            on_cpu = all(parameter.device.type == "cpu" for parameter in parameters)
            on_one_machine = int(os.environ["LOCAL_WORLD_SIZE"]) == self.size
            is_possible = on_cpu and on_one_machine and hasattr(os, "memfd_create")
            self._shared[optimizer] = (
                SharedStep(optimizer, parameters, self.rank, self.size) if is_possible else None
            )
        if shared := self._shared.get(optimizer):
            return shared(max_norm)
        self.average_gradients(parameters)
        norm = clip_grad_norm_(parameters, max_norm)
        optimizer.step()
        return norm

    def average(self, numbers: Mapping[str, float]) -> dict[str, float]:
        if self.size == 1:
            return dict(numbers)
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
        squares = own.squares + own.count * (own.mean - mean).square()
        with _together():
            dist.all_reduce(squares)
        return Moments(count, mean, squares)

    def all_reduce_max(self, *values: int) -> list[int]:
        if self.size == 1:
            return list(values)
        largest = torch.tensor([int(value) for value in values])
        with _together():
            dist.all_reduce(largest, dist.ReduceOp.MAX)
        return largest.tolist()

    def least(self, value: int) -> int:
        return -self.all_reduce_max(-value)[0]

    def gather(self, value: Result) -> list[Result]:
        """Return the values of all ranks, tensors on the CPU, on the first; elsewhere nothing."""
        if self.size == 1:
            return [value]
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


class SharedStep:
    """Parameters and moments in one piece of memory, where each rank steps its share of them.

    Sent through sockets, the gradients of four million parameters take as long as a minibatch of a
    small network, and every rank would take the same optimiser's step. Here each averages the
    gradients of some parameters, and steps these alone (the first stage of ZeRO, Rajbhandari et al.
    2020, arXiv:1910.02054). All ranks must be processes of one machine.
    """

    def __init__(
        self, optimizer: Optimizer, parameters: Sequence[Tensor], rank: int, size: int
    ) -> None:
        self.optimizer, self.parameters, self.rank = optimizer, parameters, rank
        numbers = [parameter.numel() for parameter in parameters]
        memory = _shared_memory((4 + size) * 4 * sum(n + ALIGNED for n in numbers), rank)
        place = 0

        def shared(like: Tensor) -> Tensor:
            nonlocal place
            tensor = torch.frombuffer(memory, dtype=torch.float32, count=like.numel(), offset=place)
            place += 4 * -(-like.numel() // ALIGNED) * ALIGNED
            return tensor.view_as(like)

        self.gradients = [[shared(p) for p in parameters] for _ in range(size)]
        for parameter in parameters:
            state = optimizer.state[parameter]
            for name in ("step", "exp_avg", "exp_avg_sq"):
                state[name] = shared(state[name]).copy_(state[name])
            parameter.data = shared(parameter).copy_(parameter.data)
        # The largest first, each to the rank that has least so far.
        loads, self.own = [0] * size, []
        for index in sorted(range(len(numbers)), key=lambda index: -numbers[index]):
            least = loads.index(min(loads))
            loads[least] += numbers[index]
            self.own += [index] if least == rank else []

    @torch.no_grad()
    def __call__(self, max_norm: float) -> Tensor:
        """Average, clip and step; return the norm before clipping."""
        for parameter, place in zip(self.parameters, self.gradients[self.rank], strict=True):
            place.zero_() if parameter.grad is None else place.copy_(parameter.grad)
            parameter.grad = None  # so that the optimiser steps this rank's share alone
        with _together():
            dist.barrier()
        own = [reduce(torch.add, [g[index] for g in self.gradients]) for index in self.own]
        torch._foreach_div_(own, len(self.gradients))
        for index, gradient in zip(self.own, own, strict=True):
            self.parameters[index].grad = gradient
        squared = get_total_norm(own).square()
        with _together():
            dist.all_reduce(squared)
        norm = squared.sqrt()
        torch._foreach_mul_(own, (max_norm / (norm + 1e-6)).clamp(max=1))
        self.optimizer.step()
        with _together():
            dist.barrier()  # all parameters have to be new before anyone reads them
        return norm


def _shared_memory(n_bytes: int, rank: int) -> mmap.mmap:
    first = None if rank else os.memfd_create("parameters")  # has no name, and ends with its users
    if first is not None:
        os.truncate(first, n_bytes)
    places = [f"/proc/{os.getpid()}/fd/{first}"]
    dist.broadcast_object_list(places)
    file = os.open(places[0], os.O_RDWR)
    memory = mmap.mmap(file, n_bytes)
    os.close(file)
    dist.barrier()
    if first is not None:
        os.close(first)
    return memory


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
