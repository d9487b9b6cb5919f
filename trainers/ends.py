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
    """The observations after E steps.

    Attributes:
        rows: Which steps, t * N + n.  [E] int64
        observations: [E, ...] of each kind
        context: What `Step.context` would be there.  [E, ...]
    """

    def __init__(self, observations: Observations, context: Tensor) -> None:
        """Begin with none, given examples of what is kept.  [N, ...]"""
        self.rows = torch.zeros(0, dtype=torch.int64, device=context.device)
        self.observations = observations.map(lambda kind: kind[:0])
        self.context = context[:0]

    def add(self, rows: Tensor, observations: Observations, context: Tensor) -> None:
        """Keep what was seen after some more steps.  [e, ...] each"""
        self.rows = torch.cat((self.rows, rows))
        self.observations = self.observations.map(
            lambda kept, seen: torch.cat((kept, seen)), observations
        )
        self.context = torch.cat((self.context, context))

    def state_dict(self) -> dict[str, Any]:
        """Return all there are."""
        kinds = self.observations._asdict()
        return {"rows": self.rows, "observations": kinds, "context": self.context}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any], device: torch.device) -> "Ends":
        """Return those that `state_dict` returned."""
        seen = Observations(**state["observations"]).map(lambda kind: kind.to(device))
        ends = cls(seen, state["context"].to(device))
        ends.add(state["rows"].to(device), seen, state["context"].to(device))
        return ends


def check_ends(saved: dict[str, Any], observations: Observations, context: Tensor) -> None:
    """Raise ValueError unless a saved state is one of such observations and contexts."""
    n_ends = len(saved["rows"])
    like = Ends(observations, context)
    example = observations.map(lambda kind: kind[:1].expand(n_ends, *kind.shape[1:]))
    like.add(torch.zeros(n_ends).long(), example, context[:1].expand(n_ends, *context.shape[1:]))
    check_like(saved, like.state_dict(), "ends")
