"""The figures of a comparison, drawn in colours and marks that colour-blind readers can distinguish."""

from __future__ import annotations

import functools
import math
import textwrap
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any

import attrs
import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specframe_lab.comparison.comparison_figures import ENOUGH_FOR_P99, STAGES, Rows, Table, spelled
from specframe_lab.comparison.summary import SERVED, together
from specframe_lab.report import canvas
from specframe_lab.report.canvas import INK, STYLE, Looks, from_zero, in_percent, legend, lines_for, panels, wrapped
from specframe_lab.serving.serving_figures import PERCENTILES

Curve = tuple[tuple[float, float], ...]
BATCH_SIZE = "batch size (rows), logarithmic"
ENDS = 2
"""Batch sizes between which no line is drawn: what lies between two was not measured. More of them are joined to be followed."""
SAME = 0.005
"""Shares that lie closer than this share a line."""


def draw(tables: dict[str, Table], schemes: Sequence[str]) -> dict[str, Figure]:
    """Return every figure that has something to show, by its name."""
    look = canvas.looks(schemes)
    figures = {}
    with matplotlib.rc_context(STYLE):
        for name, painter in PAINTERS.items():
            if tables[name].rows and not tables[name].empty:
                figures[name] = painter(tables[name], look)
    return figures


def against_batch_size(table: Table, look: Looks, level: float | None = None) -> Figure:
    """Draw medians over batch sizes with the range of the repeats; bars where there is one batch size only.

    ``level`` is where plain decoding is.
    """
    sizes = sorted({row[1] for row in table.rows})
    if len(sizes) == 1:
        return bars(table, look, level)
    figure, axes = panels(1)
    if level is not None:
        axes[0].axhline(level, color=canvas.PLAIN, linestyle="--", linewidth=1.2, label="plain decoding")
    spans(axes[0], table, look, sizes, 2, (3, 4))
    axes[0].set_ylim(from_zero(max(row[4] for row in table.rows)))
    axes[0].set_xlabel(BATCH_SIZE)
    axes[0].set_ylabel(canvas.scale(axes[0].yaxis, table.unit))
    legend(figure, axes[0])
    return figure


def spans(axes: Axes, table: Table, look: Looks, sizes: list[int], value: int, ends: tuple[int, int] | None) -> None:
    """Draw one line per scheme, set off a little from its neighbours so that ranges do not hide each other."""
    schemes = list(dict.fromkeys(row[0] for row in table.rows))
    for place, (scheme, width) in enumerate(zip(schemes, canvas.widths(len(schemes)), strict=True)):
        rows = sorted((row for row in table.rows if row[0] == scheme), key=lambda row: row[1])
        offset = 1.0 + (0.012 if len(sizes) > ENDS else 0.05) * (place - (len(schemes) - 1) / 2)
        x, y = np.array([row[1] for row in rows]) * offset, np.array([row[value] for row in rows])
        error = [y - [row[ends[0]] for row in rows], [row[ends[1]] for row in rows] - y] if ends else None
        shown = look[scheme] if len(sizes) > ENDS else {**look[scheme], "linestyle": "none"}
        axes.errorbar(x, y, error, label=scheme, capsize=2, elinewidth=1, linewidth=width, **shown)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()


def bars(table: Table, look: Looks, level: float | None) -> Figure:
    """Draw one bar per scheme with the range of the repeats."""
    figure, axes = lines_for(row[0] for row in table.rows)
    for place, (scheme, _, median, low, high, _) in enumerate(table.rows):
        error = [[median - low], [high - median]]
        axes.barh(place, median, 0.65, xerr=error, color=look[scheme]["color"], ecolor=INK, capsize=2)
    words = f"{canvas.scale(axes.xaxis, table.unit)}, batch size {table.rows[0][1]}"
    axes.set_xlim(from_zero(max(row[4] for row in table.rows)))
    if level is not None:
        axes.axvline(level, color=INK, linestyle="--", linewidth=1.2)
        words += "; dashed: plain decoding"
    figure.supxlabel(words, fontsize=9)
    axes.grid(axis="y", visible=False)
    return figure


