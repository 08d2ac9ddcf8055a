"""A pytest plugin that records, for each test, its processor time and which planted faults' lines it reaches.

``python tests/quick.py measure`` runs it in the processes of a test run: ``-p reach``, with a folder in ``SPECFRAME_REACH``.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterator
from pathlib import Path

import coverage
import mutation
import pytest

FOLDER = "SPECFRAME_REACH"
"""The environment variable with the folder in which each process leaves a file."""


def lines(mutant: mutation.Mutant, root: Path) -> range | None:
    """Return the lines of which one runs wherever the fault does, or None if that is at the import of its module."""
    source = (root / mutant.file).read_text(encoding="utf-8")
    if not mutant.file.endswith(".py"):
        return None
    first = source[: source.index(mutant.find)].count("\n") + 1
    old, new = mutant.find.splitlines(), mutant.replace.splitlines()
    same = next((n for n, (a, b) in enumerate(zip(old, new)) if a != b), min(len(old), len(new)))
    changed = first + min(same, len(old) - 1)
    place: ast.AST = ast.parse(source)
    function: ast.FunctionDef | None = None
    while True:
        inner = [
            child
            for child in ast.walk(place)
            if isinstance(child, ast.stmt) and child is not place and begun(child) <= changed <= (child.end_lineno or 0)
        ]
        if not inner:
            break
        place = min(inner, key=lambda child: (begun(child), -(child.end_lineno or 0)))
        if isinstance(place, ast.FunctionDef):
            if changed < place.body[0].lineno:
                return range(place.body[0].lineno, (place.end_lineno or 0) + 1)
            function = place
    if function is None:
        return None
    body = getattr(place, "body", None)
    last = body[0].lineno - 1 if body else place.end_lineno
    return range(place.lineno, max(last, changed) + 1)  # type: ignore[attr-defined]


def begun(statement: ast.stmt) -> int:
    """Return a statement's first line, its decorators among them."""
    return min([statement.lineno, *(one.lineno for one in getattr(statement, "decorator_list", []))])


class Reach:
    """Records one process's tests."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder
        self.mutants = mutation.read(root / "tests" / "mutants")
        self.seconds = dict[str, float]()
        self.coverage = coverage.Coverage(
            data_file=None, include=[str(root / one.file) for one in self.mutants], config_file=False, messages=False
        )
        self.coverage.start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Attribute lines and processor time, that of ended child processes too, to the test."""
        self.coverage.switch_context(item.nodeid)
        before = sum(os.times()[:4])
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = sum(os.times()[:4]) - before
            self.coverage.switch_context("")

    def pytest_unconfigure(self) -> None:
        """Write the process's file."""
        self.coverage.stop()
        data = self.coverage.get_data()
        by_file = {file: data.contexts_by_lineno(file) for file in data.measured_files()}
        reached = dict[str, list[str] | None]()
        for mutant in self.mutants:
            span = lines(mutant, self.root)
            found = by_file.get(str(self.root / mutant.file), {})
            reached[mutant.name] = (
                None if span is None else sorted({test for n in span for test in found.get(n, []) if test})
            )
        record = {"seconds": self.seconds, "reached": reached}
        (self.folder / f"reach-{os.getpid()}.json").write_text(json.dumps(record), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Record in the processes that run tests."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Reach(config.rootpath, Path(os.environ[FOLDER])))
