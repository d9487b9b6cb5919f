"""Write every figure of this machine's GPU as one Markdown table.

Run: python -m benchmarks.gpu [--output FILE] [--only NAME ...] [--rehearse]

Each row is measured in a process of its own, so that its memory is its own and a failure leaves the
others alone: it says in its place why there is no figure. The clock is read when the device has
done all it was told to. --rehearse runs the same on the CPU at tiny sizes, most of it in this
process: that it runs, no more.
"""

import os
import socket
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from utils.threads import let_waiting_threads_sleep

if __name__ == "__main__":
    let_waiting_threads_sleep()  # OpenMP asks when PyTorch is imported, below

import torch
from torch import Tensor

from benchmarks import n_step, off_policy, random_models, training
from benchmarks.__main__ import check_names
from benchmarks.comparing import Runner, Version, Work
from benchmarks.growth import full_memory
from benchmarks.language_memory import random_model
from benchmarks.measuring import (
    Machine,
    Stopwatch,
    in_own_process,
    peak_gpu_megabytes,
    peak_megabytes,
)
from benchmarks.off_policy import MATCH, TMAZE, Case
from models.language import load_language_model
from models.language.layer_stack import LayerStack
from plots.table import write_text
from trainers.ranks import average_gradients, joined_ranks
from utils.command_line import Parser, run_program
from utils.errors import UserError
from utils.folders import check_writable

PAGE_SECONDS, ROW_SECONDS = 460.0, 90.0
N_ENVS, MEM_LEN = 16, 511
WARM_UPS = 12  # steps or updates; the first of a graph are compared with the plain step
LONGEST_REASON = 200
AGENTS = (
    *("CNN-PPO", "Impala-PPO", "GPT", "HELM", "HELMv2", "SHELM"),
    "HELM+Transformer-XL",
)
TINY_RUN = ("n_envs=2", "n_rollout_steps=8", "n_batches=2", "n_epochs=1", "save_ckpt=false")


class Figure(NamedTuple):
    """What was measured.

    Attributes:
        value: How much of the unit.
        unit: Of the value.
        peak_mb: The most memory the device has held for it.  [10^6 bytes]
        note: At what size.
    """

    value: float
    unit: str
    peak_mb: float
    note: str


class Row(NamedTuple):
    """A row of the page.

    Attributes:
        name: What is measured.
        measure: Measures it, in so many seconds at most.
    """

    name: str
    measure: Callable[[float], Figure]


