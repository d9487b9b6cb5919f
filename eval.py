"""Play episodes with a trained agent: their returns and lengths, pages and movies to look at."""

import utils.starting  # noqa: F401

# isort: split
import argparse
import dataclasses
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from zlib import crc32

import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.vector import VectorEnv
from tqdm import tqdm

from envs import action_names, check_env_name, number_names, picture_legend
from models import agent_class, resolve_device
from models.agent import Agent
from models.baselines import RandomAgent
from report.movie import FORMATS, write_movies
from report.page import EpisodePage
from rewards.goals import task_settings
from trainers.build import opened_env, restored_agent
from trainers.checkpoint import PUBLISHED, find_checkpoint, load_checkpoint
from trainers.evaluation import Episode, evaluate, played_config
from utils.command_line import Parser, add_trust, run_program, whole_number
from utils.errors import UserError, printable
from utils.files import check_file, check_writable, folder_name
from utils.hub import HubError, check_repository_name, hub_snapshot
from utils.loggers import FILE as METRICS
from utils.run_folder import DESCRIPTION, SETTINGS, write_json
from utils.seeding import seed_everything
from utils.settings import MOST_SEED, Config

EPISODES = Path("episodes")
MOST_ENVS = 16
MOST_EPISODES = 1_000_000
LONGEST_VALUE = 40  # of a setting, in the name of a file
HUB = "hub:"
DOWNLOADS = Path("downloads")
SHOWN = 12  # signs of a commit
CARD, CURVE = "README.md", "curve.png"
FILES = (PUBLISHED, SETTINGS, DESCRIPTION, METRICS, CURVE, CARD)  # of a published run


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate as the command line says and return the exit status."""
    return run_program(run, argv)


def run(argv: Sequence[str] | None) -> None:
    """Play as the command line says."""
    arguments = parse_arguments(argv)
    play(find_checkpoint(local_place(arguments.ckpt_path)), arguments)


def play(path: Path, arguments: argparse.Namespace) -> None:
    """Restore the agent, play the episodes, print them and write them beside the checkpoint."""
    checkpoint = load_checkpoint(path)
    config = evaluation_config(checkpoint, path, arguments)
    check_places(config, path, arguments)
    tasks = {} if arguments.tasks is None else task_settings(config, arguments.tasks)
    task = task_name(config, arguments)
    source = f"{path} of step {checkpoint['env_steps']:,}"
    told = f"{config.model} on {task}, from {source}"
    if arguments.random:
        told = f"random actions on {task}, the environment of {source}"
    print(told, flush=True)
    if tasks:
        play_tasks(tasks, config, checkpoint, path, arguments)
        return
    seed_everything(arguments.seed, config.deterministic)
    in_detail = arguments.report or arguments.video
    file, folder = result_file(config, path, arguments), episode_folder(config, arguments)
    episodes = []
    with opened_env(config, arguments.seed, drawn=in_detail) as env:
        n_actions = int(cast(Discrete, env.single_action_space).n)
        actions = action_names(config.env, n_actions, env.metadata)
        legends = number_names(config.env, env.metadata), picture_legend(config.env)
        heading = f"{'Chance' if arguments.random else config.model} on {task}"
        page = EpisodePage(heading, actions, *legends)
        player = build(config, env, None if arguments.random else checkpoint, path)
        played = evaluate(
            player, env, arguments.n_episodes, arguments.greedy, arguments.seed, in_detail
        )
        with tqdm(played, total=arguments.n_episodes, unit=" episodes") as recordings:
            for number, recording in enumerate(recordings, 1):
                folder.mkdir(parents=True, exist_ok=True)
                kept = folder / f"{episode_name(file, number)}.npz"
                recording.save(kept)
                if arguments.video:
                    write_movies(kept, recording, actions)
                if arguments.report:
                    page.add(recording)
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
    """Play single tasks one after the other; print and write how many episodes complete each."""
    figures: dict[str, dict[str, Any]] = {}
    player = None
    for name, own in tasks.items():
        seed_everything(arguments.seed, own.deterministic)
        with opened_env(own, arguments.seed) as env:
            if player is None:  # all tasks look alike to it
                player = build(own, env, None if arguments.random else checkpoint, path)
            asked = arguments.n_episodes, arguments.greedy, arguments.seed
            episodes = [recording.episode for recording in evaluate(player, env, *asked)]
        figures[name] = summarize(episodes)
        print(f"{name:30s}{figures[name]['success_mean']:6.3f}", flush=True)
    success = float(np.mean([each["success_mean"] for each in figures.values()]))
    print(f"{'mean of the tasks':30s}{success:6.3f}")

    file = result_file(config, path, arguments)
    about = facts_of(checkpoint, path, cast(Agent, player), config, arguments)
    write_json(file, about | {"success_mean": success, "tasks": figures})
    print(f"written to {file}")


def evaluation_config(
    checkpoint: dict[str, Any], path: Path, arguments: argparse.Namespace
) -> Config:
    """Return the settings of a checkpoint as they are to be played with, names all known."""
    config = played_config(checkpoint, path, arguments.trust, arguments.var)
    check_env_name(config.env)
    agent = agent_class(config.model)
    if not arguments.random:
        agent.check(config)
    return dataclasses.replace(
        config,
        device=resolve_device(arguments.device),
        n_envs=min(arguments.n_episodes, MOST_ENVS),
    )


def check_places(config: Config, path: Path, arguments: argparse.Namespace) -> None:
    """Raise UserError unless every file that is asked for can be written where it belongs."""
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
    """Return where the figures go, beside the checkpoint, apart from other evaluations of it."""
    tasks = {} if arguments.tasks is None else {"tasks": arguments.tasks}
    changed = change_name(tasks | changes(arguments, config))
    policy = "random" if arguments.random else "greedy" if arguments.greedy else "sampled"
    played = f"eval_{policy}_{arguments.n_episodes}_episodes_seed_{arguments.seed}"
    return path.with_name(f"{path.stem}_{played}{changed}.json")


def episode_folder(config: Config, arguments: argparse.Namespace) -> Path:
    """Return where the episodes are kept; known names, no path of their own."""
    player = "random" if arguments.random else folder_name(config.model)
    return EPISODES / folder_name(config.env) / f"{player}{change_name(changes(arguments, config))}"


def episode_name(result: Path, number: int) -> str:
    """Return what the files of an episode are called, runs of one environment told apart."""
    return f"{result.resolve().parent.name}_{result.stem}_{number:03d}"


def changes(arguments: argparse.Namespace, config: Config) -> dict[str, object]:
    """Return the settings of the environment that are not the run's, by their names."""
    names = {text.partition("=")[0] for text in arguments.var}
    return {name: getattr(config, name) for name in sorted(names)}


