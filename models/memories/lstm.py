"""A trained LSTM (Hochreiter & Schmidhuber 1997)."""

from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from models.agent import Memory, TensorMemory
from models.memories.base import NetworkSettings, TrainedMemory


class Lstm(TrainedMemory):
    """One or more layers of `torch.nn.LSTM`.

    State and context are (h, c) of all layers side by side, [N, 2, L*D]. A state that earlier
    weights have left is continued as it is.
    """

    def __init__(self, n_features: int, settings: NetworkSettings) -> None:
        super().__init__(n_features, settings)
        self.width = settings.memory_width
        self.lstm = nn.LSTM(n_features, self.width, settings.memory_layers)

    def initial(self, n_envs: int) -> TensorMemory:
        n_numbers = self.lstm.num_layers * self.width
        return TensorMemory(torch.zeros(n_envs, 2, n_numbers, device=self.device))

    @torch.no_grad()
    def step(self, x: Tensor, state: Memory, is_first: Tensor, advance: bool = True) -> Tensor:
        layers = (
            part.split(self.width, dim=-1) for part in self.context(state, is_first).unbind(1)
        )
        states = []  # (h, c) of each layer  [N, 2, D]
        for hidden, cell, weights in zip(*layers, self.lstm.all_weights, strict=True):
            x, cell = torch.lstm_cell(x, (hidden, cell), *weights)
            states.append(torch.stack((x, cell), dim=1))
        after = states[0] if len(states) == 1 else torch.cat(states, dim=-1)
        if advance:
            cast(TensorMemory, state).state = after  # not in place: a caller may hold the context
        return after[:, 0, -self.width :]

    def context(self, state: Memory, is_first: Tensor) -> Tensor:
        before = cast(TensorMemory, state).state
        if not is_first.is_cuda and not is_first.any():  # on a GPU, asking would make the host wait
            return before
        return before.masked_fill(is_first[:, None, None], 0.0)

    def unroll(self, x: Tensor, is_first: Tensor, context: Tensor) -> Tensor:
        """Run the LSTM from one step at which any episode starts to the next.

        Quickest if that is only the first. The host has to know these steps: with `is_first` on the
        CPU it waits for no device.
        """
        starting = is_first[1:].any(dim=1).nonzero().squeeze(-1) + 1
        by_layer = context.unflatten(-1, (-1, self.width)).permute(1, 2, 0, 3).contiguous()
        outputs, state = [], (by_layer[0], by_layer[1])  # h and c  [L, B, D]
        for first, last in pairwise([0, *starting.tolist(), len(x)]):
            begun = is_first[first].to(x.device)
            hidden, cell = (part.masked_fill(begun[:, None], 0.0) for part in state)
            output, state = self.lstm(x[first:last], (hidden, cell))
            outputs.append(output)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)
