"""What strategies say of themselves, read without importing them; and the commands that need no more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from specframe.plugins import facts
from specframe.plugins.offers import ROLES, Entry
from specframe.plugins.registry import registry

LIGHT = [
    ["plugins"],
    ["plugins", "list"],
    ["plugins", "show", "exspec"],
    ["plugins", "matrix"],
    ["models"],
    ["models", "list"],
    ["models", "show", "tiny"],
]
"""Commands that answer from names, sources and configurations."""

WRONG = [
    ["run", "--align", "nope"],
    ["run", "--drafter", "nope"],
    ["run", "--schedule", "same-length,windw=3"],
    ["run", "--kv", "dynamic"],
    ["run", "--target", "tinny"],
    ["run", "--target", "./nonexist", "--drafter", "none"],
    ["compare", "--align", "ragged,nope"],
    ["compare", "--kv", "dynamic", "--align", "ragged"],
    ["verify", "--accept", "nope"],
    ["trace", "--draft-length", "nope"],
    ["trace", "--verify", "nope"],
    ["reproduce", "--drafter", "nope"],
]
"""Commands with a name that nothing provides, or with strategies that do not fit each other."""

RUN = """
import json, sys
from specframe.cli import cli
try:
    cli({arguments!r}, prog_name="specframe")
except SystemExit as done:
    code = done.code
print(json.dumps([code, [name for name in ("torch", "transformers") if name in sys.modules]]))
"""


def command(arguments: list[str], folder: Path) -> tuple[str, str]:
    """Run a command in a process of its own; return the last line of its output, and its standard error."""
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(arguments=arguments)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()[-1], done.stderr


@pytest.mark.parametrize("arguments", LIGHT, ids=" ".join)
def test_listing_imports_no_torch(arguments: list[str], tmp_path: Path) -> None:
    """Commands that list and show end with status 0, and torch was not imported."""
    assert command(arguments, tmp_path)[0] == "[0, []]"


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_a_wrong_name_is_told_without_torch(arguments: list[str], tmp_path: Path) -> None:
    """A name that nothing provides, and strategies that do not fit, are one sentence and status 2 before torch is imported."""
    last, told = command(arguments, tmp_path)
    assert last == "[2, []]", told
    assert told.startswith("Error: ")
    assert told.count("\n") == 1


@pytest.mark.parametrize("kind", ROLES)
def test_the_source_says_what_the_class_says(kind: str) -> None:
    """Read from its source, every strategy has the docstring, traits and options that its class has."""
    assert registry().of(kind)
    for entry in registry().of(kind):
        assert isinstance(entry.reference, str)
        assert facts.of_reference(entry.reference) == facts.of_object(entry.factory)


SOURCES = {
    "inherits": ("class Base:\n    'Base.'\n    kv = 'a'\n    def __init__(self, a=1, *, b): pass\n"
                 "class Name(Base):\n    'Mine.'\n    kv = 'b'\n"),
    "constant": "DEFAULT: int = 7\nclass Name:\n    'Mine.'\n    kv: str = 'slab'\n    def __init__(self, a=DEFAULT): pass\n",
    "any option": "class Name:\n    'Mine.'\n    def __init__(self, a, **others): pass\n",
    "property": "class Name:\n    'Mine.'\n    @property\n    def kv(self): return True\n",
    "announced": "class Name:\n    'Mine.'\n    kv: str\n    needs = frozenset()\n",
    "no constructor": "class Name:\n    pass\n",
}  # fmt: skip
"""Classes whose source tells everything."""

UNTOLD = {
    "function": "def Name(a=1): pass\n",
    "decorated": "import attrs\n@attrs.define\nclass Name:\n    a: int = 3\n",
    "computed trait": "class Name:\n    kv = ''.join(['a'])\n",
    "computed default": "class Name:\n    def __init__(self, a=len('four')): pass\n",
    "two bases": "class A: pass\nclass B: pass\nclass Name(A, B): pass\n",
    "base elsewhere": "import types\nclass Name(types.SimpleNamespace): pass\n",
    "branch": "if True:\n    class Name: pass\nelse:\n    class Name:\n        kv = 'a'\n",
    "replaced": "class Name:\n    kv = 'a'\nName = type('Name', (), {'kv': 'b'})\n",
    "tuple": "class Name:\n    scheduler, kv = True, 'slab'\n",
    "dynamic constructor": "class Name:\n    __init__ = lambda self, a=1: None\n",
}
"""Classes and functions whose source does not."""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that writes a module, which can then be imported."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(code: str) -> str:
        (tmp_path / "facts_of_mine.py").write_text(code)
        return "facts_of_mine:Name"

    yield write
    sys.modules.pop("facts_of_mine", None)


@pytest.mark.parametrize("case", SOURCES)
def test_what_a_source_tells(module, case: str) -> None:
    """What is read from a class's source is what the class has, and its module is not imported."""
    reference = module(SOURCES[case])
    read = facts.of_reference(reference)
    assert "facts_of_mine" not in sys.modules
    assert read == facts.of_object(__import__("facts_of_mine").Name)


def test_an_imported_class_is_asked_and_its_source_not_read(module, monkeypatch: pytest.MonkeyPatch) -> None:
    """To read and parse a file for every pipeline would take longer than all else of its construction."""
    entry = Entry("policy", "mine", module(SOURCES["constant"]), "nobody")
    read = entry.facts
    assert "facts_of_mine" not in sys.modules
    assert entry.factory
    monkeypatch.setattr("specframe.plugins.offers.of_reference", lambda reference: pytest.fail("read again"))
    assert entry.facts == read


@pytest.mark.parametrize("case", UNTOLD)
def test_what_a_source_does_not_tell(module, case: str) -> None:
    """Where the source does not tell everything nothing is guessed."""
    assert facts.of_reference(module(UNTOLD[case])) is None


@pytest.mark.parametrize(
    "reference", ["facts_of_mine:Other", "no.such.module:Name", "json", "facts_of_mine:", "math:sqrt"]
)
def test_a_reference_to_nothing(module, reference: str) -> None:
    """A reference to what is not there, or has no source, tells nothing."""
    module("class Name: pass\n")
    assert facts.of_reference(reference) is None
