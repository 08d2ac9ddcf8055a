"""The package that ``specframe plugins new`` writes: a drafter that works, to be replaced by one's own."""

from __future__ import annotations

import importlib.util
import keyword
import re
import string
import sys
from pathlib import Path

from specframe.errors import PluginError
from specframe.plugins import registry

PYPROJECT = """\
[build-system]
requires = ["setuptools>=64"]
build-backend = "setuptools.build_meta"

[project]
name = "$name"
version = "0.1.0"
description = "A drafter for specframe"
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

A drafter for specframe: it proposes the last tokens of each row over again.

    pip install -e .
    pytest
    specframe run --drafter $name
    specframe run --drafter $name,span=8

`drafter.py` in `src/$module` is the drafter, `__init__.py` registers it, `tests` holds it to what every drafter keeps.
Other hooks are in `specframe.hookspecs`, the roles they serve in `specframe.protocols`.
"""

INIT = '''\
"""The drafter ``$name``, registered with specframe."""

from specframe import hookimpl
from specframe.plugins import Register


@hookimpl
def specframe_register_drafters(register: Register) -> None:
    """Offer the drafter; its module, and torch with it, is imported when it is first used."""
    register("$name", "$module.drafter:$title")
'''

DRAFTER = '''\
"""A drafter that expects every row to repeat itself."""

import torch

from specframe.run import Run
from specframe.types import Batch, Draft


class $title:
    """Proposes the last ``span`` tokens of each row, over and over."""

    def __init__(self, span: int = 4) -> None:
        if span < 1:
            raise ValueError(f"span must be at least 1, got {span}")
        self.span = span

    def start(self, run: Run) -> None:
        """Nothing to prepare; a drafter with a model of its own opens its cache here."""

    def propose(self, batch: Batch, draft_length: int) -> Draft:
        """Return ``draft_length`` tokens for every row of the batch."""
        last = batch.last_tokens(self.span)
        places = torch.arange(draft_length, device=last.device) % self.span
        return Draft(last[:, places])
'''

TESTS = '''\
"""The drafter, held to what every drafter keeps."""

from $module.drafter import $title
from specframe.testing.conformance import DrafterSuite


class Test$title(DrafterSuite):
    """The conformance suite; its tests are inherited."""

    def make(self):
        return $title(span=2)
'''


def files(name: str) -> dict[str, str]:
    """Return the files of a new plugin package, by path inside its folder."""
    module = name.replace("-", "_")
    words = {"name": name, "module": module, "title": module.title().replace("_", "")}
    templates = {
        "pyproject.toml": PYPROJECT,
        "README.md": README,
        f"src/{module}/__init__.py": INIT,
        f"src/{module}/drafter.py": DRAFTER,
        "tests/test_drafter.py": TESTS,
    }
    return {path: string.Template(text).substitute(words) for path, text in templates.items()}


def write(name: str, parent: Path = Path()) -> Path:
    """Write the package into a new folder ``name`` and return the folder.

    Raises:
        PluginError: the name cannot be a package's, is taken, or the folder exists or cannot be written.
    """
    folder = parent / name
    try:
        if folder.exists():
            raise PluginError(f"{str(folder)!r} exists already: expected the name of a new folder")
        check_name(name)
        folder.mkdir()
        for path, text in files(name).items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PluginError(f"{str(folder)!r} cannot be written: {error.strerror}") from error
    return folder


def check_name(name: str) -> None:
    """Raise :class:`PluginError` unless a new package, module and drafter can have this name."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise PluginError(f"plugin name {name!r}: expected lower-case letters and digits, in words joined by '-'")
    module = name.replace("-", "_")
    if keyword.iskeyword(module) or module in sys.stdlib_module_names or importlib.util.find_spec(module):
        raise PluginError(f"plugin name {name!r}: expected one that hides no other module, got that of {module!r}")
    known = registry()
    if name in known.names("drafter") or name in known.models:
        raise PluginError(f"plugin name {name!r}: expected a new one, got that of a drafter or model already installed")
