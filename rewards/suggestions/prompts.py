"""What a language model is asked, and how its answer is read (Du et al. 2023, arXiv:2302.06692).

The question is the paper's: what actions there are, two examples, then what the agent sees and
holds. The answer is a list of bullets, a suggestion a line.
"""

import re
from collections.abc import Sequence

from rewards.suggestions.suggester import Situation

# Every question begins with it.
INSTRUCTION = """\
Valid actions: sleep, eat, attack, chop, drink, place, make, mine
You are a player playing a game. Suggest the best actions the player can take based on the things \
you see and the items in your inventory. Only use valid actions and objects.

You see plant, tree, and skeleton. You are targeting skeleton. What do you do?
- Eat plant
- Chop tree
- Attack skeleton

You see water, grass, cow, and diamond. You are targeting grass. You have in your inventory \
plant. What do you do?
- Drink water
- Chop grass
- Attack cow
- Place plant

"""
QUESTION = "What do you do?\n"
BULLET = "-"
FENCES = ('\n"""', "\n'''", "\n```")  # as its last line they are no part of an answer
# What is made of what is held, or put down, need not be in view.
BUILDING = ("make", "place")


def lm_sentence(situation: Situation) -> str:
    """Return what a model is told of a situation: of how the agent feels only that it is sleepy."""
    sleepy = "you feel sleepy." if "sleepy" in situation.status else ""
    told = " ".join(filter(None, (situation.scene, situation.inventory, sleepy)))
    return re.sub(r"(?:^|(?<=\. ))[a-z]", lambda letter: letter[0].upper(), told)


def question(situation: Situation) -> str:
    """Return the whole prompt, to be answered by a list of bullets."""
    return f"{INSTRUCTION}{lm_sentence(situation)} {QUESTION}"


def goals_of(answer: str) -> list[str] | None:
    """Return the suggestions of an answer, in its order and as often as it names them.

    None if the answer is rejected: a line does not begin with "-".
    """
    if answer.endswith(FENCES):
        answer = answer[: -len(FENCES[0])]
    lines = answer.split("\n")
    if not all(line.startswith(BULLET) for line in lines):
        return None
    parts = (part.strip(" .\n") for part in answer.lower().split(BULLET))
    return [part for part in parts if part]


def candidates(action_names: Sequence[str], situation: Situation) -> list[str]:
    """Return the names of actions with things in view or held, or made of what is held.

    An action is a verb and a thing, or a verb alone that the agent feels like (sleepy: sleep).
    """
    seen = " ".join((situation.scene, situation.inventory)).replace("_", " ")
    holds = any(situation.items.values())
    found = []
    for name in action_names:
        verb, _, thing = name.partition(" ")
        fits = thing in seen if thing else verb in situation.status
        if fits or (holds and verb in BUILDING):
            found.append(name)
    return found


def bullet(name: str) -> str:
    """Return an action as an answer would name it, after the bullet's sign."""
    return f" {name[:1].upper()}{name[1:]}"
