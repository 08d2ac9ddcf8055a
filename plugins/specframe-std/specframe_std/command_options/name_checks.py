"""Check of names on the command line before torch is imported, so that a wrong name fails in a fraction of a second."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from specframe.errors import OptionError
from specframe.models.pairs import check_location, choose
from specframe.plugins.compose import OPTIONS, is_number
from specframe.plugins.recipe import DEFAULTS
from specframe.plugins.registry import Registry, check_options, parse_specification, registry

LEFT_OPEN = (None, "auto")
"""Values that name no strategy: the strategy then follows from the other options."""


def check_names(options: Mapping[str, Any], anywhere: bool = False) -> None:
    """Check the models, strategies and strategies' options in a command's options. A value may be a list.

    Args:
        options: the options by name.
        anywhere: whether the command can have any executor; others step engines, in one process.

    Raises:
        SpecframeError: a name is unknown, or a strategy lacks an option.
    """
    known = registry()
    given = {option: value if isinstance(value, list) else [value] for option, value in options.items()}
    named = [
        (kind, text)
        for kind, option in OPTIONS.items()
        for text in given.get(option, [])
        if kind != "drafter" and text not in LEFT_OPEN and not is_number(text)
    ]
    if any(given.get("memory", ())):
        known.entry("option", "memory")
    for kind, text in named:
        known.entry(kind, parse_specification(text)[0])
        if kind == "executor" and not anywhere:
            require_steps(known, text)
    for target, drafter in itertools.product(
        given.get("target", [DEFAULTS.target]), given.get("drafter", [DEFAULTS.drafter])
    ):
        chosen, strategy, model = choose(target, drafter)
        known.entry("drafter", parse_specification(strategy)[0])
        named.append(("drafter", strategy))
        check_location("target", chosen)
        if model is not None:
            check_location("draft", model)
    for kind, text in named:  # last: a strategy's class is imported for the names of its options, and torch with it
        name, own = parse_specification(text)
        if own:
            check_options(known.entry(kind, name), own)


def require_steps(known: Registry, executor: str) -> None:
    """Raise :class:`OptionError` for an executor that has ranks, or takes files as a whole: no process steps its engines alone."""
    entry = known.entry("executor", parse_specification(executor)[0])
    if (entry.said.offers or frozenset()) & {"files", "ranks"}:
        raise OptionError(
            f"--executor: expected one of one process, such as local, got {executor!r}, which is for `specframe run`"
        )
