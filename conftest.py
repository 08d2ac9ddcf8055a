"""The option ``--every N``, with which a run takes a part of the slow tests' cases; collections that pass libraries over."""

from __future__ import annotations

import gc
from collections import Counter

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        "--every", metavar="N", type=int, default=1, help="of each slow test's cases run every N-th, the first included"
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases of slow tests that are not asked for."""
    every: int = config.getoption("--every")
    if every < 1:
        raise pytest.UsageError(f"--every: expected a whole number of at least 1, got {every}")
    before: Counter[str] = Counter()
    kept, left = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        test = item.nodeid.partition("[")[0] if item.get_closest_marker("slow") else None
        (left if test and before[test] % every else kept).append(item)
        before[test or ""] += 1
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


@pytest.fixture(autouse=True, scope="module")
def _frozen() -> None:
    """Leave what there is before a file's tests out of garbage collections, of which each takes a third of a second otherwise."""
    gc.freeze()
