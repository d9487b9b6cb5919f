"""The processes that train one agent together, each with its share of the environments.

torchrun starts them and says in environment variables which one is which. All ranks hold the same
agent. Each collects a rollout of its own environments; a minibatch is drawn from the rollouts of
all, every rank evaluates its own samples of it, and the gradients are added up. What leads from
those evaluations to the loss is computed by every rank for the whole minibatch, so that loss,
advantages and everything logged are those of one process. The first rank alone writes.
"""

import dataclasses
import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from models.agent import ActorCriticAgent, Agent, Batch, Evaluation
from settings import Config
from trainers.guards import NotFiniteError
from utils.errors import Interrupted, RunError, UserError
from utils.saved_tensors import load_saved
from utils.seeding import derived_seed, seed_everything

Result = TypeVar("Result")
WHOLE = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")


@contextmanager
def joined_ranks() -> Iterator["Ranks"]:
    """Join the ranks that torchrun has started with this process; without torchrun be alone.

    Tensors on a CPU travel by gloo, those on GPUs by NCCL; a rank's GPU is the one with its number
    on the machine.
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
    finally:
        dist.destroy_process_group()


class Ranks:
    """One of R processes, and what it does together with the others; alone it does nothing.

    Every method but `own_parts` and `print` must be called by all ranks in the same order.

    Args:
        rank: Which one this is, from 0.
        size: R.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes."""
        return self.rank == 0

    def print(self, text: str) -> None:
        """Print on the first rank."""
        if self.first:
            print(text, flush=True)

    def share(self, config: Config) -> Config:
        """Return the settings of this rank's environments: a share, and seeds as in one process.

        Raises:
            UserError: the environments cannot be shared equally, or the GPUs.
        """
        self.run_on_first(lambda: _check(config, self.size))
        n_envs = config.n_envs // self.size
        return dataclasses.replace(config, n_envs=n_envs, seed=config.seed + self.rank * n_envs)

    def synchronize(self, agent: Agent, config: Config) -> None:
        """Give all ranks the first one's agent, common statistics and random streams of their own.

        Args:
            agent: Just made.
            config: The settings of the run.
        """
        if self.size == 1:
            return
        for tensor in agent.state_dict().values():
            self.broadcast(tensor)
        agent.share_statistics(self.all_gather)
        if not self.first:
            seed_everything(derived_seed(config.seed, self.rank), config.deterministic)

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Overwrite a tensor with the first rank's and return it."""
        if self.size > 1:
            with _together():
                dist.broadcast(tensor, 0)
        return tensor

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Return the rows [n, ...] of all ranks, as many of each, in their order.  [R*n, ...]"""
        if self.size == 1:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        with _together():
            dist.all_gather(parts, tensor.contiguous())
        return torch.cat(parts)

    def all_gather_counts(self, count: int) -> list[int]:
        """Return every rank's count."""
        return self.all_gather(torch.tensor([count])).tolist()

    def all_reduce_max(self, *values: int) -> list[int]:
        """Return the largest of every value over the ranks."""
        if self.size == 1:
            return list(values)
        largest = torch.tensor(values)
        with _together():
            dist.all_reduce(largest, dist.ReduceOp.MAX)
        return largest.tolist()

    def own_parts(self, parts: Iterable[Tensor], counts: Sequence[int]) -> Iterator[Tensor]:
        """Yield what of each part, numbers of things of all ranks, is here, numbered as here.

        Args:
            parts: [B] int64 each.
            counts: How many things each rank has; the first rank's have the first numbers.
        """
        first, count = sum(counts[: self.rank]), counts[self.rank]
        for part in parts:
            here = part - first
            yield here if self.size == 1 else here[(here >= 0) & (here < count)]

    def evaluate(self, agent: ActorCriticAgent, batch: Batch) -> tuple[Evaluation, Batch]:
        """Let every rank evaluate its part of a minibatch, and return the whole minibatch's.

        Gradients flow into the own part only; those of all ranks add up to the whole gradient.

        Args:
            agent: What evaluates.
            batch: The own part, which may be empty.

        Returns:
            The evaluation [B], and the batch with log_probs, values, advantages and returns [B].
        """
        if self.size == 1:
            return agent.evaluate(batch), batch
        compared = (batch.log_probs, batch.values, batch.advantages, batch.returns)
        if len(batch.actions):
            own = torch.stack((*agent.evaluate(batch), *compared), 1)  # [b, 7]
        else:
            own = torch.zeros(0, 7, device=agent.device, requires_grad=True)
        whole = self._whole(own)
        old_log_probs, old_values, advantages, returns = whole[:, 3:].detach().unbind(1)
        return Evaluation(*whole[:, :3].unbind(1)), batch._replace(
            log_probs=old_log_probs, values=old_values, advantages=advantages, returns=returns
        )

    def all_reduce_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Replace the gradients by their sums over the ranks."""
        if self.size > 1:
            add_up_gradients(parameters)

    def gather(self, value: Result) -> list[Result]:
        """Return every rank's value, its tensors on the CPU, on the first; elsewhere nothing."""
        if self.size == 1:
            return [value]
        packed = [b""] * self.size if self.first else None
        with _together():
            dist.gather_object(_packed(value), packed)
        return [load_saved(io.BytesIO(content)) for content in packed or ()]

    def run_on_first(self, function: Callable[[], Result]) -> Result:
        """Run a function on the first rank alone; all get its result, or its UserError.

        The first rank alone raises the error, so that it is read once; the others exit as it will.
        """
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
            raise outcome[1] if self.first else SystemExit(2)
        return outcome[0]

    def scatter(self, function: Callable[[], Sequence[Result]]) -> Result:
        """Run a function on the first rank alone; each rank gets its own of the R results."""
        results: list[Result] = []
        self.run_on_first(lambda: results.extend(function()))
        if self.size == 1:
            return results[0]
        own = [b""]
        with _together():
            dist.scatter_object_list(own, [_packed(result) for result in results] or None)
        return load_saved(io.BytesIO(own[0]))

    @contextmanager
    def enter_on_first(self, context: AbstractContextManager) -> Iterator[None]:
        """Enter a context on the first rank alone; a UserError on entering ends all ranks."""
        with ExitStack() as stack:

            def enter() -> None:
                stack.enter_context(context)

            self.run_on_first(enter)
            yield

    @contextmanager
    def exit_with_first(self) -> Iterator[None]:
        """End like the first rank, which alone says why, where the reason ends all ranks alike."""
        try:
            yield
        except Interrupted as error:
            raise SystemExit(128 + error.signal) from None
        except NotFiniteError:
            raise SystemExit(1) from None

    def _whole(self, own: Tensor) -> Tensor:
        """Return the rows of all ranks, however many each has; the own ones keep their graph."""
        counts = self.all_gather_counts(len(own))
        padded = own.new_zeros(max(counts), *own.shape[1:])
        padded[: len(own)] = own.detach()
        parts = list(self.all_gather(padded).split(max(counts)))
        parts = [part[:count] for part, count in zip(parts, counts, strict=True)]
        parts[self.rank] = own
        return torch.cat(parts)


