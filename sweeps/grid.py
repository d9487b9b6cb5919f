"""The grid of runs of a command line, checked completely before it starts.

A settings file has the settings of one run, or of a task with several agents:

{"env": "TMazePassive-v0", "length": 10, "n_steps": 6710,
 "agents": {"LSTM": {"model": "LSTM"}, "GPT": {"model": "GPT", "mem_len": 11}}}

Settings beside "agents" hold for all of them, and no agent repeats one: all train in the same task
for the same number of steps.
"""

import itertools
import logging
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from analysis.figures import check_picture, draw_runs
from analysis.run_data import CODE, differing_names, read_facts
from utils import run_folder
from utils.errors import UserError, did_you_mean, raise_all, raise_any
from utils.given_settings import (
    SEVERAL,
    Override,
    default_settings,
    file_settings,
    given_by_file,
    load_config,
    own_classes,
    read_json_object,
    with_defaults,
)
from utils.settings import (
    Config,
    Values,
    all_settings,
    as_json,
    read_settings,
    settings_index,
    settings_of_env,
    settings_without_effect,
    shortened,
)

MOST_RUNS = 10_000
log = logging.getLogger(__name__)
GridPoint = tuple[Config, list[str], list[str]]  # settings, given names and overrides
GENERAL_NAME = "config"  # the usual name of a settings file, of no use in a run's name
FORM = '{"LSTM": {"model": "LSTM"}, "GPT": {"model": "GPT"}}'


class SettingsSource(NamedTuple):
    """The settings from a file for one run of a grid.

    Attributes:
        name: Of its run folders; may be empty.
        agent: One of the file's agents; None where it holds one run's settings.
        given: Its settings, not yet checked.
    """

    name: str
    agent: str | None
    given: list[Override]


@dataclass(frozen=True)
class SweepRun:
    config: Config
    run_id: str

    @property
    def folder(self) -> Path:
        return run_folder.folder_of(self.config, self.run_id)


def read_sources(files: Sequence[Path], agents: Collection[str] = ()) -> list[SettingsSource]:
    of_files = raise_all(*(partial(_sources_of, file) for file in files))
    sources = [*itertools.chain(*of_files)] if files else [SettingsSource("", None, [])]
    problems: list[str] = []
    names = dict.fromkeys(source.agent for source in sources if source.agent)
    for agent in agents:
        if agent not in names:
            known = f"they have {', '.join(names)}" if names else "they name none"
            hint = did_you_mean(agent, names)
            problems.append(f"--agents {agent}: no agent of the settings files; {known}.{hint}")
    raise_any(problems)
    return [source for source in sources if not agents or source.agent in agents]


def _sources_of(file: Path) -> list[SettingsSource]:
    name = "" if file.stem == GENERAL_NAME else file.stem
    shared = file_settings(file)
    if SEVERAL not in shared:
        return [SettingsSource(name, None, given_by_file(file))]
    agents = shared.pop(SEVERAL)
    if not isinstance(agents, dict) or not agents:
        raise UserError(
            f"{file}: {SEVERAL}: {as_json(agents)} is no table of agents such as {FORM}"
        )
    problems, sources = list[str](), list[SettingsSource]()
    given = [Override(str(file), *each) for each in shared.items()]
    for agent, own in agents.items():
        if not re.fullmatch(r"[A-Za-z0-9+-]{1,40}", agent):
            line = f"{SEVERAL}: '{shortened(agent)}': use up to 40 letters, digits, + and -"
            problems.append(f"{file}: {line}")
        elif not isinstance(own, dict):
            problems.append(f"{file}: {agent}: {as_json(own)} is no table of settings")
        else:
            twice = [shortened(key) for key in own if key in shared]
            problems += [
                f"{file}: {agent}: {key} is given for all agents. Name it once" for key in twice
            ]
            more = [Override(f"{file}: {agent}", *each) for each in own.items()]
            sources.append(SettingsSource(f"{name}_{agent}".lstrip("_"), agent, [*given, *more]))
    raise_any(problems)
    return sources


