"""What a checkpoint holds and when it is written; whole or not at all, read without executing it.

A checkpoint is a line of text with its format and the sha256 of what follows: one `torch.save` of
a dictionary of tensors, numbers and text. Every checkpoint holds

    config      every setting of the run
    agent       trained parts, fixed random projection and running statistics
    weights     sha256 of the pretrained parts, which are not contained
    env_steps   environment steps behind it

and ckpt_last.pt all else that a run needs to go on as if it had never been interrupted:

    learner     optimiser, statistics, episodes that are to become part of a replay, and which files
                that is in
    collector   counts, statistics, and where the environments can be saved, the running episodes
    run         the seconds so far, the best return
    metrics     how long metrics.csv was, and the sha256 of that
    own         where all random streams stand
    other_ranks learner, collector and own of each rank but the first

It is written after an update, when no rollout is half full and no gradient step owed. Where
environments cannot be saved, a resumed run begins new episodes.
"""

import dataclasses
import hashlib
import logging
import math
import os
import re
import shlex
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from models.agent import Agent
from runs.folder import (
    check_settings,
    is_finished,
    note_end,
    recorded_settings,
    resume_command,
)
from runs.loggers import MetricsWriter, last_step
from runs.stored import stored_config
from settings import Config, setting
from trainers.interruption import Interruption
from trainers.published import PUBLISHED, load_published
from trainers.ranks import Ranks
from utils.errors import Interrupted, UserError
from utils.files import (
    check_without_links,
    checksum,
    load_saved,
    name_also,
    put_aside,
    save_tensors,
    written_whole,
)
from utils.starting import typed

FORMAT = 4
LAST_OF_FORMAT_3 = "56e76aa"  # the commit that still reads it
HELD_BY_ALL = ("config", "agent", "weights", "env_steps")
HELD_BY_LAST = ("learner", "collector", "run", "own", "metrics")
BEST, LAST, PREVIOUS = "ckpt_best.pt", "ckpt_last.pt", "ckpt_last.previous.pt"
HEADER = "HELM checkpoint {:03d} sha256 {}\n"
UNWRITTEN = HEADER.format(FORMAT, "-" * 64).encode()

log = logging.getLogger(__name__)


REPLAY = "replay"  # the folder of what a learner keeps in files, all of them called:
REPLAY_FILE = r"(rows_\d{12,}\.pt|env\d{4,}_\d{12,}\.rows)"
OF_EACH_RANK = ("learner", "collector", "own")


@dataclass(frozen=True)
class CheckpointSettings(Config):
    """When checkpoints are written."""

    title = "checkpoints"

    save_ckpt: bool = setting(
        "write ckpt_best.pt and ckpt_last.pt into the run folder", has_effect=False, default=True
    )
    checkpoint_minutes: float = setting(
        "minutes between two ckpt_last.pt", low=0, high=100_000, has_effect=False, default=1.0
    )


class SavedRun(Protocol):
    """A run as its checkpoints see it."""

    ranks: Ranks

    @property
    def config(self) -> CheckpointSettings:
        """The settings of the run."""

    @property
    def env_steps(self) -> int:
        """Steps of all environments so far."""

    def agent_state(self) -> dict[str, Any]:
        """Return what it takes to play with the agent."""

    def state_dict(self) -> dict[str, Any]:
        """Return what it takes to go on, this rank's own included."""


