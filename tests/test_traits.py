"""What is declared of strategies, which is what their classes say; and the commands that need no more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from specframe_testing.conformance import DrafterSuite

from specframe.cli import cli
from specframe.plugins.entries import ROLES
from specframe.plugins.registry import Registry, add_entry, registry
from specframe.plugins.traits import REQUIRED, Traits, signature_of, traits_of

LIGHT = [["--help"], ["plugins", "list"], ["plugins", "matrix"], ["models", "list"], ["models", "show", "tiny"]]
"""Commands that answer from names, declarations and configurations."""

WRONG = [
    ["run", "--align", "nope"],
    ["run", "--kv", "dynamic"],
    ["run", "--target", "tinny"],
    ["run", "--target", "./nonexist", "--drafter", "none"],
    ["compare", "--align", "ragged,nope"],
    ["trace", "--draft-length", "nope"],
]
"""Commands with a name that nothing provides, or with strategies that do not fit each other."""

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


@pytest.mark.wide
def test_listing_imports_no_torch(tmp_path: Path) -> None:
    """Commands that list and show end with status 0, and torch was not imported."""
    for command, (status, _, imported) in run(LIGHT, tmp_path).items():
        assert (status, imported) == (0, []), command


@pytest.mark.wide
def test_a_wrong_name_is_told_without_torch(tmp_path: Path) -> None:
    """A name that nothing provides, and strategies that do not fit, are one sentence and status 2 before torch is imported."""
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
    result = CliRunner().invoke(cli, ["run", *options, "hello"], prog_name="specframe")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: {told}")
    assert result.stderr.count("\n") == 1


def test_everything_is_declared_as_its_class_is() -> None:
    """Every name that comes with specframe is declared, and what is declared is what its class says."""
    assert {entry.kind for entry in registry()} >= set(ROLES)
    for entry in registry():
        assert entry.declared, entry
        assert entry.disagreement() is None


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


SAID: dict[str, Any] = {
    "summary": "Proposes nothing.",
    "needs": {"hidden"},
    "offers": ["own", "chain"],
    "scheduler": "fixed",
}


def registered(factory: Any, **declared: Any) -> Registry:
    """Return what is registered for one drafter."""
    found = Registry()
    add_entry(found, "mine-dist", "drafter", "mine", factory, **declared)
    return found


@pytest.mark.wide
def test_a_class_says_it_itself() -> None:
    """Of a class, and of a reference without a declaration, the traits and options are those of the class."""
    for factory in (Mine, f"{__name__}:Mine"):
        entry = registered(factory).entry("drafter", "mine")
        assert entry.declared is None
        assert entry.traits == Traits("Proposes nothing.", frozenset({"hidden"}), frozenset({"chain", "own"}), "fixed")
        assert entry.signature.options == {"depth": REQUIRED, "width": 2}
        assert entry.signature.documentation.endswith("width: not used.")
        assert not entry.signature.open
    assert traits_of(ByOptions) == Traits("Follows its options.", offers=None)
    heir = type("Heir", (Mine,), {"__doc__": "Mine anew."})
    assert signature_of(heir).documentation == "Mine anew.\n\nOptions:\n    width: not used."
    assert traits_of(max).needs == frozenset()
    assert signature_of(type("Wide", (), {"__init__": lambda self, **any: None})).open


@pytest.mark.wide
@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"summary": "Proposes."}, "summary 'Proposes.', and its class says 'Proposes nothing.'"),
        ({"needs": ()}, "needs none, and its class says 'hidden'"),
        ({"offers": None}, "offers None, and its class says 'chain' 'own'"),
        ({"scheduler": None}, "scheduler None, and its class says 'fixed'"),
    ],
)
def test_a_declaration_that_its_class_does_not_keep(said: dict[str, Any], told: str) -> None:
    """The sentence names the strategy, the trait, and both values."""
    entry = registered(f"{__name__}:Mine", **(SAID | said)).entry("drafter", "mine")
    assert entry.disagreement() == (
        f"drafter 'mine' of mine-dist is registered with {told}: expected the same in both places"
    )
    assert registered(f"{__name__}:Mine", **SAID).entry("drafter", "mine").disagreement() is None


@pytest.mark.wide(but=["a:B-said2-needs: expected a set of words, got 'hidden'"])
@pytest.mark.parametrize(
    ("factory", "said", "told"),
    [
        ("a:B", {"needs": {"hidden"}}, "expected a summary beside what else is declared, got none"),
        ("a:B", {"summary": 5}, "summary: expected a text, got 5"),
        ("a:B", {"summary": "A.", "needs": "hidden"}, "needs: expected a set of words, got 'hidden'"),
        ("a:B", {"summary": "A.", "offers": {5}}, "offers: expected a set of words, got {5} (set)"),
        (Mine, SAID, "expected nothing declared beside an object, which says all of it, got a summary"),
    ],
)
def test_what_cannot_be_declared(factory: Any, said: dict[str, Any], told: str) -> None:
    """A declaration that cannot be is a fault of its distribution, and the name is not registered."""
    found = registered(factory, **said)
    assert found.failures == {"mine-dist": f"drafter 'mine': {told}"}
    assert not found.entries


@pytest.mark.wide
def test_a_suite_compares_the_declaration(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite of a role finds the names of the class under test, and fails with the sentence."""
    found = registered(f"{__name__}:Mine", **(SAID | {"needs": ()}))
    monkeypatch.setattr("specframe_testing.conformance.base.registry", lambda: found)

    class Wrong(DrafterSuite):
        def make(self) -> Any:
            return Mine(1)

    class Named(DrafterSuite):
        def make(self) -> Any:
            return "mine,depth=1"

    for suite in (Wrong(), Named()):
        with pytest.raises(AssertionError, match=r"^drafter 'mine' of mine-dist is registered with needs none, and"):
            suite.test_the_declaration_is_what_the_class_says()
    Wrong.make = lambda self: ByOptions()  # type: ignore[method-assign]
    Wrong().test_the_declaration_is_what_the_class_says()