def latency(table: Table, look: Looks) -> Figure:
    """Draw the median and the tail of latencies, one above the other."""
    sizes = sorted({row[1] for row in table.rows})
    if len(sizes) == 1:
        return ranges(table, look)
    figure, axes = panels(2, 4.1)
    for one, place in ((axes[0], 0), (axes[1], tail(table.rows))):
        spans(one, table, look, sizes, 2 + place, None)
        one.set_ylim(bottom=0)
        one.set_ylabel(f"P{PERCENTILES[place]} ({table.unit}), n = {spelled(row[-1] for row in table.rows)}")
    axes[0].tick_params(labelbottom=False)
    axes[1].set_xlabel(BATCH_SIZE)
    legend(figure, axes[0])
    return figure


def tail(rows: Rows) -> int:
    """Return the place of the farthest percentile that is drawn: that of P99, or of P90 where some row has too few values.

    The last place of a row has the number of values that its percentiles are of.
    """
    return 2 if min((row[-1] for row in rows), default=0) >= ENOUGH_FOR_P99 else 1


MARKED = ("dot P50", "bar P90", "diamond P99")
"""Marks of percentiles on a line."""


def marked(rows: Rows) -> str:
    """Return the marks of the percentiles that are drawn."""
    return ", ".join(MARKED[: tail(rows) + 1])


def ranges(table: Table, look: Looks) -> Figure:
    """Draw P50, P90 and P99 of every scheme on one line; P99 only of enough sequences."""
    figure, axes = lines_for(row[0] for row in table.rows)
    shown = tail(table.rows) + 1
    percentile_lines(axes, [(row[0], row[2 : 2 + shown]) for row in table.rows], look)
    unit = "seconds" if table.unit == "s" else table.unit
    words = f"{unit}, batch size {table.rows[0][1]}; {marked(table.rows)}, n = {spelled(row[-1] for row in table.rows)}"
    figure.supxlabel("\n".join(textwrap.wrap(words, 60)), fontsize=9)
    axes.grid(axis="y", visible=False)
    return figure


def percentile_lines(axes: Axes, rows: Sequence[tuple[str, Sequence[float]]], look: Looks) -> None:
    """Draw a line of percentiles per scheme, from P50 on."""
    for place, (scheme, percentiles) in enumerate(rows):
        colour = look[scheme]["color"]
        axes.hlines(place, percentiles[0], percentiles[-1], color=colour, linewidth=1.6)
        for value, mark in zip(percentiles, "o|D", strict=False):  # of few values there is no diamond
            axes.plot(value, place, mark, color=colour, markersize=9 if mark == "|" else 5, markeredgewidth=1.5)
    axes.set_xlim(from_zero(max((percentiles[-1] for _, percentiles in rows), default=0)))


def serving(table: Table, look: Looks) -> Figure:
    """Draw the tail of what clients of a server look at, one figure above the other; for one batch size P50 to the tail.

    The tail is P99 of enough values, else P90.
    """
    sizes = sorted({row[1] for row in table.rows})
    figure, axes = panels(len(SERVED), 1.9 * len(SERVED))
    unit = "s" if table.unit == "seconds" else "passes"
    for one, name in zip(axes, SERVED, strict=True):
        rows = [row for row in table.rows if row[2] == name and not math.isnan(row[6])]
        last, count = tail(rows), f"n = {spelled(row[-1] for row in rows)}"
        if len(sizes) > 1:
            spans(one, attrs.evolve(table, rows=rows), look, sizes, 4 + last, None)
            one.set_ylim(bottom=0)
            one.set_ylabel(f"{name}, P{PERCENTILES[last]} ({unit})\n{count}")
        else:
            percentile_lines(one, [(row[0], row[4 : 5 + last]) for row in rows], look)
            canvas.name_lines(one, [wrapped(row[0]) for row in rows])
            one.set_xlabel(f"{name} ({unit}), {count}; {marked(rows)}")
    if len(sizes) > 1:
        axes[-1].set_xlabel(BATCH_SIZE)
        legend(figure, axes[0])
    return figure


