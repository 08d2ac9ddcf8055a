"""The report: one page that needs nothing but itself, and its figures as files."""

from __future__ import annotations

import os
import string
from html import escape
from pathlib import Path

from specframe_std.output_file import MARK, ends
from specframe_std.output_folders import make_folder, write_page

from specframe_lab.comparison.comparison_figures import Table
from specframe_lab.comparison.comparison_results import Comparison
from specframe_lab.comparison.digits import texts
from specframe_lab.comparison.schemes import is_plain
from specframe_lab.comparison.shared_parts import parts_told
from specframe_lab.comparison.summary import COLUMNS, FAILED, categories, columns, filled, findings, summary
from specframe_lab.report.images import adapting, write_figure
from specframe_lab.report.markup import described, left_out, listing, part, row, scrolling
from specframe_lab.report.plots import draw

PAGE, FIGURES = "report.html", "figures"
HINT = f"its last columns are {' and '.join(COLUMNS[-2:])}"


def write_report(comparison: Comparison, tables: dict[str, Table], folder: str | os.PathLike[str]) -> Path:
    """Write the page, and every figure as PNG, SVG and CSV; return the page's path."""
    there = make_folder(Path(folder) / FIGURES)
    for old in (*there.glob("*.png"), *there.glob("*.svg")):
        if MARK.encode() in ends(old):
            old.unlink()
    figures = draw(tables, comparison.schemes)
    inline = {name: write_figure(figure, name, there) for name, figure in figures.items()}
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
        categories=categories_section(tables),
        parts="".join(f'<p class="meaning">{escape(one)}</p>' for one in parts_told(comparison.cases)),
        nothing=listing([table.nothing for table in tables.values() if table.empty], "nothing"),
        figures="\n".join(card(tables[name], picture) for name, picture in inline.items()),
        command=escape(comparison.about["command"]),
        about=described(about_pairs(comparison)),
        refused=left_out(list(dict.fromkeys(one["why"] for one in comparison.about["refused"]))),
    )


def title(comparison: Comparison) -> str:
    """Return the number of compared schemes and the names of their targets."""
    targets = sorted({Path(str(case.cell["target"])).name for case in comparison.cases})
    schemes = len([scheme for scheme in comparison.schemes if not is_plain(scheme)])
    return f"{schemes} scheme{'s' * (schemes != 1)} on {', '.join(targets)}"


def summary_table(comparison: Comparison, tables: dict[str, Table]) -> str:
    """Return the table of all cells."""
    rows, previous = [], None
    differing = {row[:2] for row in tables["equality"].rows if row[3] != row[2]}
    names, table = filled(columns(comparison), summary(comparison, tables))
    for cells in table:
        kinds = ["plain"] if is_plain(cells[0]) else []
        kinds += ["first"] if cells[1] != previous and previous is not None else []
        previous = cells[1]
        marked = [f'<span class="differs">{FAILED}</span>' if cell == FAILED else escape(cell) for cell in cells]
        if (cells[0], int(cells[1])) in differing:
            place = names.index("equal")
            marked[place] = f'<span class="differs">{marked[place]}</span>'
        rows.append(row(marked, " ".join(kinds)))
    return scrolling("Every cell", names, rows) + f'<p class="hint">Scroll the table sideways: {HINT}.</p>'


def categories_section(tables: dict[str, Table]) -> str:
    """Return the table of tokens per round by category; "" where prompts have none."""
    columns, rows = categories(tables)
    if not rows:
        return ""
    table = tables["acceptance_by_category"]
    shown = scrolling(table.title, columns, [row(map(escape, cells)) for cells in rows])
    return f'<h3>{escape(table.title)}</h3><p class="meaning">{escape(table.meaning)}</p>{shown}'


def card(table: Table, picture: str) -> str:
    """Return one figure with its definition and its numbers."""
    meaning = " ".join(part for part in (table.meaning, table.drawn) if part)
    described = f'<svg role="img" aria-label="{escape(table.title)}: {escape(meaning)}" '
    picture = adapting(picture).replace("<svg ", described, 1)
    rows = [row(map(escape, cells)) for cells in numbers(table)]
    return (
        f'<figure id="{table.name}">\n<h3>{escape(table.title)}</h3>\n<p>{escape(meaning)}</p>\n{picture}\n'
        f"<details><summary>Numbers</summary>{scrolling(table.title, table.columns, rows)}</details>\n</figure>"
    )


def numbers(table: Table) -> list[tuple[str, ...]]:
    """Return the rows of a table as texts; where a column names a figure, each figure has decimals of its own."""
    place = table.columns.index("figure") if "figure" in table.columns else None
    return texts(table.told, None if place is None else [row[place] for row in table.told])


def about_pairs(comparison: Comparison) -> list[tuple[str, str]]:
    """Return names and values of the common settings and the environment of all runs."""
    kept = comparison.about
    pairs = {"started": kept["started"], **kept["settings"], "slo": kept.get("slo"), **kept["environment"]}
    for option in ("target", "drafter", "dtype", "seed"):
        values = dict.fromkeys(str(c.cell[option]) for c in comparison.cases if c.cell.get(option) is not None)
        pairs[option] = ", ".join(value for value in values if value != "none")
    pairs["scheduler and KV backend"] = " ".join(parts_told(comparison.cases)) or "as the table says"
    pairs |= {f"parameters of the {role}": counts for role, counts in parameters(comparison).items()}
    return [(key.replace("_", " "), "no" if value in (None, False) else str(value)) for key, value in pairs.items()]


def parameters(comparison: Comparison) -> dict[str, str]:
    """Return the parameters of the targets and of the draft models, in millions."""
    found: dict[str, dict[str, int]] = {}
    for case in comparison.cases:
        for line in comparison.runs(case).values():
            for role, count in line.get("parameters", {}).items():  # none in results of older versions
                found.setdefault(role, {})[Path(str(case.cell[role])).name] = count
    return {
        role: ", ".join(f"{name} {count / 1e6:,.1f} million" for name, count in counts.items())
        for role, counts in found.items()
    }
