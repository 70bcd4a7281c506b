"""Plots as SVG that stands inside of a page and takes its colours for text and lines from there.

Names of queues and groups become labels. They are shown as they are: no formulas are read into them, a letter that the
font lacks is the viewer's to draw, and what would be markup is escaped by Matplotlib.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from typing import Any, Final
from zlib import crc32

import matplotlib
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from .words import short

COLOURS: Final = ("#3b82f6", "#f59e0b", "#10b981", "#ec4899", "#8b5cf6", "#ef4444", "#06b6d4", "#84cc16")
OTHERS: Final = "#8a94a3"
_INK: Final = "#010203"  # stands for the page's own colour of text
_SETTINGS: Final[Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "queenmq",
    "text.parse_math": False,
    "font.size": 9,
    "font.family": "sans-serif",
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_INCHES: Final = 10.0
Series = Sequence[tuple[datetime, float]]


def lines(title: str, series: Mapping[str, Series], unit: str) -> str:
    """One line for each name; a single sample is a dot."""

    def draw(axes: Axes) -> None:
        for place, (name, points) in enumerate(series.items()):
            times, values = [at for at, _ in points], [value for _, value in points]
            marker = "o" if len(points) < 3 else None
            axes.plot(times, values, color=_colour(place), label=_label(name), marker=marker, markersize=4)  # type: ignore[arg-type]
        _time_axis(axes)
        axes.set_ylim(bottom=0)
        _finish(axes, unit, legend=bool(series))

    return _drawn(title, 3.4, draw)


def bars(title: str, values: Sequence[tuple[str, float]], unit: str, shown: Callable[[float], str]) -> str:
    """Horizontal bars, the first on top, each with its value beside it."""

    def draw(axes: Axes) -> None:
        places = range(len(values))
        drawn = axes.barh(list(places), [value for _, value in values], color=COLOURS[0], height=0.68)
        axes.bar_label(drawn, labels=[f" {shown(value)}" for _, value in values], padding=2)
        axes.set_yticks(list(places), [_label(name) for name, _ in values])
        axes.invert_yaxis()
        axes.set_xlim(0, max([value for _, value in values], default=0) * 1.12 or 1)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _plain(value)))
        axes.set_xlabel(unit)
        axes.grid(axis="x", color=_INK, alpha=0.15, linewidth=0.6)
        axes.tick_params(axis="y", length=0)

    return _drawn(title, 0.8 + 0.26 * max(len(values), 2), draw)


def timeline(title: str, width: timedelta, stacks: Mapping[str, Series], unit: str) -> str:
    """A histogram over time: one stack of bars for each bucket, each name a colour; the name `others` is grey."""

    def draw(axes: Axes) -> None:
        below: dict[datetime, float] = {}
        for place, (name, points) in enumerate(stacks.items()):
            times, values = [at for at, _ in points], [value for _, value in points]
            colour = OTHERS if name == "others" else _colour(place)
            bottoms = [below.get(at, 0.0) for at in times]
            axes.bar(times, values, width, bottoms, align="edge", color=colour, label=_label(name))  # type: ignore[arg-type]
            below |= {at: bottom + value for at, bottom, value in zip(times, bottoms, values, strict=True)}
        _time_axis(axes)
        _finish(axes, unit, legend=True)

    return _drawn(title, 3.4, draw)


def _drawn(title: str, height: float, draw: Callable[[Axes], None]) -> str:
    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        # Letters that Matplotlib's own font lacks are drawn by whoever shows the page.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = Figure(figsize=(_INCHES, height), layout="constrained")
        draw(figure.add_subplot())
        out = io.StringIO()
        nothing: dict[str, Any] = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    return _inline(out.getvalue(), title)


def _inline(document: str, title: str) -> str:
    """Without the parts of a document of its own, with a name for those who cannot see it."""
    svg = document[document.index("<svg") :]
    svg = re.sub(r"<style[^>]*>.*?</style>|<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    salt = f"p{crc32(title.encode()):08x}-"
    svg = re.sub(r"<[^>]+>", lambda tag: _adapted(tag[0], salt), svg)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(title)}" ', 1)


def _adapted(tag: str, salt: str) -> str:
    """The page's colour, and ids that differ between the plots of a page. Labels stay as they are."""
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{salt}", tag).replace(_INK, "currentColor")


def _finish(axes: Axes, unit: str, *, legend: bool) -> None:
    axes.set_ylabel(unit)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _plain(value)))
    axes.grid(axis="y", color=_INK, alpha=0.15, linewidth=0.6)
    if legend:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _time_axis(axes: Axes) -> None:
    locator = AutoDateLocator(tz=UTC, minticks=3, maxticks=9)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]


def _plain(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _label(name: str) -> str:
    """A label that begins with an underscore would be left out of a legend."""
    text = short(name, 38)
    return f"\u200b{text}" if text.startswith("_") else text


def _colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]
