"""Write every figure of this machine's GPU as one Markdown table.

Run: python -m benchmarks.gpu [--output FILE] [--only NAME ...] [--rehearse]

Each row is measured in a process of its own, so that its memory is its own and a failure leaves the
others alone: the reason stands in the place of the figure. The clock is read when the device has
done all it was told to. --rehearse runs the same on the CPU at tiny sizes, most of it in this
process: that it runs, no more.
"""

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from utils.starting import let_waiting_threads_sleep

if __name__ == "__main__":
    let_waiting_threads_sleep()  # OpenMP asks when PyTorch is imported, below

import torch
from torch import Tensor

from analysis.run_data import write_text
from benchmarks import training, updates
from benchmarks.language_models import full_step, random_model
from benchmarks.measuring import (
    Version,
    Work,
    check_names,
    in_own_process,
    in_words,
    measure,
    this_machine,
)
from benchmarks.random_models import MINILM, TINY, WITHOUT_VOCABULARY
from models.language.load import load_language_model
from models.language.transformer import LayerStack
from trainers.ranks import average_gradients, joined_ranks
from utils.command_line import Parser, run_program
from utils.errors import UserError
from utils.files import check_writable

PAGE_SECONDS, ROW_SECONDS = 460.0, 90.0
N_ENVS, MEM_LEN = 16, 511
WARM_UPS = 12  # steps or updates; the first of a graph are compared with the plain step
LONGEST_REASON = 200
AGENTS = ("CNN-PPO", "Impala-PPO", "GPT", "HELM", "HELMv2", "SHELM", "HELM+Transformer-XL")
TINY_RUN = (
    *("n_envs=2", "n_rollout_steps=8", "n_batches=2", "n_epochs=1", "save_ckpt=false"),
    "device=cpu",
)


class Row(NamedTuple):
    """A row of the page.

    Attributes:
        name: Of the figure.
        size: At which it is taken.
        measure: Returns value, unit and 10^6 bytes at most held, in so many seconds at most.
    """

    name: str
    size: str
    measure: Callable[[float], tuple[float, str, float]]


def main(argv: Sequence[str] | None = None) -> int:
    return run_program(benchmark, argv)


def benchmark(argv: Sequence[str] | None) -> None:
    """Measure the chosen rows and write the page, anew with each."""
    parser = Parser(prog="python -m benchmarks.gpu", description=__doc__.split("\n")[0])
    names = ", ".join(SUBJECTS)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[*SUBJECTS], help=names)
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the page here, too")
    rehearse_help = "the same on the CPU, with tiny sizes: that it runs, not how fast"
    parser.add_argument("--rehearse", action="store_true", help=rehearse_help)
    arguments = parser.parse_args(argv)
    tiny, output = arguments.rehearse, arguments.output
    check_names("--only", arguments.only, SUBJECTS)
    if output is not None and output.is_dir():
        raise UserError(f"--output {output}: a folder. Name a file")
    if output is not None:
        check_writable(output.parent, "--output")
    if not tiny and not torch.cuda.is_available():
        raise UserError(
            f"python -m benchmarks.gpu: PyTorch {torch.__version__} finds no GPU on this machine. "
            "Run it where there is one, or add --rehearse to try it on the CPU"
        )

    lines = heading(tiny)
    print("\n".join(lines), flush=True)
    rows = [row for name in arguments.only for row in SUBJECTS[name](tiny)]
    begun = time.perf_counter()
    for number, row in enumerate(rows, start=1):
        passed = time.perf_counter() - begun
        progress = f"{number} of {len(rows)}, {passed:.0f} s: {row.name}"
        print(progress, file=sys.stderr, flush=True)
        cells = (row.name, *found(row, PAGE_SECONDS - passed))
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
        print(lines[-1], flush=True)
        if output is not None:
            write_text(output, "\n".join([*lines, ""]))


def heading(tiny: bool) -> list[str]:
    """Return the lines above the rows."""
    title, of = "# Rehearsal of the GPU page", "process"
    said = ["", "A rehearsal on the CPU with tiny sizes: no figure means anything."] if tiny else []
    if not tiny:
        title, of = f"# {torch.cuda.get_device_name()}", "tensors"
    machine = f"CUDA {torch.version.cuda}; {in_words(this_machine())}"
    head = f"| what | figure | peak memory of {of} | size |"
    return [title, "", machine, *said, "", head, "|---|---|---|---|"]


def found(row: Row, seconds_left: float) -> tuple[str, str, str]:
    """Return figure, memory and size of a row, or the reason why there is none."""
    if seconds_left <= 0:
        return "–", "–", f"not measured: the page may take {PAGE_SECONDS:.0f} s"
    try:
        value, unit, megabytes = row.measure(min(ROW_SECONDS, seconds_left))
    except Exception as error:  # of any kind: the other rows are measured all the same
        line = (str(error) or type(error).__name__).splitlines()[0][:LONGEST_REASON]
        return "–", "–", f"not measured: {line}"
    digits = 2 if value < 100 else 0
    return f"{value:,.{digits}f} {unit}", f"{megabytes:,.0f} MB", row.size


