"""The baselines HELM is compared with: PPO without memory, with an LSTM, and chance."""

from typing import Any, ClassVar, cast

import torch
from gymnasium.spaces import Discrete, Space
from torch import Tensor, nn
from torch.nn import functional as F

from models.agent import ActorCriticAgent, Agent, Batch, Evaluation, Memory, Step, TensorMemory
from models.encoders import build_encoder
from models.heads import ActorCritic
from models.images import Features
from models.observations import ObservationReader, Percept


class CnnPpo(ActorCriticAgent):
    """CNN-PPO: sees the current observation, remembers nothing."""

    def __init__(
        self, config: Any, observation_space: Space, action_space: Discrete, n_features: int = 1024
    ) -> None:
        super().__init__()
        self.reader = ObservationReader(observation_space)
        self.encoder = build_encoder(self.reader, n_features, cache_mb=config.observation_cache_mb)
        self.heads = ActorCritic(n_features, int(action_space.n))

    def initial_memory(self, n_envs: int) -> TensorMemory:
        """Return a memory of width 0."""
        return TensorMemory(torch.zeros(n_envs, 0, device=self.device))

    @torch.no_grad()
    def act(self, percept: Percept, memory: Memory, deterministic: bool = False) -> Step:
        """Choose actions from what is seen alone."""
        features = self.encoder(percept.observations)
        return self.heads.step(features, features[:, :0], deterministic)

    @torch.no_grad()
    def peek_values(self, percept: Percept, memory: Memory) -> Tensor:
        """Return the values [N] of what is seen."""
        return self.heads.values(self.encoder(percept.observations))

    def evaluate(self, batch: Batch) -> Evaluation:
        """Run encoder and heads on a batch."""
        return self.heads.evaluate(self.encoder.learn(batch.observations), batch.actions)


class ImpalaPpo(ActorCriticAgent):
    """Impala-PPO: a smaller encoder followed by an LSTM that is trained along.

    The memory and each step's context are (h, c), [N, 2, n_features]; the update runs every
    sequence of a rollout from the state stored at its first step.
    """

    sequential: ClassVar[bool] = True

    def __init__(
        self, config: Any, observation_space: Space, action_space: Discrete, n_features: int = 256
    ) -> None:
        super().__init__()
        self.reader = ObservationReader(observation_space)
        self.encoder = build_encoder(self.reader, n_features, (16, 32), config.observation_cache_mb)
        self.lstm = nn.LSTM(n_features, n_features)
        self.heads = ActorCritic(n_features, int(action_space.n))

    def initial_memory(self, n_envs: int) -> TensorMemory:
        """Return zero states."""
        return TensorMemory(torch.zeros(n_envs, 2, self.lstm.hidden_size, device=self.device))

    @torch.no_grad()
    def act(self, percept: Percept, memory: Memory, deterministic: bool = False) -> Step:
        """Advance the LSTM by one step and choose actions from its output."""
        memory = cast(TensorMemory, memory)
        before = _without_ended(memory.state, percept.starts)
        after = self._advance(percept, before)
        memory.state.copy_(after)
        return self.heads.step(after[:, 0], before, deterministic)

    @torch.no_grad()
    def peek_values(self, percept: Percept, memory: Memory) -> Tensor:
        """Return the values [N] of what is seen, the memory staying as it is."""
        state = _without_ended(cast(TensorMemory, memory).state, percept.starts)
        return self.heads.values(self._advance(percept, state)[:, 0])

    def evaluate(self, batch: Batch) -> Evaluation:
        """Run the LSTM over every sequence of the batch from its stored state."""
        if batch.lengths is None:
            raise ValueError("Impala-PPO learns from whole sequences, the batch has single steps")
        features, row_of = self.encoder.learn(batch.observations)  # [U, F]
        device, n_sequences = features.device, len(batch.lengths)
        firsts = batch.lengths.cumsum(0) - batch.lengths
        sequence_of = torch.arange(n_sequences).repeat_interleave(batch.lengths)
        step_of = torch.arange(len(sequence_of)) - firsts[sequence_of]
        place_of = (step_of * n_sequences + sequence_of).to(device)  # [B], among T*S
        # Whatever stands after a sequence's end is read by the LSTM and by nothing else: quicker
        # than packed sequences, whose steps differ in size.
        shown = place_of.new_zeros(int(batch.lengths.max()), n_sequences)
        own_rows = torch.arange(len(place_of), device=device)
        shown.view(-1)[place_of] = own_rows if row_of is None else row_of
        hidden, cell = batch.context[firsts.to(device)].transpose(0, 1).contiguous().split(1)
        output, _ = self.lstm(F.embedding(shown, features), (hidden, cell))  # [T, S, F]
        rows = Features(F.embedding(place_of, output.flatten(0, 1)))
        return self.heads.evaluate(rows, batch.actions)

    def _advance(self, percept: Percept, state: Tensor) -> Tensor:
        """Return the state [N, 2, F] after one more observation."""
        features = self.encoder(percept.observations)
        after = torch.lstm_cell(features, state.unbind(1), *self.lstm.all_weights[0])
        return torch.stack(after, dim=1)


class RandomAgent(Agent):
    """Every action with the same probability: the chance level of `eval.py --random`."""

    def __init__(self, observation_space: Space, action_space: Space) -> None:
        super().__init__()
        self.reader = ObservationReader(observation_space)
        n_actions = int(cast(Discrete, action_space).n)
        self.logits = nn.Parameter(torch.zeros(n_actions), requires_grad=False)

    def initial_memory(self, n_envs: int) -> TensorMemory:
        """Return a memory of width 0."""
        return TensorMemory(torch.zeros(n_envs, 0, device=self.device))

    def act(self, percept: Percept, memory: Memory, deterministic: bool = False) -> Step:
        """Draw uniform actions; there is no most probable one to prefer."""
        log_probs = self.logits.log_softmax(-1)
        actions = torch.multinomial(log_probs.exp(), percept.n_envs, replacement=True)
        zeros = torch.zeros(percept.n_envs, device=self.device)
        return Step(
            actions,
            context=zeros[:, None][:, :0],
            log_probs=log_probs[actions],
            values=zeros,
            all_log_probs=log_probs.expand(percept.n_envs, -1),
        )


def _without_ended(state: Tensor, starts: Tensor) -> Tensor:
    """Return the state [N, 2, F] with the rows of starting episodes at zero."""
    return state.masked_fill(starts[:, None, None], 0.0)