def parse_lists(texts: Iterable[str]) -> dict[str, list[str]]:
    lists: dict[str, list[str]] = {}
    problems = []
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals:
            problems.append(f"--var {text}: expected KEY=VALUE, or KEY=VALUE,VALUE for a list")
        elif key in lists:
            problems.append(f"--var {text}: {key} is given twice. Join its values with commas")
        else:
            lists[key] = _listed(values)
    raise_any(problems)
    return lists


def make_grid(
    files: Sequence[Path],
    lists: Mapping[str, Sequence[str]],
    name: str | None = None,
    agents: Collection[str] = (),
) -> list[SweepRun]:
    """Return every combination of a settings file, or an agent of one, and a value of each list.

    All combinations of one seed come first, then those of the next: they can soon be compared.

    Args:
        files: Settings files; none takes the defaults.
        lists: Values by setting, as texts.
        name: The beginning of the run folders' names.
        agents: Agents of the files to take; none takes all.

    Raises:
        UserError: a line for each bad file and setting, and for two runs with one folder.
    """
    axes = {key: [f"{key}={value}" for value in values] for key, values in lists.items()}
    seeds = axes.pop("seed", [])
    sources = read_sources(files, agents)
    parts: list[Sequence[Any]] = [seeds or [None], sources, *axes.values()]
    n_runs = math.prod(map(len, parts))
    if n_runs > MOST_RUNS:
        raise UserError(f"a grid of {n_runs:,} runs is larger than {MOST_RUNS:,}. Split it")

    def cell(seed: str, source: SettingsSource, *overrides: str) -> GridPoint:
        config = load_config(source.given, [*overrides, *filter(None, [seed])])
        return config, [*filter(None, (name, source.name))], list(overrides)

    points = _without_unread(list(itertools.product(*parts)))
    swept = [key for key, values in axes.items() if len(values) > 1]
    runs = _runs_of(raise_all(*(partial(cell, *point) for point in points)), swept)
    _check_distinct(runs)
    return runs