class Checkpoints:
    """Writes a run's checkpoints: the best, and the last now and then, at the end, if asked.

    Args:
        run: Whose they are.
        folder: The run's.
        writer: What must be on the disk before a checkpoint that counts on it; None on a rank that
            writes nothing.
        interruption: Where signals are noted.
    """

    def __init__(
        self,
        run: SavedRun,
        folder: Path,
        writer: MetricsWriter | None,
        interruption: Interruption,
    ) -> None:
        self.run, self.folder = run, folder
        self.writer, self.interruption = writer, interruption
        self._last_saved = -math.inf

    def keep_best(self) -> None:
        """Write the agent as the best so far."""
        if self.run.config.save_ckpt and self.writer is not None:
            save_checkpoint(self.folder / BEST, self.run.agent_state())

    def after_update(self, is_last: bool) -> None:
        """Write the last checkpoint when it is due or asked for, and end the run if that was asked.

        Raises:
            Interrupted: to end the run.
        """
        pause = 60 * self.run.config.checkpoint_minutes
        is_time = time.perf_counter() - self._last_saved >= pause
        wants = is_last or is_time or self.interruption.save, self.interruption.stop or 0
        is_due, stop = self.run.ranks.all_reduce_max(*wants)
        if is_due or stop:
            self._save()
        if is_last or not stop:
            return
        saved = "Nothing is saved (save_ckpt is false)"
        if self.run.config.save_ckpt:
            saved = f"Go on with: {resume_command(self.folder)}"
        steps = self.run.env_steps
        raise Interrupted(f"interrupted after {steps:,} steps. {saved}", signal.Signals(stop))

    def _save(self) -> None:
        """Write the last checkpoint, keeping the one before."""
        self.interruption.save = False
        self._last_saved = time.perf_counter()
        if self.run.config.save_ckpt:
            state = gathered_state(self.run.state_dict(), self.run.ranks)
            if self.writer is not None:
                state["metrics"] = self.writer.sync()
                save_checkpoint(self.folder / LAST, state, self.folder / PREVIOUS)


def agent_state(config: Config, agent: Agent, env_steps: int) -> dict[str, Any]:
    """Return what it takes to play with an agent after so many steps of its run."""
    return {
        "config": dataclasses.asdict(config),
        "agent": agent.state_dict(),
        "weights": agent.fingerprints(),
        "env_steps": env_steps,
    }


def gathered_state(state: dict[str, Any], ranks: Ranks) -> dict[str, Any]:
    """Return the state of a run with what the other ranks have of their own, on the first rank."""
    return state | {"other_ranks": ranks.gather({part: state[part] for part in OF_EACH_RANK})[1:]}


def own_checkpoint(folder: Path, config: CheckpointSettings, ranks: Ranks) -> dict[str, Any] | None:
    """Return what this rank goes on from: what is common, and what is its own.

    Raises:
        UserError: as `unfinished_checkpoint`.
    """
    of_first: list[dict[str, Any] | None] = []

    def find() -> str | None:
        state = unfinished_checkpoint(folder, config, ranks.size)
        of_first.append(state)
        return None if state is None else state["file"]

    file = ranks.run_on_first(find)
    if ranks.first or file is None:
        return of_first[0] if ranks.first else None
    state = load_checkpoint(folder / file)
    return state | state["other_ranks"][ranks.rank - 1]


def save_checkpoint(path: Path, state: dict[str, Any], previous: Path | None = None) -> None:
    """Write a checkpoint; whatever interrupts the writing, an earlier one stays.

    Args:
        path: Its place.
        state: Tensors, numbers and text.
        previous: Where to keep the checkpoint that stood there; None overwrites it.
    """
    with written_whole(path, previous) as file:
        file.write(UNWRITTEN)
        save_tensors(state, file)
        file.seek(len(UNWRITTEN))
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        file.write(HEADER.format(FORMAT, digest).encode())


def find_checkpoint(path: Path, option: str = "--ckpt-path") -> Path:
    """Return the checkpoint a user means by a file, or by a run folder: its best, else its last.

    Args:
        path: The file or folder.
        option: What the user gave it as.
    """
    if os.path.isfile(path):
        return path
    if not os.path.exists(path):
        raise UserError(
            f"{option} {path}: no such file or folder. Name a run folder or a checkpoint"
        )
    if not os.path.isdir(path):
        raise UserError(f"{option} {path}: neither a file nor a folder")
    check_without_links(path)
    for name in (BEST, LAST, PREVIOUS, PUBLISHED):
        if (path / name).is_file():
            return path / name
    raise UserError(
        f"{option} {path}: the folder holds neither {BEST} nor {LAST}. "
        "Train with save_ckpt=true, or name a checkpoint file"
    )


