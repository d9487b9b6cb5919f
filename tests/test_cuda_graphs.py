"""Work as a CUDA graph, compared with the plain work before it is trusted; on the CPU."""

from types import SimpleNamespace

import pytest
import torch

from models.baselines import CnnAgent
from models.helm import Helm
from tests.pretended_gpu import OnGpu, pretended_gpu, repeated
from trainers.dqn import DQN
from trainers.learner import Learner
from trainers.ppo import PPO
from trainers.sac import SAC
from utils import cuda_graphs
from utils.cuda_graphs import CHECKS, CheckedGraph, largest_difference


@pytest.fixture
def gpu():
    with pretended_gpu():
        yield


def counting(state):
    """Return work that moves its state by its input, and by chance."""

    def work(given):
        state.add_(given + 0.01 * torch.rand_like(given))
        return [2 * state, state.sum()]

    return work


def played(record, monkeypatch, n=CHECKS + 4):
    """Return the results and states of work that is recorded so, and the graph, None: plain."""
    torch.manual_seed(0)
    state, found = torch.zeros(3, device="cuda"), []
    work, graph = counting(state), None
    for number in range(n):
        given = torch.full((3,), float(number), device="cuda")
        if record is not None and graph is None:
            monkeypatch.setattr(cuda_graphs, "recorded", record)
            graph = CheckedGraph("work", work, lambda: [[state]])
        results = work(given) if graph is None else graph(given)
        found += [each.cpu() for each in (*results, state)]
    return found, graph


def lying(call):
    def record(work):
        calls = iter(range(1000))
        return lambda: [each + (next(calls) >= 2 * call) for each in work()]

    return record


def refusing(work):
    work()  # what it did must not stay
    raise RuntimeError("no graphs here\nand a long story")


@pytest.mark.parametrize(
    ("record", "works"),
    [(repeated, True), (lying(0), False), (lying(5), False), (refusing, False)],
    ids=["true", "lying", "lying later", "refusing"],
)
def test_whatever_the_graph_does_results_and_state_are_the_plain_ones(
    record, works, gpu, monkeypatch, capsys
):
    expected, _ = played(None, monkeypatch)
    found, graph = played(record, monkeypatch)
    assert all(map(torch.equal, found, expected))
    assert graph.works == works
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == (not works)
    assert all(line.startswith("work: not replayed as a CUDA graph: ") for line in lines)


def test_inputs_of_other_shapes_go_the_plain_way(gpu):
    seen = []
    graph = CheckedGraph("work", lambda given: seen.append(given) or [given + 1])
    for n in (3, 2, 3):
        given = torch.ones(n, device="cuda")
        assert torch.equal(graph(given)[0].cpu(), torch.full((n,), 2.0))
    assert graph.n_unchecked == CHECKS - 2
    assert sum(len(each) == 2 for each in seen) == 1


@pytest.mark.parametrize("ours", [CnnAgent, Helm, PPO, DQN, SAC])
def test_what_a_user_derives_from_ours_is_not_recorded_unasked(ours):
    assert ours.recordable
    assert not type("Mine", (ours,), {}).recordable


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("n_texts", [0, 1])
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_work_with_other_ranks_or_with_texts_is_not_recorded(kind, n_texts, size):
    reader = SimpleNamespace(n_texts=n_texts)
    agent = SimpleNamespace(reader=reader, device=torch.device(kind), recordable=True)
    learner = SimpleNamespace(agent=agent, ranks=SimpleNamespace(size=size), recordable=True)
    may_record = Learner.may_record.func(learner)
    assert may_record == ((kind, n_texts, size) == ("cuda", 0, 1))


def test_what_caches_ask_for_says_that_a_replay_changed_the_state(gpu, monkeypatch):
    torch.manual_seed(0)
    state = torch.zeros(3, device="cuda")
    graph = CheckedGraph("work", counting(state), lambda: [[state]])
    versions = []
    for _ in range(CHECKS + 2):
        graph(torch.ones_like(state))
        versions.append(state._version)
    assert isinstance(state, OnGpu)
    assert sorted(set(versions)) == versions


@pytest.mark.parametrize(
    ("found", "difference"),
    [([1.0, 4.0], 0.0), ([1.0, 3.0], 0.25), ([1.0, float("nan")], float("nan"))],
)
def test_a_difference_is_a_share_of_the_largest_number(found, difference):
    one, other = [torch.tensor(found)], [torch.tensor([1.0, 4.0])]
    assert largest_difference(one, other) == pytest.approx(difference, nan_ok=True)
    assert largest_difference(one, one) == 0
