"""Avalon: eat and survive in generated worlds of hills, buildings and animals, in the first person.

Avalon (Albrecht et al. 2022, arXiv:2210.13417) is the package avalon-rl, with its `GodotEnv`, its
generator of worlds and a build of the engine Godot, which it fetches (docs/how-to/avalon.md).
Images, numbers, the 21 actions, limits and rewards are those of the package's agents.

Three things are not as there. The seed alone decides the task of an episode, its world and its
difficulty: there a curriculum does, which depends on the episodes before. A hand grasps, and a jump
is made, where a number is above 0: there each of the three is drawn. An engine that fails ends the
run, which then resumes: there it is begun again, and its faults are sent to the package's makers.
"""

import functools
import shutil
import struct
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict
from gymnasium.vector import VectorEnv

from envs.avalon_package import FETCH, VERSION, check_ready, package, world_makers
from envs.episodes import Given, Options, ResetResult, Result, SingleEnvs, SingleStepResult
from envs.settings import EVALUATION_WORLDS, TRAINING_WORLDS, AvalonSettings
from utils.environments import Action, Info, Observation, Suite
from utils.errors import EnvFault, UserError

COMPOUND = ("find", "gather", "navigate", "survive")
BASIC: tuple[str, ...] = ("eat", "move", "jump", "explore", "scramble", "climb", "descend", "throw")
BASIC += ("avoid", "hunt", "fight", "push", "stack", "bridge", "open", "carry")
TASKS = {"all": (*BASIC, *COMPOUND), "basic": BASIC} | {task: (task,) for task in BASIC + COMPOUND}
SIDE = 96  # pixels
MOVED, AXES = ("head", "left hand", "right hand"), ("x", "y", "z", "pitch", "yaw", "roll")
MOVES = [f"{part} {axis}" for part in MOVED for axis in AXES]
ACTION_NAMES = (*MOVES, "left grasp", "right grasp", "jump")
N_NUMBERS = 51  # of 23 features: positions and rotations have three each
MOST_TRIES = 50  # to generate a world whose task can be solved
# What a step of a training world costs, of the player's energy and of a head that is not upright.
ENERGY_COST, HEAD_COST = 1e-8, 1e-6  # as published


class Avalon(Suite):
    action_names = ACTION_NAMES

    def names(self) -> list[str]:
        return [f"Avalon-{task}-v0" for task in TASKS]

    def make(self, config: AvalonSettings, seed: int) -> VectorEnv:
        check_ready(config.env)
        make_one = functools.partial(AvalonEnv, config, _published_worlds(config))
        return SingleEnvs(make_one, config.n_envs, seed, in_processes=True, has_success=True)


class World(NamedTuple):
    """A world to be played: the package's parameters of it, and a folder that is removed again."""

    parameters: Any
    folder: Path


