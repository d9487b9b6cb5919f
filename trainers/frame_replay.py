"""Replay of single frames on the disk: whole episodes, from which n steps at a time are drawn.

An observation is stored once; stacks of frames are put together when samples are drawn. Each
environment writes rows of its own, one behind the other: an episode of L steps takes L + 1, the
last with the final observation. Only whole episodes are drawn from, and the oldest leave first.
"""

import hashlib
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.observations import Observations
from trainers.sequence_replay import LEAST_CAPACITY, SavedFiles, StateFiles, check_episode_fits
from trainers.settings import EPISODE, FrameReplaySettings
from utils.environments import State
from utils.files import checksum, make_folder_of_run, open_of_run, sync_folder
from utils.saved_state import check_like

FILES = 64  # about so many hold the replay
LEAST_ROWS = 256  # of a file
ROWS_AT_ONCE = 64  # that wait in memory before they are written
SUFFIX = ".rows"


class FrameSteps(NamedTuple):
    """B times n steps from replay, and the observations before and after them.

    Attributes:
        observations: Before; images are stacks of S frames, the oldest first.  [B, S*C, H, W]
        following: After; of no meaning where the episode ended.
        actions: The first of each n.  [B] int64
        rewards: 0 behind an episode's end.  [B, n] float32
        not_done: Whether the episode went on after each step.  [B, n] bool
    """

    observations: Observations
    following: Observations
    actions: Tensor
    rewards: Tensor
    not_done: Tensor


class EpisodeSpan(NamedTuple):
    """The rows of an episode: its environment, its first row, and its number of steps L."""

    env: int
    begin: int
    length: int


class Episodes(list[EpisodeSpan]):
    """Whole episodes, the oldest first, and the samples of n steps that can start in them."""

    # No sample starts where fewer than n steps follow, unless the episode is shorter.

    def __init__(self, n_step: int) -> None:
        super().__init__()
        self._n_step = n_step
        self._begins: np.ndarray | None = None  # starts before each episode, computed when drawn

    def append(self, place: EpisodeSpan) -> None:
        super().append(place)
        self._begins = None

    def pop_oldest(self) -> EpisodeSpan:
        self._begins = None
        return self.pop(0)

    def n_starts(self, length: int) -> int:
        return max(1, length - self._n_step + 1)

    def draw(self, n_samples: int, uniform: str) -> list[tuple[EpisodeSpan, int]]:
        """Draw episodes and steps of them with replacement; `uniform` is EPISODE or STEP."""
        if uniform == EPISODE:
            places = [self[number] for number in torch.randint(len(self), (n_samples,)).tolist()]
            shares = torch.rand(n_samples, dtype=torch.float64).tolist()
            steps = [int(x * self.n_starts(p.length)) for p, x in zip(places, shares, strict=True)]
            return list(zip(places, steps, strict=True))
        if self._begins is None:
            self._begins = np.cumsum([0, *(self.n_starts(place.length) for place in self)])
        drawn = torch.randint(int(self._begins[-1]), (n_samples,)).numpy()
        found = np.searchsorted(self._begins, drawn, side="right") - 1
        steps = (drawn - self._begins[found]).tolist()
        return [(self[number], step) for number, step in zip(found.tolist(), steps, strict=True)]


