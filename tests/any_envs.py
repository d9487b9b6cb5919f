"""Small environments of every kind that is converted, registered with Gymnasium."""

import itertools
import multiprocessing
import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper

from tests.bad_inputs.bad_envs import IMAGE, NUMBER

NUMBERS = spaces.Box(0, 6, (2,))
FLAT = spaces.Box(-np.inf, np.inf, (2,), np.float64)
SPACES = {
    "image, channels last": spaces.Box(0, 255, (6, 7, 3), np.uint8),
    "image, channels first": spaces.Box(0, 255, (3, 6, 7), np.uint8),
    "grey image": spaces.Box(0, 255, (5, 6), np.uint8),
    "grey image of one channel": spaces.Box(0, 255, (5, 6, 1), np.uint8),
    "vector": FLAT,
    "table": spaces.Box(-1, 1, (2, 3)),
    "bytes": spaces.Box(0, 255, (4,), np.uint8),
    "codes": spaces.Box(0, 10, (7, 7, 3), np.uint8),
    "number": spaces.Box(-1, 1, ()),
    "one of three, from 5 on": spaces.Discrete(3, start=5),
    "several": spaces.MultiDiscrete([2, 3], start=[0, 1]),
    "a table of several": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    "bits": spaces.MultiBinary((2, 2)),
    "image of fractions": spaces.Box(0, 1, (6, 7, 3), np.float32),
    "stack of images": spaces.Box(0, 255, (4, 6, 7, 3), np.uint8),
    "stack of grey fractions": spaces.Box(0, 1, (4, 6, 7), np.float64),
    "two images": spaces.Tuple((IMAGE, spaces.Box(0, 255, (8, 8), np.uint8))),
    "nested": spaces.Dict(
        look=spaces.Tuple((IMAGE, NUMBER)), more=spaces.Dict(a=FLAT, b=spaces.MultiBinary(3))
    ),
}


class Sampled(gymnasium.Env):
    """Shows random observations; an episode has so many steps, 0: no end. It can be drawn."""

    metadata = {"render_modes": ["rgb_array"], "number_names": ["left"]}  # noqa: RUF012

    def __init__(self, kind="vector", actions=None, render_mode=None, length=6):
        self.observation_space, self.length = SPACES[kind], length
        self.action_space = actions or spaces.Discrete(2)
        self.render_mode = render_mode
        self.taken, self.n_steps = [], 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n_steps = 0
        return self._look(), {"episode": "of nobody's interest"}

    def step(self, action):
        self.taken.append(action)
        self.n_steps += 1
        is_over = self.n_steps == self.length
        return self._look(), self.np_random.random(), is_over, False, {"score": 3}

    def render(self):
        return np.full((401, 300, 3), self.n_steps, np.uint8)

    def _look(self):
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample()


class Steered(Sampled):
    """Pays for numbers of a box, each of which has other bounds; it refuses all beyond them."""

    def __init__(self, kind="vector"):
        low, high = np.array([[-1.0, 0.0]]), np.array([[3.0, 0.5]])
        super().__init__(kind, spaces.Box(low, high, dtype=np.float64))

    def step(self, action):
        assert action in self.action_space
        shown, _, *rest = super().step(action)
        return shown, 1.0 - float(np.square(action - 0.25).sum()), *rest


class Unseeded(Sampled):
    """No seed decides its observations."""

    def _look(self):
        return self.observation_space.sample()


class Cued(Sampled):
    """Shows a side in its first step, as the first of two numbers; both are random later."""

    def cue(self):
        return self.side if self.n_steps == 0 else None

    def show_cue(self, observation):
        return np.array([self.side, observation[1]])

    def _look(self):
        shown = super()._look()
        if self.n_steps == 0:
            self.side = int(self.np_random.integers(2))
            shown[0] = self.side
        return shown


gymnasium.register("Cued-v0", f"{__name__}:Cued")


class Masked(gymnasium.Env):
    """Allows some of four actions, others at each step, and raises an error at all others.

    The mask is told in the observation or in the info; at the last one nothing is allowed. From the
    third step on it may be wrong.
    """

    action_space = spaces.Discrete(4)

    def __init__(self, told="observation", wrong=None, n_entries=4):
        self.told, self.wrong = told, wrong
        place, mask = spaces.Box(0, 9, (2,)), spaces.Box(0, 1, (n_entries,), np.int64)
        shown = spaces.Dict(place=place, action_mask=mask)
        self.observation_space = place if told == "info" else shown

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n_steps = 0
        return self._look()

    def step(self, action):
        if not self.mask[action]:
            raise AssertionError(f"action {action} is forbidden")
        self.n_steps += 1
        shown, info = self._look()
        return shown, float(action == 1), self.n_steps == 7, False, info

    def _look(self):
        self.mask = self.np_random.permutation([1, *self.np_random.integers(0, 2, 3)])
        told = self.mask * (self.n_steps < 7)
        if self.wrong is not None and self.n_steps > 2:
            told = WRONG_MASKS[self.wrong]
        place = np.full(2, self.n_steps, np.float32)
        if self.told == "info":
            return place, {"action_mask": told.astype(bool) if self.wrong is None else told}
        return {"place": place, "action_mask": told}, {}


WRONG_MASKS = {"of another length": np.ones(5, np.int64), "missing": None}
WRONG_MASKS |= {"allows nothing": np.zeros(4, np.int64), "of other numbers": np.array([1, 2, 0, 0])}
gymnasium.register("Masked-v0", f"{__name__}:Masked")


