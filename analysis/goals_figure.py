"""The picture of what agents with goals come to."""

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from plots.style import (
    COLOURS,
    QUIET,
    counted_runs,
    draw_curve,
    new_figure,
    short_number,
    style,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

WIDTH, ROW_HEIGHT, RATE_HEIGHT, LINE_HEIGHT = 11.5, 2.9, 0.27, 0.2  # inches
LEGEND_COLUMNS = 3
LINE_SIGNS = 170  # of small print, across the picture
CURVES = {
    "rollout/achievements_mean": "different achievements an episode",
    "rollout/achievements_total": "different achievements over the run",
    "goals/return_mean": "paid for goals an episode",
}
GRADES = {  # their colours
    "good": "#009E73",
    "poorly timed": "#E69F00",
    "bad": "#D55E00",
    "nonsense": QUIET,
}
OCCASIONS = {"suggested": "suggestions", "rewarded": "rewarded goals"}
COUNTED = ("asked", "from_cache", "rejected", "unanswered")
SPENT = ("requests", "tokens", "seconds")
MOST_SIGNS = 40  # of an agent's name beside a row


def draw(told: Sequence[Any]) -> "Figure":
    """Return curves of all agents, their success rates, and a row for each whose goals count.

    Args:
        told: What each agent comes to (`Told` of analysis/goals.py).
    """
    colours = {(one.environment, one.name): n for n, one in enumerate(told)}
    rows: list[tuple[float, Callable[[SubFigure], None]]] = []
    curves = [name for name in CURVES if any(name in one.curves for one in told)]
    if curves:
        height = ROW_HEIGHT + LINE_HEIGHT * math.ceil(len(told) / LEGEND_COLUMNS)
        rows.append((height, lambda part: _draw_curves(part, told, curves, colours)))
    rates = list(dict.fromkeys(name for one in told for name in one.rates))
    if rates:
        names = [name for name in rates if _is_unlocked(told, name)]
        none = [name for name in rates if name not in names]
        height = 1.3 + RATE_HEIGHT * math.ceil(len(names) / 2) * max(1, 0.5 * len(told))
        rows.append((height, lambda part: _draw_rates(part, told, names, none, colours)))
    for one in told:
        if one.quality or _has_costs(one):
            rows.append((ROW_HEIGHT, partial(_draw_goals, one=one)))
    with style():
        figure = new_figure(WIDTH, sum(height for height, _ in rows) + 0.2)
        parts = figure.subfigures(
            len(rows), 1, squeeze=False, height_ratios=[height for height, _ in rows]
        )
        for part, (_, draw_row) in zip(parts[:, 0], rows, strict=True):
            draw_row(part)
        parts[-1, 0].supxlabel(_footnote(told), x=0.01, ha="left", size=8, color=QUIET)
    return figure


def _draw_curves(
    part: "SubFigure", told: Sequence[Any], names: Sequence[str], colours: Mapping[Any, int]
) -> None:
    panels = part.subplots(1, len(names), squeeze=False)[0]
    for axes, name in zip(panels, names, strict=True):
        for one in told:
            if name in one.curves:
                label = f"{one.name}, {one.environment} ({counted_runs(one.n_runs)})"
                curve = one.curves[name]
                draw_curve(axes, curve.curves.x, curve.mean, _colour(one, colours), label)
        axes.set_title(CURVES[name])
        _dress(axes)
    drawn = [axes.get_legend_handles_labels() for axes in panels]
    lines = {label: line for own in drawn for line, label in zip(*own, strict=True)}
    part.legend(
        list(lines.values()),
        list(lines),
        loc="outside upper left",
        ncols=LEGEND_COLUMNS,
        handlelength=1.4,
        fontsize=9,
    )


def _draw_rates(
    part: "SubFigure",
    told: Sequence[Any],
    names: Sequence[str],
    none: Sequence[str],
    colours: Mapping[Any, int],
) -> None:
    """Draw a bar for each agent and achievement, in two columns, with its interval.

    Achievements that nobody unlocks are listed below.
    """
    shown = [one for one in told if one.rates]
    half = max(1, (len(names) + 1) // 2)
    panels = part.subplots(1, 2)
    for axes, own in zip(panels, (names[:half], names[half:]), strict=True):
        for n, one in enumerate(shown):
            finals = [one.rates[name].final if name in one.rates else None for name in own]
            places = np.arange(len(own)) + (n + 0.5) / len(shown) * 0.8 - 0.4
            _draw_bars(axes, places, finals, 0.8 / len(shown), _colour(one, colours))
        axes.set_yticks(range(len(own)), map(plain_name, own))
        axes.set_ylim(half - 0.4, -0.6)
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(_percent)
        axes.grid(axis="x")
    panels[0].set_title("share of the last 100 episodes that unlocked it")
    if none:
        text = "\n".join(
            textwrap.wrap(f"by nobody: {', '.join(map(plain_name, none))}", LINE_SIGNS)
        )
        part.supxlabel(text, x=0.01, ha="left", size=9, color=QUIET)


def _is_unlocked(told: Sequence[Any], name: str) -> bool:
    """Return whether anybody has an achievement at the end."""
    return any(name in one.rates and float(one.rates[name].final.value) > 0 for one in told)


def plain_name(name: str) -> str:
    """Return what an achievement is called, given its metric."""
    return name.split("/")[1].replace("_", " ")


def _draw_bars(
    axes: "Axes", places: np.ndarray, finals: Sequence[Any], height: float, colour: str
) -> None:
    values = [0.0 if final is None else float(final.value) for final in finals]
    axes.barh(places, values, height=height * 0.9, color=colour)
    for place, final in zip(places, finals, strict=True):
        if final is not None and final.low is not None:
            axes.plot([final.low, final.high], [place] * 2, color=QUIET, linewidth=1)


def _draw_goals(part: "SubFigure", one: Any) -> None:
    """Draw how good one agent's goals were over time, and what they cost."""
    panels = list(part.subplots(1, len(OCCASIONS) + 1))
    for axes, (occasion, words) in zip(panels, OCCASIONS.items(), strict=False):
        if occasion in one.quality:
            _draw_shares(axes, one.quality[occasion], words)
        else:
            _leave_empty(axes, words, "nobody judged how good they are, or there were none")
    if _has_costs(one):
        _draw_costs(panels[-1], one)
    else:
        _leave_empty(panels[-1], "asked of the model", "no model is asked")
    name = f"{one.name}, {one.environment}"
    short = name if len(name) <= MOST_SIGNS else f"{name[: MOST_SIGNS - 1]}…"
    panels[0].set_ylabel(short)


def _draw_shares(axes: "Axes", shares: Any, words: str) -> None:
    """Draw shares of grades over steps, one above the other, each with that of the whole run."""
    labels = [f"{grade} {share:.0%}" for grade, share in zip(GRADES, shares.whole, strict=True)]
    known = ~np.isnan(shares.shares[0])
    x = np.concatenate(([0.0], shares.x[known]))
    stacked = shares.shares[:, known]
    stacked = np.concatenate((stacked[:, :1], stacked), axis=1)
    axes.stackplot(x, stacked, colors=list(GRADES.values()), labels=labels, linewidth=0)
    axes.set_title(f"how good {words} are")
    _dress(axes)
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(_percent)
    axes.legend(loc="lower left", fontsize=8, frameon=True, framealpha=0.85)


def _draw_costs(axes: "Axes", one: Any) -> None:
    """Draw how many questions were asked, and write what they took."""
    for n, name in enumerate(COUNTED):
        result = one.curves.get(f"suggester/{name}")
        if result is not None:
            label = f"{name.replace('_', ' ')} {float(result.final.value):,.0f}"
            draw_curve(axes, result.curves.x, result.mean, COLOURS[n], label)
    spent = [
        f"{float(one.curves[f'suggester/{name}'].final.value):,.0f} {name}"
        for name in SPENT
        if f"suggester/{name}" in one.curves
    ]
    axes.set_title("asked of the model")
    axes.set_ylabel(", ".join(spent))
    _dress(axes)
    axes.yaxis.set_major_formatter(short_number)
    axes.legend(loc="best", handlelength=1.4, fontsize=8)


def _leave_empty(axes: "Axes", title: str, why: str) -> None:
    axes.set_title(title)
    axes.text(0.5, 0.5, why, ha="center", va="center", color=QUIET, size=9, wrap=True)
    axes.set_axis_off()


def _dress(axes: "Axes") -> None:
    """Give a panel over steps its axis."""
    axes.set_xlabel("environment steps")
    axes.xaxis.set_major_formatter(short_number)
    axes.set_xlim(left=0)
    axes.margins(x=0.01)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.grid(axis="y")


def _percent(value: float, _position: object = None) -> str:
    return f"{value:.0%}"


def _colour(one: Any, colours: Mapping[Any, int]) -> str:
    return COLOURS[colours[one.environment, one.name] % len(COLOURS)]


def _has_costs(one: Any) -> bool:
    return any(name.startswith("suggester/") for name in one.curves)


def _footnote(told: Sequence[Any]) -> str:
    if all(one.n_runs == 1 for one in told):
        return "one run each: no interval"
    return "means over runs, 95 % bootstrap intervals; goals of an agent's runs counted together"
