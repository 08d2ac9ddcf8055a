"""Flex attention gives what masked attention gives, and looks at no block of slots that it need not look at."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from specframe_std.attention import flex, kernel_check
from specframe_testing import harness, zoo
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from specframe.contracts.cache import Placement
from specframe.model.attention.masks import masks

PROMPTS = harness.random_prompts([3, 19, 1, 7, 12], zoo.VOCABULARY)
LENGTHS = [9, 14, 3, 12, 7]
CPU = torch.device("cpu")
WINDOWS = (None, 40)


def ragged(used: list[int], fed: int, slots: int) -> Placement:
    """Slots are places; each row is fed its last tokens, padded on the left where it has fewer."""
    index_BT = (torch.tensor(used)[:, None] - fed + torch.arange(fed)).clamp(min=-1)
    return Placement(index_BT, index_BT, index_BT, torch.arange(slots)[None])


def aligned(used: list[int], fed: int, slots: int) -> Placement:
    """Rows end in the same slot, with nothing before their first token."""
    last = torch.tensor(used)[:, None]
    key_index_BS = (last - slots + torch.arange(slots)).clamp(min=-1)
    index_BT = last - fed + torch.arange(fed)
    return Placement(index_BT, index_BT, index_BT, key_index_BS)


def scattered(used: list[int], fed: int, slots: int) -> Placement:
    """A row's tokens lie anywhere."""
    generator = torch.Generator().manual_seed(1)
    key_index_BS = torch.full((len(used), slots), -1)
    for row, count in enumerate(used):
        key_index_BS[row, torch.randperm(slots, generator=generator)[:count]] = torch.arange(count)
    index_BT = torch.tensor(used)[:, None] - fed + torch.arange(fed)
    return Placement(index_BT, index_BT, index_BT, key_index_BS)


LAYOUTS: list[Callable[[list[int], int, int], Placement]] = [ragged, aligned, scattered]
CELLS = list(itertools.product(LAYOUTS, WINDOWS, [([5, 300, 131], 3, 300), ([390, 200, 170], 150, 400)]))


def visible(placement: Placement, window: int | None) -> torch.Tensor:
    """Return which blocks hold a slot that one of their queries sees, (B, Q, K)."""
    seen_BTS = masks(placement, [window], torch.float32)[window][:, 0] == 0
    _rows, queries, slots = seen_BTS.shape
    padded = torch.nn.functional.pad(seen_BTS, (0, -slots % flex.BLOCK, 0, -queries % flex.BLOCK))
    return padded.unflatten(2, (-1, flex.BLOCK)).unflatten(1, (-1, flex.BLOCK)).any(4).any(2)


@pytest.mark.wide(but=["ragged-40-sizes3"])
@pytest.mark.parametrize(("layout", "window", "sizes"), CELLS)
def test_blocks_are_those_that_hold_what_is_seen(layout: Any, window: int | None, sizes: Any) -> None:
    """None is missing; where a row's tokens lie in order, and none is padding, none is there for nothing."""
    placement = layout(*sizes)
    looked_at = flex.looked_at(flex.block_mask(placement, window))
    needed = visible(placement, window)
    assert not (needed & ~looked_at).any()
    if layout is not scattered and (placement.index_BT >= 0).all():
        assert (needed == looked_at).all()


@pytest.mark.wide
@pytest.mark.parametrize("heads", [(6, 3, 8), (2, 2, 24)])
def test_scores_agree_with_masked_attention(heads: tuple[int, int, int]) -> None:
    """Shared heads, one head for all, odd sizes; with a window and without."""
    assert kernel_check.error(flex.Flex(), CPU, torch.float32, *heads) < 1e-5


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_a_compiled_kernel_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel reads nothing but the blocks it is given."""
    compiled = torch.compile(flex_attention, dynamic=False)

    def by_kernel(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, made: BlockMask, scaling: float | None
    ) -> torch.Tensor:
        return compiled(query, key, value, block_mask=made, scale=scaling, enable_gqa=True)

    monkeypatch.setattr(flex, "as_written", by_kernel)
    assert kernel_check.error(flex.Flex(), CPU, torch.float32, 4, 2, 32) < 1e-5


@pytest.mark.wide
@pytest.mark.cuda
@pytest.mark.parametrize(
    ("dtype", "heads", "key_heads", "size"),
    [(torch.bfloat16, 32, 8, 128), (torch.bfloat16, 32, 2, 128), (torch.float32, 12, 12, 64)],
)
def test_scores_agree_on_cuda(dtype: torch.dtype, heads: int, key_heads: int, size: int) -> None:
    """The compiled kernels equal masked attention for the heads of published models; each takes a while to compile."""
    assert flex.works(torch.device("cuda"), dtype, heads, key_heads, size)


@pytest.mark.wide
@pytest.mark.cuda
@pytest.mark.parametrize("options", [{"graphs": "on"}, {"align": "eqspec", "graphs": "off"}], ids=str)
def test_tokens_are_exact_on_cuda(options: dict[str, str]) -> None:
    """With windows, and heads large enough for the kernel, recorded and not."""
    target = zoo.build("gemma3", head_dim=32).to("cuda")
    pipe = harness.pipeline(target, zoo.good_draft(target), batch_size=3, draft_length=3, attention="flex", **options)
    harness.check(pipe, harness.requests(PROMPTS, LENGTHS, {zoo.EOS}))
