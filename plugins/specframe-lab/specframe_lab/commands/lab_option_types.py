"""Kinds of option values that only the commands of the lab take: comma lists, and times of arrival."""

from __future__ import annotations

import os
from typing import Any

import click
from click.shell_completion import CompletionItem
from specframe_std.command_options.options import LIMIT, PROMPTS_FILE, whole

from specframe.cli.option_types import File, TextType, ValueType, source_of
from specframe.errors import OptionError, SpecframeError
from specframe_lab.grid import split_list


class CheckedText(TextType):
    """A text that a function checks."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text; raise :class:`OptionError` when it is not what is meant."""
        text = super().convert(value, param, ctx)
        try:
            self.check(text)
        except OptionError as fault:
            why = str(fault).removeprefix(f"{self.name}: ")
            raise OptionError(f"{source_of(param, ctx, self.name)}: {why}") from None
        return text

    def check(self, text: str) -> None:
        """Raise :class:`OptionError` when a text is not what is meant."""
        raise NotImplementedError


class Arrivals(CheckedText):
    """A pattern of arrivals with its rate, or a file of moments."""

    name = "arrivals"
    meant = "poisson:RATE, gamma:RATE, constant:RATE or a file"

    def check(self, text: str) -> None:
        """Raise :class:`OptionError` when a text is neither a pattern nor a file of moments."""
        from specframe_lab.arrival_times import check

        check(text)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Offer the patterns, or let the shell offer its files."""
        from specframe_lab.arrival_times import PATTERNS

        patterns = [CompletionItem(f"{name}:") for name in PATTERNS if f"{name}:".startswith(incomplete)]
        return patterns or [CompletionItem(incomplete, type="file")]


class Slo(CheckedText):
    """Objectives of service."""

    name = "slo"
    meant = "objectives in milliseconds, as in ttft:200,tpot:50,e2el:3000"

    def check(self, text: str) -> None:
        """Raise :class:`OptionError` when a text names no objectives."""
        from specframe_lab.serving.objectives import objectives

        objectives(text)


HTML = (".html", ".htm")
"""Endings of the names of pages."""


def is_page(name: str) -> bool:
    """Return whether a file's name ends as that of a page does."""
    return os.path.splitext(name)[1].lower() in HTML


class PageFile(File):
    """The name of a page; one that ends as other files do is refused, one without an ending is not."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text; raise :class:`OptionError` where it ends in another ending than .html."""
        text = super().convert(value, param, ctx)
        if (ending := os.path.splitext(text)[1]) and not is_page(text):
            expected = f"expected a name that ends in {HTML[0]}, since a page is written"
            raise OptionError(f"{source_of(param, ctx, self.name)}: {text} ends in {ending}: {expected}")
        return text


class Unusable(str):
    """A value of a list that was refused; the others are used."""

    fault: SpecframeError
    """Why it was refused."""

    def __new__(cls, text: str, fault: SpecframeError) -> Unusable:
        """Return the text with its fault."""
        value = super().__new__(cls, text)
        value.fault = fault
        return value


class ListOf(ValueType):
    """A comma list of another kind's values; a part with ``=`` is an option of the name before it.

    Args:
        of: the kind of the values.
        lenient: keep a wrong value as :class:`Unusable`, as long as another one is right.
    """

    name = "list"
    several = True

    def __init__(self, of: click.ParamType, lenient: bool = False) -> None:
        self.of, self.lenient = of, lenient

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[Any]:
        """Return the list of values, from a comma list or a list."""
        try:
            parts = value if isinstance(value, list | tuple) else split_list(str(value))
        except OptionError as fault:
            raise OptionError(f"{source_of(param, ctx, self.name)}: {fault}") from None
        if not parts:
            self.refuse("at least one value", value, param, ctx)
        found = list(dict.fromkeys(self._one(part, param, ctx) for part in parts))
        if all(isinstance(value, Unusable) for value in found):
            raise found[0].fault
        return found

    def _one(self, part: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self.of.convert(part, param, ctx)
        except SpecframeError as fault:
            if not self.lenient:
                raise
            return Unusable(str(part), fault)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Complete the last value of the list."""
        before, comma, last = incomplete.rpartition(",")
        found = self.of.shell_complete(ctx, param, last)
        return [CompletionItem(f"{before}{comma}{item.value}", type=item.type, help=item.help) for item in found]


PROMPTS = (click.argument("prompt", nargs=-1), PROMPTS_FILE)
"""Options for the source of prompts."""

CUT = (LIMIT, whole("--max-prompt-tokens", "Cut prompts to their first N tokens."))
"""Options that shorten the prompts."""
