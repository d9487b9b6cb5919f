"""Look into an agent's memory, as the papers do."""

import utils.starting  # noqa: F401

# isort: split
import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from analysis import attention, distances, goals, layers, lengths, probe, scoreboard, words
from analysis.findings import Findings
from analysis.source import Choice, Source
from settings import MOST_SEED
from utils.command_line import Parser, add_trust, finite_number, run_program, whole_number
from utils.files import check_writable

EPILOG = """SOURCE is a run folder or checkpoint, whose agent then plays; or episodes that eval.py
saved, files or a folder; or both: that agent looks at those episodes. Without one a random agent
plays, and the settings (config.json, --config, --var) say in which environment and who looks on.

lengths, goals and scoreboard read run folders (RUNS); lengths also what eval.py has written there,
scoreboard also tables of runs, the scoreboard.csv that it writes.
probe lets the agents of RUNS play, run folders or checkpoints.

python -m analysis distances --var env=MiniGrid-MemoryS11-v0
python -m analysis words episodes/MiniGrid-MemoryS11-v0/SHELM
python -m analysis attention experiments/HELM/MiniGrid-KeyCorridorS3R1-v0/seed=0
python -m analysis lengths experiments/*/TMazePassive-v0
python -m analysis goals experiments/*/CrafterText-v0
python -m analysis scoreboard experiments docs/scoreboard.csv
python -m analysis probe experiments/*/TMazePassive-v0 --untrained
"""
LENGTHS = "score against length, over runs: how far agents remember (T-Maze and the like)"
GOALS = "achievements and goals over runs: how many, how good suggestions are, what they cost"
SCOREBOARD = "agents by tasks that isolate memory, over runs: scores between chance and the best"
PROBE = (
    "what can be read from hidden states k steps after it was shown: is it in memory, is it used"
)
OF_RUNS: dict[str, tuple[str, Callable[[Sequence[Path], Sequence[str]], Findings], str]] = {
    "lengths": (LENGTHS, lengths.analyse, "model,algorithm"),
    "goals": (GOALS, goals.analyse, "model,algorithm,suggester,curiosity"),
    "scoreboard": (SCOREBOARD, lambda runs, _: scoreboard.analyse(runs), ""),
}
ANALYSES: dict[str, tuple[str, Callable[[Source, argparse.Namespace], Findings]]] = {
    "distances": (
        "distances between observations beside those between their tokens, for several beta",
        lambda source, arguments: distances.analyse(source, arguments.beta),
    ),
    "words": (
        "the words of a task's observations by frequency (SHELM)",
        lambda source, arguments: words.analyse(source, arguments.most),
    ),
    "attention": (
        "which past steps each layer looks at, over an episode",
        lambda source, _: attention.analyse(source),
    ),
    "layers": (
        "how alike hidden states are between layers and between steps: which layers matter",
        lambda source, _: layers.analyse(source),
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Analyse as the command line says and return the exit status."""
    return run_program(analyse, argv)


def analyse(argv: Sequence[str] | None) -> None:
    """Load what is to be analysed, analyse it, and write picture and numbers."""
    arguments = parse_arguments(argv)
    check_writable(arguments.output, "--output")
    files = findings(arguments).save(arguments.output, arguments.analysis)
    print(f"\nwritten to {', '.join(map(str, files))}")


def findings(arguments: argparse.Namespace) -> Findings:
    """Return what the chosen analysis comes to."""
    if arguments.analysis == "probe":
        asked = (arguments.n_episodes, arguments.random_share, arguments.seed, arguments.untrained)
        return probe.analyse(arguments.runs, probe.Play(*asked, trust=arguments.trust))
    if arguments.analysis in OF_RUNS:
        _, of_runs, keys = OF_RUNS[arguments.analysis]
        return of_runs(arguments.runs, arguments.by.split(",") if keys else ())
    _, run = ANALYSES[arguments.analysis]
    choice = Choice(
        *(arguments.source, arguments.config, arguments.var, arguments.n_episodes),
        *(arguments.seed, arguments.trust),
    )
    return run(Source(choice), arguments)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    options: dict[str, Any] = {
        "epilog": EPILOG,
        "formatter_class": argparse.RawDescriptionHelpFormatter,
    }
    parser = Parser(prog="python -m analysis", description=__doc__, **options)
    commands = parser.add_subparsers(dest="analysis", metavar="ANALYSIS", required=True)
    for name, (text, _) in ANALYSES.items():
        command = commands.add_parser(name, help=text, description=f"Show {text}.", **options)
        add_source(command, n_episodes=5 if name in ("distances", "words") else 1)
        if name == "distances":
            command.add_argument(
                "--beta",
                type=finite_number(0, 1e6),
                nargs="+",
                default=distances.BETAS,
                help="inverse temperatures",
            )
        if name == "words":
            command.add_argument(
                "--most",
                metavar="N",
                type=whole_number(1, 1000),
                default=words.MOST,
                help="words to show",
            )
    for name, (text, _, keys) in OF_RUNS.items():
        command = commands.add_parser(name, help=text, description=f"Show {text}.", **options)
        add_runs(command, "run folders, or folders of them")
        if keys:
            by = f"settings that tell agents apart ({keys})"
            command.add_argument("--by", metavar="KEY,KEY", default=keys, help=by)
        add_output(command)
    add_probe(commands.add_parser("probe", help=PROBE, description=f"Show {PROBE}.", **options))
    return parser.parse_args(argv)


def add_probe(parser: argparse.ArgumentParser) -> None:
    """Add what the probe understands."""
    add_runs(parser, "run folders, folders of them, or checkpoints")
    add = parser.add_argument
    n_episodes = whole_number(probe.FEWEST, probe.MOST)
    episodes = f"episodes of each run ({probe.EPISODES})"
    add("--n-episodes", metavar="N", type=n_episodes, default=probe.EPISODES, help=episodes)
    at_random = "share of actions drawn at random in the place of the agent's (0)"
    add("--random-share", metavar="P", type=finite_number(0, 1), default=0.0, help=at_random)
    twin = "let a fresh agent of the same settings read the same episodes, too"
    add("--untrained", action="store_true", help=twin)
    add("--seed", metavar="N", type=whole_number(0, MOST_SEED), default=0)
    add_trust(parser)
    add_output(parser)


def add_runs(parser: argparse.ArgumentParser, what: str) -> None:
    """Add which runs are analysed."""
    parser.add_argument("runs", metavar="RUNS", nargs="+", type=Path, help=what)


def add_source(parser: argparse.ArgumentParser, n_episodes: int) -> None:
    """Add what every analysis understands."""
    add = parser.add_argument
    add(
        "source", metavar="SOURCE", nargs="*", type=Path, help="a run, episodes, or both; see below"
    )
    add("--config", metavar="FILE", type=Path, help="settings, where no run is named")
    add("--var", metavar="KEY=VALUE", action="append", default=[], help="one setting, repeatable")
    episodes = f"episodes to play, where none are named ({n_episodes})"
    add("--n-episodes", metavar="N", type=whole_number(1, 1000), default=n_episodes, help=episodes)
    add("--seed", metavar="N", type=whole_number(0, MOST_SEED), default=0)
    add_trust(parser)
    add_output(parser)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add where picture and numbers go."""
    parser.add_argument("--output", metavar="FOLDER", type=Path, default=Path("analysis_output"))


if __name__ == "__main__":
    sys.exit(main())