class FrameLog:
    """Rows of one environment on the disk: appended to files, read from anywhere, never rewritten.

    A checkpoint names the files with their checksums, as far as they were written then. A run that
    is resumed from it overwrites later rows: the additions of a killed process do not count, and an
    earlier checkpoint of the run still finds its own rows.

    Attributes:
        n_written: Rows appended since the beginning.
        first: The first that can be read.
    """

    def __init__(self, folder: Path, name: str, dtype: np.dtype, rows_per_file: int) -> None:
        self.folder, self.name, self.dtype = folder, name, dtype
        self.rows_per_file = rows_per_file
        self.n_written = self.first = 0
        self._waiting: list[bytes] = []
        self._digests: dict[int, str] = {}  # of whole files, by their first row
        self._sha256 = hashlib.sha256()  # of the file that is being written
        self._is_synced = True

    def append(self, row: np.void) -> None:
        self._waiting.append(row.tobytes())
        self.n_written += 1
        if len(self._waiting) == ROWS_AT_ONCE or self.n_written % self.rows_per_file == 0:
            self.flush()

    def read(self, begin: int, end: int) -> np.ndarray:
        # By system calls and not through mapped memory: mapped pages count as the process's own,
        # and those of a replay of a million frames would soon be all of the memory.
        parts, size = [], self.dtype.itemsize
        while begin < end:
            first = self._begin_of(begin)
            here = min(end, first + self.rows_per_file)
            with open(self._path(first), "rb", buffering=0, opener=open_of_run) as file:
                file.seek((begin - first) * size)
                parts.append(np.frombuffer(file.read((here - begin) * size), self.dtype))
            begin = here
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def flush(self) -> None:
        if not self._waiting:
            return
        rows, self._waiting = b"".join(self._waiting), []
        n_rows = len(rows) // self.dtype.itemsize
        first = self.n_written - n_rows
        begin = self._begin_of(first)
        make_folder_of_run(self.folder)
        with open(self._path(begin), "ab", opener=open_of_run) as file:
            # Cut off rows that a killed process has added since the checkpoint.
            file.truncate((first - begin) * self.dtype.itemsize)
            file.write(rows)
            self._sha256.update(rows)
            self._is_synced = False
            if self.n_written % self.rows_per_file == 0:
                # A whole file is not written again: from now on its checksum is known.
                file.flush()
                os.fsync(file.fileno())
                self._digests[begin] = self._sha256.hexdigest()
                self._sha256 = hashlib.sha256()

    def forget(self, before: int) -> list[Path]:
        names = self.paths()
        self.first = max(self.first, before)
        oldest = self._begin_of(self.first)
        self._digests = {begin: d for begin, d in self._digests.items() if begin >= oldest}
        return names[: len(names) - len(self.paths())]

    def paths(self) -> list[Path]:
        begins = range(self._begin_of(self.first), self.n_written, self.rows_per_file)
        return [self._path(begin) for begin in begins]

    def save(self) -> dict[str, Any]:
        self.flush()
        if not self._is_synced:
            last = self._path(self._begin_of(self.n_written - 1))
            with open(last, "rb", opener=open_of_run) as file:
                os.fsync(file.fileno())
            self._is_synced = True
        return {"first": self.first, "n_written": self.n_written}

    def files(self) -> SavedFiles:
        per_file, size = self.rows_per_file, self.dtype.itemsize
        files = {self._path(n).name: (per_file * size, d) for n, d in self._digests.items()}
        if n_rows := self.n_written % per_file:  # the last file grows even where all is given up
            last = self._path(self.n_written - n_rows)
            files[last.name] = (n_rows * size, self._sha256.copy().hexdigest())
        return files

    def load(self, state: State, files: SavedFiles) -> None:
        """Restore a state from `save`, its files compared with their checksums; else ValueError."""
        check_like(state, {"first": 0, "n_written": 0}, "replay.logs")
        if not 0 <= state["first"] <= state["n_written"]:
            raise ValueError("replay: a log that ends before it begins")
        self.first, self.n_written, self._waiting = state["first"], state["n_written"], []
        n_rows = self.n_written % self.rows_per_file
        whole = range(self._begin_of(self.first), self.n_written - n_rows, self.rows_per_file)
        self._digests = {begin: files[self._path(begin).name][1] for begin in whole}
        self._sha256 = hashlib.sha256()
        if n_rows:
            last = self._path(self.n_written - n_rows)
            self._sha256 = checksum(last, n_rows * self.dtype.itemsize)
        own = {name for name in files if name.startswith(f"{self.name}_")}
        if self.files() != {name: tuple(files[name]) for name in own}:
            raise ValueError("replay: the files do not hold the rows that were written")

    def _begin_of(self, row: int) -> int:
        return row - row % self.rows_per_file

    def _path(self, begin: int) -> Path:
        return self.folder / f"{self.name}_{begin:012d}{SUFFIX}"


