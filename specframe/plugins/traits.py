"""What a class says of itself, for listings and early refusals: its first line, its capabilities and its options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import click

REQUIRED = inspect.Parameter.empty
"""Marks an option without a default."""
_signature = functools.lru_cache(256)(inspect.signature)
"""The signature of a class: where it has no constructor Python parses a text for it, and it is asked for often."""


@attrs.frozen
class Traits:
    """What is known of a class, a function or a command before an object is made of it."""

    origin: str
    """Its place, ``module:name``."""
    documentation: str
    needs: frozenset[str] | None
    """The capabilities that a composition is checked by, or None if they follow from its options, which only the object has."""
    offers: frozenset[str] | None
    scheduler: str | None
    """The scheduler that an alignment runs under by default."""
    kv: str | None
    """The KV backend that an alignment runs on by default."""
    options: Mapping[str, Any]
    """Options with their defaults; :data:`REQUIRED`: an option without a default."""
    open: bool
    """Whether it takes options of any name."""

    @property
    def summary(self) -> str:
        """The first line of its docstring."""
        return self.documentation.partition("\n")[0]

    def able(self, trait: str) -> frozenset[str]:
        """Return ``needs`` or ``offers``; an empty set where they follow from options."""
        return getattr(self, trait) or frozenset()


def traits_of(factory: Callable[..., Any]) -> Traits:
    """Return the traits of an imported class, function or command."""
    any_name, variadic = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
    try:
        parameters = [*(_signature if isinstance(factory, type) else inspect.signature)(factory).parameters.values()]
    except (TypeError, ValueError):  # some built-in callables have no signature
        parameters = [inspect.Parameter("options", any_name)]
    where = factory.callback if isinstance(factory, click.Command) else factory
    scheduler, kv = (getattr(factory, trait, None) for trait in ("scheduler", "kv"))
    return Traits(
        f"{getattr(where, '__module__', '?')}:{getattr(where, '__qualname__', '?')}",
        documentation(factory, bool(parameters)),
        words_of(factory, "needs"),
        words_of(factory, "offers"),
        scheduler if isinstance(scheduler, str) else None,
        kv if isinstance(kv, str) else None,
        {one.name: one.default for one in parameters if one.kind not in (any_name, variadic)},
        any(one.kind == any_name for one in parameters),
    )


def words_of(factory: Callable[..., Any], trait: str) -> frozenset[str] | None:
    """Return a class's capabilities of a trait, none where it has no such trait, or None if they follow from its options."""
    given = getattr(factory, trait, ())
    if not isinstance(given, frozenset | set | list | tuple):
        return None
    return frozenset(word for word in given if isinstance(word, str))


OPTIONS = "\n\nOptions:\n"
"""The heading of a docstring's section on options."""


def documentation(factory: Callable[..., Any], takes_options: bool) -> str:
    """Return the docstring of a class or function, or the help of a command. A class has its base's options where it names none."""
    text = inspect.cleandoc((factory.help if isinstance(factory, click.Command) else factory.__doc__) or "")
    bases = factory.__mro__[1:] if isinstance(factory, type) and takes_options and OPTIONS not in text else ()
    inherited = (inspect.cleandoc(base.__doc__ or "").partition(OPTIONS)[2] for base in bases)
    options = next(filter(None, inherited), "")
    return f"{text}{OPTIONS}{options}" if options else text
