"""Publish a trained agent: to a model hub, or as a folder.

The agent is written as safetensors and JSON, without the state of its training; beside it settings,
metrics, a curve, and a card with scores. eval.py --ckpt-path hub:OWNER/NAME plays it.
"""

import utils.starting  # noqa: F401

# isort: split
import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import eval as evaluation
from analysis.figures import Labels, draw, save_figure
from analysis.run_data import (
    Table,
    group_runs,
    literal,
    markdown,
    read_evaluation,
    read_runs,
)
from analysis.statistics import summarize
from eval import CARD, CURVE, HUB
from rewards.suggesters.answer_cache import AnswerCache
from trainers.checkpoint import (
    BEST,
    LAST,
    find_checkpoint,
    load_checkpoint,
    save_published,
)
from utils.command_line import Parser, add_trust, run_program, whole_number
from utils.errors import COMMANDS, RunError, UserError, cli_command, escape, one_line
from utils.files import check_writable, open_of_run, write_text
from utils.hub import HubError, check_logged_in, check_repository_name, upload
from utils.loggers import FILE as METRICS
from utils.loggers import RETURN, check_size
from utils.run_folder import (
    DESCRIPTION,
    PUBLISHED,
    SETTINGS,
    check_settings,
    description_of,
    load_run_config,
    stored_config,
    write_json,
)
from utils.settings import Config, all_settings, read_settings
from utils.user_modules import is_environment_package, named_modules

ANSWERS = "answers.sqlite"
CHECKPOINTS = {"best": BEST, "last": LAST}
NUMBERS = ("return_mean", "return_std", "length_mean", "length_std")
EVALUATION: dict[str, Any] = dict.fromkeys(NUMBERS, int | float)
EVALUATION |= {"n_episodes": int, "seed": int, "env_steps": int}
LIBRARY, TASK = "helm", "reinforcement-learning"
# A path that leads out of the working folder, at the start or after an equals sign or a quote.
PLACE = re.compile(r"""(^|[="'])((?:~|\.\.|/)[^"']*)""")
PUBLIC = {
    *("command", "started", "finished", "python", "packages", "hardware", "weights"),
    *("git_commit", "git_dirty", "source_sha256"),
    *("resumed", "env_steps", "time", "exact", "differences"),
}


class Facts(NamedTuple):
    """The contents of a card.

    Attributes:
        config: The settings, as published.
        weights: sha256 of the pretrained parts, by the setting that names them.
        env_steps: Environment steps of training.
        description: run.json, as published.
        evaluations: Results of eval.py; the first gives the score.
        repository: Such as "someone/model"; None before it has one.
        has_curve: Whether `CURVE` lies beside the card.
    """

    config: Config
    weights: dict[str, str]
    env_steps: int
    description: dict[str, Any]
    evaluations: Sequence[dict[str, Any]]
    repository: str | None
    has_curve: bool


def main(argv: Sequence[str] | None = None) -> int:
    return run_program(publish, argv)


