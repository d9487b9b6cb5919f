"""The reader of run folders: settings, metrics, how far a run is, which runs may be averaged."""

import csv
import hashlib
import html
import io
import itertools
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from utils.errors import UserError, did_you_mean, escape
from utils.files import open_of_run, open_regular, write_text
from utils.given_settings import NAMED_BY_ALL, read_json_object, with_defaults
from utils.loggers import FILE, RETURN, STEPS, check_size
from utils.run_folder import ENVIRONMENT, SETTINGS, description_of, init_checkpoint
from utils.settings import (
    Values,
    all_settings,
    as_json,
    own_choices,
    settings_index,
    settings_without_effect,
)
from utils.user_modules import PACKAGE

AXES = {"steps": STEPS, "seconds": "time/seconds"}
PRETRAINED = "pretrained"
# Beginnings of the names of facts that run.json has recorded, where it is not too old: of a given
# environment, of the user's own code, and of the rest. Runs that differ in the rest are averaged,
# and a line says so: thirty seeds take a week, and somebody commits meanwhile.
CODE, PROGRAM = "code", "program"
RECORDED = (f"{ENVIRONMENT}.", f"{CODE}.", f"{PROGRAM}.")
ONLY_TOLD = (f"{PROGRAM}.", f"{ENVIRONMENT}.{PACKAGE}.")
SHOWN = 12  # characters of a sha256
TRAINER = "main.py"
LARGEST = float(np.finfo(np.float32).max)  # of a return; sums of larger ones overflow
MOST_TOLD = 100  # signs of a value in a name
TAIL = 16_384  # bytes; they hold the last row of a metrics.csv many times
PLAIN = ("model", "algorithm", "suggester", "curiosity")  # told by their value alone

Table = Sequence[Sequence[object]]  # the first row is the heading
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class RunRecord(NamedTuple):
    """One run folder.

    Attributes:
        settings: Its config.json, with defaults for settings younger than the run, and under
            `pretrained` whether it began with another run's parameters (--init-from). Facts of
            run.json that tell tasks and code apart stand among them (`read_facts`).
        x: Environment steps or seconds behind each row.  [rows]
        y: The metric.  [rows]
    """

    folder: Path
    settings: dict[str, Any]
    x: np.ndarray
    y: np.ndarray


class Group(NamedTuple):
    environment: str
    name: str
    runs: list[RunRecord]


class OutOfOrder(UserError):
    """The steps of a metrics.csv fall or repeat: its rows are not those of one run."""


class Progress(NamedTuple):
    """The last row of a run; no mean return before the first episode has ended."""

    env_steps: int = 0
    mean_return: float | None = None
    speed: float | None = None


def grouped(values: Iterable[Value], key: Callable[[Value], Key]) -> dict[Key, list[Value]]:
    found: dict[Key, list[Value]] = {}
    for value in values:
        found.setdefault(key(value), []).append(value)
    return found


def run_folders(*paths: Path) -> list[Path]:
    """Return every run folder once: those named, and those below folders that are none."""
    found: dict[Path, Path] = {}
    for path in paths:
        below = [path] if os.path.isfile(path / SETTINGS) else []
        if not below and os.path.isdir(path):
            below = sorted(file.parent for file in path.rglob(FILE))
        if not below:
            raise UserError(f"{path}: neither a run folder nor a folder of run folders")
        found |= {folder.resolve(): folder for folder in below}
    return list(found.values())


def read_settings_of(folder: Path, **kinds: type) -> dict[str, Any]:
    path = folder / SETTINGS
    return checked_settings(read_json_object(path, of_run=True), str(path), **kinds)


def checked_settings(values: dict[str, Any], where: str, **kinds: type) -> dict[str, Any]:
    # Declares all settings, which complete those of older runs; plot.py --help waits for none.
    import trainers.parts  # noqa: F401

    settings = with_defaults(values)
    for name, kind in kinds.items():
        found = (values if name in NAMED_BY_ALL else settings).get(name)
        if not isinstance(found, kind):
            raise UserError(f"{where}: not the settings of a run ({name} is {as_json(found)})")
    return settings


