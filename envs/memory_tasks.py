"""What the four tasks of Ni et al. (2023, arXiv:2307.03864) have in common: one number, the length.

T-Maze and Visual Match ask how far an agent can remember, Key-to-Door how far it can assign credit.
All episodes of a task last equally long, and the last step is a true end, no time limit.
"""

from dataclasses import dataclass

from settings import Config, setting


@dataclass(frozen=True)
class LengthSettings(Config):
    """The setting of all four tasks."""

    title = "memory tasks"

    length: int = setting(
        "steps of the corridor, or of the phase with apples, that an agent has to bridge",
        low=1,
        high=100_000,
        default=10,
    )
