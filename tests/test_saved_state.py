import math

import pytest
import torch

from trainers.saved_state import check_like, check_optimizer

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


@pytest.fixture
def optimizer():
    parameters = [torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.ones(4))]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, fused=True)
    sum(p.square().sum() for p in parameters).backward()
    optimizer.step()
    return optimizer


def parameters_of(optimizer):
    return optimizer.param_groups[0]["params"]


def test_an_optimizers_own_state_fits_at_another_learning_rate(optimizer):
    saved = optimizer.state_dict()
    optimizer.param_groups[0]["lr"] = 1e-5
    assert check_optimizer(saved, optimizer, parameters_of(optimizer)) is None


def test_a_new_optimizers_state_fits(optimizer):
    new = torch.optim.AdamW(parameters_of(optimizer), lr=1e-3, fused=True)
    assert check_optimizer(new.state_dict(), optimizer, parameters_of(optimizer)) is None


@pytest.mark.parametrize(
    ("entry", "value"),
    [("params", [0, 0]), ("fused", False), ("eps", 0.0), ("lr", math.inf), ("betas", (0.9, 2.0))],
)
def test_another_group_of_parameters_does_not_fit(entry, value, optimizer):
    saved = optimizer.state_dict()
    saved["param_groups"][0][entry] = value
    with pytest.raises(ValueError, match="param_groups"):
        check_optimizer(saved, optimizer, parameters_of(optimizer))


@pytest.mark.parametrize("number", [2, -1, "0", True])
def test_a_state_of_no_parameter_does_not_fit(number, optimizer):
    saved = optimizer.state_dict()
    saved["state"][number] = saved["state"].pop(1)
    with pytest.raises(ValueError, match="parameter that there is not"):
        check_optimizer(saved, optimizer, parameters_of(optimizer))


def test_moments_of_another_parameters_shape_do_not_fit(optimizer):
    """PyTorch's fused AdamW would write beyond them."""
    saved = optimizer.state_dict()
    saved["state"] = {0: saved["state"][1], 1: saved["state"][0]}
    with pytest.raises(ValueError, match=r"exp_avg is .* of shape \(4,\), not .* \(2, 3\)"):
        check_optimizer(saved, optimizer, parameters_of(optimizer))