def read_run(folder: Path, metric: str, axis: str) -> RunRecord:
    settings = read_settings_of(folder, model=str, env=str, seed=int)
    rows = read_rows(folder / FILE)
    columns = [AXES[axis], metric]
    for column in columns:
        if column not in rows[0]:
            hint = did_you_mean(column, rows[0]) or f" It has {', '.join(rows[0])}"
            raise UserError(f"{folder / FILE}: no column '{column}'.{hint}")
    x, y = _numbers(folder, rows, columns)
    known = ~np.isnan(x + y)  # no mean return before the first episode's end
    if not (np.abs([x[known], y[known]]) <= LARGEST).all():
        names = " or ".join(columns)
        raise UserError(f"{folder / FILE}: {names} is infinite or beyond {LARGEST:.2g} in a row")
    told = {PRETRAINED: init_checkpoint(folder) is not None, **read_facts(folder), **settings}
    return RunRecord(folder, told, x[known], y[known])


def read_facts(folder: Path) -> dict[str, Any]:
    """Return the facts in run.json about a given environment, the user's code and the program.

    A fact that has changed when the run was resumed has its values one after the other.
    """
    description = description_of(folder)
    resumed = description.get("resumed")
    parts = [description, *(resumed if isinstance(resumed, list) else [])]
    found: dict[str, list[Any]] = {}
    for part in parts:
        for name, value in _facts_in(part) if isinstance(part, dict) else ():
            values = found.setdefault(escape(name).replace(",", ""), [])
            if value not in values:
                values.append(value)
    return {
        name: values[0] if len(values) == 1 else ", then ".join(map(_text, values))
        for name, values in found.items()
    }


def _facts_in(part: Values) -> Iterator[tuple[str, Any]]:
    """Yield names and values; of a received run.json anything may be of another type."""
    given, modules, packages = (
        each if isinstance(each, dict) else {}
        for each in (part.get(name) for name in (ENVIRONMENT, "user_modules", "packages"))
    )
    for name, value in given.items():
        values = value if isinstance(value, list) else [value]
        if all(isinstance(each, bool | int | str | None) for each in values):
            yield f"{ENVIRONMENT}.{name}", value
    for name, facts in modules.items():
        if isinstance(facts, dict) and isinstance(facts.get("sha256"), str):
            yield f"{CODE}.{name}", facts["sha256"][:SHOWN]
    versions = {**packages, "python": part.get("python")}
    for name, version in versions.items():
        if isinstance(version, str):
            yield f"{PROGRAM}.{name}", version
    if isinstance(source := part.get("source_sha256"), str):
        yield f"{PROGRAM}.source", source[:SHOWN]


def read_columns(folder: Path) -> dict[str, np.ndarray]:
    rows = read_rows(folder / FILE)
    names = list(rows[0])
    return dict(zip(names, _numbers(folder, rows, names), strict=True))


def read_rows(path: Path, writer: str = TRAINER) -> list[dict[str, str]]:
    """Return the rows of a CSV file, without a last one that is still being written."""
    if not os.path.isfile(path):
        raise UserError(f"{path} is missing. Name folders that main.py wrote")
    try:
        check_size(path, writer)
        opener = open_of_run if writer == TRAINER else open_regular
        with open(path, newline="", encoding="utf-8", opener=opener) as file:
            rows = [row for row in csv.DictReader(file) if None not in row.values()]
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, csv.Error) as error:
        raise UserError(f"{path}: not a table of {writer} ({error})") from None
    if not rows:
        raise UserError(f"{path} has no rows yet")
    if any(None in row for row in rows):  # DictReader's key for cells beyond the last column
        raise UserError(f"{path}: not a table of {writer} (a row is too long)")
    return rows


def _numbers(folder: Path, rows: Sequence[dict[str, str]], columns: Sequence[str]) -> np.ndarray:
    try:
        steps = np.array([float(row.get(STEPS) or "nan") for row in rows])
        numbers = [[float(row[column] or "nan") for column in columns] for row in rows]
    except ValueError:
        names = " and ".join(columns) if len(columns) == 2 else "its columns"
        raise UserError(f"{folder / FILE}: {names} are not numbers in every row") from None
    wrong = np.flatnonzero(steps[1:] <= steps[:-1])
    if len(wrong):
        line = int(wrong[0]) + 3  # the heading is line 1
        raise OutOfOrder(
            f"{folder / FILE}: line {line}: {STEPS} {steps[line - 2]:.0f} follows "
            f"{steps[line - 3]:.0f}, and steps only grow. Restore the run's own file, or leave the "
            "run out"
        )
    return np.array(numbers).T


