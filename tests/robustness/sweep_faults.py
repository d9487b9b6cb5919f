"""A sweep killed at random with everything it started, begun again, until all its runs are there.

    python -m tests.robustness.sweep_faults

Two agents, two tasks, three seeds, on two cores. In the end there are twelve complete runs, none
begun twice, every rollout in metrics.csv once; the time stands beside that of the same runs one
after another.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from runs.loggers import FILE
from runs.run_data import read_progress, read_rows

ROOT = Path(__file__).parent.parent.parent
ROLLOUT = 8 * 64
SETTINGS = {"n_steps": 8192, "n_envs": 8, "n_rollout_steps": 64, "checkpoint_minutes": 0.05}
AGENTS, TASKS, SEEDS = ("CNN-PPO", "HELM"), ("RandomMaze-v0", "MiniGrid-Empty-5x5-v0"), range(3)
SHORT = "short.json"
FOLDERS = [
    Path("experiments", agent, task, f"short_seed={seed}")
    for seed in SEEDS
    for agent in AGENTS
    for task in TASKS
]


class Kill(NamedTuple):
    """The state of the sweep when everything was killed.

    Attributes:
        n_killed: Processes.
        finished: Files of the finished runs, with the times they were last written.
        trained: Environment steps that each unfinished run had noted.
    """

    n_killed: int
    finished: dict[Path, int]
    trained: dict[Path, int]


def main() -> int:
    """Do it, check it, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("curves.png"))
    arguments = parser.parse_args()
    output, dice = arguments.output.resolve(), random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as place:
        alone, swept = Path(place, "alone"), Path(place, "swept")
        for folder in (alone, swept):
            folder.mkdir()
            (folder / SHORT).write_text(json.dumps(SETTINGS))
        seconds_alone = one_after_another(alone)
        print(f"one after another: {seconds_alone:.0f} s", flush=True)
        kills, seconds = until_done(swept, arguments.kills, dice, seconds_alone, output)
        check(swept, kills)
        report(alone, swept, kills, seconds)
    print(f"written to {output}")
    return 0


def one_after_another(workplace: Path) -> float:
    """Train all runs with main.py, each when the one before has ended; return the seconds."""
    begun = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
    for folder in FOLDERS:
        _, agent, task, name = folder.parts
        command = [sys.executable, str(ROOT / "main.py"), "--config", SHORT, "--run-id", name]
        command += ["--var", f"model={agent}", "--var", f"env={task}"]
        command += ["--seed", name.removeprefix("short_seed=")]
        with (workplace / "log").open("a") as log:
            subprocess.run(
                command, cwd=workplace, env=environment, stdout=log, stderr=log, check=True
            )
    return time.perf_counter() - begun


def until_done(
    workplace: Path, n_kills: int, dice: random.Random, seconds_alone: float, output: Path
) -> tuple[list[Kill], float]:
    """Sweep, killed some times; return the kills and the seconds that the sweeps took."""
    command = [sys.executable, str(ROOT / "sweep.py"), "--config", SHORT, "--output", str(output)]
    command += ["--var", f"model={','.join(AGENTS)}", "--var", f"env={','.join(TASKS)}"]
    command += ["--seeds", str(len(SEEDS))]
    kills, total = [], 0.0
    for remaining in reversed(range(n_kills + 1)):
        begun = time.perf_counter()
        with (workplace / "log").open("a") as log:
            process = subprocess.Popen(command, cwd=workplace, stdout=log, stderr=log)
        if remaining:
            share = seconds_alone / 2 / (n_kills + 1)
            time.sleep(dice.uniform(0.4 * share, 1.2 * share))
            kills.append(killed(process.pid, workplace))
            seconds = time.perf_counter() - begun
            print(f"killed after {seconds:.0f} s: {kills[-1].n_killed} processes", flush=True)
        status = process.wait()
        total += time.perf_counter() - begun
        assert remaining or status == 0, (workplace / "log").read_text()
    return kills, total