def change_name(changed: Mapping[str, object]) -> str:
    """Return what tells changed settings apart in the name of a file, nothing where none is.

    A value that cannot stand there as it is has its checksum behind what can.
    """
    name = ""
    for key, value in changed.items():
        text = str(value)
        plain = re.sub(r"[^A-Za-z0-9.-]", "-", text)[:LONGEST_VALUE]
        name += f"_{key}_{plain}" + ("" if plain == text else f"-{crc32(text.encode()):08x}")
    return name


def task_name(config: Config, arguments: argparse.Namespace) -> str:
    """Return the environment, and what is changed of it, as one reads it."""
    details = ", ".join(f"{key}={each}" for key, each in changes(arguments, config).items())
    return printable(f"{config.env} with {details}" if details else config.env)


def build(config: Config, env: VectorEnv, checkpoint: dict | None, path: Path) -> Agent:
    """Return the checkpoint's agent, or the random one without a checkpoint."""
    if checkpoint is None:
        spaces = env.single_observation_space, env.single_action_space
        return RandomAgent(*spaces).to(config.device)
    return restored_agent(config, env, checkpoint, path)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(prog="eval.py", description=__doc__)
    add = parser.add_argument
    place = "a run's folder, a checkpoint, or hub:OWNER/NAME[@REVISION] for a published one"
    add("--ckpt-path", metavar="PLACE", required=True, help=place)
    add("--n-episodes", metavar="N", type=whole_number(1, MOST_EPISODES), default=10)
    add("--seed", metavar="N", type=whole_number(0, MOST_SEED), default=0)
    add("--device", default="auto", help="auto, cpu or cuda (default auto)")
    policy = parser.add_mutually_exclusive_group().add_argument
    policy("--greedy", action="store_true", help="take the most probable action, do not sample")
    policy("--random", action="store_true", help="act at random in the checkpoint's environment")
    add("--deterministic", action="store_true", help=argparse.SUPPRESS)
    var = "another setting of the environment or place of a pretrained part; repeatable"
    add("--var", metavar="KEY=VALUE", action="append", default=[], help=var)
    add_trust(parser)
    add("--report", action="store_true", help="write a page that shows every step of the episodes")
    add("--video", action="store_true", help="write every episode as .gif and as .mp4")
    tasks = (
        "play single tasks of Crafter in the place of the run's goals and tell the success of "
        "each: 'chop tree,mine stone', or all"
    )
    add("--tasks", metavar="NAMES", help=tasks)
    arguments = parser.parse_args(argv)
    if arguments.tasks is not None and (arguments.report or arguments.video):
        parser.error(
            "--tasks tells figures alone. Leave --report and --video out, or play one task by "
            "--var single_task=..."
        )
    if arguments.deterministic:
        parser.error("--deterministic is called --greedy here: always the most probable action")
    return arguments


