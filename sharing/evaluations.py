"""What eval.py has written beside a checkpoint."""

from pathlib import Path
from typing import Any

from settings import read_json_object
from utils.errors import UserError

NUMBERS = ("return_mean", "return_std", "length_mean", "length_std")
COUNTS = ("n_episodes", "seed", "env_steps")


def evaluations(checkpoint: Path, env_steps: int) -> list[dict[str, Any]]:
    """Return the evaluations of a checkpoint in the environment it was trained in.

    Args:
        checkpoint: Its file.
        env_steps: Steps behind it; evaluations of what once stood in its place do not count.

    Returns:
        What eval.py wrote, that of most episodes first.
    """
    found = [
        _read(path) for path in sorted(checkpoint.parent.glob(f"{checkpoint.stem}_eval_*.json"))
    ]
    counting = [each for each in found if each is not None and each["env_steps"] == env_steps]
    return sorted(counting, key=lambda each: -each["n_episodes"])


def _read(path: Path) -> dict[str, Any] | None:
    """Return an evaluation of the agent as it was trained; None for others and other files."""
    try:
        result = read_json_object(path)
    except UserError:
        return None
    numbers = all(isinstance(result.get(name), (int, float)) for name in NUMBERS)
    counts = all(isinstance(result.get(name), int) for name in COUNTS)
    if not (numbers and counts) or result.get("random") or result.get("var"):
        return None
    return result
