"""Which past steps each layer of the language model looks at, over one episode."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from analysis.findings import Findings
from analysis.replay import episode_attention, episode_tokens
from analysis.source import Source
from plots.style import MAP, QUIET, image_panels, new_figure, panel_shape, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 0.0005  # weights below are left out of the numbers


def analyse(source: Source) -> Findings:
    """Replay the first episode and draw every layer's attention, the mean over its heads."""
    language = source.language
    tokens = episode_tokens(language, source.first_episode)
    attention = episode_attention(language.language_model, tokens).cpu().numpy()
    return Findings(draw(attention), list(_summary(attention)), list(_numbers(attention)))


def draw(attention: np.ndarray) -> "Figure":
    """Return a panel for every layer of attention [L, T, T]; the brighter, the more."""
    from matplotlib.colors import PowerNorm

    n_rows, n_columns = panel_shape(len(attention))
    ahead = np.triu(np.ones(attention.shape[1:], dtype=bool), 1)
    # Language models look at the first token most, and thinly at the many others: the scale is
    # made for those, and its root brings out what is faint.
    others = attention[:, 1:, 1:].max(-1, initial=0)
    norm = PowerNorm(0.5, vmin=0, vmax=float(np.quantile(others, 0.95)) if others.any() else 1)
    with style():
        figure = new_figure(2.1 * n_columns + 1.1, 2.25 * n_rows + 0.5)
        panels = image_panels(figure, len(attention))
        for layer, axes in enumerate(panels):
            shown = np.ma.masked_array(attention[layer], ahead)
            image = axes.imshow(shown, cmap=MAP, norm=norm, interpolation="nearest")
            axes.set_title(f"layer {layer + 1}")
        figure.supxlabel("step looked at", size=9.5, color=QUIET)
        figure.supylabel("step", size=9.5, color=QUIET)
        bar = figure.colorbar(image, ax=panels, shrink=0.8, aspect=25, extend="max")
        bar.set_label("attention, mean over heads", size=9)
        bar.outline.set_visible(False)
    return figure


def _summary(attention: np.ndarray) -> Iterator[tuple[object, ...]]:
    yield ("layer", "on itself", "1 to 10 back", "further back", "mean steps back")
    n_steps = attention.shape[1]
    back = np.arange(n_steps)[:, None] - np.arange(n_steps)  # [T, T]
    for layer, weights in enumerate(attention, start=1):
        parts = [back == 0, (back > 0) & (back <= 10), back > 10]
        shares = [weights[part].sum() / n_steps for part in parts]
        mean = (weights * back.clip(0)).sum() / max(weights.sum(), 1e-9)
        yield (layer, *(f"{share:.3f}" for share in shares), f"{mean:.1f}")


def _numbers(attention: np.ndarray) -> Iterator[tuple[object, ...]]:
    yield ("layer", "step", "looked_at", "weight")
    for layer, step, looked_at in np.argwhere(attention >= SHOWN).tolist():
        yield (layer + 1, step, looked_at, f"{attention[layer, step, looked_at]:.4f}")
