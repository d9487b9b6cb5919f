"""A new run whose agent begins with the parameters of an earlier one.

Optimiser, counts, schedules and replay begin anew; target networks are made as copies of the agent
and so begin with the same parameters.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from models.agent import Agent
from settings import Config, setting
from trainers.checkpoint import find_checkpoint, load_checkpoint, recorded_sha256, restore_agent
from utils.errors import UserError

OPTION = "--init-from"


@dataclass(frozen=True)
class FinetuneSettings(Config):
    """What of an earlier agent goes on learning."""

    title = "beginning with an earlier agent"

    finetune: str = setting(
        "what learns, of an agent that another run's is given to: all, its critic (both streams of "
        "the values), or linear (their last layers)",
        choices=("all", "critic", "linear"),
        default="all",
    )

    def check_finetune(self, init_from: Path | None) -> None:
        """Raise UserError where parameters would stay that nothing has trained."""
        if self.finetune != "all" and init_from is None:
            raise UserError(
                f"finetune: {self.finetune} leaves all else as it is, and it is random. "
                f"Name a run with {OPTION}, or choose finetune=all"
            )


class WarmStart(NamedTuple):
    """The checkpoint that a run begins with, as run.json names it.

    Attributes:
        checkpoint: The file.
        sha256: Its checksum.
        env_steps: Environment steps behind it.
    """

    checkpoint: str
    sha256: str
    env_steps: int

    @classmethod
    def named(cls, path: Path) -> "WarmStart":
        """Return the checkpoint that a user means by a run folder or a file.

        Raises:
            UserError: there is none, or it is damaged.
        """
        file = find_checkpoint(path, OPTION)
        return cls(str(file.resolve()), recorded_sha256(file), load_checkpoint(file)["env_steps"])

    @classmethod
    def recorded(cls, facts: Mapping[str, Any]) -> "WarmStart":
        """Return what run.json says."""
        checkpoint, sha256, env_steps = (facts.get(name) for name in cls._fields)
        return cls(str(checkpoint), str(sha256), int(env_steps or 0))

    def give(self, agent: Agent) -> None:
        """Fill a new agent with what the checkpoint holds of one.

        Raises:
            UserError: the file is no longer the same, or its agent does not fit: a parameter is
                missing or has another shape, or a pretrained part is another.
        """
        path, source = Path(self.checkpoint), f"{OPTION} {self.checkpoint}"
        state = load_checkpoint(find_checkpoint(path, OPTION))
        if recorded_sha256(path) != self.sha256:
            raise UserError(f"{source}: no longer what the run began with. Begin another run")
        misfit = _misfit(state["agent"], agent.state_dict())
        try:
            restore_agent(agent, state, source)
        except UserError as error:
            if misfit is None:
                raise
            raise UserError(f"{source}: {misfit}. Name a run of such an agent") from error


def _misfit(saved: Any, here: Mapping[str, Any]) -> str | None:
    """Return the first parameter in which a saved agent is not built like another."""
    theirs, ours = _shapes(saved), _shapes(here)
    for name in [*ours, *theirs]:
        there, own = (shapes.get(name, "is missing") for shapes in (theirs, ours))
        if there != own:
            return f"parameter '{name}' {there} there and {own} in this run"
    return None


def _shapes(state: Any) -> dict[str, str]:
    """Return by name which shape every tensor of an agent has, in words."""
    values = state.items() if isinstance(state, dict) else ()
    tensors = {str(name): each for name, each in values if isinstance(each, Tensor)}
    return {name: f"has shape {tuple(each.shape)}" for name, each in tensors.items()}
