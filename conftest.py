"""The quick set of tests, a part of the wide matrix, and garbage collections that pass libraries over."""

from __future__ import annotations

import gc
import json
import re
import time
from pathlib import Path

import pytest

TRIED = list[tuple[object, list[object]]]()
"""What models that this file has tried are made of, and what was found."""
gc.disable()  # what is imported and collected stays: to look for garbage among it takes over a second

PATCHES = pytest.StashKey[bool]()
"""Whether the test that runs may patch something."""
BEGUN = pytest.StashKey[float]()
"""When the run began, in seconds since the epoch."""


def pytest_configure(config: pytest.Config) -> None:
    """Note when the run begins."""
    config.stash[BEGUN] = time.time()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    parser.addoption(
        "--every",
        metavar="N",
        type=int,
        default=1,
        help="of all slow tests' cases run an N-th, those of each test by turns",
    )
    parser.addoption(
        "--as-if-quick", action="store_true", help="run tests marked wide as if they were in the quick set"
    )
    parser.addoption("--list-quick", metavar="FILE", help="write which tests are in the quick set, for tests/quick.py")


def in_quick_set(item: pytest.Item) -> bool:
    """Return whether a test is in the quick set: ``make test`` runs it. tests/quick.py writes the markers ``wide``."""
    return kept(item) or all(
        name_in_marker(item, node) in marker.kwargs.get("but", ())
        for node, marker in item.iter_markers_with_node("wide")
        if node is item or item.originalname not in vars(item.cls)  # type: ignore[attr-defined]
    )


def kept(item: pytest.Item) -> bool:
    """Return whether the marker ``quick`` keeps a test, or this case of it, in the quick set."""
    return any(not one.args or name_in_marker(item, item) in one.args for one in item.iter_markers("quick"))


def name_in_marker(item: pytest.Item, node: object) -> str:
    """Return the name of a test in a marker of its function, which is its case, or in one of its class."""
    case = item.callspec.id if hasattr(item, "callspec") else ""
    return case if node is item else item.name


def quick_alone(config: pytest.Config) -> bool:
    """Return whether a run takes the quick set alone, as ``make test`` does."""
    return config.getoption("markexpr") == "not slow" and not config.getoption("--as-if-quick")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Pass over files without a quick test: to import all of them takes longer than many tests."""
    if not quick_alone(config) or not collection_path.match("test_*.py"):
        return None
    text = collection_path.read_text(encoding="utf-8")
    tests = len(re.findall(r"^ *(?:def|class) test_", text, re.MULTILINE | re.IGNORECASE))
    judged = len(re.findall(r"^ *@pytest\.mark\.(?:wide|slow)$", text, re.MULTILINE))
    return True if tests == judged else None


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, obj: object) -> list[pytest.Item] | None:
    """Make no cases of a function of which none is in the quick set."""
    marks = {mark.name: mark for mark in getattr(obj, "pytestmark", []) if callable(obj) and not isinstance(obj, type)}
    left = "wide" in marks and "but" not in marks["wide"].kwargs and "quick" not in marks
    return [] if left and quick_alone(collector.config) else None


def pytest_unconfigure(config: pytest.Config) -> None:
    """End a run of the quick set with how much that was, and where the rest is."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter and quick_alone(config) and config.args_source is config.ArgsSource.TESTPATHS:
        count = sum(len(reporter.stats.get(word, ())) for word in ("passed", "failed", "error"))
        seconds = round(time.time() - config.stash[BEGUN])
        reporter.write_line(f"{count:,} tests in {seconds} s; `make wide` has the rest.")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what is not in the quick set as slow."""
    if not item.config.getoption("--as-if-quick") and not in_quick_set(item):
        item.add_marker("slow")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases of slow tests that are not asked for: each test begins with another case than the one before."""
    if file := config.getoption("--list-quick"):
        lines = [json.dumps([item.nodeid, in_quick_set(item), kept(item)]) for item in items]
        Path(file).write_text("\n".join(lines), encoding="utf-8")
    every: int = config.getoption("--every")
    if every < 1:
        raise pytest.UsageError(f"--every: expected a whole number of at least 1, got {every}")
    place = dict[str, int]()
    kept_items, left = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        test = item.nodeid.partition("[")[0] if item.get_closest_marker("slow") else None
        (left if test and place.setdefault(test, len(place)) % every else kept_items).append(item)
        if test:
            place[test] += 1
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept_items


def pytest_collection_finish() -> None:
    """Collect garbage from here on, past all that is there."""
    gc.freeze()
    gc.enable()
    gc.get_freeze_count = lambda: 1  # some are; to count all of them takes 50 ms, and each memory profiling asks


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note whether a test may patch what a model's self-test depends on."""
    item.config.stash[PATCHES] = "monkeypatch" in item.fixturenames  # type: ignore[attr-defined]


@pytest.fixture(autouse=True, scope="module")
def _frozen() -> None:
    """Leave what there is before a file's tests out of garbage collections, of which each takes a third of a second otherwise."""
    TRIED.clear()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _tried_once(request: pytest.FixtureRequest) -> None:
    """In the quick set, have models that are made of the same modules and settings try themselves once a file.

    In a test that patches something they try themselves for their own.
    """
    from specframe.model import current_numerics
    from specframe.model.model_checks import SelfTests

    def once(name: str) -> None:
        member = vars(SelfTests)[name]
        try_it = member.func

        def tried(self: SelfTests) -> object:
            if request.config.stash[PATCHES]:
                return try_it(self)
            feeder = self._feeder
            made = [name, current_numerics._ACTIVE.get(), type(feeder), *feeder._made_of[1:]]
            found = next((found for one, found in TRIED if one == made), None)
            if found is None:
                TRIED.append((made, found := [try_it(self), self.attending, feeder.dense]))
            value, attending, feeder.dense = found
            self.attending = attending or self.attending
            return value

        member.func = tried

    if quick_alone(request.config):
        once("kv_shapes")
        once("without_padding")
