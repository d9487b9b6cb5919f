"""Play episodes with a trained agent: returns, lengths, pages and movies."""

import utils.starting  # noqa: F401

# isort: split
import argparse
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from analysis.run_data import aligned
from utils.command_line import Parser, add_trust, add_var, run_program, whole_number
from utils.errors import UserError, escape, one_line
from utils.files import check_file, check_writable, folder_name
from utils.hub import hub_snapshot
from utils.loggers import FILE as METRICS
from utils.packages import check_installed
from utils.run_folder import DESCRIPTION, PUBLISHED, SETTINGS, write_json
from utils.seeding import N_HELD_OUT, N_TOGETHER, evaluation_seed, seed_everything
from utils.settings import Config, installed, networks_of

if TYPE_CHECKING:
    from trainers.evaluation import FinishedEpisode

# What brings PyTorch is imported where it is used: --help and a wrong option wait for nothing.

EPISODES = Path("episodes")
MOST_EPISODES = 1_000_000
NOT_DRAWN = ("DQN", "EllmDQN", "TD3")  # have no policy to sample from
LONGEST_VALUE = 40  # characters of a setting's value in a file name
HUB = "hub:"
DOWNLOADS = Path("downloads")
SHOWN = 12  # characters of a commit's hash, in a folder name
CARD, CURVE = "README.md", "curve.png"
FILES = (PUBLISHED, SETTINGS, DESCRIPTION, METRICS, CURVE, CARD)  # the files of a published run


def main(argv: Sequence[str] | None = None) -> int:
    return run_program(run, argv)


def run(argv: Sequence[str] | None) -> None:
    arguments = parse_arguments(argv)
    if arguments.video:
        check_installed("imageio", "--video")
    from trainers.checkpoint import find_checkpoint

    play(find_checkpoint(local_place(arguments.ckpt_path)), arguments)


def play(path: Path, arguments: argparse.Namespace) -> None:
    from tqdm import tqdm

    from analysis.page import page_of, write_movies
    from trainers.build import open_env, player_config, restored_agent
    from trainers.checkpoint import load_checkpoint
    from trainers.evaluation import evaluate, saliency, task_settings

    checkpoint = load_checkpoint(path)
    n_envs = min(arguments.n_episodes, N_TOGETHER)
    acting = arguments.device, arguments.trust, arguments.var, arguments.random
    config = player_config(checkpoint, path, n_envs, *acting)
    installed().check_env(config.env)
    # All that can be wrong is found before the first episode: a thousand of them take an hour.
    check_places(config, path, arguments)
    tasks = {} if arguments.tasks is None else task_settings(config, arguments.tasks)
    details = ", ".join(f"{key}={each}" for key, each in changes(arguments, config).items())
    task = escape(f"{config.env} with {details}" if details else config.env)
    source = f"{path} of step {checkpoint['env_steps']:,}"
    told = f"{config.model} on {task}, from {source}"
    if arguments.random:
        told = f"random actions on {task}, the environment of {source}"
    print(one_line(told), flush=True)
    if tasks:
        play_tasks(tasks, config, checkpoint, path, arguments)
        return

    seed = evaluation_seed(arguments.seed)  # no episode that it has been trained on
    seed_everything(seed, config.deterministic)
    in_detail = arguments.report or arguments.video
    file, folder = result_file(config, path, arguments), episode_folder(config, arguments)
    episodes = []
    with open_env(config, seed, drawn=in_detail) as env:
        heading = f"{'Chance' if arguments.random else config.model} on {task}"
        agent = None if arguments.random else checkpoint
        player = restored_agent(config, env, agent, path)
        page = page_of(env, player, heading)
        seed_everything(seed, config.deterministic)  # building networks has drawn numbers
        played = evaluate(player, env, arguments.n_episodes, arguments.greedy, seed, in_detail)
        with tqdm(played, total=arguments.n_episodes, unit=" episodes", disable=None) as recordings:
            for number, recording in enumerate(recordings, 1):
                folder.mkdir(parents=True, exist_ok=True)
                kept = folder / f"{episode_name(file, number)}.npz"
                recording.save(kept)
                if arguments.video:
                    write_movies(kept, recording, page.actions)
                if arguments.report:
                    # Of the first alone: through a language model it takes minutes for ten.
                    steps = recording.steps | recording.details
                    page.add(recording, saliency(player, steps) if number == 1 else None)
                episodes.append(recording.episode)
    result = summarize(episodes) | facts_of(checkpoint, path, player, config, arguments)
    print(table(episodes, result))
    write_json(file, result)
    print(f"written to {file}, the episodes to {folder}")
    if arguments.report:
        page.write(file.with_suffix(".html"), page_facts(result))
        print(f"open in a browser: {file.with_suffix('.html')}")


