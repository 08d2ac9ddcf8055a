"""Products of options as parameters of tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest


def crossed(*axes: Iterable[Any]) -> list[Any]:
    """Return all combinations of the values of axes, as parameters of a test."""
    return [pytest.param(*values) for values in itertools.product(*axes)]
