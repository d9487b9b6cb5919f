"""Environments that agents cannot be trained in, by the one thing that is wrong with each."""

import importlib
import sys

import gymnasium
import numpy as np
from gymnasium import spaces

NUMBER, IMAGE = spaces.Discrete(3), spaces.Box(0, 255, (8, 8, 3), np.uint8)
GRAPH = spaces.Graph(spaces.Box(0, 1, (2,)), None)
OBSERVATIONS = {
    "a graph": GRAPH,
    "a sequence": spaces.Sequence(NUMBER),
    "one of two": spaces.OneOf((NUMBER, IMAGE)),
    "a graph in a dictionary": spaces.Dict(image=IMAGE, graph=GRAPH),
    "a sequence in a tuple in a dictionary": spaces.Dict(
        a=spaces.Tuple((NUMBER, spaces.Sequence(NUMBER)))
    ),
    "an image and a grey one": spaces.Dict(a=IMAGE, b=spaces.Box(0, 255, (9, 9), np.uint8)),
    "an image too low": spaces.Box(0, 255, (4, 80, 3), np.uint8),
    "an image too narrow": spaces.Box(0, 255, (3, 80, 4), np.uint8),
    "a stack of stacks of images": spaces.Box(0, 255, (2, 4, 64, 64, 3), np.uint8),
    "nothing": spaces.Dict(),
    "no part": spaces.Tuple(()),
    "no number": spaces.Box(0, 1, (0,)),
    "a number of a million": spaces.Discrete(10**6),
    "numbers of too many": spaces.MultiDiscrete([10**4] * 2),
    "too many numbers": spaces.Box(-1, 1, (300, 300)),
    "too many numbers in three dimensions": spaces.Box(-1, 1, (210, 160, 3)),
    "too many bits": spaces.MultiBinary(20_000),
}
ACTIONS = {
    "a box without bounds": spaces.Box(-np.inf, 1, (2,)),
    "a box of whole numbers": spaces.Box(-1, 1, (2,), np.int64),
    "a box of one value": spaces.Box(1, 1, (2,)),
    "an empty box": spaces.Box(-1, 1, (0,)),
    "a dictionary": spaces.Dict(a=NUMBER),
    "a tuple": spaces.Tuple((NUMBER, NUMBER)),
    "a sequence": spaces.Sequence(NUMBER),
    "a graph": GRAPH,
    "bits": spaces.MultiBinary(3),
    "text": spaces.Text(5),
    "too many": spaces.Discrete(4_097),
    "too many together": spaces.MultiDiscrete([64, 65]),
    "far too many together": spaces.MultiDiscrete([100] * 30),
}
BEHAVIOURS = (
    *("constructor raises", "constructor exits", "constructor misses a package"),
    *("reset raises", "reset returns no info", "reset returns another shape"),
    *("reset returns nothing", "reset returns a number too large", "reset returns fractions"),
    *("step raises", "step exits", "step returns four"),
    *(f"{where} aborts" for where in ("constructor", "reset", "step")),
)
PARTS = {
    "a key is missing": (spaces.Dict(a=NUMBER, b=NUMBER), {"a": 1}),
    "a key is too many": (spaces.Dict(a=NUMBER), {"a": 1, "b": 1}),
    "a part is missing": (spaces.Tuple((NUMBER, NUMBER)), (1,)),
    "a dictionary is a list": (spaces.Dict(a=NUMBER), [1]),
    "a sentence is a number": (spaces.Dict(a=NUMBER, b=spaces.Text(9)), {"a": 1, "b": 2}),
    "a number is a fraction": (NUMBER, 1.0),
    "a number is below its start": (spaces.Discrete(3, start=1), 0),
    "bytes are fractions": (IMAGE, np.zeros((8, 8, 3))),
}
FAULTS = {"behaviour": BEHAVIOURS, "observations": OBSERVATIONS, "actions": ACTIONS, "parts": PARTS}


class Abort(BaseException):
    """No Exception."""


class Bad(gymnasium.Env):
    """Three numbers, three actions, and one thing wrong."""

    def __init__(self, behaviour="", observations=None, actions=None, parts=None):
        self.behaviour, self.shown = behaviour, 1
        self.observation_space = OBSERVATIONS.get(observations, NUMBER)
        self.action_space = ACTIONS.get(actions, NUMBER)
        if parts is not None:
            self.observation_space, self.shown = PARTS[parts]
        if behaviour == "constructor misses a package":
            importlib.import_module("no_such_package")
        self._fail("constructor")

    def reset(self, *, seed=None, options=None):
        self._fail("reset")
        others = {"another shape": np.zeros(2), "a number too large": 3, "fractions": 0.5}
        answers = {"no info": 1, "nothing": None, **{name: (v, {}) for name, v in others.items()}}
        return answers.get(self.behaviour.removeprefix("reset returns "), (self.shown, {}))

    def step(self, action):
        self._fail("step")
        if self.behaviour == "step returns four":
            return 1, 0.0, False, {}
        return self.shown, 0.0, False, False, {}

    def _fail(self, where):
        if self.behaviour == f"{where} raises":
            raise KeyError("a line\nand another")
        if self.behaviour == f"{where} aborts":
            raise Abort("a line\nand another")
        if self.behaviour == f"{where} exits":
            sys.exit("bye")


class Stacked(Bad):
    """Four grey frames, which not every agent can see."""

    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (4, 8, 8), np.uint8)
        self.shown = np.zeros((4, 8, 8), np.uint8)


class NoEnv:
    """An object that is no environment."""


gymnasium.register("Bad-v0", f"{__name__}:Bad")
gymnasium.register("Stacked-v0", f"{__name__}:Stacked")
gymnasium.register("NoEnv-v0", f"{__name__}:NoEnv")
gymnasium.register("NoPlace-v0", "no_such_module:Bad")