def add_up_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Replace the gradients by their sums over all processes of the group, be it one."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    with _together():
        dist.all_reduce(flat)
    sizes = [gradient.numel() for gradient in gradients]
    for gradient, total in zip(gradients, flat.split(sizes), strict=True):
        gradient.copy_(total.view_as(gradient))


def _check_started_by_torchrun() -> None:
    """Raise UserError unless all is there that torchrun tells a process."""
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


def _packed(value: object) -> bytes:
    """Return tensors, numbers and text as they would stand in a file."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def _check(config: Config, size: int) -> None:
    """Raise UserError unless so many ranks can share environments and GPUs."""
    if config.n_envs % size:
        raise UserError(
            f"n_envs: {config.n_envs} environments cannot be shared by {size} ranks. "
            f"Choose a multiple of {size}"
        )
    if size == 1 or not config.device.startswith("cuda"):
        return
    n_local, n_gpus = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
    if n_local > n_gpus or config.device != "cuda":
        raise UserError(
            f"device: '{config.device}' for {n_local} ranks on a machine of {n_gpus} GPUs. "
            "Start one for each GPU with device=cuda, or use device=cpu"
        )


@contextmanager
def _together() -> Iterator[None]:
    """Turn the loss of another rank into one line."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).splitlines()[0][:200]
        raise RunError(
            f"rank {dist.get_rank()}: the ranks have lost each other ({reason})"
        ) from None