def stage_shares(table: Table, look: Looks) -> Figure:
    """Draw the time of every cell as one bar of stages, a group of bars per batch size."""
    cells = sorted(dict.fromkeys(row[:2] for row in table.rows), key=lambda cell: cell[1])
    shares = {(row[:2], row[2]): row[3] for row in table.rows}
    heads = np.cumsum([1, *(a[1] != b[1] for a, b in pairwise(cells))])
    places = np.arange(len(cells)) + 1.1 * heads
    names = [wrapped(scheme) for scheme, _ in cells]
    figure, (axes,) = panels(1, 0.6 + (0.09 + 0.14 * max(1 + name.count("\n") for name in names)) * places[-1])
    left = np.zeros(len(cells))
    for stage in STAGES:
        shown = np.array([shares[cell, stage] for cell in cells])
        axes.barh(places, shown, 0.8, left=left, color=canvas.STAGE_COLOURS[stage], label=stage)
        for place, width, start in zip(places, shown, left, strict=True):
            if width >= 0.08:
                colour = "white" if stage in ("verify", "accept", "align") else "black"
                axes.text(start + width / 2, place, f"{width:.0%}", ha="center", va="center", color=colour, fontsize=7)
        left += shown
    for place, (_, size), new in zip(places, cells, [1, *np.diff(heads)], strict=True):
        if new:
            axes.text(0, place - 0.95, f"batch size {size}", va="center", weight="bold", fontsize=8)
    axes.set_yticks(places, names)
    axes.set_ylim(places[-1] + 0.6, places[0] - 1.5)
    axes.set_xlim(0, 1)
    in_percent(axes.xaxis)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    legend(figure, axes, columns=3)
    return figure


def by_position(table: Table, look: Looks) -> Figure:
    """Draw the rate at every position, all batch sizes together; schemes with the same rates share a line."""
    pooled = pool(table, itemgetter(2), counts=(3, 4))
    curves = {s: tuple((p, a / d) for p, (d, a) in places.items() if d) for s, places in pooled.items()}
    figure, (axes,) = panels(1)
    groups = merged(curves)
    for (name, scheme, points), width in zip(groups, canvas.widths(len(groups)), strict=True):
        axes.plot(*zip(*points, strict=True), label=name, linewidth=width, **look[scheme])
    axes.set_xticks(sorted({row[2] for row in table.rows}))
    axes.set_xlabel("position in the draft")
    in_shares(axes)
    legend(figure, axes)
    return figure


def in_shares(axes: Axes) -> None:
    """Let an axis be the share that was accepted."""
    axes.set_ylim(0, 1.02)
    in_percent(axes.yaxis)
    axes.set_ylabel("accepted")


def calibration(table: Table, look: Looks) -> Figure:
    """Draw what was accepted against what was predicted, all batch sizes together; on the dashed line both are equal."""
    figure, (axes,) = panels(1)
    axes.plot([0, 1], [0, 1], color=INK, linestyle="--", linewidth=1.2)
    for scheme in dict.fromkeys(row[0] for row in table.rows):
        bins: dict[int, np.ndarray] = {}
        for _, _, predicted, stood, count in (row for row in table.rows if row[0] == scheme):
            place = min(int(predicted * BINS), BINS - 1)
            bins[place] = bins.get(place, np.zeros(3)) + np.array([predicted, stood, 1]) * count
        points = [(one[0] / one[2], one[1] / one[2]) for _, one in sorted(bins.items())]
        axes.plot(*zip(*points, strict=True), label=scheme, **look[scheme])
    axes.set_xlim(0, 1.02)
    in_percent(axes.xaxis)
    axes.set_xlabel("predicted")
    in_shares(axes)
    legend(figure, axes)
    return figure


