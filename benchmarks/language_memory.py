"""Time a step of the Transformer-XL memory beside its straightforward version, and compare them.

Run: python -m benchmarks.language_memory [--quick] [--threads N]

The size is the published one (18 layers, D=1024, 16 heads, M=511) with 16 environments and one
token per step; weights are random, the vocabulary is tiny since a step never touches it. Both
versions start from the same random slots, so that the memory is full without 511 slow steps.
"""

import argparse
import os
import platform
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from benchmarks.plain_transformer_xl import PlainTransformerXL
from models.language.causal_layer import CausalLayer, split_heads
from models.language.key_value_memory import KeyValueMemory
from models.language.transformer_xl import TransformerXL

N_ENVS = 16
MEM_LEN = 511
EPISODE = 100
N_LAYER, WIDTH, N_HEAD, INNER, VOCABULARY = 18, 1024, 16, 4096, 8


class RandomTransformerXL:
    """The published size with random weights."""

    name = "transformer-xl of published size, random weights"

    def config(self) -> dict[str, float]:
        """Return the published settings."""
        sizes = {"n_layer": N_LAYER, "d_model": WIDTH, "n_head": N_HEAD, "d_inner": INNER}
        d_head = WIDTH // N_HEAD
        return {**sizes, "d_head": d_head, "clamp_len": 1000, "layer_norm_epsilon": 1e-5}

    def weights(self) -> dict[str, Tensor]:
        """Return random tensors under their published names."""
        generator = torch.Generator().manual_seed(0)
        return {
            name: torch.randn(shape, generator=generator) * 0.02 + name.endswith("norm.weight")
            for name, shape in self._shapes().items()
        }

    def vocabulary(self) -> list[str]:
        """Return no words: there are none."""
        return []

    def fingerprint(self) -> str:
        """Return where the weights come from."""
        return "random weights of seed 0"

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {"word_emb.emb_layers.0.weight": (VOCABULARY, WIDTH)}
        for layer in range(N_LAYER):
            attention, forward = f"layers.{layer}.dec_attn.", f"layers.{layer}.pos_ff."
            shapes[f"{attention}r_w_bias"] = shapes[f"{attention}r_r_bias"] = (N_HEAD, 64)
            shapes[f"{attention}qkv_net.weight"] = (3 * WIDTH, WIDTH)
            shapes[f"{attention}o_net.weight"] = (WIDTH, WIDTH)
            shapes[f"{attention}r_net.weight"] = (WIDTH, WIDTH)
            shapes |= {f"{forward}CoreNet.0.weight": (INNER, WIDTH)}
            shapes |= {f"{forward}CoreNet.0.bias": (INNER,)}
            shapes |= {f"{forward}CoreNet.3.weight": (WIDTH, INNER)}
            shapes |= {f"{forward}CoreNet.3.bias": (WIDTH,)}
            for part in (attention, forward):
                shapes |= {f"{part}layer_norm.weight": (WIDTH,), f"{part}layer_norm.bias": (WIDTH,)}
        return shapes


class Models(NamedTuple):
    """The two versions, with the same weights."""

    plain: PlainTransformerXL
    ours: TransformerXL


class Figures(NamedTuple):
    """What one comparison found."""

    plain: float  # seconds a step, median
    ours: float
    difference: float  # the largest, over all steps and environments
    n_steps: int


def random_slots(ages: Tensor) -> Tensor:
    """Return normalised layer inputs, zero where an episode has no token yet.  [L, N, M, D]"""
    generator = torch.Generator().manual_seed(1)
    slots = torch.randn(N_LAYER, N_ENVS, MEM_LEN, WIDTH, generator=generator)
    slots = torch.nn.functional.layer_norm(slots, (WIDTH,))
    empty = torch.arange(MEM_LEN, 0, -1) > ages[:, None]  # [N, M]
    return slots.masked_fill_(empty[:, :, None], 0)


