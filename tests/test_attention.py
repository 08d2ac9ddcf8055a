"""Variable-length attention and captured forwards give what masked, eager forwards give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import architectures
import pytest
import torch
from specframe_std.attention import flex, kernel_check, varlen
from specframe_testing import harness, zoo

from specframe.contracts.round import Batch
from specframe.errors import ModelError
from specframe.model.attention import choice
from specframe.model.model_checks import uneven_placement
from specframe.model.runner import ModelRunner

PROMPTS = harness.random_prompts([3, 19, 1, 7, 12], zoo.VOCABULARY)
GROUPED = ("llama", "qwen3", "mistral", "gemma3", "gpt2")
"""Shared heads, windows, mixed kinds of layers, learned positions."""


def emulated_flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    packing: varlen.Packing,
    scaling: float | None,
    left: int,
    table_BN: torch.Tensor | None = None,
) -> torch.Tensor:
    """Do what the flash call is documented to do, row by row: causal from the bottom right, within a window."""
    assert table_BN is None
    parts = []
    for row, used in enumerate(packing.used_B.tolist()):
        first = int(packing.starts_key[row])
        q = query[int(packing.starts_query[row]) : int(packing.starts_query[row + 1])].transpose(0, 1)
        k, v = (part[first : first + used].transpose(0, 1) for part in (key, value))
        k, v = (part.repeat_interleave(len(q) // len(k), dim=0) for part in (k, v))
        places_T1 = torch.arange(used - packing.queries, used)[:, None]
        keys_S = torch.arange(used)
        seen_TS = keys_S <= places_T1
        if left >= 0:
            seen_TS &= keys_S >= places_T1 - left
        parts.append(
            torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen_TS, scale=scaling).transpose(0, 1)
        )
    return torch.cat(parts)


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Put the emulation in place of the flash call, and count its calls."""
    calls: list[int] = []

    def counted(*args: Any) -> torch.Tensor:
        calls.append(args[3].queries)
        return emulated_flash(*args)

    monkeypatch.setattr(varlen, "flash", counted)
    monkeypatch.setattr(varlen, "works", lambda *_: True)
    return calls


@pytest.mark.wide
@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize(
    "options",
    [{"attention": way, "graphs": graph} for way, graph in (("packed", "off"), ("masked", "on"), ("packed", "on"))],
    ids=str,
)
def test_tokens_are_exact(name: str, options: dict[str, str], flash: list[int]) -> None:
    """Ragged batches decode to the reference's tokens, with rows that end early and are replaced."""
    target = zoo.build(name)
    pipe = harness.pipeline(target, zoo.good_draft(target), batch_size=3, draft_length=3, **options)
    harness.check(pipe, harness.requests(PROMPTS, [9, 14, 3, 12, 7], {zoo.EOS}))
    assert (options["attention"] == "packed") == bool(flash)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("implementation", "asked", "message"),
    [
        (
            "sdpa",
            "packed",
            r"'packed' cannot be had for the target \(Qwen3ForCausalLM\) on cpu in float32: expected CUDA",
        ),
        ("eager", "packed", r"takes the place of sdpa, but the target \(Qwen3ForCausalLM\) was loaded with eager"),
        ("eager", "flex", r"takes the place of sdpa, but the target \(Qwen3ForCausalLM\) was loaded with eager"),
    ],
)
def test_attention_that_cannot_be_had_is_refused(implementation: str, asked: str, message: str) -> None:
    """By one sentence, when the run starts."""
    target = zoo.build("qwen3")
    target.set_attn_implementation(implementation)
    with pytest.raises(ModelError, match=message):
        harness.decode(harness.pipeline(target, None, attention=asked), harness.requests(PROMPTS, 3))


