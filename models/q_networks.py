"""The agents of DQN and SAC, which learn from replay, with any memory.

The networks of Ni et al. 2023 (arXiv:2307.03864): embeddings → memory → perceptrons. A frozen
memory can replace the trained one: its hidden state, stored with each step, is joined with the
embeddings, so that an update has nothing to unroll.
"""

import math
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from gymnasium.spaces import Space, flatdim
from torch import Tensor, nn
from torch.nn import functional as F

from models.agent import (
    Agent,
    Followed,
    Memory,
    PolicyAndCriticsAgent,
    RecentSteps,
    SequenceBatch,
    Step,
    Stepped,
    Torso,
    ValuesAgent,
    allowed,
    sample_actions,
)
from models.caching import to_float01
from models.encoders import ImageEncoder, build_image_encoder, configured_reader, mlp
from models.heads import SquashedGaussian, checked_actions
from models.helm import LanguageMemory, configured_readout, observed_by_encoder
from models.language.layers import Linear
from models.language.load import SentenceFeatures, load_sentence_encoder
from models.memories import TrainedMemory
from models.observations import (
    AgentInput,
    ObservationBatch,
    ObservationPreprocessor,
    Observations,
    zero_where,
)
from models.settings import MemoryLengthSettings, OffPolicyNetworkSettings
from utils.settings import networks_of

CPU_HAS_BFLOAT16 = (
    torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
)


class InputEmbedder(nn.Module):
    """Last action, last reward and observation side by side, embedded: `width` F in all.

    Linear layers followed by a ReLU for vectors, texts and actions; convolutions for images. Where
    an episode begins the action is a vector of zeros, which leaves the bias. The reward is an input
    as it is, where `reader` reads it. `frozen` maps sentences to vectors and is not trained.
    """

    def __init__(
        self,
        reader: ObservationPreprocessor,
        n_actions: int,
        settings: OffPolicyNetworkSettings,
        frozen: SentenceFeatures | None = None,
    ) -> None:
        super().__init__()
        width, shape = settings.observation_embedding, reader.image_shape
        self.n_actions, self.is_box = n_actions, bool(reader.action_shape)
        self.images: ImageEncoder | None = None
        if shape is not None:
            self.images = build_image_encoder("Memory-RL", shape, width)
        self.vectors = Linear(reader.n_numbers, width) if reader.n_numbers else None
        self.normalizer = reader.normalizer or nn.Identity()
        self._frozen, self.text = frozen, None
        if frozen is not None:
            self.text = Linear(reader.n_texts * frozen.width, width)
        n_embedded = settings.action_embedding
        self.actions = Linear(n_actions, n_embedded) if n_embedded else None
        kinds = [kind for kind in (self.images, self.vectors, self.text) if kind is not None]
        self.width = width * len(kinds) + n_embedded + bool(reader.n_last)

    def step(self, percept: AgentInput) -> Tensor:
        """Return the embeddings of one step of N environments.  [N, F]"""
        shown, images = percept.observations, None
        if self.images is not None:
            images = self.images.of_pixels(to_float01(cast(Tensor, shown.images)))
        actions = self.begun(percept.last_actions, percept.is_first)
        return self._joined(actions, shown.last_step, self._kinds(images, shown))

    def begun(self, last_actions: Tensor, is_first: Tensor) -> Tensor:
        """Return last actions [...] or [..., A]; before an episode those that `forward` expects."""
        if self.is_box:
            return zero_where(is_first, last_actions)
        return last_actions.masked_fill(is_first, self.n_actions)

    def fingerprints(self) -> dict[str, str]:
        return {} if self._frozen is None else self._frozen.fingerprints()

    def forward(self, observations: ObservationBatch, last_actions: Tensor) -> Tensor:
        """Return the embeddings of B' steps.  [B', F]

        `last_actions` [B'] int64 are A, the number of actions, where an episode begins; those of a
        Box, [B', A], are 0.
        """
        return self._joined(last_actions, observations.last_step, self.by_kind(observations))

    def by_kind(self, observations: ObservationBatch) -> dict[str, Tensor]:
        images = None if self.images is None else self.images.learn(observations)
        return self._kinds(images, observations)

    def _kinds(
        self, images: Tensor | None, shown: Observations | ObservationBatch
    ) -> dict[str, Tensor]:
        kinds = {} if images is None else {"images": images}
        if self.vectors is not None:
            kinds["vectors"] = F.relu(self.vectors(self.normalizer(shown.vectors)))
        if self.text is not None and self._frozen is not None:
            sentences = self._frozen(cast(Tensor, shown.text)).flatten(1)
            kinds["text"] = F.relu(self.text(sentences))
        return kinds

    def _joined(
        self, last_actions: Tensor, last_step: Tensor | None, kinds: dict[str, Tensor]
    ) -> Tensor:
        parts = [last_actions.new_zeros(len(last_actions), 0, dtype=torch.float32)]
        if self.actions is not None and self.is_box:
            parts.append(F.relu(self.actions(last_actions)))
        elif self.actions is not None:
            # Action A, before an episode: an input of zeros, so that the bias alone is left.
            nothing = self.actions.weight.new_zeros(1, self.actions.out_features)
            table = torch.cat((self.actions.weight.T, nothing)) + self.actions.bias  # [A+1, E]
            # A row of the table is what the layer gives of a one-hot action, without that product.
            parts.append(F.embedding(last_actions, F.relu(table)))
        if last_step is not None:
            # The reward alone: last actions come as embeddings, or not at all.
            parts.append(last_step[:, -1:])
        return torch.cat([*parts, *kinds.values()], dim=-1)