def play_tasks(
    tasks: Mapping[str, Config],
    config: Config,
    checkpoint: dict[str, Any],
    path: Path,
    arguments: argparse.Namespace,
) -> None:
    from trainers.build import open_env, restored_agent
    from trainers.evaluation import evaluate

    figures: dict[str, dict[str, Any]] = {}
    player: Any = None
    seed = evaluation_seed(arguments.seed)
    for name, own in tasks.items():
        with open_env(own, seed) as env:
            if player is None:  # one agent for all tasks: they share their spaces
                agent = None if arguments.random else checkpoint
                player = restored_agent(own, env, agent, path)
            seed_everything(seed, own.deterministic)
            played = evaluate(player, env, arguments.n_episodes, arguments.greedy, seed)
            figures[name] = summarize([recording.episode for recording in played])
        print(f"{name:30s}{figures[name]['success_mean']:6.3f}", flush=True)
    success = float(np.mean([each["success_mean"] for each in figures.values()]))
    print(f"{'mean of the tasks':30s}{success:6.3f}")
    file = result_file(config, path, arguments)
    about = facts_of(checkpoint, path, player, config, arguments)
    write_json(file, about | {"success_mean": success, "tasks": figures})
    print(f"written to {file}")


def check_places(config: Config, path: Path, arguments: argparse.Namespace) -> None:
    """Raise UserError unless all files can be written, before any episode is played."""
    from analysis.page import FORMATS

    result = result_file(config, path, arguments)
    check_writable(result.parent, "--ckpt-path")
    check_file(result)
    if arguments.report:
        check_file(result.with_suffix(".html"))
    if arguments.tasks is not None:
        return
    folder = episode_folder(config, arguments)
    check_writable(folder, "episodes:")
    endings = (".npz", *FORMATS) if arguments.video else (".npz",)
    for number in range(1, arguments.n_episodes + 1):
        for ending in endings:
            check_file(folder / f"{episode_name(result, number)}{ending}")


def result_file(config: Config, path: Path, arguments: argparse.Namespace) -> Path:
    """Return the file of the figures: beside the checkpoint, one for each way to evaluate it."""
    tasks = {} if arguments.tasks is None else {"tasks": arguments.tasks}
    changed = change_name(tasks | changes(arguments, config))
    is_greedy = arguments.greedy or networks_of(config) in NOT_DRAWN
    policy = "random" if arguments.random else "greedy" if is_greedy else "sampled"
    played = f"eval_{policy}_{arguments.n_episodes}_episodes_seed_{arguments.seed}"
    return path.with_name(f"{path.stem}_{played}{changed}.json")


def episode_folder(config: Config, arguments: argparse.Namespace) -> Path:
    """Return the folder of the episodes; names that come from outside cannot lead elsewhere."""
    player = "random" if arguments.random else folder_name(config.model)
    return EPISODES / folder_name(config.env) / f"{player}{change_name(changes(arguments, config))}"


def episode_name(result: Path, number: int) -> str:
    """Return the file name of an episode; the run's name keeps those of other runs apart."""
    return f"{result.resolve().parent.name}_{result.stem}_{number:03d}"


def changes(arguments: argparse.Namespace, config: Config) -> dict[str, object]:
    names = {text.partition("=")[0] for text in arguments.var}
    values = config.as_dict()
    return {name: values[name] for name in sorted(names)}


def change_name(changed: Mapping[str, object]) -> str:
    """Return the part of a file name that stands for changed settings."""
    # Characters that a file name cannot hold become dashes; a checksum keeps such values apart.
    name = ""
    for key, value in changed.items():
        text = str(value)
        plain = re.sub(r"[^A-Za-z0-9.-]", "-", text)[:LONGEST_VALUE]
        name += f"_{key}_{plain}" + ("" if plain == text else f"-{crc32(text.encode()):08x}")
    return name


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="eval.py", description=__doc__)
    add = parser.add_argument
    place = "a run folder, a checkpoint, or hub:OWNER/NAME[@REVISION] for a published one"
    add("--ckpt-path", metavar="PLACE", required=True, help=place)
    n_episodes = whole_number(1, MOST_EPISODES)
    add("--n-episodes", metavar="N", type=n_episodes, default=10, help="episodes to play (10)")
    seeds = "first episode to play, of those that no training meets; seeds the actions, too (0)"
    add("--seed", metavar="N", type=whole_number(0, N_HELD_OUT - 1), default=0, help=seeds)
    add("--device", default="auto", help="auto, cpu or cuda (default auto)")
    policy = parser.add_mutually_exclusive_group().add_argument
    policy("--greedy", action="store_true", help="take the most probable action, do not sample")
    policy("--random", action="store_true", help="act at random in the checkpoint's environment")
    add("--deterministic", action="store_true", help=argparse.SUPPRESS)
    var = "another setting of the environment (env_args is merged with the run's) or place of a "
    var += "pretrained part; repeatable"
    add_var(parser, var)
    add_trust(parser)
    add("--report", action="store_true", help="write a page that shows every step of the episodes")
    add("--video", action="store_true", help="write every episode as .gif and as .mp4")
    tasks = (
        "play single tasks of Crafter instead of the run's goals and print the success rate of "
        "each: 'chop tree,mine stone', or all"
    )
    add("--tasks", metavar="NAMES", help=tasks)
    arguments = parser.parse_args(argv)
    if arguments.tasks is not None and (arguments.report or arguments.video):
        parser.error(
            "--tasks prints figures only. Leave out --report and --video, or play one task with "
            "--var single_task=..."
        )
    if arguments.deterministic:
        parser.error("--deterministic is called --greedy here: always the most probable action")
    return arguments


