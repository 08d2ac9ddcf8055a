"""Objects around strategies, layouts and stores: they can be copied, and have the members of what they are around."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import pytest
from specframe_std.acceptance.greedy import Greedy
from specframe_testing.instrumentation.instrumented import CallListener, Instrumented

from specframe.engine.guards.guard import GUARDS
from specframe.engine.guards.guard_table import guard
from specframe.value_checks import Wrapper, unwrap_guards

AROUND: dict[str, Any] = {
    "guard": lambda: guard("acceptance rule", Greedy()),
    "layout": lambda: GUARDS["layout"](Greedy(), guard("alignment", threading.Lock())),  # the owner is left out
    "tap": lambda: Instrumented(Greedy(), CallListener(), accept="by_rule"),
}


@pytest.mark.wide(but=["layout-deepcopy"])
@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
@pytest.mark.parametrize("kind", AROUND)
def test_a_copy_is_around_the_same_kind_of_object(kind: str, way: Any) -> None:
    """A copy is a wrapper of its own with the members of what it is around, without the strategy that made that."""
    one = AROUND[kind]()
    made = way(one)
    assert type(made) is type(one)
    assert made is not one
    assert type(unwrap_guards(made)) is Greedy
    assert made.offers == Greedy.offers


def test_an_object_that_says_how_it_is_copied_keeps_its_wrapper() -> None:
    """Methods of the language are those of the wrapper: a copy does not lose it."""

    class Own(Greedy):
        def __deepcopy__(self, memo: Any) -> str:
            return "a copy of its own"

    made = copy.deepcopy(guard("acceptance rule", Own()))
    assert isinstance(made, Wrapper)
    assert unwrap_guards(made) == "a copy of its own"