LAST_LAYER_OF_Q, LAST_LAYER_OF_POLICY = 3e-3, 1e-3
HIDDEN_BIAS = 0.1


def uniform_mlp(n_in: int, hidden: tuple[int, int], n_out: int, last: float) -> nn.Sequential:
    """Return two hidden layers with ReLUs, then a linear one with weights and biases from U(±last).

    Hidden weights are drawn from U(±1/sqrt(outputs)) and their biases are 0.1; the original means
    the number of inputs and takes that of the outputs.
    """
    layers = mlp(n_in, *hidden, n_out)
    for index, width in zip((0, 2), hidden, strict=True):
        weight, bias = layers[index].parameters()
        limit = 1 / math.sqrt(width)
        nn.init.uniform_(weight, -limit, limit)
        nn.init.constant_(bias, HIDDEN_BIAS)
    for parameter in layers[-1].parameters():
        nn.init.uniform_(parameter, -last, last)
    return layers


class RecurrentTorso(Torso):
    """Embeddings read by a memory that is trained along, or by none."""

    def __init__(self, embedder: InputEmbedder, memory: TrainedMemory) -> None:
        super().__init__(embedder)
        self.memory = memory
        self.width, self.n_context = memory.width, memory.n_context
        for module in memory.modules():
            for parameter in module.parameters() if isinstance(module, nn.RNNBase) else ():
                if parameter.ndim == 2:  # weights, as a whole, all gates together
                    nn.init.orthogonal_(parameter)
                else:
                    nn.init.zeros_(parameter)

    def initial_memory(self, n_envs: int) -> Memory:
        return self.memory.initial(n_envs)

    def step(self, percept: AgentInput, memory: Memory, advance: bool = True) -> Stepped:
        embedded = self.embedder.step(percept)
        # Replay keeps no state, which old weights have made. But a memory that is given steps again
        # counts positions, and learns them where it acts.
        stored_state = embedded[:, :0]
        if self.memory.n_context:
            stored_state = self.memory.stored_state(memory, percept.is_first)
        remembered = self.memory.step(embedded, memory, percept.is_first, advance)
        return Stepped(remembered, stored_state, remembered)

    def unroll(self, sequences: SequenceBatch) -> Tensor:
        shape = sequences.is_first.shape
        stored_state = sequences.stored_state[0]
        if not self.memory.n_context:
            stored_state = self.memory.stored_state(
                self.memory.initial(shape[1]), sequences.is_first[0]
            )
        no_starts = torch.zeros(shape, dtype=torch.bool)  # after the first, known to the host
        embedded = self.embedded(sequences)
        # In reduced precision only where it can be: oneDNN has no LSTM in bfloat16 for AVX2.
        is_possible = self.memory.has_bfloat16 and (embedded.is_cuda or CPU_HAS_BFLOAT16)
        plain = torch.autocast(embedded.device.type, enabled=False)
        with nullcontext() if is_possible else plain:
            return self.memory.unroll(embedded.float(), no_starts, stored_state)

    def read_episode(self, episode: AgentInput) -> Followed:
        embedded = self.embedder.step(episode).detach()[:, None].requires_grad_()
        # Detached: the gradient asked for is that of the embedded steps.
        return self.memory.read_episode(embedded), (embedded,)

    @torch.no_grad()
    def refresh(self, past: Observations, running: RecentSteps, memory: Memory) -> None:
        is_first = running.is_first
        flat = past.map(lambda kind: kind.flatten(0, 1))
        percept = AgentInput(
            flat, is_first.flatten(), running.last_actions.flatten(0, 1), torch.empty(0)
        )
        embedded = self.embedder.step(percept).unflatten(0, is_first.shape)
        self.memory.refresh(embedded, is_first, running.ages, memory)

    def looks(self, percept: AgentInput, memory: Memory) -> dict[str, np.ndarray]:
        return self.memory.looks(self.embedder.step(percept), memory, percept.is_first)

    def memory_parameters(self) -> list[nn.Parameter]:
        return list(self.memory.parameters())


