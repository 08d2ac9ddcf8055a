"""Several drafters in one batch: whose draft a row has, that caches follow, and that the output is the target's."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest
import torch
from products import crossed
from specframe_std.drafters.first import First
from specframe_std.policies.round_seconds import Prior
from specframe_testing import fakes, harness, zoo
from specframe_testing.conformance import DrafterSuite, TreeDrafterSuite

from specframe.contracts.drafts import Budget, Draft
from specframe.contracts.reports import Outcome
from specframe.contracts.round import Batch
from specframe.errors import SpecframeError
from specframe.model.run import Run
from specframe.models.pairs import choose, chosen_name
from specframe.plugins.registry import registry

TARGET = fakes.fake_target()


TREES = 'first,"of=suffix,tree=dynamic,nodes=6,factor=3|model,branch=2/1"'


@pytest.mark.wide(but=["test_equals_reference[default]"])
class TestFirst(DrafterSuite):
    """The suite: found drafts with those of a draft model."""

    def make(self) -> str:
        return "first,of=suffix|model,match=1,weigh=off"


@pytest.mark.wide(but=["test_equals_reference[default]"])
class TestFirstOfTrees(TreeDrafterSuite):
    """The suite of trees: found ones with those of a draft model."""

    def make(self) -> str:
        return f"{TREES},match=1,weigh=off"

    def perfect(self, target: Any) -> Any:
        """Return None: drafts that were found are not the draft model's."""
        return None


class Known:
    """A drafter that matches as given, and proposes what the target says next, or the same token for each row."""

    needs: frozenset[str] = frozenset()
    offers = frozenset({"chain", "match"})

    def __init__(self, matches: list[int] | None = None, tokens: int = 3) -> None:
        self._told, self._tokens, self._round = matches, tokens, 0
        self._matches = np.zeros(0)

    def start(self, run: Run) -> None:
        """Nothing to prepare."""

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return up to ``budget`` tokens per row."""
        self._round += 1
        indices = [sequence.request.index for sequence in batch.sequences]
        told = self._told or [4 * ((index + self._round) % 3 > 0) for index in range(max(indices) + 1)]
        self._matches = np.array([told[index] for index in indices])
        count = min(budget.depth, self._tokens)
        if self._told is not None:
            return Draft(torch.full((len(batch), count), 9))
        texts = [ids[:length] for ids, length in zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True)]
        return Draft(
            torch.tensor([harness.continuation(TARGET, ids, count) for ids in texts]).long().view(len(batch), count)
        )

    def matches(self) -> np.ndarray:
        """Return the given matches."""
        return self._matches

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn."""


class Same(Known):
    """A drafter that is always sure of one token."""

    offers = frozenset({"chain"})

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return one token over and over."""
        return Draft(torch.full((len(batch), budget.depth), 5))


def first_of(*parts: Any, match: int = 4, weigh: str = "off") -> First:
    """Return the drafter, of objects."""
    made = First("suffix|none", match, weigh)
    made._parts = list(parts)
    return made


def batch_of(rows: int, plain: tuple[int, ...] = ()) -> Batch:
    """Return a batch of rows in order."""
    asked = [attrs.evolve(one, speculate=one.index not in plain) for one in harness.requests([[1, 2]] * rows)]
    pool = harness.open_pool(asked)
    return pool.batch(sorted(pool.admit(rows), key=lambda one: one.request.index))


@pytest.mark.wide
def test_each_row_has_the_draft_of_the_first_that_is_sure() -> None:
    """Rows whose match is long enough have the first drafter's tokens, the others the next one's; padding is counted out."""
    made = first_of(Known([5, 0, 3, 4, 9], tokens=2), Same())
    made._logits = False
    batch = batch_of(5, plain=(4,))
    draft = made.propose(batch, Budget(3, depths_B=np.array([3, 3, 2, 1, 0])))
    assert draft.counts is not None
    assert draft.counts_B is not None
    assert draft.counts.tolist() == draft.counts_B.tolist() == [2, 3, 2, 1, 0]
    real = [ids[:count] for ids, count in zip(draft.tokens_BN.tolist(), draft.counts.tolist(), strict=True)]
    assert real == [[9, 9], [5, 5, 5], [5, 5], [9], []]


class Stepped(Same):
    """A drafter that takes a step for each token, and notes how deep it was asked to draft."""

    offers = frozenset({"chain", "stops"})

    def __init__(self) -> None:
        super().__init__()
        self.depths = list[int]()

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return one token over and over."""
        self.depths.append(budget.depth)
        return super().propose(batch, budget)


