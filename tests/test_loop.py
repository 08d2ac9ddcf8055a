"""What the loop promises, counted from outside by an observer."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
import transformers
from specframe_testing import fakes, harness, zoo

from specframe.engine import loop as decode_module
from specframe.errors import ModelError, OptionError
from specframe.pipeline import Pipeline
from specframe.plugins.registry import registry
from specframe.reference import reference_decode, reference_tokens

TARGET = fakes.fake_target()
DRAFT = fakes.fake_draft(TARGET)
ALIGNMENTS = ("ragged", "eqspec", "exspec")
PROMPTS = harness.random_prompts((6, 1, 9, 4, 13, 2), 61, seed=5)
K = 4


def watched(draft, asked, **options):
    """Decode exactly and return the results and what each round fed."""
    feeds = harness.Feeds()
    options = {"batch_size": 3, "draft_length": K, **options}
    results = harness.check(harness.pipeline(TARGET, draft, observers=[feeds], **options), asked)
    return results, feeds


@pytest.mark.wide(but=["ragged"])
@pytest.mark.parametrize("align", ALIGNMENTS)
def test_prompts_are_read_once(align):
    """Over a whole run, the target and the draft are each fed every prompt once, in the round that reads it."""
    _, feeds = watched(DRAFT, harness.requests(PROMPTS, 12), align=align)
    for round in feeds.reading:
        longest = int(round.report.lengths.max())
        assert sum(tokens for _, tokens in round.target) == longest
        assert sum(tokens for _, tokens in round.draft) == longest - 1


@pytest.mark.wide(but=["ragged"])
@pytest.mark.parametrize("align", ALIGNMENTS)
def test_a_nearly_finished_row_does_not_shorten_the_others_drafts(align):
    """A row with one token to come drafts in vain; the others' drafts are as long as ever."""
    asked = harness.requests(PROMPTS[:3], [2, 20, 20])
    drafter = fakes.always_right(harness.truth(TARGET, asked))
    _, feeds = watched(drafter, asked, align=align, schedule="fixed")
    assert drafter.proposed[0] == K
    assert sorted(feeds.decoding[0].report.gained) == [1, K + 1, K + 1]


@pytest.mark.wide
@pytest.mark.parametrize(
    ("align", "schedule"), [("ragged", "continuous"), ("eqspec", "fixed"), ("exspec", "same-length")]
)
def test_figures_do_not_depend_on_the_neighbours(align, schedule):
    """A sequence's own figures are those it has when it is decoded alone."""
    asked = harness.requests(PROMPTS, [1, 12, 3, 7, 2, 9], {7})
    alone, _ = watched(DRAFT, asked, batch_size=1)
    together, _ = watched(DRAFT, asked, batch_size=4, align=align, schedule=schedule)
    assert [result.metrics for result in together] == [result.metrics for result in alone]


@pytest.mark.wide
@pytest.mark.parametrize("align", ALIGNMENTS)
@pytest.mark.parametrize("schedule", ["fixed", "continuous", "same-length,window=3"])
def test_finished_rows_are_not_run(align, schedule):
    """A forward pass has one row per live sequence of the batch: who has finished costs nothing."""
    asked = harness.requests(PROMPTS, [1, 12, 3, 7, 2, 9])
    _, feeds = watched(DRAFT, asked, align=align, schedule=schedule)
    ended = set()
    for round in feeds.rounds:
        indices = {sequence.request.index for sequence in round.report.sequences}
        assert not indices & ended
        assert {rows for rows, _ in round.target + round.draft} == {len(indices)}
        ended |= {sequence.request.index for sequence in round.report.finished}
    assert ended == set(range(6))


@pytest.mark.wide
def test_one_target_pass_per_round():
    """A round that decodes runs the target once, on K + 1 tokens per row, whatever was drafted before."""
    _, feeds = watched(DRAFT, harness.requests(PROMPTS, 12))
    assert all(round.target == [(round.rows, round.report.draft.depth + 1)] for round in feeds.decoding)


@pytest.mark.wide
def test_a_faulty_prompt_fails_alone():
    """An empty prompt, one beyond the context and one with a foreign id each fail with a reason; the rest complete."""
    prompts = [PROMPTS[0], [], [1] * 256, [61], [-1], PROMPTS[1]]
    results = list(harness.pipeline(TARGET, DRAFT).generate(prompts, max_new_tokens=4))
    assert [result.finish_reason for result in results] == ["length", "error", "error", "error", "error", "length"]
    messages = [result.error for result in results[1:5]]
    assert "empty" in messages[0]
    assert "256" in messages[1]
    assert "61" in messages[2]
    assert "-1" in messages[3]
    assert results[5].token_ids == harness.continuation(TARGET, PROMPTS[1], 4)


