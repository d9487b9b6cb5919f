"""Measure fast parts, most beside a straightforward version: python -m benchmarks."""

import pkgutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from utils.starting import let_waiting_threads_sleep

if __name__ == "__main__":
    let_waiting_threads_sleep()  # OpenMP asks when PyTorch is imported, below


from benchmarks import measuring
from benchmarks.measuring import Pair, in_words
from utils.command_line import Parser, run_program
from utils.run_folder import write_json

# Imported when chosen: a process then holds the libraries of its own part, and no others.
PARTS = {
    "transformer-xl": "benchmarks.language_models:transformer_xl",
    "minilm": "benchmarks.language_models:minilm",
    "update": "benchmarks.updates:ppo",
    "off-policy": "benchmarks.updates:off_policy",
    "suggesting": "benchmarks.language_models:suggesting",
    "n-step": "benchmarks.updates:n_step",
}


def main(argv: Sequence[str] | None = None) -> int:
    return run_program(benchmark, argv)


def benchmark(argv: Sequence[str] | None) -> None:
    parser = Parser(prog="python -m benchmarks", description=__doc__)
    names = ", ".join(PARTS)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[*PARTS], help=names)
    quick = "tiny sizes: that it runs, not how fast"
    parser.add_argument("--quick", action="store_true", help=quick)
    measuring.add_threads(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    arguments = parser.parse_args(argv)
    measuring.check_names("--only", arguments.only, PARTS)
    machine = measuring.this_machine(arguments.threads)
    print(in_words(machine))
    print("milliseconds a step; peak memory of a process that does nothing else", flush=True)
    columns = {"part": "<37", "plain_ms": ">10,.2f", "ours_ms": ">9,.2f", "ratio": ">7.1f"}
    columns |= {"largest_difference": ">18.1e", "plain_MB": ">9,.0f", "ours_MB": ">8,.0f"}
    table, found = measuring.Table(**columns, size="<1"), []
    for name in PARTS:
        for pair in pairs(name, arguments.quick) if name in arguments.only else ():
            found.append(measuring.compare(pair, arguments.threads, arguments.quick))
            table.row(*found[-1].values())
    if arguments.json:
        content = {"machine": machine, "quick": arguments.quick, "parts": found}
        write_json(arguments.json, content)


def pairs(name: str, quick: bool) -> Iterator[Pair]:
    return pkgutil.resolve_name(PARTS[name])(quick)


if __name__ == "__main__":
    sys.exit(main())
