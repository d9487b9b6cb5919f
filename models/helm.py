"""HELM and its successors: agents whose memory is a frozen language model.

    HELM    history compression via language models (Paischer et al. 2022, arXiv:2205.12258)
    HELMv2  images reach the language model by way of CLIP (Paischer et al., OpenReview KmxQ3v7nMmd)
    SHELM   a memory one can read: each image becomes words (Paischer et al. 2023, arXiv:2306.09312)

Trained: the query encoder, the two heads, and `ReadOut` (ours). Frozen: the map to tokens, the
language model.

1. Observations become tokens: by a Hopfield retrieval among the language model's embeddings (HELM),
   by CLIP's features, shifted and scaled like those embeddings (HELMv2), or by the K words with
   texts nearest to the image, the best one first (SHELM). Texts may be read as well, or alone, as
   the language model's own tokens.
2. The language model reads a step's tokens; its last hidden state is the summary of the episode.
3. Actor and critic see that summary beside the query encoder's view of the present.
4. The summary needs no gradient, so the rollout stores it and the update never runs the model.
"""

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from gymnasium.spaces import Space
from torch import Tensor, nn
from torch.nn import functional as F

from models.agent import (
    ActorCriticAgent,
    Batch,
    Evaluation,
    Followed,
    Memory,
    Recalled,
    Step,
    TokensRead,
)
from models.caching import ObservationCache
from models.clip import check_encoder, configured_encoder
from models.encoders import build_encoder, configured_reader
from models.heads import build_heads
from models.language import LanguageModel
from models.language.kv_cache import KVCache
from models.language.layers import Linear
from models.language.load import (
    FLOATS,
    describe_language_model,
    load_language_model,
)
from models.observation_to_language import (
    ClipProjection,
    ColourHopfield,
    Frozen,
    FrozenHopfield,
    ImageToLanguage,
    NothingToLanguage,
    TokenRetrieval,
    VectorHopfield,
    random_projection,
)
from models.observations import (
    AgentInput,
    ObservationBatch,
    ObservationPreprocessor,
    Observations,
    SentenceTable,
    SentenceVectors,
)
from models.settings import (
    HelmSettings,
    HelmV2Settings,
    LanguageMemorySettings,
    ShelmSettings,
    TextSettings,
)
from models.word_embeddings import configured_embeddings, configured_file, fitting_embeddings
from utils.errors import UserError, raise_all


