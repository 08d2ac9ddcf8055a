"""The marker ``sampled`` and the option ``--every``, which take a part of tests' cases; collections that pass libraries over."""

from __future__ import annotations

import gc
from collections import Counter

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        "--every",
        metavar="N",
        type=int,
        default=1,
        help="of all slow tests' cases run an N-th, those of each test by turns",
    )


class Sampled:
    """Marks the cases of tests that are ``sampled(N)`` as slow, but for each N-th.

    Of two and more parameters those cases are left whose values have the fewest of the others: each N-th would have one value of a
    parameter with N values. Tests of one name in several classes, as those of a suite, begin with another case each, so that
    together they have all. Of a module, ``sampled(N, suites=True)`` is about the tests of its classes alone.
    """

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Mark them before others look for the marker ``slow``."""
        cases: dict[str, list[pytest.Item]] = {}
        for item in items:
            sampled = item.get_closest_marker("sampled")
            test, parameters, _ = item.nodeid.partition("[")
            suite = test.count("::") > 1
            if sampled and parameters and not item.get_closest_marker("slow") and (suite or not sampled.kwargs):
                cases.setdefault(test, []).append(item)
        namesakes: Counter[tuple[str, str]] = Counter()
        for test, own in cases.items():
            sampled = own[0].get_closest_marker("sampled")
            assert sampled is not None
            every = sampled.args[0]
            name = test.partition("::")[0], test.rpartition("::")[2]
            first = namesakes[name] % min(every, len(own))
            namesakes[name] += 1
            by_turns = [item for start in range(every) for item in own[(first + start) % every :: every]]
            for item in {*own} - {*fewest_alike(by_turns, len(own[first::every]))}:
                item.add_marker("slow")


def fewest_alike(items: list[pytest.Item], count: int) -> list[pytest.Item]:
    """Return so many cases of a test: each has the values that those before have least, the first of those where several do."""
    had: Counter[tuple[str, int]] = Counter()
    left, found = [*items], list[pytest.Item]()
    for _ in range(count):
        found.append(min(left, key=lambda item: sum(had[value] for value in values(item))))
        left.remove(found[-1])
        had.update(values(found[-1]))
    return found


def values(item: pytest.Item) -> list[tuple[str, int]]:
    """Return the name and the identity of each value of a case: cases share the values of their test."""
    return [(name, id(value)) for name, value in item.callspec.params.items()]  # type: ignore[attr-defined]


def pytest_configure(config: pytest.Config) -> None:
    """Take part a second time: slow cases are known before they are counted."""
    config.pluginmanager.register(Sampled())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases of slow tests that are not asked for: each test begins with another case than the one before."""
    every: int = config.getoption("--every")
    if every < 1:
        raise pytest.UsageError(f"--every: expected a whole number of at least 1, got {every}")
    place = dict[str, int]()
    kept, left = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        test = item.nodeid.partition("[")[0] if item.get_closest_marker("slow") else None
        (left if test and place.setdefault(test, len(place)) % every else kept).append(item)
        if test:
            place[test] += 1
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


@pytest.fixture(autouse=True, scope="module")
def _frozen() -> None:
    """Leave what there is before a file's tests out of garbage collections, of which each takes a third of a second otherwise."""
    gc.freeze()
