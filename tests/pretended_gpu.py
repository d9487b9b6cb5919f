"""A GPU that there is not: tensors that call themselves cuda:0, their numbers lying on the CPU.

As on a real one, an operation on tensors of both devices is an error, and so is NumPy's look at
one. It says nothing about speed, memory, or the results of a GPU's own kernels.
"""

from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from unittest.mock import patch

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from models.language import transformer
from utils import cuda_graphs

CUDA = torch.device("cuda", 0)
# Between devices these are allowed: copies, and numbers of rows that lie on the CPU.
MIXING = {"aten::copy_", "aten::_to_copy", "aten::index", "aten::index_put_"}
MIXING |= {"aten::_index_put_impl_"}
move = torch.Tensor.to
# While work is recorded the host may neither look at a number nor send one.
LOOKS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::is_nonzero"}
recording: list[bool] = []


def not_recorded(what):
    if recording:
        raise RuntimeError(f"{what}: not while a graph is recorded")


class OnGpu(torch.Tensor):
    """To PyTorch a tensor without memory; `numbers` has them."""

    device = CUDA
    is_cuda = True

    @staticmethod
    def __new__(cls, numbers):
        options = {"strides": numbers.stride(), "dtype": numbers.dtype, "device": "meta"}
        offset = numbers.storage_offset()
        shape = numbers.size()
        return cls._make_wrapper_subclass(cls, shape, storage_offset=offset, **options)

    def __init__(self, numbers):
        self.numbers = numbers

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return operated(func, args, kwargs or {})

    def __getitem__(self, index):
        return super().__getitem__(torch.tensor(index) if isinstance(index, list) else index)

    def __setitem__(self, index, value):
        super().__setitem__(torch.tensor(index) if isinstance(index, list) else index, value)

    def __deepcopy__(self, memo):
        copy = OnGpu(self.numbers.detach().clone())
        if isinstance(self, torch.nn.Parameter):
            copy = torch.nn.Parameter(copy, self.requires_grad)
        memo[id(self)] = copy
        return copy

    def __reduce_ex__(self, protocol):
        return self.numbers.detach().clone().__reduce_ex__(protocol)

    def tolist(self):
        return self.numbers.tolist()


class Everywhere(TorchDispatchMode):
    """Sees also the operations that take no tensors."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return operated(func, args, kwargs or {})


def operated(func, args, kwargs):
    """Run an operation on the numbers and return its result on the device it would lie on."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    on_gpu = {id(tensor.numbers): tensor for tensor in tensors if isinstance(tensor, OnGpu)}
    others = [tensor for tensor in tensors if not isinstance(tensor, OnGpu) and tensor.dim()]
    if on_gpu and others and func._schema.name not in MIXING:
        raise RuntimeError(f"{func}: expected all tensors on the same device, cuda:0 or cpu")
    stays = bool(on_gpu)
    if on_gpu and func._schema.name in LOOKS:
        not_recorded(func._schema.name)
    if kwargs.get("device") is not None:
        if tensors and bool(on_gpu) != (torch.device(kwargs["device"]).type != "cpu"):
            not_recorded(func._schema.name)
        stays = torch.device(kwargs["device"]).type != "cpu"
        kwargs = kwargs | {"device": "cpu"}

    def inside(leaf):
        return leaf.numbers if isinstance(leaf, OnGpu) else leaf

    def outside(leaf):
        if not isinstance(leaf, torch.Tensor) or not stays:
            return leaf
        return on_gpu.get(id(leaf)) if id(leaf) in on_gpu else OnGpu(leaf)

    return tree_map(outside, func(*tree_map(inside, args), **tree_map(inside, kwargs)))


def moved(tensor, *args, **kwargs):
    """Stand in for `Tensor.to`, which would ask a driver."""
    device, types = kwargs.pop("device", None), []
    for given in args:
        if isinstance(given, str | torch.device):
            device = given
        elif isinstance(given, torch.dtype):
            types.append(given)
    options = {name: value for name, value in kwargs.items() if value is not None}
    tensor = move(tensor, *types, **options) if types or options else tensor
    if device is None:
        return tensor
    if torch.device(device).type == "cpu":
        return tensor.cpu()
    if isinstance(tensor, OnGpu):
        return tensor
    not_recorded("a copy to the device")
    return OnGpu(tensor.detach().clone())


def made(function):
    """Stand in for `torch.tensor` and `torch.as_tensor`, which would ask a driver, too."""

    def make(data, *args, device=None, **kwargs):
        tensor = function(data, *args, **kwargs)
        return tensor if device is None else moved(tensor, device)

    return make


def repeated(work):
    """Stand in for a graph: its results lie in one place and are overwritten by each call."""
    recording.append(True)
    try:
        results = tree_map_only(torch.Tensor, torch.Tensor.clone, work())
    finally:
        recording.pop()

    def replay():
        for kept, each in zip(tree_leaves(results), tree_leaves(work()), strict=True):
            if kept is not None:
                kept.copy_(each)
        return results

    return replay


@contextmanager
def pretended_gpu():
    """Have a GPU while the block runs, named cuda."""
    with ExitStack() as stack:
        for owner, name, other in (
            (torch.cuda, "_lazy_init", lambda: None),
            (torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=10**12)),
            (torch, "tensor", made(torch.tensor)),
            (torch, "as_tensor", made(torch.as_tensor)),
            (torch.Tensor, "to", moved),
            (torch.cuda, "is_current_stream_capturing", lambda: bool(recording)),
            (torch.cuda, "get_rng_state", torch.get_rng_state),
            (torch.cuda, "set_rng_state", torch.set_rng_state),
            (cuda_graphs, "recorded", repeated),
            (transformer, "can_fuse", lambda _: False),  # Triton would ask a driver, too
        ):
            stack.enter_context(patch.object(owner, name, other))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(Everywhere())
        yield
