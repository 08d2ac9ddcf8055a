"""Environment variables of the command line: options by name, and a warning of one that is misspelt."""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Iterator

import click

from specframe.errors import SpecframeWarning
from specframe.models.aliases import HOME_VARIABLE
from specframe.plugins.registry import LIMIT_VARIABLE

PREFIX = "SPECFRAME"
"""Before the name of a command's option: SPECFRAME_RUN_BATCH_SIZE is --batch-size of run."""
ALIKE = 0.75
"""Least similarity of a misspelt name. Others may be variables of a plugin, or of the tests."""


def warn_of_misspelt(ctx: click.Context) -> None:
    """Warn of variables that are no option's, and are like one's, naming that one."""
    given = [
        name for name in os.environ if name.startswith(f"{PREFIX}_") and name not in (HOME_VARIABLE, LIMIT_VARIABLE)
    ]
    known = {HOME_VARIABLE, LIMIT_VARIABLE, *variables(ctx.command, ctx, PREFIX)} if given else set()
    for name in sorted({*given} - known):
        bare = {one.removeprefix(PREFIX): one for one in known}  # what all names share makes none of them alike
        if nearest := difflib.get_close_matches(name.removeprefix(PREFIX), bare, n=1, cutoff=ALIKE):
            warnings.warn(
                f"the environment variable {name} has no effect: did you mean {bare[nearest[0]]}?",
                SpecframeWarning,
                stacklevel=2,
            )


def variables(command: click.Command, ctx: click.Context, prefix: str) -> Iterator[str]:
    """Yield the variables of the options of a command and of its own commands."""
    yield from (f"{prefix}_{option.name}".upper() for option in command.params if isinstance(option, click.Option))
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            if one := command.get_command(ctx, name):
                yield from variables(one, ctx, f"{prefix}_{name}".replace("-", "_").upper())
