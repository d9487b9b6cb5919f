"""Everything a run needs to go on as if it had never been interrupted.

    optimizer   AdamW's state
    progress    counts, the best mean return, the last episodes, the seconds so far
    advantages  their running statistics
    env         reward statistics, and where the suite can, the running episodes
    random      where all random streams stand
    scene       what the agent is about to see, and its memory
    rollout     what has been collected since the last update, if anything
    other_ranks env, random, scene and rollout of every rank but the first

Where a suite cannot save its episodes, scene and rollout are left out: a resumed run collects its
current rollout anew, in new episodes.
"""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainers.checkpoint import unfinished_checkpoint
from trainers.evaluation import Episode
from trainers.ranks import Ranks
from trainers.rollout import Rollout, Scene
from trainers.saved_state import check_like, check_optimizer
from utils.config import Config
from utils.errors import UserError
from utils.seeding import derived_seed, random_state, set_random_state

if TYPE_CHECKING:
    from trainers.ppo import PPOTrainer

OWN = ("env", "random", "scene", "rollout")
COUNTS = ("n_episodes", "n_epochs_done", "best_mean_return", "seconds")


def agent_state(trainer: "PPOTrainer") -> dict[str, Any]:
    """Return what it takes to play with the agent."""
    return {
        "config": dataclasses.asdict(trainer.config),
        "agent": trainer.agent.state_dict(),
        "weights": trainer.agent.fingerprints(),
        "env_steps": trainer.env_steps,
    }


def run_state(trainer: "PPOTrainer") -> dict[str, Any]:
    """Return what it takes to go on with the run; to be asked for between two steps.

    All ranks are asked together; the answer of the first is whole.
    """
    env = trainer.env.state_dict()
    state = agent_state(trainer) | {
        "optimizer": trainer.optimizer.state_dict(),
        "progress": {name: getattr(trainer, name) for name in COUNTS},
        "episodes": [tuple(episode) for episode in trainer.episodes],
        "advantages": trainer.advantage_statistics.state_dict(),
        "env": env,
        "random": random_state(),
    }
    (n_without,) = trainer.ranks.most(not env["resumable"])
    if n_without == 0:
        state |= _running_episodes(trainer)
    elif trainer.rollout is not None:
        state["env_steps"] -= trainer.rollout.n_stored * trainer.n_envs
    others = trainer.ranks.gathered({name: state[name] for name in OWN if name in state})[1:]
    return state | {"other_ranks": others}


def own_checkpoint(folder: Path, config: Config, ranks: Ranks) -> dict[str, Any] | None:
    """Return what this rank goes on from: what is common, and its episodes and random streams.

    Raises:
        UserError: as `unfinished_checkpoint`, on the first rank.
    """
    return ranks.dealt(
        lambda: _dealt(unfinished_checkpoint(folder, config, ranks.size), ranks.size)
    )


def restore(trainer: "PPOTrainer", state: dict[str, Any], source: str) -> bool:
    """Put a run's state into a new trainer; return whether its episodes go on, too.

    Raises:
        UserError: it is not a state of this trainer.
    """
    try:
        return _restore(trainer, state)
    except Exception as error:  # a changed state raises about ten kinds of errors
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UserError(
            f"{source}: the checkpoint does not hold a state of this run ({reason}). "
            "Restore the run's own"
        ) from error


def _restore(trainer: "PPOTrainer", state: dict[str, Any]) -> bool:
    check_optimizer(state["optimizer"], trainer.optimizer, trainer.parameters)
    check_like(state["advantages"], trainer.advantage_statistics.state_dict(), "advantages")
    for name in set(COUNTS) & state["progress"].keys():
        check_like(state["progress"][name], getattr(trainer, name), name)
    # Tried on the new agent and environments, all of whose state is then replaced.
    scene, rollout = _saved_episodes(trainer, state) if "scene" in state else (None, None)
    trainer.agent.load_state_dict(state["agent"])
    trainer.optimizer.load_state_dict(state["optimizer"])
    trainer.advantage_statistics.load_state_dict(state["advantages"])
    trainer.env_steps = state["env_steps"]
    for name in COUNTS:
        setattr(trainer, name, state["progress"][name])
    for episode_return, length in state["episodes"]:
        trainer.episodes.append(Episode(float(episode_return), int(length)))
    goes_on = trainer.env.load_state_dict(state["env"]) and scene is not None
    if goes_on:
        trainer.scene, trainer.rollout = scene, rollout
    else:
        trainer.scene = trainer.first_scene(derived_seed(trainer.config.seed, trainer.env_steps))
    set_random_state(state["random"])
    return goes_on


def _running_episodes(trainer: "PPOTrainer") -> dict[str, Any]:
    scene, rollout = trainer.scene, trainer.rollout
    assert scene is not None, "there is a scene from the first step on"
    return {
        "scene": {
            "observations": scene.observations,
            "starts": scene.starts,
            "memory": scene.memory.state_dict(),
        },
        "rollout": None if rollout is None else rollout.state_dict(),
    }


def _saved_episodes(trainer: "PPOTrainer", state: dict[str, Any]) -> tuple[Scene, Rollout | None]:
    """Return the scene and the rollout of a state, if the agent can go on from them.

    Raises:
        ValueError: they are not built like those of this run.
    """
    device, saved = trainer.agent.device, state["scene"]
    new = trainer.first_scene(trainer.config.seed)
    for name in ("observations", "starts"):
        check_like(saved[name], getattr(new, name).cpu(), name)
    observations, starts = (saved[name].to(device) for name in ("observations", "starts"))
    new.memory.load_state_dict(saved["memory"])
    scene = Scene(observations, starts, new.memory)
    step = trainer.agent.act(observations, new.memory.copy(), starts)
    if state["rollout"] is None:
        return scene, None
    empty = Rollout(trainer.config.n_rollout_steps, observations, step.context)
    empty.n_stored = len(state["rollout"]["actions"])
    check_like(state["rollout"], empty.state_dict(), "rollout")
    if state["rollout"]["n_steps"] != empty.n_steps:
        raise ValueError(f"the rollout is one of {state['rollout']['n_steps']} steps")
    return scene, Rollout.from_state_dict(state["rollout"], device)


def _dealt(state: dict[str, Any] | None, n_ranks: int) -> list[dict[str, Any] | None]:
    if state is None:
        return [None] * n_ranks
    common = {name: value for name, value in state.items() if name not in (*OWN, "other_ranks")}
    first = {name: state[name] for name in OWN if name in state}
    return [common | own for own in (first, *state.get("other_ranks", []))]
