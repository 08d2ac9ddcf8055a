"""Parts of pages: tables, lists and pairs as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files


def part(name: str, package: str = "report") -> str:
    """Return a file of a package of the lab."""
    return (files("specframe_lab") / package / name).read_text(encoding="utf-8")


def listing(texts: Sequence[str], kind: str) -> str:
    """Return a list of sentences."""
    return f'<ul class="{kind}">' + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>" if texts else ""


def left_out(reasons: Sequence[str]) -> str:
    """Return the section on what was left out, and why; "" where nothing was."""
    return f"<h3>Left out</h3>{listing(reasons, 'refused')}" if reasons else ""


def described(pairs: Iterable[tuple[str, str]]) -> str:
    """Return names and values as a list."""
    shown = (f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs)
    return f"<dl>{''.join(shown)}</dl>"


def row(cells: Iterable[str], kind: str = "") -> str:
    """Return a row of a table from its cells' markup; the first names the row."""
    first, *others = cells
    start = f'<tr class="{kind}">' if kind else "<tr>"
    return f'{start}<th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in others) + "</tr>"


def table(columns: Iterable[str], rows: Iterable[str]) -> str:
    """Return a table."""
    head = "".join(f'<th scope="col">{escape(column.replace("_", " "))}</th>' for column in columns)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def boxed(name: str, markup: str) -> str:
    """Return a table in a box that scrolls by itself; its name is markup, too."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{name}, table">{markup}</div>'


def scrolling(name: str, columns: Iterable[str], rows: Iterable[str]) -> str:
    """Return a table of rows in a box that scrolls by itself."""
    return boxed(escape(name), table(columns, rows))
