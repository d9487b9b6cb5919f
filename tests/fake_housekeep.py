"""A small stand-in for the promises of habitat-sim, Habitat-Lab and Housekeep, and no more.

Straight ahead lies the next of three things on a receptacle; turning right goes on to the next of
three receptacles.
"""

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import ClassVar
from unittest.mock import Mock

import numpy as np

POSSIBLE = ["STOP", "MOVE_FORWARD", "TURN_LEFT", "TURN_RIGHT", "LOOK_UP", "LOOK_DOWN"]
POSSIBLE += ["GRAB_RELEASE"]
RECEPTACLES = ["kitchen_0-sink_12_0", "kitchen_0-top_cabinet_3_0", "living_room_1-sofa_7_0"]
THINGS = {"obj_mug_1": "mug", "obj_mug_2": "mug", "obj_cushion": "throw_cushion"}
START = {"obj_mug_1": 2, "obj_mug_2": 0, "obj_cushion": 1}
RIGHT = {"obj_mug_1": [0, 1], "obj_mug_2": [0, 1], "obj_cushion": [2]}
YAML = "SCENE: ${scene}\nSPLIT: ${split}\nEXPLORE: $explore_type\nRANK: $rank_type\n"
N_EPISODES = 3


class Episode:
    def __init__(self, number):
        self.number = number
        self.objs_keys, self.objs_cats = list(THINGS), list(THINGS.values())
        self.recs_keys = [*RECEPTACLES, "agent"]
        self.reset()

    def reset(self):
        self.places = {key: RECEPTACLES[START[key]] for key in THINGS}

    def get_mapping(self, state_type):
        assert state_type == "current"
        return dict(self.places)

    def get_correct_mapping(self):
        return {key: [RECEPTACLES[number] for number in RIGHT[key]] for key in THINGS}


class Simulator:
    """The task; a thing that is held is released onto the receptacle in view."""

    opened: ClassVar[list["Simulator"]] = []

    def __init__(self, config, dataset):
        (self.episode,) = dataset.episodes
        self.config, self.seeds = config, []
        keys = dict(enumerate([*THINGS, *RECEPTACLES]))
        ids = {number + 1: number for number in keys}
        task = SimpleNamespace(iid_to_sim_obj_id=ids, sim_obj_id_to_obj_key=keys)
        self.habitat_env = SimpleNamespace(task=task, current_episode=self.episode)
        self.folder = os.getcwd()
        Simulator.opened.append(self)

    def seed(self, seed):
        self.seeds.append(seed)

    def reset(self):
        assert os.getcwd() == self.folder
        self.episode.reset()
        self.at = self.n_steps = 0
        return self.observations()

    def step(self, action):
        assert os.getcwd() == self.folder
        name = self.config.TASK_CONFIG.TASK.POSSIBLE_ACTIONS[action["action"]]
        self.n_steps, self.taken = self.n_steps + 1, name
        observations = {}
        if name == "TURN_RIGHT":
            self.at = (self.at + 1) % len(RECEPTACLES)
        if name == "GRAB_RELEASE":
            observations["fail_action"] = not self.grab_or_release()
        limit = self.config.TASK_CONFIG.ENVIRONMENT.MAX_EPISODE_STEPS
        return self.observations() | observations, {"slack": -0.01}, self.n_steps >= limit, {}

    def grab_or_release(self):
        here = RECEPTACLES[self.at]
        held = [key for key, place in self.episode.places.items() if place == "agent"]
        near = [key for key, place in self.episode.places.items() if place == here]
        if held:
            self.episode.places[held[0]] = here
        elif near:
            self.episode.places[near[0]] = "agent"
        return bool(held or near)

    def observations(self):
        here = RECEPTACLES[self.at]
        seen = [n for n, key in enumerate(THINGS) if self.episode.places[key] == here]
        camera = self.config.TASK_CONFIG.SIMULATOR.RGB_SENSOR
        image = np.zeros((camera.HEIGHT, camera.WIDTH, 3), np.uint8)
        image[0, 0] = self.n_steps % 256, self.at, 7
        things, places = [*(number + 1 for number in seen), 0, 0], [len(THINGS) + self.at + 1, 0]
        return {"rgb": image, "visible_obj_iids": things, "visible_rec_iids": places}

    def close(self):
        pass


def settings_of(path):
    with open(path) as file:
        lines = dict(line.strip().split(": ") for line in file)
    assert not any("$" in value for value in lines.values())
    cameras = {name: Mock() for name in ("RGB_SENSOR", "DEPTH_SENSOR", "SEMANTIC_SENSOR")}
    task = Mock(POSSIBLE_ACTIONS=POSSIBLE)
    dataset = SimpleNamespace(TYPE="CosRearrangementDataset-v0", SCENE=lines["SCENE"])
    dataset.DATA_PATH = "data/datasets/cos_eor_v11_pruned/{split}/"
    return Mock(TASK_CONFIG=Mock(TASK=task, DATASET=dataset, SIMULATOR=Mock(**cameras)))


def dataset_of(kind, config):
    assert kind == "CosRearrangementDataset-v0"
    return SimpleNamespace(episodes=[Episode(number) for number in range(N_EPISODES)])


def names_of(keys):
    """Return "kitchen-sink" of "kitchen_0-sink_12_0"."""
    pairs = (key.split("-") for key in keys)
    return [f"{room.rpartition('_')[0]}-{name.rsplit('_', 2)[0]}" for room, name in pairs]


def install(monkeypatch, folder):
    """Put the stand-ins where the packages would be, and Housekeep's settings into a folder."""
    empty = ("habitat_sim", "habitat", "habitat.core", "habitat_baselines")
    empty += ("habitat_baselines.common", "habitat_baselines.config", "cos_eor", "cos_eor.env")
    empty += ("cos_eor.env.env", "cos_eor.task", "cos_eor.task.sensors", "cos_eor.task.measures")
    contents = {name: {} for name in (*empty, "cos_eor.scripts")} | {
        "habitat.core.registry": {"registry": SimpleNamespace(mapping={})},
        "habitat.datasets": {"make_dataset": dataset_of},
        "habitat_baselines.common.environments": {"get_env_class": lambda name: Simulator},
        "habitat_baselines.config.default": {"get_config": settings_of},
        "cos_eor.scripts.build_utils": {"get_scene_rec_names": names_of},
    }
    for name, members in contents.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(Simulator, "opened", [])
    config = folder / "cos_eor" / "configs" / "local" / "igib_v2_nav_sp.yaml"
    config.parent.mkdir(parents=True)
    config.write_text(YAML)
    return Simulator