BINS = 10
"""Bins of predicted probabilities, in which batch sizes are put together."""
BRANCHES = 4
"""Branches of a depth that are drawn on their own; those after them are drawn as one."""


def by_branch(table: Table, look: Looks) -> Figure:
    """Draw a bar per depth for every scheme with trees: the shares in which each branch was accepted, one above the other."""
    schemes = list(dict.fromkeys(row[0] for row in table.rows))
    most = min(BRANCHES + 1, max(row[3] for row in table.rows))
    names = [f"branch {branch}" for branch in range(1, BRANCHES + 1)] + [f"branches from {BRANCHES + 1} on"]
    colours = matplotlib.colormaps["cividis"](np.linspace(0.1, 0.95, most))
    figure, panes = panels(len(schemes), 0.6 + 1.9 * len(schemes))
    places = pool(table, lambda row: (row[2], min(row[3], most)), counts=(4, 5))
    for axes, scheme in zip(panes, schemes, strict=True):
        pooled = places[scheme]
        depths = sorted({depth for depth, _ in pooled})
        reached, bottom = np.array([pooled[depth, 1][0] for depth in depths]), np.zeros(len(depths))
        for branch in range(1, most + 1):
            shares = np.array([pooled.get((depth, branch), [0, 0])[1] for depth in depths]) / reached
            axes.bar(depths, shares, 0.7, bottom=bottom, color=colours[branch - 1], label=names[branch - 1])
            bottom += shares
        axes.set_xticks(depths)
        in_shares(axes)
        axes.set_title(wrapped(scheme), fontsize=8, loc="left")
    panes[-1].set_xlabel("depth in the tree")
    legend(figure, panes[0])
    return figure


def histogram(table: Table, look: Looks) -> Figure:
    """Draw the share of rounds by accepted tokens, all batch sizes together."""
    pooled = pool(table, itemgetter(2), counts=(3,))
    curves = {}
    for scheme, counts in pooled.items():
        rounds = sum(count for (count,) in counts.values())
        curves[scheme] = tuple((accepted, count / rounds) for accepted, (count,) in sorted(counts.items()))
    groups = merged(curves)
    figure, (axes,) = panels(1)
    width = 0.8 / len(groups)
    for place, (name, scheme, points) in enumerate(groups):
        x = [accepted + (place - (len(groups) - 1) / 2) * width for accepted, _ in points]
        axes.bar(x, [share for _, share in points], width, label=name, color=look[scheme]["color"])
    axes.set_xticks(sorted({row[2] for row in table.rows}))
    axes.set_xlabel("accepted draft tokens")
    in_percent(axes.yaxis)
    axes.set_ylabel("share of rounds")
    axes.grid(axis="x", visible=False)
    legend(figure, axes)
    return figure


def pool(table: Table, key: Callable[[Any], Any], counts: tuple[int, ...]) -> dict[str, dict[Any, list[int]]]:
    """Return per scheme the sums of some columns by a key of a row, over all batch sizes."""
    sums: dict[str, dict[Any, list[int]]] = {}
    for row in table.rows:
        place = sums.setdefault(row[0], {}).setdefault(key(row), [0] * len(counts))
        for number, column in enumerate(counts):
            place[number] += row[column]
    return sums


def merged(curves: dict[str, Curve]) -> list[tuple[str, str, Curve]]:
    """Return (name, first scheme, curve) for each distinguishable curve. The name lists all schemes with this curve."""
    groups: list[list[str]] = []
    for scheme, curve in curves.items():
        group = next((group for group in groups if close(curve, curves[group[0]])), None)
        group.append(scheme) if group else groups.append([scheme])
    return [(together(group, len(curves)), group[0], curves[group[0]]) for group in groups]


def close(one: Curve, other: Curve) -> bool:
    """Return whether no point of a curve is half a percentage point off another's."""
    return len(one) == len(other) and all(
        a[0] == b[0] and abs(a[1] - b[1]) < SAME for a, b in zip(one, other, strict=True)
    )


