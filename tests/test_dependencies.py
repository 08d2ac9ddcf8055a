"""Each distribution declares the packages that it imports."""

from __future__ import annotations

import ast
import importlib.metadata
import itertools
import re
import sys
import tomllib
from pathlib import Path

import pytest

import specframe
from specframe.plugins.versions import bounds

ROOT = Path(__file__).parents[1]
FILES = [ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/pyproject.toml"))]
LOADED = {path.parent: tomllib.loads(path.read_text(encoding="utf-8")) for path in FILES}
PROJECTS = {loaded["project"]["name"]: (folder, loaded) for folder, loaded in LOADED.items()}
"""The folder and the project file of each distribution, by its name."""

NAMES = {"attr": "attrs", "markdown_it": "markdown-it-py"}
"""Distributions that are called otherwise than the package that is imported."""

EXTRAS = {
    "specframe-std": {"prompts/tables.py": "data", "lm_eval.py": "lm-eval", "attention/decode_kernel.py": "triton"},
    "specframe-testing": {"heads": "heads"},
}
"""The parts of a distribution that need one of its extras."""


def imports(source: str) -> set[str]:
    """Return the distributions that a module imports, those of Python left out; relative imports are its own."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add((node.module or "").partition(".")[0])
    return {NAMES.get(name, name.replace("_", "-")) for name in found - sys.stdlib_module_names}


def requirements(listed: list[str]) -> dict[str, str]:
    """Return the bounds of each requirement by its name; an extra of a distribution belongs to its bounds."""
    split = (re.fullmatch(r"([\w.-]+)(.*)", text) for text in listed)
    return {found[1].replace("_", "-").lower(): found[2] for found in split if found}


def undeclared(name: str, project: dict, folder: Path) -> list[str]:
    """Return "module imports distribution" for every import that the distribution does not declare."""
    declared = requirements(project["project"].get("dependencies", []))
    extras = project["project"].get("optional-dependencies", {})
    wrong = []
    for path in sorted(folder.rglob("*.py")):
        place = path.relative_to(folder).as_posix()
        allowed = {name, *declared}
        for part, extra in EXTRAS.get(name, {}).items():
            if place == part or place.startswith(f"{part}/"):
                allowed |= requirements(extras.get(extra, [])).keys()
        lacking = imports(path.read_text(encoding="utf-8")) - allowed
        wrong += [f"{place} imports {one}" for one in sorted(lacking)]
    return wrong


@pytest.mark.wide
@pytest.mark.parametrize("name", PROJECTS)
def test_imports_are_declared(name):
    """Whatever a distribution's modules import, lazily or not, is among its dependencies, or in the extra of that part."""
    folder, project = PROJECTS[name]
    folder /= name.replace("-", "_")
    assert any(folder.rglob("*.py"))
    assert undeclared(name, project, folder) == []


@pytest.mark.wide
@pytest.mark.parametrize("name", PROJECTS)
def test_distributions_have_one_version_and_fit_each_other(name):
    """Each is of the core's version, and depends on the others as a new plugin is made to."""
    project = PROJECTS[name][1]["project"]
    assert project["version"] == specframe.__version__
    inside = {one: at for one, at in requirements(project["dependencies"]).items() if one.startswith("specframe")}
    assert set(inside.values()) <= {bounds()}


@pytest.mark.wide(but=["specframe-lab"])
@pytest.mark.parametrize("name", PROJECTS)
def test_dependencies_have_a_lower_bound(name):
    """Every dependency but another distribution of this project says the least version that it was tried with."""
    project = PROJECTS[name][1]["project"]
    listed = [*project["dependencies"], *itertools.chain(*project.get("optional-dependencies", {}).values())]
    outside = {one: bounds for one, bounds in requirements(listed).items() if not one.startswith("specframe")}
    assert [one for one, bounds in outside.items() if not re.match(r"(\[[\w,-]+\])?>=", bounds)] == []


@pytest.mark.wide
def test_an_undeclared_import_is_found(tmp_path):
    """An import inside a function, a lazily imported part of an extra, and another name of a distribution are looked at."""
    (tmp_path / "heads").mkdir()
    (tmp_path / "one.py").write_text("def f():\n    import tokenizers.models\nimport os, attr\nfrom . import two\n")
    (tmp_path / "heads" / "two.py").write_text("import specframe_heads, markdown_it\n")
    project = {"project": {"dependencies": ["attrs>=23"], "optional-dependencies": {"heads": ["specframe-heads"]}}}
    assert undeclared("specframe-testing", project, tmp_path) == [
        "heads/two.py imports markdown-it-py",
        "one.py imports tokenizers",
    ]


@pytest.mark.wide
def test_names_of_distributions_are_those_installed():
    """The distributions that are called otherwise than their package provide that package."""
    provided = importlib.metadata.packages_distributions()
    assert {name: provided[name] for name in NAMES} == {name: [distribution] for name, distribution in NAMES.items()}
