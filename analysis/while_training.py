"""The showcase of a run while it trains: an episode's movie or numbers, words, attention."""

import io
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from analysis import memory
from analysis.figures import new_figure, style
from analysis.page import coloured
from analysis.run_data import markdown
from analysis.statistics import MOST_WORDS
from models.agent import Agent, TokensRead
from models.helm import LanguageMemory
from models.observations import Observations
from trainers.learner import Transition
from utils.loggers import EncodedImage, Media

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_STEPS = 256  # of an episode; longer ones would hold up the training
FRAME_MILLISECONDS = 125
SMALLEST_SIDE = 224  # pixels of a frame

Shown = tuple[Observations, TokensRead | None]  # one step of the first environment


class Showcase:
    """Shows the first episode of the first environment, one every few minutes, and the last."""

    # Showing changes nothing: it steps no environment, draws no random number, and uses no cache.

    def __init__(
        self, agent: Agent, minutes: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.agent, self.seconds, self._clock = agent, 60 * minutes, clock
        self._due = -math.inf
        self._running: list[Shown] | None = None  # None until an episode begins
        self._latest: list[Shown] = []

    def follow(self, transition: Transition) -> None:
        if transition.percept.is_first[0]:
            self._latest, self._running = self._running or self._latest, []
        if self._running is not None and len(self._running) < MOST_STEPS:
            seen, read = transition.percept.observations, transition.step.read
            own = None if read is None else read.map(lambda part: part[0].cpu())
            self._running.append((seen.map(lambda kind: kind[0].cpu()), own))

    def media(self, is_last: bool) -> Media:
        if not self._latest or not (is_last or self._clock() >= self._due):
            return {}
        self._due = self._clock() + self.seconds
        seen = [observations for observations, _ in self._latest]
        read = [tokens for _, tokens in self._latest if tokens is not None]
        self._latest = []
        episode = seen[0].map(lambda *kinds: torch.stack(kinds), *seen[1:])
        own = read[0].map(lambda *parts: torch.stack(parts), *read[1:]) if read else None
        return media(self.agent, episode, own)


@torch.no_grad()
def media(agent: Agent, episode: Observations, read: TokensRead | None = None) -> Media:
    """Return a movie or numbers, words and attention of an episode [T, ...], as available."""
    # The words are those that were read, and the attention is that of the tokens that were read.
    shown: dict[str, EncodedImage | str] = {}
    if episode.images is not None:
        shown["episode/movie"] = movie(episode.images)
    elif episode.vectors is not None:
        shown["episode/numbers"] = picture(numbers_figure(episode.vectors.numpy()))
    language: LanguageMemory | None = agent.frozen_memory
    if language is None or read is None:
        return shown
    if read.words is not None:
        counts = memory.count_words([language.explain(read)["words"]])
        shown["episode/words"] = picture(memory.draw_words(counts))
        shown["episode/word_counts"] = markdown(memory.word_table(counts)[: MOST_WORDS + 1])
    tokens = read.tokens.to(agent.device)
    weights = memory.episode_attention(language.language_model, tokens).cpu().numpy()
    shown["episode/attention"] = picture(memory.draw_attention([*weights]))
    return shown


def movie(images: Tensor) -> EncodedImage:
    """Return images [T, C, H, W] uint8 as a GIF, enlarged pixel by pixel."""
    factor = max(1, round(SMALLEST_SIDE / min(images.shape[2:])))
    enlarged = images.repeat_interleave(factor, 2).repeat_interleave(factor, 3)
    frames = [Image.fromarray(image) for image in coloured(enlarged.numpy())]
    file = io.BytesIO()
    frames[0].save(
        file, "GIF", save_all=True, append_images=frames[1:], duration=FRAME_MILLISECONDS, loop=0
    )
    return EncodedImage(file.getvalue(), *frames[0].size, "gif")


def numbers_figure(vectors: np.ndarray) -> "Figure":
    """Return vectors [T, F] as a map, a column a step: red above zero, blue below it."""
    largest = max(float(np.abs(vectors).max()), 1e-9)
    with style():
        figure = new_figure(7, 1.6 + min(0.25 * vectors.shape[1], 5))
        axes = figure.subplots()
        scale: dict[str, Any] = {"cmap": "RdBu_r", "vmin": -largest, "vmax": largest}
        image = axes.imshow(vectors.T, aspect="auto", interpolation="none", **scale)
        axes.locator_params(integer=True)
        axes.set_xlabel("step")
        axes.set_ylabel("number")
        axes.set_title("the agent's observations")
        figure.colorbar(image, ax=axes).outline.set_visible(False)
    return figure


def picture(figure: "Figure") -> EncodedImage:
    file = io.BytesIO()
    with style():
        figure.savefig(file, format="png", dpi=110)
    return EncodedImage(file.getvalue(), *Image.open(file).size, "png")