def _without_unread(points: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """Leave out, of each point, the lists' settings that only other agents of the grid read."""
    # Points that are then the same are one. A setting that none reads stays, to be refused.
    reads, chosen_by = list[set[str]](), list[dict[str, Any]]()
    choices: dict[str, str] = {}  # setting -> the one that chooses who reads it
    for _, source, *overrides in points:
        given = {each.name: each.value for each in source.given}
        own_classes(overrides, given)  # looked for in the current folder, too
        texts = dict(text.partition("=")[::2] for text in overrides)
        chosen = {key: None if text == "null" else text for key, text in texts.items()}
        values = default_settings() | given | chosen
        index = settings_index(values)
        reads.append(index.read_by(values))
        # A setting of the user's own class is known only where that class is chosen.
        choices |= {name: index.choice(name) for name in texts if index.readers(name)}
        chosen_by.append(values)
    anywhere, kept = set[str]().union(*reads), dict[object, Sequence[Any]]()
    left_out: dict[tuple[str, str], None] = {}
    for point, read, values in zip(points, reads, chosen_by, strict=True):
        names = [text.partition("=")[0] for text in point[2:]]
        unread = [name for name in names if name in anywhere - read]
        own = [each for each, name in zip(point[2:], names, strict=True) if name not in unread]
        key = (point[0], point[1].name, *own) if unread else len(kept)
        kept.setdefault(key, (*point[:2], *own))
        # The environment or the algorithm may be what does not read it, not the model.
        left_out |= dict.fromkeys((name, str(values[choices[name]])) for name in unread)
    for name, part in left_out:
        log.warning("%s is not read by %s, whose runs go without it", name, shortened(part))
    return list(kept.values())


def check_runs(
    runs: Sequence[SweepRun],
    check: Callable[[Config], None],
    picture: Path | None = None,
    trust: bool = False,
) -> None:
    """Raise UserError with a line for all that would stop a run, and for an impossible picture."""
    # Settings are checked once for all seeds: a check may load weights.
    kinds = {run.config.replace(seed=0): None for run in runs}
    checks: list[Callable[[], object]] = [partial(check, config) for config in kinds]
    checks += [partial(_check_folder, run, trust) for run in runs]
    if picture is not None:
        checks.append(partial(check_picture, picture))
    raise_all(*checks)


def draw(runs: Sequence[SweepRun], picture: Path) -> None:
    """Draw the curves of runs as plot.py does; those apart by a swept setting are not averaged."""
    # Nor are those apart by the user's code. Environments of other settings have panels of their
    # own.
    panels, first = dict[str, None](), dict[str, Values]()
    code: dict[str, set[object]] = {}
    for run in runs:
        settings = run.config.as_dict()
        differing = differing_names(settings, first.setdefault(run.config.env, settings))
        panels |= dict.fromkeys(settings_of_env(run.config).intersection(differing))
        for name, value in read_facts(run.folder).items():
            code.setdefault(name, set()).add(value)
    changed = [name for name in code if name.startswith(f"{CODE}.") and len(code[name]) > 1]
    by = ["model", *(name for name in swept_settings(runs) if name not in panels), *changed]
    draw_runs([run.folder for run in runs], picture, by, ["env", *sorted(panels)])


def swept_settings(runs: Iterable[SweepRun]) -> list[str]:
    first: dict[tuple[str, str], Values] = {}
    found: set[str] = set()
    names: dict[str, None] = {}
    for run in runs:
        settings = run.config.as_dict()
        other = first.setdefault((run.config.model, run.config.env), settings)
        found |= {*differing_names(settings, other)}
        names |= dict.fromkeys(all_settings(settings))
    return [name for name in names if name in found and name != "seed"]


def _runs_of(cells: Sequence[GridPoint], swept: Sequence[str]) -> list[SweepRun]:
    """Return the runs of a grid; runs of equal names get their differing settings into them."""
    runs = [_named(cell, swept) for cell in cells]
    sharing: dict[Path, list[Values]] = {}
    for run in runs:
        sharing.setdefault(run.folder, []).append(run.config.as_dict())
    apart = {folder: differing_names(*settings) for folder, settings in sharing.items()}
    return [_named(cell, swept, apart[run.folder]) for cell, run in zip(cells, runs, strict=True)]


def _named(cell: GridPoint, swept: Sequence[str], differing: Iterable[str] = ()) -> SweepRun:
    config, names, overrides = cell
    settings = config.as_dict()
    values = [f"{name}={settings[name]}" for name in differing]
    first = [*names, *differing, *swept]
    return SweepRun(
        config, run_folder.default_run_id([*names, *values, *overrides], config.seed, first)
    )


def _listed(text: str) -> list[str]:
    values, depth = [""], 0
    for sign in text:
        depth += (sign in "{[") - (sign in "}]")
        if sign == "," and depth <= 0:
            values.append("")
        else:
            values[-1] += sign
    return values


def _check_distinct(runs: Iterable[SweepRun]) -> None:
    problems: list[str] = []
    by_folder: dict[Path, SweepRun] = {}
    by_settings: dict[Config, SweepRun] = {}
    for run in runs:
        other = by_settings.setdefault(run.config, run)
        if other is not run:
            problems.append(f"{run.folder}: the same settings as {other.folder}. Name them once")
            continue
        other = by_folder.setdefault(run.folder, run)
        if other is not run:
            names = ", ".join(differing_names(run.config.as_dict(), other.config.as_dict()))
            problems.append(
                f"{run.folder}: two runs of this name differ in {names}, by signs that no name "
                "may have. Give the settings files different names"
            )
    raise_any(problems)


def _check_folder(run: SweepRun, trust: bool) -> None:
    if not run.folder.exists():
        return
    telling, here = read_settings(run.config) - settings_without_effect(), run.config.as_dict()
    if run.config.device == "auto":  # the recorded one is the device that was chosen
        telling.remove("device")
    if is_over := run_folder.is_finished(run.folder):  # left alone, its code is not looked for
        known = with_defaults(read_json_object(run.folder / run_folder.SETTINGS, of_run=True), here)
    else:
        known = run_folder.load_run_config(run.folder, trust).as_dict()
    differing = [name for name in here if name in telling and known.get(name) != here[name]]
    if run_folder.init_checkpoint(run.folder) is not None:
        differing.append("its first parameters (--init-from)")
    if differing:
        found = f"holds a run that differs in {', '.join(differing)}"
        raise UserError(f"{run.folder}: {found}. Give this sweep a --name of its own")
    if not is_over:
        with run_folder.locked(run.folder):  # raises UserError if a process is writing there
            pass
