"""CrafterText-v0: Crafter with phrases as actions and with sentences, the world of ELLM.

Du et al. (2023, arXiv:2302.06692) ask a language model for the next goals, so that their Crafter
tells the player's view, items and needs, and calls its actions by a verb and a noun: 139 of them,
of which 29 can ever have an effect. Every step that unlocks an achievement pays 1. Further
differences from Crafter are in docs/crafter.md.
"""

from dataclasses import dataclass
from typing import Any

from envs.crafter import CrafterSettings
from utils.settings import setting

LENGTH = 400

# The actions, as the paper calls them.
MOVES = ("do nothing", "move left", "move right", "move up", "move down", "sleep")
VERBS = ("mine", "eat", "attack", "chop", "drink", "place", "make")
TOOLS = (
    *("wood pickaxe", "stone pickaxe", "iron pickaxe"),
    *("wood sword", "stone sword", "iron sword"),
)
NOUNS = (
    *("zombie", "skeleton", "cow", "tree", "stone", "coal", "iron", "diamond", "water", "grass"),
    *("crafting table", "furnace", "plant"),
    *TOOLS,
)
ALL_ACTIONS = (*MOVES, *(f"{verb} {noun}" for verb in VERBS for noun in NOUNS))
GOOD_ACTIONS = (
    *MOVES[:5],
    *("eat plant", "attack zombie", "attack skeleton", "attack cow", "chop tree"),
    *("mine stone", "mine coal", "mine iron", "mine diamond", "drink water", "chop grass", "sleep"),
    *("place stone", "place crafting table", "place furnace", "place plant"),
    *(f"make {tool}" for tool in TOOLS),
)
ACTION_NAMES = ALL_ACTIONS
LEARNED = "learned"
ACTIONS = {"all": ALL_ACTIONS, "good": GOOD_ACTIONS}


@dataclass(frozen=True)
class CrafterTextSettings(CrafterSettings):
    title = "CrafterText"

    crafter_actions: str = setting(
        "its actions: all 139 phrases, or the 27 good ones", choices=tuple(ACTIONS), default="all"
    )
    crafter_image: str = setting(
        "its pictures: gray, 84 x 84 as the original makes them, or in colour, 64 x 64",
        choices=("gray", "colour"),
        default="gray",
    )
    crafter_captions: str = setting(
        "source of its sentences: the state of the world, or a reading of its pictures",
        choices=("world", LEARNED),
        default="world",
    )
    use_text: bool = setting("show scene, inventory and status as text, too", default=True)
    terminate_on_death: bool = setting("end the episode where no health is left", default=True)


READS = (CrafterTextSettings,)


def make(config: CrafterTextSettings, seed: int) -> Any:
    from envs.crafter.vector import CrafterTextVectorEnv

    return CrafterTextVectorEnv(
        config.n_envs,
        seed,
        length=config.crafter_length or LENGTH,
        phrases=ACTIONS[config.crafter_actions],
        is_grey=config.crafter_image == "gray",
        use_text=config.use_text,
        terminate_on_death=config.terminate_on_death,
        reads_pixels=config.crafter_captions == LEARNED,
    )
