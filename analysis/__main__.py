"""Look into an agent's memory, as the papers do."""

import utils.starting  # noqa: F401

# isort: split
import argparse
import pkgutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from analysis.figures import AnalysisResult
from analysis.run_data import aligned
from analysis.statistics import BETAS, MOST_WORDS, PROBED
from utils.command_line import Parser, add_trust, add_var, finite_number, run_program, whole_number
from utils.errors import RunError, UserError
from utils.files import check_writable
from utils.seeding import N_HELD_OUT

if TYPE_CHECKING:
    from analysis.source import AgentSource

EPILOG = """SOURCE is a run folder or checkpoint: its agent plays; or episodes of eval.py, files or
a folder; or both: that agent looks at those episodes. Without SOURCE a random agent plays, and
the settings (config.json, --config, --var) name the environment and the agent that looks on.

lengths, goals and scoreboard read run folders (RUNS); lengths also evaluations of eval.py there,
scoreboard also tables of runs, the scoreboard.csv that it writes.
probe lets the agents of RUNS play, run folders or checkpoints.

python -m analysis distances --var env=MiniGrid-MemoryS11-v0
python -m analysis words episodes/MiniGrid-MemoryS11-v0/SHELM
python -m analysis attention experiments/HELM/MiniGrid-KeyCorridorS3R1-v0/seed=0
python -m analysis lengths experiments/*/TMazePassive-v0
python -m analysis goals experiments/*/CrafterText-v0
python -m analysis scoreboard experiments docs/results/scoreboard.csv
python -m analysis probe experiments/*/TMazePassive-v0
python -m analysis check my_agents:MyMemory
"""


class Analysis(NamedTuple):
    """An analysis; its function is imported when it is chosen, and so --help waits for nothing."""

    text: str
    place: str  # module:function
    arguments: Callable[[argparse.Namespace], tuple[Any, ...]]


ANALYSES = {
    "distances": Analysis(
        "distances between observations beside those between their tokens, for several beta",
        "analysis.memory:analyse_distances",
        lambda asked: (source(asked), asked.beta),
    ),
    "words": Analysis(
        "the words of a task's observations by frequency (SHELM)",
        "analysis.memory:analyse_words",
        lambda asked: (source(asked), asked.most),
    ),
    "attention": Analysis(
        "which past steps each layer looks at, and those the value depends on (saliency)",
        "analysis.memory:analyse_attention",
        lambda asked: (source(asked),),
    ),
    "layers": Analysis(
        "how alike hidden states are between layers and between steps: which layers matter",
        "analysis.memory:analyse_layers",
        lambda asked: (source(asked),),
    ),
    "lengths": Analysis(
        "score against length, over runs: how far agents remember (T-Maze and the like)",
        "analysis.lengths:analyse",
        lambda asked: (asked.runs, asked.by.split(",")),
    ),
    "goals": Analysis(
        "achievements and goals over runs: numbers, quality of suggestions, costs",
        "analysis.goals:analyse",
        lambda asked: (asked.runs, asked.by.split(",")),
    ),
    "scoreboard": Analysis(
        "agents by tasks that isolate memory, over runs: scores between chance and the best",
        "analysis.scoreboard:analyse",
        lambda asked: (asked.runs,),
    ),
    "probe": Analysis(
        "read cues from hidden states k steps after they were shown: whether a memory has them",
        "analysis.probe:analyse",
        lambda asked: (asked.runs, asked.n_episodes, asked.random_share, asked.seed, asked.trust),
    ),
}
EPISODES = {"distances": 5, "words": 5, "attention": 1, "layers": 1}  # to play
KEYS = {"lengths": "model,algorithm", "goals": "model,algorithm,suggester,curiosity"}


def main(argv: Sequence[str] | None = None) -> int:
    return run_program(analyse, argv)


def analyse(argv: Sequence[str] | None) -> None:
    arguments = parse_arguments(argv)
    if arguments.analysis == "check":
        check(arguments)
        return
    check_writable(arguments.output, "--output")
    chosen = ANALYSES[arguments.analysis]
    analysed: Callable[..., AnalysisResult] = pkgutil.resolve_name(chosen.place)
    result = analysed(*chosen.arguments(arguments))
    files = result.save(arguments.output, arguments.analysis)
    print(f"\nwritten to {', '.join(map(str, files))}")


