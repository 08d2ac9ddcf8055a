"""The kernels of decode attention by Triton's interpreter: ``make test-triton``, in an environment of their own."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from specframe_std.attention import decode_kernel, tiles
from specframe_testing import harness, zoo
from specframe_testing.conformance import AttentionBackendSuite

from specframe.contracts.cache import DenseView, KVView, PagedView
from specframe.model.attention.interface import in_pages

SHAPES = Path(__file__).with_name("compiled_shapes.py")


class TestDecode(AttentionBackendSuite):
    """What every attention backend keeps."""

    architectures = ()  # the interpreter takes its time: one whole run, below, is enough

    def make(self) -> str:
        """Return its name."""
        return "decode"


@attrs.frozen
class Case:
    """Rows of these lengths, of which ``fed`` tokens are queries."""

    used: tuple[int, ...]
    fed: int = 1
    heads: int = 2
    shared: int = 1
    size: int = 16
    value_size: int = 16
    window: int | None = None
    page: int = 0
    dtype: torch.dtype = torch.float16
    scaling: float | None = None
    slots: int = 200
    most: int = tiles.PROGRAMS

    def __str__(self) -> str:
        changed = ((name, value) for name, value in attrs.asdict(self).items() if value != getattr(Case(()), name))
        return ",".join(f"{name}={value}" for name, value in changed)


CASES = (
    Case((0, 1, 63, 64, 65), slots=80),  # at a block's borders
    Case((0, 1, 127, 128, 129, 200)),  # parts: two blocks of 64, and those beyond
    Case((0, 1, 5, 6, 7, 129), fed=6, shared=3),  # fewer tokens than are fed
    Case((1, 130), fed=6, shared=8, size=80, value_size=80),  # three tiles of 16 queries
    Case((3, 199), fed=17, shared=8, most=1),  # three tiles of 64 queries, keys read by one program each
    Case((66, 130, 200), window=1),
    Case((66, 130, 200), fed=6, window=64),
    Case((3, 130, 200), fed=6, shared=3, window=65, page=16),
    Case((0, 1, 16, 17, 200), fed=2, page=16, shared=2),
    Case((33, 200), page=48, size=96, value_size=96),  # pages whose size is no power of two
    Case((33, 200), fed=3, size=24, value_size=8, scaling=0.3),
    Case((5, 150), fed=6, shared=3, dtype=torch.bfloat16),
    Case((5, 150), fed=6, shared=3, size=256, value_size=256, dtype=torch.float32),
    Case((5, 150), fed=6, shared=3, dtype=torch.float32, most=1, page=16, window=40),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_kernel_gives_what_is_seen(case: Case) -> None:
    """Queries attend to the live keys that they see; all other slots hold NaN, and a query that sees nothing gets zeros."""
    found, wanted = compared(case)
    close = {"atol": 1e-6, "rtol": 1e-5} if case.dtype == torch.float32 else {"atol": 4e-3, "rtol": 8e-3}
    torch.testing.assert_close(found.double(), wanted, **close)


def compared(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the kernel gives, and what all queries should get, (B, T, H, V)."""
    generator = torch.Generator().manual_seed(len(str(case)))
    rows, heads = len(case.used), case.heads * case.shared

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(rows, *shape, generator=generator).to(case.dtype)

    query = normal(case.fed, heads, case.size).transpose(1, 2)
    keys, values = (normal(case.slots, case.heads, size).transpose(1, 2) for size in (case.size, case.value_size))
    wanted = torch.zeros(rows, case.fed, heads, case.value_size, dtype=torch.double)
    scale = 1 / math.sqrt(case.size) if case.scaling is None else case.scaling
    for row, used in enumerate(case.used):
        first = used - case.fed if case.window is None else used - case.fed - case.window + 1
        unseen = [*range(0 if case.window is None else max(first, 0)), *range(used, case.slots)]
        keys[row, :, unseen] = values[row, :, unseen] = math.nan
        for token in range(max(case.fed - used, 0), case.fed):
            end = used - case.fed + token + 1
            seen = slice(0 if case.window is None else max(end - case.window, 0), end)
            key, value = (one[row, :, seen].double().repeat_interleave(case.shared, 0) for one in (keys, values))
            scores = torch.einsum("hd,hsd->hs", query[row, :, token].double(), key) * scale
            wanted[row, token] = torch.einsum("hs,hsd->hd", scores.softmax(-1), value)
    view = DenseView(keys, values) if not case.page else shuffled(in_pages(DenseView(keys, values), case.page))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tiles, "PROGRAMS", case.most)
        used_B = torch.tensor(case.used, dtype=torch.int32)
        return decode_kernel.attended(query, view, used_B, case.scaling, case.window), wanted


def shuffled(view: PagedView) -> PagedView:
    """Return the same rows in pages of any order, with a page that is nobody's."""
    order = torch.randperm(len(view.keys) + 1, generator=torch.Generator().manual_seed(0))
    place = order.argsort()[:-1]
    keys, values = (torch.cat([one, torch.full_like(one[:1], math.nan)])[order] for one in (view.keys, view.values))
    table_BN = place[view.table_BN].t().contiguous().t()  # its strides are other than usual
    return PagedView(keys, values, table_BN, view.page)


def test_what_a_length_says_beyond_the_slots_is_not_read() -> None:
    """Rows said to be longer than their slots read no others: what a frozen row's length says does no harm."""
    query, states = torch.ones(1, 2, 1, 16), torch.ones(2, 2, 40, 16)
    states[1] = math.nan  # the next row's, and what lies after the last row's is nobody's
    found = decode_kernel.attended(query, DenseView(states[:1], states[:1]), torch.tensor([70]).int(), None, None)
    assert torch.equal(found, torch.ones(1, 1, 2, 16))


def test_a_whole_run_reads_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that join and end give the reference's tokens, prompts and rounds alike; the kernel reads keys in pages."""
    views, attended = Counter[type](), decode_kernel.attended

    def noted(query: torch.Tensor, view: KVView, *rest: Any) -> torch.Tensor:
        views[type(view)] += 1
        return attended(query, view, *rest)

    monkeypatch.setattr(decode_kernel, "attended", noted)
    target = zoo.build("mistral")  # shared heads, a window
    options = {"attention": "decode", "kv": "paged,block=16,view=blocks", "batch_size": 2, "draft_length": 3}
    pipe = harness.pipeline(target, zoo.good_draft(target), **options)
    harness.check(pipe, harness.requests(harness.random_prompts([3, 18, 1], zoo.VOCABULARY), [4, 5, 3]))
    assert views[PagedView]


def test_the_kernels_compile_for_a_gpu() -> None:
    """Triton compiles the kernels for an H100 without one, for all sizes, and nothing spills out of registers."""
    surroundings = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    told = subprocess.run([sys.executable, SHAPES], env=surroundings, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
