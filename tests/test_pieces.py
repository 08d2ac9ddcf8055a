"""Long prompts are read in chunks between the rounds of those that decode."""

from __future__ import annotations

import pytest
from products import crossed
from specframe_testing import fakes, harness, zoo

from specframe.plugins.registry import registry

TARGET = fakes.fake_target()
DRAFT = fakes.fake_draft(TARGET)
PROMPTS = harness.random_prompts((6, 30, 1, 23, 9, 40, 4, 13, 2), 61, seed=5)
NEW = [9, 14, 20, 3, 12, 7, 11, 25, 6]
LOSSLESS = (
    "ragged",
    "eqspec",
    "exspec",
    "rollback",
    "masking,positions=content",
    "padding,mask=content,positions=content,bonus=target",
)


def alignments() -> list[tuple[str, str]]:
    """Return every lossless alignment on every KV backend it can run on."""
    known = registry()
    return [
        (align, kv)
        for align in LOSSLESS
        for kv in ("dynamic", "slab")
        if known.make("alignment", align).needs <= known.make("KV backend", kv).offers
    ]


@pytest.mark.wide
@pytest.mark.parametrize(("layout", "piece"), crossed(alignments(), (1, 5, 16)))
def test_tokens_are_the_reference_decoder_s(layout: tuple[str, str], piece: int) -> None:
    """Whatever is decoded between two pieces, under every alignment; positions, masks and caches are as they should be."""
    options = {"schedule": f"continuous,piece={piece}", "batch_size": 3, "draft_length": 3}
    pipe = harness.pipeline(TARGET, DRAFT, align=layout[0], kv=layout[1], check=True, **options)
    harness.check(pipe, harness.requests(PROMPTS, NEW, {7}))


@pytest.mark.wide
@pytest.mark.parametrize("name", ["mistral", "gemma3", "gpt2"])
def test_real_architectures(name: str) -> None:
    """Sliding windows and learned positions, read in chunks."""
    target = zoo.build(name)
    pipe = harness.pipeline(target, zoo.good_draft(target), schedule="continuous,piece=4", batch_size=3, draft_length=3)
    harness.check(pipe, harness.requests(harness.random_prompts((3, 25, 11, 30, 8), zoo.VOCABULARY), 12, {zoo.EOS}))
