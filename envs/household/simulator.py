"""Housekeep-v0: tidy up a house in Habitat, seen in the first person.

Housekeep (Kant et al. 2022, arXiv:2205.10712) is a task of Habitat-Lab in habitat-sim 0.2.1, which
no package index offers for today's Python; docs/how-to/housekeep_and_psychlab.md says how it is
installed. Actions and images are those of Du et al. (2023, arXiv:2302.06692): 128x128 pixels, six
actions, turns by 20 degrees and looks by 10, things up to 3 m away in the centre of the image are
grabbed, 1,000 steps, one episode of one scene that is played again and again.

The simulator's own reward is left aside. As in HousekeepText-v0, with n_t the number of things
where people say they belong, r_t = n_t - n_{t-1}, and `info` tells view and steps in words,
which suggestions are made and paid for.
"""

import contextlib
import functools
import importlib
import string
import sys
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Text
from gymnasium.vector import VectorEnv

from envs.episodes import Options, ResetResult, SingleEnvs, SingleStepResult, StepResult
from envs.settings import SimulatorSettings
from envs.spaces import ACTION_NAMES as NAMED_ACTIONS
from utils.environments import Action, Info, Observation, State, Suite
from utils.errors import UserError
from utils.files import object_array
from utils.household import PICK_UP, PLACE, SUITABLE, Goal, known_sentence, listed, sights_sentence

NAME = "Housekeep-v0"
ACTIONS = ("MOVE_FORWARD", "TURN_LEFT", "TURN_RIGHT", "LOOK_UP", "LOOK_DOWN", "GRAB_RELEASE")
ACTION_NAMES = ("forward", "turn left", "turn right", "look up", "look down", "grab or release")
GRAB_RELEASE = 5
SIDE = 128  # pixels
N_STEPS = 1000
TURN_DEGREES, LOOK_DEGREES, GRAB_METRES = 20, 10, 3.0
CONFIG = Path("cos_eor", "configs", "local", "igib_v2_nav_sp.yaml")
ENV_CLASS = "CosRearrangementRLEnv"
REGISTERING = ("cos_eor.env.env", "cos_eor.task.sensors", "cos_eor.task.measures")
CAMERAS = ("RGB_SENSOR", "DEPTH_SENSOR", "SEMANTIC_SENSOR")
AGENT = "agent"  # the place of a thing that is held, among receptacles
LONGEST_SENTENCE = 16_384
SENTENCES = ("seen", "inventory", "status")
EPISODES_AVERAGED = 100
# The names in info of the parts of `HouseholdInfo`.
BEFORE_AN_ACTION = {name: name for name in ("scene", "inventory", "status", "items")}
OF_THE_STEP = {"phrase": "phrase", "items_after": "items"}
OF_THE_STEP |= {f"last_{name}": name for name in ("scene", "inventory", "status")}
HELP = (
    "See docs/how-to/housekeep_and_psychlab.md#housekeep, or take env=HousekeepText-v0, which "
    "needs nothing"
)


class Housekeep(Suite):
    action_names = ACTION_NAMES

    def make(self, config: SimulatorSettings, seed: int) -> VectorEnv:
        _check_installed(config)
        make_one = functools.partial(HousekeepEnv, config)
        return HousekeepVectorEnv(make_one, config.n_envs, seed, True)


class HouseholdInfo(NamedTuple):
    """One environment's words before an action, and on the step that led there.

    `items` are the things held, by name; `n_right` of `n_things` are where they belong; `phrase`
    names the step, empty at the beginning, and `succeeded` tells its outcome.
    """

    scene: str
    inventory: str
    status: str
    items: Mapping[str, int]
    n_right: int
    n_things: int
    phrase: str = ""
    succeeded: bool = False


