"""``specframe plugins``: list, show, new."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import invoke, refusal

STRATEGIES = '''
"""A plugin of strategies."""
from specframe import hookimpl

class Bold:
    """Takes every draft token as it is; see ``accept``.

    Options:
        nerve: how much of it.
    """
    offers = frozenset()
    def __init__(self, nerve=0.5, *, witness):
        pass

@hookimpl
def specframe_register_acceptance_rules(register):
    register("bold", Bold)

@hookimpl
def specframe_register_drafters(register):
    register("bold", "no.such.module:Drafter")
'''


def rows(text: str) -> list[list[str]]:
    """Return the cells of a plain table: columns are at least two spaces apart."""
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]


@pytest.mark.wide
def test_list_of_what_does_not_work(site: Callable[..., None]) -> None:
    """A plugin that failed to load and a strategy that does not import are listed with the reason."""
    site("bold", STRATEGIES)
    site("sick", "import no_such_module")
    listed = rows(invoke("plugins", "list").stdout)
    assert ["acceptance rule", "bold", "no", "bold", "Takes every draft token as it is; see `accept`."] in listed
    broken = next(row for row in listed if row[:2] == ["drafter", "bold"])
    assert "cannot be used" in broken[-1]
    failed = next(row for row in listed if row[0] == "(failed to load)")
    assert failed[1] == "sick"
    assert "no_such_module" in failed[2]


@pytest.mark.wide
def test_show_everything_of_a_name() -> None:
    """A name that two kinds share is shown twice, each with its options and their defaults."""
    shown = invoke("plugins", "show", "fixed").stdout
    assert "scheduler fixed, of specframe-std (specframe_std.schedulers.fixed_batches:Fixed)" in shown
    assert "options: none" in shown
    assert "draft-length policy fixed" in shown
    assert ["length", "default 5"] in rows(shown)


def test_show_required_options(site: Callable[..., None]) -> None:
    """Options without a default are marked as required, the docstring is there, and what does not import says so."""
    site("bold", STRATEGIES)
    shown = invoke("plugins", "show", "bold").stdout
    assert "options, as in bold,nerve=0.5,witness=..." in shown
    assert ["witness", "required"] in rows(shown)
    assert "nerve: how much of it." in shown
    assert "drafter bold, of bold\n\n    cannot be used: " in shown


@pytest.mark.wide
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("taken", "exists already"),
        ("../elsewhere", "lower-case letters"),
        ("json", "hides no other module"),
        ("model", "already installed"),
        ("b" * 300, "at most 64 characters"),
    ],
)
def test_new_refuses(name: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that exists and a name that cannot be a new package's are refused, and nothing is written."""
    (tmp_path / "taken").mkdir()
    monkeypatch.chdir(tmp_path)
    said = refusal("plugins", "new", name)
    assert reason in said
    assert name[:16] in said
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
    assert not any((tmp_path / "taken").iterdir())
