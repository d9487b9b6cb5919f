"""Publish a trained agent: to a model hub, or as a folder.

The agent is written as safetensors and JSON, without the state of its training; beside it settings,
metrics, a curve, and a card with scores. eval.py --ckpt-path hub:OWNER/NAME plays it.
"""

import utils.starting  # noqa: F401

# isort: split
import argparse
import contextlib
import os
import re
import shlex
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import eval as evaluation
import trainers.parts  # noqa: F401  hands the parts to the settings
from analysis.figures import Labels, draw, save_figure
from analysis.run_data import group_runs, literal, markdown, read_evaluation, read_runs
from analysis.statistics import summarize
from eval import CARD, CURVE, HUB
from trainers.checkpoint import BEST, LAST, find_checkpoint, load_checkpoint, save_published
from utils.answer_cache import AnswerCache
from utils.command_line import Parser, add_trust, run_program, whole_number
from utils.errors import RunError, UserError, cli_command, escape, one_line
from utils.files import check_writable, open_of_run, write_text
from utils.hub import check_access, upload
from utils.loggers import FILE as METRICS
from utils.loggers import RETURN, check_size
from utils.run_folder import (
    DESCRIPTION,
    PUBLISHED,
    SETTINGS,
    check_settings,
    description_of,
    load_run_config,
    write_json,
)
from utils.settings import Config, Values
from utils.user_modules import is_environment_package, named_modules

ANSWERS = "answers.sqlite"
CHECKPOINTS = {"best": BEST, "last": LAST}
NUMBERS = ("return_mean", "return_std", "length_mean", "length_std")
EVALUATION: dict[str, Any] = dict.fromkeys(NUMBERS, int | float)
EVALUATION |= {"n_episodes": int, "seed": int, "env_steps": int}
LIBRARY, TASK = "helm", "reinforcement-learning"
# A path that leads out of the working folder, at the start or after an equals sign or a quote.
PLACE = re.compile(r"""(^|[="'])((?:~|\.\.|/)[^"']*)""")
PUBLIC = {"command", "started", "finished", "python", "packages", "hardware", "weights"}
PUBLIC |= {"git_commit", "git_dirty", "source_sha256"}
PUBLIC |= {"resumed", "env_steps", "time", "exact", "differences"}


def main(argv: Sequence[str] | None = None) -> int:
    return run_program(publish, argv)


def publish(argv: Sequence[str] | None) -> None:
    arguments = parse_arguments(argv)
    run, output, repository = arguments.run, arguments.folder, arguments.repository
    # All that can be wrong is found before episodes are played.
    config = load_run_config(run, arguments.trust)
    check_size(run / METRICS)
    path = find_checkpoint(run, "RUN")
    if arguments.checkpoint is not None:
        path = run / CHECKPOINTS[arguments.checkpoint]
    checkpoint = load_checkpoint(path)
    settings = checkpoint["config"]
    check_settings(run, config, settings, "the checkpoint")
    answers = None
    if arguments.answers is not None:
        answers = AnswerCache(arguments.answers, "--answers", read_only=True)
    if output is None:
        check_access(repository)
    else:
        check_writable(output, "--folder")
        if output.exists() and any(output.iterdir()):
            raise UserError(f"--folder {output}: not empty. Name a new or empty folder")
    public = redact_paths(settings)
    for name in settings:
        if public[name] != settings[name]:
            told = f"{name} is published as '{public[name]}': others play with --var {name}=PLACE"
            print(one_line(told))
    played = evaluations(path, checkpoint["env_steps"])
    if not played:  # a card without a score says nothing about the agent
        words = ["--ckpt-path", str(path), "--n-episodes", str(arguments.n_episodes)]
        words += ["--trust"] * arguments.trust
        evaluation.play(path, evaluation.parse_arguments(words))
        played = evaluations(path, checkpoint["env_steps"])
    with tempfile.TemporaryDirectory() as temporary:
        folder = output or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if answers is not None:  # one closed file, without those that SQLite keeps beside it
            try:
                answers.connection.execute("VACUUM INTO ?", (str(folder / ANSWERS),))
            except sqlite3.Error as error:
                raise RunError(f"{folder / ANSWERS}: cannot be written ({error})") from None
        place = f"{HUB}{repository}" if repository else "THIS_FOLDER"
        config = config.replace(**public)
        write_published(folder, run, config, checkpoint | {"config": public}, played, place)
        if output is not None:
            print(f"written to {output}: {', '.join(sorted(os.listdir(output)))}")
            return
        message = f"{config.model} on {config.env} after {checkpoint['env_steps']:,} steps"
        address = upload(folder, repository, message, arguments.private, arguments.revision)
    print(f"published at {address}")
    at = f"@{arguments.revision}" if arguments.revision else ""
    print(f"play it: {shlex.join(cli_command('eval.py'))} --ckpt-path {HUB}{repository}{at}")


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
    run: Path,
    config: Config,
    checkpoint: dict[str, Any],
    played: list[dict[str, Any]],
    place: str,
) -> None:
    """Write the published files into an existing folder.

    `config` and the checkpoint's settings are without places of this machine; `place` is how
    eval.py names the agent.
    """
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
    with contextlib.suppress(UserError):  # no metrics, or no episode has ended
        runs = read_runs([run], RETURN, "steps", [])
        results = [summarize(group, "mean", None) for group in group_runs(runs, ["model"], [])]
        save_figure(draw(results, [], Labels(RETURN, "steps", "mean")), folder / CURVE)
    has_curve = (folder / CURVE).exists()
    text = card(config, checkpoint, description, played, place, has_curve)
    write_text(folder / CARD, text)


