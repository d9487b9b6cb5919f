"""Is the state handled rightly? Checks of a memory, and of an agent by its actions and values.

Such faults raise no error: an agent trains, and learns less. A memory acts by `step` and learns by
`unroll`, an agent acts by `act` and learns by `evaluate`; checks see both as a `Subject`. A check's
name says what holds for a right memory, its docstring is told where it does not.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from models.agent import ActorCriticAgent, Agent, Batch, Memory, Step, gradient_lengths
from models.memories.base import TrainedMemory
from models.observations import AgentInput, ObservationBatch, Observations, VectorNormalizer
from utils.errors import UserError, error_text

N, HALF = 12, 6  # steps, and environments: as many, so that one begins anew at each step
LONGEST_WINDOW = 64  # steps; episodes three times as long are tried
CLOSE = 3e-4  # share of the largest output: half of the digits of float32
Kept = TypeVar("Kept")  # all that learning needs of a step
TEXTS = ("a red key", "an open door", "a grey wall", "a ball")


class Finding(NamedTuple):
    is_right: bool | None  # None: nothing could be measured, and `note` says why
    shown: str  # the largest difference, or another figure
    allowed: str
    note: str = ""


def not_tested(reason: str) -> Finding:
    return Finding(None, "-", "-", reason)


class Subject(ABC, Generic[Kept]):
    """A memory or an agent, to be played and to learn from that.

    Attributes:
        x: Random features [N, N, F], or numbers of observations [N, N].
        is_first: Where episodes begin: all at the first step, then at different ones; the last
            environment's goes on.  [N, N] bool
    """

    module: TrainedMemory | ActorCriticAgent

    def __init__(self) -> None:
        self.x = self.random()
        self.is_first = torch.rand(N, N) < 0.2
        self.is_first[0], self.is_first[1:, -1] = True, False

    @abstractmethod
    def random(self) -> Tensor:
        """Return another such x."""

    @abstractmethod
    def initial(self) -> Memory: ...

    @abstractmethod
    def act(self, x: Tensor, is_first: Tensor, state: Memory, advance: bool) -> tuple[Tensor, Kept]:
        """Return the output [N, D] of a step, and all that learning needs of it."""

    @abstractmethod
    def learn(self, x: Tensor, is_first: Tensor, kept: list[Kept]) -> Tensor:
        """Return the outputs of sequences, with gradients.  [T, N, D]"""

    @abstractmethod
    def refresh(self, x: Tensor, is_first: Tensor, kept: list[Kept], state: Memory) -> None: ...

    @abstractmethod
    def stored(self, kept: Kept) -> Tensor:
        """Return the stored state among all that a step keeps.  [N, ...]"""

    @torch.no_grad()
    def play(
        self,
        x: Tensor,
        is_first: Tensor,
        state: Memory | None = None,
        looks: bool = False,
        trains: bool = False,
    ) -> tuple[Tensor, list[Kept]]:
        """Act; `looks`: before each step it looks ahead at something else."""
        self.module.train(trains)
        state, acted = self.initial() if state is None else state, []
        for now, begins in zip(x, is_first, strict=True):
            if looks:
                self.act(now.flip(0), ~begins, state, advance=False)
            acted.append(self.act(now, begins, state, advance=True))
        return torch.stack([output for output, _ in acted]), [kept for _, kept in acted]

    def both(self, x: Tensor, is_first: Tensor) -> Tensor:
        """Return the outputs of acting and those of learning from it.  [2, T, N, D]"""
        acted, kept = self.play(x, is_first)
        return torch.stack((acted, self.learn(x, is_first, kept).detach()))


class MemorySubject(Subject[Tensor]):
    """A memory, shown random features; a step keeps its stored_state."""

    def __init__(self, module: TrainedMemory) -> None:
        self.module: TrainedMemory = module
        super().__init__()

    def random(self) -> Tensor:
        return torch.randn(N, N, self.module.n_features)

    def initial(self) -> Memory:
        return self.module.initial(N)

    def act(
        self, x: Tensor, is_first: Tensor, state: Memory, advance: bool
    ) -> tuple[Tensor, Tensor]:
        stored_state = self.module.stored_state(state, is_first)
        read = lambda *shown: self.module.step(shown[0], state, shown[1], advance)  # noqa: E731
        output = self._checked("step", read, [N], x, is_first)
        # The rollout copies a stored_state after the step, which must not have changed it.
        return output.clone(), stored_state.clone()

    def learn(self, x: Tensor, is_first: Tensor, kept: list[Tensor]) -> Tensor:
        given = x, is_first, kept[0]
        found = self._checked("unroll", self.module.unroll, x.shape[:2], *given)
        # Of some rows alone, as training asks: here of the later half of each sequence.
        n_steps, half = len(x), len(x) // 2
        rows = torch.arange(n_steps * N).view(n_steps, N)[half:].T.flatten()
        later = self._checked("unroll_at", self.module.unroll_at, [len(rows)], *given, rows)
        return torch.cat((found[:half], later.view(N, n_steps - half, -1).transpose(0, 1)))

    def refresh(self, x: Tensor, is_first: Tensor, kept: list[Tensor], state: Memory) -> None:
        self.module.refresh(x, is_first, kept[0], state)

    def stored(self, kept: Tensor) -> Tensor:
        return kept

    def _checked(
        self, name: str, read: Callable[..., Any], shape: Sequence[int], *given: Tensor
    ) -> Tensor:
        before = [each.clone() for each in given]
        found = read(*given)
        if not all(map(torch.equal, given, before)):
            raise UserError(f"{name} changes its arguments in place. Make new tensors of them")
        wanted = f"{given[0].dtype} {[*shape, self.module.width]}"
        is_tensor = isinstance(found, Tensor)
        returned = f"{found.dtype} {list(found.shape)}" if is_tensor else type(found).__name__
        if returned != wanted:
            raise UserError(f"{name} returns {returned}. By its `width` it must return {wanted}")
        return cast(Tensor, found)


class AgentSubject(Subject[Step]):
    """An agent, shown numbers of observations [N, N]; its output: log-probabilities and values."""

    def __init__(self, agent: ActorCriticAgent) -> None:
        reader, n_seen = agent.reader, N * N
        chosen = torch.randint(len(TEXTS), (n_seen, reader.n_texts))
        kinds = {
            "images": torch.randint(
                256, (n_seen, *(reader.image_shape or (0,))), dtype=torch.uint8
            ),
            "vectors": torch.rand(n_seen, reader.n_numbers),
            "text": torch.tensor(reader.sentences.numbers(TEXTS))[chosen],
            "last_step": torch.rand(n_seen, reader.n_last),
        }
        self.seen = Observations(**{name: kind for name, kind in kinds.items() if kind.numel()})
        if reader.normalizer is not None:  # by its own moments these may look all alike
            fresh = VectorNormalizer(reader.normalizer.is_of_box)
            fresh.update(kinds["vectors"])
            reader.normalizer.load_state_dict(fresh.state_dict())
        self.module: ActorCriticAgent = agent
        super().__init__()

    def random(self) -> Tensor:
        return torch.randperm(N * N).view(N, N)

    def initial(self) -> Memory:
        return self.module.initial_memory(N)

    def act(self, x: Tensor, is_first: Tensor, state: Memory, advance: bool) -> tuple[Tensor, Step]:
        seen = self.seen.map(lambda kind: kind[x])
        now = AgentInput.first(seen, self.module.reader.action_shape)._replace(is_first=is_first)
        # A copy: an agent that writes in place must not change what was acted.
        step = copy.deepcopy(self.module.act(now, state, not self.module.training, advance))
        assert step.log_probs is not None, "PPO's agents have a policy"
        assert step.values is not None, "and a critic"
        return torch.stack((step.log_probs, step.values), -1), step

    def learn(self, x: Tensor, is_first: Tensor, kept: list[Step]) -> Tensor:
        # As PPO shows them: each episode is a sequence, one after another.
        opens = is_first.clone()
        opens[0] = True
        lengths = opens.T.flatten().nonzero().squeeze(-1).diff(append=torch.tensor([x.numel()]))
        actions, stored_state, log_probs, values = (
            torch.stack([step._asdict()[name] for step in kept], 1).flatten(0, 1)
            for name in ("actions", "stored_state", "log_probs", "values")
        )
        rows = ObservationBatch(self.seen, x.T.flatten())
        batch = Batch(rows, actions, log_probs, values, values, values, stored_state)
        if self.module.sequential:
            first = stored_state[lengths.cumsum(0) - lengths]
            batch = batch._replace(stored_state=first, lengths=lengths, context_len=0 * lengths)
        found = self.module.evaluate(batch)
        return torch.stack((found.log_probs, found.values), -1).view(*x.T.shape, 2).transpose(0, 1)

    def refresh(self, x: Tensor, is_first: Tensor, kept: list[Step], state: Memory) -> None:
        stored_states = torch.stack([step.stored_state for step in kept])
        self.module.refresh(self.seen.map(lambda kind: kind[x]), is_first, stored_states, state)

    def stored(self, kept: Step) -> Tensor:
        return kept.stored_state


def compared(*pairs: tuple[Tensor, Tensor], most: float = CLOSE) -> Finding:
    """Return the largest difference in pairs of outputs, as a share of the largest output."""
    shares = [(a - b).abs().max() / b.abs().max().clamp(min=1e-6) for a, b in pairs]
    largest = torch.stack(shares).max().item()  # a NaN is the largest of all
    return Finding(largest <= most, f"{largest:.1e}", f"{most:.0e}")


def acting_equals_learning(of: Subject) -> Finding:
    """From some stored state on, `step` (`act`) and `unroll` or `unroll_at` (`evaluate`) return
    other numbers."""
    acted, kept = of.play(of.x, of.is_first, looks=True)
    # Where steps before a sequence must be read again, it begins with an episode.
    firsts = (0,) if of.module.n_context else (0, HALF, N - 1)
    cuts = (slice(first, None) for first in firsts)
    pairs = [(of.learn(of.x[c], of.is_first[c], kept[c]), acted[c]) for c in cuts]
    if of.module.n_context:  # what is far behind, it must have forgotten in both
        n_parts = -(-3 * min(of.module.n_context, LONGEST_WINDOW) // N)
        x = torch.cat([of.random() for _ in range(n_parts)])
        begins = torch.arange(len(x))[:, None].expand(-1, N) == 0
        acted, kept = of.play(x, begins)
        pairs.append((of.learn(x, begins, kept), acted))
    return compared(*pairs)


def a_reset_equals_a_fresh_start(of: Subject) -> Finding:
    """An episode depends on the one before: clear a row of `is_first` before its step is read."""
    # Environment n begins anew at step n; beside it, one that begins there.
    every, begins = torch.arange(N), torch.zeros(N, N, dtype=torch.bool)
    begins[0] = True
    fresh, _ = of.play(of.x[(every[:, None] + every) % N, every], begins)
    t, env = torch.tril_indices(N, N)
    found = of.both(of.x, begins | torch.eye(N, dtype=torch.bool))
    return compared(*((each[t, env], fresh[t - env, env]) for each in found))


def stored_states_stay_as_they_are(of: Subject) -> Finding:
    """`step` changes in place what `stored_state` returned, and that is kept after the step: bind a
    new tensor, as in `state.state = after`."""
    state, changed = of.initial(), 0
    of.module.eval()
    # Where an episode begins, `stored_state` returns zeros of its own, so none begins after step 1.
    for t, now in enumerate(of.x):
        begins = torch.full((N,), t == 0)
        looked, acted = (of.act(now, begins, state, advance)[1] for advance in (False, True))
        if not of.stored(acted).numel():
            return not_tested("it stores nothing of a step")
        changed += not torch.equal(of.stored(acted), of.stored(looked))
    return Finding(not changed, f"{changed} of {N} steps", "0")


def a_refreshed_state_goes_on_as_it_learns(of: Subject) -> Finding:
    """After `refresh` from the last `n_context` steps, `step` and `unroll` return other numbers."""
    n_known = min(of.module.n_context, HALF)
    if not n_known:
        return not_tested("`n_context` is 0, nothing calls `refresh`")
    first, state = HALF - n_known, of.initial()
    _, kept = of.play(of.x[:HALF], of.is_first[:HALF], state)
    of.refresh(of.x[first:HALF], of.is_first[first:HALF], kept[first:], state)
    acted, later = of.play(of.x[HALF:], of.is_first[HALF:], state)
    learned = of.learn(of.x[first:], of.is_first[first:], [*kept, *later][first:])
    return compared((learned[n_known:], acted))


def no_environment_reads_its_neighbour(of: Subject) -> Finding:
    """An environment's outputs change with what another one sees, or with its starts."""
    x, begins = of.x.clone(), of.is_first.clone()
    x[:, 0], begins[:, 0] = x[:, 0].flip(0), ~begins[:, 0]
    found, expected = of.both(x, begins), of.both(of.x, of.is_first)
    return compared((found[:, :, 1:], expected[:, :, 1:]))


