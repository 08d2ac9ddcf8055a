"""Products of options of which a part runs by default: each value does, with the values of the other options by turns."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest


def by_turns(part: int, *axes: Sequence[Any]) -> list[Any]:
    """Return all combinations of the values of axes, as parameters of a test; of ``part`` neighbours all but one are slow."""
    return [
        pytest.param(
            *(values[place] for values, place in zip(axes, places, strict=True)),
            marks=pytest.mark.slow if sum(places) % part else [],
        )
        for places in itertools.product(*(range(len(values)) for values in axes))
    ]
