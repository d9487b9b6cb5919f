"""What was seen after steps of a rollout that its next row does not show.

An episode's last observation makes room for the first of the next, and after a rollout's last step
another rollout begins.
"""

import torch
from torch import Tensor

from models.observations import Observations


class Ends:
    """The observations after E steps; none to begin with.

    Args:
        observations: An example of what is kept.  [N, ...] of each kind
        context: An example of `Step.context`, where that is kept as well.  [N, ...]

    Attributes:
        rows: Which steps, t * N + n.  [E] int64
        observations: [E, ...] of each kind
        context: What `Step.context` would be after them.  [E, ...]
    """

    def __init__(self, observations: Observations, context: Tensor | None = None) -> None:
        self.rows = torch.zeros(0, dtype=torch.int64, device=observations.any().device)
        self.observations = observations.map(lambda kind: kind[:0])
        self.context = None if context is None else context[:0]

    def add(self, rows: Tensor, observations: Observations, context: Tensor | None) -> None:
        """Keep what was seen after some more steps.  [e, ...] each"""
        self.rows = torch.cat((self.rows, rows))
        self.observations = self.observations.map(
            lambda kept, seen: torch.cat((kept, seen)), observations
        )
        if self.context is not None and context is not None:
            self.context = torch.cat((self.context, context))
