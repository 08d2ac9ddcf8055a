"""The part of the slow tests that a run takes, and the lowest versions that are tested."""

from __future__ import annotations

from pathlib import Path

import bounds
import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]

JUDGED = """
import pytest

class Suite:
    @pytest.mark.parametrize("case", range(3))
    def test_case(self, case): pass

    def test_alone(self): pass

@pytest.mark.wide(but=["test_case[1]"])
class TestA(Suite):
    def test_new(self): pass

@pytest.mark.wide
class TestB(Suite):
    @pytest.mark.wide(but=["0"])
    @pytest.mark.quick("2")
    @pytest.mark.parametrize("case", range(3))
    def test_own(self, case): pass

@pytest.mark.quick
@pytest.mark.wide
def test_kept(): pass

@pytest.mark.wide
def test_judged(): pass

@pytest.mark.slow
def test_slow(): pass

def test_new(): pass
"""
"""A file of tests as tests/quick.py writes its markers."""


def test_the_quick_set_is_what_is_new_kept_or_chosen(pytester: pytest.Pytester) -> None:
    """A marker of a class is about inherited tests alone; a test without a marker is in the quick set."""
    pytester.makeconftest((ROOT / "conftest.py").read_text(encoding="utf-8"))
    pytester.makepyfile(JUDGED)
    result = pytester.runpytest_inprocess("-m", "not slow", "--collect-only", "-q", "-p", "no:xdist")
    ran = [line.partition("::")[2] for line in result.outlines if "::" in line]
    assert ran == [
        *("TestA::test_case[1]", "TestA::test_new", "TestB::test_own[0]", "TestB::test_own[2]"),
        *("test_kept", "test_new"),
    ]
    result = pytester.runpytest_inprocess("-m", "not slow", "--as-if-quick", "--collect-only", "-q", "-p", "no:xdist")
    assert len([line for line in result.outlines if "::" in line]) == 15


@pytest.mark.wide
def test_every_dependency_has_a_lowest_version() -> None:
    """What is declared can be installed at its lowest version, and the highest of several bounds counts."""
    lowest = bounds.lowest(bounds.declared())
    assert {"torch", "transformers", "pytest", "fastapi"} <= lowest.keys()
    assert bounds.lowest(
        iter([(Path("a"), "torch>=2.9"), (Path("b"), "torch>=2.11,<3"), (Path("c"), "specframe")])
    ) == {"torch": "2.11"}
    with pytest.raises(ValueError, match="expected a lowest version of torch"):
        bounds.lowest(iter([(Path("a"), "torch")]))
