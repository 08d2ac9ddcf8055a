"""Models that count positions by themselves: plugins that know them, and what is said where one cannot."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from specframe_testing import fakes, harness, zoo

from specframe.contracts.positions import CountedPositions, PositionInputs
from specframe.errors import ContractError, ModelError
from specframe.model.runner import ModelRunner
from specframe.model.twin import own
from specframe.plugins.registry import add_entry, registry

Find = Callable[[Any], CountedPositions | None]


@contextlib.contextmanager
def known(**kinds: Find) -> Iterator[None]:
    """Have kinds of counted positions registered inside the block, in addition to those that are."""
    held = registry().entries["position kind"]
    for name, find in kinds.items():
        add_entry(registry(), "their-dist", "position kind", name, type("Kind", (), {"find": staticmethod(find)}))
    try:
        yield
    finally:
        for name in kinds:
            del held[name]


def test_what_a_kind_tells_is_called_in_every_forward() -> None:
    """Positions and indices are those of the tokens, and the functions given are called in place of a module's forward."""
    target, seen, called = zoo.build("qwen3"), list[tuple[torch.Tensor, torch.Tensor]](), []

    def counted(usual: Any, hidden: torch.Tensor) -> torch.Tensor:
        called.append(hidden.shape)
        return usual(hidden)

    def told(head: Any, positions_BT: torch.Tensor, key_index_BS: torch.Tensor, orders: int) -> PositionInputs:
        assert key_index_BS.max() < orders
        seen.append((positions_BT, key_index_BS))
        return PositionInputs({head: functools.partial(counted, own(head))})

    with known(mine=lambda model: CountedPositions(functools.partial(told, model.lm_head))):
        harness.check(harness.pipeline(target, None, batch_size=2), harness.requests(([1, 5, 7], [4]), 5))
    assert len(seen) == len(called) > 5
    assert [[3], [1]] in [positions_BT.tolist() for positions_BT, _ in seen]


def fails(model: Any) -> None:
    """Raise an error, as a kind may."""
    raise IndexError("no such module")


def test_what_kinds_do_wrong_is_one_sentence() -> None:
    """A kind that raises or returns something else, and two that know one model, are named with their distribution."""
    target = fakes.fake_target()
    other: Any = lambda model: "learned"  # noqa: E731
    told = r"^position kind 'other' of their-dist: find\(\) must return CountedPositions or None, got 'learned'$"
    with known(other=other), pytest.raises(ContractError, match=told):
        ModelRunner(target, "target")
    with (
        known(faulty=fails),
        pytest.raises(
            ContractError, match=r"^position kind 'faulty' of their-dist: find\(\) raised IndexError: no such"
        ),
    ):
        ModelRunner(target, "target")
    told = r"^the target \(FakeModel\) counts positions as position kind 'a' of their-dist and position kind 'b' of their-dist"
    with known(a=lambda _: CountedPositions(), b=lambda _: CountedPositions()), pytest.raises(ModelError, match=told):
        ModelRunner(target, "target")
