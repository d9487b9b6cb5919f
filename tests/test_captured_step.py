"""The step that becomes a CUDA graph, run on the CPU: it must do the same work every time."""

import gc
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from models.language.load import load_language_model
from models.language.transformer import LayerStack
from tests.pretended_gpu import repeated
from tests.token_streams import N_ENVS, play, stream
from utils import cuda_graphs

LOOKS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::equal"}  # the host waits for these


class Recorder(TorchDispatchMode):
    """Lists every operation with the shapes and strides of its arguments."""

    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        shapes = tuple((tuple(tensor.shape), tensor.stride()) for tensor in tensors)
        self.operations.append((func.name(), shapes))
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def no_generator(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: None)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state: None)


@pytest.fixture(params=["transfo-xl", "bert"])
def folder(request, decoders):
    return decoders[request.param]


def assert_read_alike(model, monkeypatch, recorded, n_new=1):
    """Compare steps recorded in this way with plain ones; return the memory of the recorded."""
    tokens, is_first = stream(model, n_steps=30, n_new=n_new)
    expected, found = model.initial_memory(N_ENVS), model.initial_memory(N_ENVS)
    for slots in (found.keys, found.values):
        slots.fill_(torch.nan)  # as bad as memory that nobody has written can be
    hidden = play(model, expected, tokens, is_first)
    monkeypatch.setattr(LayerStack, "captures", True)
    monkeypatch.setattr(cuda_graphs, "recorded", recorded)
    torch.testing.assert_close(play(model, found, tokens, is_first), hidden, atol=1e-5, rtol=0)
    # The same tokens may lie elsewhere in their rings and be summed up in another order.
    states = expected.state_dict(), found.state_dict()
    for name in ("keys", "values", "ages"):
        torch.testing.assert_close(states[0][name], states[1][name], atol=1e-5, rtol=0)
    return found


@pytest.mark.quick("transfo-xl-1-6", "bert-3-6")
@pytest.mark.parametrize("mem_len", [1, 6, 40])
@pytest.mark.parametrize("n_new", [1, 3])
def test_the_recorded_step_reads_what_the_plain_one_reads(folder, mem_len, n_new, monkeypatch):
    model = load_language_model(folder, mem_len=mem_len)
    graph = assert_read_alike(model, monkeypatch, repeated, n_new).graph
    assert graph.works
    assert graph.n_unchecked == 0


@pytest.mark.parametrize("n_new", [1, 3])
def test_every_step_is_the_same_work_and_no_number_is_looked_at(folder, n_new, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "recorded", lambda work: work)
    model = load_language_model(folder, mem_len=6)
    memory = model.initial_memory(N_ENVS)
    memory.open(n_new)
    step = model.recorded((memory.keys, memory.values)).work
    seen = []
    with torch.no_grad():
        for position, ages in ((0, [0, 0, 0]), (5, [9, 0, 2]), (3, [50, 60, 70])):
            tokens = torch.randn(N_ENVS, n_new, model.width)
            with Recorder() as recorder:
                step(tokens, torch.tensor(ages), torch.tensor(position))
            seen.append(recorder.operations)
    assert seen[0] == seen[1] == seen[2]
    assert not {name.split(".")[0] for name, _ in seen[0]} & LOOKS


def test_a_step_is_recorded_once_for_a_memory_and_goes_with_it(folder, monkeypatch):
    model = load_language_model(folder, mem_len=6)
    works = []
    monkeypatch.setattr(LayerStack, "captures", True)
    monkeypatch.setattr(cuda_graphs, "recorded", lambda work: works.append(work) or work)
    memory = model.initial_memory(N_ENVS)
    tokens, is_first = stream(model, n_steps=30)
    for token, start in zip(tokens, is_first, strict=True):
        model.step(token, memory, start, advance=False)
        model.step(token, memory, start)
    assert len(works) == 1
    model.step(tokens[0], memory.copy(), is_first[0])
    assert len(works) == 2
    memory.load_state_dict(memory.state_dict())
    model.step(tokens[0], memory, is_first[0])
    assert len(works) == 2
    step = weakref.ref(memory.graph)
    works.clear()
    del memory
    gc.collect()
    assert step() is None
