"""A server at a free port of this machine. What it needs is imported where a test asks for it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from serving import Hold, Running


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[..., Running]]:
    """A function that starts a server, with options of a pipeline, ``key``, ``grace`` and ``limits``; it ends with the module."""
    from serving import Running

    with contextlib.ExitStack() as servers:
        yield lambda **how: servers.enter_context(contextlib.closing(Running(**how)))


@pytest.fixture
def hold(monkeypatch: pytest.MonkeyPatch) -> Hold:
    """A hold of all engines: sequences end only where somebody ends them."""
    from serving import Hold

    return Hold(monkeypatch)
