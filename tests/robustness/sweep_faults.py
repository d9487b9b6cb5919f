"""A sweep killed at random with everything it started, begun again, until all its runs are there.

    python -m tests.robustness.sweep_faults

Two agents, two tasks, three seeds, on two cores. In the end there are twelve complete runs, none
begun twice, every rollout in metrics.csv once, and all have the metrics of the same runs
undisturbed, one after another.
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
from typing import Any

from analysis.run_data import read_progress, read_rows
from utils.loggers import FILE
from utils.run_folder import description_of

ROOT = Path(__file__).parent.parent.parent
ROLLOUT = 8 * 64
SETTINGS = {"n_steps": 8192, "n_envs": 8, "n_rollout_steps": 64, "checkpoint_minutes": 0.05}
AGENTS, TASKS, SEEDS = ("CNN-PPO", "HELM"), ("RandomMaze-v0", "MiniGrid-Empty-5x5-v0"), range(3)
RUNS = [(agent, task, seed) for seed in SEEDS for agent in AGENTS for task in TASKS]
FOLDERS = [Path("experiments", agent, task, f"short_seed={seed}") for agent, task, seed in RUNS]

Kill = dict[Path, int]  # environment steps that each unfinished run had noted when all was killed


def main() -> int:
    """Do it, check it, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("curves.png"))
    arguments = parser.parse_args()
    dice = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as place:
        alone, swept = Path(place, "alone"), Path(place, "swept")
        for folder in (alone, swept):
            folder.mkdir()
            (folder / "short.json").write_text(json.dumps(SETTINGS))
        begun = time.perf_counter()
        for agent, task, seed in RUNS:
            words = ["--run-id", f"short_seed={seed}", "--seed", str(seed)]
            words += ["--var", f"model={agent}", "--var", f"env={task}"]
            assert start(alone, "main.py", *words).wait() == 0, (alone / "log").read_text()
        seconds_alone = time.perf_counter() - begun
        print(f"one after another: {seconds_alone:.0f} s", flush=True)
        words = ["--var", f"model={','.join(AGENTS)}", "--var", f"env={','.join(TASKS)}"]
        words += ["--seeds", str(len(SEEDS)), "--output", str(arguments.output.resolve())]
        kills, seconds = list[Kill](), 0.0
        for remaining in reversed(range(arguments.kills + 1)):
            begun = time.perf_counter()
            process = start(swept, "sweep.py", *words)
            if remaining:
                time.sleep(dice.uniform(0.2, 0.6) * seconds_alone / (arguments.kills + 1))
                kills.append(killed(process.pid, swept))
                print(f"killed after {time.perf_counter() - begun:.0f} s", flush=True)
            assert process.wait() == 0 or remaining, (swept / "log").read_text()
            seconds += time.perf_counter() - begun
        again = check(swept, kills)
        for folder in FOLDERS:
            assert rows(alone / folder) == rows(swept / folder), f"{folder}: other metrics"
    print(
        f"killed {len(kills)} times, {sum(map(len, kills))} runs cut: {len(FOLDERS)} complete "
        "runs, none begun twice\n"
        "steps noted before a kill and trained again from the checkpoint: "
        f"{again:,} of {len(FOLDERS) * int(SETTINGS['n_steps']):,}\n"
        f"all sweeps together: {seconds:.0f} s\nwritten to {arguments.output}"
    )
    return 0


def start(workplace: Path, program: str, *words: str) -> subprocess.Popen:
    """Start a program that adds to a log."""
    command = [sys.executable, str(ROOT / program), "--config", "short.json", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
    with (workplace / "log").open("a") as log:
        return subprocess.Popen(command, cwd=workplace, env=environment, stdout=log, stderr=log)


def killed(root: int, workplace: Path) -> Kill:
    """Kill a process and all its descendants; return the progress of its unfinished runs."""
    found: set[int] = set()
    while new := {root, *descendants(root)} - found:  # those that stand still start no others
        for process in new:
            send(process, signal.SIGSTOP)
        found |= new
    for process in found:
        send(process, signal.SIGKILL)
    while any(stat(process)[:1] not in ([], ["Z"]) for process in found):
        time.sleep(0.01)
    kill: Kill = {}
    for folder in FOLDERS:
        said = description_of(workplace / folder)
        if "finished" in said:
            for path in (workplace / folder).iterdir():
                os.utime(path, (0, 0))  # nothing is to be written there any more
        elif said:
            kill[folder] = read_progress(workplace / folder).env_steps
    return kill


def descendants(root: int) -> set[int]:
    """Return the children of a process, their children, and so on."""
    parents = {int(path.name): stat(int(path.name))[1:2] for path in Path("/proc").glob("[0-9]*")}
    found, new = set[int](), {root}
    while new:
        found |= new
        new = {child for child, parent in parents.items() if parent and int(parent[0]) in found}
        new -= found
    return found - {root}


def stat(process: int) -> list[str]:
    """Return the fields of Linux about a process from its state on, nothing once it is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def send(process: int, number: signal.Signals) -> None:
    """Send a signal to a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return a run's metrics without times."""
    table = read_rows(folder / FILE)
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in table]


def check(workplace: Path, kills: list[Kill]) -> int:
    """Assert that all is there, once; return the steps that were trained again."""
    there = {path.parent for path in (workplace / "experiments").rglob("metrics.csv")}
    assert there == {workplace / folder for folder in FOLDERS}, there
    expected, again = list(range(ROLLOUT, int(SETTINGS["n_steps"]) + 1, ROLLOUT)), 0
    for folder in FOLDERS:
        said = description_of(workplace / folder)
        assert "finished" in said, f"{folder} is not finished"
        steps = [int(row["env_steps"]) for row in rows(workplace / folder)]
        assert steps == expected, f"{folder}: rows"
        noted = [kill[folder] for kill in kills if folder in kill]
        resumed = [entry["env_steps"] for entry in said.get("resumed", [])]
        assert len(resumed) == len(noted), f"{folder}: killed {noted}, resumed {resumed}"
        again += sum(noted) - sum(resumed)
        times = {path.stat().st_mtime_ns for path in (workplace / folder).iterdir()}
        assert 0 not in times or times == {0}, f"{folder} was written after its run had ended"
    return again


if __name__ == "__main__":
    sys.exit(main())