class AvalonEnv(gymnasium.Env):
    """One player: "image" [3, 96, 96], "numbers" [51] and, if asked for, "depth" [1, 96, 96].

    The numbers are of its body and hands, its health and the steps that are left. `info` tells
    "task" and "difficulty" at both ends of an episode, and at its end "success" and "score", too.
    `worlds` are folders of published worlds; without any, each episode has a generated one.
    """

    def __init__(self, config: AvalonSettings, worlds: list[Path]) -> None:
        images = {"image": Box(0, 255, (3, SIDE, SIDE), np.uint8)}
        if config.avalon_depth:
            images["depth"] = Box(0, 255, (1, SIDE, SIDE), np.uint8)
        self.observation_space = Dict({**images, "numbers": Box(-1, 1, (N_NUMBERS,), np.float32)})
        self.action_space = Box(-1, 1, (len(ACTION_NAMES),), np.float32)
        self._config, self._worlds = config, worlds
        self._engine: Any = None  # begun at the first reset: it belongs to this process
        self._world: World | None = None

    def reset(self, *, seed: int | None = None, options: Options = None) -> ResetResult:
        super().reset(seed=seed)
        before, self._world = self._world, self._drawn_world()
        if self._engine is None:
            self._engine = self._asked(_begun, self._config)
            # The package's own scales, and its order of the numbers.
            self._scaled = package("agent.godot.godot_gym").GodotObsTransformWrapper(self._engine)
        try:
            observation = self._asked(
                self._engine.reset_nicely_with_specific_world,
                episode_seed=int(self.np_random.integers(2**31)),
                world_params=self._world.parameters,
            )
        finally:  # where it fails, nobody else knows the folder of the world before
            if before is not None:
                shutil.rmtree(before.folder, ignore_errors=True)
        return self._shown(observation), self._facts()

    def step(self, action: Action) -> SingleStepResult:
        moves, pressed = np.split(np.asarray(action, np.float32), [len(MOVES)])
        taken = {"real": moves, "discrete": (pressed > 0).astype(np.float32)}
        observation, progress = self._asked(
            self._engine.act, self._engine.action_type.from_input(taken)
        )
        shown, reward = self._shown(observation), float(progress.reward)
        if not progress.is_done:
            return shown, reward, False, False, {}
        info = self._facts() | {"success": bool(progress.log["success"])}
        info["score"] = float(progress.log["score"])
        truncated = bool(progress.log["TimeLimit.truncated"])
        return shown, reward, not truncated, truncated, info

    def close(self) -> None:
        if self._engine is not None:
            _end(self._engine)
            self._engine = None
        if self._world is not None:
            shutil.rmtree(self._world.folder, ignore_errors=True)
            self._world = None

    def _drawn_world(self) -> World:
        folder = Path(tempfile.mkdtemp(prefix="avalon-"))
        makers = world_makers()
        if self._worlds:
            chosen = self._worlds[int(self.np_random.integers(len(self._worlds)))]
            # As in the package: the engine plays a copy.
            shutil.copytree(chosen, folder / chosen.name)
            task, number, difficulty = chosen.name.split("__")
            parameters = makers.GeneratedAvalonWorldParams(
                task=makers.AvalonTask(task.upper()),
                difficulty=float(difficulty.replace("_", ".")),
                seed=int(number),
                index=int(number),
                output=str(folder / chosen.name),
            )
            return World(parameters, folder)
        wanted = makers.GenerateAvalonWorldParams(
            task=makers.AvalonTask(str(self.np_random.choice(_tasks(self._config))).upper()),
            difficulty=float(self.np_random.uniform(0, self._config.avalon_difficulty)),
            seed=int(self.np_random.integers(2**31)),
            index=0,
            output=str(folder / "world"),
            num_retries=MOST_TRIES,
        )
        with warnings.catch_warnings():  # newer packages warn of their older functions
            warnings.simplefilter("ignore")
            return World(makers.generate_world(wanted), folder)

    def _facts(self) -> Info:
        assert self._world is not None, "reset comes first"
        parameters = self._world.parameters
        return {"task": parameters.task.value.lower(), "difficulty": float(parameters.difficulty)}

    def _shown(self, observation: Any) -> Observation:
        features = self._engine.observation_context.lamify(observation)
        # As the package's agents see it: the steps that are left instead of those that were made.
        features["frame_id"] = self._engine.goal_evaluator.frame_limit - 1 - features["frame_id"]
        scaled = self._scaled.observation(features)
        image, numbers = scaled["rgbd"], scaled["scalars"]
        if image.shape != (4, SIDE, SIDE) or numbers.shape != (N_NUMBERS,):
            raise UserError(_other_engine(f"shows {image.shape} pixels and {len(numbers)} numbers"))
        seen = {"image": image[:3], "numbers": numbers}
        return seen | ({"depth": image[3:]} if self._config.avalon_depth else {})

    def _asked(
        self, work: Callable[Given, Result], *arguments: Given.args, **options: Given.kwargs
    ) -> Result:
        """Let the engine work; raise EnvFault where it has died, hangs, or tells an error."""
        failure = package("datagen.errors").GodotError
        unknown = package("datagen.godot_env.observations").InvalidObservationType
        try:
            return work(*arguments, **options)
        except unknown as error:
            raise UserError(_other_engine(f"does not fit: {error}")) from error
        except (failure, BrokenPipeError, TimeoutError, struct.error) as error:
            told = " ".join(str(error).split())  # the package's has a line for each of its files
            self.close()
            raise EnvFault(f"Avalon's engine ended, or does not answer: {told}") from error


def _tasks(config: AvalonSettings) -> tuple[str, ...]:
    return TASKS[config.env.split("-")[1]]


def _published_worlds(config: AvalonSettings) -> list[Path]:
    """Return the folders of the task's published worlds; none where worlds are generated."""
    if config.avalon_worlds in (TRAINING_WORLDS, EVALUATION_WORLDS):
        return []
    folders = sorted(Path(config.avalon_worlds).absolute().glob("*__*__*"))
    found = [each for each in folders if each.name.split("__")[0].lower() in _tasks(config)]
    if not found:
        raise UserError(
            f"avalon_worlds: '{config.avalon_worlds}' has no worlds of {config.env}, which are "
            f"folders such as eat__0001__0_35. Or take {TRAINING_WORLDS} or {EVALUATION_WORLDS}"
        )
    return found


def _begun(config: AvalonSettings) -> Any:
    names = package("agent.godot.godot_gym")
    goals = names.AvalonGoalEvaluator()
    if config.avalon_worlds == TRAINING_WORLDS:
        goals = names.TrainingAvalonGoalEvaluator(
            energy_cost_coefficient=ENERGY_COST,
            head_pitch_coefficient=HEAD_COST,
            head_roll_coefficient=HEAD_COST,
        )
    # A folder of its own: the package's would be that of all environments of a process. An engine
    # that fails is not begun again: its episode would not be that of its seed and actions.
    return names.GodotEnv(
        config=names.create_base_benchmark_config(tempfile.mkdtemp(prefix="avalon-")),
        observation_type=names.AvalonObservation,
        action_type=names.VRAction,
        goal_evaluator=goals,
        is_error_log_checked_after_each_step=False,
        is_logging_artifacts_on_error_to_s3=False,
        is_godot_restarted_on_error=False,
    )


def _end(engine: Any) -> None:
    try:
        engine.close()
    except Exception:  # it has died already, or does not end
        engine.process.close(kill=True, raise_logged_errors=False)
        engine._bridge.after_close()
        engine.world_generator.close()
    engine.cleanup()
    shutil.rmtree(Path(engine.process.log_path).parent, ignore_errors=True)


def _other_engine(given: str) -> str:
    return (
        f"Avalon's engine {given}, and avalon-rl {VERSION} needs another version of it. "
        f"Run: {FETCH} --overwrite"
    )
