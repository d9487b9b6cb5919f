"""Language models as memories and as suggesters, beside versions that read everything anew.

Transformer-XL has its published size, M=511, random weights and a tiny vocabulary, since a step
never touches it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.measuring import Pair, Work
from benchmarks.random_models import (
    MINILM,
    TINY,
    WITHOUT_VOCABULARY,
    RandomTransformerXL,
    TransformerSize,
)
from models.language import LanguageModel
from models.language.files import ModelFiles, find_model
from models.language.generation import load_text_model
from models.language.kv_cache import KVCache
from models.language.load import load_language_model
from models.language.transformer import TransformerXL
from rewards.settings import DEFAULT_MODEL
from rewards.suggesters.language_model import BULLET, INSTRUCTION, bullet, question
from rewards.suggesters.rules import TextState

CHUNK = 64  # tokens read at a time before the clock starts
BERT_MEM_LEN = 511
SEEN = ("cow", "grass", "plant", "tree", "water")
VERBS = ("mine", "eat", "attack", "chop", "drink", "place")
PHRASES = [bullet(f"{verb} {thing}") for verb in VERBS for thing in SEEN]


class Store(NamedTuple):
    """The ages of N episodes when the clock starts, and their length; None where they never end."""

    name: str
    ages: tuple[int, ...]
    episode: int | None = None

    @classmethod
    def full(cls, n_envs: int, n_tokens: int) -> "Store":
        return cls(f"{n_tokens} tokens", (n_tokens,) * n_envs)

    @classmethod
    def staggered(cls, n_envs: int, episode: int) -> "Store":
        ages = (n * episode // n_envs + min(5, episode // 2) for n in range(n_envs))
        return cls(f"episodes of {episode}", tuple(ages), episode)

    def history(self, width: int) -> Tensor:
        """Return the tokens before the clock starts, the latest last.  [N, max(ages), width]"""
        shape = (len(self.ages), max(self.ages), width)
        return torch.randn(shape, generator=torch.Generator().manual_seed(1))

    def stream(self, width: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield tokens [N, 1, width] and which episodes begin with them [N]."""
        generator = torch.Generator().manual_seed(2)
        ages = torch.tensor(self.ages)
        while True:
            is_first = ages == (self.episode or -1)
            ages = ages.masked_fill(is_first, 0) + 1
            yield torch.randn(len(ages), 1, width, generator=generator), is_first


def stepping(load: Callable[[], LanguageModel], store: Store) -> Iterator[Work]:
    model = load()
    memory = model.initial_memory(len(store.ages))
    history = store.history(model.width)
    n_tokens = history.shape[1]
    begins = torch.tensor([n_tokens - age for age in store.ages])
    for first, end in pairwise(sorted({*begins.tolist(), *range(0, n_tokens, CHUNK), n_tokens})):
        model.step(history[:, first:end], memory, begins == first)
    for tokens, is_first in store.stream(model.width):
        yield partial(model.step, tokens, memory, is_first)


def transformer_xl(quick: bool) -> Iterator[Pair]:
    size, mem_len = (TINY, 12) if quick else (WITHOUT_VOCABULARY, 511)
    n_envs, episode = (3, 6) if quick else (16, 100)
    for store in (Store.full(n_envs, mem_len), Store.staggered(n_envs, episode)):
        yield Pair(
            f"Transformer-XL step, {store.name}",
            partial(plain_transformer_xl, size, mem_len, store),
            partial(stepping, partial(random_model, size, mem_len), store),
            note=f"{size.n_layer} layers, mem_len {mem_len}, {n_envs} environments",
        )


def minilm(quick: bool) -> Iterator[Pair]:
    n_envs, n_tokens, episode = (2, 7, 6) if quick else (16, 500, 100)
    for store in (Store.full(n_envs, n_tokens), Store.staggered(n_envs, episode)):
        yield Pair(
            f"MiniLM step, {store.name}",
            partial(plain_minilm, store),
            partial(stepping, partial(load_language_model, MINILM, BERT_MEM_LEN), store),
            note=f"6 layers, mem_len {BERT_MEM_LEN}, {n_envs} environments",
        )