class Bench(NamedTuple):
    """Where figures are taken, and how large what they are of is.

    Attributes:
        device: Where networks run.
        tiny: Whether sizes are those of a rehearsal.
    """

    device: str
    tiny: bool

    @property
    def rounds(self) -> int:
        """Return how often a step or an update is timed."""
        return 2 if self.tiny else 30

    @property
    def warm_ups(self) -> int:
        """Return how often it is done before that."""
        return 1 if self.tiny else WARM_UPS

    def timed(self, name: str, version: Version, note: str) -> Row:
        """Return the row of a piece of work that a version does again and again."""
        return Row(name, partial(timed_apart, self, version, note))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit status."""
    return run_program(benchmark, argv)


def benchmark(argv: Sequence[str] | None) -> None:
    """Measure the chosen rows and write the page, anew with each."""
    arguments = read_command_line(argv)
    bench = Bench("cpu" if arguments.rehearse else "cuda", arguments.rehearse)
    rows = [row for name in arguments.only for row in SUBJECTS[name](bench)]
    page, watch = Page(heading(bench), arguments.output), Stopwatch()
    for number, row in enumerate(rows, start=1):
        progress = f"{number} of {len(rows)}, {watch.seconds:.0f} s: {row.name}"
        print(progress, file=sys.stderr, flush=True)
        page.add(row.name, *found(row, PAGE_SECONDS - watch.seconds))


def read_command_line(argv: Sequence[str] | None) -> Namespace:
    """Return the options.

    Raises:
        UserError: they are wrong, or there is no GPU.
    """
    parser = Parser(prog="python -m benchmarks.gpu", description=__doc__.split("\n")[0])
    names = ", ".join(SUBJECTS)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[*SUBJECTS], help=names)
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the page here, too")
    rehearse_help = "the same on the CPU, with tiny sizes: that it runs, not how fast"
    parser.add_argument("--rehearse", action="store_true", help=rehearse_help)
    arguments = parser.parse_args(argv)
    check_names("--only", arguments.only, SUBJECTS)
    if arguments.output is not None:
        if arguments.output.is_dir():
            raise UserError(f"--output {arguments.output}: a folder. Name a file")
        check_writable(arguments.output.parent, "--output")
    if not arguments.rehearse and not torch.cuda.is_available():
        raise UserError(
            f"python -m benchmarks.gpu: PyTorch {torch.__version__} finds no GPU on this machine. "
            "Run it where there is one, or add --rehearse to try it on the CPU"
        )
    return arguments


def heading(bench: Bench) -> list[str]:
    """Return what stands above the rows."""
    of = "process" if bench.tiny else "tensors"
    said = [f"CUDA {torch.version.cuda}; {Machine.here()}"]
    if bench.tiny:
        said.append("\nA rehearsal on the CPU with tiny sizes: no figure means anything.")
    title = "# Rehearsal of the GPU page" if bench.tiny else f"# {torch.cuda.get_device_name()}"
    return [
        title,
        "",
        *said,
        "",
        f"| what | figure | peak memory of {of} | size |",
        "|---|---|---|---|",
    ]


class Page:
    """A Markdown table that grows by a row at a time, on the screen and in a file.

    Args:
        lines: What stands above the rows.
        path: Of the file; None for the screen alone.
    """

    def __init__(self, lines: Sequence[str], path: Path | None) -> None:
        self._lines, self._path = list(lines), path
        print("\n".join(lines), flush=True)

    def add(self, *cells: str) -> None:
        """Put a row at the end."""
        row = f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
        print(row, flush=True)
        self._lines.append(row)
        if self._path is not None:
            write_text(self._path, "\n".join([*self._lines, ""]))


def found(row: Row, seconds_left: float) -> tuple[str, str, str]:
    """Return figure, memory and size of a row, or why there is none."""
    if seconds_left <= 0:
        return "–", "–", f"not measured: the page may take {PAGE_SECONDS:.0f} s"
    try:
        figure = row.measure(min(ROW_SECONDS, seconds_left))
    except Exception as error:  # of any kind: the other rows are measured all the same
        line = (str(error) or type(error).__name__).splitlines()[0][:LONGEST_REASON]
        return "–", "–", f"not measured: {line}"
    digits = 2 if figure.value < 100 else 0
    value = f"{figure.value:,.{digits}f} {figure.unit}"
    return value, f"{figure.peak_mb:,.0f} MB", figure.note


def timed_apart(bench: Bench, version: Version, note: str, seconds: float) -> Figure:
    """Return the median milliseconds of a version's work; tiny ones are done in this process."""
    if bench.tiny:
        return timed(bench, version, note)
    return in_own_process(timed, bench, version, note, seconds=seconds)


def timed(bench: Bench, version: Version, note: str) -> Figure:
    """Return the median milliseconds of a version's work, done in this process."""
    with Runner(version, torch.get_num_threads(), apart=False) as runner:
        for _ in range(bench.warm_ups):
            runner.advance()
        return Figure(runner.median_ms(bench.rounds), "ms", device_megabytes(), note)


def device_megabytes() -> float:
    """Return the most memory held on the GPU, or without one by this process.  [10^6 bytes]"""
    on_gpu = peak_gpu_megabytes()
    return peak_megabytes() if on_gpu is None else on_gpu


def graph_rows(bench: Bench) -> Iterator[Row]:
    """Yield a language model's step: recorded as a CUDA graph, and as it is without."""
    n_envs = 2 if bench.tiny else N_ENVS
    for name, load in (("Transformer-XL", transformer_xl), ("MiniLM", mini_lm)):
        model = partial(load, bench)
        for captured in (True, False):
            kind = "recorded" if captured else "not recorded"
            yield bench.timed(
                f"{name} step, {kind}",
                partial(steps, model, n_envs, captured),
                f"{n_envs} environments, {MEM_LEN} tokens remembered",
            )


def transformer_xl(bench: Bench) -> LayerStack:
    """Return one of the published size and random weights, or a tiny one."""
    size = random_models.TINY if bench.tiny else random_models.WITHOUT_VOCABULARY
    return random_model(size, MEM_LEN, device=bench.device)


def mini_lm(bench: Bench) -> LayerStack:
    """Return all-MiniLM-L6-v2."""
    model = load_language_model(random_models.MINILM, MEM_LEN, device=bench.device)
    assert isinstance(model, LayerStack), "a BERT is one"
    return model


