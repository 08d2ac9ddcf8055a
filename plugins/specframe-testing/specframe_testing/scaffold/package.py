"""The package that ``specframe plugins new`` writes: a strategy that works, its hook and its tests."""

from __future__ import annotations

import importlib.util
import keyword
import re
import string
import sys
from pathlib import Path

from specframe.errors import PluginError, UnknownNameError, sentence
from specframe.plugins.registry import parse_specification, registry
from specframe.plugins.versions import bounds
from specframe_testing.scaffold.templates import TEMPLATES, Template

LONGEST = 64
"""Characters of a name: it becomes that of a folder, a module and a class."""


def files(name: str, part: str) -> dict[str, str]:
    """Return the files of a new plugin package, by path inside its folder; ``part`` is one of :data:`TEMPLATES`."""
    template, module = TEMPLATES[part], name.replace("-", "_")
    stores = storage() if part == "alignment" else {}
    words = (
        words_of(template)
        | stores
        | {
            "name": name,
            "module": module,
            "title": module.title().replace("_", ""),
            "part": part,
            "versions": bounds(),
        }
    )
    held = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        f"src/{module}/__init__.py": "__init__.py",
        f"src/{module}/{part}.py": f"{part}.py",
        f"tests/test_{part}.py": "tests.py",
    }
    return {path: string.Template(skeleton(file)).substitute(words) for path, file in held.items()}


def skeleton(file: str) -> str:
    """Return the text of a file in ``skeleton/``, with places for words such as ``$title``."""
    return (Path(__file__).parent / "skeleton" / f"{file}.txt").read_text(encoding="utf-8")


def storage() -> dict[str, str]:
    """Return the scheduler and the KV backend that a new alignment asks for: those of the default alignment."""
    name, _ = parse_specification(registry().default("alignment"))
    traits = registry().entry("alignment", name).traits
    return {"scheduler": str(traits.scheduler), "kv": str(traits.kv)}


def words_of(template: Template) -> dict[str, str]:
    """Return the values for a role's template."""
    article = "An" if template.role[0] in "aeiou" else "A"
    return {
        "role": template.role,
        "a_role": f"{article} {template.role}",
        "hook": template.hook,
        "option": template.option,
        "suite": template.suite,
        "does": template.does,
        "with_options": f",{template.example}" if template.example else "",
        "promise": template.promise,
    }


def write(name: str, part: str = "drafter", parent: Path = Path()) -> Path:
    """Write the package of a role, one of :data:`TEMPLATES`, into a new folder ``name`` and return the folder.

    Raises:
        UnknownNameError: there is no such role.
        PluginError: the name cannot be a package's, is taken, or the folder exists or cannot be written.
    """
    if part not in TEMPLATES:
        raise UnknownNameError("role", part, TEMPLATES)
    check_spelling(name)
    folder = parent / name
    try:
        if folder.exists():
            raise PluginError(f"{str(folder)!r} exists already: expected the name of a new folder")
        check_name(name, TEMPLATES[part].role)
        folder.mkdir()
        for path, text in files(name, part).items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PluginError(f"{str(folder)!r} cannot be written: {sentence(error)}") from error
    return folder


def check_spelling(name: str) -> None:
    """Raise :class:`PluginError` unless a name is spelt as a new package's is."""
    if len(name) > LONGEST:
        raise PluginError(f"plugin name {name[:16]!r}...: expected at most {LONGEST} characters, got {len(name)}")
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise PluginError(f"plugin name {name!r}: expected lower-case letters and digits, in words joined by '-'")


def check_name(name: str, role: str) -> None:
    """Raise :class:`PluginError` unless a new package, module and strategy can have this name."""
    module = name.replace("-", "_")
    if keyword.iskeyword(module) or module in sys.stdlib_module_names or importlib.util.find_spec(module):
        raise PluginError(f"plugin name {name!r}: expected one that hides no other module, got that of {module!r}")
    known = registry()
    if name in known.names(role):
        raise PluginError(f"plugin name {name!r}: expected a new one, got that of the {role} already installed")
    if role == "drafter" and name in known.models:
        raise PluginError(f"plugin name {name!r}: expected a new one, got that of a model already installed")
