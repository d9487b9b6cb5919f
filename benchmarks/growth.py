"""How the cost of our Transformer-XL step grows with the settings, one at a time, store full."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch

from benchmarks.comparing import Runner, Work
from benchmarks.language_memory import random_model
from benchmarks.random_models import TINY, WITHOUT_VOCABULARY, Size
from models.language import KeyValueMemory, LanguageModel

ROUNDS = 5


class Setting(NamedTuple):
    """What the cost depends on; `topk` is the number of tokens a step."""

    n_envs: int = 16
    mem_len: int = 511
    n_layer: int = 18
    topk: int = 1


class Cost(NamedTuple):
    """What a step costs where one setting differs from the default."""

    setting: str
    value: int
    ms: float
    mb: float


VALUES = {
    "n_envs": (1, 4, 16, 64),
    "mem_len": (127, 511, 2047),
    "n_layer": (1, 2, 6, 18),
    "topk": (1, 4),
}
TINY_SETTING = Setting(n_envs=2, mem_len=7, n_layer=2)
TINY_VALUES = {"n_envs": (1, 2), "mem_len": (3, 7), "n_layer": (1, 2), "topk": (1, 2)}


def costs(quick: bool, threads: int) -> Iterator[Cost]:
    """Measure every value of every setting; the default itself once."""
    size, default = (TINY, TINY_SETTING) if quick else (WITHOUT_VOCABULARY, Setting())
    measured: dict[Setting, tuple[float, float]] = {}
    for name, values in (TINY_VALUES if quick else VALUES).items():
        for value in values:
            setting = default._replace(**{name: value})
            if setting not in measured:
                with Runner(partial(steps, size, setting), threads, apart=not quick) as runner:
                    runner.advance()
                    measured[setting] = runner.median_ms(ROUNDS), runner.peak_megabytes()
            yield Cost(name, value, *measured[setting])


def steps(size: Size, setting: Setting) -> Iterator[Work]:
    """Step a random model whose store is full."""
    model = random_model(size._replace(n_layer=setting.n_layer), setting.mem_len)
    memory = full_memory(model, setting.n_envs)
    starts = torch.zeros(setting.n_envs, dtype=torch.bool)
    tokens = torch.randn(setting.n_envs, setting.topk, size.width)
    while True:
        yield partial(model.step, tokens, memory, starts)


def full_memory(model: LanguageModel, n_envs: int) -> KeyValueMemory:
    """Return a memory of episodes that have had as many tokens as the model remembers."""
    memory = model.initial_memory(n_envs)
    device = memory.ages.device
    starts = torch.zeros(n_envs, dtype=torch.bool, device=device)
    model.step(torch.randn(n_envs, 1, model.width, device=device), memory, starts)
    fill(memory, model.mem_len)
    return memory


def fill(memory: KeyValueMemory, n_tokens: int) -> None:
    """Replace what a memory holds, one token or more, by random keys and values in every slot."""
    state = memory.state_dict()
    for name in ("keys", "values"):
        *others, _, width = state[name].shape
        state[name] = torch.randn(*others, memory.n_past, width)
    state["n_slots"] = torch.tensor(memory.n_past + 1)
    state["ages"] = torch.full_like(state["ages"], n_tokens)
    memory.load_state_dict(state)
