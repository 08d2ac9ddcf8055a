"""Observers of plugins: an observer that raises is not called again, and the run goes on."""

from __future__ import annotations

import functools
import warnings
from typing import Any

from specframe.engine.error_words import error_text
from specframe.errors import SpecframeError, SpecframeWarning
from specframe.plugins.compose import strategy
from specframe.plugins.entries import Entry
from specframe.plugins.registry import Registry


class TolerantObserver:
    """Guard of a plugin's observer. After an error the observer is not called again, and the run goes on."""

    def __init__(self, observer: Any, entry: Entry) -> None:
        self._observer, self._entry = observer, entry

    def __getattr__(self, member: str) -> Any:
        if member.startswith("_"):
            raise AttributeError(member)
        return functools.partial(self._tell, member)

    def _tell(self, member: str, *arguments: Any) -> None:
        if (watching := self._observer) is None:
            return
        try:
            getattr(watching, member)(*arguments)
        except (Exception, SystemExit) as error:  # a third party's method may raise anything
            self._observer = None
            why = f"{member}() raised {error_text(error, watching)}"
            warnings.warn(f"{self._entry} receives nothing more: {why}", SpecframeWarning, stacklevel=2)


def installed_observers(known: Registry) -> list[Any]:
    """Return an observer of each kind that plugins offer; one that cannot be made is warned of and left out."""
    made = []
    for entry in known.of("observer"):
        try:
            made.append(TolerantObserver(strategy(known, "observer", entry.name), entry))
        except SpecframeError as fault:
            warnings.warn(f"{entry} is left out: {fault}", SpecframeWarning, stacklevel=2)
    return made
