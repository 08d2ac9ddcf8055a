"""Executors that take files of prompts as a whole: ``run`` hands its options over to them."""

from __future__ import annotations

import json
from typing import Any

import attrs
import click

from specframe.cli.display_settings import DisplaySettings
from specframe.contracts.job import Job
from specframe.errors import OptionError
from specframe.files import MARK
from specframe.plugins.registry import parse_specification, registry

REFUSED = {
    "prompt": "PROMPT",
    "limit": "--limit",
    "stream": "--stream",
    "samples": "--samples",
    "logprobs": "--logprobs",
}
"""What cannot be had with them."""


def taking_files(specification: str | None) -> Any:
    """Return the executor of a specification if it offers "files", see :class:`specframe.contracts.engine.FilesExecutor`."""
    known = registry()
    if specification is None or specification == "auto":
        specification = known.default("executor")
    entry = known.entry("executor", parse_specification(specification)[0])
    return known.make("executor", specification) if "files" in entry.traits.able("offers") else None


def job(executor: str, given: dict[str, Any], **asked: Any) -> Job:
    """Return the job of a run.

    Raises:
        OptionError: the run asks for something that such executors have not.
    """
    for name, option in REFUSED.items():
        value = given.get(name)
        if not (value is None or value is False or value == () or (name, value) == ("samples", 1)):
            raise OptionError(f"{option}: expected none with executor {executor!r}, which takes files as a whole")
    if not (asked["prompts"] and asked["output"]) or "-" in (asked["prompts"], asked["output"]):
        raise OptionError(
            f"executor {executor!r}: expected --prompts with a file or a folder, and --output with a folder"
        )
    return Job(**asked)


def decode(executor: Any, asked: Job, manner: DisplaySettings) -> tuple[int, str]:
    """Decode a job's files; return the number of rows that failed, and the figures as JSON."""
    from specframe.cli.display import show_figures
    from specframe.cli.progress import Rows
    from specframe.cli.run_report import summary

    with Rows(manner) as progress:
        rows, failed, figures = executor.decode_files(attrs.evolve(asked, progress=progress))
    if not manner.quiet:
        if manner.verbose:
            show_figures(figures, manner.err)
        click.echo(summary(figures), err=manner.err)
        click.echo(f"{asked.output} holds all {rows} results", err=True)
    if failed:
        click.echo(f"{failed} of {rows} prompts failed", err=True)
    found = {"generator": f"{MARK} run", "settings": asked.settings, "failed": failed, "figures": figures}
    return failed, json.dumps(found, indent=1) + "\n"