def publish(argv: Sequence[str] | None) -> None:
    arguments = parse_arguments(argv)
    path = checkpoint_path(arguments)
    checkpoint = load_checkpoint(path)
    answers = None
    if arguments.answers is not None:
        answers = AnswerCache(arguments.answers, "--answers", read_only=True)
    if arguments.folder is None:
        try:
            check_repository_name(arguments.repository)
            check_logged_in()
        except HubError as error:
            raise UserError(f"{arguments.repository}: {error}") from None
    else:
        check_writable(arguments.folder, "--folder")
        if arguments.folder.exists() and any(arguments.folder.iterdir()):
            raise UserError(f"--folder {arguments.folder}: not empty. Name a new or empty folder")
    settings = checkpoint["config"]
    public = redact_paths(settings)
    for name in settings:
        if public[name] != settings[name]:
            told = f"{name} is published as '{public[name]}': others play with --var {name}=PLACE"
            print(one_line(told))
    stored = stored_config(settings, str(path), path.parent, arguments.trust)
    here = load_run_config(arguments.run, arguments.trust)
    check_settings(arguments.run, here, settings, "the checkpoint")
    config = stored.replace(**public)
    played = evaluations(path, checkpoint["env_steps"])
    if not played:  # a card without a score says nothing about the agent
        words = ["--ckpt-path", str(path), "--n-episodes", str(arguments.n_episodes)]
        words += ["--trust"] * arguments.trust
        evaluation.play(path, evaluation.parse_arguments(words))
        played = evaluations(path, checkpoint["env_steps"])
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if answers is not None:  # one closed file, without those that SQLite keeps beside it
            try:
                answers.connection.execute("VACUUM INTO ?", (str(folder / ANSWERS),))
            except sqlite3.Error as error:
                raise RunError(f"{folder / ANSWERS}: cannot be written ({error})") from None
        write_published(folder, arguments, config, checkpoint | {"config": public}, played)
        if arguments.folder is not None:
            print(f"written to {folder}: {', '.join(sorted(os.listdir(folder)))}")
            return
        message = f"{config.model} on {config.env} after {checkpoint['env_steps']:,} steps"
        to = arguments.repository, message, arguments.private, arguments.revision
        try:
            print(f"published at {upload(folder, *to)}")
        except HubError as error:
            raise UserError(f"{arguments.repository}: {error}") from None
    at = f"@{arguments.revision}" if arguments.revision else ""
    print(
        f"play it: {shlex.join(cli_command('eval.py'))} --ckpt-path {HUB}{arguments.repository}{at}"
    )


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="publish.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("run", metavar="RUN", type=Path, help="the run's folder")
    add("repository", metavar="OWNER/NAME", nargs="?", help="repository on the hub; made if new")
    add("--checkpoint", choices=CHECKPOINTS, help="of the run (best, else last)")
    add("--private", action="store_true", help="a new repository is yours alone")
    add("--revision", metavar="BRANCH", help="a branch of the repository, made if new (main)")
    add("--answers", metavar="FILE", type=Path, help=f"a suggester_cache, published as {ANSWERS}")
    add("--folder", metavar="OUT", type=Path, help="write the files there, upload nothing")
    number = whole_number(1, evaluation.MOST_EPISODES)
    played = "episodes to play if the checkpoint has no evaluation yet (10)"
    add("--n-episodes", metavar="N", type=number, default=10, help=played)
    add_trust(parser)
    arguments = parser.parse_args(argv)
    if arguments.repository is None and arguments.folder is None:
        parser.error("name OWNER/NAME on the hub, or a --folder")
    if arguments.folder is not None and (arguments.private or arguments.revision):
        parser.error("--private and --revision are for the hub, and --folder uploads nothing")
    if arguments.revision is not None and not arguments.revision.strip():
        parser.error("--revision is empty, name a branch")
    return arguments


def checkpoint_path(arguments: argparse.Namespace) -> Path:
    found = find_checkpoint(arguments.run, "RUN")
    if found == arguments.run:
        raise UserError(
            f"RUN {found}: a file. Name the run's folder, and --checkpoint best or last"
        )
    if not (arguments.run / SETTINGS).is_file():
        raise UserError(f"RUN {arguments.run}: not a run folder, it has no {SETTINGS}")
    check_size(arguments.run / METRICS)
    if arguments.checkpoint is None:
        return found
    path = arguments.run / CHECKPOINTS[arguments.checkpoint]
    if not path.is_file():
        raise UserError(f"--checkpoint {arguments.checkpoint}: there is no {path}")
    return path


def evaluations(checkpoint: Path, env_steps: int) -> list[dict[str, Any]]:
    """Return eval.py's results for a checkpoint in its own environment, most episodes first.

    Results with another `env_steps` belong to an earlier checkpoint of this name and are left out.
    """
    found = []
    for path in sorted(checkpoint.parent.glob(f"{checkpoint.stem}_eval_*.json")):
        with contextlib.suppress(UserError):  # another program's file
            found.append(read_evaluation(path, EVALUATION))
    as_trained = [each for each in found if not (each.get("random") or each["var"])]
    counting = [each for each in as_trained if each["env_steps"] == env_steps]
    return sorted(counting, key=lambda each: -each["n_episodes"])


def write_published(
    folder: Path,
    arguments: argparse.Namespace,
    config: Config,
    checkpoint: dict[str, Any],
    played: list[dict[str, Any]],
) -> None:
    """Write the published files into an existing folder.

    `config` and the checkpoint's settings are without places of this machine.
    """
    run = arguments.run
    save_published(folder / PUBLISHED, checkpoint)
    write_json(folder / SETTINGS, checkpoint["config"])
    description = public_description(description_of(run))
    write_json(folder / DESCRIPTION, description)
    if (run / METRICS).is_file():
        with (
            open(run / METRICS, "rb", opener=open_of_run) as theirs,
            open(folder / METRICS, "xb") as copy,
        ):
            shutil.copyfileobj(theirs, copy)
    has_curve = True
    try:
        runs = read_runs([run], RETURN, "steps", [])
        results = [summarize(group, "mean", None) for group in group_runs(runs, ["model"], [])]
        save_figure(draw(results, [], Labels(RETURN, "steps", "mean")), folder / CURVE)
    except UserError:  # no metrics, or no episode has ended
        has_curve = False
    told = checkpoint["weights"], checkpoint["env_steps"], description, played
    write_text(folder / CARD, card(Facts(config, *told, arguments.repository, has_curve)))


