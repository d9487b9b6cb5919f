"""Compare every fast part with its straightforward version: python -m benchmarks."""

import importlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from utils.threads import let_waiting_threads_sleep

if __name__ == "__main__":
    let_waiting_threads_sleep()  # OpenMP asks when PyTorch is imported, below

import torch

from benchmarks.comparing import Figures, Pair, compare
from benchmarks.growth import Cost, costs
from benchmarks.measuring import Machine
from benchmarks.tables import Table
from runs.folder import write_json
from utils.command_line import Parser, run_program, whole_number
from utils.errors import UserError, suggestion

PARTS = {
    "transformer-xl": "benchmarks.language_memory",
    "minilm": "benchmarks.minilm",
    "bfloat16": "benchmarks.frozen_dtype",
    "hopfield": "benchmarks.hopfield",
    "cache": "benchmarks.cached_observations",
    "minigrid": "benchmarks.minigrid",
    "crafter": "benchmarks.crafter",
    "update": "benchmarks.update",
    "off-policy": "benchmarks.off_policy",
    "suggesting": "benchmarks.suggesting",
    "n-step": "benchmarks.n_step",
}
GROWTH = "growth"
NAMES = (*PARTS, GROWTH)
MOST_THREADS = 1024


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
    figures = report_parts(chosen, arguments.quick, arguments.threads)
    growth = report_growth(arguments.quick, arguments.threads) if GROWTH in chosen else []
    if arguments.json:
        content = {"machine": machine._asdict(), "quick": arguments.quick}
        content["parts"] = [row._asdict() for row in figures]
        content["growth"] = [row._asdict() for row in growth]
        write_json(arguments.json, content)


def check_names(option: str, names: Sequence[str], allowed: Iterable[str]) -> Sequence[str]:
    """Return the names if all of them are allowed."""
    for name in names:
        if name not in allowed:
            hint = suggestion(name, allowed)
            raise UserError(f"{option}: '{name}' is none of {', '.join(allowed)}.{hint}")
    return names


def pairs(name: str, quick: bool) -> Iterator[Pair]:
    """Yield the comparisons of a part."""
    return importlib.import_module(PARTS[name]).pairs(quick)


def report_parts(names: Sequence[str], quick: bool, threads: int) -> list[Figures]:
    """Print the table of parts, ours beside plain, and return its rows."""
    chosen = [pair for name in PARTS if name in names for pair in pairs(name, quick)]
    if not chosen:
        return []
    print("\nmilliseconds a step; peak memory of a process that does nothing else")
    table = Table(
        part="<37",
        plain_ms=">10,.2f",
        ours_ms=">9,.2f",
        ratio=">7.1f",
        largest_difference=">18.1e",
        plain_MB=">9,.0f",
        ours_MB=">8,.0f",
        what="<1",
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
    for cost in costs(quick, threads):
        found.append(cost)
        table.row(*cost)
    return found


if __name__ == "__main__":
    sys.exit(main())
