"""Replay of whole episodes, from which sequences are drawn uniformly.

Running episodes are kept apart until they end. In the replay steps lie in a ring of rows: an
episode of T steps takes T+1, the last with the final observation, so that none is stored twice. In
a full ring new rows replace the oldest. A checkpoint writes the new rows alone, into another file.
"""

import hashlib
import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.agent import RecentSteps, SequenceBatch
from models.observations import AgentInput, ObservationBatch, Observations
from trainers.learner import IS_FIRST, STORED_STATE
from trainers.settings import WHOLE
from utils.environments import State
from utils.errors import RunError
from utils.files import (
    atomic_write,
    load_tensors,
    make_folder_of_run,
    open_of_run,
    save_tensors,
)
from utils.saved_state import check_like, check_steps

LEAST_CAPACITY = 1_000_000  # steps, or as many as make this number of episodes:
EPISODES_KEPT = 1000
LONGEST_EPISODE = 10_000  # steps; those of a longer one are stored in parts
# In files of rows: a sequence may begin there. The name is an older version's, and files go on.
MAY_START = "starts"

log = logging.getLogger(__name__)

SavedFiles = dict[str, tuple[int, str]]  # by name: bytes, and the sha256 of so many


class EpisodeSteps(NamedTuple):
    """One episode: L steps, and the observation after the last.

    Attributes:
        observations: [L+1, ...] of each kind
        stored_state: `Step.stored_state`.  [L+1, ...]
        actions: [L] int64, or [L, A] float32 of a Box
        rewards: [L] float32
        terminated: Whether the episode ended of itself with this step.  [L] bool
    """

    observations: Observations
    stored_state: Tensor
    actions: Tensor
    rewards: Tensor
    terminated: Tensor

    @property
    def length(self) -> int:
        return len(self.actions)


def check_episode_fits(n_steps: int, capacity: int) -> None:
    """Raise RunError where an episode takes more rows than a replay has."""
    if n_steps + 1 > capacity:
        raise RunError(
            f"replay_capacity: an episode of {n_steps:,} steps takes {n_steps + 1:,} rows, "
            f"and there are {capacity:,}. Choose a larger replay_capacity"
        )


class CutOff:
    """Finds the episodes that would not be learned from for long, if ever, and says so once."""

    def __init__(self, env: str) -> None:
        self._env, self._has_said = env, False

    def __call__(self, lengths: Sequence[int], ended: Sequence[int]) -> list[int]:
        """Return the rows of episodes that go on, given the steps since each or its part began."""
        if max(lengths) < LONGEST_EPISODE:
            return []
        found = [n for n, steps in enumerate(lengths) if steps >= LONGEST_EPISODE]
        # Where it ends with this step it is stored anyhow.
        found = [n for n in found if n not in ended]
        if found and not self._has_said:
            self._has_said = True
            log.warning(
                f"env: '{self._env}': an episode has not ended after {LONGEST_EPISODE:,} steps. "
                "So many at a time are learned from as if a time limit had cut it off there. If it "
                "never ends, wrap it in gymnasium.wrappers.TimeLimit"
            )
        return found


