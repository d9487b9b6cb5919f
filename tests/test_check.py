"""The checks of memories: ours pass, and each fault is found by the check that is for it."""

import copy
import re

import pytest
import torch
from torch import nn

from analysis import __main__ as analysis
from models.agent import TensorMemory
from models.baselines import MemoryAgent
from models.memories import TrainedMemory, check
from tests.agents import BY_PPO
from tests.bad_inputs.harness import refused, tree
from tests.runs import DQN, ELLM, LSTM, PPO, same, train_row, words_of

WIDTH = 8
SMALL = {"device": "cpu", "env": "RandomMaze-v0"}


class Unsaved(TensorMemory):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Elman(TrainedMemory):
    """h_t = tanh(W [x_t, h_{t-1}]), with the fault that its class names."""

    fault = ""

    def __init__(self, n_features, settings):
        super().__init__(n_features, settings)
        self.width = WIDTH + (self.fault == "wrong width")
        self.n_context = 4 if self.fault == "a refresh empties" else 0
        self.cell = nn.Linear(n_features + WIDTH, WIDTH)

    def initial(self, n_envs):
        if self.fault == "one start for two states":
            self.zeros = zeros = getattr(self, "zeros", torch.zeros(n_envs, WIDTH))
            return TensorMemory(zeros)
        zeros = torch.zeros(n_envs, WIDTH, device=self.device)
        if self.fault == "one start for all":
            zeros = zeros[:1].expand(n_envs, WIDTH)
        if self.fault == "on the processor":
            zeros = zeros.new_zeros(zeros.shape, device="cpu")
        return (Unsaved if self.fault == "not saved" else TensorMemory)(zeros)

    def stored_state(self, state, is_first):
        if self.fault == "stored state after the step":
            state.state.masked_fill_(is_first[:, None], 0)
            return state.state
        if self.fault == "changed in place":
            return state.before(is_first)
        return self._begun(state.state, is_first)

    @torch.no_grad()
    def step(self, x, state, is_first, advance=True):
        after = self._next(x, self.stored_state(state, is_first))
        kept = after.masked_fill(is_first[:, None], 0) if self.fault == "late reset" else after
        if self.fault == "evaluation sees the first step" and not self.training:
            kept = torch.where(is_first[:, None], after, self.stored_state(state, is_first))
        if self.fault in IN_PLACE and advance:
            state.state.copy_(kept)
        elif advance or self.fault == "a look ahead advances":
            state.state = kept
        return after.double() if self.fault == "another dtype" else after

    def refresh(self, x, is_first, stored_state, state):
        state.state = torch.zeros_like(state.state)

    def unroll(self, x, is_first, stored_state):
        outputs, now, fault = [], stored_state, self.fault
        if fault == "all but the longest zeroed":
            lengths = is_first[1:].int().cumsum(0).eq(0).sum(0)
            now = now * (lengths == lengths.max())[:, None]
        for features, begins in zip(x, is_first, strict=True):
            before = now.detach() if fault == "gradient cut" else now
            begun = before if fault == "starts ignored" else self._begun(before, begins)
            after = self._next(features, begun)
            outputs.append(after)
            now = after.masked_fill(begins[:, None], 0) if fault == "late reset" else after
        if fault == "features changed":
            x.mul_(0.5)
        found = torch.stack(outputs) + (fault == "behind the padding") * now
        return 2 * found if fault == "twice" else found

    def unroll_at(self, x, is_first, stored_state, rows):
        if self.fault == "rows step by step":
            rows = rows.sort().values  # not sequence by sequence
        if self.fault == "rows changed":
            rows.copy_(rows.sort().values)
        return super().unroll_at(x, is_first, stored_state, rows)

    def _begun(self, before, is_first):
        is_kept = self.fault in ("no reset", "late reset")
        return before if is_kept else before.masked_fill(is_first[:, None], 0)

    def _next(self, x, before):
        read = before.roll(1, 0) if self.fault == "neighbour" else before
        return self.cell(torch.cat((x, read), 1)).tanh()


class Counting(TrainedMemory):
    """Weighs each input by its place in the episode; it learns no place behind the 14th."""

    n_context = 8

    def __init__(self, n_features, settings):
        super().__init__(n_features, settings)
        self.width = WIDTH
        self.enter = nn.Linear(n_features, WIDTH)

    def initial(self, n_envs):
        return TensorMemory(torch.zeros(n_envs, 1, device=self.device))

    def stored_state(self, state, is_first):
        return state.before(is_first)

    @torch.no_grad()
    def step(self, x, state, is_first, advance=True):
        age = self.stored_state(state, is_first)
        if advance:
            state.state = age + 1
        return self.enter(x) * age.cos()

    def unroll(self, x, is_first, stored_state):
        ages = self._ages(is_first, stored_state)[:-1].clamp(max=14)
        return self.enter(x) * ages.cos()

    def refresh(self, x, is_first, stored_state, state):
        state.state = self._ages(is_first, stored_state)[-1]

    def _ages(self, is_first, stored_state):
        ages = [stored_state]
        for begins in is_first:
            ages.append(ages[-1].masked_fill(begins[:, None], 0) + 1)
        ages[:-1] = [a.masked_fill(b[:, None], 0) for a, b in zip(ages, is_first, strict=False)]
        return torch.stack(ages)


