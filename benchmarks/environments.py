"""Measure environment steps per second of every suite: python -m benchmarks.environments."""

import argparse

from benchmarks.measuring import Machine, Stopwatch
from benchmarks.played import settings
from benchmarks.tables import Table
from envs import make_vector_env
from utils.errors import UserError

TASKS = (
    ("MiniGrid", "MiniGrid-KeyCorridorS3R1-v0"),
    ("MiniGrid", "MiniGrid-MemoryS11-v0"),
    ("BabyAI", "BabyAI-GoToRedBall-v0"),
    ("RandomMaze", "RandomMaze-v0"),
    ("memory tasks", "TMazePassive-v0"),
    ("memory tasks", "TMazeActive-v0"),
    ("memory tasks", "VisualMatch-v0"),
    ("memory tasks", "KeyToDoor-v0"),
    ("ContinuousRecognition", "ContinuousRecognition-v0"),
    ("Crafter", "Crafter-v1"),
    ("Crafter", "CrafterText-v0"),
    ("POPGym", "popgym-RepeatPreviousEasy-v0"),
    ("POPGym", "popgym-MineSweeperEasy-v0"),
    ("Housekeep", "HousekeepText-v0"),
    ("Gymnasium", "CartPole-v1"),
    ("Procgen", "caveflyer"),
    ("Procgen", "dodgeball"),
    ("Procgen", "heist"),
    ("Procgen", "jumper"),
    ("Procgen", "maze"),
    ("Procgen", "miner"),
    ("MiniWorld", "MiniWorld-Hallway-v0"),
    ("MiniWorld", "MiniWorld-Sign-v0"),
    ("Psychlab", "psychlab_continuous_recognition"),
)


def steps_per_second(task: str, n_envs: int, seconds: float) -> float:
    """Play random actions for some seconds, with statistics and normalised rewards as in training.

    Returns:
        Environment steps per second, all environments together.
    """
    env = make_vector_env(settings(task, n_envs), seed=0)
    env.reset(seed=0)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(1000)]
    n_steps = 0
    watch = Stopwatch()
    while watch.seconds < seconds:
        env.step(actions[n_steps % len(actions)])
        n_steps += 1
    rate = n_steps * n_envs / watch.seconds
    env.close()
    return rate


def main(argv: list[str] | None = None) -> int:
    """Print a table; a suite that is not installed gets a line that says so."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n_envs", type=int, default=16, help="parallel environments")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds per task")
    parser.add_argument("tasks", nargs="*", help="only these tasks")
    arguments = parser.parse_args(argv)
    print(Machine.here(), flush=True)
    columns = {"suite": "<22", "task": "<32", "n_envs": ">6", "steps/s": ">9,.0f"}
    table = Table(**columns)
    for suite, task in TASKS:
        if arguments.tasks and task not in arguments.tasks:
            continue
        try:
            rate = steps_per_second(task, arguments.n_envs, arguments.seconds)
        except UserError as error:
            print(f"{suite:22} {task:32} skipped: {error}", flush=True)
            continue
        table.row(suite, task, arguments.n_envs, rate)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
