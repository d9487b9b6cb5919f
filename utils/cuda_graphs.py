"""Work on a GPU as CUDA graphs: all kernels are sent at once, with recorded shapes."""

# The host does not take part in a replay: it may look at no number, and whatever else Python does
# in the work is done while it is recorded alone.

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.utils._pytree import tree_leaves, tree_map_only

Result = TypeVar("Result")  # tensors in named tuples or dictionaries

WARM_UPS = 3  # calls in which libraries set themselves up, before one is recorded
CHECKS = 8  # results that are computed both ways
TOLERANCE = 1e-3  # the largest difference, as a share of the largest number


class Recordable:
    """Base of classes with work that a GPU may repeat as a CUDA graph.

    Attributes:
        recordable: Whether the work is on tensors alone: the host looks at no number, and nothing
            in Python changes. It counts for the very class that says so: a subclass may do more,
            which would be done while it is recorded alone, and has to say so itself.
    """

    recordable: ClassVar[bool] = False

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.recordable = vars(cls).get("recordable", False)


def recorded(work: Callable[[], Result]) -> Callable[[], Result]:
    """Record the work as a CUDA graph; each call of it overwrites the results of the last."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(WARM_UPS):
            work()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            results = work()
    except RuntimeError:
        # The generator would take itself for recorded ever after, and refuse to draw.
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        generator.graphsafe_set_state(generator.clone_state())
        raise

    def replay() -> Result:
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


def tensors_in(tree: Any) -> list[Tensor]:
    return [each for each in tree_leaves(tree) if each is not None]


class CheckedGraph(Generic[Result]):
    """Work of fixed shapes as a CUDA graph, given up where it differs from the plain work.

    It is recorded at its first call; inputs of other shapes go the plain way. What the graph
    computes counts from the first result on: a run that is resumed, and records again, goes on as
    the undisturbed one.

    Args:
        name: Of the work, for the line that says it was given up.
        work: Maps tensors, or named tuples of them, to such or to a dictionary of tensors.
        state: Returns the tensors that the work changes in place, in groups of alike ones; left
            out, doing it twice changes nothing.
        plain: The same by other operations, to compare with.
        tolerance: The largest difference, as a share of the largest number.

    Attributes:
        works: False once recording failed, or a result was another; `reason` tells it.
        n_unchecked: Results that are still to be compared.
    """

    def __init__(
        self,
        name: str,
        work: Callable[..., Result],
        state: Callable[[], Sequence[Sequence[Tensor]]] = tuple,
        plain: Callable[..., Result] | None = None,
        tolerance: float = TOLERANCE,
    ) -> None:
        self.name, self.work, self._state_of = name, work, state
        self.plain, self.tolerance = plain or work, tolerance
        self.works, self.reason, self.n_unchecked = True, "", CHECKS
        self._shapes: list[tuple[torch.Size, torch.dtype]] = []  # of the recorded inputs

    def __call__(self, *inputs: Any) -> Result:
        given = tensors_in(inputs)
        shapes = [(each.shape, each.dtype) for each in given]
        if self.works and not self._shapes:
            self._shapes = shapes
            self._record(inputs)
        if not self.works or shapes != self._shapes:
            return self.plain(*inputs)
        # A graph reads the addresses that it was recorded with: so its inputs stay in one place.
        torch._foreach_copy_(self._inputs, given)
        if self.n_unchecked:
            return self._checked(inputs)
        return self._replayed()

    def _record(self, inputs: Any) -> None:
        # The optimiser's moments are others once a state was loaded, so they are asked for here.
        self._state = [list(group) for group in self._state_of()]
        kept = tree_map_only(Tensor, Tensor.clone, inputs)
        self._inputs = tensors_in(kept)
        before = self._saved()
        try:
            self._replay = recorded(lambda: self.work(*kept))
        except RuntimeError as error:  # of many kinds, from drivers and libraries
            self._give_up(str(error).partition("\n")[0])
        self._restore(before)

    def _replayed(self) -> Result:
        results = self._replay()
        # The next replay overwrites them. One operation for all copies, not one for each.
        if isinstance(results, Tensor):  # of a language model's step; the host is in its way
            copies: Any = results.clone()
        else:
            copies = tree_map_only(Tensor, torch.empty_like, results)
            torch._foreach_copy_(tensors_in(copies), tensors_in(results))
        # Caches of what weights give ask for their versions, which a replay does not count.
        for group in self._state:
            increment_version(group)
        return copies

    def _checked(self, inputs: Any) -> Result:
        # The first results of training weights are compared, as whatever a graph does otherwise,
        # it does from the start on: a wrong address, a number from the recording, a stale cache.
        self.n_unchecked -= 1
        before = self._saved()
        expected = self.plain(*inputs)
        after = self._saved()
        self._restore(before)
        found = self._replayed()
        pairs = [(tensors_in(found), tensors_in(expected))]
        pairs += zip(self._state, after[0], strict=True)
        differences = [largest_difference(*pair) for pair in pairs]
        wrong = [each for each in differences if not each <= self.tolerance]  # NaN among them
        if not wrong:
            return found
        self._give_up(f"it differs by {wrong[0]:.1%} from the plain work")
        self._restore(after)
        return expected

    def _saved(self) -> tuple[list[list[Tensor]], Tensor]:
        copies = [[each.detach().clone() for each in group] for group in self._state]
        return copies, torch.cuda.get_rng_state()

    @torch.no_grad()
    def _restore(self, saved: tuple[list[list[Tensor]], Tensor]) -> None:
        for group, copies in zip(self._state, saved[0], strict=True):
            torch._foreach_copy_(group, copies)
        torch.cuda.set_rng_state(saved[1])

    def _give_up(self, reason: str) -> None:
        # The plain work is as good, and slower: a driver without graphs must end no run.
        self.works, self.reason = False, reason
        print(f"{self.name}: not replayed as a CUDA graph: {reason}", file=sys.stderr)