class FrozenLMTorso(Torso):
    """A frozen language model's hidden state, kept in replay, beside embeddings of the present."""

    def __init__(self, embedder: InputEmbedder, language: LanguageMemory) -> None:
        super().__init__(embedder)
        self.language, self.readout = language, configured_readout(language)
        self.width = self.readout.width + embedder.width

    def initial_memory(self, n_envs: int) -> Memory:
        return self.language.initial(n_envs)

    def step(self, percept: AgentInput, memory: Memory, advance: bool = True) -> Stepped:
        states, read = self.language.step(percept, memory, advance)
        summary = self.readout(self.language.summary(states))
        features = torch.cat((summary, self.embedder.step(percept)), dim=-1)
        return Stepped(features, self.readout.stored(states), summary, read)

    @property
    def frozen_memory(self) -> LanguageMemory:
        return self.language

    def unroll(self, sequences: SequenceBatch) -> Tensor:
        summary = self.readout.unroll(self.language.summary(sequences.stored_state))
        return torch.cat((summary, self.embedded(sequences)), dim=-1)

    def read_episode(self, episode: AgentInput) -> Followed:
        states, tokens = self.language.read_episode(episode)
        hidden = self.readout.unroll(states[:, None])[:, 0]
        embedded = self.embedder.step(episode).detach()[: len(hidden), None].requires_grad_()
        return torch.cat((hidden, embedded[:, 0]), dim=-1), (*tokens, embedded)

    def fingerprints(self) -> dict[str, str]:
        return self.language.fingerprints() | super().fingerprints()


class QAgent(ValuesAgent):
    """Takes the action of the highest value; DQN trains it and adds the exploration."""

    recordable = True

    def __init__(
        self, reader: ObservationPreprocessor, body: Torso, n_actions: int, head: nn.Module
    ) -> None:
        super().__init__(reader, body, n_actions)
        self.head = head

    @torch.no_grad()
    def act(
        self, percept: AgentInput, memory: Memory, deterministic: bool = False, advance: bool = True
    ) -> Step:
        features, stored_state, remembered, read = self.body.step(percept, memory, advance)
        judged = self.head(features)
        best = allowed(judged, percept.observations.action_masks).max(-1)
        return Step(best.indices, stored_state, None, best.values, None, remembered, judged, read)

    def episode_values(self, episode: AgentInput, actions: Tensor) -> Followed:
        features, inputs = self.body.read_episode(episode)
        values = self.head(features)
        return values.gather(-1, actions[: len(values), None]).squeeze(-1), inputs

    def values(self, sequences: SequenceBatch) -> Tensor:
        return allowed(self.head(self.body.unroll(sequences)), sequences.action_masks)


class TwinQ(nn.Module):
    """Two critics of the same features (Fujimoto et al. 2018, arXiv:1802.09477)."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return both critics' values of every action.  [..., A] each"""
        return self.first(features), self.second(features)


class SacAgent(PolicyAndCriticsAgent):
    """A policy and two critics of discrete actions, for SAC."""

    recordable = True

    def episode_values(self, episode: AgentInput, actions: Tensor) -> Followed:
        features, inputs = (self.critic_body or self.body).read_episode(episode)
        values = torch.minimum(*self.critics(features))
        return values.gather(-1, actions[: len(values), None]).squeeze(-1), inputs

    @torch.no_grad()
    def act(
        self, percept: AgentInput, memory: Memory, deterministic: bool = False, advance: bool = True
    ) -> Step:
        features, stored_state, remembered, read = self.body.step(percept, memory, advance)
        masks = percept.observations.action_masks
        log_probs = allowed(self.policy(features), masks).log_softmax(-1)
        actions = log_probs.argmax(-1) if deterministic else sample_actions(log_probs.exp())
        chosen = log_probs.gather(-1, actions[:, None]).squeeze(-1)
        values = None
        if self.critic_body is None:
            both = torch.minimum(*self.critics(features))
            values = (log_probs.exp() * both).sum(-1)
        return Step(actions, stored_state, chosen, values, log_probs, remembered, read=read)