def padding_and_order_do_not_matter(of: Subject) -> Finding:
    """Outputs change with the order of environments, or with features behind a sequence's end."""
    padded = torch.cat((of.x[:HALF], of.x[HALF:].flip(0)))
    turned, expected = of.both(of.x.flip(1), of.is_first.flip(1)), of.both(of.x, of.is_first)
    shorter = of.both(padded, of.is_first)[:, :HALF]
    return compared((turned.flip(2), expected), (shorter, expected[:, :HALF]))


def evaluation_acts_as_training_does(of: Subject) -> Finding:
    """After `eval()`, with deterministic actions, it returns other numbers than in training."""
    pairs = []
    for trains in (False, True):
        acted, kept = of.play(of.x, of.is_first, trains=trains)
        of.module.train()
        learned = [of.learn(of.x, of.is_first, kept) for _ in range(2)]
        pairs.append((learned[0], acted))
    # Dropout draws other numbers each time, and makes the two differ by right.
    if not torch.equal(*learned):
        return not_tested("in training it draws at random: set its dropout to 0 for this check")
    return compared(*pairs)


def saved_equals_loaded(of: Subject) -> Finding:
    """In the middle of an episode, `load_state_dict(state_dict())` or `copy()` loses something, or
    two states share a tensor."""
    expected, _ = of.play(of.x, of.is_first)
    state, loaded = of.initial(), of.initial()
    of.play(of.x[:HALF], of.is_first[:HALF], state)
    of.play(of.x.flip(0), of.is_first, loaded)  # neither its content nor its steps must matter
    states = state, state.copy(), loaded
    loaded.load_state_dict(state.state_dict())
    found = (of.play(of.x[HALF:], of.is_first[HALF:], each)[0] for each in states)
    return compared(*((each, expected[HALF:]) for each in found), most=0)


