"""The package that ``specframe plugins new`` writes: a strategy that works, its hook and its tests."""

from __future__ import annotations

import importlib.util
import keyword
import re
import string
import sys
from pathlib import Path

from specframe.errors import PluginError, UnknownNameError, sentence
from specframe.plugins.registry import registry
from specframe.plugins.templates import TEMPLATES, Template

LONGEST = 64
"""Characters of a name: it becomes that of a folder, a module and a class."""

PYPROJECT = """\
[build-system]
requires = ["setuptools>=64"]
build-backend = "setuptools.build_meta"

[project]
name = "$name"
version = "0.1.0"
description = "$a_role for specframe"
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["specframe"]

[project.optional-dependencies]
test = ["pytest>=8.2"]

[project.entry-points.specframe]
$name = "$module"

[tool.setuptools.packages.find]
where = ["src"]
"""

README = """\
# $name

$a_role for specframe: it $does.

    pip install -e .
    pytest
    specframe run $option $name$with_options

`$part.py` in `src/$module` is the $role, `__init__.py` registers it, `tests` holds it to what every $role keeps.
Other hooks are in `specframe.plugins.hookspecs`, the roles they serve in `specframe.contracts`.
"""

INIT = '''\
"""The $role ``$name``, registered with specframe."""

from specframe import hookimpl
from specframe.plugins.hookspecs import Register


@hookimpl
def $hook(register: Register) -> None:
    """Offer the $role; its module, and torch with it, is imported when it is first used."""
    register("$name", "$module.$part:$title")
'''

TESTS = '''\
"""The $role, held to what every $role keeps."""

from $module.$part import $title
from specframe.testing.conformance import $suite


class Test$title($suite):
    """The conformance suite; its tests are inherited."""

    def make(self):
        """Return a new $role."""
        return $title()
$promise'''


def files(name: str, part: str) -> dict[str, str]:
    """Return the files of a new plugin package, by path inside its folder; ``part`` is one of :data:`TEMPLATES`."""
    template, module = TEMPLATES[part], name.replace("-", "_")
    words = words_of(template) | {
        "name": name,
        "module": module,
        "title": module.title().replace("_", ""),
        "part": part,
    }
    texts = {
        "pyproject.toml": PYPROJECT,
        "README.md": README,
        f"src/{module}/__init__.py": INIT,
        f"src/{module}/{part}.py": template.code,
        f"tests/test_{part}.py": TESTS,
    }
    return {path: string.Template(text).substitute(words) for path, text in texts.items()}


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
