"""The part of the slow tests that a run takes, and the lowest versions that are tested."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import bounds
import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]

SUITE = """
import pytest

@pytest.mark.parametrize("case", range(7))
@pytest.mark.slow
def test_wide(case): pass

@pytest.mark.slow
def test_other(): pass

@pytest.mark.parametrize("case", range(3))
def test_fast(case): pass

@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", [pytest.param(0, marks=pytest.mark.slow), *range(1, 6)])
def test_part(case): pass
"""


@pytest.mark.parametrize(
    ("every", "slow", "parts"),
    [
        ("1", [*(f"test_wide[{case}]" for case in range(7)), "test_other"], range(6)),
        ("3", ["test_wide[0]", "test_wide[3]", "test_wide[6]"], [1, 2, 3, 5]),
        ("9", ["test_wide[0]"], [1, 3, 5]),
    ],
)
def test_every_nth_case_of_slow_tests_runs(
    every: str, slow: list[str], parts: Sequence[int], pytester: pytest.Pytester
) -> None:
    """Of each slow test's cases each N-th runs, and the second test begins with its N-th, the third with the one before."""
    pytester.makeconftest((ROOT / "conftest.py").read_text(encoding="utf-8"))
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_inprocess("--every", every, "--collect-only", "-q", "-p", "no:xdist")
    ran = [line.partition("::")[2] for line in result.outlines if "::" in line]
    assert ran == [
        *slow,
        *(f"test_fast[{case}]" for case in range(3)),
        *(f"test_part[{case}]" for case in parts),
    ]


def test_a_sampled_test_s_cases_are_slow_but_for_some(pytester: pytest.Pytester) -> None:
    """Of those that are not slow anyway each n-th is fast, the first included."""
    pytester.makeconftest((ROOT / "conftest.py").read_text(encoding="utf-8"))
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_inprocess("-m", "not slow", "--collect-only", "-q", "-p", "no:xdist")
    ran = [line.partition("::")[2] for line in result.outlines if "::test_part" in line]
    assert ran == [f"test_part[{case}]" for case in (1, 3, 5)]


PRODUCT = """
import pytest

@pytest.mark.sampled(2)
@pytest.mark.parametrize("fast", "ab")
@pytest.mark.parametrize("slow", range(4))
def test_product(slow, fast): pass

@pytest.mark.sampled(2)
@pytest.mark.parametrize(("one", "other"), [(0, 0), (1, 1), (2, 2), (3, 3)])
def test_together(one, other): pass
"""


def test_each_value_of_a_product_is_fast_somewhere(pytester: pytest.Pytester) -> None:
    """Half of the cases are left, and not those with one value of a parameter that has two; values given together count once."""
    pytester.makeconftest((ROOT / "conftest.py").read_text(encoding="utf-8"))
    pytester.makepyfile(PRODUCT)
    result = pytester.runpytest_inprocess("-m", "not slow", "--collect-only", "-q", "-p", "no:xdist")
    ran = [line.partition("::")[2] for line in result.outlines if "::" in line]
    assert ran == [
        *(f"test_product[{case}]" for case in ("0-a", "1-b", "2-a", "3-b")),
        *(f"test_together[{case}]" for case in ("0-0", "2-2")),
    ]


SUITES = """
import pytest

pytestmark = pytest.mark.sampled(3, suites=True)

class Suite:
    @pytest.mark.parametrize("case", range(5))
    def test_case(self, case): pass

    @pytest.mark.parametrize("case", range(2))
    def test_two(self, case): pass

    def test_alone(self): pass

class TestA(Suite): pass
class TestB(Suite): pass
class TestC(Suite): pass

@pytest.mark.parametrize("case", range(4))
def test_own(case): pass
"""


def test_classes_of_a_sampled_suite_have_other_cases_each(pytester: pytest.Pytester) -> None:
    """Together they have all. Each has one at least, what has no cases is fast, and so are the module's own tests."""
    pytester.makeconftest((ROOT / "conftest.py").read_text(encoding="utf-8"))
    pytester.makepyfile(SUITES)
    result = pytester.runpytest_inprocess("-m", "not slow", "--collect-only", "-q", "-p", "no:xdist")
    ran = [line.partition("::")[2] for line in result.outlines if "::" in line]
    assert ran == [
        *("TestA::test_case[0]", "TestA::test_case[3]", "TestA::test_two[0]", "TestA::test_alone"),
        *("TestB::test_case[1]", "TestB::test_case[4]", "TestB::test_two[1]", "TestB::test_alone"),
        *("TestC::test_case[2]", "TestC::test_two[0]", "TestC::test_alone"),
        *(f"test_own[{case}]" for case in range(4)),
    ]


def test_no_case_at_all_is_refused(pytester: pytest.Pytester) -> None:
    """A run of no case is a mistake, and is told in a sentence."""
    pytester.makeconftest((ROOT / "conftest.py").read_text(encoding="utf-8"))
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_inprocess("--every", "0", "-q", "-p", "no:xdist")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--every: expected a whole number of at least 1, got 0" in str(result.stderr)


def test_every_dependency_has_a_lowest_version() -> None:
    """What is declared can be installed at its lowest version, and the highest of several bounds counts."""
    lowest = bounds.lowest(bounds.declared())
    assert {"torch", "transformers", "pytest", "fastapi"} <= lowest.keys()
    assert bounds.lowest(
        iter([(Path("a"), "torch>=2.9"), (Path("b"), "torch>=2.11,<3"), (Path("c"), "specframe")])
    ) == {"torch": "2.11"}
    with pytest.raises(ValueError, match="expected a lowest version of torch"):
        bounds.lowest(iter([(Path("a"), "torch")]))