def local_place(text: str) -> Path:
    """Return the local path of a checkpoint, downloaded if it is named hub:OWNER/NAME[@REVISION].

    Each commit of the hub becomes a folder of its own, downloads/OWNER/NAME/COMMIT.

    Raises:
        UserError: no such repository, no connection, or files damaged or another program's.
    """
    if not text.startswith(HUB):
        return Path(text)
    from trainers.checkpoint import load_checkpoint

    place = text.removeprefix(HUB)
    snapshot = hub_snapshot(place, FILES)
    folder = DOWNLOADS / place.partition("@")[0] / snapshot.name[:SHOWN]
    if folder.exists():
        return folder
    if (snapshot / PUBLISHED).is_file():
        try:
            load_checkpoint(snapshot / PUBLISHED)
        except UserError:  # perhaps only the download is damaged: fetch it once more
            snapshot = hub_snapshot(place, FILES, anew=True)
    if not (snapshot / PUBLISHED).is_file():
        raise UserError(f"{text}: the repository has no {PUBLISHED}, so it is no run of publish.py")
    load_checkpoint(snapshot / PUBLISHED)
    # Copies, since the hub's library keeps links; renamed when whole, so never half a folder.
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    unfinished.mkdir(parents=True)
    try:
        for name in FILES:
            if (snapshot / name).is_file():
                shutil.copyfile(snapshot / name, unfinished / name)
        if not folder.exists():
            unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def facts_of(
    checkpoint: dict[str, Any], path: Path, player: Any, config: Config, arguments: Any
) -> dict[str, Any]:
    actions = "most probable" if arguments.greedy else "sampled"
    if arguments.random:
        actions = "random"
    elif not player.draws_actions:
        actions = "without noise" if player.reader.action_shape else "of the highest value"
    names = ("n_episodes", "seed", "greedy", "random", "report", "video")
    return {
        "checkpoint": path.name,
        "env_steps": checkpoint["env_steps"],
        "actions": actions,
        "env": config.env,
        "var": changes(arguments, config),
        **{name: vars(arguments)[name] for name in names},
    }


def page_facts(result: dict[str, Any]) -> dict[str, str]:
    success = {"success": f"{result['success_mean']:.1%}"} if "success_mean" in result else {}
    return {
        "return": f"{result['return_mean']:.3f} ± {result['return_std']:.3f}",
        **success,
        "length": f"{result['length_mean']:.1f} ± {result['length_std']:.1f} steps",
        "actions": str(result["actions"]),
        "episodes": f"{result['n_episodes']}, seed {result['seed']}",
        "checkpoint": f"{result['checkpoint']} at {result['env_steps']:,} steps",
    }


def summarize(episodes: list["FinishedEpisode"]) -> dict[str, object]:
    """Return mean and population standard deviation, and the figures of every episode."""
    returns = np.array([episode.episode_return for episode in episodes])
    lengths = np.array([episode.length for episode in episodes])
    result = {
        "return_mean": returns.mean(),
        "return_std": returns.std(),
        "length_mean": lengths.mean(),
        "length_std": lengths.std(),
        "returns": returns.tolist(),
        "lengths": lengths.tolist(),
    }
    successes = [bool(episode.success) for episode in episodes]
    if all(episode.success is not None for episode in episodes):
        result |= {"success_mean": np.mean(successes), "successes": successes}
    return result


def table(episodes: list["FinishedEpisode"], result: dict[str, Any]) -> str:
    rows = [[n, f"{each.episode_return:.3f}", each.length] for n, each in enumerate(episodes, 1)]
    for name in ("mean", "std"):
        rows.append([name, f"{result[f'return_{name}']:.3f}", f"{result[f'length_{name}']:.1f}"])
    columns = ["episode", "return", "length"]
    if "success_mean" in result:
        columns.append("success")
        shown = ["yes" if each.success else "no" for each in episodes]
        for row, cell in zip(rows, [*shown, f"{result['success_mean']:.3f}", ""], strict=True):
            row.append(cell)
    return aligned([columns, *rows])


if __name__ == "__main__":
    sys.exit(main())