def a_state_lies_where_its_network_does(of: Subject) -> Finding:
    """`initial` makes tensors elsewhere, so that no GPU can be used: give `device=self.device`."""
    if not isinstance(of, MemorySubject):
        return not_tested("asked of a memory alone")
    try:  # a device without memory and numbers stands for a GPU
        state = copy.deepcopy(of.module).to("meta").initial(N).state_dict()
    except (NotImplementedError, RuntimeError):
        return not_tested("`initial` or `state_dict` reads a number")
    wrong = [name for name, part in state.items() if part.ndim and not part.is_meta]
    return Finding(not wrong, str(len(wrong)), "0", ", ".join(wrong))


def the_gradient_reaches_earlier_steps(of: Subject) -> Finding:
    """The last output has no gradient at earlier steps: `unroll` cuts it, nothing is learned."""
    x, begins = of.x.clone(), torch.zeros(N, N, dtype=torch.bool)
    _, kept = of.play(x, begins)
    if isinstance(of, AgentSubject):
        return not_tested("asked of a memory alone")
    if not kept[0].numel():
        return not_tested("it stores nothing of a step")
    last = of.learn(x.requires_grad_(), begins, kept)[-1]
    norms = gradient_lengths((last * torch.randn_like(last)).sum(), [x]).mean(1).flip(0)
    shares = norms / norms.sum().clamp(min=1e-30)
    note = ", ".join(f"{k}: {shares[k]:.0%}" for k in (0, 1, 2, 4, 8, N - 1))
    earlier = shares[1:].sum().item()
    return Finding(earlier > 0, f"{earlier:.0%}", "> 0", f"{note} of it, by steps back")


