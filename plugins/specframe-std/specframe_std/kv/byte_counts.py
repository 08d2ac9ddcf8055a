"""Amounts of memory, as users write them."""

from __future__ import annotations

import re
from typing import Any

from specframe.errors import OptionError, literal

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def byte_count(name: str, given: Any) -> int:
    """Return an amount of memory in bytes.

    Raises:
        OptionError: it is no number of at least 1 with a unit of bytes, or without one.
    """
    found = re.fullmatch(r"\s*([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)\s*", str(given))
    unit = UNITS.get(found[2].upper()) if found else None
    if isinstance(given, bool) or not found or unit is None or (count := int(float(found[1]) * unit)) < 1:
        raise OptionError(f"{name}: expected bytes as in 2GB, 512MB or 1.5GiB, got {literal(given)}")
    return count
