"""A new scene scored by a language model that suggests, beside reading every phrase on its own."""

from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from benchmarks.comparing import Pair, Work
from benchmarks.plain_text_model import PlainTextModel
from benchmarks.random_models import write_decoder
from models.language.model_files import find_model
from models.language.text_model import load_text_model
from rewards.suggestions.language_model import DEFAULT_MODEL
from rewards.suggestions.prompts import BULLET, INSTRUCTION, bullet, question
from rewards.suggestions.suggester import Situation

SEEN = ("cow", "grass", "plant", "tree", "water")
VERBS = ("mine", "eat", "attack", "chop", "drink", "place")
PHRASES = [bullet(f"{verb} {thing}") for verb in VERBS for thing in SEEN]
HELD = ("coal", "iron", "stone", "wood", "sapling", "diamond")


def pairs(quick: bool) -> Iterator[Pair]:
    """Compare on scenes never seen before, each with 30 phrases."""
    yield Pair(
        f"new scene, {len(PHRASES)} phrases",
        partial(plain, quick),
        partial(ours, quick),
        rounds=2 if quick else 3,
        repeats=1,
        note="a tiny decoder" if quick else DEFAULT_MODEL,
    )


def plain(quick: bool) -> Iterator[Work]:
    """Read the prompt anew for every phrase."""
    with TemporaryDirectory() as folder:
        model = PlainTextModel(find_model(_name(quick, folder)))
        for prompt in _prompts():
            yield partial(_scored, partial(model.phrase_log_probabilities, prompt, PHRASES))


def ours(quick: bool) -> Iterator[Work]:
    """Keep what all prompts begin with, and read the phrases as a tree."""
    with TemporaryDirectory() as folder:
        model = load_text_model(_name(quick, folder))
        for prompt in _prompts():
            score = partial(model.phrase_log_probabilities, prompt, PHRASES, INSTRUCTION)
            yield partial(_scored, score)


def _name(quick: bool, folder: str) -> str:
    return str(write_decoder(Path(folder))) if quick else DEFAULT_MODEL


def _scored(score: partial[list[float]]) -> Tensor:
    return torch.tensor(score())


def _prompts() -> Iterator[str]:
    scene = f"you see {', '.join(SEEN[:-1])}, and {SEEN[-1]}. you are targeting grass."
    for number in count():
        held = [thing for place, thing in enumerate(HELD) if number >> place & 1]
        inventory = f"you have in your inventory {', '.join(held)}." if held else ""
        yield question(Situation(scene, inventory, "", {})) + BULLET
