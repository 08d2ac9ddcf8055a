"""What the classes of strategies say of themselves; and the commands that need no torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import refusal

from specframe.plugins.entries import Entry
from specframe.plugins.registry import registry
from specframe.plugins.sources import said
from specframe.plugins.traits import REQUIRED, traits_of

LIGHT = [["--help"], ["run", "--help"], ["plugins", "list"], ["models", "list"], ["models", "show", "tiny"]]
"""Commands that answer from names and configurations."""

WRONG = [
    ["run", "--align", "nope"],
    ["run", "--target", "tinny"],
    ["run", "--target", "./nonexist", "--drafter", "none"],
    ["compare", "--align", "ragged,nope"],
    ["trace", "--draft-length", "nope"],
]
"""Commands with a name that nothing provides."""

RUN = """
import contextlib, io, json, sys
from specframe.cli import cli
found = []
for arguments in {commands!r}:
    told = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(told):
        try:
            cli(arguments, prog_name="specframe")
        except SystemExit as done:
            code = done.code
    found.append([code, told.getvalue(), [name for name in ("torch", "transformers") if name in sys.modules]])
print(json.dumps(found))
"""


def run(commands: list[list[str]], folder: Path) -> dict[str, tuple[int, str, list[str]]]:
    """Run commands in one process that is not this one; return of each its status, its standard error and the imported modules.

    What one of them imports stays imported for those after it: the first with a module is the one to look at.
    """
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(commands=commands)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return {" ".join(one): tuple(seen) for one, seen in zip(commands, json.loads(done.stdout), strict=True)}


def test_listing_imports_no_torch(tmp_path: Path) -> None:
    """Commands that list and show end with status 0, and torch was not imported."""
    for command, (status, _, imported) in run(LIGHT, tmp_path).items():
        assert (status, imported) == (0, []), command


@pytest.mark.wide
def test_a_wrong_name_is_told_without_torch(tmp_path: Path) -> None:
    """A name that nothing provides is one sentence and status 2 before torch is imported."""
    for command, (status, told, imported) in run(WRONG, tmp_path).items():
        assert (status, imported) == (2, []), f"{command}: {told}"
        assert told.startswith("Error: "), command
        assert told.count("\n") == 1, command


@pytest.mark.wide
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--schedule", "same-length,windw=3"], "scheduler 'same-length' has no option 'windw'"),
        (["--drafter", "eagle"], "drafter 'eagle': expected 'eagle,checkpoint=...', got no checkpoint"),
    ],
    ids=["unknown", "missing"],
)
def test_wrong_options_are_told_before_a_model_is_loaded(
    options: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A strategy's options are those of its class: they are compared before any model is looked at."""
    monkeypatch.setattr("specframe.models.loading.load_model", lambda *given, **more: pytest.fail("loaded"))
    assert refusal("run", *options, "hello").startswith(told)


class Mine:
    """Proposes nothing.

    Options:
        width: not used.
    """

    needs = frozenset({"hidden"})
    offers = frozenset({"chain", "own"})
    scheduler = "fixed"

    def __init__(self, depth: int, width: int = 2) -> None: ...


class ByOptions:
    """Follows its options."""

    needs = frozenset[str]()

    @property
    def offers(self) -> frozenset[str]:
        """Its words."""
        return frozenset()


def test_a_class_says_it_itself() -> None:
    """Of a class, and of a reference to one, the traits and options are those of the class."""
    for factory in (Mine, f"{__name__}:Mine"):
        entry = Entry("drafter", "mine", factory, "mine-dist")
        known = entry.traits
        assert (known.summary, known.needs, known.offers) == ("Proposes nothing.", {"hidden"}, {"chain", "own"})
        assert (known.scheduler, known.kv) == ("fixed", None)
        assert known.options == {"depth": REQUIRED, "width": 2}
        assert known.documentation.endswith("width: not used.")
        assert not known.open
    by_options = traits_of(ByOptions)
    assert (by_options.summary, by_options.needs, by_options.offers) == ("Follows its options.", frozenset(), None)
    heir = type("Heir", (Mine,), {"__doc__": "Mine anew."})
    assert traits_of(heir).documentation == "Mine anew.\n\nOptions:\n    width: not used."
    bare = type("Bare", (Mine,), {"__doc__": "Takes none.", "__init__": lambda self: None})
    assert traits_of(bare).documentation == "Takes none."
    assert traits_of(max).needs == frozenset()
    assert traits_of(type("Wide", (), {"__init__": lambda self, **any: None})).open


@pytest.mark.wide
def test_a_source_says_what_its_class_says() -> None:
    """Summary and capabilities that are read from the source of each registered class are those of the class."""
    for entry in registry():
        if isinstance(entry.reference, str):
            traits = entry.traits
            assert said(entry.reference) == (traits.summary, traits.offers), entry


SOURCE = '''
class Base:
    """A base."""

    offers = frozenset({"a", "b"})


class Heir(Base):
    """Has what its base has."""


class ByOptions(Base):
    """Says so by a property."""

    @property
    def offers(self):
        return {"a"}


class Computed(Base):
    """Adds to its base's."""

    offers = Base.offers | {"c"}


class Silent(Base):
    pass
'''


def test_a_source_says_no_more_than_it_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a base says holds for a class; what options decide is open; what is computed is left to the import."""
    (tmp_path / "said_of_itself.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    told = {name: said(f"said_of_itself:{name}") for name in ("Heir", "ByOptions", "Computed", "Silent", "Nobody")}
    assert told["Heir"] == ("Has what its base has.", {"a", "b"})
    assert told["ByOptions"] == ("Says so by a property.", None)
    assert told["Computed"] is told["Silent"] is told["Nobody"] is None
    computed = Entry("drafter", "computed", "said_of_itself:Computed", "mine").said
    assert computed == ("Adds to its base's.", {"a", "b", "c"})
