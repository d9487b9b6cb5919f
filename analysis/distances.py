"""Distances between observations beside distances between their tokens, for several beta.

The Hopfield retrieval of HELM (arXiv:2205.12258) keeps apart what looks different only as long as
beta is large enough; without retrieval the random projection keeps all distances nearly exactly.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from analysis.findings import Findings
from analysis.source import Source
from models.caching import unit_images
from models.observation_to_language import FrozenHopfield
from plots.style import COLOURS, QUIET, new_figure, style
from utils.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BETAS = (1.0, 10.0, 100.0, 1000.0)
MOST_IMAGES, MOST_PAIRS = 300, 4000
PROJECTION = "projection"


def analyse(source: Source, betas: Sequence[float] = BETAS) -> Findings:
    """Compare the distances of up to 300 different observations with those of their tokens."""
    retrieval = source.language.to_language
    if not isinstance(retrieval, FrozenHopfield):
        raise UserError(f"distances: {source.config.model} has no beta. Name a run of HELM")
    images = torch.from_numpy(source.images(MOST_IMAGES)).to(source.agent.device)
    if len(images) < 3:
        raise UserError(f"distances: {len(images)} different observations are too few to compare")
    observed, by_name = token_distances(retrieval, unit_images(images), betas)
    rows = [("to token distances of", "pearson", "spearman"), *_correlations(observed, by_name)]
    return Findings(_draw(observed, by_name), rows, _numbers(observed, by_name))


@torch.no_grad()
def token_distances(
    retrieval: FrozenHopfield, images: Tensor, betas: Sequence[float]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the Euclidean distances of all pairs of images, and of what becomes of them.

    Args:
        retrieval: Its projection and embeddings are used.
        images: In [0, 1].  [B, C, H, W]
        betas: Inverse temperatures.

    Returns:
        Of the images, flat as the retrieval sees them, [B*(B-1)/2]; and of their projections and
        their tokens under the name of each beta.
    """
    flat = retrieval.flat(images)
    found = {PROJECTION: torch.pdist(flat @ retrieval.projection.T)}
    for beta in betas:
        same = type(retrieval)(retrieval.projection, retrieval.embeddings, beta)
        found[f"beta {beta:g}"] = torch.pdist(same(images)[:, 0])
    return torch.pdist(flat).cpu().numpy(), {k: v.cpu().numpy() for k, v in found.items()}


def _correlations(observed: np.ndarray, by_name: Mapping[str, np.ndarray]) -> list[tuple]:
    from scipy import stats

    return [
        (
            name,
            f"{stats.pearsonr(observed, distances).statistic:.3f}",
            f"{stats.spearmanr(observed, distances).statistic:.3f}",
        )
        for name, distances in by_name.items()
    ]


def _numbers(observed: np.ndarray, by_name: Mapping[str, np.ndarray]) -> list[Sequence[object]]:
    columns = {"observations": observed, **by_name}
    chosen = np.stack(list(columns.values()), axis=1)[_some_pairs(len(observed))]
    return [tuple(columns), *chosen.round(5).tolist()]


def _draw(observed: np.ndarray, by_name: Mapping[str, np.ndarray]) -> "Figure":
    chosen = _some_pairs(len(observed))
    correlations = {name: spearman for name, _, spearman in _correlations(observed, by_name)}
    with style():
        figure = new_figure(2.3 * len(by_name) + 0.6, 2.9)
        panels = figure.subplots(1, len(by_name), sharex=True, sharey=True, squeeze=False)[0]
        for axes, (name, distances) in zip(panels, by_name.items(), strict=True):
            places = observed[chosen], distances[chosen] / max(distances.max(), 1e-12)
            colour = QUIET if name == PROJECTION else COLOURS[0]
            axes.scatter(*places, s=5, alpha=0.2, color=colour, linewidth=0)
            axes.set_title(name.replace("beta", "β ="))
            axes.set_title(f"ρ = {correlations[name]}", loc="right", size=9, weight="normal")
            axes.grid(axis="y")
        axes.set_xlim(left=0)
        axes.set_ylim(0, 1.02)
        panels[0].set_ylabel("distance of tokens / largest")
        figure.supxlabel("distance of observations (ρ: rank correlation)", size=9.5, color=QUIET)
    return figure


def _some_pairs(n_pairs: int) -> np.ndarray:
    """Return which pairs are shown and written."""
    if n_pairs <= MOST_PAIRS:
        return np.arange(n_pairs)
    return np.sort(np.random.default_rng(0).choice(n_pairs, MOST_PAIRS, replace=False))
