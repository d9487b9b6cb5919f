"""Checkpoints: their content, and when they are written; whole or not at all, read without pickle.

A checkpoint is a line of text with its format and the sha256 of the rest: one `torch.save` of a
dictionary of tensors, numbers and text. Every checkpoint holds

    config      every setting of the run
    agent       trained parts, fixed random projection and running statistics
    weights     sha256 of the pretrained parts, which are not contained
    env_steps   environment steps behind it

and ckpt_last.pt the rest of the run's state, from which it is resumed exactly:

    learner     optimiser, statistics, unfinished episodes, and the names of the replay's files
    collector   counts, statistics, and the running episodes of environments that can be saved
    run         the seconds so far, the best return
    metrics     length and sha256 of metrics.csv
    own         the state of all random streams
    other_ranks learner, collector and own of each rank but the first

It is written after an update, when no rollout is half full and no gradient step owed; learners from
replay may stop between any two steps, of the environments and of the optimiser, too.

A published checkpoint is model.safetensors, a file of tensors and JSON without any code. The
tensors are the agent's; the header has two texts

    checkpoint  JSON of the format, the settings, the weights' sha256 and the steps behind it
    sha256      of that text and of all tensors
"""

import hashlib
import json
import logging
import math
import os
import re
import shlex
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from models.agent import Agent
from trainers.ranks import Ranks
from trainers.settings import MOST_KEPT, CheckpointSettings, FinetuneSettings
from utils.environments import State
from utils.errors import Interrupted, UserError, cli_command, shortened
from utils.files import (
    atomic_write,
    check_plain,
    checksum,
    hardlink,
    load_tensors,
    open_regular,
    put_aside,
    save_tensors,
)
from utils.loggers import MetricsWriter, last_step
from utils.run_folder import (
    PUBLISHED,
    check_settings,
    description_of,
    is_finished,
    mark_finished,
    resume_command,
    trusting,
)

FORMAT = 4
LAST_OF_FORMAT_3 = "56e76aa"  # the commit that still reads it
HELD_BY_ALL = ("config", "agent", "weights", "env_steps")
HELD_BY_LAST = ("learner", "collector", "run", "own", "metrics")
BEST, LAST, PREVIOUS = "ckpt_best.pt", "ckpt_last.pt", "ckpt_last.previous.pt"
HEADER = "HELM checkpoint {:03d} sha256 {}\n"
UNWRITTEN = HEADER.format(FORMAT, "-" * 64).encode()
REPLAY = "replay"  # the folder of a learner's replay, and the names of its files:
REPLAY_FILE = r"(rows_\d{12,}\.pt|env\d{4,}_\d{12,}\.rows)"
OF_EACH_RANK = ("learner", "collector", "own")
STOP, STDERR = (signal.SIGINT, signal.SIGTERM), 2
AT_NEXT = "stopping where it can be saved; once more to stop now, the last checkpoint stays"
LEAST_APART = 10.0  # seconds from one checkpoint to the next between two updates
INIT_FROM = "--init-from"

log = logging.getLogger(__name__)


def kept_names(n_kept: int) -> list[str]:
    """Return the names of a run's last checkpoints, the latest first."""
    return [LAST, PREVIOUS, *(f"ckpt_last.previous{n}.pt" for n in range(2, n_kept))]


class Interruption:
    """Notes signals while it is entered; the first one to stop gets an answer on the terminal.

    Attributes:
        stop: The first signal to stop: Ctrl-C or SIGTERM. The same again, or a Ctrl-C, ends the
            process at once.
        save: Whether SIGUSR1 asked for a checkpoint since the last one.
    """

    def __init__(self, answer: str = AT_NEXT) -> None:
        self._answer = f"\n{answer}\n".encode()
        self.stop: signal.Signals | None = None
        self.save = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interruption":
        # Python lets the main thread alone set handlers.
        if threading.current_thread() is threading.main_thread():
            self._before = {
                number: signal.signal(number, self._note) for number in (*STOP, signal.SIGUSR1)
            }
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGUSR1:
            self.save = True
        elif self.stop is None:
            self.stop = signal.Signals(number)
            # Printing is not safe here: the signal may have come in the middle of another print.
            os.write(STDERR, self._answer)
        elif number in (signal.SIGINT, self.stop):  # torchrun passes a Ctrl-C on as SIGTERM
            os._exit(128 + number)


