"""Log-probabilities are the target's own, whatever was drafted, accepted and processed."""

from __future__ import annotations

import functools

import pytest
import torch
from specframe_testing import harness, zoo

from specframe import Sampling
from specframe.errors import OptionError

TARGET = zoo.build("qwen3")
DRAFT = zoo.good_draft(TARGET, noise=0.03)
PROMPTS = harness.random_prompts([7, 1, 12, 4, 5], zoo.VOCABULARY, seed=1)
NEW = 12
ALIGNMENTS = ["ragged", "eqspec", "exspec", "rollback", "masking,positions=content"]


@functools.cache
@torch.no_grad()
def own(prompt, tokens):
    """Return the target's log-probabilities at every place of a continuation, (N, V), read in one pass without a cache."""
    logits = TARGET(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    return logits.float().log_softmax(-1)


def pipeline(**options):
    """Return a pipeline of three rows on a real architecture."""
    return harness.pipeline(TARGET, DRAFT, **{"batch_size": 3, "draft_length": 4, "seed": 1, **options})


def assert_own(result, count):
    """Assert that a result's log-probabilities are the target's, and the most likely tokens told in order."""
    expected_NV = own(tuple(PROMPTS[result.index]), tuple(result.token_ids))
    chosen = expected_NV.gather(1, torch.tensor(result.token_ids)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(result.logprobs), chosen, atol=1e-4, rtol=1e-4)
    if not count:
        assert result.top_logprobs is None
        return
    values, ids = expected_NV.topk(count)
    assert [list(top) for top in result.top_logprobs] == ids.tolist()
    told = torch.tensor([list(top.values()) for top in result.top_logprobs])
    torch.testing.assert_close(told, values, atol=1e-4, rtol=1e-4)


@pytest.mark.wide
@pytest.mark.parametrize("align", ALIGNMENTS)
@pytest.mark.parametrize("draft_length", [1, 3, 6])
def test_they_are_the_targets(align, draft_length):
    """Whatever the draft length and the alignment, they are those of the target fed with the tokens one pass at a time."""
    pipe = pipeline(align=align, draft_length=draft_length)
    results = list(pipe.generate(PROMPTS, NEW, sampling=Sampling(logprobs=3)))
    assert [result.index for result in results] == list(range(len(PROMPTS)))
    for result in results:
        assert_own(result, 3)
        assert [next(iter(top)) for top in result.top_logprobs] == result.token_ids, "greedy takes the most likely"


@pytest.mark.wide
@pytest.mark.parametrize("accept", ["gumbel", "rejection", "block", "typical"])
def test_they_are_told_before_anything_is_done_to_them(accept):
    """Temperature, top-k, penalties and the acceptance rule change which tokens come, not what the target says of them."""
    sampling = Sampling(temperature=1.7, top_k=20, repetition_penalty=1.3, logprobs=2)
    taken = 0
    for result in pipeline(accept=accept).generate(PROMPTS, NEW, sampling=sampling):
        assert_own(result, 2)
        taken += sum(token != next(iter(top)) for token, top in zip(result.token_ids, result.top_logprobs, strict=True))
    assert taken, "only ever the most likely token: the test shows nothing"


def test_each_prompt_is_told_what_it_asks_for():
    """Rows of one batch that ask for different numbers of tokens, for none or for nothing, each get theirs."""
    counts = [2, None, 0, 5, 1]
    results = list(pipeline(batch_size=5).generate(PROMPTS, NEW, sampling=[Sampling(logprobs=n) for n in counts]))
    for result, count in zip(results, counts, strict=True):
        if count is None:
            assert (result.logprobs, result.top_logprobs) == (None, None)
        else:
            assert_own(result, count)
    plain = [result.token_ids for result in pipeline().generate(PROMPTS, NEW)]
    assert [result.token_ids for result in results] == plain


@pytest.mark.wide
def test_as_many_as_there_are():
    """The probabilities of all tokens of the vocabulary add up to 1; more than it has are refused."""
    with pytest.raises(
        OptionError, match=rf"^logprobs: expected at most {zoo.VOCABULARY}, .*, got {zoo.VOCABULARY + 1}$"
    ):
        pipeline().generate(PROMPTS[:1], 3, sampling=Sampling(logprobs=zoo.VOCABULARY + 1))
    (result,) = pipeline().generate(PROMPTS[:1], 3, sampling=Sampling(logprobs=zoo.VOCABULARY))
    assert len(result.top_logprobs) == 3
    for top in result.top_logprobs:
        assert sorted(top) == list(range(zoo.VOCABULARY))
        assert list(top.values()) == sorted(top.values(), reverse=True)
        assert torch.tensor(list(top.values())).exp().sum() == pytest.approx(1.0, abs=1e-5)
