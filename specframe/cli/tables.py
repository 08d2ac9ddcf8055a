"""Tables: drawn on a terminal, plain aligned columns everywhere else."""

from __future__ import annotations

from collections.abc import Sequence

import click


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: bool = False, err: bool = False) -> None:
    """Print a table on standard output or, with ``err``, standard error.

    ``numbers``: all but the first column are numbers.
    """
    from rich.console import Console

    console = Console(stderr=err)
    if not console.is_terminal:
        plain(columns, rows, err)
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, header_style="bold")
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if numbers and place else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def per_second(value: float) -> str:
    """Return a rate as text: below 10 with two significant digits, so that a slow model's is not 0."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def plain(columns: Sequence[str], rows: Sequence[Sequence[str]], err: bool = False) -> None:
    """Print columns two spaces apart, a line per row whatever its width."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip(), err=err)
