"""The first line of a class's docstring and what it offers, read from its source: listings and refusals import no torch."""

from __future__ import annotations

import ast
import functools
import importlib.util
from pathlib import Path
from typing import NamedTuple


class Said(NamedTuple):
    """What a class says of itself."""

    summary: str
    offers: frozenset[str] | None
    """The capabilities, or None if they follow from its options."""


def said(reference: str) -> Said | None:
    """Return what the class or function at ``module:name`` says, or None if the source does not: then it is to be imported."""
    try:
        return _said(*reference.split(":"))
    except Exception:  # a package's own module may raise anything, and a source may be anything
        return None


@functools.cache
def _statements(module: str) -> list[ast.stmt]:
    """Return the statements of a module, which is not imported; the packages that it is in are."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    return ast.parse(Path(spec.origin or "").read_text(encoding="utf-8")).body


def _said(module: str, name: str) -> Said:
    for statement in _statements(module):
        if isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            for alias in statement.names:
                if (alias.asname or alias.name) == name:
                    return _said(statement.module, alias.name)
        if isinstance(statement, ast.FunctionDef | ast.ClassDef) and statement.name == name:
            if not (summary := (ast.get_docstring(statement) or "").partition("\n")[0]):
                raise ValueError(f"{name} has no docstring of its own")
            return Said(summary, _offers(module, statement) if isinstance(statement, ast.ClassDef) else frozenset())
    raise ValueError(f"{module} does not define {name}")


def _offers(module: str, made: ast.ClassDef) -> frozenset[str] | None:
    """Return what a class, or else the first of its bases, says that it offers."""
    for statement in made.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "offers":
            return None
        target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        if isinstance(target, ast.Name) and target.id == "offers" and (value := getattr(statement, "value", None)):
            words = value.args if isinstance(value, ast.Call) else [value]  # frozenset(...), or a set itself
            return frozenset(ast.literal_eval(words[0])) if words else frozenset()
    for base in made.bases:
        if isinstance(base, ast.Name) and base.id not in ("ABC", "Protocol"):
            found = _said(module, base.id).offers
            if found is None or found:
                return found
    return frozenset()