@pytest.mark.wide(but=["0.15-0"])
@pytest.mark.parametrize(("step", "depth"), [(0.01, 4), (0.03, 3), (0.15, 0)])
def test_steps_are_taken_where_they_pay(step: float, depth: int) -> None:
    """The cheaper steps are the more of them are taken; where none pays, what was found takes its place."""
    stepped = Stepped()
    made = first_of(Known([5, 2, 0], tokens=1), stepped, weigh="on")
    made._logits, made._worth._prior = False, Prior(step, 0.02)
    draft = made.propose(batch_of(3), Budget(5))
    assert stepped.depths == [depth]
    assert draft.counts is not None
    assert draft.counts.tolist() == [1, depth or 1, depth or 1]
    own = 5 if depth else 9
    assert [ids[0] for ids in draft.tokens_BN.tolist()] == [9, own, own]
    noted = {source: counts_B.tolist() for source, counts_B in made._worth._drafted}
    assert noted == {0: [1, 0, 0], **({1: [0, depth, depth]} if depth else {"unsure": [0, 1, 1]})}


@pytest.mark.wide
def test_steps_are_weighed_by_what_stood() -> None:
    """Of each source acceptance is learnt by itself: found tokens that are never accepted make room for steps, and vice versa."""
    for found, stepped in ((0, 3), (3, 0)):
        part = Stepped()
        made = first_of(Known([2, 2, 2, 2], tokens=3), part, weigh="on")
        made._logits, made._worth._prior = False, Prior(0.2, 0.02)
        for _ in range(40):
            draft = made.propose(batch_of(4), Budget(3))
            stood = np.full(4, stepped if part.depths[-1] else found)
            made._worth.stood(np.minimum(stood, draft.nodes), np.ones(4, dtype=bool))
        assert (part.depths[-1] > 0) == (stepped > found)


def test_certain_tokens_beside_drawn_ones_have_all_probability() -> None:
    """Where some rows have logits, those of certain tokens are 0 at the token and -inf elsewhere, in the target's vocabulary."""

    class Drawn(Same):
        def propose(self, batch: Batch, budget: Budget) -> Draft:
            draft = super().propose(batch, budget)
            return attrs.evolve(draft, logits_BNV=torch.ones(*draft.tokens_BN.shape, 7), depth=draft.depth)

    made = first_of(Known([4, 0], tokens=2), Drawn())
    made._logits, made._vocabulary = True, 11
    draft = made.propose(batch_of(2), Budget(3))
    assert draft.logits_BNV is not None
    chances_BNV = draft.logits_BNV.softmax(-1)
    assert chances_BNV[0, :2].tolist() == [[float(token == 9) for token in range(11)]] * 2
    assert torch.allclose(chances_BNV[1], torch.tensor([1 / 7] * 7 + [0] * 4).expand(3, -1))


@pytest.mark.wide(but=["greedy-first,of=suffix|model,match=2,weigh=off"])
@pytest.mark.parametrize(
    ("accept", "drafter"),
    crossed(
        ["greedy", "rejection", "traversal", "gumbel", "block"],
        ["first,of=suffix|model,match=2,weigh=off", f"{TREES},weigh=off", f"{TREES},match=2"],
    ),
)
def test_exact_under_every_lossless_rule(accept: str, drafter: str) -> None:
    """Certain and drawn tokens in one batch leave the output the target's."""
    if accept == "block" and drafter.startswith(TREES):
        return  # accepts chains only
    target = zoo.build("qwen3")
    prompts = harness.random_prompts((9, 1, 14), 97)
    asked = harness.requests([[*p, *p, *p] for p in prompts], 12)
    for align, batch_size in (("ragged", 8), ("eqspec", 3), ("rollback", 2), ("exspec", 1)):
        options = {"accept": accept, "align": align, "batch_size": batch_size, "draft_length": 4, "check": True}
        pipe = harness.pipeline(target, zoo.good_draft(target), drafter=drafter, **options)
        harness.check(pipe, asked)
        assert pipe.report.num_draft_tokens > 0


@pytest.mark.wide
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("of=suffix", "of: expected at least two drafters with | between them, got 'suffix'"),
        ("of=suffix|", "of: expected at least two drafters with | between them, got 'suffix|'"),
        ("of=suffix|nobody", "unknown drafter 'nobody'"),
        ("weigh=maybe", "weigh: expected 'on' or 'off', got 'maybe'"),
        ("match=0", "match: expected a whole number of at least 1, got 0"),
    ],
)
def test_bad_options(options: str, message: str) -> None:
    """One drafter alone, one that nothing offers, and a match of nothing are refused in one sentence."""
    with pytest.raises(SpecframeError) as caught:
        registry().make("drafter", f"first,{options}")
    assert message in str(caught.value)


@pytest.mark.wide(but=["first,of=suffix|tiny-draft"])
@pytest.mark.parametrize("given", ["first,of=suffix|tiny-draft", "first,of=prompt-lookup|tiny-draft,match=2"])
def test_it_is_named_as_it_was_asked_for(given: str) -> None:
    """Listings and comparisons name it, and not the draft model of one of its parts, which would be another drafter."""
    _, strategy, draft = choose("auto", given)
    assert draft == "tiny-draft"
    assert chosen_name(given, strategy, draft) == given
    assert choose("tiny", chosen_name(given, strategy, draft)) == ("tiny", strategy, draft)
