"""MiniGrid and BabyAI: the agent's partial view as an image, drawn from a table of tiles.

The images are those of MiniGrid's own `RGBImgPartialObsWrapper(env, tile_size=8)`, pixel by pixel.
EnvPool plays the same rules much faster but shows symbols only, so both paths show symbols and are
drawn here: a tile's pixels depend on nothing but its (object, colour, state) and on the agent.

A mission, a sentence that names the task, is shown beside the image where it is asked for. On
BabyAI, where missions differ from episode to episode, it is shown by default. In the twin of a
Memory task the agent seems to carry the object that it is to remember.
"""

import contextlib
import functools
import io
import logging
import string
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from envs.any_gymnasium import AnyGymnasium, gymnasium_maker, with_options
from envs.envpool_vector import EnvPoolVectorEnv, open_pool, pool_tasks
from envs.episodes import MakeOne, Options, ResetResult, SingleEnvs
from envs.settings import FULL, GymnasiumSettings, MissionSettings
from envs.vector import Twin
from utils.environments import Observation, Suite

VIEW = 7
TILE = 8
OVERVIEW_TILE = 16
IMAGE_SHAPE = (3, VIEW * TILE, VIEW * TILE)
AGENT_CELL = (VIEW // 2, VIEW - 1)
AGENT_FACES_UP = 3

ACTION_NAMES = ("left", "right", "forward", "pick up", "drop", "toggle", "done")

# How the names of tasks begin.
MINIGRID, BABYAI = "MiniGrid-", "BabyAI-"

LONGEST_MISSION = 1024  # letters

# Kinds of objects, colours and door states in MiniGrid's symbols.
SYMBOLS = (11, 6, 3)
SYMBOLS_SEEN = gymnasium.spaces.Box(0, 255, (VIEW, VIEW, len(SYMBOLS)), np.uint8)

# Observations with missions.
WITH_MISSION = gymnasium.spaces.Dict(
    {
        "image": gymnasium.spaces.Box(0, 255, IMAGE_SHAPE, np.uint8),
        "mission": gymnasium.spaces.Text(LONGEST_MISSION, min_length=0, charset=string.printable),
    }
)

log = logging.getLogger(__name__)


class MiniGrid(Suite):
    scale_rewards, action_names = True, ACTION_NAMES

    def names(self) -> list[str]:
        import minigrid  # noqa: F401  (registers its environments with Gymnasium)

        return sorted(name for name in gymnasium.registry if name.startswith((MINIGRID, BABYAI)))

    def make(self, config: MissionSettings, seed: int) -> VectorEnv:
        """Return environments by EnvPool, or by Gymnasium where that lacks the task or its twin."""
        # MiniGrid's tasks of many missions, such as Fetch, do not resume exactly in EnvPool.
        is_told = config.minigrid_missions and not config.env.startswith(BABYAI)
        if is_told or config.observability == FULL:
            return self.make_drawn(config, seed)
        if config.env in pool_tasks():
            return make_by_envpool(config, seed)
        log.warning(f"{config.env}: not offered by an installed envpool; using slower environments")
        return self.make_drawn(config, seed)

    def make_drawn(self, config: MissionSettings, seed: int) -> VectorEnv:
        """Return Gymnasium's environments, which draw their whole grid and report their cues."""

        def make_one() -> gymnasium.Env:
            import minigrid  # noqa: F401  (registers its environments with Gymnasium)

            env = gymnasium.make(config.env, disable_env_checker=True, render_mode="rgb_array")
            return pictured(env, config)

        return SingleEnvs(make_one, config.n_envs, seed)


class OwnMiniGrid(AnyGymnasium):
    """Tasks that a module of the user's own registers, `my_grids:MiniGrid-Mine-v0`.

    They are shown as MiniGrid's own are, unless they are registered with other observations than
    a plain MiniGridEnv's.
    """

    clip_rewards, action_names = True, ACTION_NAMES

    def maker(self, config: GymnasiumSettings, **drawn: str) -> MakeOne:
        own = with_options(gymnasium_maker(config, **drawn), config.reset_options)

        def make_one() -> gymnasium.Env:
            env = own()
            shown = env.observation_space
            if isinstance(shown, gymnasium.spaces.Dict) and shown.get("image") == SYMBOLS_SEEN:
                return pictured(env, config.part(MissionSettings))
            return Twin(env) if config.observability == FULL else env

        return make_one


def make_by_envpool(config: MissionSettings, seed: int) -> VectorEnv:
    """Return EnvPool's environments.

    They follow MiniGrid's rules but draw layouts from other random numbers, and a success on the
    last step allowed counts as truncated only.
    """
    # A step is so short that more threads would cost more than they save.
    open_task = functools.partial(open_pool, config.env, num_threads=1)

    def show(observations: dict[str, np.ndarray]) -> Observation:
        images = draw(observations["image"])
        return {"image": images, "mission": missions(observations["mission"])} if told else images

    told = tells_missions(config)
    space = WITH_MISSION if told else WITH_MISSION["image"]
    return EnvPoolVectorEnv(config.env, open_task, config.n_envs, seed, show, space)


def tells_missions(config: MissionSettings) -> bool:
    if config.minigrid_missions is None:
        return config.env.rpartition(":")[2].startswith(BABYAI)
    return config.minigrid_missions


def missions(letters: np.ndarray) -> np.ndarray:
    """Return EnvPool's missions, zeros behind each, as texts.  [N, L] uint8 -> [N] of objects"""
    lines = np.ascontiguousarray(letters).view(f"S{letters.shape[1]}")[:, 0]
    return np.array([line.decode() for line in lines.tolist()], object)


def draw(symbols: np.ndarray) -> np.ndarray:
    """Draw partial views as images [N, 3, 56, 56] uint8.

    `symbols` holds (object, colour, state) of every cell, column before row.  [N, 7, 7, 3] uint8
    """
    tiles = tile_table()
    kinds, colours, states = SYMBOLS
    # (object, colour, state) as one number: the row of the table of tiles.
    numbers = symbols @ np.array([colours * states, states, 1])
    # The second half of the table has the agent on the tile.
    numbers[:, *AGENT_CELL] += kinds * colours * states
    lines = tiles.take(numbers, axis=0)  # [N, column, row, 3, line]
    lines = np.ascontiguousarray(lines.transpose(0, 3, 2, 4, 1))  # [N, 3, row, line, column]
    return lines.view(np.uint8).reshape(-1, *IMAGE_SHAPE)


@functools.cache
def tile_table() -> np.ndarray:
    """Draw every tile once, by MiniGrid's own code; first all without, then all with the agent.

    Unseen tiles are dark, all others highlighted, as MiniGrid draws them. The eight pixels of a
    line are packed into one number, which is quicker to copy than eight. Lines are channel first.
    [2 * kinds * colours * states, 3, 8] uint64
    """
    from minigrid.core.constants import IDX_TO_COLOR, OBJECT_TO_IDX
    from minigrid.core.grid import Grid
    from minigrid.core.world_object import WorldObj

    tiles = np.empty((2, *SYMBOLS, 3, TILE, TILE), np.uint8)
    for with_agent, kind, colour, state in np.ndindex(2, *SYMBOLS):
        thing = WorldObj.decode(kind, colour, state)
        if thing:
            # Decoding forgets the colour of goals.
            thing.color = IDX_TO_COLOR[colour]
        direction = AGENT_FACES_UP if with_agent else None
        seen = kind != OBJECT_TO_IDX["unseen"]
        tile = Grid.render_tile(thing, direction, highlight=seen, tile_size=TILE)
        tiles[with_agent, kind, colour, state] = tile.transpose(2, 0, 1)
    return tiles.reshape(-1, 3, TILE, TILE).view(np.uint64)[..., 0]


def pictured(env: gymnasium.Env, config: MissionSettings) -> gymnasium.Env:
    """Return an environment of MiniGrid that shows images, and missions if asked."""
    from minigrid.envs import MemoryEnv

    told = tells_missions(config)
    world: Any = env.unwrapped
    # Of `render`, the picture of the whole grid; the agent's view has tiles of 8.
    world.tile_size = OVERVIEW_TILE
    if isinstance(world, MemoryEnv):
        env = ShownObject(env)
    if config.observability == FULL:
        env = Twin(env)

    def show(observation: dict[str, Observation]) -> Observation:
        image = draw(observation["image"][None])[0]
        return {"image": image, "mission": observation["mission"]} if told else image

    space = WITH_MISSION if told else WITH_MISSION["image"]
    return gymnasium.wrappers.TransformObservation(SilentReset(env), show, space)


class ShownObject(gymnasium.Wrapper):
    """Tells the object in the first room of a Memory task, where the agent sees it."""

    def cue(self) -> int | None:
        """Return 0 for a ball and 1 for a key; None where it is not in view."""
        world: Any = self.unwrapped
        place = 1, world.height // 2 - 1
        return int(world.grid.get(*place).type == "key") if world.agent_sees(*place) else None

    def show_cue(self, observation: dict[str, Observation]) -> dict[str, Observation]:
        """Return an observation in which the agent seems to carry the object; it never can."""
        world: Any = self.unwrapped
        symbols = observation["image"].copy()
        symbols[AGENT_CELL] = world.grid.get(1, world.height // 2 - 1).encode()
        return observation | {"image": symbols}


class SilentReset(gymnasium.Wrapper):
    """Drops the package's notices of layouts that it has to draw again."""

    def reset(self, *, seed: int | None = None, options: Options = None) -> ResetResult:
        with contextlib.redirect_stdout(io.StringIO()):
            return self.env.reset(seed=seed, options=options)
