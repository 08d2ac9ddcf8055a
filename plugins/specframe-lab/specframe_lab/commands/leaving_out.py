"""Which combinations of a grid are left out: each reason is printed once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from specframe_lab.grid import Cell, Grid


def tell_left_out(grid: Grid) -> None:
    """Say on standard error which combinations are left out, and why."""
    for sentence in left_out(grid):
        click.echo(f"left out: {sentence}", err=True)


def left_out(grid: Grid) -> list[str]:
    """Return a sentence per reason: what the combinations have in common that it holds for, and the reason."""
    every = [*grid.cells, *(cell for cell, _ in grid.refused)]
    reasons: dict[str, list[Cell]] = {}
    for cell, why in grid.refused:
        reasons.setdefault(why, []).append(cell)
    return [f"{common(cells, every)}: {why}" for why, cells in reasons.items()]


def common(cells: list[Cell], every: list[Cell]) -> str:
    """Return the values that some cells share and others have not, and how many cells that are."""
    from specframe_lab.grid import varying

    shared = [option for option in varying(every) if option not in varying(cells) and cells[0][option] is not None]
    words = ", ".join(f"{option.replace('_', ' ')} {cells[0][option]}" for option in shared)
    count = f"{len(cells)} combinations" if len(cells) > 1 else ""
    return ", ".join(part for part in (words, count) if part) or "one combination"
