"""A frozen memory looked into: distances of tokens, words, attention, hidden states.

Distances: the Hopfield retrieval of HELM (arXiv:2205.12258) keeps different images apart only as
long as beta is large enough; without retrieval the random projection keeps all distances nearly
exactly. Words are those SHELM retrieves (arXiv:2306.09312).

Layers of equal states up to a rotation carry the same information, and the later ones may be left
out (`n_layer`). Between layers this is linear centred kernel alignment
(Kornblith et al. 2019, arXiv:1905.00414), between steps the cosine.
"""

import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from analysis import figures
from analysis.statistics import BETAS, MOST_WORDS
from models.caching import to_float01
from models.helm import attention_by_step
from models.language import LanguageModel
from models.observation_to_language import FrozenHopfield
from trainers.evaluation import saliency
from utils.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure, FigureBase

    from analysis.source import AgentSource

MOST_IMAGES, MOST_PAIRS = 300, 4000
PROJECTION = "projection"
LEAST_WEIGHT = 0.0005  # of attention, below which it is left out of the numbers

log = logging.getLogger(__name__)


@torch.no_grad()
def episode_attention(language_model: LanguageModel, tokens: Tensor) -> Tensor:
    """Return the attention of each step to each step so far, the mean over heads.  [L, T, T]

    Rows sum to 1 where nothing has been forgotten and the model has no empty slots to look at.
    `tokens` are of T steps [T, K, D]; attention to steps ahead is zero.
    """
    n_steps = len(tokens)
    memory, start = language_model.initial_memory(1), _no_start(tokens)
    attention = tokens.new_zeros(language_model.n_layer, n_steps, n_steps)
    for t, new in enumerate(tokens[:, None]):
        (by_head,) = attention_by_step(language_model.attention(new, memory, start))
        seen = by_head.mean(1)  # [L, S]
        n_seen = min(t + 1, seen.shape[1])
        attention[:, t, t + 1 - n_seen : t + 1] = seen[:, seen.shape[1] - n_seen :]
        language_model.step(new, memory, start)
    return attention


@torch.no_grad()
def episode_hidden_states(language_model: LanguageModel, tokens: Tensor) -> Tensor:
    """Return every layer's output at the last token of each step of tokens [T, K, D].  [L, T, D]"""
    memory, start = language_model.initial_memory(1), _no_start(tokens)
    hidden = []
    for new in tokens[:, None]:
        hidden.append(language_model.hidden_states(new, memory, start)[:, 0, -1])
        language_model.step(new, memory, start)
    return torch.stack(hidden, dim=1)


def _no_start(tokens: Tensor) -> Tensor:
    return torch.zeros(1, dtype=torch.bool, device=tokens.device)


def analyse_distances(
    source: "AgentSource", betas: Sequence[float] = BETAS
) -> figures.AnalysisResult:
    retrieval = source.language.to_language
    if not isinstance(retrieval, FrozenHopfield):
        raise UserError(f"distances: {source.config.model} has no beta. Name a run of HELM")
    images = torch.from_numpy(source.images(MOST_IMAGES)).to(source.agent.device)
    if len(images) < 3:
        raise UserError(f"distances: {len(images)} different observations are too few to compare")
    observed, by_name = token_distances(retrieval, to_float01(images), betas)

    from scipy import stats

    correlations = {
        name: [test(observed, own).statistic for test in (stats.pearsonr, stats.spearmanr)]
        for name, own in by_name.items()
    }
    rows = [(name, *(f"{each:.3f}" for each in both)) for name, both in correlations.items()]
    summary = [("to token distances of", "pearson", "spearman"), *rows]
    chosen = np.arange(len(observed))
    if len(chosen) > MOST_PAIRS:
        chosen = np.sort(np.random.default_rng(0).choice(len(chosen), MOST_PAIRS, replace=False))
    columns = np.stack((observed, *by_name.values()), axis=1)[chosen]
    numbers = [("observations", *by_name), *columns.round(5).tolist()]
    ranks = {name: rank for name, (_, rank) in correlations.items()}
    return figures.AnalysisResult(
        _draw_distances(observed, by_name, chosen, ranks), summary, numbers
    )


