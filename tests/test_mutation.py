"""Mutation tests: every entry can be planted, and the runner tells a caught fault from all that only looks like one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import attrs
import mutation
import pytest
from mutation import Copy, Mutant

LEAP = Mutant("leap", "leap years are forgotten", "calendar_.py", "29", "28", ["test_calendar.py"])
SOURCE = "import helper\n\ndef days(leap):\n    while False:\n        pass\n    return 29 if leap else helper.USUAL\n"
TESTS = "import calendar_\n\ndef test_leap():\n    assert calendar_.days(True) == 29\n"


@pytest.mark.quick
def test_every_mutant_can_be_planted() -> None:
    """Each entry's text occurs once in its file, its name is its own, and its test files exist."""
    mutants = mutation.read()
    assert mutants
    assert mutation.problems(mutants) == []


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    """A copy of a project of two modules and one test."""
    root = tmp_path_factory.mktemp("project")
    for name, text in (("calendar_.py", SOURCE), ("test_calendar.py", TESTS), ("helper.py", "USUAL = 28\n")):
        (root / name).write_text(text)
    (root / ".gitignore").write_text("build\n")
    (root / "build").write_text("left out")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # this project's plugin loads torch
        yield Copy(root, tmp_path_factory.mktemp("copy"))


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"file": "missing.py"}, "there is no file missing.py"),
        ({"find": "gone"}, "`find` has to occur once in calendar_.py, and occurs 0 times"),
        ({"find": "e"}, "occurs 12 times"),
        ({"tests": []}, "no tests are named"),
        ({"tests": ["test_gone.py::test_leap"]}, "there is no test file test_gone.py::test_leap"),
    ],
)
def test_an_entry_that_has_rotted_is_told(copy: Copy, changed: dict, problem: str) -> None:
    """An entry that cannot be planted is named in one sentence."""
    (found,) = mutation.problems([attrs.evolve(LEAP, **changed)], copy.folder)
    assert found.startswith("leap: ")
    assert problem in found
