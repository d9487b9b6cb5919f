"""Which runs the scoreboard counts, known by their settings, and why the others do not count.

Of a task those runs count that were to have the number of steps most agents have there (the larger
number where two are equal), so that all agents of a task are compared at the same. Of an agent's
runs there, those count whose settings most seeds share, one of each seed.
"""

import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from analysis.scoreboard_scores import Found, Result, kept
from analysis.scoreboard_tasks import AGENTS, TASKS, AgentKind, Task
from plots.runs import run_folders
from runs.folder import begun_with, is_finished
from settings import completed, read_json_object, settings_without_effect
from settings.parts import reading
from settings.values import shown
from utils.errors import UserError, printable

CHECKED = {"model": str, "env": str, "algorithm": str, "seed": int, "n_steps": int}
MOST_NAMED = 4  # run folders in a line

T = TypeVar("T")


class Entry(NamedTuple):
    """A finished run of the ladder.

    Attributes:
        folder: Where it lies, or lay where it was written into a table.
        task, agent: Where, and who.
        settings: By name.
        result: What it came to, where a table says so; None: it is to be measured.
    """

    folder: Path
    task: Task
    agent: AgentKind
    settings: Mapping[str, Any]
    result: Result | None = None

    @property
    def n_steps(self) -> int:
        """Environment steps that it was to have."""
        return self.settings["n_steps"]

    @property
    def place(self) -> tuple[str, str]:
        """Task and agent by name."""
        return self.task.name, self.agent.name

    @property
    def kind(self) -> dict[str, Any]:
        """What it read and shares with runs that differ in seed and machine alone."""
        told = {**self.settings, "model": self.agent.model}
        read = reading(told).read_by(told) - settings_without_effect() - {"seed", "device"}
        return {name: told.get(name) for name in sorted(read)}


