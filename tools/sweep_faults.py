"""A sweep killed at random with everything it started, typed again, until all its runs are there.

    python -m tools.sweep_faults

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

from runs.metrics import FILE
from runs.run_data import read_progress, read_rows

ROOT = Path(__file__).parent.parent
SETTINGS: dict[str, Any] = {
    "n_steps": 8192,
    "n_envs": 8,
    "n_rollout_steps": 64,
    "checkpoint_minutes": 0.05,
}
ROLLOUT = 8 * 64
AGENTS, TASKS, SEEDS = ("CNN-PPO", "HELM"), ("RandomMaze-v0", "MiniGrid-Empty-5x5-v0"), range(3)
SHORT = "short.json"
FOLDERS = [
    Path("experiments", agent, task, f"short_seed={seed}")
    for seed in SEEDS
    for agent in AGENTS
    for task in TASKS
]
Snapshot = dict[Path, int]


class Kill(NamedTuple):
    """What was there when everything was killed.

    Attributes:
        seconds: After the sweep was started.
        n_killed: Processes.
        finished: Files of the finished runs, with the times they were last written.
        trained: Environment steps that each unfinished run had noted.
    """

    seconds: float
    n_killed: int
    finished: Snapshot
    trained: dict[Path, int]


def main() -> int:
    """Do it, check it, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("curves.png"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        alone, swept = Path(place, "alone"), Path(place, "swept")
        seconds_alone = one_after_another(alone)
        print(f"one after another: {seconds_alone:.0f} s", flush=True)
        dice = random.Random(arguments.seed)
        output = arguments.output.resolve()
        kills, seconds = until_done(swept, arguments.kills, dice, seconds_alone, output)
        check(swept, kills)
        report(alone, swept, kills, seconds)
    print(f"written to {output}")
    return 0


def one_after_another(workplace: Path) -> float:
    """Train all runs with main.py, each when the one before has ended; return the seconds."""
    prepare(workplace)
    begun = time.perf_counter()
    for folder in FOLDERS:
        _, agent, task, name = folder.parts
        command = [sys.executable, str(ROOT / "main.py"), "--config", SHORT, "--run-id", name]
        command += ["--var", f"model={agent}", "--var", f"env={task}"]
        command += ["--seed", name.removeprefix("short_seed=")]
        with (workplace / "log").open("a") as log:
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
            subprocess.run(
                command, cwd=workplace, env=environment, stdout=log, stderr=log, check=True
            )
    return time.perf_counter() - begun


def until_done(
    workplace: Path, n_kills: int, dice: random.Random, seconds_alone: float, output: Path
) -> tuple[list[Kill], float]:
    """Sweep, killed some times; return the kills and the seconds that the sweeps took."""
    prepare(workplace)
    kills, total = [], 0.0
    for remaining in reversed(range(n_kills + 1)):
        begun = time.perf_counter()
        process = start_sweep(workplace, output)
        if remaining:
            share = seconds_alone / 2 / (n_kills + 1)
            time.sleep(dice.uniform(0.4 * share, 1.2 * share))
            n_killed = kill_everything(process.pid)
            seconds = time.perf_counter() - begun
            kills.append(Kill(seconds, n_killed, finished_files(workplace), trained(workplace)))
            print(f"killed after {seconds:.0f} s: {n_killed} processes", flush=True)
        status = process.wait()
        total += time.perf_counter() - begun
        assert remaining or status == 0, (workplace / "log").read_text()
    return kills, total


def prepare(workplace: Path) -> None:
    """Make a folder with the settings file in it."""
    workplace.mkdir()
    (workplace / SHORT).write_text(json.dumps(SETTINGS))


def start_sweep(workplace: Path, output: Path) -> subprocess.Popen:
    """Start the sweep, the same command every time."""
    command = [sys.executable, str(ROOT / "sweep.py"), "--config", SHORT, "--output", str(output)]
    command += ["--var", f"model={','.join(AGENTS)}", "--var", f"env={','.join(TASKS)}"]
    command += ["--seeds", str(len(SEEDS))]
    with (workplace / "log").open("a") as log:
        return subprocess.Popen(command, cwd=workplace, stdout=log, stderr=log)


def kill_everything(root: int) -> int:
    """Kill a process and all that came from it, so that none can answer; return how many."""
    found: set[int] = set()
    while new := {root, *descendants(root)} - found:
        for process in new:
            send(process, signal.SIGSTOP)
        found |= new
    for process in found:
        send(process, signal.SIGKILL)
    while any(state(process) not in ("", "Z") for process in found):
        time.sleep(0.01)
    return len(found)


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


def state(process: int) -> str:
    """Return the letter of a process's state, Z for one that has ended."""
    return "".join(stat(process)[:1])


def send(process: int, number: signal.Signals) -> None:
    """Send a signal to a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


def description(folder: Path) -> dict[str, Any]:
    """Return what run.json says."""
    path = folder / "run.json"
    return json.loads(path.read_text()) if path.exists() else {}


def finished_files(workplace: Path) -> Snapshot:
    """Return when the files of the finished runs were last written."""
    folders = [workplace / folder for folder in FOLDERS]
    done = [folder for folder in folders if "finished" in description(folder)]
    return {path: path.stat().st_mtime_ns for folder in done for path in folder.iterdir()}


def trained(workplace: Path) -> dict[Path, int]:
    """Return the steps that the begun, unfinished runs have noted."""
    folders = [workplace / folder for folder in FOLDERS]
    begun = [folder for folder in folders if "finished" not in (description(folder) or "finished")]
    return {folder: read_progress(folder).env_steps for folder in begun}


def rows(folder: Path) -> list[dict[str, str]]:
    """Return a run's metrics without what the clock says."""
    table = read_rows(folder / FILE)
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in table]


def check(workplace: Path, kills: list[Kill]) -> None:
    """Assert that all is there, once."""
    there = {path.parent for path in (workplace / "experiments").rglob("metrics.csv")}
    assert there == {workplace / folder for folder in FOLDERS}, there
    expected = list(range(ROLLOUT, SETTINGS["n_steps"] + 1, ROLLOUT))
    for folder in there:
        assert "finished" in description(folder), f"{folder} is not finished"
        assert [int(row["env_steps"]) for row in rows(folder)] == expected, f"{folder}: rows"
        n_resumed = len(description(folder).get("resumed", []))
        n_killed = sum(folder in kill.trained for kill in kills)
        assert n_resumed == n_killed, f"{folder}: killed {n_killed} times, resumed {n_resumed}"
    for kill in kills:
        for path, written in kill.finished.items():
            assert path.stat().st_mtime_ns == written, f"{path} was written after its run had ended"


def report(alone: Path, swept: Path, kills: list[Kill], seconds: float) -> None:
    """Print what happened."""
    cut = again = 0
    for number, kill in enumerate(kills):
        for folder, env_steps in kill.trained.items():
            earlier = sum(folder in before.trained for before in kills[:number])
            cut += 1
            again += env_steps - description(folder)["resumed"][earlier]["env_steps"]
    same = sum(rows(alone / folder) == rows(swept / folder) for folder in FOLDERS)
    total = len(FOLDERS) * SETTINGS["n_steps"]
    print(
        f"killed {len(kills)} times, {sum(kill.n_killed for kill in kills)} processes, {cut} runs "
        f"cut: {len(FOLDERS)} complete runs, none begun twice\n"
        f"steps noted before a kill and trained again from the checkpoint: {again:,} of {total:,}\n"
        f"metrics equal to the undisturbed run's in every digit: {same} of {len(FOLDERS)}\n"
        f"all sweeps together: {seconds:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
