import copy
import math

import pytest
import torch

from utils.saved_state import called, check_like, check_steps, load_moments, moments, with_moments

HERE = {"mean": 0.5, "rows": [1, 2], "steps": torch.zeros(2, 3), "done": torch.zeros(2).bool()}
MISFITS = {
    "no dictionary": [],
    "a key more": HERE | {"more": 1},
    "a key less": {"mean": 0.5},
    "text for a number": HERE | {"mean": "0.5"},
    "truth for a number": HERE | {"rows": [True, 2]},
    "a shorter list": HERE | {"rows": [1]},
    "a tuple for a list": HERE | {"rows": (1, 2)},
    "a number for a tensor": HERE | {"steps": 0.0},
    "another shape": HERE | {"steps": torch.zeros(3, 2)},
    "another type": HERE | {"steps": torch.zeros(2, 3).double()},
    "a sparse tensor": HERE | {"steps": torch.zeros(2, 3).to_sparse()},
    "a tensor without content": HERE | {"steps": torch.zeros(2, 3, device="meta")},
    "a parameter": HERE | {"steps": torch.nn.Parameter(torch.zeros(2, 3))},
    "a tensor that is not finite": HERE | {"steps": torch.full((2, 3), math.nan)},
}


def test_a_state_with_other_numbers_fits():
    assert check_like(HERE | {"mean": 0.7, "steps": torch.ones(2, 3)}, HERE, "state") is None


@pytest.mark.parametrize("name", MISFITS)
def test_a_state_that_is_built_otherwise_does_not_fit(name):
    with pytest.raises(ValueError, match="state"):
        check_like(MISFITS[name], HERE, "state")


def test_what_has_another_size_in_every_run_is_left_out():
    here = {"of run": HERE, "rows": [0]}
    saved = {"of run": HERE | {"rows": [1, 2, 3]}, "rows": [0]}
    assert check_like(saved, here, "state", {"state.of run.rows"}) is None
    with pytest.raises(ValueError, match=r"state\.of run\.rows has 3 entries, not 2"):
        check_like(saved, here, "state", {"state.rows"})


def test_steps_may_be_any_number_of_one_kind():
    like = {"seen": torch.zeros(2, 3), "starts": torch.zeros(2).bool()}
    steps = {"seen": torch.ones(5, 2, 3), "starts": torch.ones(5, 2).bool()}
    assert check_steps(steps, like, "steps") is None
    for kind, wrong in (("seen", torch.ones(5, 3, 2)), ("starts", torch.ones(5, 2))):
        with pytest.raises(ValueError, match=rf"steps\.{kind}"):
            check_steps(steps | {kind: wrong}, like, "steps")
    with pytest.raises(ValueError, match="steps"):
        check_steps({kind: value[:0] for kind, value in steps.items()}, like, "steps")


def test_tensors_are_found_by_name_wherever_they_stand():
    text = [torch.zeros(n) for n in range(2)]
    state = {"a": {"text": text[0], "b": [{"text": 3}]}, "text": text[1], "texts": text[0]}
    assert list(called(state, "text")) == text


@pytest.fixture(params=[True, False], ids=["fused", "plain"])
def optimizer(request):
    parameters = [torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.ones(4))]
    return with_moments(torch.optim.AdamW(parameters, lr=1e-3, fused=request.param))


def step(optimizer, n_times=1):
    parameters = optimizer.param_groups[0]["params"]
    for _ in range(n_times):
        optimizer.zero_grad()
        sum(p.square().sum() for p in parameters).backward()
        optimizer.step()
    return [p.detach().clone() for p in parameters]


def test_moments_that_are_there_from_the_start_are_those_of_the_first_step(optimizer):
    options = {"lr": 1e-3, "fused": optimizer.param_groups[0]["fused"]}
    parameters = [
        torch.nn.Parameter(p.detach().clone()) for p in optimizer.param_groups[0]["params"]
    ]
    lazy = torch.optim.AdamW(parameters, **options)
    for one, other in zip(step(optimizer, 3), step(lazy, 3), strict=True):
        assert torch.equal(one, other)
    assert check_like(moments(optimizer), lazy.state_dict()["state"], "moments") is None


def test_moments_go_on_as_they_stood(optimizer):
    step(optimizer)
    saved = copy.deepcopy(moments(optimizer))
    kept = [p.detach().clone() for p in optimizer.param_groups[0]["params"]]
    after = step(optimizer)
    for parameter, before in zip(optimizer.param_groups[0]["params"], kept, strict=True):
        parameter.data.copy_(before)
    load_moments(optimizer, saved)
    assert all(map(torch.equal, step(optimizer), after))


def test_moments_of_another_parameters_shape_do_not_fit(optimizer):
    """PyTorch's fused AdamW would write beyond them."""
    here = moments(optimizer)
    for wrong in ({0: here[1], 1: here[0]}, {0: here[0]}, {**here, 2: here[0]}, {**here, 1: {}}):
        with pytest.raises(ValueError, match="moments"):
            check_like(wrong, here, "moments")