def bfloat16(quick: bool) -> Iterator[Pair]:
    size, mem_len = (TINY, 12) if quick else (WITHOUT_VOCABULARY, 511)
    store, n_steps = (Store.staggered(3, 6), 4) if quick else (Store.staggered(16, 100), 100)
    loaders: dict[str, Callable[..., LanguageModel]] = {
        "MiniLM": partial(load_language_model, MINILM, mem_len, None, "cpu"),
        "Transformer-XL": partial(random_model, size, mem_len),
    }
    for name, load in loaders.items():
        plain, ours = (
            partial(stepping, partial(load, dtype), store)
            for dtype in (torch.float32, torch.bfloat16)
        )
        row, note = f"{name} in bfloat16, {store.name}", "plain is ours in float32"
        yield Pair(row, plain, ours, compared=n_steps, note=note)


def suggesting(quick: bool) -> Iterator[Pair]:
    plain, ours = partial(scores, True), partial(scores, False)
    row, compared = f"new scene, {len(PHRASES)} phrases", 1 if quick else 3
    yield Pair(row, plain, ours, compared=compared, note=DEFAULT_MODEL)


def random_model(
    size: TransformerSize, mem_len: int, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> TransformerXL:
    return TransformerXL(RandomTransformerXL(size), mem_len).to(device).pack(dtype)


def plain_transformer_xl(size: TransformerSize, mem_len: int, store: Store) -> Iterator[Work]:
    model = PlainTransformerXL(RandomTransformerXL(size), mem_len)
    episodes = zip(store.history(size.width), store.ages, strict=True)
    begin = torch.ones(1, dtype=torch.bool)
    empty = model.initial_memory(1)
    states = [model.step(tokens[None, -age:], empty, begin)[1] for tokens, age in episodes]
    slots = torch.cat(states, dim=1)

    def read(tokens: Tensor, is_first: Tensor) -> Tensor:
        nonlocal slots
        hidden, slots = model.step(tokens, slots, is_first)
        return hidden

    for tokens, is_first in store.stream(size.width):
        yield partial(read, tokens, is_first)


def plain_minilm(store: Store) -> Iterator[Work]:
    from transformers import BertModel

    folder = find_model(MINILM).find("config.json").parent
    options: Any = {"is_decoder": True, "attn_implementation": "eager"}
    model = BertModel.from_pretrained(folder, local_files_only=True, **options).eval()
    width = model.config.hidden_size
    history = zip(store.history(width), store.ages, strict=True)
    episodes = [tokens[-age:] for tokens, age in history]

    @torch.no_grad()
    def read(tokens: Tensor, is_first: Tensor) -> Tensor:
        for n, start in enumerate(is_first.tolist()):
            episodes[n] = torch.cat((episodes[n][: 0 if start else None], tokens[n]))
        # Padding comes last, and nothing before it looks there.
        padded = torch.nn.utils.rnn.pad_sequence(episodes, batch_first=True)
        hidden = model(inputs_embeds=padded).last_hidden_state
        lasts = torch.tensor([len(episode) - 1 for episode in episodes])
        return hidden[torch.arange(len(episodes)), lasts]

    for tokens, is_first in store.stream(width):
        yield partial(read, tokens, is_first)


def scores(plain: bool) -> Iterator[Work]:
    name = DEFAULT_MODEL
    model: Any = PlainTextModel(find_model(name)) if plain else load_text_model(name)

    def scored(prompt: str) -> Tensor:
        return torch.tensor(model.phrase_log_probabilities(prompt, PHRASES, INSTRUCTION))

    scene = f"you see {', '.join(SEEN[:-1])}, and {SEEN[-1]}. you are targeting grass."
    for number in count(1):  # every scene is new
        inventory = f"you have in your inventory {number} wood."
        yield partial(scored, question(TextState(scene, inventory, "", {})) + BULLET)


def full_step(model: LanguageModel, n_envs: int) -> tuple[Work, KVCache]:
    memory = model.initial_memory(n_envs)
    memory.open(1)  # the values of the slots do not change the time of a step
    memory.ages.fill_(model.mem_len)
    is_first = torch.zeros(n_envs, dtype=torch.bool, device=model.device)
    tokens = torch.randn(n_envs, 1, model.width, device=model.device)
    return partial(model.step, tokens, memory, is_first), memory


class PlainTransformerXL:
    """Transformer-XL with the memory as the paper writes it: slots of layer inputs."""

    def __init__(self, published: ModelFiles, mem_len: int) -> None:
        self.config = published.config()
        self.mem_len = mem_len
        named = published.weights().items()
        self.weights = {name.removeprefix("transformer."): tensor for name, tensor in named}

    def initial_memory(self, n_envs: int) -> Tensor:
        return torch.zeros(self.config["n_layer"], n_envs, self.mem_len, self.config["d_model"])

    @torch.no_grad()
    def step(self, tokens: Tensor, slots: Tensor, is_first: Tensor) -> tuple[Tensor, Tensor]:
        """Read tokens [N, K, D] and return the hidden state [N, D] and the new slots."""
        slots[:, is_first] = 0
        hidden = tokens
        inputs = []
        for layer in range(self.config["n_layer"]):
            seen = torch.cat([slots[layer], hidden], dim=1)
            inputs.append(seen[:, -self.mem_len :])
            hidden = self._layer(layer, hidden, seen)
        return hidden[:, -1], torch.stack(inputs)

    def _layer(self, layer: int, hidden: Tensor, seen: Tensor) -> Tensor:
        mixed = self._attention(layer, seen, hidden.shape[1])
        mixed = mixed @ self._get(layer, "dec_attn.o_net").T
        hidden = self._norm(layer, "dec_attn", hidden + mixed)
        inner = functional.linear(hidden, *self._linear(layer, "pos_ff.CoreNet.0")).relu()
        change = functional.linear(inner, *self._linear(layer, "pos_ff.CoreNet.3"))
        return self._norm(layer, "pos_ff", hidden + change)

    def _attention(self, layer: int, seen: Tensor, n_new: int) -> Tensor:
        """Return the outputs of the heads of the last `n_new` of the seen tokens [N, M+K, D]."""
        n_seen, n_head, width = seen.shape[1], self.config["n_head"], self.config["d_head"]
        qkv = functional.linear(seen, self._get(layer, "dec_attn.qkv_net"))
        queries, keys, values = qkv.unflatten(-1, (3, n_head, width)).unbind(2)
        queries = queries[:, -n_new:]
        waves = self._sinusoids(n_seen)
        positions = functional.linear(waves, self._get(layer, "dec_attn.r_net"))
        positions = positions.unflatten(-1, (n_head, width))
        content = queries + self.weights[f"layers.{layer}.dec_attn.r_w_bias"]
        placed = queries + self.weights[f"layers.{layer}.dec_attn.r_r_bias"]
        scores = torch.einsum("nihd,njhd->nhij", content, keys)
        # Distance of column j from new token i; all but the last M are masked.
        distances = torch.arange(n_new)[:, None] + n_seen - n_new - torch.arange(n_seen)
        by_distance = torch.einsum("nihd,mhd->nhim", placed, positions)
        index = distances.clamp(0, n_seen - 1).expand_as(scores)
        scores = (scores + by_distance.gather(-1, index)) / math.sqrt(width)
        hidden_columns = (distances < 0) | (distances >= self.mem_len)
        weights = scores.masked_fill(hidden_columns, -math.inf).softmax(-1)
        return torch.einsum("nhij,njhd->nihd", weights, values).flatten(2)

    def _sinusoids(self, n_distances: int) -> Tensor:
        width = self.config["d_model"]
        distances = torch.arange(float(n_distances)).clamp(max=self.config["clamp_len"])
        angles = distances[:, None] / 10000 ** (torch.arange(0.0, width, 2) / width)
        return torch.cat([angles.sin(), angles.cos()], dim=-1)

    def _get(self, layer: int, name: str) -> Tensor:
        return self.weights[f"layers.{layer}.{name}.weight"]

    def _linear(self, layer: int, name: str) -> tuple[Tensor, Tensor]:
        return self._get(layer, name), self.weights[f"layers.{layer}.{name}.bias"]

    def _norm(self, layer: int, name: str, rows: Tensor) -> Tensor:
        weight, bias = self._linear(layer, f"{name}.layer_norm")
        epsilon = self.config["layer_norm_epsilon"]
        return functional.layer_norm(rows, weight.shape, weight, bias, epsilon)


class PlainTextModel:
    def __init__(self, published: ModelFiles) -> None:
        from transformers import AutoModelForCausalLM

        folder = published.find("config.json").parent
        self.published = published
        self.model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()

    @torch.no_grad()
    def phrase_log_probabilities(
        self, prompt: str, phrases: Sequence[str], shared: str = ""
    ) -> list[float]:
        n_prompt = len(self.published.tokenize(prompt))
        scores = []
        for phrase in phrases:
            ids = torch.tensor([self.published.tokenize(prompt + phrase)])
            log_probs = self.model(input_ids=ids, use_cache=False).logits.log_softmax(-1)
            told = log_probs[0, n_prompt - 1 : -1].gather(1, ids[0, n_prompt:, None])
            scores.append(float(told.mean()))
        return scores
