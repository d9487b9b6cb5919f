"""Crafter-v1: the unmodified game of Hafner (2022, arXiv:2109.06780), a world to survive in.

The player sees 9 x 7 of 64 x 64 cells and its items, and can unlock 22 achievements. The first of
each in an episode pays 1; a tenth of every health point lost is taken, and paid where it comes
back. An episode ends with the player's death or after 10,000 steps.

The worlds are those of the package `crafter` 1.8.3; docs/reference/environments.md lists the
differences.

CrafterText-v0 is that of Du et al. (2023, arXiv:2302.06692): it tells the player's view, items and
needs, and has 139 actions of a verb and a noun. Every step that unlocks an achievement pays 1.
"""

from gymnasium.vector import VectorEnv

from envs.settings import LEARNED, CrafterSettings, CrafterTextSettings
from utils.environments import Suite

LENGTH = 10_000
BASIC = ("noop", "move_left", "move_right", "move_up", "move_down", "do", "sleep")
PLACING = ("place_stone", "place_table", "place_furnace", "place_plant")
PICKAXES = ("make_wood_pickaxe", "make_stone_pickaxe", "make_iron_pickaxe")
SWORDS = ("make_wood_sword", "make_stone_sword", "make_iron_sword")
ACTION_NAMES = (*BASIC, *PLACING, *PICKAXES, *SWORDS)
TEXT_LENGTH = 400

# The actions of CrafterText, as the paper calls them.
MOVES = ("do nothing", "move left", "move right", "move up", "move down", "sleep")
VERBS = ("mine", "eat", "attack", "chop", "drink", "place", "make")
TOOLS = tuple(f"{of} {tool}" for tool in ("pickaxe", "sword") for of in ("wood", "stone", "iron"))
CREATURES, GROUNDS = ("zombie", "skeleton", "cow"), ("water", "grass")
MATERIALS = ("tree", "stone", "coal", "iron", "diamond")
BUILT = ("crafting table", "furnace", "plant")
NOUNS = (*CREATURES, *MATERIALS, *GROUNDS, *BUILT, *TOOLS)
ALL_ACTIONS = (*MOVES, *(f"{verb} {noun}" for verb in VERBS for noun in NOUNS))
FIGHTS = ("eat plant", "attack zombie", "attack skeleton", "attack cow")
GATHERING = ("chop tree", "mine stone", "mine coal", "mine iron", "mine diamond")
RESTING = ("drink water", "chop grass", "sleep")
BUILDING = ("place stone", "place crafting table", "place furnace", "place plant")
MAKING = tuple(f"make {tool}" for tool in TOOLS)
GOOD_ACTIONS = (*MOVES[:5], *FIGHTS, *GATHERING, *RESTING, *BUILDING, *MAKING)
ACTIONS = {"all": ALL_ACTIONS, "good": GOOD_ACTIONS}


class Crafter(Suite):
    action_names = ACTION_NAMES

    def make(self, config: CrafterSettings, seed: int) -> VectorEnv:
        from envs.crafter.vector import CrafterVectorEnv

        return CrafterVectorEnv(config.n_envs, seed, config.crafter_length or LENGTH)


class CrafterText(Suite):
    action_names = ALL_ACTIONS

    def make(self, config: CrafterTextSettings, seed: int) -> VectorEnv:
        from envs.crafter.tile_reader import load_tile_reader
        from envs.crafter.vector import CrafterTextVectorEnv

        return CrafterTextVectorEnv(
            config.n_envs,
            seed,
            length=config.crafter_length or TEXT_LENGTH,
            phrases=ACTIONS[config.crafter_actions],
            is_grey=config.crafter_image == "gray",
            use_text=config.use_text,
            terminate_on_death=config.terminate_on_death,
            tile_reader=load_tile_reader() if config.crafter_captions == LEARNED else None,
        )
