"""Decode attention but for its kernels: what it takes, what it leaves to varlen attention, and its blocks' shapes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import torch
from specframe_std.attention import decode, varlen
from specframe_std.attention.decode import Decode
from specframe_std.attention.kernel_check import error
from specframe_std.attention.tiles import Tiles
from specframe_std.kv.slab import Slab
from specframe_testing import harness, suite_device, zoo
from specframe_testing.device.kind import Simulated

from specframe.contracts.attention import AttentionFacts
from specframe.contracts.cache import DenseView, KVShape, KVView, PagedView, Placement, Window
from specframe.errors import ModelError
from specframe.model.attention.choice import AttentionChoice
from specframe.model.attention.interface import gather_slots, masked_attention
from specframe.model.attention.masks import masks
from specframe.model.runner import ModelRunner
from specframe.plugins.compose import attention_backend
from specframe.plugins.registry import registry

SHAPE = {"head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2}


@attrs.define
class Kernel:
    """Does what the kernel should do, by mask tensors, and notes the calls; ``flaw`` is added to what it gives."""

    flaw: float = 0.0
    calls: list[tuple[type, int]] = attrs.Factory(list)

    def attended(
        self, query: torch.Tensor, view: KVView, used_B: torch.Tensor, scaling: float | None, window: Window
    ) -> torch.Tensor:
        self.calls.append((type(view), query.shape[2]))
        if isinstance(view, PagedView):
            view = gather_slots(view, view.page * view.table_BN.shape[1])
        index_BT = used_B[:, None].long() - query.shape[2] + torch.arange(query.shape[2], device=query.device)
        slot_1S = torch.arange(view.keys.shape[2], device=query.device)[None]
        placement = Placement(index_BT, index_BT, index_BT, slot_1S, in_order=True)
        mask = masks(placement, [window], query.dtype)[window]
        return masked_attention(query, *view, mask, scaling) + self.flaw


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    """Give the simulated device a kernel."""
    made, find = Kernel(), decode.find_spec
    monkeypatch.setattr(Simulated, "kernels", Simulated.kernels | {"triton"})
    monkeypatch.setattr(decode, "find_spec", lambda name: True if name == "triton" else find(name))
    monkeypatch.setitem(sys.modules, "specframe_std.attention.decode_kernel", SimpleNamespace(attended=made.attended))
    decode.works.cache_clear()
    yield made
    decode.works.cache_clear()


def chosen(dtype: torch.dtype) -> Any:
    """Return what "auto" takes on the simulated device for tokens that lie in order."""
    target = zoo.build("qwen3", **SHAPE).to("sim", dtype)
    candidates = attention_backend(registry(), "auto", Slab())
    return AttentionChoice(ModelRunner(target, "target").attention, candidates)._packing


def test_rounds_are_the_kernels_and_prompts_packed_attentions(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "auto" prefers it to variable-length attention, tried in rows and in pages, but for more than 16 tokens a row."""
    assert isinstance(chosen(torch.bfloat16), Decode)
    assert {*kernel.calls} >= {(DenseView, 3), (PagedView, 3)}
    packed, flash = list[int](), varlen.flash
    monkeypatch.setattr(varlen, "flash", lambda *given: [packed.append(given[3].queries), flash(*given)][1])
    kernel.calls.clear()
    for fed in (1, 16, 17):
        states = torch.zeros(2, 4, 40, 16, dtype=torch.bfloat16, device="sim")
        places = torch.arange(40, device="sim")[None]
        fed_BT = places[:, -fed:].expand(2, -1)
        plan = Decode().plan(Placement(fed_BT, fed_BT, fed_BT, places, in_order=True))
        plan.attend(states[:, :, :fed], DenseView(states[:, :2], states[:, :2]), None, None)
    assert ([width for _, width in kernel.calls], packed) == ([1, 16], [17])


@pytest.mark.wide
def test_a_kernel_that_is_wrong_is_left_out(kernel: Kernel) -> None:
    """Variable-length attention takes rounds as well where the kernel does not give what mask tensors give, or is not there."""
    kernel.flaw = 0.5
    assert isinstance(chosen(torch.bfloat16), varlen.Packed)
    assert kernel.calls


def test_float32_is_for_those_who_ask(kernel: Kernel) -> None:
    """Where prompts cannot be packed it has to be asked for, and reads prompts as well; heads that are too large it refuses."""

    def facts(size: int, asked: bool) -> AttentionFacts:
        shapes = (KVShape(2, size, size, torch.float32),)
        return AttentionFacts(torch.device("sim"), torch.float32, 4, shapes, (None,), asked)

    assert not Decode().suits(facts(16, asked=False))
    assert Decode().suits(facts(16, asked=True))
    assert {width for _, width in kernel.calls} == {3, 200}
    assert not Decode().suits(facts(264, asked=True))


