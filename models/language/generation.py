"""A frozen decoder with its head: probabilities of texts, and generation.

The keys and values of a shared prefix of prompts are kept. Phrases that could follow a prompt are
read together as a tree, each common prefix once:

    ... What do you do?  --> eat --> plant
                         `-> chop --> tree
                                  `-> grass

A token of the tree sees the prompt and its own ancestors, at its position in the phrase alone; so
every phrase gets the probability it has alone.
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
    by_kind,
    frozen_decoder,
    load_published,
    positions_of,
    score_mask,
    sliding_window_of,
    user_error_context,
)
from models.language.files import ModelFiles, configuration, find_model
from models.language.layers import FrozenLinear
from models.language.load import local_main_process_first
from utils.errors import UserError

Past = list[tuple[Tensor, Tensor]]  # keys and values of every layer  [N, H, n, d] each
MOST_KEPT = 4  # shared prefixes


class Writing(NamedTuple):
    most: int = 200  # tokens
    temperature: float = 0.0  # 0 takes the likeliest token
    stop: str = "\n\n"  # a text before which it stops; empty for none


class Written(NamedTuple):
    text: str
    n_tokens: int


class Tree:
    """Phrases, lists of token ids, as a tree of tokens without its leaves.

    Attributes:
        ids: Of the tokens, each after its parent.
        follows: The tokens that each token follows, itself included.  [K, K] bool
        phrases: The tokens of each phrase: the place of the parent in the tree, -1 for the prompt,
            and the id.
    """

    def __init__(self, phrases: Sequence[Sequence[int]]) -> None:
        # Without the last token: nothing is read behind it, its probability comes from its parent.
        beginnings = [tuple(phrase[:end]) for phrase in phrases for end in range(1, len(phrase))]
        places = {beginning: place for place, beginning in enumerate(dict.fromkeys(beginnings))}
        self.ids = [beginning[-1] for beginning in places]
        self.follows = torch.eye(len(places), dtype=torch.bool)
        for beginning, place in places.items():
            if len(beginning) > 1:
                # A parent's beginning is shorter and stands before, so its row is complete.
                self.follows[place] |= self.follows[places[beginning[:-1]]]
        self.phrases = [
            [(places.get(tuple(phrase[:i]), -1), token) for i, token in enumerate(phrase)]
            for phrase in phrases
        ]


class TextModel:
    """A frozen decoder that scores texts and writes.

    Results do not depend on earlier prompts. Another number of threads, and other prompts written
    at the same time, change the last bits. `n_read` counts its tokens without those kept from
    another prompt.
    """

    def __init__(
        self, published: ModelFiles, device: str = "cpu", dtype: torch.dtype = torch.float32
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
        with user_error_context(self.name):
            self._try_out(0.001 if dtype == torch.float32 else 0.1)

    @property
    def fingerprint(self) -> str:
        return self.published.fingerprint()

    @torch.no_grad()
    def phrase_log_probabilities(
        self, prompt: str, phrases: Sequence[str], shared: str = ""
    ) -> list[float]:
        """Return the mean log-probability of each phrase's tokens after the prompt.

            1/n * sum_i log p(t_i | prompt, t_1 ... t_{i-1})

        Args:
            phrases: Continuations, each from its first blank on.
            shared: The common prefix of this prompt and later ones; it is read once.
        """
        ids = self.published.tokenize(prompt)
        whole = [self.published.tokenize(prompt + phrase) for phrase in phrases]
        # A phrase may join the prompt's last token: the prompt ends where all still agree.
        n_prompt = _n_common(ids, *whole)
        read = _Batch(self, [ids[:n_prompt]], shared)
        tree = Tree([each[n_prompt:] for each in whole])
        # Row 0 is the prompt's, row p + 1 that of the tree's token p.
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
        """Return the log-probabilities of the next token after each prompt.

        Args:
            shared: The common prefix of these prompts and later ones; it is read once.
            n_top: The likeliest n are returned,
            always: and those of these texts that are a single token.
        """
        asked = {text: self.published.tokenize(text) for text in always}
        alone = {text: ids[0] for text, ids in asked.items() if len(ids) == 1}
        found = []
        for prompt in prompts:
            read = _Batch(self, [self.published.tokenize(prompt)], shared)
            log_probs = read.logits[0].log_softmax(-1)
            top = log_probs.topk(n_top)
            strings = (self._vocabulary[token] for token in top.indices.tolist())
            told = dict(zip(strings, top.values.tolist(), strict=True))
            found.append(told | {text: float(log_probs[token]) for text, token in alone.items()})
        return found

    @torch.no_grad()
    def write(
        self, prompts: Sequence[str], writing: Writing, shared: str = "", seed: int = 0
    ) -> list[Written]:
        """Return the continuations of N prompts, written all at once.

        The random numbers for a prompt depend on the prompt and the seed alone. `shared` is the
        common prefix of these prompts and later ones; it is read once.
        """
        if not prompts:
            return []
        # A generator a prompt: who is written at the same time changes no draw.
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
                    # In the text, not in tokens: a token may hold the stop and more.
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
        if not ids:
            raise UserError(f"language model '{self.name}': a prompt needs at least one token.")
        known = tuple(self.published.tokenize(shared)) if shared else ()
        # One token at least is left to be read: its logits are wanted.
        n_kept = min(_n_common(known, ids), len(ids) - 1)
        if n_kept == 0:
            return [], 0
        if known not in self._kept:
            n_known = len(known)
            visible = torch.ones(1, n_known, n_known, dtype=torch.bool).tril()
            places = torch.arange(n_known)[None]
            kept, _ = self.read(torch.tensor([known]), [], visible, places, [n_known - 1])
            # The oldest goes: dictionaries keep their order.
            while len(self._kept) >= MOST_KEPT:
                self._kept.pop(next(iter(self._kept)))
            self._kept[known] = kept
        return [(k[:, :, :n_kept], v[:, :, :n_kept]) for k, v in self._kept[known]], n_kept

    def _tree_logits(self, tree: Tree, past: Past) -> Tensor:
        """Return the logits after each token of a tree.  [K, V]"""
        n_past, n_new = past[0][0].shape[2], len(tree.ids)
        visible = torch.cat((torch.ones(n_new, n_past, dtype=torch.bool), tree.follows), dim=1)
        # A token's position is its depth: siblings stand at the same one.
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
            visible: True where a new token sees one of the n+K, itself included.  [N, K, n+K]
            places: The positions of all tokens in their rows.  [N, n+K]
            told: The k of the K tokens whose logits are returned.

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
            # A shared beginning is kept once and seen by all rows.
            cache.update(keys.expand(n_rows, -1, -1, -1), values.expand(n_rows, -1, -1, -1), layer)
        masks = {}
        for kind, reach in self.reach.items():
            # A layer without a reach sees all n_tokens.
            near = places[:, None] > places[:, -n_new:, None] - (reach or n_tokens)
            masks[kind] = score_mask(~(visible & near)).to(self.device)
        found = self._model(
            input_ids=ids.to(self.device),
            position_ids=places[:, -n_new:].to(self.device),
            attention_mask=by_kind(masks),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=torch.tensor(told, device=self.device),
        )
        self.n_read += ids.numel()
        return _past(cache), found.logits.float().cpu()

    @torch.no_grad()
    def _try_out(self, tolerance: float) -> None:
        """Compare phrases read as a tree with each read alone: not every model obeys its masks."""
        n_tokens = len(self._vocabulary)
        tokens = [token % n_tokens for token in (5, 7, 11, 13)]
        past = _Batch(self, [tokens[:2]], "").past
        tree = Tree([tokens[2:] + tokens[:1], [tokens[2], tokens[0], tokens[1]]])
        found = self._tree_logits(tree, past)[-1]
        alone = _Batch(self, [[*tokens[:2], tokens[2], tokens[0]]], "").logits[0]
        apart = float((found - alone).abs().max() / alone.abs().max())
        # Asked this way round, NaN is refused as well.
        if not apart <= tolerance:
            raise UserError(f"phrases read together differ by {apart:.1%} from those read alone")
        self.n_read = 0


class _Batch:
    """Prompts of different lengths, continued at once: the shorter ones begin later.

    `past` has the keys and values of all tokens so far, `logits` [N, V] those of the next token.
    """

    def __init__(self, model: TextModel, prompts: Sequence[Sequence[int]], shared: str) -> None:
        beginnings = [model.beginning(prompt, shared) for prompt in prompts]
        n_kept = min(n for _, n in beginnings)
        self.model = model
        self.past = [(k[:, :, :n_kept], v[:, :, :n_kept]) for k, v in beginnings[0][0] if n_kept]
        new = [list(prompt[n_kept:]) for prompt in prompts]
        longest = max(map(len, new))
        # At the left, so that all prompts end in one column and go on together.
        padding = longest - torch.tensor([len(each) for each in new])[:, None]
        columns = torch.arange(longest)[None]
        kept = torch.ones(len(new), n_kept, dtype=torch.bool)
        self._there = torch.cat((kept, columns >= padding), dim=1)  # [N, n] False: padding
        # Positions do not count padding: a prompt reads as it would alone.
        before = torch.arange(n_kept).expand(len(new), -1)
        self._places = torch.cat((before, n_kept + (columns - padding).clamp(min=0)), dim=1)
        ids = torch.tensor([[0] * (longest - len(each)) + each for each in new])
        self.logits = self._read(ids)

    def read(self, tokens: Sequence[int]) -> None:
        self._there = torch.nn.functional.pad(self._there, (0, 1), value=True)
        self._places = torch.cat((self._places, self._places[:, -1:] + 1), dim=1)
        self.logits = self._read(torch.tensor(tokens)[:, None])

    def _read(self, ids: Tensor) -> Tensor:
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
    """Return a published decoder that scores texts and writes.

    It is `SmolLM2-135M-Instruct` (installed), any decoder on the hub, a folder in the published
    layout, or a GGUF file.
    """
    return local_main_process_first(lambda: TextModel(find_model(name_or_folder), device, dtype))


def supported(published: ModelFiles) -> tuple[PreTrainedConfig, int | None, dict[str, int | None]]:
    """Return settings, positions and reach of a decoder; UserError for another model."""
    settings = published.config()
    model_type = str(settings.get("model_type"))
    if model_type not in DECODERS:
        raise UserError(
            f"language model '{published.name}': model_type '{model_type}' cannot write text. "
            "Choose a decoder (llama, qwen3, gpt2, ...), such as SmolLM2-135M-Instruct"
        )
    config = configuration(settings, published.name)
    return config, positions_of(config, published.name), sliding_window_of(config, published.name)


def _past(cache: DynamicCache) -> Past:
    found = []
    for layer in cache.layers:
        if not isinstance(layer, DynamicLayer) or layer.keys is None or layer.values is None:
            raise UserError("not every layer keeps keys and values")
        found.append((layer.keys, layer.values))
    return found


def _n_common(*lists: Sequence[int]) -> int:
    columns = zip(*lists, strict=False)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))


def _dice(prompt: str, seed: int) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}\n{prompt}".encode()).digest()
    # Seven bytes always fit into PyTorch's seeds, which have 64 bits and a sign.
    return torch.Generator().manual_seed(int.from_bytes(digest[:7]))


def _drawn(logits: Tensor, dice: torch.Generator, temperature: float) -> int:
    if temperature == 0:
        return int(logits.argmax())
    # In float64, as small temperatures stretch logits far apart.
    probabilities = (logits.double() / temperature).softmax(-1)
    return int(torch.multinomial(probabilities, 1, generator=dice))
