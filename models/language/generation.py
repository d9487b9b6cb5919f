"""A frozen decoder with its head: how likely texts are, and what it writes itself.

Prompts that begin alike are read once as far as they do; their keys and values are kept. Phrases
that could follow a prompt are read together as a tree, each beginning that several share once:

    ... What do you do?  --> eat --> plant
                         `-> chop --> tree
                                  `-> grass

A token of the tree sees the prompt and its own ancestors, and stands where it would in its phrase
alone; so every phrase gets the probability it has alone.
"""

import hashlib
from collections.abc import Sequence
from functools import cached_property
from itertools import takewhile
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer

from models.language.decoder import (
    DECODERS,
    explained,
    frozen_decoder,
    load_published,
    positions_of,
    reach_of,
)
from models.language.files import ModelFiles, configuration, find_model
from models.language.layers import FrozenLinear
from models.language.load import once_a_machine
from utils.errors import UserError

Past = list[tuple[Tensor, Tensor]]  # keys and values of every layer  [N, H, n, d] each
MOST_KEPT = 4  # beginnings


class Writing(NamedTuple):
    """How a model writes.

    Attributes:
        most: Tokens at most.
        temperature: What log-probabilities are divided by; 0 takes the likeliest token.
        stop: A text before which it stops; empty for none.
    """

    most: int = 200
    temperature: float = 0.0
    stop: str = "\n\n"


class Written(NamedTuple):
    """What a model has written, and how many tokens that are."""

    text: str
    n_tokens: int


class Tree:
    """Phrases as a tree of tokens, without those that nothing follows.

    Args:
        phrases: Token ids of each.

    Attributes:
        ids: Of the tokens, each after its parent.
        follows: Which tokens each token follows, itself included.  [K, K] bool
        phrases: Of each phrase, its tokens: the token before it in the tree, -1 for the prompt, and
            its id.
    """

    def __init__(self, phrases: Sequence[Sequence[int]]) -> None:
        beginnings = [tuple(phrase[:end]) for phrase in phrases for end in range(1, len(phrase))]
        places = {beginning: place for place, beginning in enumerate(dict.fromkeys(beginnings))}
        self.ids = [beginning[-1] for beginning in places]
        self.follows = torch.eye(len(places), dtype=torch.bool)
        for beginning, place in places.items():
            if len(beginning) > 1:
                self.follows[place] |= self.follows[places[beginning[:-1]]]
        self.phrases = [
            [(places.get(tuple(phrase[:i]), -1), token) for i, token in enumerate(phrase)]
            for phrase in phrases
        ]


