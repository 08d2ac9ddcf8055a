"""The options that make a pipeline, each taking a comma list of values: a grid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from specframe.cli.options import pipeline_options
from specframe.errors import OptionError
from specframe.grid import split_list

SINGLE = frozenset({"config"})
"""Options that take one value for the whole grid."""


class ListOf(click.ParamType):
    """A comma list of another type's values; a part with ``=`` is an option of the name before it."""

    name = "list"

    def __init__(self, of: click.ParamType) -> None:
        self.of = of

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[Any]:
        """Return the list of values."""
        if isinstance(value, list):
            return value
        try:
            parts = split_list(str(value))
        except OptionError as fault:
            option = param.opts[-1] if param else self.name
            raise OptionError(f"{option}: {fault}") from None
        return [self.of.convert(part, param, ctx) for part in parts]


def grid_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that make a pipeline, all but ``--config`` as comma lists, to a command."""
    present = list(getattr(command, "__click_params__", ()))
    command = pipeline_options(command)
    for option in command.__click_params__:  # type: ignore[attr-defined]
        if option not in present and option.name not in SINGLE and not option.is_flag:
            option.type = ListOf(option.type)
            option.metavar = f"{option.metavar},..."
    return command
