import copy
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from utils.saved_state import (
    called,
    check_like,
    check_steps,
    load_moments,
    moments,
    moments_of,
    with_moments,
)

TENSOR = torch.zeros(2, 3)
OTHERS = {  # of each kind of leaf: values that are no such leaf
    float: ["0.5", 1, True, None, TENSOR],
    int: ["1", 0.5, True, None, [1]],
    torch.Tensor: [
        *(0.0, None, [], TENSOR.T, TENSOR.double(), TENSOR.bool(), TENSOR.to_sparse()),
        *(torch.zeros(2, 3, device="meta"), torch.nn.Parameter(TENSOR), TENSOR / 0),
    ],
}
LEAVES = st.sampled_from([0.5, 7, TENSOR])
STATES = st.recursive(
    LEAVES, lambda each: st.lists(each, min_size=1) | st.dictionaries(st.text(), each, min_size=1)
)


def spoiled(state, data):
    """Return a state in which one leaf is another, or one of the containers has another size."""
    if not isinstance(state, dict | list):
        return data.draw(st.sampled_from(OTHERS[type(state)]))
    how = data.draw(st.sampled_from(["less", "more", "a tuple", "deeper"]))
    if isinstance(state, list):
        if how == "deeper":
            return [spoiled(state[0], data), *state[1:]]
        return {"less": state[1:], "more": [*state, 1], "a tuple": tuple(state)}[how]
    name, *rest = state
    if how == "deeper":
        return state | {name: spoiled(state[name], data)}
    less = {each: state[each] for each in rest}
    return {"less": less, "more": state | {f"{state.keys()}": 1}, "a tuple": list(state)}[how]


def other_numbers(state):
    if isinstance(state, dict):
        return {name: other_numbers(each) for name, each in state.items()}
    return [other_numbers(each) for each in state] if isinstance(state, list) else state + 1


@pytest.mark.slow
@given(STATES, st.data())
@settings(max_examples=100)
def test_a_state_with_other_numbers_fits_and_one_that_is_built_otherwise_does_not(state, data):
    assert check_like(other_numbers(state), state, "state") is None
    wrong = spoiled(state, data)
    with pytest.raises(ValueError, match="state"):
        check_like(wrong, state, "state")
    assert check_like({"of run": wrong}, {"of run": state}, "state", {"state.of run"}) is None


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


OPTIMIZERS = {
    "fused": partial(torch.optim.AdamW, lr=1e-3, fused=True),
    "plain": partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.1),
    "RMSprop": partial(torch.optim.RMSprop, lr=1e-3, momentum=0.9),
}


@pytest.fixture(params=OPTIMIZERS)
def make(request):
    return OPTIMIZERS[request.param]


@pytest.fixture
def optimizer(make):
    parameters = [torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.ones(4))]
    return with_moments(make(parameters))


def step(optimizer, n_times=1):
    parameters = optimizer.param_groups[0]["params"]
    for _ in range(n_times):
        optimizer.zero_grad()
        sum(p.square().sum() for p in parameters).backward()
        optimizer.step()
    return [p.detach().clone() for p in parameters]


def test_moments_that_are_there_from_the_start_are_those_of_the_first_step(optimizer, make):
    lazy = make(copy.deepcopy(optimizer.param_groups[0]["params"]))
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


def test_an_optimiser_that_begins_otherwise_is_refused_where_it_is_made():
    with pytest.raises(TypeError, match="NAdam: its 'mu_product'"):
        with_moments(torch.optim.NAdam([torch.nn.Parameter(torch.ones(2))]))


def test_moments_of_another_parameters_shape_do_not_fit(optimizer):
    """PyTorch's fused AdamW would write beyond them."""
    here = moments(optimizer)
    for wrong in ({0: here[1], 1: here[0]}, {0: here[0]}, {**here, 2: here[0]}, {**here, 1: {}}):
        with pytest.raises(ValueError, match="moments"):
            check_like(wrong, here, "moments")


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.RMSprop])
def test_the_moments_of_any_optimiser_are_grouped_by_their_names(kind):
    parameters = [torch.nn.Parameter(torch.ones(n)) for n in (2, 3)]
    optimizer = with_moments(kind(parameters))
    groups = moments_of([optimizer])
    assert len(groups) == len(optimizer.state[parameters[0]])
    for group, name in zip(groups, optimizer.state[parameters[0]], strict=True):
        assert all(
            each is optimizer.state[p][name] for each, p in zip(group, parameters, strict=True)
        )