class TextModel:
    """A frozen decoder that says how likely texts are, and writes.

    Results do not depend on what was asked before. Of another number of threads, and of other
    prompts written at the same time, come other last bits.

    Args:
        published: Where its files are.
        device: Where it computes.
        dtype: What the layers' weights are kept and multiplied in.

    Attributes:
        name: As it was asked for.
        n_read: Tokens it has read, those not counted that were kept from another prompt.
    """

    def __init__(
        self,
        published: ModelFiles,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.published, self.name, self.device = published, published.name, device
        self.n_read = 0
        config, self.n_positions, self.reach = supported(published)
        ends = config.eos_token_id
        self._ends = set(ends if isinstance(ends, list) else [ends])
        model = load_published(self.name, published.weights(), config, with_head=True)
        self._model = model = frozen_decoder(model).eval().to(device)
        for layer in [each for each in model.modules() if isinstance(each, FrozenLinear)]:
            layer.pack(dtype)
        self._kept: dict[tuple[int, ...], Past] = {}
        with explained(self.name):
            self._try_out(0.001 if dtype == torch.float32 else 0.1)

    @property
    def fingerprint(self) -> str:
        """Return the sha256 of what the weights came from."""
        return self.published.fingerprint()

    @torch.no_grad()
    def phrase_log_probabilities(
        self, prompt: str, phrases: Sequence[str], shared: str = ""
    ) -> list[float]:
        """Return of each phrase the mean log-probability of its tokens after the prompt.

            1/n * sum_i log p(t_i | prompt, t_1 ... t_{i-1})

        Args:
            prompt: What comes before.
            phrases: What may come, each from its first blank on.
            shared: What this prompt and later ones begin with; it is read once.
        """
        ids = self.published.tokenize(prompt)
        whole = [self.published.tokenize(prompt + phrase) for phrase in phrases]
        n_prompt = _n_common(ids, *whole)
        read = _Batch(self, [ids[:n_prompt]], shared)
        tree = Tree([each[n_prompt:] for each in whole])
        rows = [read.logits[0].log_softmax(-1)]
        if tree.ids:
            rows.extend(self._tree_logits(tree, read.past).log_softmax(-1))
        return [
            float(sum(rows[place + 1][token] for place, token in phrase)) / max(len(phrase), 1)
            for phrase in tree.phrases
        ]

    @torch.no_grad()
    def top_log_probabilities(
        self,
        prompts: Sequence[str],
        shared: str = "",
        n_top: int = 5,
        always: Sequence[str] = (" Yes", " No"),
    ) -> list[dict[str, float]]:
        """Return the log-probabilities of the tokens that may come next after each prompt.

        Args:
            prompts: N texts.
            shared: What these prompts and later ones begin with; it is read once.
            n_top: The likeliest n are told,
            always: and these texts, if each of them is a single token.
        """
        asked = {text: self.published.tokenize(text) for text in always}
        found = []
        for prompt in prompts:
            read = _Batch(self, [self.published.tokenize(prompt)], shared)
            log_probs = read.logits[0].log_softmax(-1)
            top = log_probs.topk(n_top)
            strings = (self._vocabulary[token] for token in top.indices.tolist())
            told = dict(zip(strings, top.values.tolist(), strict=True))
            alone = {text: ids[0] for text, ids in asked.items() if len(ids) == 1}
            found.append(told | {text: float(log_probs[token]) for text, token in alone.items()})
        return found

    @torch.no_grad()
    def write(
        self, prompts: Sequence[str], writing: Writing, shared: str = "", seed: int = 0
    ) -> list[Written]:
        """Return what the model writes after each of N prompts, all of them at once.

        What is drawn for a prompt depends on the prompt and the seed alone.

        Args:
            prompts: N texts.
            writing: How far, and how boldly.
            shared: What these prompts and later ones begin with; it is read once.
            seed: Of what is drawn.
        """
        if not prompts:
            return []
        dice = [_dice(prompt, seed) for prompt in prompts]
        batch = _Batch(self, [self.published.tokenize(prompt) for prompt in prompts], shared)
        texts: list[list[int]] = [[] for _ in prompts]
        ended = [False] * len(prompts)
        stop = writing.stop
        for _ in range(writing.most):
            chosen = [
                _drawn(*each, writing.temperature) for each in zip(batch.logits, dice, strict=True)
            ]
            for row, token in enumerate(chosen):
                ended[row] = ended[row] or token in self._ends
                if not ended[row]:
                    texts[row].append(token)
                    ended[row] = bool(stop) and stop in self._text(texts[row])
            if all(ended):
                break
            batch.read(chosen)
        before = (self._text(ids).partition(stop)[0] if stop else self._text(ids) for ids in texts)
        return [Written(text, len(ids)) for text, ids in zip(before, texts, strict=True)]

    def _text(self, tokens: Sequence[int]) -> str:
        return "".join(self._vocabulary[token] for token in tokens)

    @cached_property
    def _vocabulary(self) -> list[str]:
        return self.published.vocabulary()

    def beginning(self, ids: Sequence[int], shared: str) -> tuple[Past, int]:
        """Return the kept keys and values of what a prompt begins with, all but its last token."""
        if not ids:
            raise UserError(f"language model '{self.name}': a prompt needs at least one token.")
        known = tuple(self.published.tokenize(shared)) if shared else ()
        n_kept = min(_n_common(known, ids), len(ids) - 1)
        if n_kept == 0:
            return [], 0
        if known not in self._kept:
            n_known = len(known)
            visible = torch.ones(1, n_known, n_known, dtype=torch.bool).tril()
            places = torch.arange(n_known)[None]
            kept, _ = self.read(torch.tensor([known]), [], visible, places, [n_known - 1])
            while len(self._kept) >= MOST_KEPT:
                self._kept.pop(next(iter(self._kept)))
            self._kept[known] = kept
        return [(k[:, :, :n_kept], v[:, :, :n_kept]) for k, v in self._kept[known]], n_kept

    def _tree_logits(self, tree: Tree, past: Past) -> Tensor:
        """Return the logits after each token of a tree.  [K, V]"""
        n_past, n_new = past[0][0].shape[2], len(tree.ids)
        visible = torch.cat((torch.ones(n_new, n_past, dtype=torch.bool), tree.follows), dim=1)
        places = torch.cat((torch.arange(n_past), n_past + tree.follows.sum(1) - 1))
        ids = torch.tensor([tree.ids])
        return self.read(ids, past, visible[None], places[None], [*range(n_new)])[1][0]

    def read(
        self, ids: Tensor, past: Past, visible: Tensor, places: Tensor, told: Sequence[int]
    ) -> tuple[Past, Tensor]:
        """Read K tokens in each of N rows after n tokens.

        Args:
            ids: The new tokens.  [N, K]
            past: Keys and values of the n tokens; empty for none.
            visible: Which of n+K tokens each of K new ones sees, itself included.
                [N, K, n+K] bool
            places: Where they all stand, counted from the beginning of each row.  [N, n+K]
            told: Of which of the K tokens the logits are returned.  [k]

        Returns:
            Keys and values of all n+K tokens, and logits [N, k, V].
        """
        n_rows, n_new = ids.shape
        n_tokens = int(places.max()) + 1
        if self.n_positions is not None and n_tokens > self.n_positions:
            raise UserError(
                f"language model '{self.name}': a prompt needs {n_tokens} tokens, and it reads "
                f"{self.n_positions} at most. Choose one that reads more"
            )
        cache = DynamicCache()
        for layer, (keys, values) in enumerate(past):
            cache.update(keys.expand(n_rows, -1, -1, -1), values.expand(n_rows, -1, -1, -1), layer)
        masks = {
            kind: _mask(visible, places, reach).to(self.device)
            for kind, reach in self.reach.items()
        }
        found = self._model(
            input_ids=ids.to(self.device),
            position_ids=places[:, -n_new:].to(self.device),
            attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=torch.tensor(told, device=self.device),
        )
        self.n_read += ids.numel()
        return _past(cache), found.logits.float().cpu()

    @torch.no_grad()
    def _try_out(self, tolerance: float) -> None:
        """Compare phrases read as a tree with each read alone; models may do as they like."""
        n_tokens = len(self._vocabulary)
        tokens = [token % n_tokens for token in (5, 7, 11, 13)]
        past = _Batch(self, [tokens[:2]], "").past
        tree = Tree([tokens[2:] + tokens[:1], [tokens[2], tokens[0], tokens[1]]])
        found = self._tree_logits(tree, past)[-1]
        alone = _Batch(self, [[*tokens[:2], tokens[2], tokens[0]]], "").logits[0]
        apart = float((found - alone).abs().max() / alone.abs().max())
        if not apart <= tolerance:
            raise UserError(f"phrases read together differ by {apart:.1%} from those read alone")
        self.n_read = 0


class _Batch:
    """Prompts of different lengths that are written on at once: the shorter ones begin later.

    Attributes:
        past: Keys and values of what has been read.
        logits: Of what comes next in each row.  [N, V]
    """

    def __init__(self, model: TextModel, prompts: Sequence[Sequence[int]], shared: str) -> None:
        beginnings = [model.beginning(prompt, shared) for prompt in prompts]
        n_kept = min(n for _, n in beginnings)
        self.model = model
        self.past = [(k[:, :, :n_kept], v[:, :, :n_kept]) for k, v in beginnings[0][0] if n_kept]
        new = [list(prompt[n_kept:]) for prompt in prompts]
        longest = max(map(len, new))
        padding = longest - torch.tensor([len(each) for each in new])[:, None]
        columns = torch.arange(longest)[None]
        kept = torch.ones(len(new), n_kept, dtype=torch.bool)
        self._there = torch.cat((kept, columns >= padding), dim=1)  # [N, n] what is no padding
        before = torch.arange(n_kept).expand(len(new), -1)
        self._places = torch.cat((before, n_kept + (columns - padding).clamp(min=0)), dim=1)
        ids = torch.tensor([[0] * (longest - len(each)) + each for each in new])
        self.logits = self._read(ids)

    def read(self, tokens: Sequence[int]) -> None:
        """Read one token more in each row."""
        self._there = torch.nn.functional.pad(self._there, (0, 1), value=True)
        self._places = torch.cat((self._places, self._places[:, -1:] + 1), dim=1)
        self.logits = self._read(torch.tensor(tokens)[:, None])

    def _read(self, ids: Tensor) -> Tensor:
        """Read K tokens, each of which sees those before it."""
        n_new = ids.shape[1]
        visible = self._there[:, None].expand(-1, n_new, -1).clone()
        visible[:, :, -n_new:] &= torch.ones(n_new, n_new, dtype=torch.bool).tril()
        rows = torch.arange(n_new)
        visible[:, rows, rows - n_new] = True  # padding sees itself: a row of nothing is no number
        self.past, logits = self.model.read(ids, self.past, visible, self._places, [n_new - 1])
        return logits[:, 0]


def load_text_model(
    name_or_folder: str, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> TextModel:
    """Return a published decoder that says how likely texts are.

    Args:
        name_or_folder: `SmolLM2-135M-Instruct` (installed), any decoder on the hub, a folder in the
            published layout, or a GGUF file.
        device: Where it computes.
        dtype: What the layers' weights are kept and multiplied in.
    """
    return once_a_machine(lambda: TextModel(find_model(name_or_folder), device, dtype))


def supported(
    published: ModelFiles,
) -> tuple[PreTrainedConfig, int | None, dict[str, int | None]]:
    """Return settings, positions and reach of a decoder; UserError where it is another model."""
    settings = published.config()
    model_type = str(settings.get("model_type"))
    if model_type not in DECODERS:
        raise UserError(
            f"language model '{published.name}': model_type '{model_type}' writes nothing; needed "
            "is a decoder (llama, qwen3, gpt2, ...), such as SmolLM2-135M-Instruct"
        )
    config = configuration(settings, published.name)
    return config, positions_of(config, published.name), reach_of(config, published.name)


def _past(cache: DynamicCache) -> Past:
    """Return the keys and values of a cache; UserError if a layer keeps something else."""
    found = []
    for layer in cache.layers:
        if not isinstance(layer, DynamicLayer) or layer.keys is None or layer.values is None:
            raise UserError("not every layer keeps keys and values")
        found.append((layer.keys, layer.values))
    return found


def _mask(visible: Tensor, places: Tensor, reach: int | None) -> Tensor:
    """Return what is added to the scores of layers that see so many tokens.  [N, 1, K, n+K]"""
    if reach is not None:
        new = places[:, -visible.shape[1] :, None]
        visible = visible & (places[:, None] > new - reach)
    mask = torch.zeros(visible.shape)
    return mask.masked_fill_(~visible, torch.finfo(mask.dtype).min)[:, None]


def _n_common(*lists: Sequence[int]) -> int:
    """Return how many tokens some lists begin with in common."""
    columns = zip(*lists, strict=False)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))


def _dice(prompt: str, seed: int) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}\n{prompt}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7]))


def _drawn(logits: Tensor, dice: torch.Generator, temperature: float) -> int:
    """Return a token drawn from softmax(logits / temperature)."""
    if temperature == 0:
        return int(logits.argmax())
    probabilities = (logits.double() / temperature).softmax(-1)
    return int(torch.multinomial(probabilities, 1, generator=dice))
