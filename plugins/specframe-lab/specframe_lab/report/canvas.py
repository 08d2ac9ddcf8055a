"""Common parts of all drawn figures: colours, marks, frames, legends."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from specframe_lab.comparison.comparison_figures import STAGES
from specframe_lab.comparison.schemes import is_plain

INK, GRID, PLAIN = "#1f2328", "#d0d7de", "#6e7781"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#8250DF")
MARKS = "osD^vPX"
STAGE_COLOURS = dict(zip(STAGES, ("#56B4E9", "#0072B2", "#009E73", "#D55E00", "#E69F00", "#8C959F"), strict=True))
WIDTH = 3.8
STYLE: Any = {
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "lines.markersize": 4.5,
    "lines.linewidth": 1.6,
}

Looks = dict[str, dict[str, Any]]
"""Colour, mark and line of every scheme, the same in all figures."""


def looks(schemes: Iterable[str]) -> Looks:
    """Return how every scheme is drawn: plain decoding grey and dashed."""
    found: Looks = {}
    place = 0
    for scheme in schemes:
        if is_plain(scheme):
            found[scheme] = {"color": PLAIN, "marker": "o", "linestyle": "--"}
        else:
            turn = place // len(COLOURS)
            mark = MARKS[(place + turn) % len(MARKS)]
            found[scheme] = {
                "color": COLOURS[place % len(COLOURS)],
                "marker": mark,
                "linestyle": ("-", ":", "-.")[turn % 3],
            }
            place += 1
    return found


def widths(count: int) -> list[float]:
    """Return line widths, the first line's the widest, so that lines on top of each other all show."""
    return np.linspace(1.2 + 0.4 * (count - 1), 1.2, count).clip(max=3.2).tolist()


def in_percent(axis: Axis) -> None:
    """Write an axis's shares as percentages, all with the same decimals."""
    axis.set_major_formatter(PercentFormatter(1, decimals=None))


def panels(count: int, height: float = 2.5) -> tuple[Figure, list[Axes]]:
    """Return a figure with ``count`` axes, one above the other; a legend adds to its height."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, list(np.atleast_1d(figure.subplots(count, 1)))


def lines_for(names: Iterable[str]) -> tuple[Figure, Axes]:
    """Return a figure with a line for every name, each as high as the longest name takes."""
    names = [wrapped(name) for name in names]
    lines = max(name.count("\n") + 1 for name in names)
    figure, (axes,) = panels(1, 0.75 + (0.12 + 0.14 * lines) * len(names))
    name_lines(axes, names)
    axes.tick_params(axis="y", length=0)
    return figure, axes


def name_lines(axes: Axes, names: Sequence[str]) -> None:
    """Name the lines of a figure, the first at the top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)


def scale(axis: Axis, unit: str) -> str:
    """Write an axis's numbers in a unit people read, and return its name."""
    if unit.startswith("share"):
        in_percent(axis)
    if unit == "bytes":
        axis.set_major_formatter(lambda value, _: f"{value / 1e6:,.3g}")
        return "MB"
    return unit


def from_zero(highest: float) -> tuple[float, float]:
    """Return the ends of an axis that starts at 0, also without data."""
    return 0, 1.06 * highest or 0.01


def wrapped(name: str, width: int = 24) -> str:
    """Return a long name in lines."""
    return "\n".join(textwrap.wrap(name.replace(",", ", "), width, break_long_words=False, break_on_hyphens=False))


def legend(figure: Figure, axes: Axes, columns: int | None = None) -> None:
    """Put the legend below the figure, in as many columns as its names leave room for."""
    handles, names = axes.get_legend_handles_labels()
    names = [wrapped(name, 44) for name in names]
    parts = [part for name in names for part in name.split("\n")]
    columns = columns or max(1, min(len(names), int(54 / (7 + max(map(len, parts))))))
    figure.set_figheight(figure.get_figheight() + 0.15 + 0.16 * math.ceil(len(parts) / columns))
    where: Any = {"loc": "outside lower center", "ncols": columns}
    figure.legend(handles, names, **where, fontsize=8, handlelength=2, columnspacing=1.2)
