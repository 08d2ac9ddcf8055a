"""Defaults in the reference: the values of a recipe in place of the names that signatures read them from."""

from __future__ import annotations

from typing import Any

import griffe

from specframe.plugins.recipe import DEFAULTS


class Defaults(griffe.Extension):
    """Shows ``DEFAULTS.batch_size`` as 8."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Replace the defaults of a function's parameters."""
        for parameter in func.parameters:
            before, _, name = str(parameter.default).rpartition(".")
            if before == "DEFAULTS":
                parameter.default = repr(getattr(DEFAULTS, name))
