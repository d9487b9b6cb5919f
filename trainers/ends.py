"""What was seen after steps of a rollout that its next row does not show.

An episode's last observation makes room for the first of the next, and after a rollout's last step
another rollout begins.
"""

from typing import Any

import torch
from torch import Tensor

from models.observations import Observations
from trainers.saved_state import check_like


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

    def state_dict(self) -> dict[str, Any]:
        """Return all there are."""
        kinds = self.observations._asdict()
        return {"rows": self.rows, "observations": kinds, "context": self.context}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any], device: torch.device) -> "Ends":
        """Return those that `state_dict` returned."""
        context = None if state["context"] is None else state["context"].to(device)
        seen = Observations(**state["observations"]).map(lambda kind: kind.to(device))
        ends = cls(seen, context)
        ends.add(state["rows"].to(device), seen, context)
        return ends


def check_ends(saved: dict[str, Any], observations: Observations, context: Tensor | None) -> None:
    """Raise ValueError unless a saved state is one of such observations and contexts."""
    n_ends = len(saved["rows"])

    def many(kind: Tensor) -> Tensor:
        return kind[:1].expand(n_ends, *kind.shape[1:])

    like = Ends(observations, context)
    rows = like.rows.new_zeros(n_ends)
    like.add(rows, observations.map(many), None if context is None else many(context))
    check_like(saved, like.state_dict(), "ends")