def read_progress(folder: Path) -> Progress:
    """Return the last whole row of metrics.csv, zeros where there is none."""
    # Only the file's end is read, as a sweep asks again and again.
    if not (folder / FILE).is_file():
        return Progress()
    try:
        with open(folder / FILE, "rb", opener=open_of_run) as file:
            header = file.readline(TAIL)
            size = file.seek(0, 2)
            file.seek(max(len(header), size - TAIL))
            rows = [line for line in file.read().splitlines(True) if line.endswith(b"\n")]
        row = next(csv.DictReader(line.decode() for line in (header, *rows[-1:])))
        speed = float(row["time/steps_per_second"])
        mean_return = row[RETURN]
        return Progress(
            int(row[STEPS]),
            float(mean_return) if mean_return else None,
            speed if math.isfinite(speed) and speed > 0 else None,
        )
    except (OSError, StopIteration, KeyError, TypeError, ValueError, UserError, csv.Error):
        return Progress()


def read_evaluation(path: Path, kinds: dict[str, Any]) -> dict[str, Any]:
    """Return the result in a file of eval.py; under `var` the changed settings.

    `kinds` are other names that must be in it, with their types, as `isinstance` takes them.
    """
    result = {"var": {}, **read_json_object(path, of_run=True)}
    known = {"success_mean": int | float, **kinds} if "success_mean" in result else kinds
    is_whole = all(
        isinstance(value := result.get(name), kind)
        and not (isinstance(value, int | float) and not abs(value) <= LARGEST)
        for name, kind in known.items()
    )
    changed = result["var"]
    if not (is_whole and isinstance(changed, dict) and isinstance(changed.get("length", 0), int)):
        raise UserError(f"{path}: not an evaluation that eval.py wrote. Move it elsewhere")
    return result


def read_runs(
    paths: Iterable[Path], metric: str, axis: str, left_out: list[str]
) -> list[RunRecord]:
    """Return the runs in folders: each is a run folder, or holds run folders somewhere below.

    `left_out` gets a line that names the runs without a value of the metric.

    Raises:
        UserError: a folder or its files are not a run's, or no run has a value of the metric.
    """
    runs = [read_run(folder, metric, axis) for folder in run_folders(*paths)]
    without = [run for run in runs if not len(run.x)]
    if without:
        reason = f"{metric} has no value yet (it has one when an episode has ended)"
        if len(without) == len(runs):
            raise UserError(f"{_folders(without)}: {reason}. Wait, or name other runs")
        left_out.append(f"left out, {reason}: {_folders(without)}")
    return [run for run in runs if len(run.x)]


def agent_name(run: RunRecord, keys: Sequence[str]) -> str:
    """Return the name of an agent by some settings: GPT DQN, memory_layers=2.

    Plain settings are told by their value alone, and left out where it is null.
    """
    values = {key: run.settings.get(key) for key in keys}
    plain = [_told(values.pop(key) or "") for key in PLAIN if key in values]
    others = [f"{key}={_told(value)}" for key, value in values.items()]
    return escape(", ".join(filter(None, [" ".join(filter(None, plain)), *others])))