@pytest.mark.wide
@pytest.mark.parametrize(
    ("name", "options", "fault"),
    [
        ("falcon", {}, r"FalconForCausalLM\), because its logits are off by .* standard deviations without masks"),
        ("phimoe", {}, r"PhimoeForCausalLM\), because its logits are off by .* standard deviations without masks"),
        (
            "phimoe",
            {"sliding_window": 5000, "max_position_embeddings": 9000},
            r"PhimoeForCausalLM\), because its layers do not pass their sliding windows to attention:",
        ),
    ],
    ids=["falcon", "phimoe", "phimoe-long"],
)
@pytest.mark.parametrize("way", ["packed", "flex"])
def test_models_that_need_their_masks_keep_them(
    name: str, options: dict[str, Any], fault: str, way: str, flash: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that attends by itself, or tells attention no window, is refused ``packed`` and ``flex``; ``auto`` is exact."""
    monkeypatch.setattr(flex.Flex, "suits", lambda *_: True)
    target = architectures.build(name, **options)
    asked = harness.requests(PROMPTS, [9, 14, 3, 12, 7], {zoo.EOS})
    with pytest.raises(ModelError, match=f"attention '{way}' cannot be had for the target .{fault}"):
        harness.decode(harness.pipeline(target, None, attention=way), asked)
    pipe = harness.pipeline(target, zoo.good_draft(target), batch_size=3, draft_length=3)
    harness.check(pipe, asked)
    use = choice.AttentionChoice(pipe.parts.runner.attention, pipe.composition.attention)
    assert use.way(uneven_placement(None, 20, torch.device("cpu"))) is None
    assert not use.packs
    assert use._sparing is None


@pytest.mark.wide
@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("heads", "key_heads", "size"), [(32, 8, 128), (16, 8, 128), (32, 32, 128), (32, 2, 128), (6, 2, 32)]
)
def test_packed_attention_on_cuda(dtype: torch.dtype, heads: int, key_heads: int, size: int) -> None:
    """The flash call of this torch equals masked attention for the heads of the published models."""
    assert kernel_check.error(varlen.Packed(), torch.device("cuda"), dtype, heads, key_heads, size) < 3e-2


@pytest.mark.wide
@pytest.mark.cuda
@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("graph", ["on", "off"])
def test_tokens_are_exact_on_cuda(name: str, graph: str) -> None:
    """CUDA graphs replay the reference's tokens in fp32."""
    target = zoo.build(name).to("cuda")
    pipe = harness.pipeline(target, zoo.good_draft(target), batch_size=3, draft_length=3, graphs=graph)
    harness.check(pipe, harness.requests(PROMPTS, [9, 14, 3, 12, 7], {zoo.EOS}))


@pytest.mark.wide
@pytest.mark.cuda
def test_half_precision_packs_on_cuda() -> None:
    """A model in bf16 with heads of 32 attends without masks, and decodes what it does with them but for ties."""
    target = zoo.build("qwen3", head_dim=32).to("cuda", torch.bfloat16)
    assert choice.AttentionChoice(ModelRunner(target, "target").attention, (varlen.Packed(),)).packs
    asked = harness.requests(PROMPTS, 12)
    by_lengths, by_masks = (
        harness.decode(harness.pipeline(target, None, attention=kind, graphs="off"), asked)
        for kind in ("packed", "masked")
    )
    same = sum(a.token_ids == b.token_ids for a, b in zip(by_lengths, by_masks, strict=True))
    assert same >= len(asked) // 2


@pytest.mark.wide(but=["with rows that wait"])
@pytest.mark.parametrize(
    ("lengths", "options"),
    [((6,), {}), ((6, 6, 6), {}), ((6, 2, 11), {}), ((6, 2, 11, 7, 9, 3, 8), {"schedule": "same-length,window=7"})],
    ids=["one row", "even rows", "uneven rows", "with rows that wait"],
)
def test_recorded_drafts_are_the_drafts(lengths: tuple[int, ...], options: dict[str, Any]) -> None:
    """As much of captured drafts is accepted as of others: a graph captured at one length drafts rightly at all that follow."""
    target = zoo.build("qwen3")
    counts = []
    for kind in ("on", "off"):
        pipe = harness.pipeline(
            target, zoo.good_draft(target), batch_size=3, draft_length=4, graphs=kind, attention="masked", **options
        )
        asked = harness.requests(harness.random_prompts(lengths, zoo.VOCABULARY), 24)
        found = harness.decode(pipe, asked)
        harness.assert_exact(target, asked, found)
        counts.append([one.metrics for one in found])
    assert counts[0] == counts[1]


@pytest.mark.wide(but=["64"])
@pytest.mark.parametrize("length", [60, 62, 63, 64])
def test_recorded_steps_see_what_the_steps_before_have_fed(length: int) -> None:
    """Chains that pass the bucket of slots that their rows begin in have the scores of chains that are not recorded."""
    scores: dict[str, list[torch.Tensor]] = {"on": [], "off": []}
    for kind, kept in scores.items():
        run = harness.open_run(zoo.build("qwen3"), 2, 90, align="ragged")
        pool = harness.open_pool(harness.requests(harness.random_prompts((length, length - 9), zoo.VOCABULARY), 20))
        run.graphs = kind
        cached, batch = run.open_cache(run.runner), pool.batch(pool.admit(2))
        cached.read(batch, left=1)

        def choose(batch: Batch, offset: int, logits: torch.Tensor, kept: list[torch.Tensor] = kept) -> torch.Tensor:
            kept.append(logits.clone())
            return logits.argmax(-1)

        for _ in range(3):
            cached.extend(batch, batch.last_tokens(2), 5, choose)
    assert len(scores["on"]) == 15
    for one, other in zip(scores["on"], scores["off"], strict=True):
        torch.testing.assert_close(one, other)
