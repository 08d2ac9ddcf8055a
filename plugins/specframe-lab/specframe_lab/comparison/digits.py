"""Numbers as texts: all numbers of a column have the same decimals, so that they can be read down the column."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

DIGITS, FEWEST = 3, 2
"""Digits that count of a column's largest number, and of its smallest: three distinguish what repeats of a run distinguish."""
MORE = 3
"""Decimals that the smallest number may add to those of the largest: beyond that it reads as 0."""


def texts(rows: Sequence[Sequence[Any]], kinds: Sequence[Any] | None = None) -> list[tuple[str, ...]]:
    """Return the cells of a table as texts; the fractions of a column have the same decimals.

    Args:
        rows: texts, truth values, whole numbers, fractions, None, or tuples of fractions that share a cell.
        kinds: what each row's numbers measure; only rows of one kind share their decimals. None: all rows are of one kind.
    """
    kinds = [None] * len(rows) if kinds is None else kinds
    found: dict[tuple[Any, int], list[float]] = {}
    for kind, row in zip(kinds, rows, strict=True):
        for place, value in enumerate(row):
            found.setdefault((kind, place), []).extend(fractions(value))
    decimals = {key: decimals_of(values) for key, values in found.items()}
    return [
        tuple(text(value, decimals[kind, place]) for place, value in enumerate(row))
        for kind, row in zip(kinds, rows, strict=True)
    ]


def fractions(value: Any) -> Iterator[float]:
    """Yield the fractions in a cell."""
    for one in value if isinstance(value, tuple) else (value,):
        if isinstance(one, float) and math.isfinite(one):
            yield one


def decimals_of(values: Iterable[float]) -> int:
    """Return the decimals for numbers that are read together."""
    sizes = [abs(value) for value in values if value]
    if not sizes:
        return 0
    largest = max(0, DIGITS - 1 - math.floor(math.log10(max(sizes))))
    smallest = FEWEST - 1 - math.floor(math.log10(min(sizes)))
    return max(largest, min(smallest, largest + MORE))


def text(value: Any, decimals: int) -> str:
    """Return a cell as text; "-" where there is no number."""
    if isinstance(value, tuple):
        return " / ".join(text(one, decimals) for one in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.{decimals}f}" if isinstance(value, float) else str(value)
