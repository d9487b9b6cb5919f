"""Publish a trained agent: to a model hub, or as a folder.

What others get is what eval.py plays, without what a run needs to go on, as safetensors and JSON;
settings, metrics, a curve, and a card with scores. eval.py --ckpt-path hub:OWNER/NAME plays it.
"""

import utils.starting  # noqa: F401

# isort: split
import argparse
import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import eval as evaluation
from runs.folder import SETTINGS
from sharing.fetched import HUB
from sharing.published_run import Source, evaluations, shortened_settings, write_published
from trainers.checkpoint import (
    BEST,
    LAST,
    checkpoint_config,
    find_checkpoint,
    load_checkpoint,
)
from utils.command_line import Parser, add_trust, run_program, whole_number
from utils.errors import UserError, printable
from utils.folders import check_writable
from utils.hub import HubError, check_logged_in, check_repository_name, upload
from utils.starting import typed

CHECKPOINTS = {"best": BEST, "last": LAST}


def main(argv: Sequence[str] | None = None) -> int:
    """Publish as the command line says and return the exit status."""
    return run_program(publish, argv)


def publish(argv: Sequence[str] | None) -> None:
    """Check everything, play episodes where none are known, write the files, bring them there."""
    arguments = parse_arguments(argv)
    path = checkpoint_path(arguments)
    checkpoint = load_checkpoint(path)
    if arguments.folder is None:
        check_hub(arguments.repository)
    else:
        check_folder(arguments.folder)
    for name, value in shortened_settings(checkpoint).items():
        print(printable(f"{name} is published as '{value}': others play with --var {name}=PLACE"))
    config = checkpoint_config(checkpoint, path, arguments.trust)
    source = Source(arguments.run, config, checkpoint, scores(path, checkpoint, arguments))
    if arguments.folder is not None:
        arguments.folder.mkdir(parents=True, exist_ok=True)
        write_published(source, arguments.folder, arguments.repository)
        print(f"written to {arguments.folder}: {', '.join(sorted(os.listdir(arguments.folder)))}")
        return
    with tempfile.TemporaryDirectory() as folder:
        write_published(source, Path(folder), arguments.repository)
        address = bring(Path(folder), source, arguments)
    at = f"@{arguments.revision}" if arguments.revision else ""
    print(f"published at {address}")
    print(f"play it: {shlex.join(typed('eval.py'))} --ckpt-path {HUB}{arguments.repository}{at}")


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(
        prog="publish.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("run", metavar="RUN", type=Path, help="the run's folder")
    add("repository", metavar="OWNER/NAME", nargs="?", help="where to on the hub; made if new")
    add("--checkpoint", choices=CHECKPOINTS, help="which of the run's (best, else last)")
    add("--private", action="store_true", help="for a repository that is made: yours alone")
    add("--revision", metavar="BRANCH", help="a branch of the repository, made if new (main)")
    add("--folder", metavar="OUT", type=Path, help="write the files there, bring them nowhere")
    add(
        "--n-episodes",
        metavar="N",
        type=whole_number(1, evaluation.MOST_EPISODES),
        default=10,
        help="episodes to play where no evaluation of the checkpoint is known (10)",
    )
    add_trust(parser)
    arguments = parser.parse_args(argv)
    if arguments.repository is None and arguments.folder is None:
        parser.error("name OWNER/NAME on the hub, or a --folder")
    if arguments.folder is not None and (arguments.private or arguments.revision):
        parser.error("--private and --revision are for the hub, and --folder brings nothing there")
    if arguments.revision is not None and not arguments.revision.strip():
        parser.error("--revision is empty, name a branch")
    return arguments


def checkpoint_path(arguments: argparse.Namespace) -> Path:
    """Return the checkpoint of the run that is meant.

    Raises:
        UserError: the folder is not a run's, or has no such checkpoint.
    """
    found = find_checkpoint(arguments.run, "RUN")
    if found == arguments.run:
        raise UserError(
            f"RUN {found}: a file. Name the run's folder, and --checkpoint best or last"
        )
    if not (arguments.run / SETTINGS).is_file():
        raise UserError(f"RUN {arguments.run}: not a run folder, it has no {SETTINGS}")
    if arguments.checkpoint is None:
        return found
    path = arguments.run / CHECKPOINTS[arguments.checkpoint]
    if not path.is_file():
        raise UserError(f"--checkpoint {arguments.checkpoint}: there is no {path}")
    return path


def check_hub(repository: str) -> None:
    """Raise UserError unless the hub is in reach, knows the user and could have the name."""
    try:
        check_repository_name(repository)
        check_logged_in()
    except HubError as error:
        raise UserError(f"{repository}: {error}") from None


def check_folder(folder: Path) -> None:
    """Raise UserError unless files can be written into a folder in which nothing is yet."""
    check_writable(folder, "--folder")
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"--folder {folder}: holds something. Name a new folder, or an empty one")


def scores(path: Path, checkpoint: dict, arguments: argparse.Namespace) -> list[dict]:
    """Return what eval.py has found out about a checkpoint, playing episodes if that is nothing."""
    env_steps = checkpoint["env_steps"]
    if not evaluations(path, env_steps):
        n_episodes = str(arguments.n_episodes)
        trust = ["--trust"] * arguments.trust
        evaluation.play(["--ckpt-path", str(path), "--n-episodes", n_episodes, *trust])
    return evaluations(path, env_steps)


def bring(folder: Path, source: Source, arguments: argparse.Namespace) -> str:
    """Bring the files to the hub and return their address."""
    config, env_steps = source.checkpoint["config"], source.checkpoint["env_steps"]
    message = f"{config['model']} on {config['env']} after {env_steps:,} steps"
    to = arguments.repository, message, arguments.private, arguments.revision
    try:
        return upload(folder, *to)
    except HubError as error:
        raise UserError(f"{arguments.repository}: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