class HousekeepEnv(gymnasium.Env):
    """One house: "image" [3, 128, 128], and three sentences.

    "seen" names all things seen so far, "status" all receptacles, "inventory" the thing held.
    """

    _told: HouseholdInfo

    def __init__(self, config: SimulatorSettings) -> None:
        text = Text(LONGEST_SENTENCE, min_length=0, charset=string.printable)
        image = {"image": Box(0, 255, (3, SIDE, SIDE), np.uint8)}
        self.observation_space = Dict(image | dict.fromkeys(SENTENCES, text))
        self.action_space = Discrete(len(ACTIONS))
        self._folder = Path(config.housekeep_folder).resolve()
        with contextlib.chdir(self._folder):  # it opens files from there
            self._simulator, possible = _opened(config)
            self._simulator.reset()
        self._numbers = [possible.index(action) for action in ACTIONS]
        self._names = _Names(self._simulator.habitat_env.current_episode)
        self.metadata = {NAMED_ACTIONS: ACTION_NAMES, SUITABLE: self._names.suitable()}

    def reset(self, *, seed: int | None = None, options: Options = None) -> ResetResult:
        super().reset(seed=seed)
        with contextlib.chdir(self._folder):
            if seed is not None:
                self._simulator.seed(seed)
            observations = self._simulator.reset()
        self._steps = 0
        self._things: dict[str, None] = {}  # seen so far, in their order
        self._receptacles: dict[str, None] = {}
        return self._shown(observations), {"told": self._told}

    def step(self, action: Action) -> SingleStepResult:
        before, number = self._told, self._numbers[int(action)]
        with contextlib.chdir(self._folder):
            observations, _, done, _ = self._simulator.step(action={"action": number})
        self._steps += 1
        shown = self._shown(observations)
        failed = bool(observations.get("fail_action", False))
        phrase, succeeded = self._deed(int(action), before, failed)
        self._told = self._told._replace(phrase=phrase, succeeded=succeeded)
        reward = float(self._told.n_right - before.n_right)
        truncated = bool(done) or self._steps >= N_STEPS
        return shown, reward, False, truncated, {"told": self._told}

    def close(self) -> None:
        self._simulator.close()

    def _places(self) -> Mapping[str, str]:
        return self._simulator.habitat_env.current_episode.get_mapping("current")

    def _shown(self, observations: Info) -> dict[str, Observation]:
        places, names = self._places(), self._names
        in_view = {
            names.of_thing[key]: names.of_place[places[key]]
            for key in self._keys(observations["visible_obj_iids"])
            if places[key] in names.of_place
        }
        receptacles = self._keys(observations["visible_rec_iids"])
        known = (names.of_place[key] for key in receptacles if key in names.of_place)
        self._receptacles |= dict.fromkeys(known)
        self._things |= dict.fromkeys(in_view)
        held = [names.of_thing[key] for key, place in places.items() if place == AGENT]
        self._told = HouseholdInfo(
            sights_sentence(in_view),
            f"you have in your inventory {listed(held)}." if held else "",
            known_sentence(self._receptacles) if self._receptacles else "",
            dict.fromkeys(held, 1),
            sum(place in names.right_places[key] for key, place in places.items()),
            len(places),
        )
        seen = f"you have seen {listed(self._things)}." if self._things else ""
        image = np.ascontiguousarray(observations["rgb"][..., :3].transpose(2, 0, 1))
        sentences = (seen, self._told.inventory, self._told.status)
        return {"image": image, **dict(zip(SENTENCES, sentences, strict=True))}

    def _keys(self, iids: Sequence[int]) -> list[str]:
        """Return the keys of things in view, given numbers that end with zeros."""
        task = self._simulator.habitat_env.task
        return [
            task.sim_obj_id_to_obj_key[task.iid_to_sim_obj_id[int(iid)]] for iid in iids if iid != 0
        ]

    def _deed(self, action: int, before: HouseholdInfo, failed: bool) -> tuple[str, bool]:
        if action != GRAB_RELEASE:
            return ACTION_NAMES[action], True
        if failed or before.items == self._told.items:
            return PLACE if before.items else PICK_UP, False
        if self._told.items:
            return Goal(*self._told.items).phrase, True
        (thing,) = before.items
        place = self._names.of_place[self._places()[self._names.keys[thing]]]
        return Goal(thing, place).phrase, True