@pytest.mark.wide
def test_recorded_rounds_are_exact(kernel: Kernel) -> None:
    """Asked for by name in float32, it attends in recorded rounds and in prompts, and the tokens are the reference's."""
    with suite_device.running_on("sim"):
        target = zoo.build("gemma3")
        pipe = harness.pipeline(
            target, zoo.good_draft(target), batch_size=3, draft_length=3, attention="decode", graphs="on"
        )
        harness.check(pipe, harness.requests(harness.random_prompts([3, 19, 1, 7], zoo.VOCABULARY), 9, {zoo.EOS}))
    assert {1, 4, 19} <= {width for _, width in kernel.calls}


def test_it_is_refused_in_one_sentence() -> None:
    """Without CUDA the error says what it needs."""
    expected = (
        r"^attention 'decode' cannot be had for the target \(Qwen3ForCausalLM\) on cpu in float32: expected CUDA, "
        r"the package triton, and heads of up to 256 numbers; 'auto' takes it where it can be had$"
    )
    with pytest.raises(ModelError, match=expected):
        harness.decode(harness.pipeline(zoo.build("qwen3"), None, attention="decode"), harness.requests([[5, 6]], 3))


@pytest.mark.parametrize(
    ("given", "tiles", "parts", "queries", "keys"),
    [
        ((1, 8, 4, 4096, 128, 128, 2), 1, 32, 16, 64),  # one row: its keys keep the whole device busy
        ((8, 8, 24, 4096, 128, 128, 2), 1, 4, 32, 64),
        ((32, 8, 24, 4096, 128, 128, 2), 1, 1, 32, 64),  # rows enough
        ((1, 2, 4, 8192, 128, 128, 2), 1, 64, 16, 64),  # the most parts
        ((1, 2, 4, 300, 128, 128, 2), 1, 4, 16, 64),  # no part without a block
        ((1, 2, 4, 60, 128, 128, 2), 1, 1, 16, 64),
        ((1, 4, 65, 60, 80, 80, 2), 2, 1, 64, 64),
        ((8, 8, 24, 4096, 256, 256, 2), 1, 4, 32, 32),
        ((8, 8, 24, 4096, 192, 128, 2), 1, 4, 32, 32),  # 42 keys would fit
        ((8, 8, 24, 4096, 128, 128, 4), 2, 2, 16, 16),
    ],
)
def test_blocks_follow_from_shapes(given: tuple[int, ...], tiles: int, parts: int, queries: int, keys: int) -> None:
    """Keys are split while there are programs to spare and blocks to share; blocks fit into what a program has."""
    found = Tiles.of(*given)
    assert (found.tiles, found.parts, found.queries, found.keys) == (tiles, parts, queries, keys)
    assert (found.key_size, found.value_size) == tuple({80: 128, 192: 256}.get(size, size) for size in given[4:6])


@pytest.mark.wide
@pytest.mark.cuda
@pytest.mark.parametrize(
    ("dtype", "heads", "key_heads", "size"),
    [
        (torch.bfloat16, 32, 8, 128),
        (torch.float16, 32, 32, 80),
        (torch.bfloat16, 24, 3, 96),
        (torch.bfloat16, 16, 2, 256),
        (torch.float32, 32, 8, 128),
    ],
)
def test_the_kernel_on_cuda(dtype: torch.dtype, heads: int, key_heads: int, size: int) -> None:
    """It agrees with masked attention for the heads of published models, in rows and in pages."""
    for backend in (decode.Decode(), decode.InPages()):
        off = error(backend, torch.device("cuda"), dtype, heads, key_heads, size)
        assert off < (1e-3 if dtype == torch.float32 else 3e-2)


@pytest.mark.wide
@pytest.mark.cuda
@pytest.mark.parametrize("kv", ["slab", "paged,block=16,view=blocks"])
def test_tokens_are_exact_on_cuda(kv: str) -> None:
    """Recorded rounds, and rows in pages, give the reference's tokens in float32."""
    target = zoo.build("gemma3").to("cuda")
    pipe = harness.pipeline(target, zoo.good_draft(target), batch_size=3, draft_length=3, attention="decode", kv=kv)
    harness.check(pipe, harness.requests(harness.random_prompts([3, 40, 1, 7], zoo.VOCABULARY), 40, {zoo.EOS}))
