"""A trained LSTM (Hochreiter & Schmidhuber 1997)."""

from itertools import pairwise
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.agent import Memory, TensorMemory
from models.image_hash import first_rows
from models.images import Features
from models.memories.beginnings import Beginnings
from models.memories.trained_memory import MemorySettings, NetworkSettings, TrainedMemory

STEPS_TOGETHER = 8  # between two looks at which sequences are still equal
MOSTLY_DIFFERENT = 0.75  # share of those that differ in the end


class Lstm(TrainedMemory):
    """One or more layers of `torch.nn.LSTM`.

    State and context are (h, c) of all layers side by side, [N, 2, L*D]. The state that an
    episode was left in by earlier weights is gone on with as it is.
    """

    settings: ClassVar[type[MemorySettings]] = NetworkSettings

    def __init__(self, n_features: int, settings: NetworkSettings) -> None:
        super().__init__(n_features, settings)
        self.width = settings.memory_width
        self.lstm = nn.LSTM(n_features, self.width, settings.memory_layers)

    def initial(self, n_envs: int) -> TensorMemory:
        """Return zero states."""
        n_numbers = self.lstm.num_layers * self.width
        return TensorMemory(torch.zeros(n_envs, 2, n_numbers, device=self.device))

    @torch.no_grad()
    def step(self, x: Tensor, state: Memory, starts: Tensor, advance: bool = True) -> Tensor:
        """Advance every layer by one step; return the last layer's h [N, D]."""
        after = self._advanced(x, self.context(state, starts))
        if advance:
            cast(TensorMemory, state).state = after  # not in place: a caller may hold the context
        return after[:, 0, -self.width :]

    def context(self, state: Memory, starts: Tensor) -> Tensor:
        """Return (h, c) before the present step, zero where an episode starts.  [N, 2, L*D]"""
        return _without_ended(cast(TensorMemory, state).state, starts)

    def unroll(self, x: Tensor, starts: Tensor, context: Tensor) -> Tensor:
        """Run from one step at which any episode starts to the next; quickest if that is the first.

        The host has to know these steps: with `starts` on the CPU it waits for no device.
        """
        starting = starts[1:].any(dim=1).nonzero().squeeze(-1) + 1
        outputs, state = [], self._by_layer(context)
        for first, last in pairwise([0, *starting.tolist(), len(x)]):
            begun = starts[first].to(x.device)
            hidden, cell = (part.masked_fill(begun[:, None], 0.0) for part in state)
            output, state = self.lstm(x[first:last], (hidden, cell))
            outputs.append(output)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def unroll_from_nothing(self, features: Features, shape: torch.Size) -> Features:
        """Read sequences a few steps at a time; those that are equal up to there are read once."""
        if features.row_of is None:
            return super().unroll_from_nothing(features, shape)
        rows = features.row_of.view(shape)
        begun = Beginnings.of(rows)
        outputs, places, n_rows, t = [], [], 0, 0
        empty = features.distinct.new_zeros(self.lstm.num_layers, 1, self.width)
        before, state = begun.own[0] * 0, (empty, empty)
        while t < shape[0]:
            end = _end_of_part(begun.counts, t)
            firsts, own = first_rows(begun.own[end - 1])
            hidden, cell = (each[:, before[firsts]].contiguous() for each in state)
            x = F.embedding(rows[t:end, firsts], features.distinct)  # [t, U, F]
            output, state = self.lstm(x, (hidden, cell))  # [t, U, D]
            steps = torch.arange(end - t)[:, None]
            places.append(n_rows + steps * len(firsts) + own)  # [t, B]
            outputs.append(output.flatten(0, 1))
            n_rows, t, before = n_rows + len(outputs[-1]), end, own
        return Features(torch.cat(outputs), torch.cat(places).flatten())

    def _by_layer(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Return h and c [L, B, D] of contexts [B, 2, L*D]."""
        by_layer = context.unflatten(-1, (-1, self.width)).permute(1, 2, 0, 3).contiguous()
        return by_layer[0], by_layer[1]

    def _advanced(self, x: Tensor, before: Tensor) -> Tensor:
        """Return (h, c) [N, 2, L*D] of all layers after one more step."""
        layers = (part.split(self.width, dim=-1) for part in before.unbind(1))
        states = []
        for hidden, cell, weights in zip(*layers, self.lstm.all_weights, strict=True):
            x, cell = torch.lstm_cell(x, (hidden, cell), *weights)
            states.append(torch.stack((x, cell), dim=1))
        return states[0] if len(states) == 1 else torch.cat(states, dim=-1)


def _end_of_part(counts: Tensor, t: int) -> int:
    """Return up to which step sequences are read at once from step t on.

    Where hardly any are equal none will be later on: the rest is read at once.

    Args:
        counts: How many different ones there are at each step.  [T]
        t: Below T.
    """
    end = min(t + STEPS_TOGETHER, len(counts))
    return len(counts) if counts[end - 1] > MOSTLY_DIFFERENT * counts[-1] else end


def _without_ended(state: Tensor, starts: Tensor) -> Tensor:
    """Return states [N, 2, L*D] with the rows of starting episodes at zero."""
    if not starts.is_cuda and not starts.any():  # on a GPU, asking would make the host wait
        return state
    return state.masked_fill(starts[:, None, None], 0.0)
