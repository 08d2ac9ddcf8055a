"""The executor of this process."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING

from specframe.contracts.engine import Clock, Value
from specframe.engine.local_engine import LocalEngine

if TYPE_CHECKING:
    from specframe.contracts.roles import Observer
    from specframe.engine.parts import Parts
    from specframe.plugins.recipe import Recipe


class Local:
    """Decodes in this process."""

    offers = frozenset[str]()

    def open(self, recipe: Recipe, parts: Parts, observers: Rows[Observer], clock: Clock) -> LocalEngine:
        """Return an engine of this process."""
        return LocalEngine(recipe, parts, observers, clock, self)

    def broadcast(self, value: Value) -> Value:
        """Return the value itself: every row is decoded by one process."""
        return value
