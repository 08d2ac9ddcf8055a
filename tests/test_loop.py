"""What the loop guarantees, counted from outside by an observer."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from specframe_std.drafters.none import NoDrafter
from specframe_std.policies.fixed_length import FixedLength
from specframe_testing import fakes, harness

from specframe.engine import loop as decode_module
from specframe.plugins.registry import registry
from specframe.reference import reference_decode

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


class Heard(NoDrafter):
    """A drafter that drafts nothing, and notes what it receives."""

    def __init__(self):
        self.outcomes = []

    def propose(self, batch, budget):
        """Draft nothing, where a prompt is read."""
        assert batch.prefill
        return super().propose(batch, budget)

    def observe(self, outcome):
        """Note an outcome."""
        self.outcomes.append(outcome.batch.prefill)


class Asked(FixedLength):
    """A policy that notes how often it was asked for a budget."""

    asked = 0

    def budget(self, batch):
        """Note the call."""
        self.asked += 1
        return super().budget(batch)


def test_plain_rounds_call_neither_drafter_nor_policy():
    """A drafter that offers "plain" receives each prefill, and no round after it; no policy is asked for a budget."""
    drafter, policy = Heard(), Asked(K)
    _, feeds = watched(drafter, harness.requests(PROMPTS, 12), draft_length=policy)
    assert (drafter.outcomes, policy.asked) == ([True] * len(feeds.reading), 0)
