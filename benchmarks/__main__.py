"""Compare every fast part with its straightforward version: python -m benchmarks."""

import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from utils.starting import let_waiting_threads_sleep

if __name__ == "__main__":
    let_waiting_threads_sleep()  # OpenMP asks when PyTorch is imported, below

import torch

from benchmarks.language_models import Cost, growth
from benchmarks.measuring import (
    MOST_THREADS,
    Figures,
    Machine,
    Pair,
    Table,
    check_names,
    compare,
)
from runs.folder import write_json
from utils.command_line import Parser, run_program, whole_number

PARTS = {
    "transformer-xl": "benchmarks.language_models:transformer_xl",
    "minilm": "benchmarks.language_models:minilm",
    "bfloat16": "benchmarks.language_models:bfloat16",
    "hopfield": "benchmarks.observations:hopfield",
    "cache": "benchmarks.observations:cache",
    "minigrid": "benchmarks.environments:minigrid",
    "crafter": "benchmarks.environments:crafter",
    "update": "benchmarks.ppo_update:pairs",
    "off-policy": "benchmarks.off_policy:pairs",
    "suggesting": "benchmarks.language_models:suggesting",
    "n-step": "benchmarks.n_step:pairs",
}
GROWTH = "growth"
NAMES = (*PARTS, GROWTH)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit status."""
    return run_program(benchmark, argv)


def benchmark(argv: Sequence[str] | None) -> None:
    """Measure the chosen parts and print the tables."""
    parser = Parser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=NAMES, help=", ".join(NAMES))
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: that it runs, not how fast"
    )
    parser.add_argument(
        "--threads",
        type=whole_number(1, MOST_THREADS),
        default=torch.get_num_threads(),
        help="cores to use; else OMP_NUM_THREADS, or all",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    arguments = parser.parse_args(argv)
    chosen = check_names("--only", arguments.only, NAMES)
    machine = Machine.here(arguments.threads)
    print(machine, flush=True)
    parts = [pair for name in PARTS if name in chosen for pair in pairs(name, arguments.quick)]
    figures = report_parts(parts, arguments.quick, arguments.threads) if parts else []
    costs = report_growth(arguments.quick, arguments.threads) if GROWTH in chosen else []
    if arguments.json:
        content = {"machine": machine._asdict(), "quick": arguments.quick}
        content["parts"] = [row._asdict() for row in figures]
        content["growth"] = [row._asdict() for row in costs]
        write_json(arguments.json, content)


def pairs(name: str, quick: bool) -> Iterator[Pair]:
    """Yield the comparisons of a part."""
    module, _, function = PARTS[name].partition(":")
    return getattr(importlib.import_module(module), function)(quick)


def report_parts(chosen: Sequence[Pair], quick: bool, threads: int) -> list[Figures]:
    """Print the table of parts, ours beside plain, and return its rows."""
    print("\nmilliseconds a step; peak memory of a process that does nothing else")
    table = Table(
        part="<37",
        plain_ms=">10,.2f",
        ours_ms=">9,.2f",
        ratio=">7.1f",
        largest_difference=">18.1e",
        plain_MB=">9,.0f",
        ours_MB=">8,.0f",
        size="<1",
    )
    found = []
    for pair in chosen:
        found.append(compare(pair, threads, apart=not quick))
        table.row(*found[-1])
    return found


def report_growth(quick: bool, threads: int) -> list[Cost]:
    """Print how our cost grows and return the rows."""
    print("\nour Transformer-XL step, full store: one setting at a time differs from the default")
    table = Table(setting="<10", value=">8", ms=">10,.2f", peak_MB=">9,.0f")
    found = []
    for cost in growth(quick, threads):
        found.append(cost)
        table.row(*cost)
    return found


if __name__ == "__main__":
    sys.exit(main())
