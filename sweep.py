"""Train a grid of runs side by side with Ray, on this machine or on a cluster; or search settings.

Every combination of a settings file, a value of each list and a seed becomes an ordinary run
folder. A run that fails or is killed resumes from its checkpoint, up to --retries times; the same
command typed again trains only the missing runs.

With --search N, settings are drawn from ranges, guided by the results so far: instead of a value
give {"low": 1e-5, "high": 1e-3, "log": true} or {"choices": ["LSTM", "GPT"]}.
"""

import utils.starting  # noqa: F401

# isort: split
import argparse
import json
import re
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from sweeps import grid, jobs
from sweeps.jobs import Job, State
from trainers import parts  # noqa: F401  hands all parts to the settings
from trainers.settings import CheckpointSettings, RunSettings
from utils.command_line import GIVEN, Parser, add_trust, add_var, run_program, whole_number
from utils.errors import Interrupted, RunError, UserError, cli_command, raise_all
from utils.files import check_writable
from utils.loggers import RETURN
from utils.packages import check_installed
from utils.run_folder import EXPERIMENTS, SETTINGS, locked, usable_cores
from utils.settings import Config

# The seeds of the published experiments (arXiv:2205.12258).
PAPER_SEEDS = Path(grid.__file__).with_name("paper_seeds.json")
MOST_SEEDS, MOST_CPUS, MOST_GPUS, MOST_RETRIES = 10_000, 1024, 64, 1000
Check = Callable[[Config], None]


def main(argv: Sequence[str] | None = None) -> int:
    return run_program(sweep, argv)


def sweep(argv: Sequence[str] | None) -> None:
    arguments = parse_arguments(argv)
    do = sweep_search if arguments.search else sweep_grid
    do(arguments, argv, partial(check_settings, n_gpus=arguments.gpus))


def sweep_grid(arguments: argparse.Namespace, argv: Sequence[str] | None, check: Check) -> None:
    agents = arguments.agents.split(",") if arguments.agents else ()
    runs = grid.make_grid(arguments.config, arguments.lists, arguments.name, agents)
    raise_all(
        lambda: grid.check_runs(runs, check, arguments.output, arguments.trust),
        *machine_checks(arguments),
    )
    work = [Job(run) for run in runs]
    if arguments.dry_run:
        print("\n".join(map(jobs.status_line, work)))
        print(cost(work))
        return
    missing = [job.run.folder for job in work if job.state is not State.DONE]
    stopped_by = None
    if missing:
        with jobs.reserved(missing):
            stopped_by = train(jobs.Jobs(work), arguments)
    print("\n".join(map(jobs.status_line, work)))
    print(jobs.summary(work))
    if any(job.state is State.STOPPED for job in work):
        raise_interrupted(stopped_by, argv)
    done = [job.run for job in work if job.state is State.DONE]
    if done:
        grid.draw(done, arguments.output)
    raise_failed(work)


def sweep_search(arguments: argparse.Namespace, argv: Sequence[str] | None, check: Check) -> None:
    from sweeps import search  # here, since Optuna takes a second to be imported

    space = search.read_space(next(iter(arguments.config), None), arguments.var)
    corners = space.corners()
    arguments.name, arguments.seed = arguments.name or "search", corners[0].seed
    folder = search.SEARCHES / arguments.name
    raise_all(
        *(partial(check, corner) for corner in corners),
        lambda: check_name(arguments.name),
        lambda: check_writable(folder, "search:"),
        *machine_checks(arguments),
    )
    if arguments.dry_run:
        width = max(map(len, space.ranges))
        print("\n".join(f"{name:{width}}  {each}" for name, each in space.ranges.items()))
        steps = arguments.search * corners[0].n_steps
        print(f"{arguments.search} trials: {steps:,} environment steps at most")
        return
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):  # two searches in one journal would repeat each other's trials
        study = search.open_study(folder, arguments.pruner, space.described(arguments.metric))
        work = search.Search(study, space, arguments, check)
        stopped_by = train(work, arguments) if work.n_to_come else None
        print(search.write_results(study, space.ranges, folder))
    if stopped_by is not None:
        raise_interrupted(stopped_by, argv)
    if (folder / SETTINGS).exists():
        print(f"train it: {shlex.join(cli_command('main.py'))} --config {folder / SETTINGS}")
    raise_failed([job for job in work.jobs if not job.is_cut])


def check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9=.+-]{0,79}", name):
        allowed = "one folder name of up to 80 letters, digits and = . + -"
        raise UserError(f"--name {name}: not a name for a search. Choose {allowed}")


def raise_interrupted(stopped_by: signal.Signals | None, argv: Sequence[str] | None) -> None:
    if stopped_by is not None:
        again = shlex.join([*cli_command("sweep.py"), *(argv or ())])
        raise Interrupted(f"interrupted. Go on with: {again}", stopped_by)


