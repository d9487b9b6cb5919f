"""The trained LSTM (Hochreiter & Schmidhuber 1997) and GRU (Cho et al. 2014, arXiv:1406.1078)."""

from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from models.agent import Memory, TensorMemory
from models.memories.base import TrainedMemory
from models.settings import NetworkSettings


class Recurrent(TrainedMemory):
    """One or more layers of a recurrent network of PyTorch, with S tensors of state.

    State and stored state are those of all layers side by side, [N, S, L*D]. A state that earlier
    weights have left is continued as it is.
    """

    n_states: ClassVar[int]

    def __init__(self, n_features: int, settings: NetworkSettings) -> None:
        super().__init__(n_features, settings)
        self.width, self.n_layers = settings.memory_width, settings.memory_layers

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        # The weights of a copy, such as a target network's, lie apart; cuDNN would gather them at
        # every call.
        self.network.flatten_parameters()

    @property
    @abstractmethod
    def network(self) -> nn.RNNBase: ...

    @abstractmethod
    def cell(self, x: Tensor, before: Sequence[Tensor], weights: list[Tensor]) -> Sequence[Tensor]:
        """Return a layer's states after one step, [N, D] each, the output first."""

    @abstractmethod
    def sequence(self, x: Tensor, before: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        """Return the output [T, B, D] and all layers' states after it, [L, B, D] each."""

    def initial(self, n_envs: int) -> TensorMemory:
        shape = n_envs, self.n_states, self.n_layers * self.width
        return TensorMemory(torch.zeros(shape, device=self.device))

    @torch.no_grad()
    def step(self, x: Tensor, state: Memory, is_first: Tensor, advance: bool = True) -> Tensor:
        layers = (
            part.split(self.width, dim=-1) for part in self.stored_state(state, is_first).unbind(1)
        )
        states = []  # of each layer  [N, S, D]
        for *before, weights in zip(*layers, self.network.all_weights, strict=True):
            after = self.cell(x, before, weights)
            x = after[0]
            states.append(torch.stack(tuple(after), dim=1))
        joined = states[0] if len(states) == 1 else torch.cat(states, dim=-1)
        if advance:
            # Not in place: a caller may hold the stored state.
            cast(TensorMemory, state).state = joined
        return joined[:, 0, -self.width :]

    def stored_state(self, state: Memory, is_first: Tensor) -> Tensor:
        return cast(TensorMemory, state).before(is_first)

    def unroll(self, x: Tensor, is_first: Tensor, stored_state: Tensor) -> Tensor:
        """Run the network from one step at which any episode starts to the next."""
        # Quickest if that is only the first. The host has to know these steps: with `is_first` on
        # the CPU it waits for no device.
        # PyTorch's networks cannot forget within a call, so it ends where any episode begins.
        starting = is_first[1:].any(dim=1).nonzero().squeeze(-1) + 1
        # [B, S, L*D] -> [S, L, B, D], in one piece as cuDNN wants it.
        by_layer = stored_state.unflatten(-1, (-1, self.width)).permute(1, 2, 0, 3).contiguous()
        outputs: list[Tensor] = []
        states: Sequence[Tensor] = by_layer.unbind()  # [L, B, D] each
        for first, last in pairwise([0, *starting.tolist(), len(x)]):
            if is_first[first].any():  # else nothing has to be copied to the device
                begun = is_first[first].to(x.device)[:, None]
                # Those that go on keep theirs: only rows that begin here are emptied.
                states = [part.masked_fill(begun, 0.0) for part in states]
            output, states = self.sequence(x[first:last], states)
            outputs.append(output)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


class Lstm(Recurrent):
    """`torch.nn.LSTM`; its states are h and c."""

    n_states = 2
    has_bfloat16 = True

    def __init__(self, n_features: int, settings: NetworkSettings) -> None:
        super().__init__(n_features, settings)
        self.lstm = nn.LSTM(n_features, self.width, self.n_layers)

    @property
    def network(self) -> nn.LSTM:
        return self.lstm

    def cell(self, x: Tensor, before: Sequence[Tensor], weights: list[Tensor]) -> Sequence[Tensor]:
        return torch.lstm_cell(x, tuple(before), *weights)

    def sequence(self, x: Tensor, before: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        return self.lstm(x, tuple(before))


class Gru(Recurrent):
    """`torch.nn.GRU`."""

    n_states = 1

    def __init__(self, n_features: int, settings: NetworkSettings) -> None:
        super().__init__(n_features, settings)
        self.gru = nn.GRU(n_features, self.width, self.n_layers)

    @property
    def network(self) -> nn.GRU:
        return self.gru

    def cell(self, x: Tensor, before: Sequence[Tensor], weights: list[Tensor]) -> Sequence[Tensor]:
        return (torch.gru_cell(x, before[0], *weights),)

    def sequence(self, x: Tensor, before: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        output, after = self.gru(x, before[0])
        return output, (after,)
