"""``--dry-run``: what a grid would run, and what it would cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from specframe.cli.tables import show_table

if TYPE_CHECKING:
    from specframe_lab.comparison.compare import ComparisonSettings
    from specframe_lab.comparison.forecast import Forecast
    from specframe_lab.comparison.schemes import Case

DRY_RUN = click.option(
    "--dry-run", is_flag=True, help="Show what would be run and what it costs, load no model and write nothing."
)


def show_forecast(found: Forecast, settings_of: Callable[[Case], ComparisonSettings], folder: str) -> None:
    """Print the runs of every cell, then what all of them come to."""
    rows = []
    for case in found.cases.values():
        runs, there = found.runs(case)
        part = case.cell.get("part")
        name = f"{part}, {case.scheme}" if part else case.scheme
        rows.append((name, case.cell["schedule"], case.cell["kv"], *map(str, (case.batch_size, runs, there))))
    show_table(("scheme", "scheduler", "KV backend", "batch", "runs", "there"), rows, numbers=True)
    asked = [settings_of(step.case) for step in found.missing]
    tokens = sum(len(one.prompts) * one.max_new_tokens for one in asked)
    click.echo(f"\n{len(found.missing)} of {len(found.steps)} runs to make: at most {tokens:,} new tokens")
    click.echo(duration(found, folder, settings_of))


def duration(found: Forecast, folder: str, settings_of: Callable[[Case], ComparisonSettings]) -> str:
    """Return how long that takes: by the runs in the folder or, where there is none, by the shapes of the models."""
    if found.refusal:
        return f"{folder} would be refused: {found.refusal}"
    if not found.missing:
        return f"{folder} holds all of them: only the report would be written again"
    if found.seconds is None:
        from specframe_lab.comparison.modelled_time import modelled_seconds

        seconds = modelled_seconds(found.missing, settings_of)
        if seconds is None:
            return f"no estimate of the time: {folder} holds no run of these yet"
        return (
            f"about {in_time(seconds)} of decoding, modelled by the shapes of the models, which may be three times too much or too "
            f"little: {folder} holds no run of these yet; loading models comes on top"
        )
    measured = f"{len(found.lines)} run{'s' * (len(found.lines) != 1)} in {folder}"
    return f"about {in_time(found.seconds)} of decoding, by the {measured}; loading models and warming up come on top"


def in_time(seconds: float) -> str:
    """Return a duration in the largest unit that it has two of."""
    for name, unit in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * unit:
            return f"{seconds / unit:,.1f} {name}"
    return f"{seconds:,.1f} s"