def group_runs(
    runs: Sequence[RunRecord],
    keys: Sequence[str],
    left_out: list[str],
    panels: Sequence[str] = ("env",),
    ignore: Sequence[str] = (),
) -> list[Group]:
    """Return the runs grouped by environment and by the named settings, sorted.

    Of runs of several lengths the longest are compared, unless `keys` tell lengths apart; of runs
    that are the same, the one that got furthest. Names leave out what an agent does not read.

    Args:
        runs: To be grouped.
        keys: Settings that tell agents apart.
        left_out: Gets a line for each group from which runs are left out.
        panels: Settings that stand for the environment and are never averaged over.
        ignore: Settings and facts, or beginnings of their names, that runs may differ in.
    """
    known = {name for run in runs for name in run.settings}
    beginnings = {name.partition(".")[0] for name in known}
    for option, names in (("--by", keys), ("--panels", panels), ("--ignore", ignore)):
        for key in names:
            if key not in known and not (option == "--ignore" and key in beginnings):
                hint = did_you_mean(key, known)
                raise UserError(f"{option} {key}: no setting of these runs.{hint}")

    declared, index = all_settings().keys(), settings_index()

    def names_of(run: RunRecord) -> tuple[str, str]:
        texts = {key: _text(run.settings.get(key)) for key in (*panels, *keys)}
        first, *more = dict.fromkeys(panels)
        place = ", ".join([texts.pop(first), *(f"{key}={texts.pop(key)}" for key in more)])
        for unread in texts.keys() & (declared - index.read_by(run.settings)):
            del texts[unread]
        parts = [text if key == "model" else f"{key}={text}" for key, text in texts.items()]
        return place, ", ".join(parts)

    by_name = grouped(runs, names_of)

    # Paths are cut down to their last part, unless that makes two names alike.
    short = {name: re.sub(r"(?<==)[^,]*/(?=[^,/])", "", name) for _, name in by_name}
    counts = Counter(short.values())
    groups, unasked = [], settings_without_effect() | {"seed"}
    of_other_origin: list[str] = []
    for (place, full), found in by_name.items():
        name = short[full] if counts[short[full]] == 1 else full
        title = f"{name} on {place}" if name else place
        own = _comparable(found, title, keys, left_out, unasked.union(ignore))
        groups.append(Group(place, name, own))
        others = _differing(own, unasked)
        of_other_origin += [f"{title} ({', '.join(others)})"] if others else []
    if of_other_origin:
        left_out.append(
            "averaged all the same, though more than the seed differs between the runs of "
            f"{'; '.join(of_other_origin)}"
        )
    return sorted(groups, key=lambda group: (group.environment, group.name))


def check_panels(
    groups: Sequence[Group], named: Sequence[str], ignore: Sequence[str], notes: list[str]
) -> list[str]:
    """Return and note the settings and facts in which the agents of a panel differ.

    `named` are the settings that agents and panels are named after.

    Raises:
        UserError: agents of one panel do not have the same environment; `ignore` lets them.
    """
    index, declared, found = settings_index(), all_settings().keys(), dict[str, None]()
    suites, without = index.by_choice["env"], settings_without_effect() | {"seed", *named}
    for place, own in grouped(groups, lambda group: group.environment).items():
        firsts = []
        for group in own:
            run = group.runs[0]
            # What a class of the user's own reads is not known here, where no code is run.
            known = {**run.settings, **dict.fromkeys(own_choices(run.settings))}
            unread = declared - index.read_by(known)
            read = {name: each for name, each in run.settings.items() if name not in unread}
            firsts.append(run._replace(settings=read))
        modules = {f"{CODE}.{run.settings['env'].rpartition(':')[0]}" for run in firsts}
        told, tasks = list[str](), list[str]()
        for name in _differing(firsts, without, where_read=True):
            values = [
                f"{group.name} {_text(run.settings[name])}"
                for group, run in zip(own, firsts, strict=True)
                if name in run.settings
            ]
            told.append(f"{name} ({'; '.join(values)})")
            found[name] = None
            is_of_env = suites.keys() >= {*index.readers(name)} != set() or name == "env"
            is_of_env |= name in modules or name.startswith(f"{ENVIRONMENT}.")
            if is_of_env and not name.startswith(ONLY_TOLD):
                tasks += [name] if not {name, name.partition(".")[0]} & {*ignore} else []
        if tasks:
            panels = ",".join(["env", *(name for name in tasks if name != "env")])
            raise UserError(
                f"{place}: the agents do not have the same environment: {', '.join(told)}. Draw a "
                f"panel for each with --panels {panels}, or compare them all the same with plot.py "
                f"--ignore {','.join(tasks)}"
            )
        if told:
            notes.append(f"{place}: the agents also differ in {', '.join(told)}")
    return list(found)