class Damaged(UserError):
    """A checkpoint, or a file of its replay, is not what was once written."""


def last_checkpoint(folder: Path, n_steps: int) -> dict[str, Any] | None:
    """Return the last good checkpoint of a run with the name of its file, None if there is none.

    A checkpoint is as good as the files of its replay, which the last one after `n_steps` needs no
    more. Nothing is changed here: what is damaged gives way in `give_way`, once all else has been
    found in order.

    Raises:
        UserError: there are checkpoints, and none of them holds a run of this version; or the run
            is finished, so that it is not to begin anew.
    """
    problems, reached = [], last_step(folder)
    for name in (LAST, PREVIOUS):
        path = folder / name
        if not path.is_file():
            continue
        try:
            checkpoint = load_checkpoint(path)
            reached = max(reached, checkpoint["env_steps"])
            _check_goes_on(checkpoint, path)
            if checkpoint["env_steps"] < n_steps:
                _check_replay(checkpoint, folder)
        except UserError as error:
            problems.append(error)
            continue
        if problems:
            n_lost = reached - checkpoint["env_steps"]
            log.warning(f"{problems[0]}; going on from the one before: {n_lost:,} steps are lost")
        return checkpoint | {"file": name}
    fatal = [each for each in problems if not isinstance(each, Damaged) or is_finished(folder)]
    if fatal:
        raise fatal[0]
    if problems:
        log.warning(f"{problems[0]}; beginning anew: {reached:,} steps are lost")
    return None


def give_way(folder: Path, checkpoint: Mapping[str, Any] | None) -> None:
    """Put damaged checkpoints aside, which the next would else take for the one before."""
    source = None if checkpoint is None else checkpoint["file"]
    if source != LAST:
        for name in (LAST, PREVIOUS):
            if name != source and (folder / name).exists():
                put_aside(folder / name)
    if source == PREVIOUS:
        name_also(folder / PREVIOUS, folder / LAST)


def unfinished_checkpoint(
    folder: Path, config: CheckpointSettings, n_ranks: int = 1
) -> dict[str, Any] | None:
    """Return what a run goes on from, None where nothing good has been saved.

    Where a run was killed between its last checkpoint and its end, the end is noted in run.json.

    Raises:
        UserError: the run is finished, saves nothing, or its settings are no longer those of the
            checkpoint; or another number of ranks made it.
    """
    if not config.save_ckpt:
        raise UserError(f"{folder}: a run with save_ckpt=false cannot go on. Begin another")
    checkpoint = last_checkpoint(folder, config.n_steps)
    if checkpoint is None:
        if (folder / PUBLISHED).is_file():
            raise UserError(f"{folder}: a published agent, to be played; it holds no run to go on")
        check_settings(folder, config, recorded_settings(folder), "run.json")
        return None
    check_settings(folder, config, checkpoint["config"], "the checkpoint")
    made_by = 1 + len(checkpoint.get("other_ranks", []))
    if made_by != n_ranks:
        raise UserError(
            f"{folder}: its checkpoint is one of {made_by} rank{'s'[: made_by - 1]}, "
            f"this is {n_ranks}. Go on with: {resume_command(folder, made_by)}"
        )
    if checkpoint["env_steps"] >= config.n_steps:
        if not is_finished(folder):
            note_end(folder)
        raise UserError(
            f"{folder}: this run is finished, it has had its {config.n_steps:,} steps. Play it: "
            f"{shlex.join([*typed('eval.py'), '--ckpt-path', str(folder)])}"
        )
    return checkpoint