def equality(table: Table, look: Looks) -> Figure:
    """Draw the share of equal sequences of every scheme and batch size."""
    schemes = list(dict.fromkeys(row[0] for row in table.rows))
    sizes = sorted({row[1] for row in table.rows})
    found = {row[:2]: row for row in table.rows}
    shades = matplotlib.colors.LinearSegmentedColormap.from_list("equal", ["#D55E00", "#F6DFC8", "#9CC9E3", "#0072B2"])
    figure, axes = lines_for(schemes)
    grid = np.full((len(schemes), len(sizes)), math.nan)
    for (scheme, size), row in found.items():
        y, x = schemes.index(scheme), sizes.index(size)
        grid[y, x] = row[3] / row[2]
        red, green, blue, _ = shades(grid[y, x])
        colour = "black" if 0.3 * red + 0.6 * green + 0.1 * blue > 0.45 else "white"
        axes.text(x, y, f"{row[3]}/{row[2]}", ha="center", va="center", color=colour, fontsize=8)
    edges = (np.arange(count + 1) - 0.5 for count in (len(sizes), len(schemes)))
    axes.pcolormesh(*edges, np.ma.masked_invalid(grid), cmap=shades, vmin=0, vmax=1, edgecolors="white", linewidth=1.5)
    axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    axes.set_ylim(len(schemes) - 0.5, -0.5)
    axes.set_xlabel("batch size (rows)")
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure


def against_memory(table: Table, look: Looks) -> Figure:
    """Draw tokens per second over bytes, a line through the batch sizes of each scheme, which label its points."""
    figure, (axes,) = panels(1)
    for scheme in dict.fromkeys(row[0] for row in table.rows):
        rows = sorted((row for row in table.rows if row[0] == scheme), key=lambda row: row[1])
        x, y = ([row[place] for row in rows] for place in (2, 3))
        error = np.abs(np.array([[row[4] for row in rows], [row[5] for row in rows]]) - y)
        shown = look[scheme] if len(rows) > ENDS else {**look[scheme], "linestyle": "none"}
        axes.errorbar(x, y, error, label=scheme, capsize=2, elinewidth=1, linewidth=1.2, **shown)
        for row in rows:
            axes.annotate(str(row[1]), row[2:4], textcoords="offset points", xytext=(4, 4), fontsize=7)
    axes.set_xlim(from_zero(max(row[2] for row in table.rows)))
    axes.set_ylim(from_zero(max(row[5] for row in table.rows)))
    axes.set_xlabel(f"most memory ({canvas.scale(axes.xaxis, 'bytes')}); numbers: batch size")
    axes.set_ylabel(table.unit)
    legend(figure, axes)
    return figure


Painter = Callable[[Table, Looks], Figure]
PAINTERS: dict[str, Painter] = {
    "speed_up": functools.partial(against_batch_size, level=1),
    "speed_up_over_transformers": functools.partial(against_batch_size, level=1),
    "throughput": against_batch_size,
    "equality": equality,
    "bitwise_price": against_batch_size,
    "realign_share": against_batch_size,
    "stage_shares": stage_shares,
    "latency": latency,
    "serving": serving,
    "request_goodput": against_batch_size,
    "acceptance_by_position": by_position,
    "conditional_acceptance": by_position,
    "acceptance_by_branch": by_branch,
    "acceptance_histogram": histogram,
    "acceptance_length": against_batch_size,
    "draft_acceptance_rate": against_batch_size,
    "calibration": calibration,
    "grouping_rate": against_batch_size,
    "padding_share": against_batch_size,
    "filler_share": against_batch_size,
    "peak_kv_bytes": against_batch_size,
    "state_bytes": against_batch_size,
    "peak_device_bytes": against_batch_size,
    "memory": against_memory,
}
"""Drawing functions of the figures, in the order of the page."""
