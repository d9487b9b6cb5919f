"""How alike hidden states are, between layers and between steps: which layers matter.

Layers whose states can be told from one another's by a rotation carry the same information, and the
later ones may be left out (`n_layer`). Between layers this is linear centred kernel alignment
(Kornblith et al. 2019, arXiv:1905.00414), between steps the cosine.
"""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from analysis.findings import Findings
from analysis.replay import episode_hidden_states, episode_tokens
from analysis.source import Source
from plots.style import MAP, QUIET, image_panels, new_figure, panel_shape, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def analyse(source: Source) -> Findings:
    """Replay the first episode and compare what comes in and every layer's output."""
    language = source.language
    tokens = episode_tokens(language, source.first_episode)
    hidden = episode_hidden_states(language.language_model, tokens)
    states = torch.cat((tokens[None, :, -1], hidden)).double()  # [1+L, T, D]
    layers, steps = between_layers(states).cpu().numpy(), between_steps(states).cpu().numpy()
    return Findings(_draw(layers, steps), list(_summary(layers, steps)), list(_numbers(steps)))


def between_layers(states: Tensor) -> Tensor:
    """Return the linear CKA of every two layers' states [L, T, D] over the steps.  [L, L]

    CKA(X, Y) = |Y' X|^2 / (|X' X| |Y' Y|)      Frobenius norms of states centred over the steps
    """
    centred = states - states.mean(1, keepdim=True)
    products = centred @ centred.transpose(1, 2)  # [L, T, T]; |Y'X|^2 is the sum of XX' * YY'
    products = F.normalize(products.flatten(1), dim=1)
    return products @ products.T


def between_steps(states: Tensor) -> Tensor:
    """Return the cosine of every two steps' states [L, T, D] within each layer.  [L, T, T]"""
    unit = F.normalize(states, dim=-1)
    return unit @ unit.transpose(1, 2)


def _names(n_states: int) -> list[str]:
    return ["token", *(str(layer) for layer in range(1, n_states))]


def _draw(layers: np.ndarray, steps: np.ndarray) -> "Figure":
    n_rows, n_columns = panel_shape(len(steps))
    width = 1.7 * n_columns + 0.7
    with style():
        figure = new_figure(4 + width, max(3.7, 1.75 * n_rows + 0.6))
        left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(4, width))[0]
        _draw_layers(left.subplots(), layers)
        left.suptitle("between layers (CKA)", size=11, weight="bold", x=0.03, ha="left")
        panels = image_panels(right, len(steps))
        for axes, name, similarity in zip(panels, _names(len(steps)), steps, strict=True):
            image = axes.imshow(similarity, cmap=MAP, vmin=0, vmax=1, interpolation="nearest")
            title = name if name == "token" else f"layer {name}"
            axes.set_title(title, size=9.5, weight="normal", pad=4)
        right.supxlabel("step", size=9.5, color=QUIET)
        right.suptitle("between steps (cosine)", size=11, weight="bold", x=0.02, ha="left")
        right.colorbar(image, ax=panels, shrink=0.8, aspect=25).outline.set_visible(False)
    return figure


def _draw_layers(axes: "Axes", layers: np.ndarray) -> None:
    names = _names(len(layers))
    axes.imshow(layers, cmap=MAP, vmin=0, vmax=1)
    axes.set_anchor("N")  # beside the first row of panels
    axes.set_xticks(range(len(names)), names, rotation=90 if len(names) > 8 else 0)
    axes.set_yticks(range(len(names)), names)
    axes.spines[:].set_visible(False)
    if len(names) <= 12:
        for row, column in np.ndindex(layers.shape):
            value = layers[row, column]
            colour = "white" if value < 0.6 else "black"
            text = f"{value:.2f}".replace("0.", ".")
            axes.text(column, row, text, ha="center", va="center", size=7.5, color=colour)


def _summary(layers: np.ndarray, steps: np.ndarray) -> Iterator[tuple[object, ...]]:
    names = _names(len(layers))
    yield ("layer", *(f"CKA with {name}" for name in names), "next step", "all steps")
    n_steps = steps.shape[1]
    for name, row, cosines in zip(names, layers, steps, strict=True):
        following = np.diagonal(cosines, 1).mean() if n_steps > 1 else math.nan
        others = (cosines.sum() - n_steps) / max(n_steps * (n_steps - 1), 1)
        yield (name, *(f"{value:.3f}" for value in (*row, following, others)))


def _numbers(steps: np.ndarray) -> Iterator[tuple[object, ...]]:
    yield ("layer", "step", "other_step", "cosine")
    for name, cosines in zip(_names(len(steps)), steps, strict=True):
        for step, other in zip(*np.triu_indices(len(cosines), 1), strict=True):
            yield (name, int(step), int(other), f"{cosines[step, other]:.4f}")
