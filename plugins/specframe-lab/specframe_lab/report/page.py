"""The report: one page that needs nothing but itself, and its figures as files."""

from __future__ import annotations

import math
import os
import string
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from specframe.files import MARK, ends, make_folder, write_page
from specframe_lab.comparison.figures import Table
from specframe_lab.comparison.results import Comparison
from specframe_lab.comparison.schemes import is_plain
from specframe_lab.comparison.summary import COLUMNS, FAILED, amount, columns, findings, summary
from specframe_lab.report.images import adapting, png, standing_alone, svg
from specframe_lab.report.plots import draw

PAGE, FIGURES = "report.html", "figures"
HINT = f"its last columns are {' and '.join(COLUMNS[-2:])}"


def write_report(comparison: Comparison, tables: dict[str, Table], folder: str | os.PathLike[str]) -> Path:
    """Write the page, and every figure as PNG, SVG and CSV; return the page's path."""
    there = make_folder(Path(folder) / FIGURES)
    for old in (*there.glob("*.png"), *there.glob("*.svg")):
        if MARK.encode() in ends(old):
            old.unlink()
    inline = {}
    for name, figure in draw(tables, comparison.schemes).items():
        inline[name] = svg(figure, name)
        write_page(there / f"{name}.svg", standing_alone(inline[name]))
        write_page(there / f"{name}.png", png(figure))
    for table in tables.values():
        table.write(there)
    page = Path(folder) / PAGE
    write_page(page, html(comparison, tables, inline))
    return page


def html(comparison: Comparison, tables: dict[str, Table], inline: dict[str, str]) -> str:
    """Return the page."""
    template = string.Template(part("page.html"))
    first, *others = findings(comparison, tables)
    return template.substitute(
        style=part("page.css"),
        title=escape(title(comparison)),
        headline=escape(first),
        findings=listing(others, "findings"),
        summary=summary_table(comparison, tables),
        figures="\n".join(card(tables[name], picture) for name, picture in inline.items()),
        command=escape(comparison.about["command"]),
        about=about(comparison),
        refused=refused(comparison),
    )


def part(name: str) -> str:
    """Return a file of this package."""
    return (files("specframe_lab.report") / name).read_text(encoding="utf-8")


def title(comparison: Comparison) -> str:
    """Return the number of compared schemes and the names of their targets."""
    targets = sorted({Path(str(case.cell["target"])).name for case in comparison.cases})
    schemes = len([scheme for scheme in comparison.schemes if not is_plain(scheme)])
    return f"{schemes} scheme{'s' * (schemes != 1)} on {', '.join(targets)}"


def listing(texts: Sequence[str], kind: str) -> str:
    """Return a list of sentences."""
    return f'<ul class="{kind}">' + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>" if texts else ""


def summary_table(comparison: Comparison, tables: dict[str, Table]) -> str:
    """Return the table of all cells."""
    rows, previous = [], None
    differing = {row[:2] for row in tables["equality"].rows if row[3] != row[2]}
    for cells in summary(comparison, tables):
        kinds = ["plain"] if is_plain(cells[0]) else []
        kinds += ["first"] if cells[1] != previous and previous is not None else []
        previous = cells[1]
        marked = [f'<span class="differs">{FAILED}</span>' if cell == FAILED else escape(cell) for cell in cells]
        if (cells[0], int(cells[1])) in differing:
            place = COLUMNS.index("equal")
            marked[place] = f'<span class="differs">{marked[place]}</span>'
        rows.append(row(marked, " ".join(kinds)))
    return (
        scrolling("Every cell", columns(comparison), rows) + f'<p class="hint">Scroll the table sideways: {HINT}.</p>'
    )


def card(table: Table, picture: str) -> str:
    """Return one figure with its definition and its numbers."""
    meaning = " ".join(part for part in (table.meaning, table.drawn) if part)
    described = f'<svg role="img" aria-label="{escape(table.title)}: {escape(meaning)}" '
    picture = adapting(picture).replace("<svg ", described, 1)
    rows = [row([escape(text(value)) for value in values]) for values in table.rows]
    return (
        f'<figure id="{table.name}">\n<h3>{escape(table.title)}</h3>\n<p>{escape(meaning)}</p>\n{picture}\n'
        f"<details><summary>Numbers</summary>{scrolling(table.title, table.columns, rows)}</details>\n</figure>"
    )


def row(cells: Iterable[str], kind: str = "") -> str:
    """Return a row of a table from its cells' markup; the first names the row."""
    first, *others = cells
    start = f'<tr class="{kind}">' if kind else "<tr>"
    return f'{start}<th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in others) + "</tr>"


def scrolling(name: str, columns: Iterable[str], rows: Iterable[str]) -> str:
    """Return a table in a box that scrolls by itself."""
    head = "".join(f'<th scope="col">{escape(column.replace("_", " "))}</th>' for column in columns)
    box = f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(name)}, table">'
    return f"{box}<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"


def text(value: Any) -> str:
    """Return a value of a table as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return amount(value) if isinstance(value, float) else str(value)


def about(comparison: Comparison) -> str:
    """Return the common settings and the environment of all runs, as a list."""
    shown = (f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in about_pairs(comparison))
    return f"<dl>{''.join(shown)}</dl>"


def about_pairs(comparison: Comparison) -> list[tuple[str, str]]:
    """Return names and values of the common settings and the environment of all runs."""
    kept = comparison.about
    pairs = {"started": kept["started"], **kept["settings"], "slo": kept.get("slo"), **kept["environment"]}
    for option in ("target", "drafter", "dtype", "seed"):
        values = dict.fromkeys(str(c.cell[option]) for c in comparison.cases if c.cell.get(option) is not None)
        pairs[option] = ", ".join(value for value in values if value != "none")
    return [(key.replace("_", " "), "no" if value in (None, False) else str(value)) for key, value in pairs.items()]


def refused(comparison: Comparison) -> str:
    """Return the cells that were left out because their strategies do not fit each other."""
    texts = dict.fromkeys(one["why"] for one in comparison.about["refused"])
    return f"<h3>Left out</h3>{listing(list(texts), 'refused')}" if texts else ""