class LanguageMemoryAgent(ActorCriticAgent):
    """The HELM family: a language model as memory, beside a trained encoder."""

    has_frozen_memory = True

    def __init__(
        self, config: LanguageMemorySettings, observation_space: Space, action_space: Space
    ) -> None:
        super().__init__()
        self.reader = configured_reader(config, observation_space, action_space)
        language = self.build_frozen_memory(config, self.reader)  # it draws before the encoder
        beside = observed_by_encoder(config, self.reader)
        self.query_encoder = build_encoder(beside, config, language.width)
        self.readout = configured_readout(language)
        n_features = self.readout.width + self.query_encoder.n_features
        self.heads = build_heads(n_features, action_space, config)
        self.language = language

    @classmethod
    def build_frozen_memory(cls, config: Any, reader: ObservationPreprocessor) -> "LanguageMemory":
        name, dtype = config.language_model, FLOATS[config.frozen_dtype]
        language_model = load_language_model(
            name, config.mem_len, config.n_layer, config.device, dtype
        )
        text = configured_text(config, reader, language_model)
        to_language = cls.to_language(config, reader, language_model)
        whitening = RunningWhitening(language_model.width) if config.whiten_memory else None
        cache_mb = config.observation_cache_mb
        return LanguageMemory(
            to_language, language_model, cache_mb, *text, whitening, config.readout_steps
        )

    @property
    def frozen_memory(self) -> "LanguageMemory":
        return self.language

    @staticmethod
    def to_language(
        config: Any, reader: ObservationPreprocessor, language_model: LanguageModel
    ) -> ImageToLanguage:
        """Return the map to tokens; UserError if the environment shows nothing for it."""
        raise NotImplementedError

    def initial_memory(self, n_envs: int) -> Memory:
        return self.language.initial(n_envs)

    def act(
        self, percept: AgentInput, memory: Memory, deterministic: bool = False, advance: bool = True
    ) -> Step:
        stored_state, read = self.recall(percept, memory, advance)
        return self.choose(stored_state, percept.observations, deterministic)._replace(read=read)

    @torch.no_grad()
    def recall(self, percept: AgentInput, memory: Memory, advance: bool = True) -> Recalled:
        states, read = self.language.step(percept, memory, advance)
        return self.language.summary(states), read

    @torch.no_grad()
    def choose(
        self, stored_state: Tensor, observations: Observations, deterministic: bool = False
    ) -> Step:
        hidden = self.readout(stored_state)
        features = torch.cat((hidden, self.query_encoder(observations)), dim=-1)
        step = self.heads.step(features, stored_state, deterministic, observations.action_masks)
        return step._replace(remembered=hidden)

    def episode_values(self, episode: AgentInput, actions: Tensor) -> Followed:
        states, tokens = self.language.read_episode(episode)
        hidden = self.readout.unroll(states[:, None])[:, 0]
        queries = self.query_encoder(episode.observations)[: len(hidden), None].requires_grad_()
        return self.heads.values(torch.cat((hidden, queries[:, 0]), dim=-1)), (*tokens, queries)

    def evaluate(self, batch: Batch) -> Evaluation:
        queries = self.query_encoder.learn(batch.observations)
        features = torch.cat((self.readout(batch.stored_state), queries), dim=-1)
        return self.heads.evaluate(features, batch.actions, batch.action_masks)

    def curiosity_features(self, observations: ObservationBatch) -> dict[str, Tensor] | None:
        return self.query_encoder.by_kind(observations)

    def fingerprints(self) -> dict[str, str]:
        return self.language.fingerprints() | self.query_encoder.fingerprints()

    @classmethod
    def check(cls, config: Any) -> None:
        facts = describe_language_model(config.language_model)
        if config.n_layer is not None and config.n_layer > facts.n_layer:
            raise UserError(
                f"n_layer: {config.n_layer} is more than the {facts.n_layer} layers of "
                f"{config.language_model}. Choose 1 to {facts.n_layer}, or null for all"
            )


class Helm(LanguageMemoryAgent):
    """HELM: a frozen Hopfield retrieval, of images or else of vectors."""

    recordable = True
    reads = (HelmSettings,)

    @staticmethod
    def to_language(
        config: HelmSettings, reader: ObservationPreprocessor, language_model: LanguageModel
    ) -> ImageToLanguage:
        shape, n_read = reader.image_shape, reader.n_numbers
        kind: Callable[..., FrozenHopfield] = partial(
            VectorHopfield, reader.normalizer or nn.Identity()
        )
        if config.retrieval_channels == "each":
            if shape is None or shape[0] == 1:
                raise UserError(
                    "retrieval_channels: each tells colours apart, and the environment shows none. "
                    "Choose retrieval_channels=mean"
                )
            kind, n_read = ColourHopfield, math.prod(shape)
        elif shape is not None:
            kind, n_read = FrozenHopfield, math.prod(shape[1:])
        if n_read:
            projection = random_projection(language_model.width, n_read)
            return kind(projection, language_model.embeddings, config.beta)
        if config.text_reader == "observation":
            raise UserError(
                "text_reader: the environment shows text alone, and observation leaves HELM's "
                "memory nothing to read. Choose memory or both"
            )
        return NothingToLanguage(language_model.width)


class HelmV2(LanguageMemoryAgent):
    """HELMv2: the distribution of CLIP's features is matched to that of the embeddings."""

    recordable = True
    reads = (HelmV2Settings,)

    @staticmethod
    def to_language(
        config: HelmV2Settings, reader: ObservationPreprocessor, language_model: LanguageModel
    ) -> ImageToLanguage:
        _check_images("HELMv2", reader)
        return ClipProjection(configured_encoder(config), language_model.embeddings)

    @classmethod
    def check(cls, config: HelmV2Settings) -> None:
        raise_all(lambda: super(HelmV2, cls).check(config), lambda: check_encoder(config))