def timed(tiny: bool, name: str, size: str, version: Version) -> Row:
    """Return the row of a version's work: the median of thirty, tiny ones in this process."""

    def figure(seconds: float) -> tuple[float, str, float]:
        if tiny:
            result = measure(version, 2, 1)
        else:
            result = in_own_process(measure, version, 30, WARM_UPS, seconds=seconds)
        return result.ms, "ms", result.peak_mb

    return Row(name, size, figure)


def graph_rows(tiny: bool) -> Iterator[Row]:
    """Yield a language model's step: recorded as a CUDA graph, and as it is without."""
    n_envs = 2 if tiny else N_ENVS
    for name, load in (("Transformer-XL", transformer_xl), ("MiniLM", mini_lm)):
        for captured in (True, False):
            yield timed(
                tiny,
                f"{name} step, {'recorded' if captured else 'not recorded'}",
                f"{n_envs} environments, {MEM_LEN} tokens remembered",
                partial(steps, partial(load, tiny), n_envs, captured),
            )


def transformer_xl(tiny: bool) -> LayerStack:
    """Return one of the published size and random weights, or a tiny one on the CPU."""
    return random_model(
        TINY if tiny else WITHOUT_VOCABULARY, MEM_LEN, device="cpu" if tiny else "cuda"
    )


def mini_lm(tiny: bool) -> LayerStack:
    """Return all-MiniLM-L6-v2."""
    model = load_language_model(MINILM, MEM_LEN, device="cpu" if tiny else "cuda")
    assert isinstance(model, LayerStack), "a BERT is one"
    return model


def steps(load: Callable[[], LayerStack], n_envs: int, captured: bool) -> Iterator[Work]:
    """Step a language model whose memory is full.

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
        graph = model.captured_on(memory)
        if graph is not None and not graph.works:
            raise RuntimeError(f"the step is not replayed as a CUDA graph: {graph.reason}")


def off_policy_rows(tiny: bool) -> Iterator[Row]:
    """Yield updates of DQN and SAC, drawing from replay included."""
    for case in updates.cases(tiny):
        if not case.dropout:
            version = partial(updates.our_off_policy, case, "cpu" if tiny else "cuda")
            yield timed(tiny, f"update, {case.name}", f"{case.n_sequences} sequences", version)


def n_step_rows(tiny: bool) -> Iterator[Row]:
    """Yield the update of ELLM."""
    size = updates.TINY_FRAMES if tiny else updates.FrameSize()
    version = partial(updates.our_n_step, size, "cpu" if tiny else "cuda")
    note = f"batch {size.n_samples}, 4 frames of {size.side} x {size.side}"
    yield timed(tiny, "update, NStepDQN-ELLM", note, version)


def ranks_rows(tiny: bool) -> Iterator[Row]:
    """Yield the mean of gradients over ranks, of which there is one."""
    name = f"gradients averaged by {'gloo' if tiny else 'NCCL'}, one rank"
    yield timed(tiny, name, "gradients of ELLM", partial(averaged_gradients, tiny))


def averaged_gradients(tiny: bool) -> Iterator[Work]:
    """Average gradients as `torchrun --nproc-per-node 1` would have more ranks do it.

    Raises:
        RuntimeError: the mean over one rank is not the rank's own gradient.
    """
    given = (updates.TINY_FRAMES, "cpu") if tiny else (updates.FrameSize(), "cuda")
    parameters = updates.fresh_ellm(*given)[0].parameters
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    before = flat_gradients(parameters)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    alone |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with patch.dict(os.environ, alone), joined_ranks():
        while True:
            yield partial(average_gradients, parameters)
            if not torch.equal(flat_gradients(parameters), before):
                raise RuntimeError("the mean over one rank is not what the rank had")


def flat_gradients(parameters: Sequence[Tensor]) -> Tensor:
    """Return all gradients one after the other."""
    return torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])


def training_rows(tiny: bool) -> Iterator[Row]:
    """Yield environment steps a second of agents on KeyCorridor, updates included."""
    n_steps, warm_up = (48, 16) if tiny else (20_480, 4096)
    settings = (*(TINY_RUN if tiny else ("device=cuda",)), f"n_steps={n_steps}")
    for name in AGENTS:
        size = f"KeyCorridor, from step {warm_up:,} to {n_steps:,}"
        yield Row(f"training, {name}", size, partial(trained, name, settings, warm_up))


def trained(
    name: str, settings: Sequence[str], warm_up: int, seconds: float
) -> tuple[float, str, float]:
    """Train an agent in so many seconds at most."""
    run = training.measured(name, settings, warm_up, seconds=seconds)
    rate = run.rate if run.steady is None else run.steady
    return rate, "steps/s", run.peak_mb if run.gpu_mb is None else run.gpu_mb


SUBJECTS = {
    "graph": graph_rows,
    "off-policy": off_policy_rows,
    "n-step": n_step_rows,
    "ranks": ranks_rows,
    "training": training_rows,
}


if __name__ == "__main__":
    sys.exit(main())