def _comparable(
    runs: list[RunRecord],
    title: str,
    keys: Sequence[str],
    left_out: list[str],
    ignored: Collection[str],
) -> list[RunRecord]:
    lengths = [run.settings.get("n_steps") for run in runs]
    if "n_steps" not in keys and all(isinstance(length, int) for length in lengths):
        most = max(run.settings["n_steps"] for run in runs)
        shorter = [run for run in runs if run.settings["n_steps"] != most]
        if shorter:
            left_out.append(
                f"{title}: left out, shorter than {most:,} steps: {_folders(shorter)} "
                f"(--by {','.join([*keys, 'n_steps'])} draws them apart)"
            )
        runs = [run for run in runs if run.settings["n_steps"] == most]

    values = _differing(runs, ignored)
    differing = [name for name in values if not name.startswith(ONLY_TOLD)]
    if differing:
        told = ", ".join(f"{name} ({', '.join(values[name])})" for name in differing)
        facts = [name for name in differing if name.startswith(RECORDED)]
        regardless = f", average them with plot.py --ignore {','.join(facts)}" if facts else ""
        raise UserError(
            f"{title}: these runs differ in more than the seed: {told}. Draw them apart with "
            f"--by {','.join([*keys, *differing])}{regardless}, or name fewer runs"
        )

    # A seed counts once, or its luck would count twice in the interval.
    by_seed: dict[object, RunRecord] = {}
    for run in sorted(runs, key=lambda run: -len(run.x)):
        by_seed.setdefault(run.settings["seed"], run)
    repeated = [run for run in runs if by_seed[run.settings["seed"]] is not run]
    if repeated:
        seeds = ", ".join(sorted({str(run.settings["seed"]) for run in repeated}))
        left_out.append(
            f"{title}: left out, since others have the same settings and seed ({seeds}): "
            f"{_folders(repeated)}"
        )
    return [run for run in runs if by_seed[run.settings["seed"]] is run]


def _differing(
    runs: Sequence[RunRecord], ignored: Collection[str], where_read: bool = False
) -> dict[str, list[str]]:
    """Return the settings and facts in which runs differ, with their values."""
    # A fact that a run has not recorded is like the others', and so is a setting `where_read` alone
    # counts. A fact that is the run's own seed in every run is no difference.
    found = {}
    for name in dict.fromkeys(name for run in runs for name in run.settings):
        is_fact = name.startswith(RECORDED)
        with_it = [run for run in runs if name in run.settings or not (is_fact or where_read)]
        values = {_text(run.settings.get(name, "not set")) for run in with_it}
        is_seed = is_fact and all(_is_seed(run.settings[name], run.settings) for run in with_it)
        if len(values) > 1 and not is_seed and not {name, name.partition(".")[0]} & {*ignored}:
            found[name] = sorted(values)
    return found


def differing_names(first: Values, *others: Values) -> list[str]:
    """Return the names of settings that are not there, or not the same, in all."""
    missing = object()  # unlike a setting that is null
    return [
        name
        for name in dict.fromkeys(itertools.chain(first, *others))
        if any(other.get(name, missing) != first.get(name, missing) for other in others)
    ]


def _is_seed(value: object, settings: Values) -> bool:
    seed, values = settings["seed"], value if isinstance(value, list) else [value]
    return values == [*range(seed, seed + len(values))] and all(
        type(each) is int for each in values
    )


def _text(value: object) -> str:
    text = escape(value) if isinstance(value, str) else json.dumps(value)
    if len(text) <= MOST_TOLD:
        return text
    # Two long values stay apart: names tell groups of runs apart.
    return f"{text[: MOST_TOLD - 12]}...{hashlib.sha256(text.encode()).hexdigest()[:9]}"


def _told(value: object) -> str:
    return _text(str(value))


def _folders(runs: Iterable[RunRecord]) -> str:
    return ", ".join(escape(str(run.folder)) for run in runs)


def aligned(table: Table) -> str:
    rows = [[escape(str(cell)) for cell in row] for row in table]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = map(str.rjust, others, widths[1:])
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)


def markdown(table: Table) -> str:
    heading, *rows = [f"| {' | '.join(map(literal, row))} |" for row in table]
    return "\n".join([heading, "|" + "---|" * len(table[0]), *rows]) + "\n"


def literal(value: object) -> str:
    """Return Markdown that shows a value as it is: it makes no HTML, link, cell or line."""
    shown_in_html = html.escape(escape(str(value)), quote=False)
    return re.sub(r"[\\`*|~]|\[(?![-\d])|\](?=[(\[:])", r"\\\g<0>", shown_in_html)


def write_csv(path: Path, rows: Iterable[Sequence[object]]) -> None:
    text = io.StringIO(newline="")
    cells = ([_no_formula(cell) for cell in row] for row in rows)
    csv.writer(text, lineterminator="\n").writerows(cells)
    write_text(path, text.getvalue())


def _no_formula(cell: object) -> object:
    """Return a cell of CSV that a spreadsheet takes for text where it is no number."""
    if not isinstance(cell, str):
        return cell
    cell = escape(cell)  # a tab or a line break at the beginning hides a formula
    if not cell.startswith(("=", "+", "-", "@")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell
