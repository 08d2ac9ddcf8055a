"""The progress bar of commands."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

if TYPE_CHECKING:
    from specframe.cli.display_settings import DisplaySettings


def progress_bar(console: Console, hidden: bool) -> Progress:
    """Return a bar: how many of how many, figures, the time that has passed, and an estimate of the time that is left.

    Args:
        console: where it is drawn; nothing is where that is no terminal.
        hidden: whether nothing is drawn anyway.
    """
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        redirect_stdout=False,
        disable=hidden or not console.is_terminal,
    )


class Rows:
    """The progress of rows that are decoded elsewhere, on standard error if that is a terminal.

    Args:
        manner: quiet shows nothing.
        console: where it is drawn.
    """

    def __init__(self, manner: DisplaySettings, console: Console | None = None) -> None:
        self._bar = progress_bar(console or Console(stderr=True, highlight=False), manner.quiet)
        self._first, self._begun = 0, 0.0

    def __enter__(self) -> Self:
        """Begin; nothing is drawn before the first call."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the bar."""
        self._bar.stop()

    def __call__(self, done: int, total: int) -> None:
        """Show how many rows are done of how many. The first call is before any of this run's."""
        now = time.monotonic()
        if not self._bar.tasks:
            self._first, self._begun = done, now
            self._bar.add_task("decoding", total=total, completed=done, figures="")
            self._bar.start()
        task, since = self._bar.tasks[0], now - self._begun
        rate = f"{(done - self._first) / since:,.1f} rows/s" if done > self._first and since else "starting"
        self._bar.update(task.id, completed=done, total=total, figures=rate)