@dataclass
class Checkpoints:
    """Writes a run's checkpoints: the best, and the last now and then, at the end, if asked."""

    config: CheckpointSettings
    folder: Path
    ranks: Ranks
    writer: MetricsWriter | None  # on the first rank; others write nothing
    interruption: Interruption
    last_saved: float = -math.inf
    begun: float = field(default_factory=time.perf_counter)

    def keep_best(self, state: Callable[[], State]) -> None:
        if self.config.save_ckpt and self.writer is not None:
            save_checkpoint(self.folder / BEST, state())

    def after_update(self, env_steps: int, is_last: bool, state: Callable[[], State]) -> None:
        """Write the last checkpoint when it is due or asked for; Interrupted after a signal."""
        is_time = time.perf_counter() - self.last_saved >= 60 * self.config.checkpoint_minutes
        # Clocks and signals differ between ranks: all write, or none.
        wants = is_last or is_time or self.interruption.save, self.interruption.stop or 0
        is_due, stop = self.ranks.all_reduce_max(*wants)
        if is_due or stop:
            self.interruption.save, self.last_saved = False, time.perf_counter()
            if self.config.save_ckpt:
                whole = state()
                # Each rank builds its own parts, and the first writes them all into one file.
                parts = self.ranks.gather({part: whole[part] for part in OF_EACH_RANK})
                if self.writer is not None:
                    # metrics.csv is on the disk before a checkpoint that names its length.
                    whole |= {"other_ranks": parts[1:], "metrics": self.writer.sync()}
                    self._save_last(whole, is_last)
        # A run that has come to its end is over, whatever signal came with it.
        if is_last or not stop:
            return
        saved = "Nothing is saved (save_ckpt is false)"
        if self.config.save_ckpt:
            saved = f"Go on with: {resume_command(self.folder)}"
        raise Interrupted(f"interrupted after {env_steps:,} steps. {saved}", signal.Signals(stop))

    def between_updates(self, env_steps: int, state: Callable[[], State]) -> None:
        """Do the same between two steps of the environments, or of the optimiser."""
        # Seconds apart, though every update may have one: there are far more steps than updates.
        # From the run's beginning: `last_saved` is -inf, and the first step would be a checkpoint.
        seconds = max(60 * self.config.checkpoint_minutes, LEAST_APART)
        is_time = time.perf_counter() - max(self.last_saved, self.begun) >= seconds
        wanted = is_time or self.interruption.save or self.interruption.stop is not None
        if any(self.ranks.all_reduce_max(wanted)):
            self.after_update(env_steps, False, state)

    def _save_last(self, whole: State, is_last: bool) -> None:
        earlier = [self.folder / name for name in kept_names(self.config.keep_checkpoints)[1:]]
        # The oldest first, so that none is overwritten before it has moved.
        for older, newer in pairwise(reversed(earlier)):
            if newer.exists():
                newer.replace(older)
        save_checkpoint(self.folder / LAST, whole, self.folder / PREVIOUS)
        if is_last:  # nothing more is written that could be broken off
            for path in earlier:
                path.unlink(missing_ok=True)


def own_checkpoint(
    folder: Path, config: CheckpointSettings, ranks: Ranks, to_go_on: bool = False
) -> State | None:
    of_first: list[dict[str, Any] | None] = []

    def find() -> str | None:
        state = unfinished_checkpoint(folder, config, ranks.size, to_go_on)
        # It stays on this rank; only the file's name travels, and others read it themselves.
        of_first.append(state)
        return None if state is None else state["file"]

    file = ranks.run_on_first(find)
    if ranks.first or file is None:
        return of_first[0] if ranks.first else None
    state = load_checkpoint(folder / file)
    # A rank's own learner, collector and streams take the place of the first one's.
    return state | state["other_ranks"][ranks.rank - 1]


def save_checkpoint(path: Path, state: State, previous: Path | None = None) -> None:
    """Write tensors, numbers and text whole; the earlier file is kept as `previous`, if given."""
    with atomic_write(path, previous) as file:
        # The header comes first but is known last: the digest is that of the rest.
        file.write(UNWRITTEN)
        save_tensors(state, file)
        file.seek(len(UNWRITTEN))
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        file.write(HEADER.format(FORMAT, digest).encode())


def find_checkpoint(path: Path, option: str = "--ckpt-path") -> Path:
    """Return the checkpoint that `option` names: a file, or a run folder's best, else its last."""
    if os.path.isfile(path):
        return path
    if not os.path.exists(path):
        raise UserError(
            f"{option} {path}: no such file or folder. Name a run folder or a checkpoint"
        )
    if not os.path.isdir(path):
        raise UserError(f"{option} {path}: neither a file nor a folder")
    check_plain(path)
    for name in (BEST, LAST, PREVIOUS, PUBLISHED):
        if (path / name).is_file():
            return path / name
    raise UserError(
        f"{option} {path}: the folder holds neither {BEST} nor {LAST}. "
        "Train with save_ckpt=true, or name a checkpoint file"
    )


