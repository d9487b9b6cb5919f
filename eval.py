"""Play episodes with a trained agent and report their returns and lengths."""

import argparse
import dataclasses
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from tqdm import tqdm

from envs import check_env_name, make_vector_env
from models import agent_class, build_agent, resolve_device
from models.agent import Agent
from models.baselines import RandomAgent
from trainers.checkpoint import check_weights, find_checkpoint, load_checkpoint
from trainers.evaluation import Episode, Recording, evaluate
from utils.command_line import Parser, run_program, whole_number
from utils.config import MOST_SEED, Config, config_from_dict
from utils.errors import UserError
from utils.folders import check_writable
from utils.run_folder import write_json
from utils.seeding import seed_everything

EPISODES = Path("episodes")
MOST_ENVS = 16
MOST_EPISODES = 1_000_000


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate as the command line says and return the exit status."""
    return run_program(play, argv)


def play(argv: Sequence[str] | None) -> None:
    """Restore the agent, play the episodes, print them and write them beside the checkpoint."""
    arguments = parse_arguments(argv)
    path = find_checkpoint(arguments.ckpt_path)
    check_writable(path.parent, "--ckpt-path")
    checkpoint = load_checkpoint(path)
    config = config_from_dict(checkpoint["config"], str(path))
    config = dataclasses.replace(
        config,
        device=resolve_device(arguments.device),
        n_envs=min(arguments.n_episodes, MOST_ENVS),
        normalize_reward=False,  # recordings show the environment's own rewards
    )
    check_env_name(config.env)
    agent = agent_class(config.model)
    if not arguments.random:
        agent.check(config)
    folder = EPISODES / config.env / config.model  # both are known names, so no path of their own
    check_writable(folder, "episodes:")
    print(f"{config.model} on {config.env}, from {path}", flush=True)
    seed_everything(arguments.seed, config.deterministic)
    env = make_vector_env(config, arguments.seed)
    try:
        player = build(config, env, None if arguments.random else checkpoint, path)
        played = evaluate(
            player, env, arguments.n_episodes, arguments.deterministic, seed=arguments.seed
        )
        name = f"{path.resolve().parent.name}_{path.stem}_{result_name(arguments)}"
        recordings = tqdm(played, total=arguments.n_episodes, unit=" episodes")
        episodes = list(save_each(recordings, folder, name))
    finally:
        env.close()

    target = path.with_name(f"{path.stem}_{result_name(arguments)}.json")
    result = summarize(episodes) | {"checkpoint": path.name, **settings(arguments, config)}
    write_json(target, result)
    print(table(episodes, result))
    print(f"written to {target}, the episodes to {folder}")


def build(config: Config, env: VectorEnv, checkpoint: dict | None, path: Path) -> Agent:
    """Return the checkpoint's agent, or the random one without a checkpoint."""
    if checkpoint is None:
        return RandomAgent(env.single_action_space).to(config.device)
    agent = build_agent(config, env.single_observation_space, env.single_action_space)
    check_weights(checkpoint, agent.fingerprints(), str(path))
    restore(agent, checkpoint["agent"], path)
    return agent.eval()


def restore(agent: Agent, state: Any, path: Path) -> None:
    """Fill an agent with the state in a checkpoint; UserError where it is not this agent's."""
    try:
        agent.load_state_dict(state)
    except Exception as error:  # a changed state raises about five kinds of errors
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{path}: the agent in it is not the one of its settings ({reason})"
        ) from error
    if not all(tensor.isfinite().all() for tensor in agent.state_dict().values()):
        raise UserError(f"{path}: the agent in it has weights that are not finite numbers")


def save_each(recordings: Iterable[Recording], folder: Path, name: str) -> Iterator[Episode]:
    """Write each recording into a folder as it comes and pass on its return and length."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, recording in enumerate(recordings, start=1):
        recording.save(folder / f"{name}_{number:03d}.npz")
        yield recording.episode


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(prog="eval.py", description=__doc__)
    parser.add_argument("--ckpt-path", metavar="FOLDER_OR_FILE", type=Path, required=True)
    parser.add_argument(
        "--n-episodes", metavar="N", type=whole_number(1, MOST_EPISODES), default=10
    )
    parser.add_argument("--seed", metavar="N", type=whole_number(0, MOST_SEED), default=0)
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (default auto)")
    parser.add_argument(
        "--deterministic", action="store_true", help="take the most probable action, do not sample"
    )
    parser.add_argument(
        "--random", action="store_true", help="act at random in the checkpoint's environment"
    )
    return parser.parse_args(argv)


def result_name(arguments: argparse.Namespace) -> str:
    """Return a file name that tells evaluations of one checkpoint apart."""
    policy = "random" if arguments.random else "greedy" if arguments.deterministic else "sampled"
    return f"eval_{policy}_{arguments.n_episodes}_episodes_seed_{arguments.seed}"


def settings(arguments: argparse.Namespace, config: Config) -> dict[str, object]:
    """Return what is needed to repeat the evaluation."""
    names = ("n_episodes", "seed", "deterministic", "random")
    return {"env": config.env, **{name: getattr(arguments, name) for name in names}}


def summarize(episodes: list[Episode]) -> dict[str, object]:
    """Return mean and spread (population standard deviation) and every episode's figures."""
    returns = np.array([episode.episode_return for episode in episodes])
    lengths = np.array([episode.length for episode in episodes])
    return {
        "return_mean": returns.mean(),
        "return_std": returns.std(),
        "length_mean": lengths.mean(),
        "length_std": lengths.std(),
        "returns": returns.tolist(),
        "lengths": lengths.tolist(),
    }


def table(episodes: list[Episode], result: dict[str, object]) -> str:
    """Return the episodes line by line, then mean and spread."""
    lines = ["episode     return   length"]
    for number, (episode_return, length) in enumerate(episodes, start=1):
        lines.append(f"{number:7d} {episode_return:10.3f} {length:8d}")
    lines.append(f"   mean {result['return_mean']:10.3f} {result['length_mean']:8.1f}")
    lines.append(f" spread {result['return_std']:10.3f} {result['length_std']:8.1f}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