@torch.no_grad()
def as_keys_and_values(
    model: TransformerXL, slots: Tensor, ages: Tensor, position: int
) -> KeyValueMemory:
    """Return the memory that has read what the slots hold, the next slot being `position`."""
    memory = model.initial_memory(N_ENVS)
    n_tokens = min(int(ages.max()), memory.n_slots)
    keys, values = [], []
    for layer, inputs in zip(model.layers, slots[:, :, MEM_LEN - n_tokens :], strict=True):
        assert isinstance(layer, CausalLayer)
        projected = layer.qkv(inputs.reshape(-1, WIDTH).t()).chunk(3)
        keys.append(split_heads(projected[1], N_HEAD, N_ENVS))
        values.append(split_heads(projected[2], N_HEAD, N_ENVS))
    memory.load_state_dict(
        {
            "keys": torch.stack(keys),
            "values": torch.stack(values),
            "ages": ages,
            "position": torch.tensor(position),
        }
    )
    return memory


@contextmanager
def stopwatch(seconds: list[float]) -> Iterator[None]:
    """Note how long the block took."""
    begin = time.perf_counter()
    yield
    seconds.append(time.perf_counter() - begin)


def compare(title: str, ages: Tensor, n_steps: int, models: Models) -> Figures:
    """Feed both versions the same tokens from the same slots; episodes end at EPISODE steps."""
    slots = random_slots(ages)
    # The last slot is written next: from the third step on, the past is read across the wrap.
    memory = as_keys_and_values(models.ours, slots, ages, position=models.ours.n_slots - 1)
    generator = torch.Generator().manual_seed(2)
    seconds: dict[str, list[float]] = {"plain": [], "ours": []}
    difference = 0.0
    for _ in tqdm(range(n_steps), desc=title, unit="step"):
        tokens = torch.randn(N_ENVS, 1, WIDTH, generator=generator)
        starts = memory.ages == EPISODE
        with stopwatch(seconds["plain"]):
            expected, slots = models.plain.step(tokens, slots, starts)
        for _ in range(4):  # looking ahead is the same work: a steadier median for little time
            with stopwatch(seconds["ours"]):
                models.ours.step(tokens, memory, starts, advance=False)
        with stopwatch(seconds["ours"]):
            hidden = models.ours.step(tokens, memory, starts)
        difference = max(difference, (hidden - expected).abs().max().item())
    return Figures(median(seconds["plain"]), median(seconds["ours"]), difference, n_steps)


def report(figures: dict[str, Figures]) -> None:
    """Print the table, the machine and the most memory this process has held."""
    print(f"\n{'store':<24}{'plain':>10}{'ours':>10}{'ratio':>8}{'largest difference':>26}")
    for title, row in figures.items():
        times = f"{row.plain * 1e3:>7.0f} ms{row.ours * 1e3:>7.0f} ms{row.plain / row.ours:>8.1f}"
        found = f"{row.difference:.1e} in {row.n_steps} steps"
        print(f"{title:<24}{times}{found:>26}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    threads, load = torch.get_num_threads(), os.getloadavg()[0]
    print(f"\npeak memory of the process, both versions and their stores: {peak:.1f} GB")
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {threads} threads, load {load:.1f}"
    print(f"machine: {machine}, torch {torch.__version__}")


def main(argv: list[str] | None = None) -> int:
    """Measure, compare, print."""
    parser = argparse.ArgumentParser(description="Time and compare the Transformer-XL memory.")
    parser.add_argument("--quick", action="store_true", help="3 steps each instead of 5")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="cores to use")
    arguments = parser.parse_args(argv)
    n_steps = 3 if arguments.quick else 5
    torch.set_num_threads(arguments.threads)
    published = RandomTransformerXL()
    print(f"{published.name}: {N_ENVS} environments, mem_len {MEM_LEN}", flush=True)
    models = Models(PlainTransformerXL(published, MEM_LEN), TransformerXL(published, MEM_LEN))
    stores = {
        "full": torch.full((N_ENVS,), 10 * MEM_LEN),
        f"episodes of {EPISODE} steps": torch.arange(N_ENVS) * EPISODE // N_ENVS + 5,
    }
    report({title: compare(title, ages, n_steps, models) for title, ages in stores.items()})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
