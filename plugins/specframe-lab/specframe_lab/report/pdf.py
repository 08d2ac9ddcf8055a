"""The report as one PDF, to hand on or to print: findings, every cell, then each figure with its numbers."""

from __future__ import annotations

import io
import os
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure
from specframe_std.output_file import MARK
from specframe_std.output_folders import write_page

from specframe_lab.comparison.comparison_figures import Table
from specframe_lab.comparison.comparison_results import Comparison
from specframe_lab.comparison.summary import categories, columns, filled, findings, summary
from specframe_lab.report.canvas import STYLE
from specframe_lab.report.plots import draw
from specframe_lab.report.report_page import about_pairs, numbers, title

PDF = "report.pdf"
PAPER = (11.69, 8.27)
"""A4 across, in inches: a page of text."""
PICTURE = (8.27, 5.83)
"""A5 across, of the same shape: a page with a figure, whose type is then larger when both are printed alike."""
MARGIN = 0.05
"""Of a page's width and height."""
LINES, CHARACTERS = 54, 148
"""Lines and characters of a text page at 8 points, so that table rows are not broken."""


def write_pdf(comparison: Comparison, tables: dict[str, Table], folder: str | os.PathLike[str]) -> Path:
    """Write the report as PDF and return its path."""
    path = Path(folder) / PDF
    kept = {"Title": title(comparison), "CreationDate": None, "Creator": MARK}
    content = io.BytesIO()
    with matplotlib.rc_context({**STYLE, "pdf.fonttype": 42}), PdfPages(content, metadata=kept) as pages:
        for page in drawn(comparison, tables):
            pages.savefig(page)
    write_page(path, content.getvalue())
    return path


def drawn(comparison: Comparison, tables: dict[str, Table]) -> Iterator[Figure]:
    """Yield the pages."""
    first, *others = findings(comparison, tables)
    said = [line for sentence in others for line in folded(f"- {sentence}")]
    yield from written(
        first,
        ["", *said, "", *aligned(*filled(columns(comparison), summary(comparison, tables))), *by_category(tables)],
    )
    measured = [
        f"{name}: {value}" for name, value in (("command", comparison.about["command"]), *about_pairs(comparison))
    ]
    yield from written("How it was measured", [line for one in measured for line in folded(one)])
    for name, figure in draw(tables, comparison.schemes).items():
        table = tables[name]
        yield captioned(figure, table)
        yield from written(f"{table.title}: numbers", aligned(table.columns, numbers(table)))


def by_category(tables: dict[str, Table]) -> list[str]:
    """Return the table of tokens per round by category as lines, or nothing if prompts have none."""
    names, rows = categories(tables)
    return ["", tables["acceptance_by_category"].title, "", *aligned(names, rows)] if rows else []


def captioned(figure: Figure, table: Table) -> Figure:
    """Return a page with a figure, its title and its description."""
    caption = textwrap.fill(" ".join(part for part in (table.meaning, table.drawn) if part), 100)
    figure.set_size_inches(PICTURE)
    figure.suptitle(f"{table.title}\n{caption}", fontsize=10)
    return figure


def aligned(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table as lines, the first column to the left and the others to the right."""
    lines = [[column.replace("_", " ") for column in columns], *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width) for place, (cell, width) in enumerate(zip(line, widths))
        )
        for line in lines
    ]


def folded(sentence: str) -> list[str]:
    """Return a sentence as lines."""
    return textwrap.wrap(sentence, CHARACTERS, subsequent_indent="  ")


def written(heading: str, lines: Sequence[str]) -> Iterator[Figure]:
    """Yield pages of text under a heading, in type of one width and as small as the longest line asks for."""
    size = 8 * min(1, CHARACTERS / max(1, *map(len, lines)))
    for start in range(0, len(lines), LINES):
        part = lines[start : start + LINES]
        page = Figure(figsize=PAPER)
        given: dict[str, Any] = {"va": "top", "ha": "left", "parse_math": False}
        page.text(MARGIN, 1 - MARGIN, textwrap.fill(heading, 100), fontsize=12, weight="bold", **given)
        page.text(MARGIN, 1 - 2.2 * MARGIN, "\n".join(part), fontsize=size, family="monospace", **given)
        yield page
