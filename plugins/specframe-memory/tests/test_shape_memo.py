"""Operators without numbers that are called but once on the same shapes: what is made again is what torch returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from specframe_memory import shape_memo
from specframe_memory.shape_memo import ShapeMemo
from torch.utils._python_dispatch import TorchDispatchMode


class Remembered(TorchDispatchMode):
    """Calls all operators through a memo."""

    def __init__(self) -> None:
        super().__init__()
        self.memo = ShapeMemo()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operator."""
        return self.memo.call(func, args, kwargs or {})


def hollow(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a tensor without numbers."""
    return torch.empty(*size, dtype=dtype, device="meta")


def told(result: Any) -> list[tuple[Any, ...]]:
    """Return all that there is to tell of tensors without numbers."""
    tensors = [result] if isinstance(result, torch.Tensor) else result
    return [(one.shape, one.stride(), one.dtype, one.device.type, one.storage_offset(), one.untyped_storage().nbytes())
            for one in tensors]  # fmt: skip


CALLS: dict[str, Callable[[], Any]] = {
    "sum of a row and a column": lambda: hollow(3, 1) + hollow(1, 4),
    "transposed": lambda: hollow(3, 4).t() * 2,
    "not transposed": lambda: hollow(4, 3) * 2,
    "of another type": lambda: hollow(4, 3, dtype=torch.float16) * 2,
    "times a fraction": lambda: hollow(4, 3, dtype=torch.int64) * 2.0,
    "times a whole number": lambda: hollow(4, 3, dtype=torch.int64) * 2,
    "times a truth": lambda: hollow(4, 3, dtype=torch.int64) * True,
    "filled with a truth": lambda: torch.full((2,), True, device="meta"),
    "filled with a whole number": lambda: torch.full((2,), 1, device="meta"),
    "filled with a fraction": lambda: torch.full((2,), 1.0, device="meta"),
    "the largest two": lambda: hollow(5, 9).topk(2),
    "sorted": lambda: hollow(5, 9).sort(dim=0),
    "one after the other": lambda: torch.cat([hollow(2, 3), hollow(4, 3)]),
    "beside each other": lambda: torch.cat([hollow(2, 3), hollow(2, 4)], 1),
    "in pieces": lambda: hollow(6, 3).chunk(3),
    "in double precision": lambda: hollow(2, 2).to(torch.float64),
    "where": lambda: torch.where(hollow(4, dtype=torch.bool), hollow(3, 4), 0.0),
}


@pytest.mark.wide(but=["not transposed", "filled with a whole number"])
@pytest.mark.parametrize("name", CALLS)
def test_what_is_made_again_is_what_torch_returns(name: str) -> None:
    """Shapes, strides, types and bytes are torch's, with all other calls known before, and it is not asked again."""
    with Remembered() as mode:
        for call in CALLS.values():
            call()
        known = {operator for operator, *_ in mode.memo._made}
        made, found = len(mode.memo._made), told(CALLS[name]())
    assert found == told(CALLS[name]())
    assert len(mode.memo._made) == made
    assert {torch.ops.aten.mul.Tensor, torch.ops.aten.full.default, torch.ops.aten.topk.default} <= known


def test_a_type_that_is_set_for_all_counts() -> None:
    """What is made of no tensor has the type that is the default then."""
    memo, full = ShapeMemo(), torch.ops.aten.ones.default
    device = {"device": torch.device("meta")}
    assert memo.call(full, ([2],), device).dtype is torch.float32
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        assert memo.call(full, ([2],), device).dtype is torch.float64
    finally:
        torch.set_default_dtype(before)


def test_views_and_writes_are_those_of_their_tensors() -> None:
    """A view shares its tensor's storage, and an operator that writes returns what it wrote to, each time."""
    memo, held = ShapeMemo(), [hollow(3, 4), hollow(3, 4)]
    for one in held:
        view = memo.call(torch.ops.aten.slice.Tensor, (one, 0, 1, 3), {})
        assert view.untyped_storage()._cdata == one.untyped_storage()._cdata
        assert memo.call(torch.ops.aten.add_.Tensor, (one, one), {}) is one
        unsaid = memo.call(torch.ops.aten._unsafe_view.default, (one, [12]), {})  # a view by what it does alone
        assert unsaid.untyped_storage()._cdata == one.untyped_storage()._cdata
    assert not memo._made


def test_numbers_are_computed_each_time() -> None:
    """Where a tensor has numbers a result's shape may depend on them, and what is made with numbers has its own."""
    memo = ShapeMemo()
    for times in (1, 3):
        given = (torch.ones(2, dtype=torch.bool), torch.zeros(2, dtype=torch.bool))[times == 3]
        assert len(memo.call(torch.ops.aten.nonzero.default, (given,), {})) == int(given.sum())
        kept = memo.call(torch.ops.aten.index.Tensor, (hollow(2, times), [given.nonzero()[:, 0]]), {})
        assert kept.shape == (int(given.sum()), times)
    assert memo.call(torch.ops.aten.full.default, ([2], 7), {}).tolist() == [7, 7]
    assert memo.call(torch.ops.aten.full.default, ([2], 7), {}).tolist() == [7, 7]
    assert not memo._made


@pytest.mark.wide
def test_no_more_than_so_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that plans for years forgets what it has known."""
    monkeypatch.setattr(shape_memo, "MOST", 3)
    memo = ShapeMemo()
    for size in range(1, 9):
        made = memo.call(torch.ops.aten.mul.Tensor, (hollow(size), 2), {})
        assert made.shape == (size,)
        assert 1 <= len(memo._made) <= 3