def killed(root: int, workplace: Path) -> Kill:
    """Kill a process and all that came from it, so that none can answer; look at what is left."""
    found: set[int] = set()
    while new := {root, *descendants(root)} - found:
        for process in new:
            send(process, signal.SIGSTOP)
        found |= new
    for process in found:
        send(process, signal.SIGKILL)
    while any(stat(process)[:1] not in ([], ["Z"]) for process in found):
        time.sleep(0.01)
    finished: dict[Path, int] = {}
    trained: dict[Path, int] = {}
    for folder in FOLDERS:
        said = description(workplace / folder)
        if "finished" in said:
            files = (workplace / folder).iterdir()
            finished |= {path: path.stat().st_mtime_ns for path in files}
        elif said:
            trained[folder] = read_progress(workplace / folder).env_steps
    return Kill(len(found), finished, trained)


def descendants(root: int) -> set[int]:
    """Return the children of a process, their children, and so on."""
    parents = {int(path.name): stat(int(path.name))[1:2] for path in Path("/proc").glob("[0-9]*")}
    found, grown = {root}, True
    while grown:
        more = {child for child, parent in parents.items() if parent and int(parent[0]) in found}
        grown = not more <= found
        found |= more
    return found - {root}


def stat(process: int) -> list[str]:
    """Return what Linux says of a process from its state on, nothing once it is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def send(process: int, number: signal.Signals) -> None:
    """Send a signal to a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


def description(folder: Path) -> dict[str, Any]:
    """Return the content of run.json, nothing where there is none yet."""
    path = folder / "run.json"
    return json.loads(path.read_text()) if path.exists() else {}


def rows(folder: Path) -> list[dict[str, str]]:
    """Return a run's metrics without what the clock says."""
    table = read_rows(folder / FILE)
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in table]


def check(workplace: Path, kills: list[Kill]) -> None:
    """Assert that all is there, once."""
    there = {path.parent for path in (workplace / "experiments").rglob("metrics.csv")}
    assert there == {workplace / folder for folder in FOLDERS}, there
    expected = list(range(ROLLOUT, int(SETTINGS["n_steps"]) + 1, ROLLOUT))
    for folder in FOLDERS:
        said = description(workplace / folder)
        assert "finished" in said, f"{folder} is not finished"
        steps = [int(row["env_steps"]) for row in rows(workplace / folder)]
        assert steps == expected, f"{folder}: rows"
        n_resumed = len(said.get("resumed", []))
        n_killed = sum(folder in kill.trained for kill in kills)
        assert n_resumed == n_killed, f"{folder}: killed {n_killed} times, resumed {n_resumed}"
    for kill in kills:
        for path, written in kill.finished.items():
            assert path.stat().st_mtime_ns == written, f"{path} was written after its run had ended"


def report(alone: Path, swept: Path, kills: list[Kill], seconds: float) -> None:
    """Print the figures."""
    again = 0
    for number, kill in enumerate(kills):
        for folder, env_steps in kill.trained.items():
            earlier = sum(folder in before.trained for before in kills[:number])
            again += env_steps - description(swept / folder)["resumed"][earlier]["env_steps"]
    same = sum(rows(alone / folder) == rows(swept / folder) for folder in FOLDERS)
    print(
        f"killed {len(kills)} times, {sum(kill.n_killed for kill in kills)} processes, "
        f"{sum(len(kill.trained) for kill in kills)} runs cut: "
        f"{len(FOLDERS)} complete runs, none begun twice\n"
        "steps noted before a kill and trained again from the checkpoint: "
        f"{again:,} of {len(FOLDERS) * int(SETTINGS['n_steps']):,}\n"
        f"metrics equal to the undisturbed run's in every digit: {same} of {len(FOLDERS)}\n"
        f"all sweeps together: {seconds:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
