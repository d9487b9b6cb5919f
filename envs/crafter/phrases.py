"""What the actions of CrafterText are called, as Du et al. (2023, arXiv:2302.06692) call them."""

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