class Unspeakable(Exception):
    def __str__(self):
        raise ValueError("no words")


class Late(Sampled):
    """One thing goes wrong in the second environment that is made and later ones."""

    def __init__(self, fault, instances=None, step=2):
        super().__init__()
        self.fault, self.fails_at = fault, step
        is_first = next(instances or INSTANCES) == 0
        self.is_late = not is_first or multiprocessing.parent_process() is not None

    def step(self, action):
        shown, *rest = super().step(action)
        self.fails_at -= 1
        if self.fails_at or not self.is_late:
            return shown, *rest
        if self.fault == "exits":
            sys.exit("bye")
        if self.fault in RAISED:
            raise RAISED[self.fault]
        values = [shown, 0.0, False, False, {}]
        place, value = RETURNED[self.fault]
        values[place] = value
        return tuple(values[: 4 if self.fault == "four values" else 5])


INSTANCES = itertools.count()
RAISED = {"raises": KeyError("a\nb"), "raises what cannot be told": Unspeakable()}
RAISED |= {"raises an error of the system": TimeoutError("late")}
RETURNED: dict[str, Any] = {
    "another shape": (0, np.zeros(3, np.float32)),
    "another dtype": (0, np.zeros(2, np.complex64)),
    "shows nothing": (0, None),
    "shows NaN": (0, np.full(2, np.nan, np.float32)),
    "pays infinity": (1, -np.inf),
    "pays text": (1, "1"),
    "ends by a word": (2, "yes"),
    "four values": (4, {}),
}


class Showing(gymnasium.Env):
    """Shows what `show` returns of its step, pays `pays`, and calls `does` in a step of its life.

    An episode has six steps. With `needs` it refuses a reset without these options.
    """

    action_space = spaces.Discrete(2)

    def __init__(self, space=NUMBERS, show=None, pays=1.0, does=None, at=3, needs=None):
        self.observation_space, self.show, self.pays = space, show, pays
        self.does, self.at, self.needs, self.n_calls = does, at, needs, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.needs is not None and not self.needs.items() <= (options or {}).items():
            raise ValueError(f"options are {options}")
        self.n_steps = 0
        return self._look(), {}

    def step(self, action):
        self.n_steps += 1
        self.n_calls += 1
        if self.does is not None and self.n_calls == self.at:
            self.does()
        return self._look(), self.pays, self.n_steps == 6, False, {}

    def _look(self):
        if self.show is not None:
            return self.show(self)
        return np.full(self.observation_space.shape, self.n_steps, self.observation_space.dtype)


gymnasium.register("Showing-v0", f"{__name__}:Showing")
gymnasium.register("Late-v0", f"{__name__}:Late")
gymnasium.register("Unseeded-v0", f"{__name__}:Unseeded")
gymnasium.register("Steered-v0", f"{__name__}:Steered", max_episode_steps=4)
gymnasium.register("Sampled-v0", f"{__name__}:Sampled", max_episode_steps=4)
gymnasium.register("Long-v0", f"{__name__}:Sampled", kwargs={"length": 17})
gymnasium.register("Unending-v0", f"{__name__}:Sampled", kwargs={"length": 0})


def poured(held, fresh):
    """Return an observation by the arrays that are held, as far as there are any."""
    if isinstance(held, dict):
        held.update({key: poured(held[key], part) for key, part in fresh.items()})
        return held
    if isinstance(held, tuple):
        return tuple(map(poured, held, fresh))
    if isinstance(held, np.ndarray):
        held[...] = fresh
        return held
    return fresh


class Held(gymnasium.Wrapper):
    """Shows the same arrays at every step, and changes them."""

    def reset(self, **options):
        shown, info = self.env.reset(**options)
        self.held = poured(self.held, shown) if hasattr(self, "held") else shown
        return self.held, info

    def step(self, action):
        shown, *others = self.env.step(action)
        return poured(self.held, shown), *others


class HeldVector(VectorWrapper):
    """Returns its own arrays of everything, changes them at every step, and changes the actions."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def reset(self, **options):
        shown, info = self.env.reset(**options)
        self.held, self.last = poured(shown, shown), None
        self.paid = tuple(np.zeros(self.num_envs, kind) for kind in (float, bool, bool))
        return self.held, info

    def step(self, actions):
        shown, *paid, info = self.env.step(actions.copy())
        actions[...] = 0
        ended = paid[1] | paid[2]
        if ended.any():
            (one,) = ended.nonzero()[0][:1]
            last = info["final_obs"][one]
            info["final_obs"][one] = self.last = poured(
                last if self.last is None else self.last, last
            )
        return poured(self.held, shown), *poured(self.paid, tuple(paid)), info


def vector_of(make, n_envs=2):
    return SyncVectorEnv([make] * n_envs, autoreset_mode=AutoresetMode.SAME_STEP)


class Goal(gymnasium.Env):
    """An episode of so many steps; its info has `told` at every step, `at_end` at the last."""

    observation_space, action_space = spaces.Box(0, 1, (2,)), spaces.Discrete(2)

    def __init__(self, n_steps=3, told=None, at_end=None, **metadata):
        self.length, self.told, self.at_end = n_steps, told or {}, at_end or {}
        self.metadata = metadata

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n_steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.n_steps += 1
        is_over = self.n_steps == self.length
        return np.zeros(2, np.float32), 1.0, is_over, False, self.at_end if is_over else self.told
