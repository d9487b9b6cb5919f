"""Metrics of a run: a CSV row, TensorBoard events, and Weights & Biases where wanted."""

import csv
import errno
import hashlib
import html
import io
import itertools
import json
import logging
import math
import os
import re
import socket
import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from utils.errors import UserError
from utils.files import atomic_write, backup_copy, checksum, open_of_run
from utils.settings import Config, Values

FILE = "metrics.csv"
MOST_BYTES = 2 * 10**9  # of a table; a thousand million steps leave about a tenth
LINE_END = b"\r\n"
STEPS = "env_steps"
NOTHING = {"n_bytes": 0, "sha256": hashlib.sha256().hexdigest()}  # as long as no row is written
CHANGED = "changed since the last checkpoint"
EVENTS = "events.out.tfevents"
WANDB_ID = "wandb_id"
RETURN = "rollout/return_mean"  # the score in TensorBoard's table of hyper-parameters

log = logging.getLogger(__name__)


class NotLogged(UserError):
    """A service refuses a run."""


class EncodedImage(NamedTuple):
    data: bytes
    width: int
    height: int
    format: str  # "png" or "gif"


Media = Mapping[str, EncodedImage | str]  # pictures and Markdown by name


class TensorBoardLogger:
    """Writes an event file into the run folder, beside those of earlier parts of the run."""

    # Unlike SummaryWriter, every record is written at once, not in a thread with its own
    # tracebacks: a full disk is an error where it happens, and nothing is lost in a crash.

    def __init__(self, folder: Path, config: Config, env_steps: int) -> None:
        from torch.utils.tensorboard.summary import hparams

        # TensorBoard reads the files of a folder in the order of their names.
        number = len(list(folder.glob(f"{EVENTS}.*")))
        name = f"{EVENTS}.{int(time.time()):010d}.{number:04d}.{socket.gethostname()}"
        self._file = (folder / name).open("xb")  # never through a link
        self._records = RecordWriter(self._file)
        self._add(Event(file_version="brain.Event:2"))
        # Tells readers to forget the rows of earlier files from this step on.
        self._add(Event(step=env_steps + 1, session_log=SessionLog(status=SessionLog.START)))
        settings = {
            name: json.dumps(value) if value is None or isinstance(value, dict) else value
            for name, value in config.as_dict().items()
        }
        *begin, self._end = hparams(settings, {RETURN: 0.0})
        for summary in begin if number == 0 else ():
            self._add(Event(summary=summary))

    def write(self, env_steps: int, metrics: Mapping[str, float]) -> None:
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in metrics.items()]
        self._add(Event(step=env_steps, summary=Summary(value=values)))

    def show(self, env_steps: int, media: Media) -> None:
        from torch.utils.tensorboard.summary import text

        for name, item in media.items():
            if isinstance(item, str):
                self._add(Event(step=env_steps, summary=text(name, item)))
                continue
            image = Summary.Image(height=item.height, width=item.width, colorspace=3)
            image.encoded_image_string = item.data
            summary = Summary(value=[Summary.Value(tag=name, image=image)])
            self._add(Event(step=env_steps, summary=summary))

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self, finished: bool) -> None:
        with self._file:
            if finished:
                self._add(Event(summary=self._end))

    def _add(self, event: Event) -> None:
        event.wall_time = time.time()
        self._records.write(event.SerializeToString())
        self._file.flush()


class WandbLogger:
    """Sends a run to Weights & Biases; WANDB_MODE=offline keeps it in the run folder."""

    # A resumed run goes on there, too: the package leaves out rows of steps it has already had.

    def __init__(self, folder: Path, config: Config) -> None:
        import wandb

        self._wandb = wandb
        path = folder / WANDB_ID  # a unique name, kept for when the run goes on
        if not path.exists():
            with atomic_write(path) as file:
                file.write(uuid.uuid4().hex.encode())
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "helm"),
                name="/".join(folder.parts[-3:]),
                id=_content(path).decode(),
                resume="allow",
                config=config.as_dict(),
                dir=str(folder),
            )
        except wandb.Error as error:
            reason = str(error).splitlines()[0].rstrip(".")
            remedy = "Run: wandb login, set WANDB_MODE=offline, or change WANDB_PROJECT"
            raise NotLogged(f"wandb: {reason}. {remedy}") from None
        self._run.define_metric("*", step_metric="env_steps")

    def write(self, env_steps: int, metrics: Mapping[str, float]) -> None:
        self._run.log({"env_steps": env_steps, **metrics}, step=env_steps)

    def show(self, env_steps: int, media: Media) -> None:
        if media:
            items = {name: self._item(item) for name, item in media.items()}
            self._run.log({"env_steps": env_steps, **items}, step=env_steps)

    def sync(self) -> None:
        """Do nothing: the package's own process writes."""

    def close(self, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)

    def _item(self, item: EncodedImage | str) -> object:
        if isinstance(item, str):
            # Markdown that is shown as it stands, without the escapes it has for HTML.
            return self._wandb.Html(f"<pre>{html.escape(html.unescape(item))}</pre>")
        if item.format == "gif":
            return self._wandb.Video(io.BytesIO(item.data), format="gif")
        from PIL import Image

        return self._wandb.Image(Image.open(io.BytesIO(item.data)))


