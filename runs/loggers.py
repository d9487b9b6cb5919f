"""Where a run is watched: TensorBoard always, Weights & Biases where wanted."""

import dataclasses
import importlib.util
import io
import json
import os
import socket
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from settings import Config, setting
from utils.errors import UserError
from utils.files import written_whole

EVENTS = "events.out.tfevents"
WANDB_ID = "wandb_id"
RETURN = "rollout/return_mean"  # what the table of hyper-parameters compares


@dataclass(frozen=True)
class LoggerSettings(Config):
    """Where a run is watched, and how often it is shown."""

    title = "logs"

    media_minutes: float | None = setting(
        "minutes between an episode's movie, words and attention in TensorBoard; null: never",
        low=0,
        high=100_000,
        has_effect=False,
        default=10.0,
    )
    wandb: bool = setting(
        "send metrics to Weights & Biases as well", has_effect=False, safe=(False,), default=False
    )
    wandb_project: str = setting("its project there", has_effect=False, default="helm")


class EncodedImage(NamedTuple):
    """A still or moving picture as the bytes of a file."""

    data: bytes
    width: int
    height: int
    format: str  # "png" or "gif"


Media = Mapping[str, EncodedImage | str]  # pictures and Markdown by name


class Logger(Protocol):
    """A place where a run is watched."""

    def write(self, env_steps: int, metrics: Mapping[str, float]) -> None:
        """Take in the metrics after so many environment steps."""

    def show(self, env_steps: int, media: Media) -> None:
        """Take in pictures and texts."""

    def sync(self) -> None:
        """Bring everything taken in onto the disk."""

    def close(self, finished: bool) -> None:
        """End, after a run that finished or was cut short."""


class TensorBoardLogger:
    """Writes an event file into the run folder, beside those of earlier parts of the run.

    Every record is written at once, where SummaryWriter leaves that to a thread, whose errors are
    tracebacks: a full disk is an error where it happens, and what was written before a crash is
    there.
    """

    def __init__(self, folder: Path, config: Config, env_steps: int) -> None:
        from torch.utils.tensorboard.summary import hparams

        # TensorBoard reads the files of a folder in the order of their names.
        number = len(list(folder.glob(f"{EVENTS}.*")))
        name = f"{EVENTS}.{int(time.time()):010d}.{number:04d}.{socket.gethostname()}"
        self._file = (folder / name).open("wb")
        self._records = RecordWriter(self._file)
        self._add(Event(file_version="brain.Event:2"))
        # Tells readers to forget what earlier files say from this step on.
        self._add(Event(step=env_steps + 1, session_log=SessionLog(status=SessionLog.START)))
        settings = {
            name: json.dumps(value) if value is None or isinstance(value, dict) else value
            for name, value in dataclasses.asdict(config).items()
        }
        *begin, self._end = hparams(settings, {RETURN: 0.0})
        for summary in begin if number == 0 else ():
            self._add(Event(summary=summary))

    def write(self, env_steps: int, metrics: Mapping[str, float]) -> None:
        """Write scalars."""
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in metrics.items()]
        self._add(Event(step=env_steps, summary=Summary(value=values)))

    def show(self, env_steps: int, media: Media) -> None:
        """Write images and texts; a GIF is played where a picture is shown."""
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
        """Bring everything written onto the disk."""
        os.fsync(self._file.fileno())

    def close(self, finished: bool) -> None:
        """Mark a finished run as such and close the file."""
        with self._file:
            if finished:
                self._add(Event(summary=self._end))

    def _add(self, event: Event) -> None:
        event.wall_time = time.time()
        self._records.write(event.SerializeToString())
        self._file.flush()


class WandbLogger:
    """Sends a run to Weights & Biases; WANDB_MODE=offline keeps it in the run folder.

    A resumed run goes on there, too: rows of steps it has already had are left out by the package.
    """

    def __init__(self, folder: Path, config: LoggerSettings) -> None:
        import wandb

        self._wandb = wandb
        try:
            self._run = wandb.init(
                project=config.wandb_project,
                name="/".join(folder.parts[-3:]),
                id=_wandb_id(folder),
                resume="allow",
                config=dataclasses.asdict(config),
                dir=str(folder),
            )
        except wandb.Error as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise UserError(
                f"wandb: {reason}. Run: wandb login, or set WANDB_MODE=offline"
            ) from None
        self._run.define_metric("*", step_metric="env_steps")

    def write(self, env_steps: int, metrics: Mapping[str, float]) -> None:
        """Send one row."""
        self._run.log({"env_steps": env_steps, **metrics}, step=env_steps)

    def show(self, env_steps: int, media: Media) -> None:
        """Send pictures and texts."""
        if media:
            items = {name: self._item(item) for name, item in media.items()}
            self._run.log({"env_steps": env_steps, **items}, step=env_steps)

    def sync(self) -> None:
        """Leave it to the package, whose own process writes."""

    def close(self, finished: bool) -> None:
        """Send what is left and end the run there."""
        self._run.finish(exit_code=0 if finished else 1)

    def _item(self, item: EncodedImage | str) -> object:
        if isinstance(item, str):
            return self._wandb.Html(f"<pre>{item}</pre>")
        if item.format == "gif":
            return self._wandb.Video(io.BytesIO(item.data), format="gif")
        from PIL import Image

        return self._wandb.Image(Image.open(io.BytesIO(item.data)))


def check_loggers(config: LoggerSettings) -> None:
    """Raise UserError where a wanted logger is not installed."""
    if config.wandb and importlib.util.find_spec("wandb") is None:
        raise UserError(
            "wandb: true needs the package 'wandb', which is not installed. Run: pip install wandb"
        )


def configured_loggers(folder: Path, config: LoggerSettings, env_steps: int) -> list[Logger]:
    """Return the loggers of a run that begins or goes on after so many environment steps."""
    loggers: list[Logger] = [TensorBoardLogger(folder, config, env_steps)]
    if config.wandb:
        loggers.append(WandbLogger(folder, config))
    return loggers


def _wandb_id(folder: Path) -> str:
    """Return the run's name that nobody else has, the same whenever it goes on."""
    path = folder / WANDB_ID
    if not path.exists():
        with written_whole(path) as file:
            file.write(uuid.uuid4().hex.encode())
    return path.read_text(encoding="utf-8")