def steps(load: Callable[[], LayerStack], n_envs: int, captured: bool) -> Iterator[Work]:
    """Step a language model whose memory is full.

    Raises:
        UserError: it is to be recorded, and that needs a GPU.
        RuntimeError: what was recorded does not work.
    """
    model = load()
    model.may_capture = captured
    if captured and not model.captures:
        raise UserError("needs a GPU")
    memory = full_memory(model, n_envs)
    device = memory.ages.device
    tokens = torch.randn(n_envs, 1, model.width, device=device)
    starts = torch.zeros(n_envs, dtype=torch.bool, device=device)
    while True:
        yield partial(model.step, tokens, memory, starts)
        graph = model.captured_on(memory)
        if graph is not None and not graph.works:
            raise RuntimeError(f"the step is not replayed as a CUDA graph: {graph.reason}")


def training_rows(bench: Bench) -> Iterator[Row]:
    """Yield how fast agents train on KeyCorridor."""
    for name in AGENTS:
        yield Row(f"training, {name}", partial(trained, bench, name))


def trained(bench: Bench, name: str, seconds: float) -> Figure:
    """Train an agent and return its environment steps a second, updates included."""
    n_steps, warm_up = (48, 16) if bench.tiny else (20_480, 4096)
    options = training.Options(
        n_steps,
        warm_up,
        torch.get_num_threads(),
        bench.device,
        shares=False,
        overrides=TINY_RUN if bench.tiny else (),
        seconds=seconds,
    )
    run = training.measured(name, options)
    rate = run.rate if run.steady is None else run.steady
    note = f"KeyCorridor, from step {warm_up:,} to {n_steps:,}"
    return Figure(rate, "steps/s", run.peak_mb if run.gpu_mb is None else run.gpu_mb, note)


def off_policy_rows(bench: Bench) -> Iterator[Row]:
    """Yield updates of DQN and SAC, drawing from replay included."""
    longest = (5,) if bench.tiny else (50, 250)
    cases = [Case(model, TMAZE, n, False) for model in ("LSTM", "GPT") for n in longest]
    cases += [Case(model, MATCH, 3 if bench.tiny else 60, False) for model in ("LSTM", "GPT")]
    for case in (case._replace(quick=bench.tiny) for case in cases):
        version = partial(off_policy.ours, case, bench.device)
        yield bench.timed(f"update, {case.name}", version, f"{case.n_sequences} sequences")


def n_step_rows(bench: Bench) -> Iterator[Row]:
    """Yield the update of ELLM."""
    size = n_step.TINY if bench.tiny else n_step.PUBLISHED
    note = f"batch {size.n_samples}, 4 frames of {size.side} x {size.side}"
    yield bench.timed("update, NStepDQN-ELLM", partial(n_step.ours, size, bench.device), note)


def ranks_rows(bench: Bench) -> Iterator[Row]:
    """Yield the mean of gradients over ranks, of which there is one."""
    size = n_step.TINY if bench.tiny else n_step.PUBLISHED
    by = "gloo" if bench.tiny else "NCCL"
    version = partial(averaged_gradients, size, bench.device)
    yield bench.timed(f"gradients averaged by {by}, one rank", version, "gradients of ELLM")


def averaged_gradients(size: n_step.Size, device: str) -> Iterator[Work]:
    """Average gradients as `torchrun --nproc-per-node 1` would have more ranks do it.

    Raises:
        RuntimeError: the mean over one rank is not what the rank had.
    """
    parameters = n_step.prepare(size, device).learner.parameters
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    before = flat_gradients(parameters)
    with patch.dict(os.environ, only_rank()), joined_ranks():
        while True:
            yield partial(average_gradients, parameters)
            if not torch.equal(flat_gradients(parameters), before):
                raise RuntimeError("the mean over one rank is not what the rank had")


def flat_gradients(parameters: Sequence[Tensor]) -> Tensor:
    """Return all gradients one after the other."""
    return torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])


def only_rank() -> dict[str, str]:
    """Return what torchrun would tell the only process it starts, at a port that is free."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    numbers = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1}
    numbers["MASTER_PORT"] = port
    return {name: str(number) for name, number in numbers.items()} | {"MASTER_ADDR": "127.0.0.1"}


SUBJECTS = {
    "graph": graph_rows,
    "off-policy": off_policy_rows,
    "n-step": n_step_rows,
    "ranks": ranks_rows,
    "training": training_rows,
}


if __name__ == "__main__":
    sys.exit(main())
