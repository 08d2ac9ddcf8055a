"""A job as ``specframe run`` asks for it, and what it shows of one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import attrs
import click
from rich.console import Console
from specframe_std.output_file import MARK
from specframe_std.run_command.display import show_figures
from specframe_std.run_command.run_report import summary
from specframe_std.run_command.sampling import take_options

from specframe.errors import OptionError
from specframe.observe.counts import RunReport
from specframe.plugins.recipe import Recipe
from specframe.text.sampling import Sampling
from specframe_ray.job import WorkerOptions

REFUSED = {
    "prompt": "PROMPT",
    "limit": "--limit",
    "stream": "--stream",
    "samples": "--samples",
    "logprobs": "--logprobs",
}
"""What cannot be had of a job."""


def run_files(
    decode: Callable[..., tuple[int, int, RunReport]], given: Mapping[str, Any], settings: Mapping[str, Any]
) -> tuple[int, str]:
    """Decode the files of a command; return how many rows failed, and the figures as JSON.

    Args:
        decode: :meth:`specframe_ray.ray_executor.Ray.decode`.
        given: the parameters of the command by name.
        settings: those that results depend on.

    Raises:
        OptionError: the command asks for something that jobs have not.
    """
    check(given)
    options = dict(given)
    named = {name: value for name, value in take_options(options).items() if value is not None}
    options = {name: options[name] for name in attrs.fields_dict(Recipe) if name in options}
    how = Sampling().with_parameters(named)
    asked = WorkerOptions({**options, "executor": "local"}, how, given["max_new_tokens"], given["chat"])
    output, to_err = given["output"], given["report"] == "-"
    with Rows(given["quiet"]) as progress:
        rows, failed, report = decode(asked, given["prompts"], output, settings, given["resume"], progress)
    figures = report.figures()
    if not given["quiet"]:
        if given["verbose"]:
            show_figures(figures, to_err)
        click.echo(summary(figures), err=to_err)
        click.echo(f"{output} holds all {rows} results", err=True)
    if failed:
        click.echo(f"{failed} of {rows} prompts failed", err=True)
    found = {"generator": f"{MARK} run", "settings": settings, "failed": failed, "figures": figures}
    return failed, json.dumps(found, indent=1) + "\n"


def check(given: Mapping[str, Any]) -> None:
    """Raise :class:`OptionError` for what cannot be had of a job."""
    executor = given["executor"]
    for name, option in REFUSED.items():
        value = given[name]
        if not (value is None or value is False or value == () or (name, value) == ("samples", 1)):
            raise OptionError(f"{option}: expected none with executor {executor!r}, which takes files as a whole")
    if not (given["prompts"] and given["output"]) or "-" in (given["prompts"], given["output"]):
        raise OptionError(
            f"executor {executor!r}: expected --prompts with a file or a folder, and --output with a folder"
        )


class Rows:
    """The progress of rows that are decoded elsewhere, on standard error if that is a terminal.

    Args:
        quiet: whether nothing is shown.
        console: where it is drawn.
    """

    def __init__(self, quiet: bool, console: Console | None = None) -> None:
        from specframe_std.run_command.display import progress_bar  # it imports torch

        self._bar = progress_bar(console or Console(stderr=True, highlight=False), quiet)
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