class Shelm(LanguageMemoryAgent):
    """SHELM: an image becomes the K words of the shared vocabulary that describe it best."""

    recordable = True
    reads = (ShelmSettings,)

    @staticmethod
    def to_language(
        config: ShelmSettings, reader: ObservationPreprocessor, language_model: LanguageModel
    ) -> ImageToLanguage:
        _check_images("SHELM", reader)
        encoder = configured_encoder(config)
        found = fitting_embeddings(config, encoder, language_model)
        ids = torch.from_numpy(found.ids).to(config.device)
        text_features, tokens = torch.from_numpy(found.embeddings), language_model.embed(ids)
        return TokenRetrieval(encoder, text_features, tokens, found.tokens.tolist(), config.topk)

    @classmethod
    def check(cls, config: ShelmSettings) -> None:
        raise_all(
            lambda: super(Shelm, cls).check(config),
            lambda: _check_memory(config),
            lambda: _check_retrieval(config),
        )


def _check_memory(config: ShelmSettings) -> None:
    if config.mem_len < config.topk:
        raise UserError(
            f"mem_len: {config.mem_len} is below the {config.topk} tokens of a step (topk). Choose "
            f"{config.topk} or more"
        )
    n_positions = describe_language_model(config.language_model).n_positions
    if n_positions is not None and config.topk > n_positions:
        raise UserError(
            f"topk: {config.topk} is more than the {n_positions} positions of "
            f"{config.language_model}, which a step's tokens share. Choose 1 to {n_positions}"
        )


def _check_retrieval(config: ShelmSettings) -> None:
    check_encoder(config)
    n_words = len(configured_embeddings(config).tokens)
    if config.topk > n_words:
        raise UserError(
            f"topk: {config.topk} is more than the {n_words} words in {configured_file(config)}. "
            "Choose fewer"
        )


def _check_images(model: str, reader: ObservationPreprocessor) -> None:
    shape = reader.image_shape
    if shape is None or shape[0] not in (1, 3):
        shown = "none" if shape is None else f"{shape[0]} channels"
        raise UserError(
            f"model: {model} reads images in colour or grey, and the environment shows {shown}. "
            "Choose model=CNN, LSTM, GPT or HELM"
        )


