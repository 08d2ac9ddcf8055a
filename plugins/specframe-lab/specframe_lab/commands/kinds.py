"""Kinds of option values that only the commands of the lab take: comma lists, and times of arrival."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem

from specframe.cli.kinds import Kind, Text, called
from specframe.errors import OptionError
from specframe_lab.grid import split_list


class Arrivals(Text):
    """A rate of arrivals, or a file of moments."""

    name = "arrivals"
    meant = "poisson:RATE or a file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text; raise :class:`OptionError` when it is neither a rate nor a file of numbers."""
        from specframe_lab.arrivals import check

        text = super().convert(value, param, ctx)
        try:
            check(text)
        except OptionError as fault:
            raise OptionError(f"{called(param, ctx, self.name)}: {str(fault).removeprefix('arrivals: ')}") from None
        return text

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Offer the rate, or let the shell offer its files."""
        rate = [CompletionItem("poisson:")] if "poisson:".startswith(incomplete) else []
        return rate or [CompletionItem(incomplete, type="file")]


class ListOf(Kind):
    """A comma list of another kind's values; a part with ``=`` is an option of the name before it."""

    name = "list"
    several = True

    def __init__(self, of: click.ParamType) -> None:
        self.of = of

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[Any]:
        """Return the list of values, from a comma list or a list."""
        try:
            parts = value if isinstance(value, list | tuple) else split_list(str(value))
        except OptionError as fault:
            raise OptionError(f"{called(param, ctx, self.name)}: {fault}") from None
        if not parts:
            self.refuse("at least one value", value, param, ctx)
        return list(dict.fromkeys(self.of.convert(part, param, ctx) for part in parts))

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Complete the last value of the list."""
        before, comma, last = incomplete.rpartition(",")
        found = self.of.shell_complete(ctx, param, last)
        return [CompletionItem(f"{before}{comma}{item.value}", type=item.type, help=item.help) for item in found]