class Replay:
    """A ring of rows on the CPU.

    Args:
        capacity: Rows.
        sequence_length: Steps of a sequence; -1 for whole episodes.
        example: An episode, for the shapes.
        device: Of the sequences.

    Attributes:
        n_written: Rows written since the beginning, of which the last `capacity` are here.
        rows: By name, [capacity, ...] each.
    """

    def __init__(
        self,
        capacity: int,
        sequence_length: int,
        example: EpisodeSteps,
        device: torch.device | str = "cpu",
    ) -> None:
        self.capacity, self.sequence_length, self.n_written = capacity, sequence_length, 0
        self.device = device
        self.rows = {
            name: _untouched_zeros((capacity, *row.shape[1:]), row.dtype)
            for name, row in _rows(example, sequence_length).items()
        }
        self._start_rows: Tensor | None = None

    def __len__(self) -> int:
        return min(self.n_written, self.capacity)

    def add(self, episode: EpisodeSteps) -> None:
        check_episode_fits(episode.length, self.capacity)
        self._write(_rows(episode, self.sequence_length))

    def sample(self, batch_size: int) -> SequenceBatch:
        # Each start alike: of whole episodes one each, of shorter sequences more in a long one.
        start_rows = self.start_rows
        return self.sequences(start_rows[torch.randint(len(start_rows), (batch_size,))])

    @property
    def start_rows(self) -> Tensor:
        if self._start_rows is None:
            self._start_rows = self.rows[MAY_START][: len(self)].nonzero().squeeze(-1)
        return self._start_rows

    def sequences(self, start_rows: Tensor) -> SequenceBatch:
        """Return the sequences that start at some rows [B].

        Their length is `sequence_length`, or that of the longest episode among them. Steps behind
        the end of its own episode are masked.
        """
        rows = self.rows
        remaining = rows["remaining"][start_rows]  # steps to the episode's end
        longest = int(remaining.max())
        n_steps = longest if self.sequence_length == WHOLE else self.sequence_length
        # The rows of an episode may go on at the ring's beginning.
        at = (start_rows + torch.arange(n_steps + 1)[:, None]) % self.capacity  # [T+1, B]
        flat = at.flatten()
        kinds = {name: rows[name][flat] for name in Observations._fields if name in rows}
        actions = rows["actions"][at[:-1]]
        actions = actions if actions.is_floating_point() else actions.long()
        # However a sequence was cut, networks know no step before its first.
        first = torch.zeros_like(at, dtype=torch.bool)
        first[0] = True
        others = (
            first,
            torch.cat((torch.zeros_like(actions[:1]), actions)),
            rows[STORED_STATE][at],
            actions,
            rows["rewards"][at[:-1]],
            rows["terminated"][at[:-1]].float(),
            (torch.arange(n_steps)[:, None] < remaining).float(),  # the mask
        )
        shown = Observations(**kinds).map(lambda kind: kind.to(self.device))
        return SequenceBatch(ObservationBatch(shown), *(each.to(self.device) for each in others))

    def load(self, parts: Iterable[tuple[int, dict[str, Tensor]]], n_written: int) -> None:
        for first, rows in parts:
            # The oldest files are gone: the first that is left says where in the ring it stands.
            n_rows = min(len(rows["actions"]), self.capacity)
            check_like(rows, {n: row[:n_rows] for n, row in self.rows.items()}, "replay")
            self.n_written = first
            self._write(rows)
        if self.n_written != n_written:
            raise ValueError(f"replay: {self.n_written} rows are saved, and {n_written} were there")
        self._check_episodes()

    def _check_episodes(self) -> None:
        # Every row must lead to its episode's end, and some must begin one.
        at = torch.arange(self.n_written - len(self), self.n_written) % self.capacity
        remaining, may_start = (self.rows[name][at] for name in ("remaining", MAY_START))
        is_last = remaining == 0
        leads_on = torch.cat((remaining[:-1] - 1 == remaining[1:], is_last[-1:]))
        if not ((is_last | leads_on).all() and is_last[-1] and (remaining >= 0).all()):
            raise ValueError("replay: the rows are no whole episodes")
        if not may_start.any() or bool((may_start & is_last).any()):
            raise ValueError("replay: the rows are no whole episodes, where they begin is wrong")

    def _write(self, new: dict[str, Tensor]) -> None:
        n_rows = len(new["actions"])
        at = torch.arange(self.n_written, self.n_written + n_rows) % self.capacity
        for name, row in self.rows.items():
            row[at] = new[name].to(row.dtype)
        self.n_written += n_rows
        self._start_rows = None


class StateFiles:
    """Replay files in a folder, of one pattern; those that no kept state names are removed."""

    def __init__(self, folder: Path, pattern: str, n_kept: int) -> None:
        self.folder, self.pattern = folder, pattern
        # One more than are kept: the next checkpoint may fail to be written.
        self._named: deque[set[str]] = deque(maxlen=n_kept + 1)

    def note(self, names: Iterable[str]) -> list[list[str]]:
        """Keep the files of a state; return those of the states before, for `restore`."""
        before = [sorted(own) for own in self._named]
        self._named.append(set(names))
        return before

    def restore(self, state: Mapping[str, Any]) -> None:
        """Keep the files of a saved state and of those before: their checkpoints may be there."""
        for names in (*state.get("before", ()), state["files"]):  # earlier versions told none
            self._named.append(set(names))

    def remove_unnamed(self, paths: Iterable[Path] | None = None) -> None:
        named = set().union(*self._named)
        for path in self.folder.glob(self.pattern) if paths is None else paths:
            if path.name not in named:
                path.unlink()