def check(asked: argparse.Namespace) -> None:
    from analysis.source import named_agent
    from models.agent import ActorCriticAgent
    from models.memories import TrainedMemory
    from models.memories.check import CHECKS, examine, title, told_of

    agent = named_agent(asked.name, asked.var, asked.trust)
    memories = [part for part in agent.modules() if isinstance(part, TrainedMemory)]
    checked: list[TrainedMemory | ActorCriticAgent] = [*memories[:1]]
    if isinstance(agent, ActorCriticAgent):
        checked.append(agent)
    if not checked:
        raise UserError(f"{asked.name}: no trained memory and no `evaluate`, so nothing to check")
    # The parts of an untrained network may have next to no effect in the beginning.
    noise = 0.0 if Path(asked.name).exists() else 0.1
    found = [examine(part, noise=noise) for part in checked]
    table = [["", *(type(part).__name__ for part in checked), "allowed", ""]]
    notes, failed, outcomes = [], [], []
    for each in CHECKS:
        here = [findings[each] for findings in found]
        measured = [finding for finding in here if finding.is_right is not None]
        is_right = all(finding.is_right for finding in measured)
        outcomes.append("not tested" if not measured else "ok" if is_right else "FAILS")
        told, why = (measured, "") if measured else (here[:1], "not tested: ")
        shown = *(finding.shown for finding in here), told[0].allowed, outcomes[-1]
        table.append([title(each), *shown])
        notes += [f"{title(each)}: {why}{finding.note}" for finding in told if finding.note]
        failed += [] if is_right else [f"{title(each)} fails: {told_of(each)}"]
    counts = [f"{outcomes.count(kind)} {kind}" for kind in dict.fromkeys(outcomes)]
    print(aligned(table), *notes, f"checks: {', '.join(counts)}", sep="\n")
    if failed:
        raise RunError("\n".join(failed))


def source(asked: argparse.Namespace) -> "AgentSource":
    from analysis.source import AgentSource

    return AgentSource(
        asked.source, asked.config, asked.var, asked.n_episodes, asked.seed, asked.trust
    )


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    options: dict[str, Any] = {
        "epilog": EPILOG,
        "formatter_class": argparse.RawDescriptionHelpFormatter,
    }
    parser = Parser(prog="python -m analysis", description=__doc__, **options)
    commands = parser.add_subparsers(dest="analysis", metavar="ANALYSIS", required=True)
    for name, (text, *_) in ANALYSES.items():
        command = commands.add_parser(name, help=text, description=f"Show {text}.", **options)
        if name in EPISODES:
            add_source(command, EPISODES[name])
        else:
            runs = "run folders, or folders of them"
            if name == "probe":
                runs = "run folders, folders of them, or checkpoints"
            command.add_argument("runs", metavar="RUNS", nargs="+", type=Path, help=runs)
        add_own_options(command.add_argument, name)
        if name in EPISODES or name == "probe":
            seed = whole_number(0, N_HELD_OUT - 1)
            told = "first episode to play, of those that no training meets (0)"
            command.add_argument("--seed", metavar="N", type=seed, default=0, help=told)
            add_trust(command)
        output = Path("analysis_output")
        told = f"where figures and tables are written ({output})"
        command.add_argument("--output", metavar="FOLDER", type=Path, default=output, help=told)
    text = "the state of a memory, an agent (module:Class) or a run: checks of what is right"
    command = commands.add_parser("check", help=text, description=f"Check {text}.", **options)
    command.add_argument("name", metavar="NAME", help="module:Class, a model, or a run")
    add_var(command, "one setting, repeatable")
    add_trust(command)
    return parser.parse_args(argv)


def add_source(parser: argparse.ArgumentParser, n_episodes: int) -> None:
    add = parser.add_argument
    named = "a run, episodes, or both; see below"
    add("source", metavar="SOURCE", nargs="*", type=Path, help=named)
    add("--config", metavar="FILE", type=Path, help="settings, where no run is named")
    add_var(parser, "one setting, repeatable")
    episodes = f"episodes to play, where none are named ({n_episodes})"
    add("--n-episodes", metavar="N", type=whole_number(1, 1000), default=n_episodes, help=episodes)


def add_own_options(add: Callable[..., object], name: str) -> None:
    if name == "distances":
        betas = {"nargs": "+", "default": BETAS, "help": "inverse temperatures"}
        add("--beta", type=finite_number(0, 1e6), **betas)
    if name == "words":
        most = {"default": MOST_WORDS, "help": "words to show"}
        add("--most", metavar="N", type=whole_number(1, 1000), **most)
    if name in KEYS:
        by = f"settings that tell agents apart ({KEYS[name]})"
        add("--by", metavar="KEY,KEY", default=KEYS[name], help=by)
    if name == "probe":
        n_episodes = whole_number(32, 10_000)
        episodes = f"episodes of each run ({PROBED})"
        add("--n-episodes", metavar="N", type=n_episodes, default=PROBED, help=episodes)
        at_random = "share of actions drawn at random in the place of the agent's (0)"
        add("--random-share", metavar="P", type=finite_number(0, 1), default=0.0, help=at_random)


if __name__ == "__main__":
    sys.exit(main())
