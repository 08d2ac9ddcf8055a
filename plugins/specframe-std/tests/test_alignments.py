"""The suite of alignments on each of them; and published flaws, as inexact as they say."""

from __future__ import annotations

import functools

import pytest
from specframe_testing import harness, zoo
from specframe_testing.conformance import AlignmentSuite
from transformers import PreTrainedModel


@pytest.mark.wide(but=["test_rows_stop_at_every_place[3]", "test_equals_reference[slab-continuous]"])
class TestRagged(AlignmentSuite):
    """Slot = position."""

    def make(self) -> str:
        return "ragged"


@pytest.mark.wide(but=["test_equals_reference[pool-fixed]"])
class TestEqspec(AlignmentSuite):
    """Realigned after every round."""

    def make(self) -> str:
        return "eqspec"


@pytest.mark.wide(but=["test_equals_reference[dynamic-fixed]"])
class TestExspec(AlignmentSuite):
    """Realigned when it has to be."""

    def make(self) -> str:
        return "exspec"


@pytest.mark.wide(but=["test_equals_reference[paged-fixed]", "test_prompts_read_in_chunks[dynamic-fixed]"])
class TestRollback(AlignmentSuite):
    """Cut to the batch's minimum."""

    def make(self) -> str:
        return "rollback"


@pytest.mark.wide(but=["test_equals_reference[default]"])
class TestMasking(AlignmentSuite):
    """Masked, as published."""

    def make(self) -> str:
        return "masking"


@pytest.mark.wide(but=["test_equals_reference[dynamic-same-length,window=4]"])
class TestMaskingMended(AlignmentSuite):
    """Masked, with positions that count content."""

    def make(self) -> str:
        return "masking,positions=content"


@pytest.mark.wide(but=["test_equals_reference[default]"])
class TestPadding(AlignmentSuite):
    """Padded without end, as published."""

    def make(self) -> str:
        return "padding"


@pytest.mark.wide(but=["test_equals_reference[dynamic-continuous]"])
class TestPaddingMended(AlignmentSuite):
    """Padded without end, with all fixes."""

    def make(self) -> str:
        return "padding,mask=content,positions=content,bonus=target"


@functools.cache
def pair(architecture: str) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Return a target and a draft that often agrees with it."""
    model = zoo.build(architecture)
    return model, zoo.good_draft(model, noise=0.02)


@pytest.mark.wide
@pytest.mark.parametrize("align", ["masking", "padding"])
@pytest.mark.parametrize("batch_size", [1, 3, 8])
@pytest.mark.parametrize("architecture", ["qwen3", "gpt2"])
def test_as_published_most_sequences_are_wrong(align: str, batch_size: int, architecture: str) -> None:
    """On ragged batches, with pad and eos ids in prompts, fewer than half of the sequences are the target's own."""
    target, draft = pair(architecture)
    prompts = harness.random_prompts([7, 1, 13, 2, 7, 19, 30, 4], zoo.VOCABULARY)
    prompts[2][0] = prompts[3][-1] = zoo.EOS
    asked = harness.requests(prompts, 12, {zoo.EOS, 3})
    found = harness.decode(harness.pipeline(target, draft, align=align, batch_size=batch_size, draft_length=4), asked)
    exact = [one.token_ids == harness.expected(target, request)[0] for one, request in zip(found, asked, strict=True)]
    assert sum(exact) < len(exact) / 2