class ReplayFiles:
    """A run's replay on the disk: files of rows, each written once."""

    def __init__(self, folder: Path, n_kept: int) -> None:
        self.folder = folder
        self._kept = StateFiles(folder, "rows_*.pt", n_kept)
        self._files: SavedFiles = {}
        self._n_saved = 0  # rows written by the last state

    def save(self, replay: Replay) -> dict[str, Any]:
        # A file stays as long as one of its rows is in the ring.
        oldest = replay.n_written - len(replay)
        ends = [*(_first_row(name) for name in self._files), self._n_saved][1:]
        files = {
            n: f for (n, f), end in zip(self._files.items(), ends, strict=True) if end > oldest
        }
        # Rows that were overwritten since the last state are never written.
        begin = max(self._n_saved, oldest)
        if begin < replay.n_written:
            files |= self._write(replay, begin)
        self._files, self._n_saved = files, replay.n_written
        before = self._kept.note(files)
        self._kept.remove_unnamed()
        state = {"files": files, "capacity": replay.capacity, "n_written": replay.n_written}
        return state | {"before": before}

    def load(self, replay: Replay, state: State) -> None:
        """Fill a replay from the files of a state; their checksums have been compared."""

        def rows(name: str) -> dict[str, Tensor]:
            with open(self.folder / name, "rb", opener=open_of_run) as file:
                return load_tensors(file)

        parts = ((_first_row(name), rows(name)) for name in state["files"])
        replay.load(parts, state["n_written"])
        self._files, self._n_saved = state["files"], replay.n_written
        self._kept.restore(state)

    def _write(self, replay: Replay, begin: int) -> SavedFiles:
        make_folder_of_run(self.folder)
        at = torch.arange(begin, replay.n_written) % replay.capacity
        path = self.folder / f"rows_{begin:012d}.pt"
        with atomic_write(path) as file:
            save_tensors({name: row[at] for name, row in replay.rows.items()}, file)
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return {path.name: (file.tell(), digest)}


def _first_row(name: str) -> int:
    return int(Path(name).stem.rpartition("_")[2])


def example_episode(percept: AgentInput, stored_state: Tensor) -> EpisodeSteps:
    shown = percept.observations.map(lambda kind: kind[:1].cpu().expand(2, *kind.shape[1:]))
    zeros, actions = torch.zeros(1), torch.zeros_like(percept.last_actions[:1], device="cpu")
    # Two rows, an episode of one step: enough for kinds, shapes and types.
    twice = stored_state[:1].cpu().expand(2, *stored_state.shape[1:])
    return EpisodeSteps(shown, twice, actions, zeros, zeros.bool())


def _rows(episode: EpisodeSteps, sequence_length: int) -> dict[str, Tensor]:
    """Return the rows of an episode; the last has the final observation and nothing else."""
    n_steps = episode.length
    window = n_steps if sequence_length == WHOLE else sequence_length
    places = torch.arange(n_steps + 1)
    actions = _padded(episode.actions)
    may_start = places < max(1, n_steps - window + 1)
    return {
        **episode.observations.tensors(),
        STORED_STATE: episode.stored_state,
        # Two bytes an action: a replay holds millions.
        "actions": actions if actions.is_floating_point() else actions.to(torch.int16),
        "rewards": _padded(episode.rewards),
        "terminated": _padded(episode.terminated),
        MAY_START: may_start,
        "remaining": (n_steps - places).to(torch.int32),
    }


def _untouched_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    # NumPy asks the system for zeros, which take memory where they are written; PyTorch writes all.
    return torch.from_numpy(np.zeros(shape, torch.empty(0, dtype=dtype).numpy().dtype))


def _padded(values: Tensor) -> Tensor:
    return torch.cat((values, torch.zeros_like(values[:1])))