def local_place(text: str) -> Path:
    """Return where a checkpoint lies that is named by its place, or as hub:OWNER/NAME[@REVISION].

    Each commit that comes from the hub becomes a folder, downloads/OWNER/NAME/COMMIT.

    Raises:
        UserError: there is none of this name, the hub is out of reach, or what it has is damaged
            or no checkpoint of this program.
    """
    if not text.startswith(HUB):
        return Path(text)
    repository, _, revision = text.removeprefix(HUB).partition("@")
    try:
        check_repository_name(repository)
        snapshot = hub_snapshot(repository, revision or None, FILES)
        folder = DOWNLOADS / repository / snapshot.name[:SHOWN]
        if folder.exists():
            return folder
        if (snapshot / PUBLISHED).is_file():
            try:
                load_checkpoint(snapshot / PUBLISHED)
            except UserError:  # fetched again once: the copy may be what is damaged
                snapshot = hub_snapshot(repository, revision or None, FILES, anew=True)
    except HubError as error:
        raise UserError(f"{text}: {error}") from None
    if not (snapshot / PUBLISHED).is_file():
        raise UserError(f"{text}: the repository has no {PUBLISHED}, so it is no run of publish.py")
    load_checkpoint(snapshot / PUBLISHED)
    # The files themselves, where the hub's library keeps links; all of them or none.
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
    checkpoint: dict[str, Any], path: Path, player: Agent, config: Config, arguments: Any
) -> dict[str, Any]:
    """Return what was played: the agent, how it acted, and all that repeats the evaluation."""
    actions = "most probable" if arguments.greedy else "sampled"
    if arguments.random:
        actions = "random"
    elif not player.draws_actions:
        actions = "of the highest value"
    names = ("n_episodes", "seed", "greedy", "random", "report", "video")
    return {
        "checkpoint": path.name,
        "env_steps": checkpoint["env_steps"],
        "actions": actions,
        "env": config.env,
        "var": changes(arguments, config),
        **{name: getattr(arguments, name) for name in names},
    }


def page_facts(result: dict[str, Any]) -> dict[str, str]:
    """Return what stands at the head of the page."""
    success = {"success": f"{result['success_mean']:.1%}"} if "success_mean" in result else {}
    return {
        "return": f"{result['return_mean']:.3f} ± {result['return_std']:.3f}",
        **success,
        "length": f"{result['length_mean']:.1f} ± {result['length_std']:.1f} steps",
        "actions": str(result["actions"]),
        "episodes": f"{result['n_episodes']}, seed {result['seed']}",
        "checkpoint": f"{result['checkpoint']} at {result['env_steps']:,} steps",
    }


def summarize(episodes: list[Episode]) -> dict[str, object]:
    """Return mean and spread (population standard deviation) and every episode's figures.

    Of success only where the environment tells it.
    """
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


def table(episodes: list[Episode], result: dict[str, object]) -> str:
    """Return the episodes line by line, then mean and spread."""
    lines = ["episode     return   length"]
    for number, each in enumerate(episodes, start=1):
        lines.append(f"{number:7d} {each.episode_return:10.3f} {each.length:8d}")
    lines.append(f"   mean {result['return_mean']:10.3f} {result['length_mean']:8.1f}")
    lines.append(f" spread {result['return_std']:10.3f} {result['length_std']:8.1f}")
    if "success_mean" in result:
        shown = ["yes" if each.success else "no" for each in episodes]
        column = ["success", *shown, f"{result['success_mean']:.3f}", ""]
        lines = [f"{line} {cell:>8}".rstrip() for line, cell in zip(lines, column, strict=True)]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