class Damaged(UserError):
    """A checkpoint or a file of its replay is missing or has another content than once written."""


def last_checkpoint(folder: Path, n_steps: int) -> State | None:
    """Return the last valid checkpoint of a run with the name of its file, or None.

    The files of its replay must be valid, too, unless the run is over. Nothing is changed here:
    `give_way` moves damaged files, after all other checks.

    Raises:
        UserError: there are checkpoints, but none of a run of this version; or the run is finished,
            so that it must not begin anew.
    """
    # More files may lie there than are kept by now: all are looked for.
    problems, reached = [], last_step(folder)
    for name in kept_names(MOST_KEPT):
        path = folder / name
        if not path.is_file():
            continue
        try:
            checkpoint = load_checkpoint(path)
            reached = max(reached, checkpoint["env_steps"])
            missing = [part for part in HELD_BY_LAST if part not in checkpoint]
            if missing:
                raise UserError(
                    f"{path}: holds an agent to play with, as {BEST} does, but no state of the run "
                    f"({', '.join(missing)}). Restore the run's own {LAST}"
                )
            if not is_complete(checkpoint, n_steps):
                _check_replay(checkpoint, folder)
        except UserError as error:
            problems.append(error)
            continue
        if problems:
            n_lost = reached - checkpoint["env_steps"]
            log.warning(f"{problems[0]}; going on from the one before: {n_lost:,} steps are lost")
        return checkpoint | {"file": name}
    # Only damage lets a run begin anew. Whatever else lies there is somebody's, who is told.
    fatal = [each for each in problems if not isinstance(each, Damaged) or is_finished(folder)]
    if fatal:
        raise fatal[0]
    if problems:
        log.warning(f"{problems[0]}; beginning anew: {reached:,} steps are lost")
    return None


def give_way(folder: Path, checkpoint: Mapping[str, Any] | None) -> None:
    """Put damaged checkpoints aside, before the next one keeps them as the previous."""
    source = None if checkpoint is None else checkpoint["file"]
    for name in kept_names(MOST_KEPT):
        # Those behind the source are older ones, which stay.
        if name == source:
            break
        if (folder / name).exists():
            put_aside(folder / name)
    if source not in (None, LAST):
        # The next checkpoint finds it in the place of the last, and keeps it as the previous.
        hardlink(folder / source, folder / LAST)


def unfinished_checkpoint(
    folder: Path, config: CheckpointSettings, n_ranks: int = 1, to_go_on: bool = False
) -> State | None:
    """Return the checkpoint that a run resumes from, None where no valid one has been saved.

    Where a run was killed between its last checkpoint and its end, run.json gets its end here.
    `to_go_on` says that n_steps was given anew.

    Raises:
        UserError: the run is finished, saves nothing, or its settings are no longer those of the
            checkpoint; or another number of ranks made it.
    """
    if not config.save_ckpt:
        raise UserError(f"{folder}: a run with save_ckpt=false cannot go on. Begin another")
    checkpoint = last_checkpoint(folder, config.n_steps)
    if checkpoint is None:
        if (folder / PUBLISHED).is_file():
            raise UserError(f"{folder}: a published agent, which can be played but not trained on")
        begun = description_of(folder).get("settings")
        check_settings(folder, config, begun, "run.json", to_go_on)
        return None
    check_settings(folder, config, checkpoint["config"], "the checkpoint", to_go_on)
    made_by = 1 + len(checkpoint.get("other_ranks", []))
    if made_by != n_ranks:
        raise UserError(
            f"{folder}: its checkpoint was made by {made_by} rank{'s'[: made_by - 1]}, not by "
            f"{n_ranks}. Go on with: {resume_command(folder, made_by)}"
        )
    if is_complete(checkpoint, config.n_steps):
        if to_go_on:
            raise UserError(
                f"n_steps: {config.n_steps:,}, and {folder} has taken "
                f"{checkpoint['env_steps']:,} steps. Choose more"
            )
        if not is_finished(folder):
            mark_finished(folder)
        play = cli_command("eval.py")
        raise UserError(
            f"{folder}: this run is finished after {config.n_steps:,} steps. Play it: "
            f"{shlex.join([*play, '--ckpt-path', str(folder), *trusting(folder)])}, or go on to N "
            f"steps: {resume_command(folder)} --var n_steps=N"
        )
    return checkpoint