class LanguageMemory(nn.Module):
    """A frozen language model that reads an agent's observations.

    `text` maps the `n_texts` sentences of an observation to tokens, the first of a step; None reads
    no text. The cache keeps results of `to_language`. UserError if a step has more tokens
    (`n_tokens`) than the language model can see.
    """

    def __init__(
        self,
        to_language: ImageToLanguage,
        language_model: LanguageModel,
        observation_cache_mb: float,
        text: "SentenceTokens | None" = None,
        n_texts: int = 0,
        whitening: "RunningWhitening | None" = None,
        readout_steps: int = 0,
    ) -> None:
        super().__init__()
        self.whitening = whitening
        self.text, self.n_tokens = text, to_language.n_tokens
        if text is not None:
            self.n_tokens += n_texts * text.n_tokens
        positions = language_model.n_positions or language_model.mem_len
        most = min(language_model.mem_len, positions)
        seen = f"{most} can be seen (mem_len, or the positions of {language_model.name})"
        if text is not None and self.n_tokens > most:
            raise UserError(
                f"text_tokens: with the texts a step has {self.n_tokens} tokens, and {seen}. "
                "Choose fewer"
            )
        self.n_read = readout_steps * self.n_tokens  # tokens
        if self.n_read > most:
            raise UserError(
                f"readout_steps: {readout_steps} steps have {self.n_read} tokens, and {seen}. "
                f"Choose 0 to {most // self.n_tokens}"
            )
        self.to_language = to_language.requires_grad_(False)
        self._is_pure = False  # until its first results came out twice
        self._language_model = Frozen(language_model)
        self.width = language_model.width
        self.cache = ObservationCache(
            self._encode,
            observation_cache_mb,
            to_language.block_size,
            to_language.larger_blocks,
        )

    def __deepcopy__(self, copied: dict[int, Any]) -> "LanguageMemory":
        return self

    @property
    def language_model(self) -> LanguageModel:
        return self._language_model.module

    def initial(self, n_envs: int) -> Memory:
        return self.language_model.initial_memory(n_envs, self.n_tokens)

    @torch.no_grad()
    def step(
        self, percept: AgentInput, memory: Memory, advance: bool = True
    ) -> tuple[Tensor, TokensRead]:
        """Return the hidden state and what a `ReadOut` reads [N, D + ...]; and the tokens.

        While its owner trains, running statistics of the observations are updated. Without
        `advance` the memory and they stay as they are.
        """
        encoded = self._encoded(percept)
        if self.training and advance:
            # Before it is read: of the very first step there would be no statistics.
            self.to_language.observe(encoded)
        # An agent reads once a step: what page and analyses show is this result.
        read = self._tokens_read(encoded, percept.observations)
        kept = cast(KVCache, memory)
        hidden = self.language_model.step(read.tokens, kept, percept.is_first, advance=advance)
        if self.training and advance and self.whitening is not None:
            self.whitening.update(hidden)
        if not self.n_read:
            return hidden, read
        ages, end = kept.ages, kept.position
        if not advance:  # the new tokens are in their slots, but not counted yet
            ages = kept.current_ages(percept.is_first) + self.n_tokens
            end += self.n_tokens
        pairs = kept.latest(self.n_read, ages, end).flatten(1)
        return torch.cat((hidden, pairs), dim=-1), read

    def summary(self, states: Tensor) -> Tensor:
        if self.whitening is None:
            return states
        hidden = self.whitening(states[..., : self.width])
        return torch.cat((hidden, states[..., self.width :]), dim=-1)

    @torch.no_grad()
    def read(self, percept: AgentInput) -> TokensRead:
        """Return the tokens of recorded steps as they were read, else as they are read now."""
        if percept.tokens is not None:
            return TokensRead(percept.tokens)
        return self._tokens_read(self._encoded(percept), percept.observations)

    def read_episode(self, episode: AgentInput) -> Followed:
        """Return summaries [S, ...] and tokens [S, 1, K, D] of an episode's steps in sight."""
        n_steps = self.language_model.n_past // self.n_tokens
        tokens = self.read(episode).tokens[:n_steps, None].requires_grad_()
        read = self.language_model.read_episode(tokens.flatten(0, 2))  # [S * K, D + 2*H*d]
        hidden, pairs = read.unflatten(0, (-1, self.n_tokens)).tensor_split((self.width,), dim=-1)
        return self.summary(torch.cat((hidden[:, -1], pairs.flatten(1)), dim=-1)), (tokens,)

    def explain(self, read: TokensRead) -> dict[str, np.ndarray]:
        """Return the words that were read, their similarities and entropy, as far as known."""
        numbers = {"similarities": read.similarities, "entropy": read.entropy}
        told = {name: each.cpu().numpy() for name, each in numbers.items() if each is not None}
        if read.words is not None:
            words = self.to_language.words or self.language_model.vocabulary
            told["words"] = np.array([[words[n] for n in row] for row in read.words.tolist()])
        return told

    @torch.no_grad()
    def inspect(
        self, percept: AgentInput, memory: Memory, read: TokensRead
    ) -> dict[str, np.ndarray]:
        """Return facts about a step's tokens, and their attention to past steps.  [N, L, H, S]"""
        kept = cast(KVCache, memory)
        weights = self.language_model.attention(read.tokens, kept, percept.is_first)
        seen = self.to_language.seen(percept.observations)
        return self.explain(self.to_language.looked_into(seen, read)) | {
            "tokens": read.tokens.cpu().numpy(),
            "attention": attention_by_step(weights).half().cpu().numpy(),
        }

    def metrics(self) -> dict[str, float]:
        """Return the hit rate of the observation cache in this process; it only saves time."""
        return {"time/cache_hit_rate": self.cache.hit_rate}

    def fingerprints(self) -> dict[str, str]:
        language_model = {"language_model": self.language_model.fingerprint}
        return language_model | self.to_language.fingerprints()

    def _encoded(self, percept: AgentInput) -> Tensor:
        seen = self.to_language.seen(percept.observations)
        if seen.is_cuda and self.to_language.is_quick:
            return self._encode(seen)
        return self.cache(seen)

    def _encode(self, seen: Tensor) -> Tensor:
        images = self.to_language.prepared(seen)
        encoded = self.to_language(images)
        # A draw would be kept with its image until that leaves the cache, and a resumed run, whose
        # cache is empty, would draw another one.
        if not self._is_pure and not encoded.allclose(self.to_language(images), equal_nan=True):
            raise UserError(
                f"model: {type(self.to_language).__qualname__}.forward gives two results for one "
                "image, and results are kept by image. Draw in `read`, which runs at every step"
            )
        self._is_pure = True
        return encoded

    def _tokens_read(self, encoded: Tensor, observations: Observations) -> TokensRead:
        read = self.to_language.read(encoded)
        if self.text is None:
            return read
        sentences = self.text(cast(Tensor, observations.text))  # [N, n_texts, text_tokens, D]
        return read._replace(tokens=torch.cat((sentences.flatten(1, 2), read.tokens), dim=1))


