"""The members that each role's protocol asks for, looked for in an object before it is used."""

from __future__ import annotations

import types

import pytest

from specframe.errors import OptionError
from specframe.observe.watch import Watcher
from specframe.plugins.members import PROTOCOLS, fault, members, require_members
from specframe.plugins.registry import OTHERS, ROLES, registry

MEMBERS = [(kind, name) for kind in PROTOCOLS for name in members(kind)]


def complete(kind: str) -> types.SimpleNamespace:
    """Return an object with all members of a kind, each of its type."""
    made = {"method": len, "bool": True, "int": 3, "str": "slab", "frozenset[str]": frozenset()}
    return types.SimpleNamespace(**{name: made[annotation] for name, annotation in members(kind).items()})


def test_every_kind_of_object_has_a_protocol() -> None:
    """The roles and observers are those that plugins register, commands aside."""
    assert set(PROTOCOLS) == {*ROLES, *OTHERS} - {"command"}


def test_members_are_those_of_the_protocol() -> None:
    """Methods and attributes are listed, those of the protocols that one builds on too."""
    assert members("drafter") == {"propose": "method", "start": "method"}
    assert members("draft-length policy") == {"draft_length": "method", "maximum": "int", "observe": "method"}
    assert members("alignment")["needs"] == "frozenset[str]"


@pytest.mark.parametrize("kind", PROTOCOLS)
def test_an_object_with_all_members_is_taken(kind: str) -> None:
    """Nothing is said of an object that has everything, nor of what the built-in plugins register."""
    assert fault(kind, complete(kind)) is None
    assert fault("observer", Watcher()) is None
    assert [fault(kind, registry().make(kind, name)) for name in registry().names(kind)] == [None] * len(
        registry().names(kind)
    )


@pytest.mark.parametrize(("kind", "name"), MEMBERS)
def test_a_member_that_is_not_there_is_named(kind: str, name: str) -> None:
    """The message names what is checked, every member it has to have, and the one that it lacks."""
    given = complete(kind)
    delattr(given, name)
    with pytest.raises(OptionError) as raised:
        require_members(kind, given, "mine")
    got = f"SimpleNamespace without {name}" if len(members(kind)) > 1 else "namespace() (SimpleNamespace)"
    assert str(raised.value) == f"mine: expected an object with {', '.join(members(kind))}, got {got}"


@pytest.mark.parametrize(("kind", "name"), MEMBERS)
def test_a_member_of_another_type_is_named(kind: str, name: str) -> None:
    """A method that cannot be called, or an attribute of another type, is named with what it is."""
    given = complete(kind)
    setattr(given, name, 2.5)
    asked = members(kind)[name]
    assert fault(kind, given) == f"expected {name} of SimpleNamespace to be of type {asked}, got 2.5"


@pytest.mark.parametrize("kind", PROTOCOLS)
@pytest.mark.parametrize("given", [None, 5, [], {"a": 1}], ids=str)
def test_what_is_no_strategy_at_all_is_shown(kind: str, given: object) -> None:
    """A value that has none of the members is shown, not taken apart."""
    assert fault(kind, given) == f"expected an object with {', '.join(members(kind))}, got {given!r}"


def test_a_class_is_not_an_object_of_it() -> None:
    """A strategy's class, given where an object is expected, is named as such."""
    assert str(fault("observer", Watcher)).endswith("got the class Watcher and not an object of it")