def trained_parts_move_and_frozen_ones_do_not(of: Subject) -> Finding:
    """A gradient step moves a frozen parameter, or leaves a trained one as it was."""
    parts = dict(of.module.named_parameters())
    trained = [part for part in parts.values() if part.requires_grad]
    before = {name: part.detach().clone() for name, part in parts.items()}
    if not trained:
        return not_tested("no parameter is trained")
    _, kept = of.play(of.x, of.is_first)
    loss = of.learn(of.x, of.is_first, kept).square().mean()
    (loss + sum(0 * part.sum() for part in trained)).backward()
    # With so small an epsilon any gradient but 0 moves a part by the whole rate.
    torch.optim.Adam(trained, lr=0.01, eps=1e-30).step()
    wrong = [name for name, part in parts.items() if part.equal(before[name]) == part.requires_grad]
    return Finding(not wrong, str(len(wrong)), "0", ", ".join(wrong))


Check = Callable[[Subject], Finding]
CHECKS: tuple[Check, ...] = (
    acting_equals_learning,
    a_reset_equals_a_fresh_start,
    stored_states_stay_as_they_are,
    a_refreshed_state_goes_on_as_it_learns,
    no_environment_reads_its_neighbour,
    padding_and_order_do_not_matter,
    evaluation_acts_as_training_does,
    saved_equals_loaded,
    a_state_lies_where_its_network_does,
    the_gradient_reaches_earlier_steps,
    trained_parts_move_and_frozen_ones_do_not,
)
QUICK = CHECKS[:4]