class EpisodeBuffer:
    """The steps of N running episodes, as many as the longest of them has had.

    Args:
        n_context: Steps that a memory reads again, also where they have been taken out.

    Attributes:
        lengths: Steps of each running episode that have not been taken out.
        earlier: Steps of it that have been, before those.
    """

    def __init__(self, n_context: int = 0) -> None:
        self.n_context = n_context
        self.lengths: list[int] = []
        self.earlier: list[int] = []
        self._steps: deque[dict[str, Tensor]] = deque()

    @property
    def ages(self) -> list[int]:
        """Steps of each running episode so far."""
        return [sum(both) for both in zip(self.earlier, self.lengths, strict=True)]

    def begin(self, n_envs: int) -> None:
        self.lengths, self.earlier = [0] * n_envs, [0] * n_envs
        self._steps.clear()

    def add(self, step: dict[str, Tensor]) -> None:
        if not self.lengths:
            self.begin(len(step["actions"]))
        self._steps.append(step)
        self.lengths = [n_steps + 1 for n_steps in self.lengths]

    def take(
        self, env: int, last: Observations, stored_state: Tensor, goes_on: bool
    ) -> EpisodeSteps:
        """Take out the steps of an environment's episode; another begins, or the same goes on.

        The observations after them, `last`, and their stored state are of every environment.
        """
        # Steps of all environments lie together: an episode's are the last of them.
        steps = list(self._steps)[-self.lengths[env] :]
        own = {name: torch.stack([step[name][env] for step in steps]) for name in steps[0]}

        def with_last(kind: Tensor, at_end: Tensor) -> Tensor:
            return torch.cat((kind, at_end[env : env + 1])).cpu()

        # Steps leave once the longest running episode is shorter.
        self.earlier[env] = self.ages[env] if goes_on else 0
        self.lengths[env] = 0
        behind = (min(n_steps, self.n_context) for n_steps in self.earlier)
        n_kept = max(map(sum, zip(self.lengths, behind, strict=True)))
        while len(self._steps) > n_kept:
            self._steps.popleft()
        return EpisodeSteps(
            _observations(own).map(with_last, last),
            with_last(own[STORED_STATE], stored_state),
            own["actions"].cpu(),
            own["rewards"].cpu(),
            own["terminated"].cpu(),
        )

    def past(self) -> tuple[Observations, RecentSteps]:
        """Return the last P <= n_context steps.  [P, N, ...]"""
        steps = list(self._steps)[-self.n_context :]
        stacked = _stacked(steps)
        n_steps, device = len(steps), stacked[IS_FIRST].device
        ages = torch.tensor(self.ages, device=device)
        # Steps before the episode are another's. Marked as beginnings, they reach no further.
        before = torch.arange(n_steps, device=device)[:, None] < n_steps - ages
        is_first = stacked[IS_FIRST] | before
        running = RecentSteps(is_first, stacked["last_actions"], (ages - n_steps).clamp(min=0))
        return _observations(stacked), running

    def state_dict(self) -> State | None:
        """Return the steps, [P, N, ...] each, or None."""
        if not any(self.ages):
            return None
        lengths = {"lengths": list(self.lengths), "earlier": list(self.earlier)}
        return lengths | {"steps": _stacked(self._steps)}

    def load_state_dict(self, state: State, like: Mapping[str, Tensor]) -> None:
        steps, lengths, earlier = state["steps"], state["lengths"], state["earlier"]
        device = like["actions"].device
        for name in ("lengths", "earlier"):
            check_like(state[name], [0] * len(like["actions"]), name)
        if steps:
            check_steps(steps, like, "steps")
        n_steps = len(steps["actions"]) if steps else 0
        behind = [min(each, self.n_context) for each in earlier]
        needed = [sum(both) for both in zip(lengths, behind, strict=True)]
        if min(*lengths, *earlier) < 0 or max(needed) != n_steps:
            raise ValueError("lengths: not as many steps as the running episodes have had")
        self.lengths, self.earlier = list(lengths), list(earlier)
        for t in range(n_steps):
            self._steps.append({name: kind[t].to(device) for name, kind in steps.items()})


def step_tensors(
    percept: AgentInput, stored_state: Tensor, actions: Tensor, rewards: Tensor, terminated: Tensor
) -> dict[str, Tensor]:
    """Return a step of N environments by name; rewards [N] are float32."""
    return percept.observations.tensors() | {
        IS_FIRST: percept.is_first,
        "last_actions": percept.last_actions,
        STORED_STATE: stored_state,
        "actions": actions,
        "rewards": rewards,
        "terminated": terminated,
    }


def _stacked(steps: Iterable[dict[str, Tensor]]) -> dict[str, Tensor]:
    rows = list(steps)
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]} if rows else {}


def _observations(steps: Mapping[str, Tensor]) -> Observations:
    return Observations(*(steps.get(name) for name in Observations._fields))
