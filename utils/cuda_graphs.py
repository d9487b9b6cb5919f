"""Work on a GPU as CUDA graphs: all its kernels are sent at once, with recorded shapes and places.

The host does not take part in a replay: it may look at no number, and whatever else Python does in
the work is done while it is recorded alone.
"""

import sys
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

WARM_UPS = 3  # calls in which libraries set themselves up, before one is recorded
CHECKS = 8  # results that are computed both ways
TOLERANCE = 1e-3  # the largest difference, as a share of the largest number


def recorded(work: Callable[[], list[Tensor]]) -> Callable[[], list[Tensor]]:
    """Record the work as a CUDA graph; each call of it overwrites the results of the last."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(WARM_UPS):
            work()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = work()

    def replay() -> list[Tensor]:
        graph.replay()
        return results

    return replay


def is_recorded(tensor: Tensor) -> bool:
    """Whether work on a tensor is being recorded now, so that the host may not look at it."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def largest_difference(found: Iterable[Tensor], expected: Iterable[Tensor]) -> float:
    """Return the largest difference as a share of the largest number; equal NaNs are equal."""
    one, other = (
        torch.cat([each.flatten().double() for each in many]) for many in (found, expected)
    )
    same = (one == other) | (one.isnan() & other.isnan())
    difference = torch.where(same, 0.0, (one - other).abs()).max()
    return (difference / other.nan_to_num(0.0, 0.0, 0.0).abs().max().clamp(min=1e-12)).item()


class CheckedGraph:
    """Work of fixed shapes as a CUDA graph, given up where it differs from the plain work.

    What the graph computes counts from the first result on: a run that is resumed, and records
    again, goes on as the undisturbed one.

    Args:
        name: Of the work, for the line that says it was given up.
        work: Maps tensors to tensors.
        inputs: Of its first call, for their shapes.
        state: Tensors that the work changes in place, in groups of alike ones.
    """

    def __init__(
        self,
        name: str,
        work: Callable[..., list[Tensor]],
        inputs: Sequence[Tensor],
        state: Sequence[Sequence[Tensor]] = (),
    ) -> None:
        self.name, self.work, self.state = name, work, [list(group) for group in state]
        self.inputs = [each.clone() for each in inputs]
        self._shapes = [(each.shape, each.dtype) for each in inputs]
        self.works, self.n_unchecked = True, CHECKS
        before = self._saved()
        try:
            self._replay = recorded(lambda: work(*self.inputs))
        except RuntimeError as error:  # of many kinds, from drivers and libraries
            self._give_up(str(error).partition("\n")[0])
        self._restore(before)

    def fits(self, inputs: Sequence[Tensor]) -> bool:
        return self.works and self._shapes == [(each.shape, each.dtype) for each in inputs]

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        if not self.works:
            return self.work(*inputs)
        torch._foreach_copy_(self.inputs, list(inputs))
        if self.n_unchecked:
            return self._checked(inputs)
        results = [each.clone() for each in self._replay()]
        self._note_changes()
        return results

    def _checked(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        before = self._saved()
        expected = self.work(*inputs)
        after = self._saved()
        self._restore(before)
        found = [each.clone() for each in self._replay()]
        self.n_unchecked -= 1
        pairs = [(found, expected), *zip(self.state, after[0], strict=True)]
        differences = [largest_difference(*pair) for pair in pairs]
        wrong = [each for each in differences if not each <= TOLERANCE]  # NaN among them
        if not wrong:
            self._note_changes()
            return found
        self._give_up(f"it differs by {wrong[0]:.1%} from the plain work")
        self._restore(after)
        return expected

    def _saved(self) -> tuple[list[list[Tensor]], Tensor]:
        copies = [[each.detach().clone() for each in group] for group in self.state]
        return copies, torch.cuda.get_rng_state()

    @torch.no_grad()
    def _restore(self, saved: tuple[list[list[Tensor]], Tensor]) -> None:
        for group, copies in zip(self.state, saved[0], strict=True):
            torch._foreach_copy_(group, copies)
        torch.cuda.set_rng_state(saved[1])

    def _note_changes(self) -> None:
        # Caches of what weights give ask for their versions, which a replay does not count.
        for group in self.state:
            increment_version(group)

    def _give_up(self, reason: str) -> None:
        self.works = False
        print(f"{self.name}: not replayed as a CUDA graph: {reason}", file=sys.stderr)
