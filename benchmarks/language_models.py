"""Language models as memories and as suggesters; MiniLM beside one that reads everything anew."""

# Transformer-XL has its published size, M=511, random weights and a tiny vocabulary, since a step
# never touches it.

import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.measuring import Pair, Work
from models.language import LanguageModel
from models.language.files import ModelFiles, find_model
from models.language.generation import load_text_model
from models.language.kv_cache import KVCache
from models.language.load import load_language_model
from models.language.transformer import TransformerXL
from rewards.settings import DEFAULT_MODEL
from rewards.suggesters.language_model import BULLET, INSTRUCTION, bullet, question
from rewards.suggesters.rules import TextState

MINILM = "all-MiniLM-L6-v2"
CHUNK = 64  # tokens read at a time before the clock starts
BERT_MEM_LEN = 511
SEEN = ("cow", "grass", "plant", "tree", "water")
VERBS = ("mine", "eat", "attack", "chop", "drink", "place")
PHRASES = [bullet(f"{verb} {thing}") for verb in VERBS for thing in SEEN]


class TransformerSize(NamedTuple):
    """The size of a Transformer-XL; the published layers by default.

    Attributes:
        clusters: Tokens and width of each part of its adaptive embedding, frequent ones first.
    """

    n_layer: int = 18
    width: int = 1024
    n_head: int = 16
    inner: int = 4096
    clusters: tuple[tuple[int, int], ...] = ((8, 1024),)

    @property
    def d_head(self) -> int:
        return self.width // self.n_head

    @property
    def n_tokens(self) -> int:
        return sum(n_tokens for n_tokens, _ in self.clusters)


CLUSTERS = ((20_000, 1024), (20_000, 256), (160_000, 64), (67_735, 16))
WITHOUT_VOCABULARY = TransformerSize()
PUBLISHED = TransformerSize(clusters=CLUSTERS)
TINY = TransformerSize(n_layer=2, width=32, n_head=4, inner=48, clusters=((6, 32), (10, 8)))


class RandomTransformerXL(ModelFiles):
    def __init__(self, size: TransformerSize) -> None:
        super().__init__(f"Transformer-XL of {size.n_layer} layers, random weights")
        self.size = size

    def config(self) -> dict[str, Any]:
        size = self.size
        sizes = {"n_layer": size.n_layer, "d_model": size.width, "n_head": size.n_head}
        sizes |= {"d_head": size.d_head, "d_inner": size.inner, "vocab_size": size.n_tokens}
        return {"model_type": "transfo-xl", **sizes, "clamp_len": 1000, "layer_norm_epsilon": 1e-5}

    def weights(self) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(0)
        return {
            name: torch.randn(shape, generator=generator) * 0.02 + name.endswith("norm.weight")
            for name, shape in self._shapes().items()
        }

    def vocabulary(self) -> list[str]:
        return [str(number) for number in range(self.size.n_tokens)]

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        size, width, inner = self.size, self.size.width, self.size.inner
        layer: dict[str, tuple[int, ...]] = {
            "dec_attn.r_w_bias": (size.n_head, size.d_head),
            "dec_attn.r_r_bias": (size.n_head, size.d_head),
            "dec_attn.qkv_net.weight": (3 * width, width),
            "dec_attn.o_net.weight": (width, width),
            "dec_attn.r_net.weight": (width, width),
            "pos_ff.CoreNet.0.weight": (inner, width),
            "pos_ff.CoreNet.0.bias": (inner,),
            "pos_ff.CoreNet.3.weight": (width, inner),
            "pos_ff.CoreNet.3.bias": (width,),
        }
        for part in ("dec_attn", "pos_ff"):
            layer |= {f"{part}.layer_norm.{name}": (width,) for name in ("weight", "bias")}
        layers = range(size.n_layer)
        shapes = {f"layers.{n}.{name}": shape for n in layers for name, shape in layer.items()}
        for number, (n_tokens, thin) in enumerate(size.clusters):
            shapes[f"word_emb.emb_layers.{number}.weight"] = (n_tokens, thin)
            shapes[f"word_emb.emb_projs.{number}"] = (width, thin)
        return shapes


def write_transformer_xl(folder: Path, size: TransformerSize = PUBLISHED) -> list[str]:
    from safetensors.torch import save_file

    model = RandomTransformerXL(size)
    (folder / "config.json").write_text(json.dumps(model.config()))
    (folder / "vocab.txt").write_text("\n".join(model.vocabulary()) + "\n")
    save_file(model.weights(), folder / "model.safetensors")
    return [f"language_model={folder}"]


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
            None,
            partial(stepping, partial(random_model, size, mem_len), store),
            compared=0,
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


def suggesting(_quick: bool) -> Iterator[Pair]:
    yield Pair(f"new scene, {len(PHRASES)} phrases", None, scores, compared=0, note=DEFAULT_MODEL)


def random_model(size: TransformerSize, mem_len: int, device: str = "cpu") -> TransformerXL:
    return TransformerXL(RandomTransformerXL(size), mem_len).to(device).pack(torch.float32)


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


def scores() -> Iterator[Work]:
    model = load_text_model(DEFAULT_MODEL)

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