class HousekeepVectorEnv(SingleEnvs):
    """N houses that tell in `info` the view and the step in words, as HousekeepText's do."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._shares: deque[float] = deque(maxlen=EPISODES_AVERAGED)

    def reset(self, *, seed: int | None = None, options: Options = None) -> ResetResult:
        shown, info = super().reset(seed=seed, options=options)
        return shown, _columns(info["told"], BEFORE_AN_ACTION)

    def step(self, actions: np.ndarray) -> StepResult:
        shown, rewards, terminated, truncated, info = self.env.step(actions)
        last = info["told"].copy()  # before episodes began anew
        for row in np.flatnonzero(terminated | truncated):
            last[row] = info["final_info"]["told"][row]
            self._shares.append(last[row].n_right / last[row].n_things)
        succeeded = np.array([each.succeeded for each in last])
        kept = ("final_obs", "_final_obs")
        said: Info = {name: info[name] for name in kept if name in info}
        said |= _columns(info["told"], BEFORE_AN_ACTION) | _columns(last, OF_THE_STEP)
        said |= {"action_success": succeeded, "eval_success": succeeded.copy()}
        said["rearrange_success"] = np.array([each.n_right / each.n_things for each in last])
        return shown, rewards, terminated, truncated, said

    def state_dict(self) -> State:
        return {"shares": list(self._shares)}

    def load_state_dict(self, state: State) -> bool:
        self._shares.extend(state["shares"])
        return True

    def metrics(self) -> dict[str, float]:
        """Return the share of things where they belong, at the end of the last 100 episodes."""
        mean = float(np.mean(self._shares)) if self._shares else float("nan")
        return {"rollout/rearrange_success": mean}


def _columns(told: np.ndarray, names: Mapping[str, str]) -> dict[str, np.ndarray]:
    columns = dict(zip(HouseholdInfo._fields, zip(*told, strict=True), strict=True))
    return {name: object_array(columns[own]) for name, own in names.items()}


class _Names:
    """The names of an episode's things and receptacles.

    `of_thing`, where several of a kind are numbered, and `of_place` are by key; so is
    `right_places`, the keys of the receptacles where a thing belongs; `keys` are by name.
    """

    def __init__(self, episode: Any) -> None:
        name_of = importlib.import_module("cos_eor.scripts.build_utils").get_scene_rec_names
        self.of_thing: dict[str, str] = {}
        for key, kind in zip(episode.objs_keys, episode.objs_cats, strict=True):
            name, number = _plain(kind), 2
            while name in self.of_thing.values():
                name, number = f"{_plain(kind)} {number}", number + 1
            self.of_thing[key] = name
        self.keys = {name: key for key, name in self.of_thing.items()}
        self.of_place = {key: _plain(name_of([key])[0]) for key in episode.recs_keys if "-" in key}
        self.right_places: Mapping[str, Sequence[str]] = episode.get_correct_mapping()

    def suitable(self) -> dict[str, list[str]]:
        return {
            self.of_thing[key]: sorted({self.of_place[p] for p in places if p in self.of_place})
            for key, places in self.right_places.items()
        }


def _plain(name: str) -> str:
    return name.replace("_", " ").replace("-", " ").replace(",", "").strip()


def _check_installed(config: SimulatorSettings) -> None:
    for package in ("habitat_sim", "habitat", "habitat_baselines"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise UserError(
                f"env: '{NAME}' needs {package}, which is not installed and on no package index. "
                f"{HELP}"
            ) from error
    folder = Path(config.housekeep_folder)
    if not (folder / CONFIG).is_file():
        raise UserError(
            f"housekeep_folder: '{folder}' is no folder of Housekeep, it has no {CONFIG}. {HELP}"
        )


def _opened(config: SimulatorSettings) -> tuple[Any, list[str]]:
    """Return the task in its simulator, and the names of its actions by number."""
    # The working folder must be Housekeep's.
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    for module in REGISTERING:
        importlib.import_module(module)
    registry = importlib.import_module("habitat.core.registry").registry
    registry.mapping |= {"debug": False, "time": False}
    settings = _simulator_settings(config)
    task = settings.TASK_CONFIG
    dataset = importlib.import_module("habitat.datasets").make_dataset(
        task.DATASET.TYPE, config=task.DATASET
    )
    n_episodes = len(dataset.episodes)
    if config.housekeep_episode >= n_episodes:
        raise UserError(
            f"housekeep_episode: {config.housekeep_episode}, and {config.housekeep_scene} has "
            f"{n_episodes} in the split {config.housekeep_split}. Take one from 0 to "
            f"{n_episodes - 1}"
        )
    dataset.episodes = [dataset.episodes[config.housekeep_episode]]
    get_env_class = importlib.import_module("habitat_baselines.common.environments").get_env_class
    simulator = get_env_class(ENV_CLASS)(config=settings, dataset=dataset)
    return simulator, list(task.TASK.POSSIBLE_ACTIONS)


def _simulator_settings(config: SimulatorSettings) -> Any:
    get_config = importlib.import_module("habitat_baselines.config.default").get_config
    chosen = {"scene": config.housekeep_scene, "split": config.housekeep_split}
    text = string.Template(CONFIG.read_text()).safe_substitute(
        chosen, explore_type="phasic", rank_type="Oracle"
    )
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        settings = get_config(file.name)
    settings.defrost()
    task = settings.TASK_CONFIG
    task.ENVIRONMENT.MAX_EPISODE_STEPS = N_STEPS
    task.SIMULATOR.TURN_ANGLE, task.SIMULATOR.TILT_ANGLE = TURN_DEGREES, LOOK_DEGREES
    for name in CAMERAS:
        camera = getattr(task.SIMULATOR, name)
        camera.WIDTH = camera.HEIGHT = SIDE
    grab = task.TASK.ACTIONS.GRAB_RELEASE
    grab.GRAB_TYPE, grab.GRAB_DISTANCE = "crosshair", GRAB_METRES
    grab.CROSSHAIR_POS = [SIDE // 2, SIDE // 2]
    task.TASK.COS_EOR_SENSOR.CONTENT = ["ORACLE"]
    task.DATASET.DATA_PATH = task.DATASET.DATA_PATH.format(split=config.housekeep_split)
    task.DATASET.CHECKPOINT_FILE = None
    settings.freeze()
    return settings