def title(check: Check) -> str:
    return check.__name__.replace("_", " ")


def told_of(check: Check) -> str:
    return " ".join(str(check.__doc__).split())


def examine(
    checked: TrainedMemory | ActorCriticAgent, checks: Iterable[Check] = CHECKS, noise: float = 0.0
) -> dict[Check, Finding]:
    """Return the findings of a memory or an agent; it and the random streams stay as they are.

    Its parameters have noise added for the time: some are without effect in the beginning.

    Raises:
        UserError: an output has another shape or dtype, or an error was raised.
    """
    before, device, training = copy.deepcopy(checked.state_dict()), checked.device, checked.training
    with torch.random.fork_rng():
        torch.manual_seed(0)
        try:
            checked.cpu()
            subject: Subject = (
                MemorySubject(checked)
                if isinstance(checked, TrainedMemory)
                else AgentSubject(checked)
            )
            with torch.no_grad():
                for parameter in checked.parameters():
                    parameter.add_(noise * torch.randn_like(parameter))
            return {check: check(subject) for check in checks}
        except Exception as error:  # the code is the user's
            reason = error if isinstance(error, UserError) else f"it raised {error_text(error)}"
            raise UserError(f"model: {type(checked).__name__}: {reason}") from error
        finally:
            checked.load_state_dict(before)
            checked.to(device).train(training).zero_grad()


def refuse_broken(agent: Agent, name: str) -> None:
    """Raise UserError where a memory of the user's own in an agent fails a quick check."""
    for memory in agent.modules():
        if not isinstance(memory, TrainedMemory) or memory.__module__.startswith("models."):
            continue
        for check, finding in examine(memory, QUICK).items():
            if finding.is_right is False:
                raise UserError(
                    f"model: {type(memory).__name__} fails '{title(check)}': {finding.shown}, at "
                    f"most {finding.allowed}. {told_of(check)} See python -m analysis check {name}"
                )