class NoReadOut(nn.Module):
    """The hidden state alone, as published."""

    def __init__(self, language: LanguageMemory) -> None:
        super().__init__()
        self.width = self.n_hidden = language.width

    def forward(self, states: Tensor) -> Tensor:
        return states[..., : self.n_hidden]

    def unroll(self, states: Tensor) -> Tensor:
        return self(states)

    def stored(self, states: Tensor) -> Tensor:
        """Return the part of states [B, ...] that replay keeps for `unroll`."""
        return states


class ReadOut(NoReadOut):
    """Attention of a trained query to the keys and values of the frozen first layer.

        q_t = W (h_t, k_t, v_t) + b      r_t = sum over i of softmax_i(q_t . k_i / sqrt(d)) v_i

    of each head, i being the last n tokens of the episode, t among them; h is the language model's
    hidden state. Trained are W and b alone.
    """

    def __init__(self, language: LanguageMemory) -> None:
        super().__init__(language)
        self.n_read, self.n_tokens = language.n_read, language.n_tokens
        self.n_head, width = language.language_model.heads
        self.n_keys = self.n_head * width
        self.width = self.n_hidden + self.n_keys
        self.query = Linear(self.n_hidden + 2 * self.n_keys, self.n_keys)

    def forward(self, states: Tensor) -> Tensor:
        """Map hidden states, each with its last n keys and values, to (h, r).  [B, ...]"""
        hidden, pairs = self._split(states)  # [B, D] and [B, n, 2*H*d]
        had = pairs[..., : self.n_keys // self.n_head].any(-1)[:, None]  # no key is zeros alone
        asked = torch.cat((hidden, pairs[:, -1]), dim=-1)[:, None]
        return torch.cat((hidden, self._attend(asked, pairs, had)[:, 0]), dim=-1)

    def unroll(self, states: Tensor) -> Tensor:
        """The same of whole episodes [T, B, ...], each state with its K keys and values alone."""
        hidden, pairs = self._split(states.transpose(0, 1))  # [B, T, D] and [B, T, K, 2*H*d]
        asked = torch.cat((hidden, pairs[:, :, -1]), dim=-1)
        tokens = torch.arange(pairs.shape[1] * self.n_tokens, device=states.device)
        last = tokens[self.n_tokens - 1 :: self.n_tokens, None]
        visible = (tokens <= last) & (tokens > last - self.n_read)  # [T, T*K]
        found = self._attend(asked, pairs.flatten(1, 2), visible)
        return torch.cat((hidden, found), dim=-1).transpose(0, 1)

    def stored(self, states: Tensor) -> Tensor:
        own = states[:, -2 * self.n_tokens * self.n_keys :]
        return torch.cat((states[:, : self.n_hidden], own), dim=-1)

    def _split(self, states: Tensor) -> tuple[Tensor, Tensor]:
        hidden, pairs = states.tensor_split((self.n_hidden,), dim=-1)
        return hidden, pairs.unflatten(-1, (-1, 2 * self.n_keys))

    def _attend(self, asked: Tensor, pairs: Tensor, visible: Tensor) -> Tensor:
        queries, keys, values = (
            each.unflatten(-1, (self.n_head, -1)).transpose(1, 2)
            for each in (self.query(asked), *pairs.chunk(2, dim=-1))
        )
        visible = visible[..., None, :, :]
        found = F.scaled_dot_product_attention(queries, keys, values, attn_mask=visible)
        return found.transpose(1, 2).flatten(2)


def configured_readout(language: LanguageMemory) -> NoReadOut:
    return ReadOut(language) if language.n_read else NoReadOut(language)


FLOOR = 0.01  # of the mean variance, added to that of every direction


class RunningWhitening(nn.Module):
    """Whitens features by mean and covariance C of all rows so far: (x - mean) (C + e I)^(-1/2).

    e is 0.01 trace(C) / D. The root is symmetric, so that directions stay while C is learned; it is
    computed anew where the number of rows has doubled.
    """

    mean: Tensor
    scatter: Tensor
    count: Tensor
    centre: Tensor
    matrix: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        # In double precision, since a run adds up millions of rows.
        self.register_buffer("mean", torch.zeros(width, dtype=torch.float64))
        self.register_buffer("scatter", torch.zeros(width, width, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("centre", torch.zeros(width))
        self.register_buffer("matrix", torch.eye(width))

    def update(self, features: Tensor) -> None:
        rows, before = features.double(), int(self.count)
        total = before + len(rows)
        around = rows - self.mean
        self.mean += around.sum(0) / total
        self.scatter += around.T @ (rows - self.mean)  # about the old mean, and about the new one
        self.count.fill_(total)
        if total.bit_length() > before.bit_length() and total >= self.mean.numel():
            covariance = self.scatter / total
            floor = FLOOR * covariance.trace() / len(covariance)
            variances, directions = torch.linalg.eigh(covariance)
            scaled = directions * (variances.clamp(min=0) + floor).rsqrt()
            self.matrix.copy_(scaled @ directions.T)
            self.centre.copy_(self.mean)

    def forward(self, features: Tensor) -> Tensor:
        return (features - self.centre) @ self.matrix


class SentenceTokens(SentenceVectors):
    """Sentences as a language model's own tokens, brought to one length K.

        tokens_j = mean of E[v_i] over i from floor(j n / K) to ceil((j + 1) n / K) - 1

    v are the n tokens of the sentence, E their embeddings: adaptive average pooling. One token is
    the mean of all, a mixture of embeddings as in HELM's retrieval; n tokens are the sentence's
    own. A sentence without tokens is zeros.
    """

    def __init__(
        self, sentences: SentenceTable, language_model: LanguageModel, n_tokens: int
    ) -> None:
        super().__init__(sentences, self._tokens_of)
        self.language_model, self.n_tokens = language_model, n_tokens

    def _tokens_of(self, text: str) -> Tensor:
        tokens = self.language_model.read_text(text)  # [n, D]
        if not len(tokens):
            return tokens.new_zeros(self.n_tokens, tokens.shape[1])
        return F.adaptive_avg_pool1d(tokens.T[None], self.n_tokens)[0].T


def configured_text(
    config: TextSettings, reader: ObservationPreprocessor, language_model: LanguageModel
) -> tuple[SentenceTokens | None, int]:
    """Return a memory's text reader, if any, and the number of texts; UserError if it is 0."""
    if config.text_reader == "observation":
        return None, 0
    if not reader.n_texts:
        raise UserError(
            f"text_reader: {config.text_reader} has the language model read texts, and the "
            "environment shows none. Choose text_reader=observation"
        )
    language_model.read_text("")  # without a tokenizer it fails here
    return SentenceTokens(reader.sentences, language_model, config.text_tokens), reader.n_texts


def observed_by_encoder(
    config: TextSettings, reader: ObservationPreprocessor
) -> ObservationPreprocessor:
    if config.text_reader != "memory":
        return reader
    beside = copy.copy(reader)  # it still reads texts for the memory
    beside.n_texts = 0
    return beside


def attention_by_step(attention: Tensor) -> Tensor:
    """Return attention between tokens [L, N, H, K, M+K] as that to steps [N, L, H, S]."""
    # The oldest step is the first. The K tokens of the present step count alike.
    n_new = attention.shape[3]
    looked_at = attention.mean(3)  # [L, N, H, M+K]
    # The oldest step may have lost a part of its tokens already.
    whole = F.pad(looked_at, (-looked_at.shape[-1] % n_new, 0))
    return whole.unflatten(-1, (-1, n_new)).sum(-1).transpose(0, 1)
