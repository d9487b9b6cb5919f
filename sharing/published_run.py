"""The folder of a published run: the agent, its settings and history, a picture and a card."""

import contextlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from analysis.figures import Labels, draw, save_figure
from analysis.run_data import group_runs, read_evaluation, read_runs, write_text
from analysis.statistics import summarize
from runs.folder import DESCRIPTION, SETTINGS, write_json
from runs.loggers import RETURN
from runs.metrics import FILE as METRICS
from settings import Config, read_json_object
from sharing.card import Facts, card
from sharing.private import public_description, without_places
from trainers.checkpoint import PUBLISHED, save_published
from utils.errors import UserError

CARD, CURVE = "README.md", "curve.png"
NUMBERS = ("return_mean", "return_std", "length_mean", "length_std")
EVALUATION: dict[str, Any] = dict.fromkeys(NUMBERS, int | float) | dict.fromkeys(
    ("n_episodes", "seed", "env_steps"), int
)
FILES = (PUBLISHED, SETTINGS, DESCRIPTION, METRICS, CURVE, CARD)


class Source(NamedTuple):
    """What is published.

    Attributes:
        folder: The run's.
        config: The settings.
        checkpoint: What it holds.
        evaluations: Of it, see `evaluations`.
    """

    folder: Path
    config: Config
    checkpoint: dict[str, Any]
    evaluations: list[dict[str, Any]]


def evaluations(checkpoint: Path, env_steps: int) -> list[dict[str, Any]]:
    """Return the evaluations of a checkpoint in the environment it was trained in.

    Args:
        checkpoint: Its file.
        env_steps: Steps behind it; evaluations of what once stood in its place do not count.

    Returns:
        What eval.py wrote, that of most episodes first.
    """
    found = []
    for path in sorted(checkpoint.parent.glob(f"{checkpoint.stem}_eval_*.json")):
        with contextlib.suppress(UserError):  # a file that something else wrote
            found.append(read_evaluation(path, EVALUATION))
    as_trained = [each for each in found if not (each.get("random") or each["var"])]
    counting = [each for each in as_trained if each["env_steps"] == env_steps]
    return sorted(counting, key=lambda each: -each["n_episodes"])


def write_published(source: Source, folder: Path, repository: str | None) -> None:
    """Write the files that others get.

    Args:
        source: What is published.
        folder: Where to; it exists.
        repository: What the card calls it.
    """
    settings = without_places(source.checkpoint["config"])
    state = source.checkpoint | {"config": settings}
    save_published(folder / PUBLISHED, state)
    write_json(folder / SETTINGS, settings)
    description = public_description(_description(source.folder))
    write_json(folder / DESCRIPTION, description)
    if (source.folder / METRICS).is_file():
        shutil.copyfile(source.folder / METRICS, folder / METRICS)
    has_curve = _draw_curve(source.folder, folder / CURVE)
    facts = Facts(
        replace(source.config, **settings),
        source.checkpoint["weights"],
        source.checkpoint["env_steps"],
        description,
        source.evaluations,
        repository,
        CURVE if has_curve else None,
    )
    write_text(folder / CARD, card(facts))


def shortened_settings(checkpoint: dict[str, Any]) -> dict[str, str]:
    """Return the settings that name places of this machine, as they are published."""
    settings = checkpoint["config"]
    public = without_places(settings)
    return {name: public[name] for name in settings if public[name] != settings[name]}


def _description(folder: Path) -> dict[str, Any]:
    """Return what run.json says, nothing if it cannot be read."""
    try:
        return read_json_object(folder / DESCRIPTION)
    except UserError:
        return {}


def _draw_curve(run: Path, picture: Path) -> bool:
    """Draw the run's mean return; return whether there is one."""
    try:
        runs = read_runs([run], RETURN, "steps", [])
    except UserError:  # no metrics, or no episode has ended
        return False
    results = [summarize(group, "mean", None) for group in group_runs(runs, ["model"], [])]
    save_figure(draw(results, [], Labels(RETURN, "steps", "mean")), picture)
    return True