def is_complete(checkpoint: Mapping[str, Any], n_steps: int) -> bool:
    match checkpoint:
        case {"run": {"is_updating": True}}:  # gradient steps are left
            return False
    return bool(checkpoint["env_steps"] >= n_steps)


def _check_replay(checkpoint: Mapping[str, Any], folder: Path) -> None:
    files: list[tuple[Path, int, str]] = []
    try:
        for rank, state in enumerate((checkpoint, *checkpoint.get("other_ranks", ()))):
            own = folder / Ranks(rank).own_name(REPLAY)
            replay = state["learner"].get("replay") or {"files": {}}
            for name, (n_bytes, sha256) in replay["files"].items():
                # A name with a path in it would have another file read.
                if not re.fullmatch(REPLAY_FILE, name):
                    raise ValueError(f"a replay in '{name}'")
                files.append((own / name, n_bytes, sha256))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{folder}: the checkpoint does not hold a state of this run ({error}). "
            "Restore the run's own"
        ) from error
    for path, n_bytes, sha256 in files:
        try:
            # Of the bytes that were there then: a run that was killed has appended more.
            if checksum(path, n_bytes).hexdigest() != sha256:
                raise Damaged(f"{path}: damaged, its content does not have its checksum")
        except FileNotFoundError:
            raise Damaged(f"{path}: missing, a part of the replay") from None
        except (OSError, TypeError, ValueError) as error:
            raise Damaged(f"{path}: damaged ({error})") from None


def load_checkpoint(path: Path) -> State:
    """Load a checkpoint onto the CPU; UserError if it is damaged or not of this program."""
    try:
        state = _read_published(path) if path.suffix == Path(PUBLISHED).suffix else _read(path)
    except UserError:
        raise
    except Exception as error:  # torch.load documents no set of exceptions for a bad file
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:120]
        raise Damaged(f"{path}: not a checkpoint of this program ({reason})") from None
    if not isinstance(state, dict) or not all(name in state for name in HELD_BY_ALL):
        raise UserError(
            f"{path}: not a checkpoint of this program (it lacks some of {', '.join(HELD_BY_ALL)})"
        )
    weights = state["weights"]
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights):
        raise UserError(f"{path}: not a checkpoint of this program (its weights have no names)")
    # Not isinstance: True is an int, too.
    if type(state["env_steps"]) is not int or state["env_steps"] < 0:
        raise UserError(f"{path}: not a checkpoint of this program (env_steps is no count)")
    return state


def recorded_sha256(path: Path) -> str:
    if path.suffix == Path(PUBLISHED).suffix:
        from safetensors import safe_open

        with safe_open(path, framework="pt") as published:
            return str(published.metadata()["sha256"])
    with open(path, "rb", opener=open_regular) as file:
        return file.readline(len(UNWRITTEN)).split()[-1].decode()


def restore_agent(agent: Agent, checkpoint: Mapping[str, Any], source: str) -> None:
    """Load a checkpoint's agent, or raise UserError if it does not fit or is not finite."""
    check_weights(checkpoint, agent.fingerprints(), source)
    try:
        agent.load_state_dict(checkpoint["agent"])
    except Exception as error:  # a changed state raises about five kinds of errors
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{source}: its agent does not fit its settings ({reason})") from error
    if not all(tensor.isfinite().all() for tensor in agent.state_dict().values()):
        raise UserError(f"{source}: the agent in it has weights that are not finite numbers")


def check_weights(checkpoint: Mapping[str, Any], found: Mapping[str, str], source: str) -> None:
    """Raise UserError where a checkpoint was made with other pretrained parts.

    `found` has the sha256 of the parts in use, by the setting that names them.
    """
    made_with = checkpoint["weights"]
    for name in sorted(made_with.keys() | found.keys()):
        before, here = (str(parts.get(name)) for parts in (made_with, found))
        if before != here:
            place = shortened(str(checkpoint["config"].get(name)))
            raise UserError(
                f"{source}: made with another {shortened(name)}, '{place}' "
                f"with sha256 {before[:12]}... (here {here[:12]}...). Restore those weights"
            )