@torch.no_grad()
def token_distances(
    retrieval: FrozenHopfield, images: Tensor, betas: Sequence[float]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the Euclidean distances of all pairs of images, and of their tokens.

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


def _draw_distances(
    observed: np.ndarray,
    by_name: Mapping[str, np.ndarray],
    chosen: np.ndarray,
    ranks: Mapping[str, float],
) -> "Figure":
    with figures.style():
        figure = figures.new_figure(2.3 * len(by_name) + 0.6, 2.9)
        panels = figure.subplots(1, len(by_name), sharex=True, sharey=True, squeeze=False)[0]
        for axes, (name, distances) in zip(panels, by_name.items(), strict=True):
            places = observed[chosen], distances[chosen] / max(distances.max(), 1e-12)
            colour = figures.QUIET if name == PROJECTION else figures.COLOURS[0]
            axes.scatter(*places, s=5, alpha=0.2, color=colour, linewidth=0)
            axes.set_title(name.replace("beta", "β ="))
            axes.set_title(f"ρ = {ranks[name]:.3f}", loc="right", size=9, weight="normal")
            axes.grid(axis="y")
        axes.set_xlim(left=0)
        axes.set_ylim(0, 1.02)
        panels[0].set_ylabel("distance of tokens / largest")
        figure.supxlabel(
            "distance of observations (ρ: rank correlation)", size=9.5, color=figures.QUIET
        )
    return figure


def analyse_words(source: "AgentSource", most: int = MOST_WORDS) -> figures.AnalysisResult:
    recorded = [episode["words"] for episode in source.episodes if "words" in episode]
    if recorded and not (source.names_an_agent and source.files):
        if len(recorded) < len(source.episodes):
            n_without = len(source.episodes) - len(recorded)
            log.warning("left out: episodes without words, such as random ones: %d", n_without)
        counts = count_words(recorded)
    else:
        language = source.agent.frozen_memory
        read = [] if language is None else [language.read(each) for each in source.inputs]
        if any(each.words is None for each in read) or not read:
            raise UserError(f"words: {source.config.model} retrieves none. Name a run of SHELM")
        counts = count_words(language.explain(each)["words"] for each in read)
    table = word_table(counts)
    return figures.AnalysisResult(draw_words(counts, most), table[: most + 1], table)


def count_words(words: Iterable[np.ndarray]) -> Counter[str]:
    return Counter(word for episode in words for word in episode.flatten().tolist())


def word_table(counts: Counter[str]) -> list[tuple[object, ...]]:
    rows = [(word, n, f"{n / counts.total():.4f}") for word, n in counts.most_common()]
    return [("word", "count", "share"), *rows]


def draw_words(counts: Counter[str], most: int = MOST_WORDS) -> "Figure":
    shown = counts.most_common(most)
    shares = [n / counts.total() for _, n in shown]
    with figures.style():
        figure = figures.new_figure(5.4, 0.8 + 0.24 * max(len(shown), 3))
        axes = figure.subplots()
        axes.barh(range(len(shown)), shares, height=0.66, color=figures.COLOURS[0])
        for position, share in enumerate(shares):
            figures.write_beside(axes, f"{100 * share:.1f} %", (share, position), 4)
        figures.dress_bars(axes, [word for word, _ in shown], least=2.6)
        axes.set_xlim(0, max(shares) * 1.12)
        axes.xaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
        axes.set_xlabel("share of all retrieved words")
    return figure


def analyse_attention(source: "AgentSource") -> figures.AnalysisResult:
    maps: dict[object, np.ndarray] = {}
    language = source.agent.frozen_memory
    if language is not None:
        tokens = language.read(source.inputs[0]).tokens
        attention = episode_attention(language.language_model, tokens).cpu().numpy()
        maps |= dict(enumerate(attention, start=1))
    followed = saliency(source.agent, source.episodes[0])
    if followed is not None:
        maps["saliency"] = followed
    if not maps:
        raise UserError(f"attention: {source.config.model} has no memory to look into")
    numbers: list[tuple[object, ...]] = [("layer", "step", "looked_at", "weight")]
    for name, weights in maps.items():
        for t, past in np.argwhere(weights >= LEAST_WEIGHT).tolist():
            numbers.append((name, t, past, f"{weights[t, past]:.4f}"))
    figure = draw_attention([maps[n] for n in maps if n != "saliency"], followed)
    return figures.AnalysisResult(figure, list(_attention_summary(maps)), numbers)


def draw_attention(attention: Sequence[np.ndarray], followed: np.ndarray | None = None) -> "Figure":
    """Draw each layer's attention [T, T], if any, and a saliency [S, S], a row a step."""
    n_rows, n_columns = figures.panel_shape(len(attention)) if attention else (1, 0)
    widths = [2.1 * n_columns + 1.1] * (n_columns > 0) + [3.4, 3.0] * (followed is not None)
    with figures.style():
        figure = figures.new_figure(
            sum(widths), max(2.25 * n_rows + 0.5, 3.2 * (followed is not None))
        )
        parts = [*figure.subfigures(1, len(widths), squeeze=False, width_ratios=widths)[0]]
        if attention:
            titles = [f"layer {n}" for n in range(1, len(attention) + 1)]
            _draw_maps(parts.pop(0), attention, titles, "attention, mean over heads")
        if followed is not None:
            _draw_maps(parts[0], [followed], ["saliency"], "share of the gradient of the value")
            axes = parts[1].subplots()
            mean = [np.diagonal(followed, -k).mean() for k in range(len(followed))]
            axes.plot(followed[-1, ::-1], color=figures.COLOURS[0], label="the last step")
            axes.plot(mean, color=figures.COLOURS[1], label="mean of the steps")
            axes.set_xlabel("k, steps back")
            axes.set_ylim(bottom=0)
            axes.grid(axis="y")
            axes.legend(loc="best", handlelength=1.4)
    return figure


def _draw_maps(
    figure: "FigureBase", maps: Sequence[np.ndarray], titles: Sequence[str], label: str
) -> None:
    from matplotlib.colors import PowerNorm

    ahead = np.triu(np.ones(maps[0].shape, dtype=bool), 1)
    # Language models look at the first token most, and thinly at the many others: the scale is
    # made for those, and its root brings out faint weights.
    others = np.stack(maps)[:, 1:, 1:].max(-1, initial=0)
    norm = PowerNorm(0.5, vmin=0, vmax=float(np.quantile(others, 0.95)) if others.any() else 1)
    panels = figures.image_panels(figure, len(maps))
    for axes, weights, title in zip(panels, maps, titles, strict=True):
        shown = np.ma.masked_array(weights, ahead)
        image = axes.imshow(shown, cmap=figures.MAP, norm=norm, interpolation="nearest")
        axes.set_title(title)
    figure.supxlabel("step looked at", size=9.5, color=figures.QUIET)
    figure.supylabel("step", size=9.5, color=figures.QUIET)
    bar = figure.colorbar(image, ax=panels, shrink=0.8, aspect=25, extend="max")
    bar.set_label(label, size=9)
    bar.outline.set_visible(False)


def _attention_summary(maps: Mapping[object, np.ndarray]) -> Iterator[tuple[object, ...]]:
    yield ("layer", "on itself", "1 to 10 back", "further back", "mean steps back")
    for layer, weights in maps.items():
        n_steps = len(weights)
        back = np.arange(n_steps)[:, None] - np.arange(n_steps)  # [T, T]
        parts = [back == 0, (back > 0) & (back <= 10), back > 10]
        shares = [weights[part].sum() / n_steps for part in parts]
        mean = (weights * back.clip(0)).sum() / max(weights.sum(), 1e-9)
        yield (layer, *(f"{share:.3f}" for share in shares), f"{mean:.1f}")


def analyse_layers(source: "AgentSource") -> figures.AnalysisResult:
    language = source.language
    tokens = language.read(source.inputs[0]).tokens
    hidden = episode_hidden_states(language.language_model, tokens)
    states = torch.cat((tokens[None, :, -1], hidden)).double()  # [1+L, T, D]
    layers, steps = between_layers(states).cpu().numpy(), between_steps(states).cpu().numpy()
    names = ["token", *(str(layer) for layer in range(1, len(states)))]
    numbers: list[tuple[object, ...]] = [("layer", "step", "other_step", "cosine")]
    for name, cosines in zip(names, steps, strict=True):
        for step, other in np.transpose(np.triu_indices(len(cosines), 1)).tolist():
            numbers.append((name, step, other, f"{cosines[step, other]:.4f}"))
    summary = list(_layers_summary(names, layers, steps))
    return figures.AnalysisResult(_draw_layers(names, layers, steps), summary, numbers)


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


def _layers_summary(
    names: Sequence[str], layers: np.ndarray, steps: np.ndarray
) -> Iterator[tuple[object, ...]]:
    yield ("layer", *(f"CKA with {name}" for name in names), "next step", "all steps")
    n_steps = steps.shape[1]
    for name, row, cosines in zip(names, layers, steps, strict=True):
        following = np.diagonal(cosines, 1).mean() if n_steps > 1 else math.nan
        others = (cosines.sum() - n_steps) / max(n_steps * (n_steps - 1), 1)
        yield (name, *(f"{value:.3f}" for value in (*row, following, others)))


def _draw_layers(names: Sequence[str], layers: np.ndarray, steps: np.ndarray) -> "Figure":
    n_rows, n_columns = figures.panel_shape(len(steps))
    width = 1.7 * n_columns + 0.7
    with figures.style():
        figure = figures.new_figure(4 + width, max(3.7, 1.75 * n_rows + 0.6))
        left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(4, width))[0]
        axes = left.subplots()
        figures.draw_matrix(axes, layers, names, names)
        axes.set_anchor("N")  # beside the first row of panels
        axes.tick_params("x", rotation=90 if len(names) > 8 else 0)
        left.suptitle("between layers (CKA)", size=11, weight="bold", x=0.03, ha="left")
        panels = figures.image_panels(right, len(steps))
        for axes, name, similarity in zip(panels, names, steps, strict=True):
            image = axes.imshow(
                similarity, cmap=figures.MAP, vmin=0, vmax=1, interpolation="nearest"
            )
            title = name if name == "token" else f"layer {name}"
            axes.set_title(title, size=9.5, weight="normal", pad=4)
        right.supxlabel("step", size=9.5, color=figures.QUIET)
        right.suptitle("between steps (cosine)", size=11, weight="bold", x=0.02, ha="left")
        right.colorbar(image, ax=panels, shrink=0.8, aspect=25).outline.set_visible(False)
    return figure
