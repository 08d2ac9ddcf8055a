"""Kinds of option values. Each checks its values, refuses a wrong value in one sentence, and offers completions to the shell."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any, NoReturn

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from specframe.devices import device_names
from specframe.errors import OptionError, SpecframeError, UnknownNameError, literal
from specframe.plugins.entries import PURPOSES
from specframe.plugins.recipe import PLAIN
from specframe.plugins.registry import parse_specification, registry
from specframe.value_checks import a_number, bound, byte_count, number_within, read_number, whole_within

CONFIG = "specframe.config"
"""Key of the configuration file's path in a context's ``meta``."""


def source_of(param: click.Parameter | None, ctx: click.Context | None, otherwise: str = "value") -> str:
    """Return the source of an option's value for messages: its name, its environment variable, or its configuration key."""
    if param is None or param.name is None:
        return otherwise
    source = ctx.get_parameter_source(param.name) if ctx else None
    if ctx and source is ParameterSource.ENVIRONMENT:
        return f"{ctx.auto_envvar_prefix}_{param.name.upper()}"
    if ctx and source is ParameterSource.DEFAULT_MAP and CONFIG in ctx.meta:
        return f"{param.name.replace('_', '-')} in {ctx.meta[CONFIG]}"
    return max(param.opts, key=len)


class ValueType(click.ParamType):
    """A kind of value. Errors use ``name`` for a value that belongs to no option."""

    name = "value"
    several = False
    """Whether a value is a list of values."""

    def refuse(self, expected: str, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> NoReturn:
        """Raise :class:`OptionError` with the value's source, the expected and the given value."""
        raise OptionError(f"{source_of(param, ctx, self.name)}: expected {expected}, got {literal(value)}")

    def known(self) -> Iterable[str]:
        """Return the values that the shell offers."""
        return ()

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the known values that begin with the typed text."""
        try:
            return [CompletionItem(value) for value in self.known() if value.startswith(incomplete)]
        except SpecframeError:  # nothing to offer; the command itself says why
            return []


def number_of(value: Any, kind: type[int] | type[float]) -> Any:
    """Return the number that a text has; any other value as it is."""
    try:
        return read_number(value, kind) if isinstance(value, str) else value
    except ValueError:
        return value


class Number(ValueType):
    """A finite number from ``least`` to ``most``, or greater than ``least`` when ``above``."""

    name = "number"

    def __init__(self, least: float = -math.inf, most: float = math.inf, above: bool = False) -> None:
        self.least, self.most, self.above = least, most, above

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; raise :class:`OptionError` when ``value`` is none."""
        number = number_of(value, float)
        if not number_within(number, self.least, self.most, self.above):
            self.refuse(a_number(number, self.least, self.most, self.above), value, param, ctx)
        return float(number)


class WholeNumber(ValueType):
    """A whole number from ``least`` to ``most``."""

    name = "number"

    def __init__(self, least: int, most: float = math.inf) -> None:
        self.least, self.most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number; raise :class:`OptionError` when ``value`` is none."""
        number = number_of(value, int)
        if not whole_within(number, self.least, self.most):
            self.refuse(f"a whole number{bound(self.least, self.most)}", value, param, ctx)
        return number


class Bytes(ValueType):
    """An amount of memory."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes; raise :class:`OptionError` when ``value`` is no amount of memory."""
        return byte_count(source_of(param, ctx, self.name), value)


class OneOf(ValueType):
    """One of a set of words."""

    name = "word"

    def __init__(self, *words: str) -> None:
        self.words = words

    def known(self) -> Iterable[str]:
        """Return the words."""
        return self.words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the word; raise :class:`OptionError` for another."""
        if value not in self.words:
            self.refuse(f"one of {', '.join(self.words)}", value, param, ctx)
        return value


class TextType(ValueType):
    """A text that is not empty."""

    name = "text"
    meant = "a text that is not empty"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text; raise :class:`OptionError` for an empty one."""
        if isinstance(value, bool) or not str(value):
            self.refuse(self.meant, value, param, ctx)
        return str(value)


class Device(TextType):
    """A device by name. Its existence is checked later, since that needs torch."""

    name = "device"

    def known(self) -> Iterable[str]:
        """Return the kinds of devices."""
        return ("auto", *device_names.BUILT_IN)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name; raise :class:`OptionError` for a name that no device can have."""
        if str(value) != "auto" and not device_names.is_name(str(value)):
            self.refuse(device_names.EXPECTED, value, param, ctx)
        return str(value)


class File(TextType):
    """The name of a file or a folder."""

    name = "file"

    def __init__(self, meant: str = "the name of a file", completes: str = "file") -> None:
        self.meant, self.completes = meant, completes

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Let the shell offer its files or folders."""
        return [CompletionItem(incomplete, type=self.completes)]


class StrategyType(TextType):
    """A strategy of a role, with options: ``name,key=value,...``."""

    name = "strategy"

    def __init__(self, role: str, *also: str) -> None:
        self.role, self.also = role, also
        self.meant = f"the name of a {role}"

    def known(self) -> Iterable[str]:
        """Return the registered names, and words such as "auto" that choose one of them."""
        return (*self.also, *registry().names(self.role))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text, the default in place of "auto" where a role has one default.

        Raises:
            OptionError: no strategy has the name, or a key is given twice.
        """
        text = super().convert(value, param, ctx)
        if text == "auto" and self.role in PURPOSES:
            return registry().default(self.role)
        try:
            name, _ = parse_specification(text)
            if name not in self.also:
                registry().entry(self.role, name)
        except UnknownNameError:
            fault = UnknownNameError(self.role, name, [*self.known()])
            raise OptionError(f"{source_of(param, ctx, self.name)}: {fault}") from None
        except OptionError as fault:
            raise OptionError(f"{source_of(param, ctx, self.name)}: {fault}") from None
        return text


class DraftLength(StrategyType):
    """A number of draft tokens, or a draft-length policy."""

    def __init__(self) -> None:
        super().__init__("draft-length policy", "auto")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text; raise :class:`OptionError` when it is neither a number of at least 1 nor a policy."""
        number = number_of(value, int)
        if not whole_within(number) and not re.match(r"[+-]?[0-9.]", str(value)):
            return super().convert(value, param, ctx)
        if not whole_within(number, 1):
            hint = f"; for plain decoding there is --drafter {PLAIN}" if number == 0 else ""
            expected = "a whole number of at least 1 or a policy's name"
            raise OptionError(f"{source_of(param, ctx, self.name)}: expected {expected}, got {literal(value)}{hint}")
        return str(value)


class ModelType(TextType):
    """A model by alias, directory or hub id; a drafter may also be a strategy by name."""

    name = "model"
    meant = "an alias, a directory or a hub id"

    def __init__(self, drafters: bool = False) -> None:
        self.drafters = drafters

    def known(self) -> Iterable[str]:
        """Return the aliases, and the names of drafters."""
        from specframe.models.aliases import user_aliases

        drafters = ["auto", *registry().names("drafter")] if self.drafters else []
        return [*drafters, *sorted({*registry().models, *user_aliases()})]

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names, or let the shell offer its folders where there are none."""
        return super().shell_complete(ctx, param, incomplete) or [CompletionItem(incomplete, type="dir")]