class MetricsWriter:
    """Writes metrics.csv and the events of every logger.

    The columns of the CSV are those of the first row, followed by any that later versions of the
    program add; every row is flushed when written. NaN stands for an unknown value: it leaves its
    cell empty and is no point of a curve elsewhere.

    Args:
        folder: The run's.
        config: The settings of the run.
        env_steps: The step to go on from; rows of later steps are removed.
        saved: The result of `sync` at that step.
        wandb: Whether rows go to Weights & Biases, too.
    """

    def __init__(
        self,
        folder: Path,
        config: Config,
        env_steps: int = 0,
        saved: Values = NOTHING,
        wandb: bool = False,
    ) -> None:
        self._path = folder / FILE
        self._columns = _take_up(self._path, env_steps, saved)
        self._file = self._opened()
        self._loggers: list[TensorBoardLogger | WandbLogger] = [
            TensorBoardLogger(folder, config, env_steps)
        ]
        if wandb:
            self._loggers.append(WandbLogger(folder, config))

    def write(self, env_steps: int, metrics: Mapping[str, float]) -> None:
        # Rows of a removed file would be lost without an error.
        if os.fstat(self._file.fileno()).st_nlink == 0:
            raise OSError(errno.ENOENT, "removed while the run went on", str(self._path))
        self._add_columns([name for name in (STEPS, *metrics) if name not in self._columns])
        known = {name: value for name, value in metrics.items() if not math.isnan(value)}
        csv.DictWriter(self._file, self._columns).writerow({STEPS: env_steps, **known})
        self._file.flush()
        for logger in self._loggers:
            logger.write(env_steps, known)

    def show(self, env_steps: int, media: Media) -> None:
        for logger in self._loggers:
            logger.show(env_steps, media)

    def sync(self) -> dict[str, Any]:
        os.fsync(self._file.fileno())
        for logger in self._loggers:
            logger.sync()
        n_bytes = self._path.stat().st_size
        return {"n_bytes": n_bytes, "sha256": checksum(self._path, n_bytes).hexdigest()}

    def _add_columns(self, names: list[str]) -> None:
        if not names:
            return
        self._columns += names
        rows = _content(self._path).splitlines()[1:]
        with atomic_write(self._path) as file:
            lines = [",".join(self._columns).encode(), *(row + b"," * len(names) for row in rows)]
            file.writelines(line + LINE_END for line in lines)
        self._file.close()
        self._file = self._opened()

    def _opened(self) -> TextIO:
        return open(self._path, "a", newline="", encoding="utf-8", opener=open_of_run)

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with ExitStack() as all_of_them:
            for logger in self._loggers:
                all_of_them.callback(logger.close, finished=kind is None)
            self._file.close()


def check_size(path: Path, writer: str = "main.py") -> None:
    """Refuse a table that is too large to be read, such as a sparse file of a terabyte."""
    if path.is_file() and path.stat().st_size > MOST_BYTES:
        raise UserError(f"{path}: not a table of {writer} (more than {MOST_BYTES:,} bytes)")


def last_step(folder: Path) -> int:
    """Return the environment steps of the last row of a run's metrics, 0 where there is none."""
    path = folder / FILE
    check_size(path)
    lines = _content(path).splitlines() if path.is_file() else []
    return max((step for line in lines if (step := _step(line)) is not None), default=0)


def are_as_saved(folder: Path, saved: Values) -> bool:
    """Return whether metrics.csv begins as `MetricsWriter.sync` told; UserError if no file."""
    path = folder / FILE
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: not a file. Remove it, or restore the run's")
    try:
        return checksum(path, saved["n_bytes"]).hexdigest() == saved["sha256"]
    except FileNotFoundError:
        return not saved["n_bytes"]
    except ValueError:
        return False


def _take_up(path: Path, env_steps: int, saved: Values) -> list[str]:
    """Cut a CSV file behind its saved part and return its columns."""
    # Where that part has changed, a line says so, the file is copied beside itself, and readable
    # rows stay.
    as_saved = are_as_saved(path.parent, saved)
    content = _content(path) if path.exists() else b""
    cut = content[: saved["n_bytes"]]
    if not as_saved:
        heading, *rows = content[: content.rfind(b"\n") + 1].splitlines() or [b""]
        n_cells = heading.count(b",")
        whole = ((_step(row), row) for row in rows if row.count(b",") == n_cells)
        known = {step: row for step, row in whole if step is not None and step <= env_steps}
        is_table = heading.startswith(STEPS.encode())
        kept = [known[step] for step in sorted(known)] if is_table else []
        cut = b"".join(line + LINE_END for line in [heading, *kept]) if kept else b""
        copy = f"; the damaged file is kept as {backup_copy(path)}" if content else ""
        log.warning(
            f"{path}: {CHANGED}, {len(kept)} rows up to step {env_steps:,} can be read{copy}"
        )
    else:
        steps = [step for line in cut.splitlines()[1:] if (step := _step(line)) is not None]
        for number, (before, now) in enumerate(itertools.pairwise(steps), 3):
            if now <= before:
                log.warning(f"{path}: line {number}: {STEPS} {now:,} follows {before:,}")
                break
    if cut != content:
        with atomic_write(path) as file:
            file.write(cut)
    return cut.partition(LINE_END)[0].decode(errors="replace").split(",") if cut else []


def _content(path: Path) -> bytes:
    with open(path, "rb", opener=open_of_run) as file:
        return file.read()


def _step(line: bytes) -> int | None:
    return int(line.partition(b",")[0]) if re.match(rb"\d{1,18},", line) else None
