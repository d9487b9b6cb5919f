"""Worlds of Crafter put into given states, and the package's own game made reproducible."""

import contextlib
import io
from collections import defaultdict

import numpy as np

from envs.crafter.world import PLAYER, WORLD, add, begin_world

with contextlib.redirect_stderr(io.StringIO()):
    import crafter
    from crafter import engine


def world_of(state, seed):
    """Return a world [1] of WORLD in a state of the golden data, its generator seeded."""
    worlds = np.zeros(1, WORLD)
    begin_world(worlds, 0, 0)
    world = worlds[0]
    random = np.random.RandomState(int(seed)).get_state(legacy=False)["state"]
    world["words"], world["next_word"] = random["key"], random["pos"]
    world["standing"][:], world["n_things"] = 0, 0
    world["materials"][:] = state["world_map"]
    add(world, PLAYER, *map(int, state["player_position"]))
    world["facing_x"][0], world["facing_y"][0] = state["player_facing"]
    world["inventory"][:] = state["inventory"]
    world["sleeping"], world["steps"] = state["sleeping"], state["steps_taken"]
    world["last_health"] = state.get("last_health", state["inventory"][0])
    world["achievements"][:] = state.get("achievements", 0)
    world["unlocked"][:] = state.get("unlocked", 0)
    names = ("hunger", "thirst", "fatigue", "recovery")
    for name, value in zip(names, state.get("counters", np.zeros(4)), strict=True):
        world[name] = value
    return worlds


def add_things(world, things):
    """Put objects of the golden data into a world, in the order of updating."""
    for each in things:
        thing = add(world, int(each["kind"]), *map(int, each["position"]))
        world["health"][thing], world["timer"][thing] = each["health"], each["timer"]
        world["facing_x"][thing], world["facing_y"][thing] = each["facing"]


class ByArrival(dict):
    """A set that keeps its members in the order in which they came."""

    add = dict.setdefault

    def remove(self, member):
        del self[member]


class ReproducibleWorld(engine.World):
    """The package's world, with the creatures of a chunk in order of arrival."""

    def reset(self, seed=None):
        super().reset(seed)
        self._chunks = defaultdict(ByArrival)


def their_game(monkeypatch, seed):
    """Return `crafter.Env(seed=seed)` with ordered chunks, the night's noise from a generator."""
    monkeypatch.setattr(engine, "World", ReproducibleWorld)
    env = crafter.Env(seed=seed)
    noise, view = np.random.default_rng(seed), env._local_view
    view._noise = lambda canvas, amount, stddev: _noisy(view, noise, canvas, amount, stddev)
    return env


def _noisy(view, generator, canvas, amount, stddev):
    noise = generator.uniform(32, 127, canvas.shape[:2])[..., None]
    mask = amount * view._vignette(canvas.shape, stddev)[..., None]
    return (1 - mask) * canvas + mask * noise