class FrameReplay:
    """Rows of N environments in a folder, drawn as stacks of S frames from whole `episodes`."""

    def __init__(
        self,
        config: FrameReplaySettings,
        frame_stack: int,
        folder: Path,
        example: Observations,
        device: torch.device | str = "cpu",
    ) -> None:
        self.config, self.frame_stack = config, frame_stack
        self.folder, self.device = folder, device
        self.capacity = config.replay_capacity or LEAST_CAPACITY
        self.dtype = _row_type(example)
        self._kinds = example.tensors().keys()
        n_envs = len(example.any())
        per_file = max(LEAST_ROWS, self.capacity // max(FILES, n_envs))
        self.logs = [FrameLog(folder, f"env{n:04d}", self.dtype, per_file) for n in range(n_envs)]
        self.episodes = Episodes(config.n_step)
        self.n_rows = 0
        self._begins = [0] * n_envs  # of the running episodes
        self._kept = StateFiles(folder, f"*{SUFFIX}", config.keep_checkpoints)

    @property
    def lengths(self) -> list[int]:
        """Steps of each running episode, or since a part of it was ended."""
        return [log.n_written - begin for log, begin in zip(self.logs, self._begins, strict=True)]

    def add(
        self, observations: Observations, actions: Tensor, rewards: Tensor, ended: Tensor
    ) -> None:
        rows = self._rows(observations)
        rows["actions"], rows["rewards"] = actions.cpu().numpy(), rewards.cpu().numpy()
        rows["not_done"] = ~ended.cpu().numpy()
        for log, row in zip(self.logs, rows, strict=True):
            log.append(row)

    def end(self, env: int, last: Observations) -> None:
        log, begin = self.logs[env], self._begins[env]
        length = log.n_written - begin
        check_episode_fits(length, self.capacity)
        log.append(self._rows(last.map(lambda kind: kind[env : env + 1]))[0])
        # So that all rows of an episode that can be drawn are in its files.
        log.flush()
        self._begins[env] = log.n_written
        self.episodes.append(EpisodeSpan(env, begin, length))
        # The final observation has a row of its own.
        self.n_rows += length + 1
        # Whole episodes leave: half a one could not be drawn from.
        while self.n_rows > self.capacity:
            oldest = self.episodes.pop_oldest()
            self.n_rows -= oldest.length + 1
            given_up = self.logs[oldest.env].forget(oldest.begin + oldest.length + 1)
            self._kept.remove_unnamed(given_up)

    def begin(self) -> None:
        self._begins = [log.n_written for log in self.logs]

    def sample(self, n_samples: int) -> FrameSteps:
        return self.steps(self.episodes.draw(n_samples, self.config.replay_sampling))

    def steps(self, starts: list[tuple[EpisodeSpan, int]]) -> FrameSteps:
        """Return n steps from each of B starts: an episode, and a step of it."""
        n_step, n_samples = self.config.n_step, len(starts)
        seen, following = (np.empty((n_samples, self.frame_stack), self.dtype) for _ in range(2))
        done = np.zeros((n_samples, n_step), self.dtype)
        for n, (place, start) in enumerate(starts):
            end = min(start + n_step, place.length)
            # One read for each sample: its stack, n steps, and the observation after them.
            first = max(0, start - self.frame_stack + 1)
            rows = self.logs[place.env].read(place.begin + first, place.begin + end + 1)
            done[n, : end - start] = rows[start - first : end - first]
            seen[n] = rows[self._stack(start) - first]
            following[n] = rows[np.maximum(self._stack(end) - first, 0)]
        return FrameSteps(
            self._observations(seen),
            self._observations(following),
            torch.from_numpy(done["actions"][:, 0].astype(np.int64)).to(self.device),
            torch.from_numpy(done["rewards"].copy()).to(self.device),
            torch.from_numpy(done["not_done"].copy()).to(self.device),
        )

    def state_dict(self) -> State:
        logs = [log.save() for log in self.logs]
        if self.folder.is_dir():
            sync_folder(self.folder)
        files = {name: entry for log in self.logs for name, entry in log.files().items()}
        before = self._kept.note(files)
        self._kept.remove_unnamed()
        return {
            "files": files,
            "before": before,
            "logs": logs,
            "begins": list(self._begins),
            "episodes": torch.tensor(self.episodes, dtype=torch.int64).view(-1, 3),
        }

    def load_state_dict(self, state: State) -> None:
        episodes = state["episodes"]
        check_like(state["begins"], self._begins, "replay.begins")
        check_like(episodes, torch.zeros(len(episodes), 3, dtype=torch.int64), "replay.episodes")
        for log, saved in zip(self.logs, state["logs"], strict=True):
            log.load(saved, state["files"])
        self._begins = list(state["begins"])
        self.episodes, self.n_rows = Episodes(self.config.n_step), 0
        for place in (EpisodeSpan(*each) for each in episodes.tolist()):
            own = self.logs[place.env] if 0 <= place.env < len(self.logs) else None
            if own is None or not own.first <= place.begin < place.begin + place.length:
                raise ValueError("replay: an episode that stands nowhere")
            if place.begin + place.length >= own.n_written:
                raise ValueError("replay: an episode that ends behind the last row")
            self.episodes.append(place)
            self.n_rows += place.length + 1
        for log, begin in zip(self.logs, self._begins, strict=True):
            if not log.first <= begin <= log.n_written:
                raise ValueError("replay: a running episode that stands nowhere")
        self._kept.restore(state)

    def _stack(self, step: int) -> np.ndarray:
        """Return the steps of a stack: the last S, padded with the episode's first.  [S]"""
        return np.maximum(np.arange(step - self.frame_stack + 1, step + 1), 0)

    def _rows(self, observations: Observations) -> np.ndarray:
        rows = np.zeros(len(observations.any()), self.dtype)
        for name, kind in observations.tensors().items():
            rows[name] = kind.cpu().numpy()
        return rows

    def _observations(self, rows: np.ndarray) -> Observations:
        """Return the observations of the last of S rows, images with those before.  [B, S] rows"""
        kinds = {}
        for name in Observations._fields:
            if name in self._kinds:
                shown = rows[name] if name == "images" else rows[name][:, -1]
                kinds[name] = torch.from_numpy(shown.copy()).to(self.device)
        if "images" in kinds:
            kinds["images"] = kinds["images"].flatten(1, 2)  # [B, S*C, H, W]
        return Observations(**kinds)


def _row_type(example: Observations) -> np.dtype:
    """Return the type of a row: observations, action, reward, and whether the episode goes on."""
    kinds = [
        (name, kind.cpu().numpy().dtype, tuple(kind.shape[1:]))
        for name, kind in example.tensors().items()
    ]
    done = [("actions", np.int16), ("rewards", np.float32), ("not_done", np.bool_)]
    return np.dtype([*kinds, *done])
