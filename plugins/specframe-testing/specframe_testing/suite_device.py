"""The device that suites run on: ``pytest --specframe-device NAME``. Nothing heavy is imported here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

NAME = "cpu"
"""Set by :mod:`specframe_testing.pytest_plugin`; read by :func:`specframe_testing.harness.device`."""


@contextlib.contextmanager
def running_on(name: str) -> Iterator[None]:
    """Have suites run on another device inside the block."""
    global NAME
    before, NAME = NAME, name
    try:
        yield
    finally:
        NAME = before
