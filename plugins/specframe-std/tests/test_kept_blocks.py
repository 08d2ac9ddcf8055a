"""Blocks that are kept by their content: prompts that begin alike are read from the first block on that is not kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from specframe_std.kv.block_allocator import contents
from specframe_std.verifiers.chain import ChainVerifier
from specframe_testing import fakes, harness, zoo

from specframe.contracts.drafts import Budget, Draft
from specframe.contracts.reports import Outcome
from specframe.contracts.requests import Request
from specframe.contracts.round import Batch
from specframe.pipeline import Pipeline

TARGET = fakes.fake_target()
DRAFT = fakes.fake_draft(TARGET)


def pipeline(kv: str, draft: Any = DRAFT, **options: Any) -> Pipeline:
    """Return a pipeline of the fakes."""
    return harness.pipeline(TARGET, draft, kv=kv, **{"batch_size": 3, "draft_length": 3, **options})


COMMON = harness.random_prompts([14], 61, seed=4)[0]


def hits(pipe: Pipeline, prompts: list[list[int]], new: int = 6) -> int:
    """Return how many tokens of prompts were not fed; tokens are the reference's."""
    harness.check(pipe, harness.requests(prompts, new))
    return pipe.report.prefix_hit_tokens


@pytest.mark.wide(but=["a draft model"])
@pytest.mark.parametrize("draft", [None, DRAFT], ids=["plain", "a draft model"])
def test_what_prompts_have_in_common_is_read_once(draft: Any) -> None:
    """Prompts of a batch and of later runs, longer ones and more of them, are read from the first block on that is not kept."""
    pipe = pipeline("paged,block=4,share=on", draft, batch_size=2)
    assert hits(pipe, [[*COMMON, 5, 6], [*COMMON, 7]]) == 12, "the second waits for the first"
    assert hits(pipe, [[*COMMON, 5]]) == 12
    pipe.batch_size = 4
    longer = [[*COMMON, *range(30)], [*COMMON[:9], 8], [3], [*COMMON[:4], 1]]
    assert hits(pipe, longer, 40) == 12 + 8 + 4
    assert hits(pipe, [[3] * 15]) == 0
    assert hits(pipe, [COMMON[:13], COMMON[:12]]) == 12 + 8, "the last token of a prompt is always fed"
    pipe.close()
    assert hits(pipe, [[*COMMON, 5]]) == 0


@pytest.mark.wide
def test_drafted_tokens_are_not_kept() -> None:
    """What was drafted after a row's last token, and rejected, is no part of what later prompts find."""
    pipe = pipeline("paged,block=1,share=on", fakes.fake_draft(TARGET, 1), batch_size=1)
    free, _ = harness.expected(TARGET, Request(0, COMMON, 12))
    (result,) = harness.decode(pipe, harness.requests([COMMON], 12, {free[6]}))
    assert 1 < len(result.token_ids) < 12
    assert hits(pipe, [[*COMMON, *result.token_ids, 9]]) > len(COMMON)


def test_blocks_that_others_need_are_given_up() -> None:
    """The least recently used blocks go first, the end of a prompt before its beginning; any number of runs fits."""
    pipe = pipeline("paged,block=2,blocks=16,share=on", None, batch_size=1)
    first, second, third = harness.random_prompts([9, 9, 9], 61, seed=6)
    assert [hits(pipe, [one], 3) for one in (first, second, first)] == [0, 0, 8]
    assert hits(pipe, [third], 9) == 0
    assert hits(pipe, [first], 3) == 8, "used after the second"
    assert 0 < hits(pipe, [second], 3) < 8, "its last blocks are gone"


@pytest.mark.wide
def test_keys_tell_all_tokens_before() -> None:
    """Blocks of the same tokens after other tokens are other blocks; going on from a block gives what reading all gives."""
    ids = [1, 2, 3, 1, 2, 3, 9]
    keys = [*contents(ids, 3)]
    assert len(keys) == 2
    assert keys[0] != keys[1]
    assert [*contents(ids[3:], 3, keys[0])] == keys[1:]


# ---- where nothing is shared yet --------------------------------------------------------------------------------------


class Reader:
    """Receives the target's features, and drafts nothing."""

    needs = frozenset({"hidden"})
    offers = frozenset({"chain"})

    def start(self, run: Any) -> None:
        """Ask for the states after the first layer."""
        run.target.capture((1,))

    def observe(self, outcome: Outcome) -> None:
        """Check that features of all tokens of a prompt are there."""
        if outcome.batch.prefill and outcome.transfer is not None:
            assert outcome.scores.hidden[1].shape[1] == outcome.lengths.max()

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return an empty draft."""
        return Draft(batch.tokens_BS[:, :0])


BEGINNING_ALIKE = [[*COMMON, 5, 6], [3], [*COMMON, 7], [*COMMON, 5], [*COMMON[:9], 8]]


def test_a_drafter_with_features_has_all_tokens_read() -> None:
    """Features are not kept with blocks, so no token is left out; rows that begin alike do not write to each other's blocks."""
    target = zoo.build("llama")
    pipe = harness.pipeline(target, Reader(), kv="paged,block=4,share=on", batch_size=3)
    prompts = [[token % zoo.VOCABULARY for token in prompt] for prompt in BEGINNING_ALIKE]
    for _ in range(2):
        assert hits(pipe, prompts) == 0


@pytest.mark.wide(but=["layer-skip,skip=attn:0+mlp:0-3"])
@pytest.mark.parametrize("place", [3, 5])
@pytest.mark.parametrize("drafter", ["layer-skip,skip=attn:0+mlp:0", "window,sink=0,recent=1"])
def test_what_a_draft_wrote_is_not_kept(drafter: str, place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory runs out between a draft and its verification, later prompts go on from blocks that the target has written."""
    score, calls = ChainVerifier.score, list[int]()

    def failing(self: Any, batch: Batch, draft: Draft) -> Any:
        calls.append(1)
        if len(calls) == place:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return score(self, batch, draft)

    monkeypatch.setattr(ChainVerifier, "score", failing)
    pipe = harness.pipeline(zoo.build("llama"), drafter, kv="paged,block=1,share=on", batch_size=2, draft_length=3)
    asked = harness.requests(harness.random_prompts((6, 9), zoo.VOCABULARY), 12)
    with pytest.warns(RuntimeWarning, match="memory ran out"):
        found = harness.check(pipe, asked)
    turns = [[*one.prompt_ids, *result.token_ids, 5, 6] for one, result in zip(asked, found, strict=True)]
    assert hits(pipe, turns, 8) > 6 + 9 + 2 * 6