@pytest.mark.wide
def test_a_run_that_was_dropped_leaves_the_pipeline_free():
    """Results not asked for are not waited for: the pipeline decodes the next prompts."""
    pipe = harness.pipeline(TARGET, DRAFT, batch_size=2)
    running = pipe.generate(PROMPTS, max_new_tokens=8)
    next(running)
    with pytest.raises(OptionError, match="still decoding"):
        next(pipe.generate(PROMPTS))
    running.close()
    harness.check(pipe, harness.requests(PROMPTS[:2], 4))


@pytest.mark.wide
def test_loop_is_short_and_knows_no_strategy():
    """The loop's module stays readable in one sitting, reads no clock, prints nothing and names no strategy."""
    source = Path(inspect.getsourcefile(decode_module)).read_text()
    assert len(source.splitlines()) < 200
    known = registry()
    names = {name for kind in ("alignment", "scheduler", "KV backend", "acceptance rule") for name in known.names(kind)}
    quoted = {name for name in names if f'"{name}"' in source or f"'{name}'" in source}
    assert not quoted
    assert "import time" not in source
    assert "print(" not in source


@pytest.mark.wide
def test_reference_stops_and_ends():
    """The oracle ends with a stop id, which it keeps, at its limit, and at the end of the model's context."""
    target = fakes.fake_target(context=20)
    free = reference_decode(target, [5, 6], 8)
    assert len(free) == 8
    assert reference_decode(target, [5, 6], 8, {free[3]}) == free[: free.index(free[3]) + 1]
    assert len(reference_decode(target, [1] * 17, 8)) == 3
    assert reference_decode(target, [5, 6], 0) == []


@pytest.mark.wide
def test_a_reference_token_is_computed_when_it_is_asked_for():
    """A token costs one forward pass, and none that nobody asks for is computed."""
    target, fed = fakes.fake_target(), list[int]()
    target.register_forward_pre_hook(
        lambda model, given, named: fed.append(named["input_ids"].shape[1]), with_kwargs=True
    )
    tokens = reference_tokens(target, [5, 6, 7])
    assert fed == []
    first = next(tokens)
    assert fed == [3]
    assert [first, next(tokens)] == reference_decode(TARGET, [5, 6, 7], 2)
    assert fed == [3, 1]


@pytest.mark.wide
def test_reference_equals_a_forward_without_cache():
    """The oracle's tokens are those of the model run on the whole sequence each time."""
    ids = [7, 7, 3]
    for token in reference_decode(TARGET, ids, 6):
        assert int(TARGET(torch.tensor([ids])).logits[0, -1].argmax()) == token
        ids = [*ids, token]


@pytest.mark.wide
def test_pipeline_is_lazy():
    """Nothing is decoded before the first result is asked for."""
    feeds = harness.Feeds()
    pipe: Pipeline = harness.pipeline(TARGET, DRAFT, observers=[feeds])
    results = pipe.generate(PROMPTS, max_new_tokens=3)
    assert not feeds.rounds
    next(results)
    assert feeds.rounds


@pytest.mark.wide
def test_a_model_that_counts_positions_itself_is_refused():
    """A model whose forward takes no positions would go wrong silently: it is refused by name before any work."""
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "dim_head": 8, "dim_ff": 16, "num_hidden_layers": 1}
    model = transformers.CpmAntForCausalLM(transformers.CpmAntConfig(vocab_size=61, **sizes))
    with pytest.raises(ModelError, match=r"CpmAntForCausalLM.*takes no position_ids"):
        Pipeline(model, None)


class OwnMask(transformers.LlamaForCausalLM):
    """A token sees no slot after its own, whatever mask is given."""

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, past_key_values=None, **given):
        if attention_mask is not None and attention_mask.ndim == 4:
            later = torch.ones(attention_mask.shape[-2:], dtype=torch.bool).triu(1)
            attention_mask = attention_mask.masked_fill(later, torch.finfo(attention_mask.dtype).min)
        return super().forward(input_ids, attention_mask, position_ids, past_key_values, **given)


@pytest.mark.wide
def test_a_model_with_a_causal_mask_of_its_own_is_refused():
    """A model that depends on the order of slots would go wrong silently: it is refused before any work."""
    model = OwnMask(zoo.build("llama").config).eval()
    with pytest.raises(ModelError, match=r"OwnMask\) gives other logits when the same tokens have other slots"):
        list(Pipeline(model, None).generate([[1, 2, 3]], 4))