def _read(path: Path) -> Any:
    with open(path, "rb", opener=open_regular) as file:
        header = re.fullmatch(
            rb"HELM checkpoint (\d{3}) sha256 ([0-9a-f]{64}|-{64})\n", file.read(len(UNWRITTEN))
        )
        if header is None:
            raise Damaged(f"{path}: not a checkpoint of this program, or damaged in its first line")
        _check_format(path, int(header[1]))
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != header[2].decode():
            raise Damaged(f"{path}: damaged, its content does not have its checksum")
        file.seek(len(UNWRITTEN))
        try:
            return load_tensors(file)
        except Exception as error:  # whole, so it is not damaged: somebody has made it so
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:120]
            raise UserError(f"{path}: not a checkpoint of this program ({reason})") from None


def _read_published(path: Path) -> State:
    from safetensors import safe_open

    open(path, "rb", opener=open_regular).close()  # safe_open would wait for a pipe
    with safe_open(path, framework="pt") as file:
        header = file.metadata() or {}
        if not header.keys() >= {"checkpoint", "sha256"}:
            raise UserError(f"{path}: not a checkpoint of this program, but another's weights")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if _digest(header["checkpoint"], tensors) != header["sha256"]:
        raise UserError(f"{path}: damaged, its content does not have its checksum")
    state = json.loads(header["checkpoint"]) | {"agent": tensors}
    _check_format(path, state.get("format"))
    return state


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    # Of a tensor its name, type and shape count, too.
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _check_format(path: Path, found: object) -> None:
    if found != FORMAT:
        raise UserError(
            f"{path}: a checkpoint of format {found}, and this version reads format {FORMAT}. "
            f"Play it or go on with it at commit {LAST_OF_FORMAT_3}, which reads formats 2 and 3"
        )


def save_published(path: Path, state: Mapping[str, Any]) -> None:
    from safetensors.torch import save

    described = {name: state[name] for name in ("config", "weights", "env_steps")}
    text = json.dumps({"format": FORMAT, **described})
    # Copies: safetensors refuses a tensor that has two names.
    tensors = {name: tensor.clone().contiguous() for name, tensor in state["agent"].items()}
    header = {"format": "pt", "checkpoint": text, "sha256": _digest(text, tensors)}
    with atomic_write(path) as file:
        file.write(save(tensors, header))


def check_finetune(config: FinetuneSettings, has_start: bool) -> None:
    if config.finetune != "all" and not has_start:
        raise UserError(
            f"finetune: {config.finetune} freezes all other parts, and in a new run they are "
            "random. Name a trained run with --init-from, or choose finetune=all"
        )


class WarmStart(NamedTuple):
    checkpoint: str
    sha256: str
    env_steps: int

    @classmethod
    def named(cls, path: Path) -> "WarmStart":
        file = find_checkpoint(path, INIT_FROM)
        env_steps = load_checkpoint(file)["env_steps"]  # raises where it is no checkpoint
        # Whole, since the run may be resumed in another working directory.
        return cls(str(file.resolve()), recorded_sha256(file), env_steps)

    @classmethod
    def recorded(cls, facts: Mapping[str, Any]) -> "WarmStart":
        match [facts.get(name) for name in cls._fields]:
            case [str(checkpoint), str(sha256), int(env_steps)]:
                return cls(checkpoint, sha256, env_steps)
        raise UserError(
            f"{INIT_FROM}: run.json lacks the checkpoint that the run began with, its sha256 or "
            "its env_steps. Restore run.json, or begin another run"
        )

    def give(self, agent: Agent) -> None:
        path, source = Path(self.checkpoint), f"{INIT_FROM} {self.checkpoint}"
        state = load_checkpoint(find_checkpoint(path, INIT_FROM))
        # Resumed before its first checkpoint, a run begins from this file again.
        if recorded_sha256(path) != self.sha256:
            raise UserError(f"{source}: changed since the run began with it. Begin another run")
        theirs, ours = _shapes(state["agent"]), _shapes(agent.state_dict())
        try:
            restore_agent(agent, state, source)
        except UserError as error:
            # The first parameter that differs says more than PyTorch's list of all of them.
            for name in [*ours, *theirs]:
                there, own = (shapes.get(name, "is missing") for shapes in (theirs, ours))
                if there != own:
                    raise UserError(
                        f"{source}: parameter '{name}' {there} there and {own} in this run. "
                        "Name a run of such an agent"
                    ) from error
            raise


def _shapes(state: Any) -> dict[str, str]:
    values = state.items() if isinstance(state, dict) else ()
    tensors = {str(name): each for name, each in values if isinstance(each, Tensor)}
    return {name: f"has shape {tuple(each.shape)}" for name, each in tensors.items()}