class LeftOut:
    """Why runs do not count: in lines, and in a word or two by task and agent."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.reasons: dict[tuple[str, str], str] = {}

    def add(self, why: str, folders: Sequence[Path]) -> None:
        """Note runs, if there are any."""
        if folders:
            names = [printable(str(folder)) for folder in folders[:MOST_NAMED]]
            more = len(folders) - len(names)
            named = ", ".join(names) + (f" and {more} more" if more else "")
            self.lines.append(f"left out, {why}: {named}")


def counting_runs(paths: Iterable[Path], left_out: LeftOut) -> dict[tuple[str, str], list[Entry]]:
    """Return the runs that count by task and agent.

    Args:
        paths: Run folders, folders of them, or tables of runs (.csv).
        left_out: Gets the others.

    Raises:
        UserError: a folder is not a run's, a table not the scoreboard's; no run counts.
    """
    entries = _at_equal_steps(_entries(_found(paths), left_out), left_out)
    places = _grouped(entries, lambda entry: entry.place)
    chosen = {place: _of_one_kind(own, left_out) for place, own in places.items()}
    if not any(chosen.values()):
        told = "; ".join(left_out.lines)
        raise UserError(f"{told}. No run is left to show; configs/Scoreboard trains some")
    return chosen


def _found(paths: Iterable[Path]) -> Iterator[Found]:
    """Yield every run once: those of folders, and then those of tables."""
    paths = list(paths)
    tables = [path for path in paths if path.suffix == ".csv" and path.is_file()]
    below = [folder for path in paths if path not in tables for folder in run_folders(path)]
    for folder in {folder.resolve(): folder for folder in below}.values():
        file = folder / "config.json"
        yield Found(str(file), folder, read_json_object(file))
    for table in tables:
        yield from kept(table)


def _entries(found: Iterable[Found], left_out: LeftOut) -> list[Entry]:
    """Return the finished runs of the ladder."""
    entries: list[Entry] = []
    unfinished: list[Path] = []
    pretrained: list[Path] = []
    foreign: list[Path] = []
    for run in found:
        settings = _checked(run)
        task = next((task for task in TASKS if task.plays(settings)), None)
        agent = next((agent for agent in AGENTS if agent.is_of(settings)), None)
        if task is None or agent is None or agent.blind(task):
            foreign.append(run.folder)
        elif run.result is None and not is_finished(run.folder):
            unfinished.append(run.folder)
            left_out.reasons[task.name, agent.name] = "not finished"
        elif run.result is None and begun_with(run.folder) is not None:
            pretrained.append(run.folder)
        else:
            entries.append(Entry(run.folder, task, agent, settings, run.result))
    left_out.add("not finished", unfinished)
    left_out.add("begun with another run's parameters", pretrained)
    left_out.add("of no task and agent of the ladder", foreign)
    return entries


def _checked(run: Found) -> dict[str, Any]:
    """Return the settings of a run, with those that are younger than it as they were before."""
    settings = completed(run.settings)
    for name, kind in CHECKED.items():
        if not isinstance(settings.get(name), kind):
            given = shown(settings.get(name))
            raise UserError(f"{run.where}: not the settings of a run ({name} is {given})")
    return settings


def _at_equal_steps(entries: Sequence[Entry], left_out: LeftOut) -> list[Entry]:
    """Return the entries with as many steps as most agents of their task have."""
    kept: list[Entry] = []
    for task, own in _grouped(entries, lambda entry: entry.task.name).items():
        by_steps = _grouped(own, lambda entry: entry.n_steps)
        n_agents = {n: len({entry.agent.name for entry in by_steps[n]}) for n in by_steps}
        n_steps = max(by_steps, key=lambda n: (n_agents[n], n))
        kept += by_steps.pop(n_steps)
        others = [entry for others in by_steps.values() for entry in others]
        left_out.reasons |= {entry.place: "other number of steps" for entry in others}
        why = f"{task} is compared at {n_steps:,} steps"
        left_out.add(why, [entry.folder for entry in others])
    return kept


def _of_one_kind(entries: Sequence[Entry], left_out: LeftOut) -> list[Entry]:
    """Return the runs whose settings most seeds share, one of each seed; none where two tie."""
    kinds = _grouped(entries, lambda entry: json.dumps(entry.kind))
    seeds = {kind: _one_a_seed(own) for kind, own in kinds.items()}
    most = max(map(len, seeds.values()))
    largest = [own for own in seeds.values() if len(own) == most]
    place = " by ".join(entries[0].place)
    if len(largest) > 1:
        left_out.reasons[entries[0].place] = "settings differ"
        names = _differing([own[0].kind for own in largest])
        why = f"{place}: these differ in more than the seed ({names}), name those of one kind"
        left_out.add(why, [entry.folder for entry in entries])
        return []
    chosen = {entry.folder for entry in largest[0]}
    kind = kinds[json.dumps(largest[0][0].kind)]
    others = [entry for entry in entries if entry.folder not in chosen]
    repeated = [entry.folder for entry in others if entry in kind]
    left_out.add(f"{place}: others have the same settings and seed", repeated)
    different = [entry for entry in others if entry not in kind]
    names = _differing([largest[0][0].kind, *(entry.kind for entry in different)])
    why = f"{place}: more seeds were run with other settings ({names})"
    left_out.add(why, [entry.folder for entry in different])
    return largest[0]


def _one_a_seed(entries: Sequence[Entry]) -> list[Entry]:
    """Return one run of each seed: of folders before tables, the first by its folder's name."""
    ordered = sorted(entries, key=_order)
    return [own[0] for own in _grouped(ordered, lambda entry: entry.settings["seed"]).values()]


def _order(entry: Entry) -> tuple[int, bool, str]:
    return entry.settings["seed"], entry.result is not None, str(entry.folder)


def _differing(kinds: Sequence[Mapping[str, Any]]) -> str:
    names = dict.fromkeys(name for kind in kinds for name in kind)
    return ", ".join(n for n in names if any(kind.get(n) != kinds[0].get(n) for kind in kinds))


def _grouped(values: Iterable[T], key: Callable[[T], Hashable]) -> dict[Any, list[T]]:
    found: dict[Any, list[T]] = {}
    for value in values:
        found.setdefault(key(value), []).append(value)
    return found
