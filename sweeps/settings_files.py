"""Settings files of a sweep: one run's, or a task's with several agents.

{"env": "TMazePassive-v0", "length": 10, "n_steps": 6710,
 "agents": {"LSTM": {"model": "LSTM"}, "GPT": {"model": "GPT", "mem_len": 11}}}

What stands beside "agents" holds for all of them, and no agent says it again: all have as many
steps in the same task.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from settings import SEVERAL, Given, file_settings, given_by_file
from settings.values import shortened, shown
from utils.errors import UserError, suggestion

GENERAL_NAME = "config"  # of every settings file of one experiment: it tells no two apart
FORM = '{"LSTM": {"model": "LSTM"}, "GPT": {"model": "GPT"}}'


class Source(NamedTuple):
    """What a settings file gives one run of a grid.

    Attributes:
        name: Of its run folders, as far as the file says; may be empty.
        agent: Which of the file's agents this is; None where it holds one run's settings.
        given: Its settings, not yet checked.
    """

    name: str
    agent: str | None
    given: list[Given]

    @property
    def values(self) -> dict[str, Any]:
        """Return the settings by name."""
        return {each.name: each.value for each in self.given}


def read_sources(files: Iterable[Path], agents: Collection[str] = ()) -> list[Source]:
    """Return what settings files give, in their order; without a file, nothing for one run.

    Args:
        files: Their paths.
        agents: Those of the files' agents to take; none takes all.

    Raises:
        UserError: a line for every file that cannot be read, and for an agent that none has.
    """
    files = list(files)
    sources: list[Source] = [] if files else [Source("", None, [])]
    problems: dict[str, None] = {}
    for file in files:
        try:
            sources += _sources_of(file)
        except UserError as error:
            problems |= dict.fromkeys(error.lines)
    names = dict.fromkeys(source.agent for source in sources if source.agent)
    for agent in agents if not problems else ():
        if agent not in names:
            known = f"they have {', '.join(names)}" if names else "they name none"
            hint = suggestion(agent, names)
            problems[f"--agents {agent}: no agent of the settings files; {known}.{hint}"] = None
    if problems:
        raise UserError(*problems)
    return [source for source in sources if not agents or source.agent in agents]


def _sources_of(file: Path) -> list[Source]:
    name = "" if file.stem == GENERAL_NAME else file.stem
    shared = file_settings(file)
    if SEVERAL not in shared:
        return [Source(name, None, given_by_file(file))]
    agents = shared.pop(SEVERAL)
    _check(file, agents, shared)
    return [
        Source(
            f"{name}_{agent}".lstrip("_"),
            agent,
            [
                *(Given(str(file), *each) for each in shared.items()),
                *(Given(f"{file}: {agent}", *each) for each in own.items()),
            ],
        )
        for agent, own in agents.items()
    ]


def _check(file: Path, agents: Any, shared: Mapping[str, Any]) -> None:
    """Raise UserError unless agents have names for folders, and settings that are theirs alone."""
    if not isinstance(agents, dict) or not agents:
        raise UserError(f"{file}: {SEVERAL}: {shown(agents)} is no table of agents such as {FORM}")
    problems = []
    for agent, own in agents.items():
        if not re.fullmatch(r"[A-Za-z0-9+-]{1,40}", agent):
            given = shortened(agent)
            problems.append(f"{file}: {SEVERAL}: '{given}': use up to 40 letters, digits, + and -")
        elif not isinstance(own, dict):
            problems.append(f"{file}: {agent}: {shown(own)} is no table of settings")
        else:
            problems += [
                f"{file}: {agent}: {shortened(key)} is given for all agents. Name it once"
                for key in own
                if key in shared
            ]
    if problems:
        raise UserError(*problems)