def raise_failed(jobs: Sequence[Job]) -> None:
    failed = [job for job in jobs if job.state is not State.DONE]
    if failed:
        raise RunError("\n".join(f"{job.run.folder}: {job.note}. See {job.log}" for job in failed))


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; `lists` has the values of each setting, including `seed`."""
    parser = Parser(
        prog="sweep.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add, number = parser.add_argument, partial(whole_number, 1)
    add("--config", metavar="FILE", nargs="+", type=Path, default=[], help="settings files")
    values = "values of one setting of main.py; repeatable"
    add_var(parser, values, "KEY=VALUE,VALUE")
    add("--agents", metavar="NAME,NAME", help="some of the settings files' agents (all)")
    add("--seeds", metavar="N", type=seeds, help="seeds 0 to N-1, or paper: the published thirty")
    add("--name", help="first part of the run folders' names")
    add("--cpus", metavar="N", type=number(MOST_CPUS), default=1, help="cores a run (1)")
    add("--gpus", metavar="X", type=gpus, default=0.0, help="GPUs a run, 0.25: four share one (0)")
    add("--address", help="Ray cluster, such as auto; without it, this machine")
    again, retries = "further attempts of a run that fails (3)", whole_number(0, MOST_RETRIES)
    add("--retries", metavar="N", type=retries, default=3, help=again)
    add("--output", metavar="FILE", type=Path, default=Path("curves.png"), help="(curves.png)")
    shown = "print the grid and its number of steps, train nothing"
    add("--dry-run", action="store_true", help=shown)
    add_trust(parser)
    add = parser.add_argument_group("search").add_argument
    trials = "number of trials, including those of earlier calls"
    add("--search", metavar="N", type=number(grid.MOST_RUNS), help=trials)
    add("--sampler", choices=("tpe", "random"), default="tpe", help="draws the values (tpe)")
    pruners = ("median", "asha", "none")
    add("--pruner", choices=pruners, default="median", help="ends runs early (median)")
    metric = f"column of metrics.csv to maximise ({RETURN})"
    add("--metric", metavar="NAME", default=RETURN, help=metric)
    add("--seed", metavar="N", help="of the runs and of the sampler; short for --var seed=N")
    arguments = parser.parse_args(argv)
    check_options(parser, arguments)
    if arguments.search:
        return arguments
    arguments.lists = grid.parse_lists(arguments.var)
    if arguments.seeds:
        if "seed" in arguments.lists:
            parser.error("--seeds and --var seed=... both name the seeds, give one of them")
        arguments.lists["seed"] = [str(seed) for seed in arguments.seeds]
    return arguments


def check_options(parser: Parser, arguments: argparse.Namespace) -> None:
    wrong = ["sampler", "pruner", "metric", "seed"]
    why = "is for --search N; a grid's seeds are --seeds N"
    if arguments.search:
        wrong, why = ["seeds", "agents", "output"], "is for a grid, and --search makes none"
    for name in wrong:
        if name in vars(arguments).get(GIVEN, ()):
            parser.error(f"--{name} {why}")
    if arguments.search and len(arguments.config) > 1:
        parser.error("--config: a search has one settings file")
    if arguments.seed is not None:
        arguments.var = [*arguments.var, f"seed={arguments.seed}"]


def seeds(text: str) -> tuple[int, ...]:
    if text == "paper":
        return tuple(json.loads(PAPER_SEEDS.read_text()))
    return tuple(range(whole_number(1, MOST_SEEDS)(text)))


def gpus(text: str) -> float:
    """Return a share of one GPU or a number of whole GPUs: Ray allots no other amounts."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (0 <= value <= 1 or (1 <= value <= MOST_GPUS and value.is_integer())):
        raise argparse.ArgumentTypeError(
            f"'{text[:40]}' is neither a share from 0 to 1 nor a whole number up to {MOST_GPUS}"
        )
    return value


def check_settings(config: Config, n_gpus: float) -> None:
    """Raise UserError where a run of these settings cannot work in a sweep."""
    from trainers import build  # not above: it brings PyTorch, and --help would wait

    build.check(config.part(RunSettings))
    if not config.part(CheckpointSettings).save_ckpt:
        raise UserError("save_ckpt: false. A sweep resumes from checkpoints, leave it true")
    if config.device not in ("auto", "cpu", "cuda"):
        raise UserError(f"device: '{config.device}'. Ray allots the GPUs: use auto, cpu or cuda")
    if config.device == "cuda" and not n_gpus:
        raise UserError("device: 'cuda' needs --gpus, such as --gpus 0.25 for four runs on one")


def machine_checks(arguments: argparse.Namespace) -> Sequence[Callable[[], None]]:
    return (
        lambda: check_installed("ray", "a sweep"),
        lambda: check_room(arguments),
        lambda: jobs.check_address(arguments.address),
        lambda: check_writable(EXPERIMENTS, "run folders:"),
    )


def check_room(arguments: argparse.Namespace) -> None:
    """Raise UserError where this machine is too small for one run; Ray checks a cluster later."""
    import torch

    cores, n_gpus = usable_cores(), torch.cuda.device_count()
    fits = arguments.cpus <= cores and arguments.gpus <= n_gpus
    if not (arguments.address or fits):
        asked = f"--cpus {arguments.cpus} --gpus {arguments.gpus:g}"
        raise UserError(f"{asked}: this machine has {cores} cores and {n_gpus} GPUs")


def cost(jobs: Sequence[Job]) -> str:
    missing = [job for job in jobs if job.state is not State.DONE]
    steps = sum(job.steps_left for job in missing)
    return f"{len(jobs)} runs, {len(missing)} of them missing: {steps:,} environment steps"


def train(work: jobs.Jobs, arguments: argparse.Namespace) -> signal.Signals | None:
    """Train the missing runs; return the signal that ended them early, if one did."""
    from trainers.checkpoint import Interruption

    with (
        jobs.ray_pool(arguments.address, arguments.cpus, arguments.gpus, arguments.trust) as pool,
        Interruption("the runs save and end; Ctrl-C again leaves at once") as interruption,
    ):
        is_asked_to_stop = lambda: interruption.stop is not None  # noqa: E731
        jobs.show(work, jobs.run_jobs(work, pool, arguments.retries, is_asked_to_stop))
    return interruption.stop


if __name__ == "__main__":
    sys.exit(main())