class ContinuousAgent(PolicyAndCriticsAgent):
    """A policy of continuous actions, and two critics of features and actions.

    With `is_drawn` actions are those of a squashed Gaussian, else the policy's output through tanh.
    """

    def __init__(
        self,
        reader: ObservationPreprocessor,
        body: Torso,
        n_actions: int,
        policy: nn.Module,
        critics: TwinQ,
        critic_body: Torso | None,
        is_drawn: bool,
    ) -> None:
        super().__init__(reader, body, n_actions, policy, critics, critic_body)
        self.draws_actions = is_drawn

    @torch.no_grad()
    def act(
        self, percept: AgentInput, memory: Memory, deterministic: bool = False, advance: bool = True
    ) -> Step:
        features, stored_state, remembered, read = self.body.step(percept, memory, advance)
        if self.draws_actions:
            actions = self._gaussian(features).choose(deterministic)
        else:
            actions = checked_actions(self.policy(features).tanh())
        values = None
        if self.critic_body is None:
            values = torch.minimum(*self.judge(features, actions))
        return Step(actions, stored_state, values=values, remembered=remembered, read=read)

    def draw(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions [..., A] with gradients, and log-probabilities [...], 0 if not drawn."""
        if not self.draws_actions:
            actions = self.policy(features).tanh()
            return actions, torch.zeros_like(actions[..., 0])
        gaussian = self._gaussian(features)
        actions = gaussian.rsample()
        return actions, gaussian.log_prob(actions)

    def judge(self, features: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return both critics' values of actions [..., A].  [...] each"""
        first, second = self.critics(torch.cat((features, actions), dim=-1))
        return first.squeeze(-1), second.squeeze(-1)

    def episode_values(self, episode: AgentInput, actions: Tensor) -> Followed:
        features, inputs = (self.critic_body or self.body).read_episode(episode)
        return torch.minimum(*self.judge(features, actions[: len(features)])), inputs

    def _gaussian(self, features: Tensor) -> SquashedGaussian:
        return SquashedGaussian(*self.policy(features).chunk(2, dim=-1))


def build_from_replay(
    config: Any, observation_space: Space, action_space: Space, kind: type[Agent]
) -> QAgent | SacAgent | ContinuousAgent:
    """Return an agent for DQN, SAC or TD3 with the memory of another one.

    `kind` is the other's class, with a `memory_class` or a frozen memory. `config` has its
    settings, `OffPolicyNetworkSettings` and, where there is text, `SentenceSettings`.
    """
    reader = configured_reader(config, observation_space, action_space)
    n_actions = flatdim(action_space)
    embedded, language, sentences = reader, None, None
    if kind.has_frozen_memory:
        language = kind.build_frozen_memory(config, reader)
        embedded = observed_by_encoder(config, reader)
    if embedded.n_texts:
        encoder = load_sentence_encoder(config.sentence_encoder)
        sentences = SentenceFeatures(reader.sentences, encoder)

    of_memory = config.part(MemoryLengthSettings)
    n_steps = config.context_length
    if n_steps > 0:  # it acts on distances that it has learned
        of_memory = of_memory.replace(mem_len=min(of_memory.mem_len, n_steps))

    def body() -> Torso:
        embedder = InputEmbedder(embedded, n_actions, config, sentences)
        if language is not None:
            return FrozenLMTorso(embedder, language)
        return RecurrentTorso(embedder, kind.memory_class(embedder.width, of_memory))

    acting = body()
    hidden = (config.head_width, config.head_width)
    head = partial(uniform_mlp, acting.width, hidden, n_actions)
    networks = networks_of(config)
    if networks == "DQN":
        return QAgent(reader, acting, n_actions, head(LAST_LAYER_OF_Q))
    critic_body = None if config.shared_encoder else body()
    if embedded.action_shape:
        is_drawn = networks == "SAC"
        n_outputs = n_actions * (1 + is_drawn)
        policy = uniform_mlp(acting.width, hidden, n_outputs, LAST_LAYER_OF_POLICY)
        judges = (
            uniform_mlp(acting.width + n_actions, hidden, 1, LAST_LAYER_OF_Q) for _ in range(2)
        )
        both = TwinQ(*judges)
        return ContinuousAgent(reader, acting, n_actions, policy, both, critic_body, is_drawn)
    critics = TwinQ(head(LAST_LAYER_OF_Q), head(LAST_LAYER_OF_Q))
    return SacAgent(reader, acting, n_actions, head(LAST_LAYER_OF_POLICY), critics, critic_body)
