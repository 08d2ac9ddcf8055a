"""The members that each role's protocol asks for, looked for in an object before it is used."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from specframe_testing import fakes

from specframe import Pipeline
from specframe.contracts.drafts import Budget
from specframe.contracts.roles import Observer
from specframe.errors import OptionError
from specframe.plugins.protocols import METHOD, PROPERTY, PROTOCOLS, fault, members, require_members

MEMBERS = [(kind, name) for kind in PROTOCOLS for name in members(kind)]


def complete(kind: str) -> types.SimpleNamespace:
    """Return an object with all members of a kind, each of its type."""
    plain = {METHOD: len, PROPERTY: None, "bool": True, "int": 3, "str": "slab"}
    made = plain | {"frozenset[str]": frozenset(), "Budget": Budget(3), "torch.device": torch.device("cpu")}
    return types.SimpleNamespace(**{name: made[annotation] for name, annotation in members(kind).items()})


@pytest.mark.wide
@pytest.mark.parametrize(("kind", "name"), MEMBERS)
def test_a_member_that_is_not_there_is_named(kind: str, name: str) -> None:
    """The message names what is checked, every member it has to have, and the one that it lacks."""
    given = complete(kind)
    delattr(given, name)
    with pytest.raises(OptionError) as raised:
        require_members(kind, given, "mine")
    contract = f"(the contract is {PROTOCOLS[kind].__module__}.{PROTOCOLS[kind].__name__})"
    got = f"SimpleNamespace without {name} {contract}" if len(members(kind)) > 1 else "namespace() (SimpleNamespace)"
    assert str(raised.value) == f"mine: expected an object with {', '.join(members(kind))}, got {got}"


@pytest.mark.wide
@pytest.mark.parametrize(("kind", "name"), [one for one in MEMBERS if members(one[0])[one[1]] != PROPERTY])
def test_a_member_of_another_type_is_named(kind: str, name: str) -> None:
    """A method that cannot be called, or an attribute of another type, is named with what it is. Properties may wait."""
    given = complete(kind)
    setattr(given, name, 2.5)
    asked = members(kind)[name]
    assert fault(kind, given) == f"expected {name} of SimpleNamespace to be of type {asked}, got 2.5"


@pytest.mark.wide
def test_a_class_is_not_an_object_of_it() -> None:
    """A strategy's class, given where an object is expected, is named as such."""
    assert str(fault("observer", Observer)).endswith("got the class Observer and not an object of it")


OLD_DRAFTER = type(
    "OldDrafter", (), {"start": lambda self, run: None, "propose": lambda self, batch, draft_length: None}
)
OLD_RULE = type(
    "OldRule",
    (),
    {"lossless": True, "sharpen": False, "invariant": True, "compares": False}
    | dict.fromkeys(("start", "choose", "accept"), lambda *_: None),
)
OLD_POLICY = type("OldPolicy", (), {"maximum": 4, "draft_length": lambda *_: 4, "observe": lambda *_: None})


@pytest.mark.wide
@pytest.mark.parametrize(
    ("options", "lacking", "contract"),
    [
        ({"drafter": OLD_DRAFTER()}, "OldDrafter without needs, observe, offers", "Drafter"),
        ({"accept": OLD_RULE()}, "OldRule without needs, offers", "AcceptanceRule"),
        ({"draft_length": OLD_POLICY()}, "OldPolicy without budget, needs, offers, start", "BudgetPolicy"),
    ],
    ids=["drafter", "rule", "policy"],
)
def test_a_strategy_of_the_older_contract_is_told_the_new_one(
    options: dict[str, Any], lacking: str, contract: str
) -> None:
    """A strategy written against the contracts of version 0.1 ends in one sentence that names today's."""
    with pytest.raises(OptionError) as raised:
        Pipeline(**{"target": fakes.fake_target(), "drafter": None} | options)
    assert str(raised.value).endswith(f", got {lacking} (the contract is specframe.contracts.roles.{contract})")
    assert "\n" not in str(raised.value)
