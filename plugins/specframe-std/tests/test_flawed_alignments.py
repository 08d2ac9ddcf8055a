"""Published flaws: as inexact as they say."""

from __future__ import annotations

import functools

import pytest
from specframe_testing import harness, zoo
from transformers import PreTrainedModel


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
    prompts, eos = (
        harness.random_prompts([7, 1, 13, 2, 7, 19, 30, 4], target.config.vocab_size),
        target.config.eos_token_id,
    )
    prompts[2][0] = prompts[3][-1] = eos
    asked = harness.requests(prompts, 12, {eos, 3})
    found = harness.decode(harness.pipeline(target, draft, align=align, batch_size=batch_size, draft_length=4), asked)
    exact = [one.token_ids == harness.expected(target, request)[0] for one, request in zip(found, asked, strict=True)]
    assert sum(exact) < len(exact) / 2
