"""The structure of the core: packages of one subject each, whose imports go one way."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import specframe

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "specframe"
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TABLE = GUIDE.partition("## Packages")[2].partition("\n## ")[0]
ROOMS = re.findall(r"^\| `(\w+)(?:\.py|/)` \|", TABLE, re.MULTILINE)
"""The packages from the bottom to the top, as the table of CONTRIBUTING.md has them."""
BUDGETS = re.findall(r"^\| `(\w+(?:\.py)?)/?` \| ([\d,]+) \|", TABLE, re.MULTILINE)
"""Each package's file or folder, and the lines that it may have."""
LAYERS = re.findall(r"^\| `(\w+)` \| .* \| (`.*`) \|$", GUIDE, re.MULTILINE)
"""A package, and some of its modules, from the bottom to the top."""
MOST_ATTRIBUTES = 12
MORE_ATTRIBUTES = {
    "contracts.requests.Request": 13,
    "contracts.round.Batch": 14,
    "contracts.round.Sequence": 15,
    "engine.local_engine.LocalEngine": 22,
    "engine.pool.Pool": 14,
    "model.cached.CachedModel": 16,
    "model.run.Run": 21,
    "model.transformers_model.TransformersModel": 23,
}
"""The classes with more attributes than :data:`MOST_ATTRIBUTES`, and their number, which may only fall."""
TOP = ["__init__", "__main__"]
"""The public names and the command: they import any package, and no package imports them."""


def sources(package: Path = PACKAGE) -> dict[str, str]:
    """Return the source of every module of a package, by its dotted name."""
    paths = {path: path.relative_to(package.parent).with_suffix("").parts for path in sorted(package.rglob("*.py"))}
    return {
        ".".join(parts).removesuffix(".__init__"): path.read_text(encoding="utf-8") for path, parts in paths.items()
    }


def imported(source: str) -> Iterator[tuple[str, str | None]]:
    """Yield (module, name taken from it or None) for every import at run time, those in functions included."""
    tree = ast.parse(source)
    checked = {
        part
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for one in node.body
        for part in ast.walk(one)
    }
    for node in ast.walk(tree):
        if node in checked:
            continue  # an annotation loads nothing
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name their module in full"
            yield from ((node.module or "", alias.name) for alias in node.names)


def arrows(modules: Mapping[str, str], public: Mapping[str, str]) -> dict[str, set[str]]:
    """Return the modules of the package that each of its modules imports.

    A public name is imported from where it is defined. The package itself is loaded before any of its modules, so that
    importing it alone is no arrow.
    """

    def target(where: str, name: str | None) -> str:
        if f"{where}.{name}" in modules:
            return f"{where}.{name}"
        return public.get(name or "", where) if where == "specframe" else where

    return {
        module: {target(*taken) for taken in imported(source)} & modules.keys() - {"specframe", module}
        for module, source in modules.items()
    }


def room(module: str) -> str:
    """Return the package of a module: the first name below ``specframe``."""
    return module.partition(".")[2].partition(".")[0] or "__init__"


def upward(found: Mapping[str, set[str]], order: list[str]) -> list[str]:
    """Return the imports that go to a package above, or to one that has no place, as "module -> module"."""
    place = {name: number for number, name in enumerate(order)}
    return sorted(
        f"{module} -> {other}"
        for module, others in found.items()
        for other in others
        if room(module) != room(other) and place.get(room(other), len(order)) > place.get(room(module), -1)
    )


def circle(found: Mapping[str, set[str]]) -> list[str]:
    """Return the modules of an import circle in their order, or an empty list."""
    try:
        graphlib.TopologicalSorter(found).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


@functools.cache
def core() -> dict[str, set[str]]:
    """Return the imports among the core's modules."""
    return arrows(sources(), specframe._WHERE)


def test_rooms_import_only_rooms_below_them():
    """No module imports a module of a package above its own, in functions as little as at its head."""
    assert upward(core(), ROOMS + TOP) == []


@pytest.mark.parametrize(("name", "most"), BUDGETS)
def test_no_room_has_more_lines_than_the_table_allows(name: str, most: str) -> None:
    """A package that grows says so in the table of CONTRIBUTING.md; docstrings count."""
    place = PACKAGE / name
    paths = [place] if place.is_file() else [*place.rglob("*.py")]
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths) <= int(most.replace(",", ""))


def test_every_room_has_a_budget() -> None:
    """No package is left out."""
    assert [name.removesuffix(".py") for name, _ in BUDGETS] == ROOMS


@pytest.mark.parametrize("name", sorted({name for name, _ in LAYERS}))
def test_modules_of_a_room_import_only_modules_below_them(name: str) -> None:
    """In a package with layers, each module has its place in the table, and imports only modules that come before it."""
    order = [
        f"specframe.{name}.{module}" for own, row in LAYERS if own == name for module in re.findall(r"`(.+?)`", row)
    ]
    found, place = core(), {module: number for number, module in enumerate(order)}
    modules = [one for one in found if one.startswith(f"specframe.{name}.")]
    assert sorted(order) == [one for one in modules if not any(other.startswith(f"{one}.") for other in modules)]
    assert [f"{one} -> {other}" for one in order for other in found[one] if place.get(other, -1) > place[one]] == []


def attributes(node: ast.ClassDef) -> set[str]:
    """Return the attributes of a class: those that are annotated in it, and those that its start assigns to self."""
    annotated = {
        one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }
    starts = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name.endswith("init__")]
    return annotated | {
        part.attr
        for one in starts
        for part in ast.walk(one)
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store) and ast.unparse(part.value) == "self"
    }


def test_classes_have_few_attributes() -> None:
    """A class of contracts, engine and model has twelve attributes at most, or exactly as many as the table says."""
    found = {
        f"{module.removeprefix('specframe.')}.{node.name}": len(attributes(node))
        for module, source in sources().items()
        if room(module) in ("contracts", "engine", "model")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
    }
    assert {name: count for name, count in found.items() if count > MOST_ATTRIBUTES} == MORE_ATTRIBUTES


PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/specframe_*/__init__.py"))


@pytest.mark.wide
@pytest.mark.parametrize("package", [PACKAGE, *PLUGINS], ids=lambda package: package.name)
def test_no_import_circle(package):
    """No module imports itself over others, within a package or across packages, in the core as in its plugins."""
    assert circle(arrows(sources(package), specframe._WHERE)) == []


@pytest.mark.wide
def test_every_room_is_described():
    """Each file and folder of the core has its place in the table, and each row of the table is there."""
    present = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert sorted(ROOMS + TOP) == sorted(present)