def redact_paths(value: Any) -> Any:
    """Return a JSON value; paths that lead out of the working folder keep their last name only."""
    if isinstance(value, str):
        return PLACE.sub(lambda found: found[1] + Path(found[2]).name, value)
    if isinstance(value, Mapping):
        return {name: redact_paths(each) for name, each in value.items()}
    if isinstance(value, list):
        return [redact_paths(each) for each in value]
    return value


def public_description(description: Values) -> dict[str, Any]:
    kept = {name: value for name, value in description.items() if name in PUBLIC}
    match kept.get("resumed"):
        case [*entries] if all(isinstance(entry, dict) for entry in entries):
            kept["resumed"] = [public_description(entry) for entry in entries]
    return redact_paths(kept)


def card(
    config: Config,
    checkpoint: Values,
    description: Values,
    played: Sequence[dict[str, Any]],
    place: str,
    has_curve: bool,
) -> str:
    """Return the card: the head for a hub, scores, and how to play and train the agent."""
    from huggingface_hub import EvalResult, ModelCardData

    # One line each, and no Markdown or HTML: they may come from a run folder that was received.
    env, algorithm, model = map(escape, (config.env, config.algorithm, config.model))
    results = [
        EvalResult(
            task_type=TASK,
            dataset_type=env,
            dataset_name=env,
            metric_type="mean_reward",
            metric_value=f"{one['return_mean']:.2f} +/- {one['return_std']:.2f}",
        )
        for one in played[:1]
    ]
    data = ModelCardData(
        library_name=LIBRARY,
        pipeline_tag=TASK,
        tags=list(dict.fromkeys((TASK, LIBRARY, env, algorithm, model))),
        model_name=model if results else None,
        eval_results=results or None,
    )
    scores: list[list[object]] = [["mean return", "mean length", "success", "episodes", "seed"]]
    for one in played:
        means = [f"{one[f'{n}_mean']:.3f} ± {one[f'{n}_std']:.3f}" for n in ("return", "length")]
        success = f"{one['success_mean']:.1%}" if "success_mean" in one else "–"
        scores.append([*means, success, one["n_episodes"], one["seed"]])
    named = set(named_modules(config.as_dict()).values())
    modules = sorted(each for each in named if not is_environment_package(each))
    trusting = " --trust" if modules else ""
    lines = [
        f"---\n{data.to_yaml()}\n---\n",
        f"# {literal(config.model)} on {literal(config.env)}\n",
        f"Trained by {literal(config.algorithm)}, {checkpoint['env_steps']:,} environment steps. "
        f"All settings are in [{SETTINGS}]({SETTINGS}).\n",
    ]
    if has_curve:
        lines.append(f"![Its mean return while it was trained]({CURVE})\n")
    lines += [markdown(scores), f"```\npython eval.py --ckpt-path {place}{trusting}\n```\n"]
    if modules:
        lines.append(f"Needs code that is not contained: {literal(', '.join(modules))}.\n")
    if checkpoint["weights"]:
        values, weights = config.as_dict(), checkpoint["weights"]
        rows = [[name, values.get(name, ""), each] for name, each in sorted(weights.items())]
        lines.append(f"Needs these weights:\n\n{markdown([['setting', 'name', 'sha256'], *rows])}")
    if isinstance(words := description.get("command"), list):
        lines.append(f"Trained with\n\n```\n{escape(shlex.join(map(str, words)))}\n```\n")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
