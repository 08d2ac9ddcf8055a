"""The device that suites run on: ``pytest --specframe-device NAME``. Nothing heavy is imported here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

NAME = "cpu"
"""Set by :mod:`specframe_testing.pytest_plugin`; read by :func:`specframe_testing.harness.device`."""


@contextlib.contextmanager
def running_on(name: str) -> Iterator[None]:
    """Have suites run on another device inside the block.

    A test that asks for the simulated one is skipped where suites run on CUDA: torch has one further kind of device in a process,
    and asks the last one for page-locked memory.
    """
    global NAME
    if name == "sim" and NAME.startswith("cuda"):
        pytest.skip("suites run on CUDA: the simulated device cannot be in the same process")
    before, NAME = NAME, name
    try:
        yield
    finally:
        NAME = before
