"""The words SHELM retrieves for a task's observations, by frequency (arXiv:2306.09312)."""

import logging
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch

from analysis.findings import Findings
from analysis.source import Source
from models.caching import unit_images
from models.helm import LanguageMemory
from models.observation_to_language import TokenRetrieval, retrieved
from plots.style import COLOURS, new_figure, style, write_beside
from utils.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 25

log = logging.getLogger(__name__)


def analyse(source: Source, most: int = MOST) -> Findings:
    """Count the words over all steps of all episodes: recorded ones, or those of the agent."""
    recorded = [episode["words"] for episode in source.episodes if "words" in episode]
    if recorded and not (source.names_an_agent and source.files):
        if len(recorded) < len(source.episodes):
            n_without = len(source.episodes) - len(recorded)
            log.warning("left out: episodes without words, such as random ones: %d", n_without)
        counts = count_words(recorded)
    else:
        language = getattr(source.agent, "language", None)
        if language is None or not isinstance(language.to_language, TokenRetrieval):
            raise UserError(
                f"words: {source.config.model} retrieves none. Name a run or episodes of SHELM"
            )
        images = (episode["observations"] for episode in source.episodes)
        counts = count_words(retrieved_words(language, torch.from_numpy(some)) for some in images)
    table = word_table(counts)
    return Findings(draw(counts, most), table[: most + 1], table)


@torch.no_grad()
def retrieved_words(language: LanguageMemory, images: torch.Tensor) -> np.ndarray:
    """Return the words of images [T, C, H, W] uint8, past the memory's cache.  [T, K]"""
    retrieval = language.to_language
    assert isinstance(retrieval, TokenRetrieval), "SHELM retrieves tokens"
    blocks = images.to(retrieval.text_features.device).split(retrieval.block_size)
    indices = torch.cat([retrieved(retrieval(unit_images(block))).indices for block in blocks])
    return np.array(retrieval.words)[indices.cpu().numpy()]


def count_words(words: Iterable[np.ndarray]) -> Counter[str]:
    """Return how often each word was retrieved; one array [T, K] an episode."""
    counts: Counter[str] = Counter()
    for episode in words:
        counts.update(episode.flatten().tolist())
    return counts


def word_table(counts: Counter[str]) -> list[tuple[object, ...]]:
    """Return words, counts and shares, the most frequent first, under a heading."""
    rows = [(word, n, f"{n / counts.total():.4f}") for word, n in counts.most_common()]
    return [("word", "count", "share"), *rows]


def draw(counts: Counter[str], most: int = MOST) -> "Figure":
    """Return the most frequent words as bars."""
    shown = counts.most_common(most)
    shares = [n / counts.total() for _, n in shown]
    with style():
        figure = new_figure(5.4, 0.8 + 0.24 * max(len(shown), 3))
        axes = figure.subplots()
        axes.barh(range(len(shown)), shares, height=0.66, color=COLOURS[0])
        for position, share in enumerate(shares):
            write_beside(axes, f"{100 * share:.1f} %", (share, position), 4)
        axes.set_yticks(range(len(shown)), [word for word, _ in shown])
        axes.set_ylim(max(len(shown), 3) - 0.4, -0.6)
        axes.set_xlim(0, max(shares) * 1.12)
        axes.xaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
        axes.set_xlabel("share of all retrieved words")
        axes.grid(axis="x")
        axes.spines["left"].set_visible(False)
    return figure