def redact_paths(value: Any) -> Any:
    """Return a JSON value; paths that lead out of the working folder keep their last name only."""
    if isinstance(value, str):
        return PLACE.sub(lambda found: found[1] + Path(found[2]).name, value)
    if isinstance(value, Mapping):
        return {name: redact_paths(each) for name, each in value.items()}
    if isinstance(value, list):
        return [redact_paths(each) for each in value]
    return value


def public_description(description: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in description.items() if name in PUBLIC}
    match kept.get("resumed"):
        case [*entries] if all(isinstance(entry, dict) for entry in entries):
            kept["resumed"] = [public_description(entry) for entry in entries]
    return redact_paths(kept)


def card(facts: Facts) -> str:
    config, place = facts.config, f"hub:{facts.repository}" if facts.repository else "THIS_FOLDER"
    by = "" if config.algorithm in config.model else f", trained by {literal(config.algorithm)}"
    named = set(named_modules(config.as_dict()).values())
    modules = sorted(each for each in named if not is_environment_package(each))
    trusting = " --trust" if modules else ""
    sections = [
        f"---\n{_metadata(facts)}\n---\n",
        f"# {literal(config.model)} on {literal(config.env)}\n",
        f"The agent after {facts.env_steps:,} environment steps{by}, seed {config.seed}.\n",
    ]
    if facts.has_curve:
        sections.append(f"![Its mean return while it was trained]({CURVE})\n")
    sections += [
        f"## Scores\n\n{markdown(_scores(facts.evaluations))}",
        f"## Play it\n\n```\npython eval.py --ckpt-path {place}{trusting}\n```\n",
        f"## Train it\n{_training(facts.description)}",
    ]
    if modules:
        needed = "Not contained. Get it from the author, read it, and play in the folder it is in."
        sections.insert(-1, f"{needed} Code: {literal(', '.join(modules))}.\n")
    if facts.weights:
        rows = [[name, getattr(config, name, ""), each] for name, each in facts.weights.items()]
        table = markdown([["setting", "name", "sha256"], *sorted(rows)])
        needed = "Not contained; their checksums are compared when the agent is loaded."
        sections.append(f"## Pretrained parts\n\n{needed}\n\n{table}")
    read = read_settings(config)
    names = all_settings(config.as_dict())
    values = [[name, json.dumps(getattr(config, name))] for name in names if name in read]
    return "\n".join([*sections, f"## Settings\n\n{markdown([['setting', 'value'], *values])}"])


def _metadata(facts: Facts) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    config = facts.config
    env, algorithm, model = map(escape, (config.env, config.algorithm, config.model))
    results = [
        EvalResult(
            task_type=TASK,
            task_name=TASK,
            dataset_type=env,
            dataset_name=env,
            metric_type="mean_reward",
            metric_name="mean_reward",
            metric_value=f"{one['return_mean']:.2f} +/- {one['return_std']:.2f}",
            verified=False,
        )
        for one in facts.evaluations[:1]
    ]
    tags = [TASK, "deep-reinforcement-learning", LIBRARY, env, algorithm, model]
    data = ModelCardData(
        library_name=LIBRARY,
        pipeline_tag=TASK,
        tags=list(dict.fromkeys(tags)),
        model_name=model if results else None,
        eval_results=results or None,
    )
    return data.to_yaml()


def _scores(evaluations: Sequence[dict[str, Any]]) -> Table:
    with_success = any("success_mean" in one for one in evaluations)
    heading = ["mean return", "mean length", *["success"] * with_success]
    table: list[list[object]] = [[*heading, "episodes", "actions", "seed"]]
    for one in evaluations:
        row: list[object] = [
            f"{one[f'{name}_mean']:.3f} ± {one[f'{name}_std']:.3f}" for name in ("return", "length")
        ]
        if with_success:
            row.append(f"{one['success_mean']:.1%}" if "success_mean" in one else "")
        told = "most probable" if one.get("greedy") else "sampled"  # where eval.py did not say
        table.append([*row, one["n_episodes"], one.get("actions", told), one["seed"]])
    return table


def _training(description: Mapping[str, Any]) -> str:
    text, commit = "", description.get("git_commit")
    words = description.get("command")
    if command := [str(word) for word in words] if isinstance(words, list) else []:
        # The interpreter has other names on other machines: python3, python3.12; and a settings
        # file of a sweep or of the user's own is there as the published one.
        for option, value in pairwise(range(len(command))):
            if command[option] == "--config" and not command[value].startswith("configs/"):
                command[value] = SETTINGS
        # Installed programs have names of their own, and need no interpreter.
        started = Path(*command[1:2]).name
        words = [started] if started in COMMANDS.values() else ["python", *command[1:2]]
        text = f"\n```\n{escape(shlex.join([*words, *command[2:]]))}\n```\n"
    if commit:
        changed = ", with changes that were not committed" if description.get("git_dirty") else ""
        text += f"\nCommit {literal(commit)}{changed}.\n"
    return text


if __name__ == "__main__":
    sys.exit(main())