def test_a_place_that_is_never_learned_is_found():
    findings = check.examine(Counting(3, None), check.QUICK)
    wrong = [each for each, finding in findings.items() if finding.is_right is False]
    assert wrong == [check.acting_equals_learning]


IN_PLACE = (
    *("stored state after the step", "changed in place"),
    *("one start for two states", "one start for all"),
)
FAULTS = {
    "twice": check.acting_equals_learning,
    "rows step by step": check.acting_equals_learning,
    "starts ignored": check.acting_equals_learning,
    "all but the longest zeroed": check.acting_equals_learning,
    "stored state after the step": check.acting_equals_learning,
    "a look ahead advances": check.acting_equals_learning,
    "no reset": check.a_reset_equals_a_fresh_start,
    "late reset": check.a_reset_equals_a_fresh_start,
    "changed in place": check.stored_states_stay_as_they_are,
    "a refresh empties": check.a_refreshed_state_goes_on_as_it_learns,
    "neighbour": check.no_environment_reads_its_neighbour,
    "behind the padding": check.padding_and_order_do_not_matter,
    "evaluation sees the first step": check.evaluation_acts_as_training_does,
    "not saved": check.saved_equals_loaded,
    "one start for two states": check.saved_equals_loaded,
    "on the processor": check.a_state_lies_where_its_network_does,
    "gradient cut": check.the_gradient_reaches_earlier_steps,
}
REFUSED = {
    "twice": "fails 'acting equals learning'",
    "no reset": "fails 'a reset equals a fresh start'",
    "changed in place": "fails 'stored states stay as they are'",
    "a refresh empties": "fails 'a refreshed state goes on as it learns'",
    "features changed": "unroll changes its arguments in place",
    "rows changed": "unroll_at changes its arguments in place",
    "one start for all": "it raised RuntimeError",
    "wrong width": "By its `width` it must return torch.float32 [12, 9]",
    "another dtype": "step returns torch.float64 [12, 8]",
    "no unroll": "it raised TypeError: 'NoneType' object is not callable",
}


def named(fault):
    return fault.title().replace(" ", "")


for fault in (*FAULTS, *REFUSED, ""):
    own: dict[str, object] = {"fault": fault, "__module__": __name__}
    if fault == "no unroll":
        own["unroll"] = None
    memory = globals()[named(fault) or "Right"] = type(named(fault) or "Right", (Elman,), own)
    agent = {"memory_class": memory, "__module__": __name__}
    globals()[f"{memory.__name__}Agent"] = type(f"{memory.__name__}Agent", (MemoryAgent,), agent)


def checked(capsys, name, settings):
    """Return the exit status of the check of a name, its lines, and its errors."""
    words = words_of(settings | {"model": name})
    status = analysis.main(["check", name, *(word for word in words if "=model=" not in word)])
    out, errors = capsys.readouterr()
    return status, out.splitlines(), errors


@pytest.mark.slow
@pytest.mark.quick("LSTM")
@pytest.mark.parametrize("name", [*BY_PPO, "tests.test_check:Right", "tests.test_check:RightAgent"])
def test_ours_are_right_and_nothing_is_written(name, in_empty_folder, capsys):
    status, lines, _ = checked(capsys, name, SMALL)
    assert status == 0
    n_checks = len(check.CHECKS)
    outcomes = [re.split("  +", line)[-1] for line in lines[1 : 1 + n_checks]]
    assert set(outcomes) <= {"ok", "not tested"}
    for kind in set(outcomes):  # what was not measured is not called right
        assert f"{outcomes.count(kind)} {kind}" in lines[-1]
    assert sum("not tested: " in line for line in lines) == outcomes.count("not tested")
    assert not list(in_empty_folder.iterdir())


@pytest.mark.quick("twice", "rows step by step", "not saved")
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_by_the_check_that_is_for_it(fault, capsys):
    status, lines, told = checked(capsys, f"tests.test_check:{named(fault)}", SMALL)
    assert status == 1
    title = check.title(FAULTS[fault])
    (line,) = [line for line in lines if line.startswith(f"{title} ")]
    assert line.endswith("FAILS")
    assert f"{title} fails: {check.told_of(FAULTS[fault])}" in told


@pytest.mark.slow
def test_a_run_is_checked_and_an_agent_without_a_memory_is_refused(in_empty_folder, capsys):
    folder = train_row("run", DQN | LSTM)
    before = tree()
    assert analysis.main(["check", str(folder)]) == 0
    assert tree() == before
    words = [word for word in words_of(ELLM) if "=model=" not in word]
    refused(capsys, "analysis", ["check", "ELLM", *words], "no trained memory")


@pytest.mark.parametrize("fault", REFUSED)
def test_a_run_with_a_broken_memory_does_not_begin(fault, in_empty_folder, capsys):
    name = f"tests.test_check:{named(fault)}Agent"
    refused(capsys, "main", words_of(PPO | {"model": name}), REFUSED[fault])


def test_checking_leaves_a_memory_and_the_random_streams_as_they_were():
    memory = globals()["Right"](3, None)
    before, state = copy.deepcopy(memory.state_dict()), torch.get_rng_state()
    check.examine(memory, noise=0.1)
    assert same(memory.state_dict(), before)
    assert torch.equal(torch.get_rng_state(), state)
    assert memory.training
    assert all(parameter.grad is None for parameter in memory.parameters())
