"""Write what the documentation takes from the code: python -m tests.generate_docs [FOLDER].

A block of a page, from `<!-- generated: NAME -->` to `<!-- end -->`, is replaced by the text of
that name: settings, programs, registries and suites, as the code declares them.
"""

import argparse
import csv
import json
import pkgutil
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from unittest import mock

import gymnasium
import pytest
from gymnasium import spaces

from envs import SUITES, make_vector_env
from envs.avalon import AvalonEnv
from envs.household.simulator import HousekeepEnv
from envs.psychlab import PsychlabEnv
from envs.settings import AvalonSettings, SimulatorSettings
from models import AGENTS, CONTINUOUS, DISCRETE, FROM_REPLAY, PUBLISHED
from models.memories import NoMemory, Scan
from models.memories.lstm import Recurrent
from rewards import CURIOSITIES
from rewards.suggesters import SUGGESTERS
from tests import fake_housekeep
from trainers.parts import LEARNERS
from utils.errors import COMMANDS, ROOT, UserError
from utils.given_settings import load_config
from utils.settings import Registry, all_settings, settings_index
from utils.user_modules import GIVEN

DOCS = ROOT / "docs"
RESULTS = DOCS / "results"
BLOCK = re.compile(r"(<!-- generated: ([a-z0-9 .-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
KINDS = {int: "int", float: "float", bool: "bool", str: "text", dict: "JSON", type(None): "null"}
PROGRAMS = {  # what builds each program's parser, module:function
    "main.py": "main:parse_arguments",
    "eval.py": "eval:parse_arguments",
    "plot.py": "plot:parse_arguments",
    "sweep.py": "sweep:parse_arguments",
    "publish.py": "publish:parse_arguments",
    "prepare_embeddings.py": "prepare_embeddings:parse_arguments",
    "prepare_captions.py": "prepare_captions:parse_arguments",
    "python -m analysis": "analysis.__main__:parse_arguments",
    "python -m benchmarks": "benchmarks.__main__:benchmark",
    "python -m benchmarks.gpu": "benchmarks.gpu:benchmark",
}
OF_THE_MACHINE = ("threads",)  # options whose defaults differ between machines


class About(NamedTuple):
    """What the code does not know of a suite: its name, and its section on the page.

    `example` is the environment whose spaces are shown; without it, the first one.
    """

    name: str
    section: str
    install: str = "–"
    example: str = ""


EXTRA = "extra `suites`"
SIMULATORS = "../how-to/housekeep_and_psychlab.md"
ABOUT = {  # by the first name in SUITES that leads to a suite
    "MiniGrid-": About("MiniGrid", "minigrid-and-babyai", example="MiniGrid-MemoryS11-v0"),
    "BabyAI-": About("BabyAI", "minigrid-and-babyai", example="BabyAI-GoToObj-v0"),
    "MiniWorld-": About("MiniWorld", "miniworld", f"{EXTRA}, OpenGL", "MiniWorld-Sign-v0"),
    "RandomMaze-v0": About("Random maze", "random-maze"),
    "TMazePassive-v0": About("T-Maze", "memory-tasks"),
    "VisualMatch-v0": About("Visual Match", "memory-tasks"),
    "KeyToDoor-v0": About("Key-to-Door", "memory-tasks"),
    "Housekeep-v0": About("Housekeep", "housekeep", f"[Habitat]({SIMULATORS}#housekeep)"),
    "HousekeepText-v0": About("HousekeepText", "housekeep"),
    "ContinuousRecognition-v0": About("Recognition", "continuous-recognition"),
    "Crafter-v1": About("Crafter", "crafter", EXTRA),
    "CrafterText-v0": About("CrafterText", "crafter", EXTRA),
    "popgym-": About("POPGym", "popgym", EXTRA, "popgym-RepeatPreviousEasy-v0"),
    "psychlab_": About(
        "Psychlab",
        "psychlab",
        f"[DeepMind Lab]({SIMULATORS}#psychlab)",
        "psychlab_continuous_recognition",
    ),
    "Avalon-": About(
        "Avalon",
        "avalon",
        "[avalon-rl and its engine](../how-to/avalon.md#install)",
        "Avalon-eat-v0",
    ),
    "caveflyer": About("Procgen", "procgen", "Qt 5 outside Linux on x86-64"),
    "PendulumP-v0": About(
        "Control",
        "control-tasks-with-hidden-parts",
        f"{EXTRA} for MuJoCo; `pybullet_envs_gymnasium` for Bullet",
        "HopperP-v0",
    ),
}
MOST_NAMED = 6  # environments of a suite that are all named


class Caught(Exception):
    """Carries a parser out of the function that built it."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=DOCS, help="of the pages")
    folder = parser.parse_args().folder
    for path in sorted(folder.rglob("*.md")):
        old = path.read_text()
        try:
            new = with_blocks(old)
        except UserError as error:  # an environment that cannot be made here
            print(f"left as it is: {path}: {error}", file=sys.stderr)
            continue
        if new != old:
            path.write_text(new)
            print(f"written: {path}")
    return 0


def with_blocks(page: str) -> str:
    """Return a page with its blocks as the code has them now."""
    blocks = BLOCKS | {path.name: partial(study, path) for path in RESULTS.glob("*.csv")}
    if unknown := {name for _, name, _ in BLOCK.findall(page)} - blocks.keys():
        sys.exit(f"unknown: {', '.join(unknown)}. Known: {', '.join(blocks)}")
    return BLOCK.sub(lambda found: f"{found[1]}\n{blocks[found[2]]()}\n\n{found[3]}", page)


def study(path: Path) -> str:
    """Return the results of a study, one row an agent or a task."""
    with path.open(newline="") as file:
        head, *rows = csv.reader(file)
    return table(head, rows)


def settings() -> str:
    """Return all settings in the groups of `main.py --help all`."""
    readers = settings_index().readers
    groups: dict[str, dict[str, list[list[str]]]] = {}
    for name, each in all_settings().items():
        facts, by = each.metadata, readers(name)
        allowed = " or ".join(KINDS[kind] for kind in each.kinds)
        if facts["choices"]:
            allowed = allowed.replace(KINDS[str], ", ".join(map(code, facts["choices"])))
        if facts["low"] is not None:
            most = " or more" if facts["high"] is None else f" to {number(facts['high'])}"
            allowed += f", {number(facts['low'])}{most}"
        meaning = facts["help"] + (f"; read with `{facts['needs']}`" if facts["needs"] else "")
        row = [f"`{name}`", allowed, f"`{json.dumps(facts['default'])}`", escaped(meaning)]
        read_by = f"Read by {', '.join(by)}." if by else "Read in every run."
        groups.setdefault(each.title, {}).setdefault(read_by, []).append(row)
    lines = []
    for title, tables in groups.items():
        lines.append(f"## {title if title[1].isupper() else title[0].upper() + title[1:]}")
        for read_by, rows in tables.items():
            lines += [read_by, table(("setting", "values", "default", "meaning"), rows)]
    return "\n\n".join(lines)


def number(value: float) -> str:
    return f"{value:,}".removesuffix(".0")


def command_line() -> str:
    return "\n\n".join(line for each in PROGRAMS.items() for line in program(*each))


def program(name: str, place: str) -> Iterator[str]:
    parser = parser_of(place)
    yield f"## {name}"
    if name in COMMANDS:
        yield f"Installed as `{COMMANDS[name]}`."
    yield escaped(parser.description or "")
    commands = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    for command, sub in (each for action in commands for each in action.choices.items()):
        yield f"### {name.rpartition(' ')[2]} {command}"
        yield escaped(sub.description or "")
        yield options(sub)
    if not commands:
        yield options(parser)
    if parser.epilog:
        yield f"```text\n{parser.epilog.strip()}\n```"


def parser_of(place: str) -> argparse.ArgumentParser:
    """Return the parser of a program, which is stopped before it reads its arguments."""

    def stop(parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        raise Caught(parser)

    with mock.patch.object(argparse.ArgumentParser, "parse_known_args", stop):
        try:
            pkgutil.resolve_name(place)([])
        except Caught as caught:
            parser: argparse.ArgumentParser = caught.args[0]
    return parser


def options(parser: argparse.ArgumentParser) -> str:
    rows = []
    for each in parser._actions:
        if each.help == argparse.SUPPRESS or isinstance(each, argparse._HelpAction):
            continue
        value = each.metavar or each.dest.upper()
        if each.choices:
            value = f"{{{','.join(each.choices)}}}"
        value = {"?": f"[{value}]", "*": f"[{value} ...]", "+": f"{value} ..."}.get(
            str(each.nargs), value
        )
        names = [name if each.nargs == 0 else f"{name} {value}" for name in each.option_strings]
        default = str(each.default)
        if isinstance(each.default, list | tuple):
            default = " ".join(map(str, each.default))
        elif each.default is None or each.nargs == 0 or each.dest in OF_THE_MACHINE:
            default = ""
        meaning = (each.help or "").removesuffix(f" ({default})").removesuffix(f"({default})")
        rows.append([code(", ".join(names) or str(value)), code(default), escaped(meaning)])
    return table(("argument", "default", "meaning"), rows)


def environments() -> str:
    """Return the suites, one row each, and what their environments show and take."""
    suites: dict[str, list[str]] = {}  # the names that lead to each
    for name, place in SUITES.items():
        if name != GIVEN:
            suites.setdefault(name if is_beginning(name) else place, []).append(name)
    groups = {names[0]: names for names in suites.values()}
    if different := groups.keys() ^ ABOUT.keys():
        sys.exit(
            f"ABOUT of tests/generate_docs.py and SUITES differ in: {', '.join(sorted(different))}"
        )
    return table(
        ("suite", "`env`", "observation", "actions", "install"), map(suite, groups.values())
    )


def suite(names: list[str]) -> list[str]:
    """Return the row of a suite, given the names, or the beginning of names, that lead to it."""
    first, about = names[0], ABOUT[names[0]]
    example = about.example or first
    shown, actions = spaces_of(example)
    if is_beginning(first):
        known = pkgutil.resolve_name(SUITES[first])().names()
        names = [name for name in known if name.startswith(first)]
    ids = " ".join(map(code, names))
    if len(names) > MOST_NAMED:
        pattern = f"{code(f'{first}*')}, " if is_beginning(first) else ""
        ids = f"{pattern}{len(names)} such as {code(example)}"
    link = f"[{about.name}](#{about.section})"
    return [link, ids, observation_text(shown), action_text(actions), about.install]


def is_beginning(name: str) -> bool:
    return name.endswith(("-", "_"))


def spaces_of(name: str) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """Return observation and action space of an environment; UserError: it cannot be made here."""
    if name in WITHOUT_SIMULATOR:
        single = WITHOUT_SIMULATOR[name]()
        return single.observation_space, single.action_space
    made = make_vector_env(load_config(values={"env": name, "n_envs": 1}), 0)
    made.close()
    return made.single_observation_space, made.single_action_space


def housekeep() -> gymnasium.Env:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        fake_housekeep.install(patch, Path(folder))
        return HousekeepEnv(SimulatorSettings(housekeep_folder=folder))


# Their environments say what they show before a simulator is opened; Housekeep's opens a stand-in.
WITHOUT_SIMULATOR: dict[str, Callable[[], gymnasium.Env]] = {
    "psychlab_continuous_recognition": PsychlabEnv,
    "Avalon-eat-v0": lambda: AvalonEnv(AvalonSettings(), []),
    "Housekeep-v0": housekeep,
}


def observation_text(space: spaces.Space[Any]) -> str:
    images, n_numbers, n_sentences = [], 0, 0
    for part in space.values() if isinstance(space, spaces.Dict) else [space]:
        shape = part.shape or ()
        if isinstance(part, spaces.Text):
            n_sentences += 1
        elif len(shape) > 1:
            images.append("x".join(map(str, shape)))
        else:
            n_numbers += spaces.flatdim(part)
    counts = {"number": n_numbers, "sentence": n_sentences}
    told = [f"{n} {kind}{'s' * (n > 1)}" for kind, n in counts.items() if n]
    return " and ".join([*images, *told])


def action_text(space: spaces.Space[Any]) -> str:
    if isinstance(space, spaces.Discrete):
        return str(space.n)
    return f"{spaces.flatdim(space)} continuous"


def learners() -> str:
    rows = []
    for name in LEARNERS.places:
        kinds = [*["discrete"] * (name not in CONTINUOUS), *["continuous"] * (name not in DISCRETE)]
        models = [model for model in AGENTS.places if name in learners_of(model)]
        rows.append([code(name), " and ".join(kinds), ", ".join(models), *place_of(LEARNERS, name)])
    return table(("`algorithm`", "actions", "`model`", "class", "file"), rows)


def models() -> str:
    rows = []
    for name in AGENTS.places:
        also = [alias for alias, (known, _) in PUBLISHED.items() if known == name]
        agent, memory = AGENTS.find(name), AGENTS.find(name).memory_class
        part = agent if memory is None else memory
        state = "frozen" if agent.has_frozen_memory else "stack of frames"
        if memory is not None:
            state = "recurrent" if issubclass(memory, Recurrent | Scan) else "last `mem_len` steps"
        if memory is NoMemory:
            state = "none"
        names = " ".join(map(code, (name, *also)))
        file = file_of(f"{part.__module__}:{part.__name__}")
        rows.append([names, state, ", ".join(learners_of(name)), code(part.__name__), file])
    return table(("`model`", "state", "`algorithm`", "class", "file"), rows)


def learners_of(model: str) -> list[str]:
    agent = AGENTS.find(model)
    has_memory = agent.memory_class is not None or agent.has_frozen_memory
    return [*(agent.algorithms or ("PPO", *(FROM_REPLAY if has_memory else ())))]


def parts(registry: Registry) -> str:
    rows = ([code(name), *place_of(registry, name)] for name in registry.places)
    return table((code(registry.setting), "class", "file"), rows)


def place_of(registry: Registry, name: str) -> tuple[str, str]:
    place = registry.places[name]
    return code(place.partition(":")[2]), file_of(place)


def file_of(place: str) -> str:
    file = Path(*place.partition(":")[0].split("."))
    return code(f"{file}/__init__.py" if (ROOT / file).is_dir() else f"{file}.py")


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [[*head], *([*row] for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|") if text else ""


def escaped(text: str) -> str:
    """Return plain text that Markdown shows as it is."""
    return re.sub(r"([*_<>|\[\]])", r"\\\1", text)


BLOCKS = {
    "settings": settings,
    "command line": command_line,
    "environments in code": environments,
    "learners in code": learners,
    "models in code": models,
    "curiosity in code": lambda: parts(CURIOSITIES),
    "suggesters in code": lambda: parts(SUGGESTERS),
}

if __name__ == "__main__":
    sys.exit(main())