def _check_goes_on(checkpoint: Mapping[str, Any], path: Path) -> None:
    """Raise UserError where a checkpoint holds an agent, but not the run it was trained in."""
    missing = [name for name in HELD_BY_LAST if name not in checkpoint]
    if missing:
        raise UserError(
            f"{path}: holds an agent to play with, as {BEST} does, but not what a run needs to go "
            f"on ({', '.join(missing)}). Restore the run's own {LAST}"
        )


def _check_replay(checkpoint: Mapping[str, Any], folder: Path) -> None:
    """Raise Damaged where a file that a checkpoint's replay is in is not as it was then."""
    files: list[tuple[Path, int, str]] = []
    try:
        for rank, state in enumerate((checkpoint, *checkpoint.get("other_ranks", ()))):
            own = folder / Ranks(rank).own_name(REPLAY)
            replay = state["learner"].get("replay") or {"files": {}}
            for name, (n_bytes, sha256) in replay["files"].items():
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
            if checksum(path, n_bytes).hexdigest() != sha256:
                raise Damaged(f"{path}: damaged, its content does not have its checksum")
        except FileNotFoundError:
            raise Damaged(f"{path}: missing, a part of the replay") from None
        except (OSError, TypeError, ValueError) as error:
            raise Damaged(f"{path}: damaged ({error})") from None


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Return a checkpoint's content on the CPU.

    Raises:
        UserError: the file is not a checkpoint of this program, or it is damaged.
    """
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
    if type(state["env_steps"]) is not int or state["env_steps"] < 0:
        raise UserError(f"{path}: not a checkpoint of this program (env_steps is no count)")
    return state


def checkpoint_config(checkpoint: Mapping[str, Any], path: Path, trust: bool = False) -> Config:
    """Return the settings in a checkpoint; run.json beside it says where its own code was.

    Raises:
        UserError: they are not those of a run, or code they name is not there or may not be run.
    """
    return stored_config(checkpoint["config"], str(path), path.parent, trust)


def recorded_sha256(path: Path) -> str:
    """Return the sha256 that a checkpoint's first line says of the rest."""
    with path.open("rb") as file:
        return file.readline(len(UNWRITTEN)).split()[-1].decode()


def restore_agent(agent: Agent, checkpoint: Mapping[str, Any], source: str) -> None:
    """Fill an agent with what a checkpoint holds of it.

    Raises:
        UserError: it is not this agent's, made with other pretrained parts, or not finite.
    """
    check_weights(checkpoint, agent.fingerprints(), source)
    try:
        agent.load_state_dict(checkpoint["agent"])
    except Exception as error:  # a changed state raises about five kinds of errors
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{source}: the agent in it is not the one of its settings ({reason})"
        ) from error
    if not all(tensor.isfinite().all() for tensor in agent.state_dict().values()):
        raise UserError(f"{source}: the agent in it has weights that are not finite numbers")


def check_weights(checkpoint: Mapping[str, Any], found: Mapping[str, str], source: str) -> None:
    """Raise UserError where a checkpoint was made with other pretrained parts.

    Args:
        checkpoint: As loaded.
        found: sha256 of the parts in use, by the setting that names them.
        source: What to call the checkpoint.
    """
    made_with = checkpoint["weights"]
    for name in sorted(made_with.keys() | found.keys()):
        before, here = (str(parts.get(name)) for parts in (made_with, found))
        if before != here:
            raise UserError(
                f"{source}: made with another {name}, '{checkpoint['config'].get(name)}' "
                f"with sha256 {before[:12]}... (here {here[:12]}...). Restore those weights"
            )


def _read(path: Path) -> Any:
    with path.open("rb") as file:
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
        return load_saved(file)


def _read_published(path: Path) -> Any:
    state = load_published(path)
    _check_format(path, state.get("format"))
    return state


def _check_format(path: Path, found: object) -> None:
    if found != FORMAT:
        raise UserError(
            f"{path}: a checkpoint of format {found}, and this version reads format {FORMAT}. "
            f"Play it or go on with it at commit {LAST_OF_FORMAT_3}, which reads formats 2 and 3"
        )
