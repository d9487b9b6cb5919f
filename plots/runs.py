"""Which runs may be averaged, and the names of their curves."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from runs.run_data import RunRecord, read_run, run_folders
from settings import settings_without_effect
from utils.errors import UserError, printable, suggestion

PLAIN = ("model", "algorithm", "suggester", "curiosity")  # settings whose values name themselves


class Group(NamedTuple):
    """Runs that differ in their seed alone, under the names of their panel and their curve."""

    environment: str
    name: str
    runs: list[RunRecord]


def agent_name(run: RunRecord, keys: Sequence[str]) -> str:
    """Return what an agent is called by some settings: GPT DQN, memory_layers=2.

    The value of a plain setting says enough, and nothing of it is said where it is null.
    """
    values = {key: run.settings.get(key) for key in keys}
    plain = [str(values.pop(key) or "") for key in PLAIN if key in values]
    others = [f"{key}={value}" for key, value in values.items()]
    return printable(", ".join(filter(None, [" ".join(filter(None, plain)), *others])))


def read_runs(
    paths: Iterable[Path], metric: str, axis: str, left_out: list[str] | None = None
) -> list[RunRecord]:
    """Return the runs in folders: each is a run folder, or holds run folders somewhere below.

    Args:
        paths: The folders.
        metric: A column of metrics.csv.
        axis: A key of AXES.
        left_out: Gets a line that names the runs whose metric has no value yet.

    Raises:
        UserError: a folder or its files are not a run's, or no run has a value of the metric.
    """
    runs = [read_run(folder, metric, axis) for folder in run_folders(*paths)]
    without = [run for run in runs if not len(run.x)]
    if without:
        reason = f"{metric} has no value yet (it has one when an episode has ended)"
        if len(without) == len(runs):
            raise UserError(f"{_folders(without)}: {reason}. Wait, or name other runs")
        if left_out is not None:
            left_out.append(f"left out, {reason}: {_folders(without)}")
    return [run for run in runs if len(run.x)]


def group_runs(
    runs: Iterable[RunRecord],
    keys: Sequence[str],
    left_out: list[str] | None = None,
    panels: Sequence[str] = ("env",),
) -> list[Group]:
    """Return the runs grouped by environment and by the named settings, sorted.

    Of runs of several lengths the longest are compared, unless `keys` tell lengths apart; of runs
    that are the same, the one that got furthest.

    Args:
        runs: To be grouped.
        keys: Settings that tell agents apart.
        left_out: Gets a line for each group from which runs are left out.
        panels: Settings that stand for the environment: what is never averaged over.

    Raises:
        UserError: a setting no run has; runs of a group that differ in more than the seed.
    """
    runs, left_out = list(runs), [] if left_out is None else left_out
    known = {name for run in runs for name in run.settings}
    for option, names in (("--by", keys), ("--panels", panels)):
        for key in names:
            if key not in known:
                raise UserError(
                    f"{option} {key}: no setting of these runs.{suggestion(key, known)}"
                )
    grouped: dict[tuple[str, str], list[RunRecord]] = {}
    for run in runs:
        texts = {key: _text(run.settings.get(key)) for key in (*panels, *keys)}
        place = ", ".join(texts.pop(key) for key in dict.fromkeys(panels))
        name = ", ".join(_label(key, text) for key, text in texts.items())
        grouped.setdefault((place, name), []).append(run)
    short = _without_folders([name for _, name in grouped])
    groups = []
    for (environment, name), found in grouped.items():
        group = _of_longest_runs(Group(environment, short[name], found), keys, left_out)
        _check_only_the_seed_differs(group, keys)
        groups.append(_without_repeated_runs(group, left_out))
    return sorted(groups, key=lambda group: (group.environment, group.name))


def _label(key: str, text: str) -> str:
    return text if key == "model" else f"{key}={text}"


def _without_folders(names: Iterable[str]) -> dict[str, str]:
    """Return names with paths cut down to their last part; in full where that makes two alike."""
    short = {name: re.sub(r"(?<==)[^,]*/(?=[^,/])", "", name) for name in names}
    counts = Counter(short.values())
    return {name: text if counts[text] == 1 else name for name, text in short.items()}


def _text(value: object) -> str:
    return printable(value) if isinstance(value, str) else json.dumps(value)


def _title(group: Group) -> str:
    return f"{group.name} on {group.environment}" if group.name else group.environment


def _of_longest_runs(group: Group, keys: Sequence[str], left_out: list[str]) -> Group:
    """Return a group without the runs that were to be shorter than others of it."""
    lengths = [run.settings.get("n_steps") for run in group.runs]
    if "n_steps" in keys or not all(isinstance(length, int) for length in lengths):
        return group
    most = max(length for length in lengths if isinstance(length, int))
    shorter = [run for run in group.runs if run.settings["n_steps"] != most]
    if shorter:
        by = ",".join([*keys, "n_steps"])
        left_out.append(
            f"{_title(group)}: left out, shorter than {most:,} steps: {_folders(shorter)} "
            f"(--by {by} draws them apart)"
        )
    return group._replace(runs=[run for run in group.runs if run.settings["n_steps"] == most])


def _without_repeated_runs(group: Group, left_out: list[str]) -> Group:
    """Return a group with one run of each seed: the first of those that got furthest."""
    furthest = sorted(group.runs, key=lambda run: -len(run.x))
    by_seed: dict[object, RunRecord] = {}
    for run in furthest:
        by_seed.setdefault(run.settings["seed"], run)
    repeated = [run for run in group.runs if by_seed[run.settings["seed"]] is not run]
    if repeated:
        seeds = ", ".join(sorted({str(run.settings["seed"]) for run in repeated}))
        left_out.append(
            f"{_title(group)}: left out, since others have the same settings and seed ({seeds}): "
            f"{_folders(repeated)}"
        )
    return group._replace(runs=[run for run in group.runs if by_seed[run.settings["seed"]] is run])


def _folders(runs: Iterable[RunRecord]) -> str:
    return ", ".join(printable(str(run.folder)) for run in runs)


def _check_only_the_seed_differs(group: Group, keys: Sequence[str]) -> None:
    differing = _differing(group.runs)
    if differing:
        names = ", ".join(f"{key} ({', '.join(values)})" for key, values in differing.items())
        raise UserError(
            f"{_title(group)}: these runs differ in more than the seed: {names}. "
            f"Draw them apart with --by {','.join([*keys, *differing])}, or name fewer runs"
        )


def _differing(runs: Sequence[RunRecord]) -> dict[str, list[str]]:
    """Return the settings other than the seed in which runs differ, with their values."""
    names = dict.fromkeys(name for run in runs for name in run.settings)
    found = {
        name: sorted({_text(run.settings.get(name, "not set")) for run in runs})
        for name in names
        if name != "seed" and name not in settings_without_effect()
    }
    return {name: values for name, values in found.items() if len(values) > 1}
