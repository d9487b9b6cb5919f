"""Write every figure of this machine's GPU as one Markdown table.

Run: python -m benchmarks.gpu [--output FILE] [--only NAME ...] [--rehearse]

Each row has a process of its own, so that its memory is its own and a failure leaves the others
alone: the reason stands in the place of the figure. --rehearse runs the same on the CPU at tiny
sizes, most of it in this process: that it runs, no more.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from utils.starting import let_waiting_threads_sleep

if __name__ == "__main__":
    let_waiting_threads_sleep()  # OpenMP asks when PyTorch is imported, below

import torch

from benchmarks import measuring, training, updates
from benchmarks.language_models import MINILM, TINY, WITHOUT_VOCABULARY, full_step, random_model
from benchmarks.measuring import Pair, Version, Work, in_own_process, in_words, measure
from models.language.load import load_language_model
from models.language.transformer import LayerStack
from utils.command_line import Parser, run_program
from utils.errors import UserError
from utils.files import check_writable, write_text

PAGE_SECONDS, ROW_SECONDS = 460.0, 90.0
N_ENVS, MEM_LEN = 16, 511
WARM_UPS = 12  # steps or updates; the first of a graph are compared with the plain step
LONGEST_REASON = 200
AGENTS = ("CNN-PPO", "Impala-PPO", "GPT", "HELM", "HELMv2", "SHELM", "HELM+Transformer-XL")
TINY_RUN = ("device=cpu", "n_envs=2", "n_rollout_steps=8", "n_batches=2", "n_epochs=1")


class Row(NamedTuple):
    """A row of the page; `measure(seconds)` returns value, unit and 10^6 bytes at most held."""

    name: str
    size: str
    measure: Callable[[float], tuple[float, str, float]]


def main(argv: Sequence[str] | None = None) -> int:
    return run_program(benchmark, argv)


def benchmark(argv: Sequence[str] | None) -> None:
    parser = Parser(prog="python -m benchmarks.gpu", description=__doc__.split("\n")[0])
    names = ", ".join(SUBJECTS)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[*SUBJECTS], help=names)
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the page here, too")
    told = "the same on the CPU, with tiny sizes: that it runs, not how fast"
    parser.add_argument("--rehearse", action="store_true", help=told)
    arguments = parser.parse_args(argv)
    tiny, output = arguments.rehearse, arguments.output
    measuring.check_names("--only", arguments.only, SUBJECTS)
    if output is not None and output.is_dir():
        raise UserError(f"--output {output}: a folder. Name a file")
    if output is not None:
        check_writable(output.parent, "--output")
    if not tiny and not torch.cuda.is_available():
        raise UserError(
            f"python -m benchmarks.gpu: PyTorch {torch.__version__} finds no GPU on this machine. "
            "Run it where there is one, or add --rehearse to try it on the CPU"
        )

    title = "Rehearsal of the GPU page" if tiny else torch.cuda.get_device_name()
    of = "process" if tiny else "tensors"
    machine = f"CUDA {torch.version.cuda}; {in_words(measuring.this_machine())}"
    lines = [f"# {title}", "", machine, ""]
    if tiny:
        lines += ["A rehearsal on the CPU with tiny sizes: no figure means anything.", ""]
    lines += [f"| measured | figure | peak memory of {of} | size |", "|---|---|---|---|"]
    print("\n".join(lines), flush=True)
    rows = [row for name in arguments.only for row in SUBJECTS[name](tiny)]
    begun = time.perf_counter()
    for number, row in enumerate(rows, start=1):
        passed = time.perf_counter() - begun
        print(f"{number} of {len(rows)}, {passed:.0f} s: {row.name}", file=sys.stderr, flush=True)
        cells = (row.name, *found(row, PAGE_SECONDS - passed))
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
        print(lines[-1], flush=True)
        if output is not None:
            write_text(output, "\n".join([*lines, ""]))


def found(row: Row, seconds_left: float) -> tuple[str, str, str]:
    if seconds_left <= 0:
        return "–", "–", f"not measured: the page may take {PAGE_SECONDS:.0f} s"
    try:
        value, unit, megabytes = row.measure(min(ROW_SECONDS, seconds_left))
    except Exception as error:  # of any kind: the other rows are measured all the same
        line = (str(error) or type(error).__name__).splitlines()[0][:LONGEST_REASON]
        return "–", "–", f"not measured: {line}"
    digits = 2 if value < 100 else 0
    return f"{value:,.{digits}f} {unit}", f"{megabytes:,.0f} MB", row.size


def timed(tiny: bool, version: Version, seconds: float) -> tuple[float, str, float]:
    if tiny:
        result = measure(version, 2, 1)
    else:
        result = in_own_process(measure, version, 30, WARM_UPS, seconds=seconds)
    return result.ms, "ms", result.peak_mb


def graph_rows(tiny: bool) -> Iterator[Row]:
    n_envs, device = (2, "cpu") if tiny else (N_ENVS, "cuda")
    size = TINY if tiny else WITHOUT_VOCABULARY
    models: dict[str, Callable[[], Any]] = {
        "Transformer-XL": partial(random_model, size, MEM_LEN, device=device),
        "MiniLM": partial(load_language_model, MINILM, MEM_LEN, device=device),
    }
    note = f"{n_envs} environments, {MEM_LEN} tokens remembered"
    for name, load in models.items():
        for how, captured in (("recorded", True), ("not recorded", False)):
            work = partial(steps, load, n_envs, captured)
            yield Row(f"{name} step, {how}", note, partial(timed, tiny, work))


def steps(load: Callable[[], LayerStack], n_envs: int, captured: bool) -> Iterator[Work]:
    """Step a language model with a full memory.

    Raises:
        UserError: it is to be recorded, and that needs a GPU.
        RuntimeError: the recorded step does not work.
    """
    model = load()
    model.may_capture = captured
    if captured and not model.captures:
        raise UserError("needs a GPU")
    step, memory = full_step(model, n_envs)
    while True:
        yield step
        graph = memory.graph
        if graph is not None and not graph.works:
            raise RuntimeError(f"the step is not replayed as a CUDA graph: {graph.reason}")


def update_rows(pairs: Callable[[bool, str], Iterator[Pair]], tiny: bool) -> Iterator[Row]:
    """Yield our updates, drawing from replay included; those with random masks are left out."""
    for pair in pairs(tiny, "cpu" if tiny else "cuda"):
        if "dropout" not in pair.name:
            yield Row(f"update, {pair.name}", pair.note, partial(timed, tiny, pair.ours))


def training_rows(tiny: bool) -> Iterator[Row]:
    n_steps, warm_up = (48, 16) if tiny else (20_480, 4096)
    settings = [*(TINY_RUN if tiny else ["device=cuda"]), f"n_steps={n_steps}"]
    for name in AGENTS:
        size = f"KeyCorridor, from step {warm_up:,} to {n_steps:,}"
        yield Row(f"training, {name}", size, partial(trained, name, settings, warm_up))


def trained(
    name: str, settings: Sequence[str], warm_up: int, seconds: float
) -> tuple[float, str, float]:
    run = training.measured(name, settings, warm_up, seconds=seconds)
    rate = run.rate if run.steady is None else run.steady
    return rate, "steps/s", run.peak_mb if run.gpu_mb is None else run.gpu_mb


SUBJECTS: dict[str, Callable[[bool], Iterator[Row]]] = {
    "graph": graph_rows,
    "off-policy": partial(update_rows, updates.off_policy),
    "n-step": partial(update_rows, updates.n_step),
    "training": training_rows,
}


if __name__ == "__main__":
    sys.exit(main())
