"""The ladder: tasks that isolate memory, with chance and the best score; and the agents.

The same tasks and agents stand in configs/Scoreboard, which trains them.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from analysis.lengths import TASKS as BY_LENGTH
from models import AGENTS as MODELS

GRID = "MiniGrid-"
RETURN = "return_mean"


class Task(NamedTuple):
    """A task of the ladder.

    Attributes:
        name: What the table calls it.
        env: The environment.
        length: Its setting of that name, where it reads one.
        algorithm: Who learns there.
        metric: What a score is measured in, without "eval/" and "rollout/".
        chance: Of that metric, the normalised score 0.
        best: The same for 1.
        memory: What must be remembered, and for how long.
        source: What chance and best are, and where they are from.
    """

    name: str
    env: str
    length: int | None
    algorithm: str
    metric: str
    chance: float
    best: float
    memory: str
    source: str

    def plays(self, settings: Mapping[str, Any]) -> bool:
        """Return whether a run's settings are of this task."""
        named = settings.get("env"), settings.get("algorithm")
        is_length = self.length is None or settings.get("length") == self.length
        return named == (self.env, self.algorithm) and is_length

    def normalised(self, scores: np.ndarray) -> np.ndarray:
        """Return 0 for chance and 1 for the best.  [n]"""
        return (scores - self.chance) / (self.best - self.chance)


class AgentKind(NamedTuple):
    """A column of the table.

    Attributes:
        name: What the table calls it.
        model: The setting, by the name agents are listed under.
        others: Further settings that make a run this agent's.
        blind: Why it cannot see a task, or "".
    """

    name: str
    model: str
    others: Mapping[str, str] = {}
    blind: Callable[[Task], str] = lambda task: ""

    def is_of(self, settings: Mapping[str, Any]) -> bool:
        """Return whether a run's settings are this agent's."""
        name = settings.get("model")
        if not isinstance(name, str) or MODELS.known_as(name) != self.model:
            return False
        return all(settings.get(key) == value for key, value in self.others.items())


def _of_length(name: str, env: str, length: int, algorithm: str, *words: str) -> Task:
    """Return a task of the length study, whose metric and chance stand there."""
    known = BY_LENGTH[env]
    return Task(name, env, length, algorithm, known.metric, known.chance, 1.0, *words)


def _t_maze(length: int) -> Task:
    memory = f"which of two sides, seen in the first step alone, for {length} steps"
    source = "0: walks to the end and turns to either side; 1: to the right one (envs/t_maze.py)"
    return _of_length(f"T-Maze {length}", "TMazePassive-v0", length, "DQN", memory, source)


TASKS = (
    _t_maze(10),
    _t_maze(30),
    _t_maze(100),
    Task(
        *("MemoryS7", "MiniGrid-MemoryS7-v0", None, "PPO", RETURN, 0.4917, 0.9780),
        "key or ball, for 1 to 4 steps; who looks back from the junction sees the cue and both "
        "ends at once, and choosing by chance there gets beyond 0 without a memory",
        "0: goes to either end at once, right half the time; 1: looks at the cue, then goes the "
        "shortest way; both 1 - 0.9 t / 245, mean over where episodes begin",
    ),
    Task(
        *("MemoryS11", "MiniGrid-MemoryS11-v0", None, "PPO", RETURN, 0.4952, 0.9859),
        "key or ball, for 4 steps or more; from no place are the cue and an end seen at once",
        "0: goes to either end at once, right half the time; 1: looks at the cue, then goes the "
        "shortest way; both 1 - 0.9 t / 605, mean over where episodes begin",
    ),
    Task(
        *("RandomMaze", "RandomMaze-v0", None, "PPO", RETURN, -1.0, 0.827),
        "where it has been, up to 100 steps; 9x9 cells of at most 25x25 are in view",
        "0: bumps into nothing and never arrives (100 steps of -0.01); 1: the shortest way, mean "
        "of 20,000 mazes (standard error 0.001), which nobody can know who has not seen the maze",
    ),
    _of_length(
        *("Visual Match 20", "VisualMatch-v0", 20, "SAC"),
        "which of three colours, for 21 steps or more",
        "success; 0: enters any door; 1: always the right one (envs/visual_match.py)",
    ),
    _of_length(
        *("Key-to-Door 20", "KeyToDoor-v0", 20, "SAC"),
        "nothing: what is asked for is credit, 22 steps or more back to the key",
        "success; 0: does not take the key; 1: always opens the door (envs/key_to_door.py)",
    ),
    Task(
        *("KeyCorridor", "MiniGrid-KeyCorridorS3R1-v0", None, "PPO", RETURN, 0.0, 0.9511),
        "nothing: the key that is carried is in view; the line to beat is the agent without memory",
        "0: never gets the ball; 1: the shortest way, 1 - 0.9 t / 270 with t of 15, 15 and 14 by "
        "where the agent first looks",
    ),
    Task(
        *("RepeatPrevious", "popgym-RepeatPreviousEasy-v0", None, "PPO", RETURN, -25 / 51, 1.0),
        "the suits of the last three cards, each for 3 steps",
        "0: names another suit than the one in view, right with 13/51, as no card comes twice; "
        "1: always right (popgym 1.0.7, envs/repeat_previous.py)",
    ),
)


def _not_a_grid(task: Task) -> str:
    """Return why grid-clip cannot see a task: it was trained on MiniGrid's tiles."""
    return "" if task.env.startswith(GRID) else "MiniGrid only"


AGENTS = (
    AgentKind("none", "CNN"),
    AgentKind("LSTM", "LSTM"),
    AgentKind("GPT", "GPT"),
    AgentKind("HELM, MiniLM", "HELM", {"language_model": "all-MiniLM-L6-v2"}),
    AgentKind("HELM, SmolLM2", "HELM", {"language_model": "SmolLM2-135M-Instruct"}),
    AgentKind("SHELM, grid-clip", "SHELM", {"clip_encoder": "grid-clip"}, _not_a_grid),
)
